"""Queues shared with the Java libraries IgnisMQ and Magazine.

What Java does is played with the bare driver, see `tests.support.java`. What we write is read the same way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis.control.sweeper import Sweeper
from tests.conftest import MakeApp
from tests.support import aerospike as aerospike_support
from tests.support import eventually
from tests.support.java import FARM, SHARDS, Java

pytestmark = pytest.mark.integration


@pytest.fixture
def java() -> Iterator[Java]:
    one = Java(aerospike_support.url().partition("client_id=")[2])
    yield one
    one.client.close()
    aerospike_support.forget(one.address, [one.client_id])


@pytest.fixture
def app(java: Java, new_app: MakeApp) -> ignis.Ignis:
    return new_app(f"aerospike://{java.address}", client_id=java.client_id, farm_id=FARM)


def order(number: int) -> dict[str, Any]:
    return {"order": number, "city": "Zürich"}


def test_messages_of_java_are_consumed_here(java: Java, app: ignis.Ignis) -> None:
    java.register("orders")
    for number in range(6):
        java.load("orders", number % SHARDS, json.dumps(order(number)))
    queue = app.queue("orders", dict, shards=SHARDS)
    seen: list[dict[str, Any]] = []
    queue.handler(seen.append)
    app.start()
    eventually(lambda: len(seen) == 6, "all are handled")
    eventually(lambda: not queue.main.in_flight(), "all are acknowledged")
    assert sorted(one["order"] for one in seen) == list(range(6))
    assert seen[0]["city"] == "Zürich"
    for shard in range(SHARDS):
        assert all(java.bins("data", f"orders_SHARD_{shard}_{pointer}") is None for pointer in range(1, 4))
        counters = java.bins("meta", f"orders_SHARD_{shard}_COUNTERS")
        assert counters is not None
        assert (counters["LOAD_COUNTER"], counters["FIRE_COUNTER"]) == (3, 3)


def test_a_message_of_java_has_an_envelope(java: Java, app: ignis.Ignis) -> None:
    java.register("orders")
    before_us = int(time.time() * 1000) * 1000
    java.load("orders", 0, json.dumps(order(1)))
    queue = app.queue("orders", dict, shards=SHARDS)
    first, again = queue.main.peek()[0].envelope, queue.main.peek()[0].envelope
    assert first.id == again.id
    assert before_us <= first.enqueued_at_us <= time.time() * 1_000_000
    assert (first.failures, first.codec, first.key) == (0, "json", None)


def test_java_consumes_what_was_published_here(java: Java, app: ignis.Ignis) -> None:
    queue = app.queue("orders", dict, shards=SHARDS, message_expiry_s=3_600)
    where = [queue.publish(order(number), key=f"k{number}", headers={"a": 1}) for number in range(8)]
    got: list[dict[str, Any]] = []
    for shard in range(SHARDS):
        while (fired := java.fire("orders", shard)) is not None:
            pointer, data = fired
            assert isinstance(data, str)
            got.append(json.loads(data))
            java.delete("orders", shard, pointer)
    assert sorted(one["order"] for one in got) == list(range(8))
    assert {one.shard for one in where} == {0, 1}
    assert queue.main.pending() == queue.main.in_flight() == 0


def test_types_are_those_that_java_reads(java: Java, app: ignis.Ignis) -> None:
    """long and String, and the time to live of the message."""
    queue = app.queue("orders", dict, shards=SHARDS, message_expiry_s=3_600)
    place = queue.publish(order(1))
    queue.main.fire()
    name = f"orders_SHARD_{place.shard}_{place.pointer}"
    bins = java.bins("data", name)
    assert bins is not None
    assert json.loads(bins["data"]) == order(1)
    assert {key: type(value) for key, value in bins.items()} == {
        "data": str, "modified_at": int, "fireTS": int, "ign_env": bytes, "ign_owner": str,
    }  # fmt: skip
    meta = java.client.get(java.key("data", name))[1]
    assert 3_590 <= meta["ttl"] <= 3_601
    assert java.client.get(java.key("data", name))[0][2] in {name, None}
    pointers = java.bins("meta", f"orders_SHARD_{place.shard}_POINTERS")
    assert pointers is not None
    assert (pointers["LOAD_POINTER"], pointers["FIRE_POINTER"]) == (1, 1)


def test_one_shard_has_no_number_in_its_keys(java: Java, app: ignis.Ignis) -> None:
    app.queue("single", dict, shards=1).publish(order(1))
    assert java.bins("data", "single_1") is not None
    assert java.bins("meta", "single_POINTERS") is not None
    assert java.bins("meta", "single_COUNTERS") is not None


def test_a_queue_of_java_is_known_here(java: Java, app: ignis.Ignis) -> None:
    java.register("orders")
    record = app.store.queues.get("orders")
    assert record is not None
    assert (record.handler_type, record.shards, record.message_expiry_s, record.queue_expiry_s) == (
        "ORDER",
        2,
        86_400,
        172_800,
    )
    assert (record.stuck_after_s, record.concurrency, record.active) == (1_200, 3, True)
    assert record.sweep_pointers == {0: 0, 1: 0}
    assert [one.name for one in app.store.queues.list(active=True)] == ["orders"]


def test_a_queue_of_ours_has_the_bins_of_java(java: Java, app: ignis.Ignis) -> None:
    app.queue("orders", dict, shards=SHARDS, queue_expiry_s=200_000, message_expiry_s=100).open()
    bins = java.bins("queues", "orders")
    assert bins is not None
    ours = bins.pop("ign_queue")
    assert isinstance(ours, dict)
    assert {key: type(value) for key, value in bins.items()} == {
        "handlerType": str, "shards": int, "queueExpiry": int, "messageExpiry": int, "concurrency": int,
        "shovelConcur": int, "shovelInterval": int, "createdAt": int, "active": str, "sweepPointers": dict,
        "sidelineSweep": dict, "sweptCounter": int, "sidelineSwept": int, "sweepDuration": int, "maxBatchSize": int,
        "maxWaitTime": int,
    }  # fmt: skip
    assert (bins["active"], bins["queueExpiry"], bins["messageExpiry"]) == ("true", 200_000, 100)
    ttl = java.client.get(java.key("queues", "orders"))[1]["ttl"]
    assert 399_990 <= ttl <= 400_000, "twice the queue's expiry"
    indexes = java.client.info_random_node(
        f"sindex-exists:namespace={java.namespace};indexname={FARM}_{java.client_id}_ignis_queues_active"
    )
    assert indexes.strip().endswith("true")


def test_the_sideline_of_java_is_shovelled_here(java: Java, app: ignis.Ignis) -> None:
    java.register("orders")
    java.load("orders_SIDELINE", 1, json.dumps(order(7)))
    queue = app.queue("orders", dict, shards=SHARDS)
    assert [one.message for one in queue.sideline.peek()] == [order(7)]
    assert queue.shovel.run_once().moved == 1
    assert [one.message for one in queue.main.fire(5)] == [order(7)]


def test_our_sideline_is_seen_by_java(java: Java, app: ignis.Ignis) -> None:
    queue = app.queue("orders", dict, shards=SHARDS)
    queue.handler(lambda message: False)
    queue.publish(order(3))
    app.start()
    eventually(lambda: queue.sideline.pending() == 1, "it is in the sideline")
    fired = [java.fire("orders_SIDELINE", shard) for shard in range(SHARDS)]
    assert [json.loads(one[1]) for one in fired if one is not None] == [order(3)]


def test_the_sweeper_of_java_sees_our_messages_in_flight(java: Java, app: ignis.Ignis) -> None:
    queue = app.queue("orders", dict, shards=SHARDS)
    for number in range(6):
        queue.publish(order(number))
    fired = queue.main.fire(4)
    assert len(fired) == 4
    now_ms = int(time.time() * 1000)
    assert sum(java.sweep("orders", shard, now_ms - 60_000, "orders_SIDELINE") for shard in range(SHARDS)) == 0
    assert sum(java.sweep("orders", shard, now_ms + 60_000, "orders_SIDELINE") for shard in range(SHARDS)) == 4
    assert queue.main.delete(fired) == 0, "a late acknowledgement changes nothing"
    assert queue.sideline.pending() == 4
    assert queue.main.in_flight() == 0
    assert queue.main.pending() == 2


def test_our_sweeper_recovers_what_java_held(java: Java, app: ignis.Ignis) -> None:
    java.register("orders")
    for number in range(4):
        java.load("orders", 0, json.dumps(order(number)))
    queue = app.queue("orders", dict, shards=SHARDS)
    for _ in range(3):
        java.fire("orders", 0)
    java.delete("orders", 0, 2)
    sweeper = Sweeper(
        app.store,
        app.sweeper()._leader,
        app.sweeper()._settings,
        clock=lambda: time.time() + queue.settings.stuck_after_s + 10,
    )
    result = sweeper.run_once(["orders"])
    assert (result.swept, result.failed_queues) == (2, 0)
    assert sorted(one.message["order"] for one in queue.sideline.peek()) == [0, 2]
    assert {one.envelope.reason for one in queue.sideline.peek()} == {"abandoned"}
    record = java.bins("queues", "orders")
    assert record is not None
    assert record["sweepPointers"]["0"] == 3
    assert record["sweptCounter"] == 2
    assert java.sweep("orders", 0, int(time.time() * 1000) + 60_000, "orders_SIDELINE") == 0
