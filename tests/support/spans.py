"""The spans that this process has ended, for tests of tracing. The provider is the process's one: its SDK takes no second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support import eventually

_exporter = InMemorySpanExporter()


class Spans:
    """What has ended since the test began."""

    def all(self) -> list[ReadableSpan]:
        return list(_exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """The first so many of that name, when they have ended."""
        eventually(lambda: len(self.named(name)) >= count)
        return self.named(name)[:count]

    def one(self, name: str) -> ReadableSpan:
        """The only one of that name, when it has ended."""
        self.wait(name)
        (found,) = self.named(name)
        return found


@contextmanager
def recorded_spans() -> Iterator[Spans]:
    """Spans of what runs within."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    if not getattr(provider, "is_of_the_tests", False):
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        provider.is_of_the_tests = True  # type: ignore[attr-defined]
    _exporter.clear()
    yield Spans()
    _exporter.clear()


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id  # type: ignore[union-attr]


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id  # type: ignore[union-attr]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (trace_of(parent), id_of(parent))


def is_linked(span: ReadableSpan, other: ReadableSpan) -> bool:
    return any((link.context.trace_id, link.context.span_id) == (trace_of(other), id_of(other)) for link in span.links)


def event_of(span: ReadableSpan, name: str) -> dict[str, object]:
    """The attributes of the one event of that name."""
    (found,) = [dict(event.attributes or {}) for event in span.events if event.name == name]
    return found
