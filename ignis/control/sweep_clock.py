"""Whether the age of a claim can be told: not for a while after the machine's clock was set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["ClockGuard"]

MOST_DRIFT_S = 30.0
"""What the two clocks may come apart by unnoticed: more than ever happens without a jump, far less than 300 s, the
shortest time after which a claim is taken for abandoned."""


class ClockGuard:
    """Compares the clock that claims are stamped with to one that nobody can set. Thread-safe.

    A claim made before the clock was put forward looks older than it is. It can be judged again once everything claimed
    before the jump is older than the limit by any clock. The time that a machine sleeps counts as a jump: its workers
    slept as well.

    Args:
        wall: seconds since 1970, as set.
        monotonic: seconds that only go forward.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._offset_s = wall() - monotonic()
        self._jumped_at_s: float | None = None
        self.jumped_s = 0.0
        """The last jump, in seconds; above 0 = forward."""
        self.jumps = 0

    def look(self) -> None:
        """To be called before claims are judged."""
        with self._lock:
            monotonic_s = self._monotonic()
            offset_s = self._wall() - monotonic_s
            by_s = offset_s - self._offset_s
            if abs(by_s) > MOST_DRIFT_S:
                self._jumped_at_s, self.jumped_s = monotonic_s, by_s
                self.jumps += 1
                self._offset_s = offset_s
            else:
                # Slow drift, as of a clock that is being corrected, is followed.
                self._offset_s += by_s

    def trusted(self, limit_s: float) -> bool:
        """Whether a claim's age can be compared with a limit in seconds."""
        with self._lock:
            return self._jumped_at_s is None or self._monotonic() - self._jumped_at_s >= limit_s
