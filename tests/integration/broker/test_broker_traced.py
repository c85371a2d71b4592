"""A trace through a broker: who publishes and who handles are its clients, and it carries the headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import ignis
from ignis import Retry
from tests.support import eventually
from tests.support.broker import running

pytest.importorskip("opentelemetry.sdk.trace")

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
