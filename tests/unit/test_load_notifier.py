"""The thread that waits for loads, beside an event loop that sees its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ignis.broker.server import load_notifier
from ignis.broker.server.load_notifier import LoadNotifier, Watch, Watches

SLICE_S = load_notifier._SLICE_S


class Sequence:
    """A store of which nothing is known but how often something was loaded."""

    quick = True

    def __init__(self) -> None:
        self.number = 1
        self.during: Callable[[], None] = lambda: None

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        if timeout_s > 0:
            self.during()
        return self.number

    def load(self) -> None:
        self.number += 1


class Loop:
    def __init__(self) -> None:
        self.called: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        self.called.append((call, arguments))

    def run(self) -> None:
        called, self.called = self.called, []
        for call, arguments in called:
            call(*arguments)


class Bench:
    """One watch without its thread: the test is both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.loop, self.told = Sequence(), Loop(), 0
        loop: Any = self.loop
        store: Any = self.store
        monkeypatch.setattr(load_notifier, "start_thread", lambda thread: None)
        self.watch: Watch = Watches(loop, LoadNotifier(4), store).watch("q", "somebody")
        self.watch.changed = self.count
        self.watch.ensure()
        assert self.watch.once(SLICE_S)  # what was there before
        self.loop.run()
        self.told = 0

    def count(self) -> None:
        self.told += 1

    def once(self) -> int:
        """How often the loop was told by one turn of the thread."""
        assert self.watch.once(SLICE_S)
        self.loop.run()
        told, self.told = self.told, 0
        return told


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_what_others_load_is_told(bench: Bench) -> None:
    bench.store.load()
    assert bench.once() == 1
    assert bench.once() == 0


def test_what_the_loop_has_seen_is_not_told(bench: Bench) -> None:
    for _ in range(3):
        bench.store.load()
        bench.watch.look()
        assert bench.once() == 0


def test_what_comes_behind_the_loops_look_is_told(bench: Bench) -> None:
    bench.store.load()
    bench.watch.look()
    bench.store.during = bench.store.load
    assert bench.once() == 1


def test_a_load_that_the_loop_is_about_to_see_is_not_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sleeps in the store is woken before the loop comes to look."""
    bench.watch.loads()
    bench.store.load()
    monkeypatch.setattr(load_notifier.time, "sleep", lambda _: bench.watch.look())
    assert bench.once() == 0


def test_who_is_not_needed_stays_for_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_notifier, "_LINGER_S", 0.01)
    bench.watch.changed = None
    assert not bench.watch.once(SLICE_S)
    bench.watch.changed = bench.count
    assert bench.watch.once(SLICE_S)
    bench.watch.changed = None
    monkeypatch.setattr(load_notifier.time, "sleep", lambda _: bench.watch.ensure())  # somebody wants to know again
    assert bench.watch.once(SLICE_S)


def test_one_with_others_to_look_after_does_not_stay(bench: Bench) -> None:
    bench.watch.changed = None
    assert not bench.watch.once(0.0)


def test_a_closed_application_has_no_threads(bench: Bench) -> None:
    bench.watch._watches.closed = True
    assert not bench.watch.once(SLICE_S)


def test_it_runs_in_a_real_loop() -> None:
    """All together: a load by another is told, and the thread ends when nobody wants to know."""

    async def run() -> None:
        store: Any = Sequence()
        told = asyncio.Event()
        notifier = LoadNotifier(1)
        watches = Watches(asyncio.get_running_loop(), notifier, store)
        watch = watches.watch("q", "somebody")
        watch.changed = told.set
        watch.ensure()
        await asyncio.wait_for(told.wait(), 10)
        assert notifier.threads == 1
        watches.closed = True
        for _ in range(1_000):
            if not notifier.threads:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("its thread goes on")

    asyncio.run(run())
