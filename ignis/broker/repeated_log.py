"""Log lines that clients can cause as often as they like: one a second at most, and the others counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ignis.log_limit import LogLimit

__all__ = ["RepeatedLog"]

_AGAIN_S = 1.0


class RepeatedLog:
    """Logs one kind of line at most once a second, and counts the others. Thread-safe.

    A kind is known by its text before the arguments.

    Args:
        logger, level: where it goes.
        clock: seconds; injectable for tests.
    """

    def __init__(self, logger: logging.Logger, level: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._level = level
        self._limit = LogLimit(_AGAIN_S, clock)

    def __call__(self, text: str, *args: object) -> None:
        """Logs the line, with the number of those left out before it; or counts it."""
        count = self._limit.due(text)
        if count > 1:
            text, args = text + " (%d more like this were not logged)", (*args, count - 1)
        if count:
            self._logger.log(self._level, text, *args)
