"""The time by which an application acts: the machine's, or, in tests, one that is set by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """The machine's clock. Thread-safe.

    Args:
        wall: seconds since 1970, where they do not come from the system.
    """

    by_hand = False
    """Whether time passes only when somebody says so. Then the store has to go by this clock as well."""

    def __init__(self, wall: Callable[[], float] | None = None) -> None:
        self.now_s: Callable[[], float] = wall or time.time
        """Gives what the clock itself gives when it is called, for those who must not pay for a call more."""

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.now_s()

    def monotonic_s(self) -> float:
        """Seconds that only rise."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float | None) -> bool:
        """``event.wait``: until it is set (True) or so much time has passed (False)."""
        return event.wait(timeout_s)
