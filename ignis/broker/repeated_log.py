"""Log lines that clients can cause as often as they like: one a second at most, and the others counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["RepeatedLog"]

_AGAIN_S = 1.0


class RepeatedLog:
    """Of one kind of line. Thread-safe.

    Args:
        logger, level: where it goes.
        clock: seconds; injectable for tests.
    """

    def __init__(self, logger: logging.Logger, level: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._level = level
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s = float("-inf")
        self._unsaid = 0

    def __call__(self, text: str, *args: object) -> None:
        """Logs the line, with the number of those left out before it; or counts it."""
        with self._lock:
            now_s = self._clock()
            if now_s < self._next_s:
                self._unsaid += 1
                return
            self._next_s = now_s + _AGAIN_S
            unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            text, args = text + " (%d more like this were not logged)", (*args, unsaid)
        self._logger.log(self._level, text, *args)
