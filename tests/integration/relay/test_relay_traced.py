"""A trace through a relay, which carries the headers of what it forwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ignis
from tests.support.relay import place

pytest.importorskip("opentelemetry.sdk.trace")

from tests.support.spans import is_child, recorded_spans

pytestmark = pytest.mark.integration

ON = {"tracing": {"enabled": True}}


def test_through_a_relay(tmp_path: Path, new_app: Callable[..., ignis.Ignis]) -> None:
    with recorded_spans() as spans, place(tmp_path) as here:
        here.start_relay()
        shop, worker = new_app(here.url, **ON), new_app(here.store_url, **ON)
        handled = worker.queue("orders", str, shards=1, shovel_interval=0)
        handled.handler(lambda order: None)
        worker.start()
        orders = shop.queue("orders", str)
        orders.publish("first")
        with orders.publisher() as publisher:
            publisher.send("second")
        sent, calls = spans.wait("publish orders", 2), spans.wait("process orders", 2)
        worker.close()
        shop.close()
    assert all(any(is_child(call, one) for call in calls) for one in sent)
