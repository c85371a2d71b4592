"""Traces through Spark: the driver's goes on in the handlers of what its job publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")
pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry import trace  # noqa: E402
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: E402

from ignis.spark import IgnisDataSource, drain, publish, traceparent_of  # noqa: E402
from tests.support.spans import Spans, recorded_spans, trace_of  # noqa: E402

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


def handled(url: str, new_app: Callable[..., ignis.Ignis], spans: Spans, count: int) -> list[Any]:
    """The spans of the handler of all that is in the queue."""
    app = new_app(url, tracing={"enabled": True})
    queue = app.queue("q", shovel_interval=0)
    queue.handler(lambda message: None)
    app.start()
    return spans.wait("process q", count)


def test_the_driver_s_trace_goes_on_in_the_handler(
    spark: Any, embedded_url: str, new_app: Callable[..., ignis.Ignis], spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks' workers have no SDK here: what the driver gave arrives all the same."""
    monkeypatch.setenv("IGNIS_TRACING_ENABLED", "true")
    with trace.get_tracer("test").start_as_current_span("job") as job:
        receipts = publish(spark.range(0, 20, 1, 3), embedded_url, "q", id="id")
    assert sum(row["count"] for row in receipts.collect()) == 20
    found = handled(embedded_url, new_app, spans, 20)
    assert {one.parent.span_id for one in found} == {job.get_span_context().span_id}


def test_rows_that_have_a_trace_each(
    spark: Any, embedded_url: str, new_app: Callable[..., ignis.Ignis], spans: Spans
) -> None:
    traces = [f"{number:032x}" for number in range(1, 11)]
    df = spark.createDataFrame(
        [(text, f"00-{text}-b7ad6b7169203331-01") for text in traces], "body string, parent string"
    )
    publish(df, embedded_url, "q", columns=["body"], traceparent="parent").collect()
    found = handled(embedded_url, new_app, spans, 10)
    assert sorted(f"{trace_of(one):032x}" for one in found) == traces


def test_the_sink_takes_what_the_propagator_writes(
    spark: Any, embedded_url: str, new_app: Callable[..., ignis.Ignis], spans: Spans
) -> None:
    spark.dataSource.register(IgnisDataSource)
    context: dict[str, str] = {}
    with trace.get_tracer("test").start_as_current_span("job") as job:
        TraceContextTextMapPropagator().inject(context)
        spark.range(0, 6, 1, 2).write.format("ignis").options(url=embedded_url, queue="q", **context).mode(
            "append"
        ).save()
    found = handled(embedded_url, new_app, spans, 6)
    assert {one.parent.span_id for one in found} == {job.get_span_context().span_id}


def test_what_is_read_has_its_trace_and_hands_it_on(
    spark: Any, embedded_url: str, new_app: Callable[..., ignis.Ignis], spans: Spans
) -> None:
    app = new_app(embedded_url, tracing={"enabled": True})
    inbox = app.queue("inbox", bytes)
    sent = {}
    for number in range(6):
        inbox.publish(b"%d" % number)
        (span,) = spans.wait("publish inbox", number + 1)[number:]
        sent[b"%d" % number] = trace_of(span)
    new_app(embedded_url).queue("inbox", bytes).publish(b"none")
    spark.dataSource.register(IgnisDataSource)
    look = spark.read.format("ignis").options(url=embedded_url, queue="inbox").load()
    read = {bytes(row[0]): row[1] for row in look.select("body", traceparent_of()).collect()}
    assert read.pop(b"none") is None
    assert {body: int(text[3:35], 16) for body, text in read.items()} == sent
    with drain(spark, embedded_url, "inbox") as drained:
        rows = drained.df.where("body != X'6E6F6E65'").withColumn("parent", traceparent_of("_meta"))
        publish(rows, embedded_url, "q", value="body", traceparent="parent").collect()
        drained.commit()
    found = handled(embedded_url, new_app, spans, 6)
    assert {trace_of(one) for one in found} == set(sent.values())
