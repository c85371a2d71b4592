"""Who waits for loads, so that a close can wake them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ignis.native.store import Log

__all__ = ["Waits"]


class Waits:
    """The magazines that threads of this store wait on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[Log, int], int] = {}

    @contextmanager
    def on(self, log: Log, number: int) -> Iterator[None]:
        """Somebody waits on that magazine during the block."""
        key = log, number
        with self._lock:
            self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key]

    def wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for log, number in waiting:
            log.wake(number)
