"""`consumer.max_running`: how many threads of one application are in handlers at a time, over all its queues."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import ignis
from ignis.consumer.pools.leading import Tray
from ignis.errors import ConfigError
from ignis.native import ThreadBell
from ignis.upkeep import Turn, Turns
from tests.conftest import MakeApp
from tests.support import WAIT_S, Gate, eventually, idle
from tests.support.trays import Sink, Still


class Running:
    """Handlers that note how many of them run at the same time."""

    def __init__(self) -> None:
        self.most = self.now = self.handled = 0
        self.order: list[str] = []
        self._lock = threading.Lock()

    def enter(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.002)
        with self._lock:
            self.now -= 1
            self.handled += count
            self.order.append(name)

    def handler(self, name: str) -> Any:
        return lambda body: self.enter(name)

    def batch_handler(self, name: str) -> Any:
        return lambda bodies: self.enter(name, len(bodies))

    def coroutine(self, name: str) -> Any:
        async def handle(body: bytes) -> None:
            self.enter(name)

        return handle


def turn_of(turns: Turns) -> Turn:
    return Turn(turns, ThreadBell())


def in_line(turn: Turn) -> tuple[threading.Thread, list[bool]]:
    """A thread that waits for its turn, and what it was told."""
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(turn.take(WAIT_S)), daemon=True)
    thread.start()
    return thread, told


class TestTurns:
    def test_first_come_first_served(self) -> None:
        turns = Turns(1)
        first, second, third = (turn_of(turns) for _ in range(3))
        assert first.take(0) and first.take(0), "who has it has it"
        waiting = []
        for number, turn in enumerate((second, third), 1):
            waiting.append(in_line(turn))
            eventually(lambda number=number: turns.waiting == number)
        assert (turns.taken, turns.waiting) == (1, 2)
        first.give()
        waiting[0][0].join(WAIT_S)
        assert waiting[0][1] == [True] and not waiting[1][1]
        second.give()
        waiting[1][0].join(WAIT_S)
        assert waiting[1][1] == [True]
        third.give()
        third.give()
        assert (turns.taken, turns.waiting) == (0, 0)

    def test_so_many_at_a_time(self) -> None:
        turns = Turns(3)
        taken = [turn_of(turns) for _ in range(5)]
        assert [turn.take(0) for turn in taken] == [True, True, True, False, False]
        taken[1].give()
        assert taken[4].take(0), "nobody was in line any more"

    def test_who_is_rung_for_leaves_the_line(self) -> None:
        turns = Turns(1)
        first, second, third = (turn_of(turns) for _ in range(3))
        assert first.take(0)
        thread, told = in_line(second)
        eventually(lambda: turns.waiting == 1)
        second.bell.ring()
        thread.join(WAIT_S)
        assert told == [False] and turns.waiting == 0
        first.give()
        assert third.take(0)

    def test_one_that_was_given_up_has_no_turn_and_waits_for_none(self) -> None:
        turns = Turns(1)
        first, second = turn_of(turns), turn_of(turns)
        assert first.take(0)
        first.end()
        assert second.take(0)
        assert first.take(0), "what it does counts for nobody"
        first.give()
        assert turns.taken == 1

    def test_one_that_was_given_up_in_line_is_passed_over(self) -> None:
        turns = Turns(1)
        first, second = turn_of(turns), turn_of(turns)
        assert first.take(0)
        thread, told = in_line(second)
        eventually(lambda: turns.waiting == 1)
        second.end()
        first.give()
        assert turns.taken == 0
        second.bell.ring()
        thread.join(WAIT_S)
        assert told == [True]

    def test_from_many_threads(self) -> None:
        turns = Turns(4)
        running = Running()

        def work() -> None:
            turn = turn_of(turns)
            for _ in range(10):
                while not turn.take(0.001):
                    pass
                running.enter("")
                turn.give()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert running.handled == 200
        assert 1 < running.most <= 4
        assert (turns.taken, turns.waiting) == (0, 0)


class TestApplication:
    @pytest.mark.parametrize("limit", [1, 3])
    def test_no_more_than_so_many_over_all_queues(self, limit: int, store_url: str, new_app: MakeApp) -> None:
        app = new_app(store_url, consumer={"max_running": limit})
        running = Running()
        for number in range(6):
            queue = app.queue(f"q{number}", bytes)
            if number % 2:
                queue.handler(batch_size=3, batch_wait_s=1)(running.batch_handler(queue.name))
            else:
                queue.handler(concurrency=3)(running.handler(queue.name))
            queue.publish_many([b"x"] * 20)
        app.start()
        eventually(lambda: running.handled == 120)
        eventually(lambda: all(idle(app.queue(f"q{number}")) for number in range(6)))
        assert running.most == limit
        assert running.handled == 120
        # Those that come one by one, to threads that sleep.
        for number in range(6):
            app.queue(f"q{number}", bytes).publish(b"y")
        eventually(lambda: running.handled == 126)
        eventually(lambda: all(idle(app.queue(f"q{number}")) for number in range(6)))
        assert running.most == limit

    def test_without_a_limit_all_run(self, memory_app: ignis.Ignis) -> None:
        everybody = threading.Barrier(6)
        for number in range(3):
            queue = memory_app.queue(f"q{number}", bytes)
            queue.handler(concurrency=2)(lambda body: everybody.wait(WAIT_S))
            queue.publish_many([b"x"] * 2)
        memory_app.start()
        eventually(lambda: all(idle(memory_app.queue(f"q{number}")) for number in range(3)))
        assert not everybody.broken

    def test_coroutines_are_not_counted(self, memory_url: str, new_app: MakeApp, gate: Gate) -> None:
        app = new_app(memory_url, consumer={"max_running": 1})
        running = Running()
        slow, quick = app.queue("slow", bytes), app.queue("quick", bytes)
        slow.handler(gate)
        quick.handler(running.coroutine("quick"))
        slow.publish(b"x")
        app.start()
        gate.wait_entered()
        quick.publish(b"x")
        eventually(lambda: running.handled == 1)

    def test_a_backlog_does_not_keep_others_waiting(self, store_url: str, new_app: MakeApp) -> None:
        app = new_app(store_url, consumer={"max_running": 1})
        running = Running()
        long, short = app.queue("long", bytes), app.queue("short", bytes)
        for queue in (long, short):
            queue.handler(running.handler(queue.name))
        long.publish_many([b"x"] * 300)
        app.start()
        eventually(lambda: running.handled > 0)
        short.publish(b"x")
        eventually(lambda: "short" in running.order)
        assert running.order.index("short") < 290
        eventually(lambda: running.handled == 301)

    def test_what_waits_for_a_turn_is_not_claimed(self, embedded_url: str, new_app: MakeApp, gate: Gate) -> None:
        busy = new_app(embedded_url, consumer={"max_running": 1})
        running = Running()
        busy.queue("slow", bytes).handler(gate)
        busy.queue("quick", bytes).handler(running.handler("here"))
        busy.queue("slow").publish(b"x")
        busy.start()
        gate.wait_entered()
        busy.queue("quick").publish_many([b"x"] * 10)
        time.sleep(0.1)
        assert not running.order
        other = new_app(embedded_url)
        other.queue("quick", bytes).handler(running.handler("there"))
        other.start()
        eventually(lambda: running.handled == 10)
        assert set(running.order) == {"there"}

    @pytest.mark.parametrize(("limit", "concurrency"), [(1, 4), (2, 2)])
    def test_what_is_given_back_behind_slow_ones_waits_for_no_turn(
        self, limit: int, concurrency: int, embedded_url: str, new_app: MakeApp
    ) -> None:
        """A worker that gives back its rest keeps others from handing out meanwhile: one of these may have the turn."""
        app = new_app(embedded_url, consumer={"max_running": limit})
        queues = [app.queue(f"q{number}", bytes) for number in range(8)]

        def handle(body: bytes) -> None:
            if body == b"slow":
                time.sleep(0.01)

        for queue in queues:
            queue.handler(concurrency=concurrency)(handle)
            queue.publish_many([b"slow" if number % 5 == 0 else b"" for number in range(250)])
        app.start()
        for queue in queues:
            eventually(lambda queue=queue: queue.consumer.counts.handled == 250)
        eventually(lambda: app.stats()["turns"] == {"limit": limit, "taken": 0, "waiting": 0})

    def test_a_worker_takes_its_rest_whoever_has_the_turn(self) -> None:
        turns = Turns(1)
        other = turn_of(turns)
        assert other.take(0)
        tray = Tray(Still(Sink()), None, turns)
        tray.put((1, [b"a", b"b"]))
        assert tray.take(1, 0) == [], "it waits for nothing"
        assert tray.rest() == [(1, [b"a", b"b"])]
        tray.put((3, [b"c"]))
        other.give()
        assert tray.take(1, WAIT_S) == [(3, [b"c"])]
        assert turns.taken == 1
        tray.end()
        assert turns.taken == 0

    def test_a_thread_that_is_given_up_has_no_turn(self, memory_url: str, new_app: MakeApp, gate: Gate) -> None:
        app = new_app(memory_url, consumer={"max_running": 1})
        running = Running()
        app.queue("stuck", bytes).handler(timeout_s=0.1)(gate)
        app.queue("other", bytes).handler(running.handler("other"))
        app.queue("stuck").publish(b"x")
        app.start()
        gate.wait_entered()
        app.queue("other").publish(b"x")
        eventually(lambda: running.handled == 1)
        eventually(lambda: app.queue("stuck").sideline.pending() == 1)

    def test_a_stop_does_not_wait_for_turns(self, store_url: str, new_app: MakeApp, gate: Gate) -> None:
        app = new_app(store_url, consumer={"max_running": 1, "stop_timeout_s": WAIT_S})
        app.queue("slow", bytes).handler(gate)
        app.queue("slow").publish(b"x")
        running = Running()
        for number in range(5):
            app.queue(f"q{number}", bytes).handler(concurrency=2)(running.handler("q"))
            app.queue(f"q{number}").publish_many([b"x"] * 10)
        app.start()
        gate.wait_entered()
        stopping = threading.Thread(target=app.stop, daemon=True)
        stopping.start()
        gate.open.set()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        assert sum(app.queue(f"q{number}").main.pending() for number in range(5)) + running.handled == 50

    def test_pause_resume_and_resize_in_line(self, memory_url: str, new_app: MakeApp, gate: Gate) -> None:
        app = new_app(memory_url, consumer={"max_running": 1})
        running = Running()
        app.queue("slow", bytes).handler(gate)
        queue = app.queue("other", bytes)
        queue.handler(concurrency=2)(running.handler("other"))
        app.queue("slow").publish(b"x")
        app.start()
        gate.wait_entered()
        queue.publish_many([b"x"] * 10)
        queue.pause()
        gate.open.set()
        eventually(lambda: queue.consumer.quiet)
        assert running.handled == 0
        queue.consumer.resize(3)
        queue.resume()
        eventually(lambda: running.handled == 10)
        assert running.most == 1

    def test_a_handler_that_is_not_bounded_is_said(
        self, memory_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = new_app(memory_url, consumer={"max_running": 2})
        running = Running()
        for name in ("first", "second"):
            app.queue(name, bytes).handler(running.coroutine(name))
        app.start()
        told = [record.getMessage() for record in caplog.records if "max_running" in record.getMessage()]
        assert len(told) == 1
        assert "consumer.max_running = 2 does not bound handler" in told[0] and "of first" in told[0]

    def test_without_a_limit_nothing_is_said(self, memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
        memory_app.queue("first", bytes).handler(Running().coroutine("first"))
        memory_app.start()
        assert "max_running" not in caplog.text
        assert "turns" not in memory_app.stats()

    @pytest.mark.parametrize("value", [-1, 10_001, "many"])
    def test_a_limit_that_is_none(self, value: object, memory_url: str, new_app: MakeApp) -> None:
        with pytest.raises(ConfigError, match=r"max_running"):
            new_app(memory_url, consumer={"max_running": value})
