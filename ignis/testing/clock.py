"""A clock that stands still until it is moved."""

from __future__ import annotations

import datetime as dt
import threading
import time

from ignis.clock import Clock
from ignis.config import check_number, parse_duration_s, shown
from ignis.errors import ConfigError

__all__ = ["ManualClock"]

_LOOK_S = 0.02


class ManualClock(Clock):
    """A clock that stands still until a test moves it on. Thread-safe.

    It is given to ``Ignis("memory://", clock=...)``. By it go times to live, the age of claims, locks, schedules, the
    passes of shovel, sweeper and refresher, and the expiry of queues.

    >>> from ignis import Ignis
    >>> from ignis.testing import drain
    >>> clock = ManualClock()
    >>> with Ignis("memory://", clock=clock) as app:
    ...     codes = app.queue("codes", int, message_expiry="1h")
    ...     handler = codes.handler(print)
    ...     published = codes.publish(1234)
    ...     now_s = clock.advance("61m")
    ...     drain(codes)
    Drained(done=0, dropped=0, sidelined=0, retried=0)

    Not by it go what a handler may take (``timeout_s``), waits for locks, renewals of claims and the pace of a shovel: they
    are about the machine. Ids and the time at which a message was published are the machine's as well.

    Args:
        start: where it stands first: seconds since 1970, or a datetime with a time zone; None = now.

    Raises ConfigError.
    """

    by_hand = True

    def __init__(self, start: float | dt.datetime | None = None) -> None:
        super().__init__()
        if isinstance(start, dt.datetime):
            if start.tzinfo is None:
                raise ConfigError(f"start = {shown(start)} has no time zone")
            start = start.timestamp()
        self._start_s = time.time() if start is None else check_number(start, "start", above=True)
        self._passed_s = 0.0
        self._lock = threading.Lock()
        self.now_s = self.__call__

    def __call__(self) -> float:
        return self._start_s + self._passed_s

    def monotonic_s(self) -> float:
        """Seconds since it was made."""
        return self._passed_s

    def advance(self, seconds: float | str | dt.timedelta) -> float:
        """Moves it on by so much, 0 or more: seconds, text such as ``"20m"``, or a timedelta; returns seconds since 1970. Threads
        that wait for what is due now notice it within a few hundredths of a second. Raises ConfigError: it never goes back."""
        by_s = check_number(parse_duration_s(seconds, "seconds"), "seconds", 0)
        with self._lock:
            self._passed_s += by_s
            return self()

    def wait(self, event: threading.Event, timeout_s: float | None) -> bool:
        until_s = None if timeout_s is None else self._passed_s + timeout_s
        while not event.wait(_LOOK_S):
            if until_s is not None and self._passed_s >= until_s:
                return event.is_set()
        return True

    def __repr__(self) -> str:
        at = dt.datetime.fromtimestamp(self(), dt.timezone.utc)
        return f"<ManualClock {at:%Y-%m-%d %H:%M:%S} UTC, {self._passed_s:g} s after its start>"
