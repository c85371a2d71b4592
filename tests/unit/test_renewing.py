"""A living owner renews what it works on: the stuck time is for the dead, the frozen, and what was lost track of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.control.sweeper import SweepResult
from ignis.errors import StoreBusyError
from ignis.storage.base import renewal_period_s
from tests.apps import jobs
from tests.conftest import MakeApp
from tests.support import WAIT_S, Gate, Journal, eventually, one_store, reasons, wait_idle

ROOT = Path(__file__).parents[2]
STUCK_S = 2
"""Stored with the queue, below what the settings allow: claims are renewed every half second."""


class Clock:
    """The sweeper's. It stands where the test puts it."""

    def __init__(self) -> None:
        self.now_s: float | None = None

    def __call__(self) -> float:
        return time.time() if self.now_s is None else self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app(store_url: str, new_app: MakeApp, clock: Clock) -> ignis.Ignis:
    return new_app(store_url, clock=clock)


def shorten(queue: ignis.Queue[Any]) -> None:
    queue.open()

    def change(record: Any) -> None:
        record.stuck_after_s = STUCK_S

    queue.app.store.queues.update(queue.name, change)


def tick() -> float:
    """A moment between what was done before and what is done after."""
    time.sleep(0.01)
    now_s = time.time()
    time.sleep(0.01)
    return now_s


def claimed_before(queue: ignis.Queue[Any], moment_s: float) -> int:
    magazines = queue.main.store
    return sum(
        len(magazines.abandoned(queue.name, shard, int(moment_s * 1000), 100, dead_owners=False))
        for shard in range(queue.main.shards)
    )


def tick_while_claimed(queue: ignis.Queue[Any], count: int) -> float:
    """A moment behind which so many have not been renewed yet. On a busy machine they may be before it is over."""

    def moment_s() -> float:
        found_s = tick()
        return found_s if claimed_before(queue, found_s) == count else 0.0

    return eventually(moment_s)


def sweep(queue: ignis.Queue[Any], clock: Clock, moment_s: float, stuck_s: float = STUCK_S) -> SweepResult:
    """As if the stuck time of what was claimed, or renewed, before that moment were over now."""
    clock.now_s = moment_s + stuck_s
    return queue.app.sweep_queue(queue.name)


@pytest.mark.parametrize("pool", ["thread", "async", "process"])
@one_store()
def test_a_handler_longer_than_the_stuck_time_runs_once(
    pool: str, store_url: str, app: ignis.Ignis, journal: Journal, clock: Clock
) -> None:
    queue = jobs.register(app, "jobs", pool, concurrency=2)
    shorten(queue)
    queue.publish({"n": 1, "do": "hold", "until": "go"})
    app.start()
    eventually(lambda: "start 1" in journal.lines())
    for _ in range(2):
        moment_s = tick_while_claimed(queue, 1)
        eventually(lambda: claimed_before(queue, moment_s) == 0)  # noqa: B023
        assert sweep(queue, clock, moment_s).swept == 0
    Path(f"{journal.path}.go").touch()
    wait_idle(queue)
    assert journal.counts() == {"start 1": 1, "end 1": 1}
    assert queue.consumer is not None
    assert queue.consumer.counts.late_acks == 0
    assert app.stop() is True


@one_store()
def test_a_long_message_is_renewed_while_others_come_and_go(app: ignis.Ignis, gate: Gate, clock: Clock) -> None:
    """Each that comes asks for a look at what is in hand, and none of them may put off the one that is due."""
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    handled, over = threading.Semaphore(0), threading.Event()

    @queue.handler(concurrency=2)
    def handle(number: int) -> None:
        if number == 0:
            gate(number)
        handled.release()

    def come_and_go() -> None:
        number = 0
        while not over.is_set():
            queue.publish(number := number + 1)
            assert handled.acquire(timeout=WAIT_S)

    queue.publish(0)
    app.start()
    gate.wait_entered()
    others = threading.Thread(target=come_and_go)
    others.start()
    try:
        for _ in range(3):
            moment_s = tick()
            eventually(lambda: claimed_before(queue, moment_s) == 0)  # noqa: B023
    finally:
        over.set()
        others.join()
    gate.open.set()
    wait_idle(queue)


@pytest.mark.parametrize(("stuck_after_s", "period_s"), [(18_000, 75.0), (1_200, 75.0), (300, 75.0), (2, 0.5)])
def test_who_works_renews_as_if_others_had_lowered_the_stuck_time(stuck_after_s: float, period_s: float) -> None:
    """They sweep by the new one before he has learnt of it."""
    assert renewal_period_s(stuck_after_s) == period_s


