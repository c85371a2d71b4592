"""What is to be done later: one thread for all of it, which does nothing itself."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable

from ignis.clock import Clock
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.process_hooks import FORKS
from ignis.stacks import start_thread
from ignis.upkeep.threads import shared_threads

__all__ = ["STALLED_S", "Timer", "Timers", "interpreter_wait_s", "run_soon", "timers_of", "upkeep_stalled"]

log = logging.getLogger("ignis.upkeep")

STALLED_S = 10.0
"""After so long without a thread for what is due the application is not ready any more."""

_LATE_WEIGHT = 0.2
"""Of the newest call, in how late calls have come."""
_LATE_AT_ALL_S = 0.001
"""A sleep that ends on time and its thread's way to the interpreter take less."""
_LATEST_S = 0.5
"""A call that came later counts as this late: the machine may have slept."""

_SAY_AGAIN_S = 60.0
_RETRY_S = 0.1
"""After so long a call is tried again for which no thread could be started."""


class Timer:
    """One call that is to be made."""

    __slots__ = ("call", "idle")

    def __init__(self, call: Callable[[], None], idle: Callable[[], bool] | None) -> None:
        self.call: Callable[[], None] | None = call
        self.idle = idle

    def cancel(self) -> None:
        """It is not made, unless it has begun. Idempotent."""
        self.call = None


_Entry = tuple[float, int, Timer]
"""When it is due, its number, and what it is."""


class Timers:
    """Makes calls when their time has come, each in a shared thread. Thread-safe.

    Its thread outlives whatever goes wrong in it: a call for which no thread could be started is tried again.

    Args:
        clock: by which time passes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heap: list[_Entry] = []
        self._numbers = itertools.count()
        self._sooner = threading.Event()
        self._runs = False
        self._short_since_s: float | None = None
        self._said_at_s = float("-inf")
        self.late_s = 0.0
        """How late its thread has come to what was due, of late."""

    @property
    def stalled(self) -> bool:
        """Whether for `STALLED_S` no thread could be started for what is due."""
        since_s = self._short_since_s
        return since_s is not None and time.monotonic() - since_s >= STALLED_S

    def begin(self) -> None:
        """Starts the thread, so that later calls need none. Raises RuntimeError when it cannot be started."""
        with self._lock:
            if self._runs:
                return
            self._runs = True
        try:
            start_thread(threading.Thread(target=self._run, name="ignis-timers", daemon=True))
        except BaseException:
            self._runs = False
            raise

    def after(self, delay_s: float, call: Callable[[], None], idle: Callable[[], bool] | None = None) -> Timer:
        """Makes the call once so much time has passed.

        Args:
            idle: asked then, in the thread of all timers, so it must be quick: true = there is nothing to do, and the call is not
                made. It saves a change of threads where a thousand queues have a timer each.

        Raises RuntimeError when the thread for it cannot be started."""
        timer = Timer(call, idle)
        due_s = self._clock.monotonic_s() + max(0.0, delay_s)
        with self._lock:
            first = not self._heap or due_s < self._heap[0][0]
            heapq.heappush(self._heap, (due_s, next(self._numbers), timer))
        if not self._runs:
            try:
                self.begin()
            except BaseException:
                timer.cancel()
                raise
        if first:
            self._sooner.set()
        return timer

    def _run(self) -> None:
        while True:
            try:
                if not self._round():
                    return
            except BaseException as exc:
                self._tell(exc)
                time.sleep(_RETRY_S)

    def _round(self) -> bool:
        """Makes the next call that is due, or waits for it; whether there is more to come."""
        with self._lock:
            heap, now_s = self._heap, self._clock.monotonic_s()
            entry, wait_s = None, None
            while heap and entry is None:
                if heap[0][2].call is None:
                    heapq.heappop(heap)
                elif heap[0][0] <= now_s:
                    entry = heapq.heappop(heap)
                else:
                    wait_s = heap[0][0] - now_s
                    break
            if entry is None:
                self._sooner.clear()  # what is added from here on sets it
                if wait_s is None and self._clock.by_hand:
                    self._runs = False  # the clock of one test: nobody else will come
                    return False
        if entry is None:
            self._clock.wait(self._sooner, wait_s)
        else:
            self.late_s += _LATE_WEIGHT * (min(now_s - entry[0], _LATEST_S) - self.late_s)
            self._make(entry)
        return True

    def _make(self, entry: _Entry) -> None:
        timer = entry[2]
        call, idle = timer.call, timer.idle
        if call is None:
            return
        try:
            if idle is not None and idle():
                return
        except BaseException as exc:  # the call is made, and finds out by itself
            self._tell(exc)
        try:
            shared_threads().submit(call)
            self._short_since_s = None
        except BaseException as exc:
            try:
                entry = (self._clock.monotonic_s() + _RETRY_S, next(self._numbers), timer)
            finally:  # where there is no memory for a later time, under its own
                with self._lock:
                    heapq.heappush(self._heap, entry)
            self._tell(exc)
            if isinstance(exc, MemoryError):
                time.sleep(_RETRY_S)

    def _tell(self, exc: BaseException) -> None:
        """What is due waits: since when, and once a minute in the log."""
        try:
            now_s = time.monotonic()
            if self._short_since_s is None:
                self._short_since_s = now_s
            if now_s - self._said_at_s >= _SAY_AGAIN_S:
                self._said_at_s = now_s
                log_safely(
                    log,
                    logging.ERROR,
                    event_text("upkeep_waits", "acknowledgements, renewals and timers wait for a thread: %s"),
                    exc,
                )
        except MemoryError:
            return


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


def interpreter_wait_s() -> float:
    """How long a thread of this process waits for the interpreter, about, at present; 0 where it does not to speak of.

    The thread of all timers tells, by how late it comes to what is due. It sleeps as handlers do that wait for a server, and
    knows when it was to wake."""
    process = _processes.get(FORKS[0])
    late_s = 0.0 if process is None else process.shared.late_s
    return late_s if late_s > _LATE_AT_ALL_S else 0.0


def run_soon(call: Callable[[], None]) -> None:
    """Runs it in a shared thread; where no thread is to be had at this moment, as soon as there is one.

    Raises RuntimeError when there is no thread of the timers either, and none can be started: then the call is not made."""
    try:
        shared_threads().submit(call)
    except (RuntimeError, MemoryError):
        timers_of(None).after(_RETRY_S, call)


def upkeep_stalled() -> bool:
    """Whether what this process is to do beside its calls has waited for long, for want of threads."""
    process = _processes.get(FORKS[0])
    return process is not None and process.shared.stalled
