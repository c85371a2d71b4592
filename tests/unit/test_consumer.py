"""The consumer on both stores: outcomes, the sideline, resizing, stopping, and a store that has a bad day."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import ignis
from ignis.consumer import Consumer
from ignis.consumer.dispatcher import Dispatcher
from ignis.errors import (
    ClosedError,
    ConfigError,
    ConsumerLimitError,
    StoreBusyError,
    StoreFailedError,
    StoreFullError,
    StoreUnreachableError,
)
from ignis.message import encode_meta
from ignis.native import CODEC_JSON, PackedBatch, encode_record
from tests.apps import jobs
from tests.conftest import MakeApp
from tests.support import UNREADABLE_METAS, WAIT_S, Gate, Journal, eventually, one_store, reasons, sidelined, wait_idle

POOLS = ["thread", "async"]

OUTCOMES: dict[str, str | None] = {
    "none": None,
    "true": None,
    "dropped": None,
    "ignore": None,
    "false": "rejected",
    "raise": "exception",
    "exit": "exception",
    "text": None,
    "zero": None,
}


def publish_body(queue: ignis.Queue[Any], body: bytes) -> None:
    """Stores a body that the queue's codec did not write."""
    batches, _ = PackedBatch.pack_bodies([body], flags=CODEC_JSON, keys=None, shards=queue.main.shards, any_shard=0)
    queue.main.load_batches(batches)


@pytest.mark.parametrize("pool", POOLS)
def test_outcomes(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "jobs", pool, concurrency=2)
    for n, do in enumerate(OUTCOMES):
        queue.publish({"n": n, "do": do}, key=do, headers={"do": do})
    publish_body(queue, b"{not json")
    app.start()
    wait_idle(queue)
    found = {message.headers.get("do"): message for message in sidelined(queue)}
    assert {do: message.reason for do, message in found.items()} == {
        **{do: reason for do, reason in OUTCOMES.items() if reason},
        None: "unreadable",
    }
    for do, message in found.items():
        assert (message.failures, message.crashes, message.key) == (1, 0, do)
        assert message.meta["handler"] in ("act", "act_async")
        assert message.failed_at_ms
    assert found["raise"].error == "RuntimeError: job 5 failed"
    assert found["exit"].error == "SystemExit: 3"
    assert found[None].body == b"{not json"
    counts = journal.counts()
    assert all(counts[f"start {n}"] == 1 for n in range(len(OUTCOMES))), "each was called once"
    assert app.stop() is True


