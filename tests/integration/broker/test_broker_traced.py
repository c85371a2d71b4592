"""A trace through a broker: who publishes and who handles are its clients, and it carries the headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis import Retry
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.sync_client import SyncClient
from ignis.message import encode_meta
from ignis.native import PackedBatch, encode_record
from tests.support import WAIT_S, eventually
from tests.support.broker import running
from tests.support.doc_blocks import blocks

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry import trace

from tests.support.spans import Spans, is_child, is_linked, recorded_spans

pytestmark = pytest.mark.integration

ON = {"tracing": {"enabled": True}}


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


@pytest.mark.parametrize("coroutine", [False, True])
def test_through_a_broker(store_url: str, new_app: Callable[..., ignis.Ignis], spans: Spans, coroutine: bool) -> None:
    with running(store_url) as broker:
        shop, worker = new_app(broker.url, **ON), new_app(broker.url, **ON)
        done = worker.queue("orders", str, shards=1, shovel_interval=0)

        def handle(order: str, ctx: ignis.Context) -> None:
            raise ValueError(order)

        async def awaited(order: str, ctx: ignis.Context) -> None:
            handle(order, ctx)

        done.handler(retry=Retry(attempts=2, base=0))(awaited if coroutine else handle)
        orders = shop.queue("orders", str, shards=1, shovel_interval=0)
        published = orders.publish("first")
        with orders.publisher() as publisher:
            publisher.send("second", key="k")
        sent = spans.wait("publish orders", 2)
        worker.start()
        aside = spans.wait("sideline orders", 2)
        eventually(lambda: done.sideline.pending() == 2)
        worker.close()
        shop.close()
    assert sent[0].attributes["messaging.message.id"] == published.id
    for one in sent:
        calls = [call for call in spans.named("process orders") if is_child(call, one)]
        assert [call.attributes["ignis.message.attempt"] for call in calls] == [1, 2]
        (again,) = [span for span in spans.named("retry orders") if is_child(span, calls[0])]
        assert is_linked(calls[1], again)
        assert [span for span in aside if is_child(span, calls[1])]


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_low_level_client_carries_the_context_where_it_is_asked_to(
    store_url: str, new_app: Callable[..., ignis.Ignis], spans: Spans, coroutine: bool
) -> None:
    page: dict[str, Any] = {}
    (block,) = [one for one in blocks("docs/tracing.md") if "with_context" in one.text]
    exec(block.text, page)  # as the page says it
    tracer = trace.get_tracer("test")
    with running(store_url) as broker, SyncClient(BrokerAddress("127.0.0.1", broker.port)) as client:
        app = new_app(broker.url, **ON)
        frames, answers = (app.queue(name, bytes, shards=1, shovel_interval=0) for name in ("frames", "answers"))

        @frames.handler
        def handle(frame: bytes) -> None:
            answers.publish(b"seen")

        async def awaited() -> None:
            async with AsyncClient(BrokerAddress("127.0.0.1", broker.port)) as other:
                record = page["with_context"](encode_record(b"...", meta=encode_meta({"shop": 7})))
                await other.send_batch("frames", [(0, PackedBatch.pack([record]))])

        app.start()
        with tracer.start_as_current_span("sending") as taken:
            asyncio.run(awaited()) if coroutine else page["send"](client, b"...")
        sent = taken if coroutine else spans.one("publish frames")
        handled, answered = spans.one("process frames"), spans.one("publish answers")
        (claim,) = client.consume("answers", 1, WAIT_S).claims
        (record,) = claim.records
        with tracer.start_as_current_span("reading", context=page["context_of"](record)):
            pass
        app.close()
    assert is_child(handled, sent)
    assert is_child(answered, handled)
    assert is_child(spans.one("reading"), answered)
    assert not spans.named("process answers")
    assert len(spans.named("publish frames")) == (not coroutine)
