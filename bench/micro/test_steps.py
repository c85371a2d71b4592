"""The steps of a message's way, each alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from bench.worker_loop import worker_loop
from ignis.native import Channel, FrameDecoder, PackedBatch, Record, Ring, encode_frame, encode_record, new_id
from ignis.testing import drain, use_memory_store

Measure = Callable[..., None]

BODY = b"x" * 100
MANY = 1_000
OWNER = "bench"


def test_reference(measure: Measure, reference: Callable[[], object]) -> None:
    measure(reference)


def test_ring_push_pop(measure: Measure) -> None:
    ring = Ring(64)

    def step() -> None:
        for _ in range(MANY):
            ring.try_push((0, 1, 2, 3))
            ring.try_pop()

    measure(step, MANY)


def test_ring_bulk(measure: Measure) -> None:
    ring = Ring(1_024)
    items = [((0, 1, 2, 3), 0)] * MANY

    def step() -> None:
        ring.push_many(items)
        ring.pop_many(MANY)

    measure(step, MANY)


def test_channel_send_recv(measure: Measure) -> None:
    with Channel.heap() as channel:

        def step() -> None:
            for _ in range(MANY):
                channel.send(BODY)
                channel.recv()

        measure(step, MANY)


def test_record_encode_decode(measure: Measure) -> None:
    def step() -> None:
        for _ in range(MANY):
            _ = Record(encode_record(BODY, id=new_id())).body

    measure(step, MANY)


def test_batch_pack_1000(measure: Measure) -> None:
    records = [encode_record(BODY, id=new_id()) for _ in range(MANY)]
    measure(lambda: PackedBatch.pack(records), MANY)


def test_frame_encode_decode(measure: Measure) -> None:
    decoder = FrameDecoder()

    def step() -> None:
        for number in range(MANY):
            decoder.feed(encode_frame(1, number, BODY))
            decoder.frames()

    measure(step, MANY)


def test_publish_lone(measure: Measure, app: ignis.Ignis) -> None:
    queue = app.queue("lone", bytes, shards=1, durability="none")
    queue.open()
    measure(lambda: queue.publish(BODY))


def test_publish_many_1000(measure: Measure, app: ignis.Ignis) -> None:
    queue = app.queue("many", bytes, shards=1, durability="none")
    queue.open()
    bodies = [BODY] * MANY
    measure(lambda: queue.publish_many(bodies), MANY)


def test_publish_typed(measure: Measure, app: ignis.Ignis) -> None:
    queue = app.queue("typed", dict, shards=1, durability="none")
    queue.open()
    message = {"order": 7, "lines": ["a", "b"]}
    measure(lambda: queue.publish(message))


@pytest.mark.parametrize("count", [1, MANY])
def test_claim(benchmark: Any, app: ignis.Ignis, count: int) -> None:
    magazines = _declared(app, "claimed")
    records = [encode_record(BODY, id=new_id()) for _ in range(count)]

    def prepare() -> tuple[tuple[()], dict[str, object]]:
        for claim in magazines.fire("claimed", MANY, OWNER).claims:
            magazines.delete("claimed", {0: claim.pointers})
        magazines.load_records("claimed", 0, records)
        return (), {}

    benchmark.extra_info["steps"] = count
    benchmark.pedantic(lambda: magazines.fire("claimed", count, OWNER), setup=prepare, rounds=_rounds(count))


@pytest.mark.parametrize("count", [1, MANY])
def test_acknowledge(benchmark: Any, app: ignis.Ignis, count: int) -> None:
    magazines = _declared(app, "claimed")
    records = [encode_record(BODY, id=new_id()) for _ in range(count)]

    def prepare() -> tuple[tuple[object], dict[str, object]]:
        magazines.load_records("claimed", 0, records)
        (claim,) = magazines.fire("claimed", count, OWNER).claims
        return (claim.pointers,), {}

    def step(pointers: Any) -> None:
        assert magazines.delete("claimed", {0: pointers}) == count

    benchmark.extra_info["steps"] = count
    benchmark.pedantic(step, setup=prepare, rounds=_rounds(count))


def _declared(app: ignis.Ignis, name: str) -> Any:
    magazines = app.store.magazines
    magazines.declare(name, 1, "none")
    return magazines


def _rounds(count: int) -> int:
    return 300 if count == 1 else 50


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_handler_dispatch(benchmark: Any, kind: str) -> None:
    """Claim, decode, handler and acknowledgement in memory: what the consumer adds to its store."""
    app = ignis.Ignis("memory://")
    with use_memory_store(app):
        queue = app.queue("handled", bytes, shards=1)
        seen = itertools.count()

        def handle(body: bytes) -> None:
            next(seen)

        async def handle_async(body: bytes) -> None:
            next(seen)

        queue.handler(handle if kind == "function" else handle_async)

        def prepare() -> tuple[tuple[()], dict[str, object]]:
            queue.publish_many([BODY] * 100)
            return (), {}

        benchmark.extra_info["steps"] = 100
        benchmark.pedantic(lambda: drain(app), setup=prepare, rounds=30)
        assert next(seen) >= 100


@pytest.mark.parametrize("arguments", ["body", "body_and_context"])
def test_worker_loop(measure: Measure, arguments: str) -> None:
    """What a worker thread does for each message of a chunk, without its store."""
    with ignis.Ignis("memory://") as app:
        queue = app.queue("looped", bytes, shards=1)

        def handle(body: bytes) -> None:
            pass

        def handle_both(body: bytes, ctx: ignis.Context) -> None:
            pass

        loop = worker_loop(queue, handle if arguments == "body" else handle_both)
        records = [encode_record(BODY, id=new_id()) for _ in range(MANY)]
        measure(lambda: loop(records), MANY)


def test_columns_of_1000(measure: Measure, app: ignis.Ignis) -> None:
    """What a Spark task does with a claimed range."""
    magazines = app.store.magazines
    magazines.declare("columns", 1, "none")
    first = magazines.load_records("columns", 0, [encode_record(BODY, id=new_id()) for _ in range(MANY)])
    measure(lambda: magazines.peek_columns("columns", 0, range(first, first + MANY)), MANY)