def test_what_is_not_even_an_envelope_is_set_aside_as_it_is(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", dict, shards=2)
    seen: list[Any] = []
    queue.handler(seen.append)
    queue.main.store.load_records("jobs", 1, [b"\x09garbage", encode_record(b'{"n":1}', flags=CODEC_JSON), b"x"])
    app.start()
    wait_idle(queue)
    assert seen == [{"n": 1}]
    assert sorted(row.record for row in queue.sideline.peek(10)) == [b"\x09garbage", b"x"]


def test_a_corrupt_record_goes_to_the_sideline(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", dict, shards=1)
    seen: list[Any] = []
    queue.handler(seen.append)
    queue.publish_many([{"n": n} for n in range(4)])
    fire = queue.main.store.fire

    def flipped(*args: Any, **kwargs: Any) -> Any:
        result = fire(*args, **kwargs)
        for claim in result.claims:
            for place, pointer in enumerate(claim.pointers):
                if pointer in (1, 3):
                    claim.records[place] = None
        return result

    monkeypatch.setattr(queue.main.store, "fire", flipped)
    app.start()
    wait_idle(queue)
    assert seen == [{"n": 1}, {"n": 3}]
    corrupt = sidelined(queue)
    assert [message.reason for message in corrupt] == ["corrupt"] * 2
    assert {message.error for message in corrupt} == {
        f"checksum mismatch at jobs, shard 0, pointer {p}" for p in (1, 3)
    }
    eventually(lambda: queue.consumer.stats().get("sidelined_corrupt") == 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("pool", POOLS)
def test_attempts(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "again", pool)
    queue.publish_many([{"n": 1, "good": 1}, {"n": 2, "good": 3}, {"n": 3, "good": 4}])
    app.start()
    wait_idle(queue)
    assert sorted(journal.lines()) == sorted(
        ["try 1 1", *(f"try 2 {a}" for a in (1, 2, 3)), *(f"try 3 {a}" for a in (1, 2, 3))]
    )
    [message] = sidelined(queue)
    assert (message.reason, message.error, message.failures) == ("exception", "RuntimeError: attempt 3", 1)


@pytest.mark.parametrize("pool", POOLS)
def test_batches_with_an_answer_per_message(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "batches", pool)
    dos = ["none", "true", "false", "text", "dropped"] * 4
    queue.publish_many([{"n": n, "do": do} for n, do in enumerate(dos)])
    publish_body(queue, b"[]")
    app.start()
    wait_idle(queue)
    assert reasons(queue) == Counter({"rejected": 4, "unreadable": 1})
    assert journal.counts()["batch 5"] >= 3
    assert all(journal.counts()[f"start {n}"] == 1 for n in range(20))


@pytest.mark.parametrize(
    ("whole", "reason"),
    [("raise", "exception"), ("short", None), ("false", "rejected"), ("ignore", None), ("true", None)],
)
def test_one_answer_for_a_whole_batch(
    memory_app: ignis.Ignis, journal: Journal, whole: str, reason: str | None
) -> None:
    queue = jobs.register(memory_app, "batches", "thread")
    queue.publish_many([{"n": n, "whole": whole, "do": "none"} for n in range(5)])
    memory_app.start()
    wait_idle(queue)
    assert reasons(queue) == Counter({reason: 5} if reason else {})


@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_overruns(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "timed", pool)
    queue.publish({"n": 0, "do": "hold", "until": "released"})
    queue.publish_many([{"n": n, "do": "none"} for n in range(1, 6)])
    app.start()
    wait_idle(queue)
    [message] = sidelined(queue)
    assert (message.reason, message.error) == ("timeout", "handler ran for more than 0.4 s")
    counts = journal.counts()
    assert all(counts[f"end {n}"] == 1 for n in range(1, 6)), "the others went on without it"
    journal.path.with_name(journal.path.name + ".released").touch()
    if pool == "thread":
        eventually(lambda: journal.counts()["end 0"])
        assert queue.consumer is not None
        eventually(lambda: queue.consumer.stats()["lost_threads"] == 0)  # type: ignore[union-attr]
    assert app.stop() is True
    assert reasons(queue) == Counter({"timeout": 1}), "a late end of the handler changes nothing"


def test_a_timeout_may_be_longer_than_the_stuck_time(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", dict, stuck_after="10m")
    queue.handler(lambda message: None, timeout_s=1_000)
    assert queue.spec is not None
    assert queue.spec.timeout_s == 1_000


def test_middleware_and_resources(memory_url: str, new_app: MakeApp) -> None:
    seen: list[str] = []
    app = new_app(memory_url, resources={"seen": seen})
    queue = app.queue("jobs", dict)

    @app.middleware
    def outer(ctx: ignis.Context, call_next: Callable[[ignis.Context], Any]) -> Any:
        ctx.resources["seen"].append("outer")
        return call_next(ctx)

    @queue.middleware
    def inner(ctx: ignis.Context, call_next: Callable[[ignis.Context], Any]) -> Any:
        ctx.resources["seen"].append("inner")
        return call_next(ctx)

    @queue.handler
    def handle(message: Any, ctx: ignis.Context) -> None:
        ctx.resources["seen"].append(ctx.message.headers["trace"])

    queue.publish({"n": 1}, headers={"trace": "t1"})
    app.start()
    wait_idle(queue)
    assert seen == ["outer", "inner", "t1"]


def test_one_worker_keeps_the_order_of_each_key(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", dict, shards=4)
    seen: list[Any] = []
    queue.handler(seen.append)
    sent = [{"key": f"k{n % 7}", "n": n} for n in range(300)]
    queue.publish_many(sent[:150], key=lambda message: message["key"])
    app.start()
    queue.publish_many(sent[150:], keys=[message["key"] for message in sent[150:]])
    eventually(lambda: len(seen) == 300)
    for key in {message["key"] for message in sent}:
        assert [one for one in seen if one["key"] == key] == [one for one in sent if one["key"] == key]


def test_small_claims_and_large_ones_of_a_shard_keep_their_order(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages published one by one wait to be handed out together: a batch behind them must not pass them."""
    seen: list[int] = []
    queue = app.queue("numbers", int, shards=2)
    for start in (0, 100, 200):
        for n in range(start, start + 8):
            queue.publish(n, key=f"k{n % 2}")
        queue.publish_many(list(range(start + 8, start + 100)), key=lambda n: f"k{n % 2}")
    monkeypatch.setattr(Dispatcher, "_window", lambda self: (16, 64))
    queue.handler(seen.append)
    app.start()
    wait_idle(queue)
    for k in range(2):
        assert [n for n in seen if n % 2 == k] == list(range(k, 300, 2))


def test_what_a_slow_worker_gives_back_keeps_its_order(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that was misjudged is given back, with what lay behind it: alone at work, the worker gets it in order."""
    seen: list[int] = []
    queue = app.queue("numbers", int, shards=1)
    queue.publish_many(list(range(400)))
    monkeypatch.setattr(Dispatcher, "_window", lambda self: (16, 64))
    given_back: list[int] = []
    on_returned = Consumer.on_returned
    monkeypatch.setattr(
        Consumer,
        "on_returned",
        lambda self, first_id, count: (given_back.append(count), on_returned(self, first_id, count)),
    )

    def handle(n: int) -> None:
        seen.append(n)
        if n in (5, 120):
            time.sleep(0.4)

    queue.handler(handle)
    app.start()
    wait_idle(queue)
    assert given_back, "the situation did not come up"
    assert seen == list(range(400))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_everything_once(app: ignis.Ignis, concurrency: int) -> None:
    queue = app.queue("jobs", int, shards=8)
    seen: list[int] = []
    queue.handler(seen.append, concurrency=concurrency)
    app.start()
    for start in range(0, 5_000, 500):
        queue.publish_many(range(start, start + 500))
    eventually(lambda: len(seen) >= 5_000)
    assert app.stop() is True
    assert sorted(seen) == list(range(5_000))
    assert queue.main.pending() == queue.main.in_flight() == 0


def test_messages_of_every_size(app: ignis.Ignis) -> None:
    """Empty, larger than a chunk, and as large as the limit."""
    queue = app.queue("blobs", bytes, shards=2, max_message_bytes=1 << 20)
    sizes: list[int] = []
    queue.handler(lambda blob: sizes.append(len(blob)), concurrency=2)
    wanted = [0, 1, 4_000, 70_000, 200_000, 300_000, 1 << 20, 1 << 20, 5]
    queue.publish_many([bytes(size) for size in wanted])
    app.start()
    eventually(lambda: len(sizes) == len(wanted))
    assert sorted(sizes) == sorted(wanted)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_message_over_the_limit_of_this_process_is_handled(
    store_url: str, new_app: MakeApp, pool: str, batch_size: int | None
) -> None:
    """The limit is about what a process publishes: what is stored and sound is delivered."""
    generous, strict = new_app(store_url), new_app(store_url)
    if store_url.startswith("memory"):
        strict = generous
    generous.magazine("blobs", bytes, shards=1, max_message_bytes=8 << 20).load(bytes(6 << 20))
    queue = strict.queue("blobs", bytes, shards=1, max_message_bytes=1_000)
    seen: list[int] = []

    def note(given: bytes | list[bytes]) -> None:
        seen.extend(map(len, given if isinstance(given, list) else [given]))

    async def note_soon(given: bytes | list[bytes]) -> None:
        note(given)

    queue.handler(note_soon if pool == "async" else note, batch_size=batch_size)
    queue.publish(b"small")
    strict.start()
    wait_idle(queue)
    assert seen == [6 << 20, 5]
    assert not sidelined(queue)
    assert strict.stop() is True


def test_a_message_over_the_limit_of_worker_processes_is_set_aside(memory_app: ignis.Ignis, journal: Journal) -> None:
    memory_app.magazine("jobs", max_message_bytes=8 << 20).load({"n": 2, "do": "none", "pad": "x" * (6 << 20)})
    queue = jobs.register(memory_app, "jobs", "process", max_message_bytes=1_000)
    queue.publish({"n": 1, "do": "none"})
    memory_app.start()
    wait_idle(queue)
    (found,) = queue.sideline.peek(10)
    assert found.envelope.reason == "unreadable"
    assert found.envelope.error is not None and "raise queue.max_message_bytes" in found.envelope.error
    assert "start 1" in journal.lines()


def test_expired_messages_are_dropped_and_counted(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", dict, message_expiry=1)
    seen: list[Any] = []
    queue.handler(seen.append)
    queue.publish({"n": 1})
    time.sleep(1.1)
    app.start()
    assert queue.consumer is not None
    eventually(lambda: queue.consumer.stats().get("expired") == 1)  # type: ignore[union-attr]
    wait_idle(queue)
    assert (seen, sidelined(queue)) == ([], [])


# -- more and fewer consumers


def test_consumers_are_added_and_removed_while_running(app: ignis.Ignis, gate: Gate) -> None:
    queue = app.queue("jobs", int)
    queue.handler(gate, concurrency=1)
    queue.publish_many(range(12))
    app.start()
    gate.wait_entered()
    assert queue.increase_consumers(3) == 4
    gate.wait_entered(3)
    assert queue.consumers == 4
    assert app.store.queues.get("jobs").concurrency == 4  # type: ignore[union-attr]
    assert queue.decrease_consumers(3) == 1
    gate.open.set()
    eventually(lambda: len(gate.seen) == 12)
    assert sorted(gate.seen) == list(range(12))
    assert queue.consumer is not None
    assert queue.consumer.stats()["workers"] == 1
    assert app.stop() is True


def test_no_consumers_no_handling(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append, concurrency=0)
    queue.publish_many(range(3))
    memory_app.start()
    assert queue.main.pending() == 3
    queue.increase_consumers()
    eventually(lambda: len(seen) == 3)
    queue.decrease_consumers()
    queue.publish(3)
    assert queue.main.pending() == 1
    assert memory_app.stop() is True


def test_without_consumers_nothing_stays_claimed(app: ignis.Ignis) -> None:
    """Whether anybody waits elsewhere or not: whoever looks sees that it is not in hand."""
    queue = app.queue("jobs", int, shards=1)
    gate = Gate(only=50)
    queue.handler(gate, concurrency=1)
    queue.publish_many(range(100))
    app.start()
    gate.wait_entered()
    queue.decrease_consumers()
    gate.open.set()
    eventually(lambda: not queue.main.in_flight())
    assert queue.main.pending() + len(gate.seen) == 100
    queue.increase_consumers()
    eventually(lambda: len(gate.seen) == 100)


def test_who_is_taken_away_and_added_again_keeps_the_order(app: ignis.Ignis) -> None:
    """One worker stays one: the one that is added begins when the other has ended its message."""
    queue = app.queue("jobs", int, shards=1)
    gate = Gate(only=0)
    queue.handler(gate, concurrency=1)
    queue.publish(0)
    app.start()
    gate.wait_entered()
    for _ in range(3):
        assert queue.decrease_consumers() == 0
        assert queue.increase_consumers() == 1
    queue.publish_many(range(1, 50))
    time.sleep(0.3)  # for one that would begin at once
    assert gate.seen == [0], "the next is begun beside the one that runs"
    gate.open.set()
    eventually(lambda: len(gate.seen) == 50)
    assert gate.seen == list(range(50))


def test_the_cap_on_consumers(memory_url: str, new_app: MakeApp) -> None:
    app = new_app(memory_url, consumer={"max_consumers": 3})
    queue = app.queue("jobs", int)
    with pytest.raises(ConsumerLimitError):
        queue.handler(lambda message: None, concurrency=4)
    queue.handler(lambda message: None, concurrency=2)
    for running in (False, True):
        if running:
            app.start()
        with pytest.raises(ConsumerLimitError, match="5 consumers asked for, the limit is 3") as info:
            queue.increase_consumers(3)
        assert (info.value.asked, info.value.limit) == (5, 3)
        with pytest.raises(ConfigError, match="-1 is below 0"):
            queue.decrease_consumers(3)
        assert queue.consumers == 2, "nothing changed"


# -- stopping


@pytest.mark.parametrize("pool", POOLS)
@one_store()
def test_a_graceful_stop_loses_and_doubles_nothing(store_url: str, new_app: MakeApp, pool: str) -> None:
    seen: list[int] = []

    def handle(message: int) -> None:
        time.sleep(0.001)
        seen.append(message)

    async def handle_async(message: int) -> None:
        handle(message)

    app = new_app(store_url)
    queue = app.queue("jobs", int, shards=8)
    queue.handler(handle_async if pool == "async" else handle, concurrency=3)
    queue.publish_many(range(600))
    rounds = 0
    while len(seen) < 600:
        before = len(seen)
        app.start()
        eventually(lambda: len(seen) >= min(before + 100, 600))  # noqa: B023
        assert app.stop() is True
        assert queue.main.in_flight() == 0, "what was not started went back"
        assert queue.main.pending() == 600 - len(seen), "what was finished is gone"
        rounds += 1
    assert rounds > 1
    assert sorted(seen) == list(range(600))


def test_a_stop_waits_for_what_runs(app: ignis.Ignis, gate: Gate) -> None:
    queue = app.queue("jobs", int)
    queue.handler(gate)
    queue.publish_many(range(5))
    app.start()
    gate.wait_entered()
    answers: list[bool] = []
    stopping = threading.Thread(target=lambda: answers.append(app.stop()))
    stopping.start()
    assert queue.main.in_flight() >= 1
    assert not answers
    gate.open.set()
    stopping.join(WAIT_S)
    assert answers == [True]
    assert (queue.main.pending(), queue.main.in_flight()) == (5 - len(gate.seen), 0)


def test_a_stuck_handler_keeps_its_own_message_alone(app: ignis.Ignis, gate: Gate) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.handler(gate)
    queue.publish_many(range(5))
    app.start()
    gate.wait_entered()
    assert app.stop(timeout=0.2) is False
    assert (queue.main.pending(), queue.main.in_flight()) == (4, 1), "the rest went back; that one is the sweeper's"


def test_a_handler_may_use_the_application_while_it_stops(memory_app: ignis.Ignis) -> None:
    queue, other = memory_app.queue("jobs", int), memory_app.queue("others", int)
    entered = threading.Event()

    @queue.handler
    def handle(message: int) -> None:
        entered.set()
        time.sleep(0.05)
        memory_app.queue("others", int).publish(message)

    queue.publish(1)
    memory_app.start()
    assert entered.wait(WAIT_S)
    assert memory_app.stop(timeout=WAIT_S) is True
    assert other.main.pending() == 1


def test_stopping_twice_and_starting_again(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append)
    for n in range(3):
        memory_app.start()
        memory_app.start()
        queue.publish(n)
        eventually(lambda: len(seen) == n + 1)  # noqa: B023
        assert memory_app.stop() is True
        assert memory_app.stop() is True
    assert seen == [0, 1, 2]


# -- a store in trouble


def failing(times: int, call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    left = [times]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return call(*args, **kwargs)

    return wrapped


def test_a_wait_that_fails_is_begun_again(store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(store_url, consumer={"idle_poll_s": 0.01})
    queue = app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append)
    store = queue.main.store
    wait, fire_next = store.wait, store.fire_next
    refused: list[int] = []

    def refuse(since: int) -> None:
        if since >= 0 and len(refused) < 3:
            refused.append(since)
            raise StoreUnreachableError("away for a moment")

    def sometimes(magazine: str, since: int, timeout_s: float) -> int:
        refuse(since)
        return wait(magazine, since, timeout_s)

    def sometimes_next(magazine: str, limit: int, owner: str, since: int, *args: Any, **settings: Any) -> Any:
        refuse(since)
        return fire_next(magazine, limit, owner, since, *args, **settings)

    monkeypatch.setattr(store, "wait", sometimes)
    monkeypatch.setattr(store, "fire_next", sometimes_next)
    app.start()
    eventually(lambda: len(refused) == 3)
    queue.publish(1)
    wait_idle(queue)
    assert seen == [1]
    assert queue.consumer is not None
    assert queue.consumer.stats()["fetch_errors"] == 3


@pytest.mark.parametrize("call", ["fire", "delete", "transfer"])
def test_a_busy_store_is_asked_again(
    store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    app = new_app(store_url, consumer={"ack_retry_s": 0.01, "idle_poll_s": 0.01})
    queue = app.queue("jobs", int)
    seen: list[int] = []

    @queue.handler
    def handle(message: int) -> bool:
        seen.append(message)
        return message % 2 == 0

    queue.publish_many(range(10))
    store = queue.main.store
    monkeypatch.setattr(store, call, failing(3, getattr(store, call), StoreBusyError("held by 4711")))
    app.start()
    wait_idle(queue)
    assert sorted(seen) == list(range(10)), "once each"
    assert reasons(queue) == Counter({"rejected": 5})
    assert queue.consumer is not None
    stats = queue.consumer.stats()
    assert stats.get("fetch_errors", 0) + stats.get("ack_errors", 0) == 3
    assert app.stop() is True


def test_a_message_that_the_sideline_refuses_stays(
    store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(store_url, consumer={"ack_retry_s": 0.01})
    queue = app.queue("jobs", int)
    queue.handler(lambda message: False)
    queue.publish(1)
    full = threading.Event()

    def refuse(*args: Any, **kwargs: Any) -> int:
        full.set()
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(queue.main.store, "transfer", refuse)
        app.start()
        assert full.wait(WAIT_S)
        assert (queue.main.in_flight(), sidelined(queue)) == (1, []), "it is not deleted before the sideline has it"
    wait_idle(queue)
    assert reasons(queue) == Counter({"rejected": 1})


def test_a_stop_that_cannot_acknowledge_says_so(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append)
    queue.publish(1)
    with monkeypatch.context() as patched:
        patched.setattr(queue.main.store, "delete", failing(1_000, lambda: 0, StoreFullError("no")))
        app.start()
        eventually(lambda: seen)
        assert app.stop(timeout=0.2) is False
    assert queue.main.in_flight() == 1


def test_a_store_that_cannot_be_read_ends_the_consumer(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None)
    queue.publish(1)
    monkeypatch.setattr(queue.main.store, "delete", failing(1_000, lambda: 0, ClosedError("gone")))
    with pytest.raises(ClosedError, match="gone"):
        app.run(stop_timeout=1)


@pytest.mark.parametrize("call", ["fire", "delete"])
@one_store()
def test_a_disk_that_fails_for_a_while_ends_no_consumer(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The store writes into another file with the next call, so claims and acknowledgements are made again."""
    queue = app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append)
    queue.publish(1)
    store, failed = queue.main.store, []

    def first_three_fail(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if len(failed) < 3:
                failed.append(1)
                raise StoreFailedError("EIO")
            return real(*args, **kwargs)

        return wrapped

    for name in ("fire", "fire_next", "try_fire") if call == "fire" else ("delete",):
        if hasattr(store, name):
            monkeypatch.setattr(store, name, first_three_fail(getattr(store, name)))
    app.start()
    wait_idle(queue)
    assert len(failed) == 3
    assert seen == [1]
    assert queue.consumer is not None
    assert not queue.consumer.failed
    assert app.stop() is True


def test_an_acknowledgement_that_comes_too_late_is_counted(app: ignis.Ignis, gate: Gate) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.handler(gate)
    queue.publish(1)
    app.start()
    gate.wait_entered()
    assert queue.main.store.delete("jobs", {0: [1]}) == 1, "somebody else finished it"
    gate.open.set()
    eventually(lambda: queue.consumer.stats().get("late_acks") == 1)  # type: ignore[union-attr]


def test_a_failure_that_somebody_else_finished_is_no_sidelined_message(app: ignis.Ignis, gate: Gate) -> None:
    queue = app.queue("jobs", int, shards=1)

    @queue.handler
    def fail(n: int) -> None:
        gate(n)
        raise ValueError(n)

    queue.publish(1)
    app.start()
    gate.wait_entered()
    assert queue.main.store.delete("jobs", {0: [1]}) == 1, "somebody else finished it"
    gate.open.set()
    eventually(lambda: queue.stats()["consumer"]["late_acks"] == 1)
    figures = queue.stats()["consumer"]
    assert (figures["sidelined"], figures.get("sidelined_exception", 0)) == (0, 0)


def test_claims_are_bounded_in_bytes(store_url: str, new_app: MakeApp, gate: Gate) -> None:
    app = new_app(store_url, consumer={"max_in_flight_bytes": 1 << 16})
    queue = app.queue("blobs", bytes, shards=2)
    queue.handler(gate, concurrency=20)
    queue.publish_many([bytes(20_000)] * 20)
    app.start()
    gate.wait_entered(3)
    assert queue.consumer is not None
    assert 3 <= queue.main.in_flight() <= 4
    gate.open.set()
    eventually(lambda: len(gate.seen) == 20)


def test_figures(memory_app: ignis.Ignis, gate: Gate) -> None:
    queue = memory_app.queue("jobs", int, shards=2)
    queue.handler(gate, concurrency=2)
    queue.publish_many(range(5))
    memory_app.start()
    gate.wait_entered(2)
    found = queue.stats()
    assert (found["queue"], found["sideline"], found["consumer"]["concurrency"]) == ("jobs", 0, 2)
    assert found["pending"] + found["in_flight"] == 5
    gate.open.set()
    eventually(lambda: queue.stats()["consumer"].get("handled") == 5)
    found = queue.stats()["consumer"]
    assert found["fetched"] == 5
    assert found["claims"] >= 1
    assert found["in_flight"] == found["worker_deaths"] == 0
    assert queue.stats()["oldest_age_s"] is None


@pytest.mark.parametrize("pool", POOLS)
def test_headers_that_cannot_be_read_end_no_worker(memory_app: ignis.Ignis, pool: str) -> None:
    queue: ignis.Queue[Any] = memory_app.queue("jobs", int, shards=1)
    queue.open()
    records = [encode_record(b"1", flags=CODEC_JSON, meta=meta) for meta in UNREADABLE_METAS.values()]
    queue.main.load_batches([(0, PackedBatch.pack(records))])
    queue.publish(2)

    def look(body: int, ctx: ignis.Context) -> None:
        if body == 1:
            assert ctx.message.headers
        else:
            raise ValueError("no")

    async def look_async(body: int, ctx: ignis.Context) -> None:
        look(body, ctx)

    queue.handler(look_async if pool == "async" else look)
    memory_app.start()
    wait_idle(queue)
    assert reasons(queue) == {"unreadable": len(UNREADABLE_METAS), "exception": 1}


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_that_is_not_utf8_ends_no_consumer(memory_app: ignis.Ignis, pool: str) -> None:
    queue: ignis.Queue[Any] = memory_app.queue("jobs", int, shards=1)

    def fail(body: int) -> None:
        if body:
            raise ValueError(os.fsdecode(b"caf\xe9"))

    async def fail_async(body: int) -> None:
        fail(body)

    queue.handler(fail_async if pool == "async" else fail)
    queue.publish_many([1, 0, 1])
    memory_app.start()
    wait_idle(queue)
    assert [message.error for message in sidelined(queue)] == ["ValueError: caf\\udce9"] * 2


@pytest.mark.parametrize("pool", [*POOLS, "process"])
@pytest.mark.parametrize("name", ["jobs", "batches"])
def test_the_largest_message_reaches_every_worker(
    memory_app: ignis.Ignis, journal: Journal, pool: str, name: str
) -> None:
    limit = 16 << 20
    queue = jobs.register(memory_app, name, pool, max_message_bytes=limit, max_headers_bytes=64 << 10)
    job = {"n": 1, "do": "none", "pad": ""}
    job["pad"] = "x" * (limit - len(msgspec.json.encode(job)))
    headers = {"h": "x" * ((64 << 10) - len(encode_meta({"h": "x" * 60_000}, 64 << 10)) + 60_000)}
    assert len(encode_meta(headers, 64 << 10)) == 64 << 10
    queue.publish(job, key="k" * 0xFFFF, headers=headers)
    memory_app.start()
    wait_idle(queue)
    assert sidelined(queue) == []
    assert "start 1" in journal.lines()
