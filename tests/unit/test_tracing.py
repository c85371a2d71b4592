"""Traces: who published a message, who handled it, and what became of it, as the spans of OpenTelemetry tell it."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis import Failure, Retry, RetryLater
from ignis.consumer.traced import FailureSpans
from ignis.errors import ConfigError, MessageTooLargeError
from ignis.log_format import JsonFormatter
from ignis.message import Message, bare_record, decode_meta, encode_meta, has_deadline
from ignis.native import CODEC_JSON, PackedBatch, Record, encode_record
from ignis.tracing import context_of, unsettled, with_context
from ignis.tracing.envelope import carrier_of, with_last_traceparent
from tests.support import eventually

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")

from tests.support.spans import Spans, event_of, id_of, is_child, is_linked, recorded_spans, trace_of  # noqa: E402

ONE = {"shards": 1, "shovel_interval": 0}
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "congo=t61rcWkgMzE"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


@pytest.fixture
def traced(store_url: str, new_app: Callable[..., ignis.Ignis]) -> ignis.Ignis:
    return new_app(store_url, tracing={"enabled": True})


@pytest.fixture
def memory(memory_url: str, new_app: Callable[..., ignis.Ignis]) -> ignis.Ignis:
    return new_app(memory_url, tracing={"enabled": True})


def envelope(queue: ignis.Queue[Any]) -> Message:
    ((_, _, record),) = queue.main.store.scan(queue.name, after={}, limit=2)
    assert record is not None
    return Message.from_bytes(record)


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_handler_continues_the_trace_of_who_published(traced: ignis.Ignis, spans: Spans, coroutine: bool) -> None:
    queue, seen = traced.queue("orders", str, **ONE), []

    def handle(order: str, ctx: ignis.Context) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async def awaited(order: str, ctx: ignis.Context) -> None:
        await asyncio.sleep(0)
        handle(order, ctx)

    queue.handler(awaited if coroutine else handle)
    with trace.get_tracer("test").start_as_current_span("request") as request:
        published = queue.publish("first")
    traced.start()
    sent, handled = spans.one("publish orders"), spans.one("process orders")
    assert sent.parent.span_id == request.get_span_context().span_id
    assert (sent.kind, handled.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert is_child(handled, sent)
    assert is_linked(handled, sent)
    assert seen == [id_of(handled)]
    common = {
        "messaging.system": "ignis",
        "messaging.destination.name": "orders",
        "messaging.message.id": published.id,
    }
    assert dict(sent.attributes) == common | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    function = f"{__name__}.{(awaited if coroutine else handle).__qualname__}"
    assert dict(handled.attributes) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "ignis.message.attempt": 1,
        "code.function.name": function,
    }
    assert not trace.get_current_span().get_span_context().is_valid


def test_every_way_to_publish_makes_one_span(traced: ignis.Ignis, spans: Spans) -> None:
    queue = traced.queue("orders", str, **ONE)
    queue.publish("a", delay=60)
    assert len(spans.named("publish orders")) == 1
    queue.publish_many(["b", "c"])
    assert len(spans.named("publish orders")) == 2
    assert spans.all()[-1].attributes["messaging.batch.message_count"] == 2
    with queue.publisher() as publisher:
        receipt = publisher.send("d", key="k", headers={"own": 1})
    sent = spans.wait("publish orders", 3)[-1]
    assert sent.attributes["messaging.message.id"] == receipt.id
    apublished = asyncio.run(queue.apublish("e"))
    sent = spans.wait("publish orders", 4)[-1]
    assert sent.attributes["messaging.message.id"] == apublished.id
    asyncio.run(queue.apublish("f", delay=60))
    asyncio.run(queue.apublish_many(["g"]))
    assert len(spans.wait("publish orders", 6)) == 6
    of = {}
    for _, _, record in queue.main.store.scan("orders", after={}, limit=10):
        message = Message.from_bytes(record)
        of[message.body] = message.headers["traceparent"]
    assert len(of) == 5
    assert of[b"b"] == of[b"c"]
    assert len(set(of.values())) == 4


def test_a_coroutine_that_finds_the_ring_full_makes_one_span(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, **ONE)

    async def many(publisher: Any) -> None:
        for number in range(200):
            await publisher.asend(str(number))

    with queue.publisher(capacity=2) as publisher:
        asyncio.run(many(publisher))
    assert len(spans.wait("publish orders", 200)) == 200
    assert len(spans.all()) == 200


def test_a_refused_message_is_an_error(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, max_message_bytes=64, **ONE)
    with pytest.raises(MessageTooLargeError):
        queue.publish("x" * 100)
    sent = spans.one("publish orders")
    assert sent.attributes["error.type"] == "ignis.errors.MessageTooLargeError"
    assert sent.status.status_code is trace.StatusCode.ERROR
    with pytest.raises(ignis.IgnisError):
        queue.publish("x", headers=7)  # type: ignore[arg-type]
    with pytest.raises(MessageTooLargeError), queue.publisher() as publisher:
        publisher.send("x" * 100)
    assert len(spans.named("publish orders")) == 3


def test_a_context_that_is_given_is_kept(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, **ONE)
    queue.publish("a", headers={"traceparent": GIVEN, "tracestate": STATE, "own": 1})
    assert envelope(queue).headers == {"traceparent": GIVEN, "tracestate": STATE, "own": 1}
    (link,) = spans.one("publish orders").links
    assert f"{link.context.trace_id:032x}" in GIVEN
    queue.handler(lambda order: None)
    memory.start()
    handled = spans.one("process orders")
    assert (handled.parent.trace_id, handled.parent.span_id) == (link.context.trace_id, link.context.span_id)
    assert handled.get_span_context().trace_state.to_header() == STATE


def test_the_context_never_makes_headers_too_large(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, max_headers_bytes=1024, **ONE)
    own = {"own": "x" * 980}
    queue.publish("a", headers=own)
    assert envelope(queue).headers == own
    assert spans.one("publish orders").attributes["ignis.context.left_out"] is True


def test_a_message_without_a_context_begins_a_trace(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", dict, **ONE)
    metas = [b"", b"\xc1", b"\x81\xa7headers\x81\xabtraceparent\x07", b"\x81\xa7headers\x81\xabtraceparent\xa1x"]
    batches, _ = PackedBatch.pack_bodies(
        [b"{}"] * len(metas), flags=CODEC_JSON, keys=None, shards=1, any_shard=0, metas=metas
    )
    queue.main.load_batches(batches)
    queue.handler(lambda order: None)
    memory.start()
    found = spans.wait("process orders", len(metas))
    assert [span.parent for span in found] == [None] * len(metas)
    assert len({trace_of(span) for span in found}) == len(metas)


def test_a_retry_the_sideline_and_a_shovel_are_linked(traced: ignis.Ignis, spans: Spans) -> None:
    queue, follow_ups = traced.queue("orders", str, **ONE), traced.queue("mails", str, **ONE)
    works: list[str] = []

    @queue.handler(retry=Retry(attempts=2, base=0))
    def handle(order: str, ctx: ignis.Context) -> None:
        follow_ups.publish(f"{order} {ctx.attempt}")
        if not works:
            raise ValueError("no stock")

    published = queue.publish("first", expires_in=3_600)
    traced.start()
    aside = spans.one("sideline orders")
    sent, (first, second), again = (
        spans.one("publish orders"),
        spans.wait("process orders", 2),
        spans.one("retry orders"),
    )
    mails = spans.wait("publish mails", 2)
    assert [one.attributes["ignis.message.attempt"] for one in (first, again, second, aside)] == [1, 1, 2, 2]
    assert is_child(first, sent)
    assert is_child(mails[0], first)
    assert is_child(again, first)
    assert is_child(second, sent)
    assert is_linked(second, again)
    assert is_child(mails[1], second)
    assert is_child(aside, second)
    assert is_linked(aside, sent)
    assert {trace_of(one) for one in spans.all()} == {trace_of(sent)}
    assert first.attributes["error.type"] == "ValueError"
    assert first.status.description == "no stock"
    assert event_of(first, "exception")["exception.message"] == "no stock"
    assert again.attributes["messaging.operation.type"] == "settle"
    planned = event_of(again, "ignis.retry.scheduled")
    assert (planned["reason"], planned["next_attempt"]) == ("exception", 2)
    assert event_of(aside, "ignis.sidelined") == {
        "reason": "exception",
        "error": "ValueError: no stock",
        "given_up": True,
    }
    works.append("yes")
    eventually(lambda: queue.sideline.pending() == 1)
    assert queue.shovel.run_once().moved == 1
    third, shovelled = spans.wait("process orders", 3)[-1], spans.one("shovel orders")
    assert is_linked(shovelled, sent)
    assert is_linked(shovelled, aside)
    assert shovelled.attributes["messaging.batch.message_count"] == 1
    assert is_child(third, sent)
    assert is_linked(third, shovelled)
    assert third.attributes["messaging.message.id"] == published.id
    assert not spans.named("sideline orders")[1:]


def test_an_attempt_that_begins_before_the_last_one_is_accounted_for(
    memory: ignis.Ignis, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, end = memory.queue("orders", str, **ONE), FailureSpans.end

    def late(self: FailureSpans, left: Any) -> None:
        if not spans.named("retry orders"):
            spans.wait("process orders", 2)  # the retry is stored, and the next attempt has failed already
        end(self, left)

    monkeypatch.setattr(FailureSpans, "end", late)

    @queue.handler(retry=Retry(attempts=2, base=0))
    def handle(order: str) -> None:
        raise ValueError("no stock")

    queue.publish("first")
    memory.start()
    aside, (_, second) = spans.one("sideline orders"), spans.wait("process orders", 2)
    assert is_child(aside, second)


def test_a_call_that_ends_late_forgets_no_later_one() -> None:
    unsettled.note("orders", "1", "first")
    unsettled.note("orders", "1", "second")
    unsettled.forget("orders", "1", "first")
    assert unsettled.look("orders", "1") == "second"
    unsettled.note_failed("orders", "1", "first", noted=True)
    assert unsettled.look("orders", "1") == "second"
    unsettled.forget("orders", "1", "second")
    assert unsettled.look("orders", "1") is None


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_handler_that_asks_for_another_attempt_has_not_failed(
    memory: ignis.Ignis, spans: Spans, coroutine: bool
) -> None:
    queue = memory.queue("orders", str, **ONE)

    def handle(order: str, ctx: ignis.Context) -> RetryLater | None:
        return RetryLater(0, "not yet") if ctx.attempt == 1 else None

    async def awaited(order: str, ctx: ignis.Context) -> RetryLater | None:
        if ctx.attempt == 1:
            raise RetryLater(0, "not yet")
        return None

    queue.handler(awaited if coroutine else handle)
    queue.publish("a")
    memory.start()
    first, second = spans.wait("process orders", 2)
    assert first.status.status_code is trace.StatusCode.UNSET
    assert "error.type" not in first.attributes
    assert event_of(first, "ignis.retry.asked") == {"delay_s": 0.0, "why": "not yet"}
    again = spans.one("retry orders")
    assert is_child(again, first)
    assert is_linked(second, again)


def test_what_a_handler_answers(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, **ONE)

    @queue.handler(ignore=KeyError)
    def handle(order: str) -> object:
        if order == "ignored":
            raise KeyError(order)
        return {"false": False, "failure": Failure("timeout", "none left"), "true": True}[order]

    for order in ("false", "failure", "true", "ignored"):
        queue.publish(order)
    memory.start()
    false, failure, true, ignored = spans.wait("process orders", 4)
    assert [one.attributes.get("error.type") for one in (false, failure, true, ignored)] == [
        "rejected",
        "timeout",
        None,
        None,
    ]
    assert failure.status.description == "none left"
    assert ignored.attributes["ignis.outcome"] == "dropped"
    aside = spans.wait("sideline orders", 2)
    assert [one.attributes["ignis.failure.reason"] for one in aside] == ["rejected", "timeout"]
    assert [one.attributes["error.type"] for one in aside] == ["rejected", "timeout"]


def test_what_no_handler_was_called_for(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, on_expiry="sideline", **ONE)
    queue.publish("late", expires_in="1ms")
    queue.handler(lambda order: None)
    sent = spans.one("publish orders")
    eventually(lambda: envelope(queue).expires_at_ms < memory.store.wall_s() * 1000)
    memory.start()
    aside = spans.one("sideline orders")
    assert is_child(aside, sent)
    assert aside.attributes["ignis.failure.reason"] == "expired"
    assert not spans.named("process orders")


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_batch_is_linked_with_all_that_it_has(memory: ignis.Ignis, spans: Spans, coroutine: bool) -> None:
    queue = memory.queue("orders", str, **ONE)

    def handle(orders: list[str]) -> list[object]:
        return [order != "b" for order in orders]

    async def awaited(orders: list[str]) -> list[object]:
        return handle(orders)

    queue.handler(batch_size=4, batch_wait_s=1)(awaited if coroutine else handle)
    for order in "ab":
        queue.publish(order)
    queue.publish_many(["c", "d"])
    memory.start()
    handled, sent = spans.one("process orders"), spans.wait("publish orders", 3)
    assert handled.parent is None
    assert len(handled.links) == 3
    assert all(is_linked(handled, one) for one in sent)
    assert handled.attributes["messaging.batch.message_count"] == 4
    assert "messaging.message.id" not in handled.attributes
    assert handled.attributes["ignis.batch.failed_count"] == 1
    aside = spans.one("sideline orders")
    assert is_child(aside, handled)
    assert is_linked(aside, sent[1])


def test_middleware_runs_within_the_span(memory: ignis.Ignis, spans: Spans) -> None:
    queue, seen = memory.queue("orders", str, **ONE), []

    @memory.middleware
    async def layer(ctx: ignis.Context, call_next: Any) -> Any:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return await call_next(ctx)

    queue.handler(lambda order: seen.append(trace.get_current_span().get_span_context().span_id))
    queue.publish("a")
    memory.start()
    assert seen == [id_of(spans.one("process orders"))] * 2


def test_lines_of_the_log_name_the_span(memory: ignis.Ignis, spans: Spans) -> None:
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    logger, handler = logging.getLogger("ignis"), Lines()
    logger.addHandler(handler)
    try:
        queue = memory.queue("orders", str, **ONE)

        @queue.handler
        def handle(order: str) -> None:
            logging.getLogger("ignis.test").warning("within")
            raise ValueError("no")

        queue.publish("a")
        memory.start()
        handled = spans.one("process orders")
        spans.one("sideline orders")
        logging.getLogger("ignis.test").warning("outside")
    finally:
        logger.removeHandler(handler)
    of = {line["event"]: line for line in lines}
    for event in ("within", "handler_raised"):
        assert (of[event]["trace_id"], of[event]["span_id"]) == (f"{trace_of(handled):032x}", f"{id_of(handled):016x}")
    assert "trace_id" not in of["outside"]


def test_a_sampler_that_raises_fails_no_message(
    memory: ignis.Ignis, spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = memory.queue("orders", str, **ONE), []
    queue.handler(seen.append)

    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("sampler")

    monkeypatch.setattr(sdk.Tracer, "start_span", refuse)
    queue.publish("a")
    memory.start()
    eventually(lambda: seen == ["a"])
    assert "a span could not be started: sampler" in caplog.text


def test_what_is_not_sampled_travels_all_the_same(memory: ignis.Ignis, spans: Spans) -> None:
    queue = memory.queue("orders", str, **ONE)
    unsampled = GIVEN[:-2] + "00"
    with trace.use_span(trace.NonRecordingSpan(_context(unsampled))):
        queue.publish("a")
        with queue.publisher() as publisher:
            publisher.send("b")
    headers = [
        Message.from_bytes(record).headers["traceparent"]
        for _, _, record in queue.main.store.scan("orders", after={}, limit=5)
    ]
    assert [one.split("-")[1] for one in headers] == [GIVEN.split("-")[1]] * 2
    assert [int(one.split("-")[3], 16) & 1 for one in headers] == [0, 0]
    assert spans.all() == []


def _context(traceparent: str) -> Any:
    _, trace_id, span_id, flags = traceparent.split("-")
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))


def test_the_envelope_keeps_its_deadline_first() -> None:
    meta = b"\x81\xadexpires_at_ms\x07"
    record = encode_record(b"x", meta=meta)
    traced = with_last_traceparent(record, GIVEN)
    assert has_deadline(Record(traced).meta)
    assert decode_meta(Record(traced).meta) == {"expires_at_ms": 7, "last_traceparent": GIVEN}
    assert Record(bare_record(traced)).meta == meta
    unreadable = encode_record(b"x", meta=b"\xc1")
    assert with_last_traceparent(unreadable, GIVEN) == unreadable
    assert with_last_traceparent(b"no record", GIVEN) == b"no record"


def test_a_record_gets_the_current_context(spans: Spans) -> None:
    plain = encode_record(b"x", key=b"k")
    assert with_context(plain) == plain  # nothing is current
    assert not trace.get_current_span(context_of(plain)).get_span_context().is_valid
    with trace.get_tracer("test").start_as_current_span("sending") as current:
        sent = with_context(plain)
        mortal = with_context(encode_record(b"x", meta=encode_meta({"a": 1}, expires_at_ms=7)))
        given = encode_record(b"x", meta=encode_meta({"traceparent": GIVEN}))
        full = encode_record(b"x", meta=encode_meta({"a": "x" * (16 << 10)}, 64 << 10))
        for kept in (given, full, encode_record(b"x", meta=b"\xc1"), b"no record"):
            assert with_context(kept) == kept
    found = trace.get_current_span(context_of(sent)).get_span_context()
    assert (found.trace_id, found.span_id) == (current.get_span_context().trace_id, current.get_span_context().span_id)
    assert (Record(sent).key, Record(sent).body, Record(sent).id) == (b"k", b"x", Record(plain).id)
    assert has_deadline(Record(mortal).meta)
    assert Message.from_bytes(mortal).headers == {"a": 1, **Message.from_bytes(sent).headers}
    assert not trace.get_current_span(context_of(b"no record")).get_span_context().is_valid


def test_a_record_s_context_needs_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ignis.tracing.otel", None)
    monkeypatch.delattr("ignis.tracing.otel", raising=False)
    for call in (with_context, context_of):
        with pytest.raises(ConfigError, match=r"pip install 'ignis-mq\[otel\]'"):
            call(encode_record(b"x"))


def test_only_text_is_a_context() -> None:
    assert carrier_of({"traceparent": GIVEN, "tracestate": 7, "other": "x"}) == {"traceparent": GIVEN}
    assert carrier_of(None) == {}


_COLD = """
import sys
import ignis
from ignis.testing import drain
with ignis.Ignis("memory://") as app:
    queue = app.queue("orders", str, shards=1)
    queue.handler(lambda order: None)
    queue.publish("a")
    drain(queue)
    assert "publish" not in vars(queue), vars(queue)
print(sorted(name for name in sys.modules if name.split(".")[0] == "opentelemetry" or name == "ignis.tracing.otel"))
"""


def test_who_does_not_trace_imports_nothing() -> None:
    found = subprocess.run([sys.executable, "-c", _COLD], capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


def test_without_the_packages_it_is_said_what_to_install(
    memory_url: str, new_app: Callable[..., ignis.Ignis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ignis.tracing.otel", None)
    with pytest.raises(ConfigError, match=r"pip install 'ignis-mq\[otel\]'"):
        new_app(memory_url, tracing={"enabled": True})
    monkeypatch.setenv("IGNIS_TRACING_ENABLED", "yes")
    with pytest.raises(ConfigError, match="is missing"):
        new_app(memory_url)
