"""Who waits for a magazine to be loaded: deliveries, and clients' WAITs. One thread per magazine that somebody waits
for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ignis.errors import ClosedError, IgnisError

if TYPE_CHECKING:
    from ignis.broker.application import Application

__all__ = ["Watch"]

log = logging.getLogger("ignis.broker")

_SLICE_S = 1.0


class _Waiter:
    __slots__ = ("call", "seen", "timer")

    def __init__(self, seen: int, call: Callable[[int], None]) -> None:
        self.seen = seen
        self.call = call
        self.timer: asyncio.TimerHandle | None = None


class Watch:
    """Of one magazine. All methods belong to the event loop; the thread is started when needed and ends a second
    after the last one lost interest."""

    def __init__(self, application: Application, magazine: str) -> None:
        self.magazine = magazine
        self.changed: Callable[[], None] | None = None
        """Called on the event loop after every load, while set."""
        self._application = application
        self._loop = application.broker.loop
        self._waiters: set[_Waiter] = set()
        self._sequence: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def wanted(self) -> bool:
        return self.changed is not None or bool(self._waiters)

    @property
    def stopped(self) -> bool:
        return self._thread is None

    def ensure(self) -> None:
        """Starts the thread if there is none."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"ignis-broker-watch-{self.magazine}", daemon=True)
            self._thread.start()

    def wait(self, seen: int, timeout_s: float, call: Callable[[int], None]) -> Callable[[], None]:
        """Calls back once with the sequence number: when it differs from ``seen``, or after the timeout, with ``seen``.
        Returns what takes the wish back."""
        waiter = _Waiter(seen, call)
        self._waiters.add(waiter)
        waiter.timer = self._loop.call_later(timeout_s, self._answer, waiter, seen)
        self.ensure()
        if self._sequence is not None and self._sequence > seen:
            self._answer(waiter, self._sequence)
        return lambda: self._drop(waiter)

    def _drop(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if waiter.timer is not None:
                waiter.timer.cancel()

    def _answer(self, waiter: _Waiter, sequence: int) -> None:
        if waiter in self._waiters:
            self._drop(waiter)
            waiter.call(sequence)

    def _moved(self, sequence: int) -> None:
        self._sequence = sequence
        for waiter in [one for one in self._waiters if one.seen != sequence]:
            self._answer(waiter, sequence)
        if self.changed is not None:
            self.changed()

    def _ended(self) -> None:
        self._thread = None
        self._sequence = None
        if self.wanted and not self._application.closed:
            self.ensure()

    def _run(self) -> None:
        magazines = self._application.store.magazines
        seen = -1
        try:
            while self.wanted and not self._application.closed:
                try:
                    sequence = magazines.wait(self.magazine, seen, _SLICE_S if seen >= 0 else 0)
                except ClosedError:
                    return
                except IgnisError as exc:
                    log.warning("waiting for messages of %s failed, trying again: %s", self.magazine, exc)
                    time.sleep(_SLICE_S)
                    continue
                if sequence != seen:
                    seen = sequence
                    self._loop.call_soon_threadsafe(self._moved, sequence)
        except RuntimeError:
            return  # the loop was closed meanwhile
        finally:
            if not self._loop.is_closed():
                try:
                    self._loop.call_soon_threadsafe(self._ended)
                except RuntimeError:
                    log.debug("the event loop closed before the watch on %s", self.magazine)
