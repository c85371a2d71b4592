"""What all queues of a process share: threads for work that may wait, timers, and no thread for what is idle."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

import ignis
from ignis.clock import Clock
from ignis.process_hooks import FORKS
from ignis.testing import ManualClock
from ignis.upkeep import SharedThreads, Timers, interpreter_wait_s, run_soon, shared_threads, timers, timers_of
from ignis.upkeep.threads import MOST_OF_A_QUEUE
from tests.conftest import MakeApp
from tests.support import WAIT_S, NewThreads, eventually

QUEUES = 20


def test_calls_that_wait_hold_up_nobody() -> None:
    threads, gate, entered, done = SharedThreads(), threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def waits() -> None:
        entered.release()
        gate.wait(WAIT_S)
        done.release()

    for _ in range(30):
        threads.submit(waits)
    for _ in range(30):
        assert entered.acquire(timeout=WAIT_S)
    assert threads.count == 30
    gate.set()
    for _ in range(30):
        assert done.acquire(timeout=WAIT_S)


def test_a_store_that_hangs_takes_no_thread_for_each_message(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the shared threads is that of the queues, and not of their messages."""
    before, gate, handled = shared_threads().count, threading.Event(), threading.Semaphore(0)
    store = memory_app.store.magazines
    for name in ("delete", "transfer", "renew_claims"):
        whole = getattr(store, name)

        def hang(*args: Any, whole: Any = whole) -> Any:
            gate.wait(WAIT_S)
            return whole(*args)

        monkeypatch.setattr(store, name, hang)

    async def handle(n: int) -> bool:
        handled.release()
        return n % 2 == 0

    def plain(n: int) -> bool:
        handled.release()
        return n % 2 == 0

    queues = [memory_app.queue(f"q{number}", int, shards=2) for number in range(QUEUES)]
    for number, queue in enumerate(queues):
        queue.handler(handle if number % 2 else plain)
    try:
        memory_app.start()
        for _ in range(5):
            for queue in queues:
                queue.publish_many(range(10))
            for _ in range(10 * QUEUES):
                assert handled.acquire(timeout=WAIT_S)
        assert shared_threads().count - before <= MOST_OF_A_QUEUE * QUEUES
    finally:
        gate.set()
        memory_app.stop()


