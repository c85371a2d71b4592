"""What is to be done later: one thread for all of it, which does nothing itself."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Callable

from ignis.clock import Clock
from ignis.process_hooks import FORKS
from ignis.upkeep.threads import shared_threads

__all__ = ["Timer", "Timers", "run_soon", "timers_of"]

_RETRY_S = 0.1
"""After so long a call is tried again for which no thread could be started."""


class Timer:
    """One call that is to be made."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """It is not made, unless it has begun. Idempotent."""
        self.call = None


class Timers:
    """Makes calls when their time has come, each in a shared thread. Thread-safe.

    Args:
        clock: by which time passes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._sooner = threading.Event()
        self._runs = False

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Makes the call once so much time has passed. Raises RuntimeError when the thread for it cannot be started."""
        timer = Timer(call)
        due_s = self._clock.monotonic_s() + max(0.0, delay_s)
        with self._lock:
            first = not self._heap or due_s < self._heap[0][0]
            heapq.heappush(self._heap, (due_s, next(self._numbers), timer))
            if not self._runs:
                self._runs = True
                try:
                    threading.Thread(target=self._run, name="ignis-timers", daemon=True).start()
                except BaseException:
                    self._runs = False
                    timer.cancel()
                    raise
        if first:
            self._sooner.set()
        return timer

    def _run(self) -> None:
        while True:
            with self._lock:
                self._sooner.clear()
                due, wait_s = self._due()
                if wait_s is None and not due and self._clock.by_hand:
                    self._runs = False  # the clock of one test: nobody else will come
                    return
            for timer in due:
                self._make(timer)
            if not due:
                self._clock.wait(self._sooner, wait_s)

    def _due(self) -> tuple[list[Timer], float | None]:
        """(what is due, how long until the next; None = nothing)."""
        heap, now_s, due = self._heap, self._clock.monotonic_s(), []
        while heap and (heap[0][0] <= now_s or heap[0][2].call is None):
            due.append(heapq.heappop(heap)[2])
        return due, heap[0][0] - now_s if heap else None

    def _make(self, timer: Timer) -> None:
        call = timer.call
        if call is None:
            return
        try:
            shared_threads().submit(call)
        except (RuntimeError, MemoryError):
            with self._lock:
                heapq.heappush(self._heap, (self._clock.monotonic_s() + _RETRY_S, next(self._numbers), timer))


class _Process:
    """The timers of one process."""

    def __init__(self) -> None:
        self.shared = Timers(Clock())
        self.by_hand: weakref.WeakKeyDictionary[Clock, Timers] = weakref.WeakKeyDictionary()
        self.making = threading.Lock()


_processes: dict[int, _Process] = {}
"""By the count of forks: the threads of a parent are not in its child."""


def timers_of(clock: Clock | None) -> Timers:
    """Those that go by this clock; the process's own for None and for every clock that is not moved by hand."""
    process = _processes.get(FORKS[0]) or _processes.setdefault(FORKS[0], _Process())
    if clock is None or not clock.by_hand:
        return process.shared
    with process.making:
        found = process.by_hand.get(clock)
        if found is None:
            found = process.by_hand[clock] = Timers(clock)
        return found


def run_soon(call: Callable[[], None]) -> None:
    """Runs it in a shared thread; where no thread is to be had at this moment, as soon as there is one."""
    try:
        shared_threads().submit(call)
    except RuntimeError:
        timers_of(None).after(_RETRY_S, call)
