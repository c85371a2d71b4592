"""The two threads of an opened directory: one keeps its logs small, one flushes those of durability ``interval``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ignis.errors import IgnisError, WaitTimeoutError
from ignis.log_format import event_text
from ignis.native.store import Interval
from ignis.stacks import start_thread
from ignis.upkeep import outlast

if TYPE_CHECKING:
    from ignis.native.store import Log

__all__ = ["IntervalFlusher", "Maintenance"]

log = logging.getLogger("ignis.storage")

_SHORTEST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_SAY_AGAIN_S = 60.0


class _Said:
    """At most once a minute: what cannot be done now is tried again soon."""

    def __init__(self) -> None:
        self._at = float("-inf")

    def say(self, what: str, exc: BaseException) -> None:
        now = time.monotonic()
        if now - self._at >= _SAY_AGAIN_S:
            self._at = now
            log.warning(event_text("maintenance_failed", "store: %s: %s"), what, exc)


class _Rounds:
    """A thread that does a piece of work again and again, with pauses."""

    def __init__(self, name: str) -> None:
        self._ending = threading.Event()
        self._woken = (
            threading.Lock()
        )  # free = it is to end; an Event's wait may leave a lock taken where there is no memory
        self._woken.acquire()
        self._at_work = threading.Lock()
        self._said = _Said()
        self._thread = threading.Thread(target=outlast, args=(log, self._run), name=name, daemon=True)
        start_thread(self._thread)

    def _run(self) -> None:
        pause_s = self._first_pause_s()
        while not self._woken.acquire(timeout=pause_s):
            # Not `with`: its end makes a tuple, and without memory for that the lock would stay taken for good.
            self._at_work.acquire()
            try:
                if self._ending.is_set():
                    return
                pause_s = self._round(pause_s)
            finally:
                self._at_work.release()

    def _first_pause_s(self) -> float:
        return _SHORTEST_PAUSE_S

    def _round(self, pause_s: float) -> float:
        raise NotImplementedError

    @contextmanager
    def resting(self, timeout_s: float) -> Iterator[None]:
        """Nothing is done during the block. Raises WaitTimeoutError."""
        if not self._at_work.acquire(timeout=timeout_s):
            raise WaitTimeoutError(f"store: {self._thread.name} does not come to rest within {timeout_s:g} s")
        try:
            yield
        finally:
            self._at_work.release()

    def close(self, timeout_s: float) -> None:
        """Idempotent. Raises WaitTimeoutError; may then be called again."""
        if not self._ending.is_set():
            self._ending.set()
            self._woken.release()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WaitTimeoutError(f"store: {self._thread.name} still runs after {timeout_s:g} s")


class Maintenance(_Rounds):
    """Checkpoints, compaction, removal of what nobody needs, and the next segment laid out ahead: of whatever logs there are."""

    def __init__(self, logs: Callable[[], list[Log]], look_round: Callable[[], None]) -> None:
        self._logs = logs
        self._look_round = look_round
        super().__init__("ignis-store-maintenance")

    def _round(self, pause_s: float) -> float:
        found_work = False
        for one in self._logs():
            try:
                found_work |= one.maintain()
            except (IgnisError, OSError, MemoryError) as exc:
                # The calls go on without it, and whoever runs out of room says so.
                self._said.say("maintenance", exc)
        self._look_round()
        return _SHORTEST_PAUSE_S if found_work else min(_LONGEST_PAUSE_S, 2 * pause_s)


class IntervalFlusher:
    """Flushes one log every ``every_ms``. A flush that failed is told to the next call that changes something.

    The thread is one of C's: a program that holds the interpreter lock in C would keep one of Python's from flushing in time.
    """

    _NAME = "ignis-store-interval"

    def __init__(self, of: Log, every_ms: int) -> None:
        self._said = _Said()
        self._seen = 0
        self.interval = Interval(of, every_ms)

    @property
    def untold(self) -> bool:
        """Whether `check` will raise."""
        return self.interval.untold

    def check(self) -> None:
        """Raises what the last flush that failed met, once."""
        failed = self.interval.take()
        if failed is not None:
            self.tell()
            try:
                raise failed
            finally:
                del failed  # with its traceback it would keep alive whoever called, and what they read into

    def tell(self) -> None:
        """Into the program's log: for the maintenance's rounds, as the thread itself has no Python."""
        failures = self.interval.failures
        if failures != self._seen:
            self._seen = failures
            failed = self.interval.failure()
            if failed is not None:
                self._said.say("interval", failed)

    @contextmanager
    def resting(self, timeout_s: float) -> Iterator[None]:
        """Nothing is flushed during the block. Raises WaitTimeoutError."""
        if not self.interval.rest(timeout_s):
            raise WaitTimeoutError(f"store: {self._NAME} does not come to rest within {timeout_s:g} s")
        try:
            yield
        finally:
            self.interval.go_on()

    def close(self, timeout_s: float) -> None:
        """Idempotent. Raises WaitTimeoutError; may then be called again."""
        if not self.interval.close(timeout_s):
            raise WaitTimeoutError(f"store: {self._NAME} still runs after {timeout_s:g} s")
        self.tell()
