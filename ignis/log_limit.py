"""How often the same thing is said in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["PERIOD_S", "LimitedLog", "LogLimit"]

PERIOD_S = 10.0
_MOST_KEYS = 1_024


class LogLimit:
    """Says what may be logged now. Thread-safe.

    Args:
        period_s: how long a key is quiet after it was logged.
        clock: seconds that only rise; injectable for tests.
    """

    def __init__(self, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: OrderedDict[str, list[float]] = OrderedDict()  # when it was logged, how many were left out since

    def due(self, key: str, count: int = 1) -> int:
        """How many to speak of now, those that were left out before included; 0 = nothing for now."""
        now = self._clock()
        with self._lock:
            known = self._keys.get(key)
            if known is None:
                self._keys[key] = [now, 0]
                if len(self._keys) > _MOST_KEYS:
                    self._keys.popitem(last=False)
                return count
            if now - known[0] < self._period_s:
                known[1] += count
                return 0
            left_out, known[0], known[1] = known[1], now, 0
            self._keys.move_to_end(key)
            return count + int(left_out)


class LimitedLog:
    """Lines that are said again as long as the same trouble lasts: the first at once, then at most one in a period, with how many
    were left out. A line is the same when its text before the arguments is, and what it is ``about``. Thread-safe.

    Args:
        logger: where they go.
        period_s, clock: as for `LogLimit`.
    """

    def __init__(
        self, logger: logging.Logger, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._limit = LogLimit(period_s, clock)

    def warning(self, text: str, *args: object, about: str = "") -> None:
        self._log(logging.WARNING, text, args, about, None)

    def error(self, text: str, *args: object, about: str = "", exc_info: BaseException | None = None) -> None:
        self._log(logging.ERROR, text, args, about, exc_info)

    def _log(self, level: int, text: str, args: tuple[object, ...], about: str, exc_info: BaseException | None) -> None:
        count = self._limit.due(f"{about}\0{text}")
        if count > 1:
            text, args = text + " (%d more like this were not logged)", (*args, count - 1)
        if count:
            self._logger.log(level, text, *args, exc_info=exc_info)
