"""When a schedule of a whole fleet is due, by the last run that any of its processes has stored.

A process that begins to wait anew for as long as others have waited already never gets there where processes live for less.
"""

from __future__ import annotations

import random

__all__ = ["due_in_s"]

_JITTER = 0.1
_MOST_JITTER_S = 5.0


def due_in_s(wait_s: float, last_s: float | None, now_s: float) -> float:
    """Seconds until a first run is due, at most ``wait_s``. What is overdue comes in a moment, which is not the same for all
    that start at the same time.

    Args:
        wait_s: from one run to the next.
        last_s: seconds since 1970 of the last run by anybody; None = nobody knows.
        now_s: by the same clock.
    """
    if last_s is None or last_s > now_s:  # the clock was put back
        return wait_s
    left_s = wait_s - (now_s - last_s)
    return left_s if left_s > 0 else random.uniform(0, min(wait_s * _JITTER, _MOST_JITTER_S))