def test_workers_that_end_together_are_looked_at_together(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, asked = memory_app.queue("jobs", int), []
    queue.handler(lambda n: None)
    memory_app.start()
    consumer = queue.consumer
    assert consumer is not None
    monkeypatch.setattr("ignis.consumer.consumer.run_soon", asked.append)
    for _ in range(5):
        consumer._check_soon()
    assert asked == [consumer._check]
    asked[0]()
    consumer._check_soon()
    assert len(asked) == 2
    memory_app.stop()


def test_a_thread_that_is_free_takes_the_next_call() -> None:
    threads, ended, idents = SharedThreads(), threading.Semaphore(0), set()

    def call() -> None:
        idents.add(threading.get_ident())
        ended.release()

    for _ in range(50):
        threads.submit(call)
        assert ended.acquire(timeout=WAIT_S)
        eventually(lambda: threads._idle)
    assert len(idents) == threads.count == 1


def test_threads_without_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.upkeep.threads.IDLE_S", 0.01)
    threads, ran = SharedThreads(), threading.Event()
    threads.submit(ran.set)
    assert ran.wait(WAIT_S)
    eventually(lambda: threads.count == 0)
    ran.clear()
    threads.submit(ran.set)
    assert ran.wait(WAIT_S), "and come again"


def test_a_call_that_raises_is_logged_and_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads, ran = SharedThreads(), threading.Event()
    threads.submit(lambda: 1 / 0)  # type: ignore[arg-type]
    threads.submit(ran.set)
    assert ran.wait(WAIT_S)
    eventually(lambda: "ZeroDivisionError" in caplog.text)


def no_threads(monkeypatch: pytest.MonkeyPatch, often: int) -> list[int]:
    """No thread can be started so many times."""
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(refused) < often:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


def test_without_a_thread_to_be_had_the_call_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ran = Timers(Clock()), threading.Event()
    clock.after(0, lambda: None)  # its own thread runs
    process = timers._Process()
    process.shared = clock
    monkeypatch.setattr(timers, "_processes", {FORKS[0]: process})
    monkeypatch.setattr("ignis.upkeep.threads._of_process", {})
    time.sleep(0.05)
    monkeypatch.setattr("ignis.upkeep.threads._of_process", {})
    refused = no_threads(monkeypatch, 2)
    run_soon(ran.set)
    assert ran.wait(WAIT_S)
    assert len(refused) == 2


def test_a_thread_too_few_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that there is takes what no other could be started for."""
    threads, gate, ran = SharedThreads(), threading.Event(), threading.Event()
    threads.submit(lambda: gate.wait(WAIT_S) and None)
    no_threads(monkeypatch, 1)
    threads.submit(ran.set)
    gate.set()
    assert ran.wait(WAIT_S)
    assert threads.count == 1


def test_timers_go_off_in_the_order_of_their_times() -> None:
    by_hand, made = ManualClock(), []
    clock = Timers(by_hand)
    for number in (5, 1, 3, 2, 4):
        clock.after(number * 60, lambda number=number: made.append(number))  # type: ignore[misc]
    clock.after(60, lambda: made.append(0)).cancel()
    for last in range(1, 6):
        by_hand.advance(60)
        eventually(lambda: made == list(range(1, last + 1)))  # noqa: B023


def test_what_has_nothing_to_do_when_it_is_due_takes_no_thread() -> None:
    made, asked = threading.Semaphore(0), threading.Event()

    def idle() -> bool:
        asked.set()
        return True

    def fails() -> bool:
        raise MemoryError

    timers_of(None).after(0.001, made.release, idle)
    assert asked.wait(WAIT_S)
    timers_of(None).after(0.001, made.release, lambda: False)
    assert made.acquire(timeout=WAIT_S)
    timers_of(None).after(0.001, made.release, fails)  # the call finds out by itself
    assert made.acquire(timeout=WAIT_S)
    assert not made.acquire(timeout=0.05)


def test_how_late_the_timers_are_is_known() -> None:
    by_hand, made = ManualClock(), threading.Semaphore(0)
    timers = Timers(by_hand)
    assert timers.late_s == 0
    timers.after(1, made.release)
    by_hand.advance(1)
    assert made.acquire(timeout=WAIT_S)
    assert timers.late_s == 0
    for _ in range(20):
        timers.after(1, made.release)
        by_hand.advance(3_600)
        assert made.acquire(timeout=WAIT_S)
    assert 0.4 < timers.late_s <= 0.5, "no more than that: the machine may have slept"
    for _ in range(40):
        timers.after(1, made.release)
        by_hand.advance(1)
        assert made.acquire(timeout=WAIT_S)
    assert timers.late_s < 0.001


def test_who_is_on_time_waits_for_nobody() -> None:
    shared = timers_of(None)
    before, shared.late_s = shared.late_s, 0.000_9
    try:
        assert interpreter_wait_s() == 0
        shared.late_s = 0.25
        assert 0.1 < interpreter_wait_s() <= 0.25
    finally:
        shared.late_s = before


def test_timers_of_a_clock_by_hand_go_by_it() -> None:
    by_hand = ManualClock()
    made = threading.Event()
    timers_of(by_hand).after(60, made.set)
    assert not made.wait(0.1)
    by_hand.advance(60)
    assert made.wait(WAIT_S)
    assert timers_of(Clock()) is timers_of(None), "and all others share the process's own"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_its_own() -> None:
    ran = threading.Event()
    run_soon(ran.set)
    timers_of(None).after(0, lambda: None)
    assert ran.wait(WAIT_S)
    before, reading, writing = shared_threads(), *os.pipe()
    pid = os.fork()
    if pid == 0:
        again = threading.Event()
        timers_of(None).after(0.01, again.set)
        os.write(writing, b"y" if again.wait(WAIT_S) and shared_threads() is not before else b"n")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_an_idle_queue_has_no_thread_but_its_workers(
    store_url: str, new_app: MakeApp, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ignis.upkeep.threads.IDLE_S", 0.1)
    app = new_app(store_url)
    seen: list[int] = []

    async def coroutine(message: int) -> None:
        seen.append(message)

    for number in range(QUEUES):
        app.queue(f"q{number}", int, shards=1).handler(coroutine if pool == "async" else seen.append)
    threads = NewThreads()
    app.start()

    def shared() -> list[str]:
        names = threads.named(shared=True)
        return [name for name in names if not name.startswith("ignis-q") and "ignis-fetch" not in name]

    assert len(threads.named("ignis-q")) == QUEUES
    eventually(lambda: len(shared()) < QUEUES / 2, "those that the start had work for have ended")
    for queue in app.queues():
        queue.publish(1)
    eventually(lambda: len(seen) == QUEUES)
    assert app.stop() is True


def test_outcomes_of_a_queue_that_was_idle_are_stored(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that stores them had left meanwhile, and comes back."""
    monkeypatch.setattr("ignis.consumer.acknowledger._STAY_S", 0.001)
    queue = app.queue("jobs", int)
    seen: list[Any] = []
    queue.handler(seen.append)
    app.start()
    for number in range(40):
        queue.publish(number)
        eventually(lambda: queue.consumer is not None and queue.consumer.counts.handled == number + 1)  # noqa: B023
        time.sleep(0.003 * (number % 3))
    assert app.stop() is True
