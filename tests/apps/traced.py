"""A traced handler for worker processes, which find its provider and its application here: spans go to a file, a line each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import ignis


class FileExporter(SpanExporter):
    """Appends spans as lines of JSON to the file named by ``IGNIS_TEST_SPANS``."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(os.environ["IGNIS_TEST_SPANS"], "a", encoding="utf-8") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def fail_once(order: dict[str, Any], ctx: ignis.Context) -> None:
    """Fails at the first attempt, with the span that it sees in the error."""
    if ctx.attempt == 1:
        seen = trace.get_current_span().get_span_context()
        raise RuntimeError(f"seen {seen.span_id:016x}")


def register(app: ignis.Ignis) -> ignis.Queue[Any]:
    queue = app.queue("orders", dict, shards=1, shovel_interval=0)
    queue.handler(pool="process", retry=ignis.Retry(attempts=2, base=0))(fail_once)
    return queue


if "IGNIS_TEST_SPANS" in os.environ and not isinstance(trace.get_tracer_provider(), TracerProvider):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
    trace.set_tracer_provider(provider)

app = ignis.Ignis("memory://", tracing={"enabled": True})
register(app)