@one_store()
def test_a_thread_that_outlasts_the_stop_keeps_its_message(app: ignis.Ignis, journal: Journal, clock: Clock) -> None:
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    entered, go = threading.Event(), threading.Event()

    @queue.handler
    def handle(number: int) -> None:
        entered.set()
        assert go.wait(WAIT_S)

    queue.publish(1)
    app.start()
    assert entered.wait(WAIT_S)
    assert queue.consumer is not None
    pool = queue.consumer._pool
    assert app.stop(timeout=0.1) is False
    for _ in range(2):
        moment_s = tick_while_claimed(queue, 1)
        eventually(lambda: claimed_before(queue, moment_s) == 0)  # noqa: B023
        assert sweep(queue, clock, moment_s).swept == 0
    go.set()
    eventually(lambda: pool.lost_threads == 0)  # type: ignore[attr-defined]
    moment_s = tick()
    assert claimed_before(queue, moment_s) == 1
    clock.now_s = None
    eventually(lambda: sweep(queue, clock, tick()).swept == 1)


@one_store()
def test_a_worker_process_that_holds_its_interpreter_is_renewed_by_its_parent(
    store_url: str, app: ignis.Ignis, journal: Journal, clock: Clock
) -> None:
    queue = jobs.register(app, "jobs", "process")
    shorten(queue)
    pipe = Path(f"{journal.path}.pipe")
    os.mkfifo(pipe)
    queue.publish({"n": 1, "do": "hold the interpreter", "until": str(pipe)})
    app.start()
    eventually(lambda: "start 1" in journal.lines())
    for _ in range(2):
        moment_s = tick()
        eventually(lambda: claimed_before(queue, moment_s) == 0)  # noqa: B023
        assert sweep(queue, clock, moment_s).swept == 0
    assert journal.counts() == {"start 1": 1}
    with pipe.open("r+b", buffering=0) as told:
        told.write(b"x")
        wait_idle(queue)
    assert journal.counts() == {"start 1": 1, "end 1": 1}


def test_a_batch_is_renewed_whole(app: ignis.Ignis, clock: Clock) -> None:
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    entered, go = threading.Event(), threading.Event()
    seen: list[int] = []

    @queue.handler(batch_size=5, batch_wait_s=1.0, concurrency=1)
    def handle(batch: list[int]) -> None:
        seen.extend(batch)
        entered.set()
        assert go.wait(WAIT_S)

    queue.publish_many(range(5))
    app.start()
    assert entered.wait(WAIT_S)
    moment_s = tick()
    eventually(lambda: claimed_before(queue, moment_s) == 0)
    assert sweep(queue, clock, moment_s).swept == 0
    go.set()
    wait_idle(queue)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_a_paused_consumer_renews(app: ignis.Ignis, gate: Gate, clock: Clock) -> None:
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    queue.handler(gate)
    queue.publish(1)
    app.start()
    gate.wait_entered()
    assert queue.consumer is not None
    queue.consumer.pause()
    moment_s = tick()
    eventually(lambda: claimed_before(queue, moment_s) == 0)
    gate.open.set()
    wait_idle(queue)


def test_a_consumer_that_stops_renews_while_its_handlers_finish(app: ignis.Ignis, gate: Gate, clock: Clock) -> None:
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    queue.handler(gate)
    queue.publish(1)
    app.start()
    gate.wait_entered()
    stopping = threading.Thread(target=app.stop, args=(WAIT_S,))
    stopping.start()
    moment_s = tick()
    eventually(lambda: claimed_before(queue, moment_s) == 0)
    assert sweep(queue, clock, moment_s).swept == 0
    gate.open.set()
    stopping.join(WAIT_S)
    assert (gate.seen, queue.main.in_flight()) == ([1], 0)


def test_what_nobody_keeps_track_of_is_swept_beside_what_is_worked_on(
    app: ignis.Ignis, gate: Gate, clock: Clock
) -> None:
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    queue.publish_many([1, 2])
    assert [one.message for one in queue.main.fire(2)] == [1, 2], "and forgotten, in the same process"
    queue.handler(gate)
    queue.publish(3)
    app.start()
    gate.wait_entered()
    moment_s = tick()
    eventually(lambda: claimed_before(queue, moment_s) == 2)
    assert sweep(queue, clock, moment_s).swept == 2
    gate.open.set()
    wait_idle(queue)
    assert reasons(queue) == {"abandoned": 2}
    assert gate.seen == [3]


