"""The buffered publisher with delays: receipts, flushing and closing, and each message at its own time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis, delaying_publisher
from ignis.errors import (
    ChannelFullError,
    ClosedError,
    ConfigError,
    DelayNotSupportedError,
    ForkedHandleError,
    PublishError,
    StoreFullError,
    WaitTimeoutError,
)
from ignis.process_hooks import FORKS
from ignis.publisher import pending_messages
from ignis.testing import ManualClock, drain
from tests.support import WAIT_S, NewThreads, eventually
from tests.support.broker import RunningBroker


@pytest.fixture(params=["memory", "embedded", "broker"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ignis]:
    if request.param == "broker":
        with RunningBroker(f"embedded://{tmp_path}/store") as broker, Ignis(broker.url) as made:
            yield made
        return
    with Ignis("memory://" if request.param == "memory" else f"embedded://{tmp_path}/store") as made:
        yield made


class Gate:
    """The store's `load_later`, which waits until it is let go."""

    def __init__(self, queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.error: Exception | None = None
        store = queue.main.store
        self._real = store.load_later
        monkeypatch.setattr(store, "load_later", self._load, raising=False)

    def _load(self, *arguments: Any) -> Any:
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return self._real(*arguments)


def test_each_message_waits_for_its_own_time(app: Ignis) -> None:
    queue = app.queue("jobs", int)
    with queue.publisher() as publisher:
        receipts = [publisher.send(n, key=f"k{n % 7}", delay=3_600 + (n * 37) % 500) for n in range(500)]
        plain = publisher.send(-1)
        assert publisher.sent == 501
        publisher.flush()
        assert (publisher.pending, publisher.failed) == (0, 0)
        assert all(one.done() for one in [*receipts, plain])
    found = list(queue.later)
    assert [one.due for one in found] == sorted(one.due for one in found)
    by_id = {one.id: one for one in found}
    assert list(by_id) and {one.result(0) for one in receipts} == set(by_id)
    first = min(found, key=lambda one: one.due).due
    for number, receipt in enumerate(receipts):
        one = by_id[receipt.id]
        assert one.message is not None
        assert (one.message.body, one.message.key) == (b"%d" % number, f"k{number % 7}")
        assert abs((one.due - first).total_seconds() - (number * 37) % 500) < WAIT_S
    assert queue.stats()["pending"] == 1
    assert queue.published == 501


def test_they_come_when_they_are_due_and_not_before(app: Ignis) -> None:
    store = app.store
    queue = app.queue("jobs", float)
    early: list[float] = []
    got: list[float] = []

    @queue.handler
    def handle(due_s: float) -> None:
        if store.now_s() < due_s - 1e-3:
            early.append(due_s)
        got.append(due_s)

    queue.start()
    with queue.publisher() as publisher:
        for n in range(20):
            publisher.send(store.now_s() + n / 50, delay=n / 50)
        publisher.send(0.0, at=datetime.now(timezone.utc) - timedelta(days=1))
    eventually(lambda: len(got) == 21)
    assert early == []


def test_one_key_keeps_its_order_at_one_time(app: Ignis) -> None:
    queue = app.queue("jobs", int)
    at = datetime.now(timezone.utc) + timedelta(seconds=0.2)
    with queue.publisher() as publisher:
        for n in range(300):
            publisher.send(n, key="one", at=at)
    got: list[int] = []
    queue.handler(got.append)
    queue.start()
    eventually(lambda: len(got) == 300)
    assert got == sorted(got)


def test_one_time_is_one_due_time_however_late_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that rests between two clocks takes the pause for a part of the delay."""
    reckon, pauses = delaying_publisher.due_time_ms, itertools.cycle((7, 0, 3, 1))
    monkeypatch.setattr(delaying_publisher, "due_time_ms", lambda *asked: reckon(*asked) + next(pauses))
    with Ignis("memory://") as app:
        queue = app.queue("jobs", int, shards=1)
        at = datetime.now(timezone.utc) + timedelta(hours=1)
        with queue.publisher() as publisher:
            for n in range(20):
                publisher.send(n, at=at)
        assert len({one.due for one in queue.later}) == 1
        assert [one.message.body for one in queue.later if one.message] == [b"%d" % n for n in range(20)]


def test_exact_by_a_clock_of_the_tests() -> None:
    clock = ManualClock(start=1_600_000_000)
    with Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str)
        got: list[str] = []
        queue.handler(got.append)
        with queue.publisher() as publisher:
            publisher.send("a", delay="5m")
        clock.advance(299.999)
        drain(queue)
        assert got == []
        clock.advance(0.001)
        drain(queue)
        assert got == ["a"]


def test_for_coroutines(app: Ignis) -> None:
    queue = app.queue("jobs", str)

    async def main() -> None:
        async with queue.publisher() as publisher:
            receipt = await publisher.asend("a", delay="1h")
            assert await receipt == receipt.id
            await publisher.asend("b", at=datetime.now(timezone.utc) + timedelta(hours=2))
            await publisher.aflush()

    asyncio.run(main())
    assert [one.message.body for one in queue.later if one.message is not None] == [b"a", b"b"]


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1}, {"delay": "soon"}, {"delay": float("nan")}, {"delay": "40000w"}, {"at": "tomorrow"},
        {"at": datetime(2030, 1, 1)}, {"delay": 1, "at": datetime(2030, 1, 1, tzinfo=timezone.utc)},  # noqa: DTZ001
    ],
)  # fmt: skip
def test_wrong_times_send_nothing(app: Ignis, options: dict[str, Any]) -> None:
    queue = app.queue("jobs", str)
    with queue.publisher() as publisher:
        with pytest.raises(ConfigError):
            publisher.send("a", **options)
        assert publisher.sent == 0
    assert queue.stats()["delayed"] == queue.stats()["pending"] == 0


def test_a_store_that_keeps_none(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", str)
    monkeypatch.setattr(type(queue.main.store), "keeps_later", False)
    with queue.publisher() as publisher:
        with pytest.raises(DelayNotSupportedError, match="embedded"):
            publisher.send("a", delay="1h")
        assert publisher.sent == 0


def test_a_full_ring_and_a_store_that_takes_its_time(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    gate = Gate(queue, monkeypatch)
    publisher = queue.publisher(capacity=16)
    publisher.send(0, delay="1h")
    assert gate.entered.wait(WAIT_S)  # from now on nobody takes anything out of the ring

    def fill() -> None:
        for n in range(10_000):
            publisher.send(n, delay="1h", timeout=0)

    with pytest.raises(ChannelFullError):
        fill()
    sent = publisher.sent
    with pytest.raises(WaitTimeoutError):
        publisher.send(-1, delay="1h", timeout=0.01)
    publisher.send(-2)  # whatever is delayed, the others go on
    with pytest.raises(WaitTimeoutError):
        publisher.flush(0.01)
    assert pending_messages() >= sent
    more: list[Any] = []
    waiting = threading.Thread(target=lambda: more.append(publisher.send(-3, delay="1h")))
    waiting.start()
    gate.go.set()
    waiting.join(WAIT_S)
    assert len(more) == 1
    publisher.close()
    assert more[0].done()
    assert len(queue.later) == sent + 1
    assert pending_messages() == 0


def test_what_the_store_refuses(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    gate = Gate(queue, monkeypatch)
    gate.error = StoreFullError("no room")
    gate.go.set()
    publisher = queue.publisher()
    receipt = publisher.send(1, delay="1h")
    fine = publisher.send(2)
    with pytest.raises(StoreFullError):
        receipt.result(WAIT_S)
    assert fine.result(WAIT_S) == fine.id
    publisher.flush()
    assert (publisher.sent, publisher.failed, publisher.pending) == (2, 1, 0)
    with pytest.raises(PublishError, match=r"1 buffered.*no room"):
        publisher.close()
    publisher.close()
    with pytest.raises(ClosedError):
        publisher.send(3, delay="1h")
    assert (queue.stats()["delayed"], queue.stats()["pending"]) == (0, 1)


def test_a_close_that_runs_out_of_time_may_be_called_again(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    gate = Gate(queue, monkeypatch)
    publisher = queue.publisher()
    receipt = publisher.send(1, delay="1h")
    assert gate.entered.wait(WAIT_S)
    for wait in (publisher.close, publisher.flush):
        with pytest.raises(WaitTimeoutError, match=r"^message 1 of 1 is not durable within 0\.01 s$"):
            wait(0.01)
    with pytest.raises(WaitTimeoutError, match=r"^message 1 of 1 is not durable yet$"):
        receipt.result(0)
    gate.go.set()
    publisher.close()
    assert receipt.done()
    assert len(queue.later) == 1


def test_the_application_stores_what_its_publisher_holds(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with Ignis(url) as app:
        publisher = app.queue("jobs", int).publisher()
        receipts = [publisher.send(n, delay="1h") for n in range(100)]
    assert all(one.done() for one in receipts)
    with pytest.raises(ClosedError):
        publisher.send(1, delay="1h")
    with Ignis(url) as app:
        assert len(app.queue("jobs", int).later) == 100


def test_a_publisher_of_a_removed_queue(app: Ignis) -> None:
    queue = app.queue("jobs", int)
    publisher = queue.publisher()
    publisher.send(1, delay="1h").result(WAIT_S)
    app.remove_queue("jobs", force=True)
    receipt = publisher.send(2, delay="1h")
    assert receipt.exception(WAIT_S) is not None
    with pytest.raises(PublishError):
        publisher.close()


def test_what_lies_in_the_ring_is_routed_anew_with_its_time(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=2)
    gate = Gate(queue, monkeypatch)
    publisher = queue.publisher()
    publisher.send(0, key="k0", delay=1_000)
    assert gate.entered.wait(WAIT_S)
    for n in range(1, 100):
        publisher.send(n, key=f"k{n}", delay=1_000 + 10 * n)
    app.store.magazines.declare("jobs", 8)
    queue.main.follow_shards()
    gate.go.set()
    publisher.close()
    found = list(queue.later)
    assert [one.message.body for one in found if one.message is not None] == [b"%d" % n for n in range(100)]
    assert len({one.shard for one in found}) > 2


def test_keys_of_many_shards_and_none_in_one_load(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave the ring by shard, each with its own time."""
    queue = app.queue("jobs", int, shards=4)
    gate = Gate(queue, monkeypatch)
    publisher = queue.publisher()
    publisher.send(0, delay=1_000)
    assert gate.entered.wait(WAIT_S)
    for n in range(1, 200):
        publisher.send(n, key=f"k{n}" if n % 3 else None, delay=1_000.0 + 10 * (n * 7 % 200))
    gate.go.set()
    publisher.close()
    found = [one.message.body for one in queue.later if one.message is not None]
    assert found == [b"%d" % n for n in sorted(range(200), key=lambda n: n * 7 % 200)]


def test_seconds_as_a_float_are_reckoned_as_those_of_an_int(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring itself reads the clock for them, where the store has one of the machine's."""
    queue = app.queue("jobs", int)
    gate = Gate(queue, monkeypatch)
    publisher = queue.publisher(capacity=16)
    receipts = [publisher.send(0, delay=3_600.0)]  # makes the ring
    assert gate.entered.wait(WAIT_S)
    due_s = app.store.now_s() + 3_600
    receipts += [publisher.send(n, delay=3_600.0 if n % 2 else 3_600) for n in range(1, 11)]
    receipts.append(publisher.send(11, delay=3_600.0, key="a", headers={"of": "b"}))
    for delay_s in (-0.5, float("nan"), float("inf"), 1e12):
        with pytest.raises(ConfigError):
            publisher.send(-1, delay=delay_s)
    with pytest.raises(ConfigError):
        publisher.send(-1, delay=1.0, at=datetime.now(timezone.utc))

    def fill() -> None:
        for _ in range(10_000):
            receipts.append(publisher.send(12, delay=3_700.0, timeout=0))

    with pytest.raises(ChannelFullError):
        fill()
    gate.go.set()
    publisher.close()
    with pytest.raises(ClosedError):
        publisher.send(-1, delay=3_600.0)
    assert all(one.done() for one in receipts)
    ahead_s = app.store.now_s() - app.store.wall_s()
    found = list(queue.later)
    assert len(found) == len(receipts)
    assert [one.message.body for one in found if one.message][:12] == [b"%d" % n for n in range(12)]
    for one in found[1:12]:
        assert -0.2 < one.due.timestamp() + ahead_s - due_s < WAIT_S


def test_a_float_behind_the_end_of_the_application(tmp_path: Path) -> None:
    with Ignis(f"embedded://{tmp_path}/store") as app:
        publisher = app.queue("jobs", int).publisher()
        receipt = publisher.send(1, delay=3_600.0)
    assert receipt.done()
    with pytest.raises(ClosedError):
        publisher.send(2, delay=3_600.0)


def test_in_the_child_of_a_fork_it_says_so(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    with app.queue("jobs", int).publisher() as publisher:
        with monkeypatch.context() as child:
            child.setattr("ignis.delaying_publisher.FORKS", [FORKS[0] + 1])
            with pytest.raises(ForkedHandleError):
                publisher.send(1, delay="1h")
        publisher.send(1, delay="1h").result(WAIT_S)


def test_many_threads_send(app: Ignis) -> None:
    queue = app.queue("jobs", str)
    with queue.publisher(capacity=64) as publisher:

        def send(who: int) -> None:
            for n in range(200):
                publisher.send(f"{who}-{n}", delay=3_600 + n)

        threads = [threading.Thread(target=send, args=[who]) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_S)
    found = [one for one in queue.later if one.message is not None]
    assert len(found) == 800
    start = min(one.due for one in found)
    for one in found:
        assert one.message is not None
        number = int(one.message.body.decode().strip('"').split("-")[1])
        assert -1 < (one.due - start).total_seconds() - number < 2 * WAIT_S


def test_without_a_delayed_message_there_is_no_second_flusher(app: Ignis) -> None:
    queue = app.queue("jobs", int)
    threads = NewThreads()

    def flushers() -> int:
        return len(threads.named("ignis-flusher-jobs"))

    with queue.publisher() as publisher:
        publisher.send(1).result(WAIT_S)
        assert flushers() == 1
        publisher.send(2, delay="1h").result(WAIT_S)
        assert flushers() == 2
    eventually(lambda: not flushers())
