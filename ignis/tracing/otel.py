"""The one file that imports ``opentelemetry``: spans by the semantic conventions for messaging, and what goes into a carrier.

The conventions are those of version 1.37 and later: the span is named by ``messaging.operation.name`` and the destination, and
``messaging.operation.type`` is one of ``send``, ``process`` and ``settle``. The tracer is the global provider's, so that
exporting, sampling and limits are what the application, or ``opentelemetry-instrument``, told the SDK.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ignis._version import __version__
from ignis.log_format import add_fields, event_text
from ignis.log_limit import LimitedLog
from ignis.tracing import unsettled
from ignis.tracing.envelope import TRACEPARENT

__all__ = ["Context", "Link", "Operation", "Tracing", "context_in", "current_carrier"]

_SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
_TYPES = {"publish": "send", "shovel": "send", "process": "process", "retry": "settle", "sideline": "settle"}
"""``messaging.operation.type`` by the operation's own name."""

_said = LimitedLog(logging.getLogger("ignis.tracing"))

_propagator = TraceContextTextMapPropagator()

Carrier = Mapping[str, str]
Link = tuple[Carrier, Mapping[str, Any]]
"""A context, and the attributes of the link to it."""


class Tracing:
    """Starts the spans of one application. Thread-safe."""

    PRODUCER = trace.SpanKind.PRODUCER
    CONSUMER = trace.SpanKind.CONSUMER
    CLIENT = trace.SpanKind.CLIENT

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("ignis", __version__, schema_url=_SCHEMA)
        add_fields(_log_fields)

    def flush(self) -> None:
        """Exports the spans that have ended; returns when they are, or when the exporter has given up."""
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is None:
            return  # no SDK
        try:
            flush()
        except Exception as exc:  # as in `start`
            _said.warning(event_text("spans_not_exported", "spans could not be exported: %s"), _text(exc))

    def start(
        self,
        operation: str,
        queue: str,
        kind: trace.SpanKind,
        *,
        parent: Carrier | None = None,
        links: Iterable[Link] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Starts a span, which nobody sees as the current one yet.

        Args:
            operation: what is done: ``publish``, ``process``, ``retry``, ``sideline``, ``shovel``.
            queue: to which queue, or from which.
            kind: of the span.
            parent: the carrier of its parent's context, a root where it holds none; None = what is current.
            links: contexts that it is linked with; several links to one span are one.
            attributes: beside those of every span.
        """
        found: dict[tuple[int, int], trace.Link] = {}
        for carrier, said in links:
            linked = _span_context(carrier)
            if linked.is_valid:
                found.setdefault((linked.trace_id, linked.span_id), trace.Link(linked, dict(said)))
        try:
            span = self._tracer.start_span(
                f"{operation} {queue}",
                context=None if parent is None else context_in(parent),
                kind=kind,
                links=list(found.values()),
                attributes={
                    "messaging.system": "ignis",
                    "messaging.destination.name": queue,
                    "messaging.operation.name": operation,
                    "messaging.operation.type": _TYPES[operation],
                    **(attributes or {}),
                },
            )
        except Exception as exc:  # a sampler or a processor of the user's: no message fails for its trace
            _said.warning(event_text("span_not_started", "a span could not be started: %s"), _text(exc))
            span = trace.INVALID_SPAN
        return Operation(span)


def current_carrier() -> dict[str, str]:
    """The context of what is current, as headers; empty where nothing is."""
    made: dict[str, str] = {}
    _propagator.inject(made)
    return made


def context_in(carrier: Carrier) -> Context:
    """What headers say: to be the parent of a span. Empty where they hold no context."""
    return _propagator.extract(carrier, Context())


class Operation:
    """A span that was started. It is ended once, by `end`; one that is not ended is never exported."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def recording(self) -> bool:
        """Whether anybody wants to know more of it: it is sampled."""
        return self._span.is_recording()

    def carrier(self) -> dict[str, str]:
        """Its context, as headers; empty where no SDK is installed."""
        made: dict[str, str] = {}
        _propagator.inject(made, trace.set_span_in_context(self._span, Context()))
        return made

    @property
    def traceparent(self) -> str | None:
        return self.carrier().get(TRACEPARENT)

    def link_to(self, carrier: Carrier) -> None:
        """Links it with a context that was not known when it began."""
        linked = _span_context(carrier)
        if linked.is_valid:
            self._span.add_link(linked)

    def set(self, name: str, value: Any) -> None:
        self._span.set_attribute(name, value)

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        self._span.add_event(name, {key: value for key, value in attributes.items() if value is not None})

    def raised(self, exc: BaseException, *, is_error: bool = True) -> None:
        """It was left by this exception. ``is_error``: whether that is a failure."""
        try:
            self._span.record_exception(exc)
        except Exception as raised:  # the exception's own text raises
            self._span.add_event("exception", {"exception.type": type(exc).__qualname__})
            _said.warning(
                event_text("span_exception_not_recorded", "an exception could not be recorded: %s"), _text(raised)
            )
        if is_error:
            kind = type(exc)
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            self.failed(name, _text(exc))

    def failed(self, error_type: str, text: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, text))

    def end(self) -> None:
        try:
            self._span.end()
        except Exception as exc:  # as in `Tracing.start`
            _said.warning(event_text("span_not_ended", "a span could not be ended: %s"), _text(exc))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within it ``trace.get_current_span()`` is this span."""
        token = contexts.attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            contexts.detach(token)


def _span_context(carrier: Carrier) -> trace.SpanContext:
    return trace.get_current_span(context_in(carrier)).get_span_context()


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException:  # the exception's own text raises
        return ""


def _log_fields(record: logging.LogRecord) -> dict[str, str]:
    """The ids of the span within which a line is logged; for a line about a message that failed, those of its last call."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        queue, id = getattr(record, "queue", None), getattr(record, "message_id", None)
        last = unsettled.look(queue, id) if isinstance(queue, str) and isinstance(id, str) else None
        if last is None:
            return {}
        found = _span_context({TRACEPARENT: last})
    return {"trace_id": trace.format_trace_id(found.trace_id), "span_id": trace.format_span_id(found.span_id)}