def test_an_outcome_that_cannot_be_stored_is_renewed(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    queue = app.queue("jobs", int, shards=1)
    shorten(queue)
    handled = threading.Event()
    busy = threading.Event()
    delete = queue.main.store.delete

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        if not busy.is_set():
            raise StoreBusyError("busy")
        return delete(*args, **kwargs)

    monkeypatch.setattr(queue.main.store, "delete", sometimes)
    queue.handler(lambda _: handled.set())
    queue.publish(1)
    app.start()
    assert handled.wait(WAIT_S)
    moment_s = tick()
    eventually(lambda: claimed_before(queue, moment_s) == 0)
    assert sweep(queue, clock, moment_s).swept == 0
    busy.set()
    wait_idle(queue)
    assert reasons(queue) == {}


@one_store()
def test_quick_messages_are_never_renewed(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    shorten(queue)
    queue.handler(lambda _: None)
    app.start()
    until = time.monotonic() + 1.5 * STUCK_S
    while time.monotonic() < until:
        queue.publish_many(range(50))
        wait_idle(queue)
    assert queue.consumer is not None
    assert queue.consumer.counts.handled > 0
    assert queue.consumer.counts.renewals <= 1, "a message that happened to be there at two looks"


def test_by_hand(app: ignis.Ignis, clock: Clock) -> None:
    queue = app.queue("jobs", int, shards=2)
    shorten(queue)
    queue.publish_many(range(6), keys=[str(n) for n in range(6)])
    fired = queue.main.fire(6)
    queue.main.delete(fired[:1])
    moment_s = tick()
    lost = queue.main.renew(fired[:4])
    assert [one.message for one in lost] == [fired[0].message]
    assert sweep(queue, clock, moment_s).swept == 2
    assert queue.main.renew(fired[1:4]) == []
    assert queue.main.renew(fired[4:]) == fired[4:]
    assert queue.main.delete(fired) == 3


WORKER = """
import sys, time
from pathlib import Path
import ignis, ignis.consumer.acknowledger
from tests.support.interpreter import hold_interpreter
ignis.storage.base.RENEWALS = 2400  # every half second
url, folder = sys.argv[1], Path(sys.argv[2])
app = ignis.Ignis(url)
queue = app.queue("jobs", int, shards=1)
@queue.handler()
def handle(message):
    (folder / "started").touch()
    if len(sys.argv) > 3:
        assert hold_interpreter(sys.stdin.fileno())
    while not (folder / "go").exists():
        time.sleep(0.01)
app.start()
while not queue.consumer.counts.handled:
    time.sleep(0.01)
print(queue.consumer.counts.late_acks, flush=True)
app.close()
"""


def test_a_frozen_process_is_swept_and_its_late_acknowledgement_changes_nothing(
    embedded_url: str, new_app: MakeApp, tmp_path: Path, clock: Clock
) -> None:
    app = new_app(embedded_url, clock=clock)
    queue = app.queue("jobs", int, shards=1)
    queue.open()
    queue.publish(1)
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), embedded_url, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        eventually((tmp_path / "started").exists)
        moment_s = tick()
        eventually(lambda: claimed_before(queue, moment_s) == 0)
        worker.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{worker.pid}/stat")
        eventually(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
        assert sweep(queue, clock, tick(), 1_200).swept == 1
        assert reasons(queue) == {"abandoned": 1}
        worker.send_signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        out, _ = worker.communicate(timeout=WAIT_S)
    finally:
        worker.kill()
        worker.wait()
    assert out.strip() == "1"
    assert (queue.main.in_flight(), queue.main.pending(), queue.sideline.pending()) == (0, 0, 1)


def test_a_process_whose_handler_holds_the_interpreter_counts_as_frozen(
    embedded_url: str, new_app: MakeApp, tmp_path: Path, clock: Clock
) -> None:
    app = new_app(embedded_url, clock=clock)
    queue = app.queue("jobs", int, shards=1)
    queue.open()
    queue.publish(1)
    (tmp_path / "go").touch()
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), embedded_url, str(tmp_path), "holds"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        eventually((tmp_path / "started").exists)
        moment_s = tick()
        time.sleep(2)
        assert claimed_before(queue, moment_s) == 1, "nobody renews it"
        assert sweep(queue, clock, tick(), 1_200).swept == 1
        assert reasons(queue) == {"abandoned": 1}
        out, _ = worker.communicate("go on", timeout=WAIT_S)
    finally:
        worker.kill()
        worker.wait()
    assert out.strip() == "1"
    assert (queue.main.in_flight(), queue.main.pending(), queue.sideline.pending()) == (0, 0, 1)


def test_a_renewal_that_waits_holds_up_no_acknowledgement(
    store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that drains takes acknowledgements, and answers no other request."""
    app = new_app(store_url)
    queue = app.queue("q", int, shards=1)
    asked, over, goes_on = threading.Event(), threading.Event(), threading.Event()

    @queue.handler(concurrency=1)
    def handle(number: int) -> None:
        assert number or goes_on.wait(WAIT_S)

    app.start()
    real = app.store.queues.get

    def get(name: str) -> Any:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            assert over.wait(WAIT_S)
        return real(name)

    monkeypatch.setattr(app.store.queues, "get", get)
    try:
        queue.publish(0)
        assert asked.wait(WAIT_S)
        goes_on.set()
        queue.publish(1)
        assert queue.consumer is not None
        eventually(lambda: queue.consumer.counts.handled == 2)  # type: ignore[union-attr]
        assert not over.is_set()
    finally:
        over.set()
        goes_on.set()
