"""The clock of a store on one machine: it tells the time of day, and nobody can set it while the machine runs.

The wall clock is read once, when the store is first opened in a boot of the machine. From then on time is what the wall
clock said then plus what a clock that only rises has counted since. So a step of the wall clock, by a person or by NTP,
neither ends a lock or a message early nor prolongs it.

Callers count in the wall clock's milliseconds: what comes in and goes out is moved by `StoreClock.ahead_ms`, so that an
age is the same by both.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from ignis.errors import ConfigError
from ignis.storage.checks import ttl_milliseconds

__all__ = ["StoreClock", "check_era", "machine_ms", "process_clock", "wall_ms"]

# Goes on while the machine sleeps, where the system has such a clock: what has an end runs out meanwhile.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_DRIFT_MS = 5
_MICROSECOND_S = 1e-6


def wall_ms() -> int:
    """Milliseconds since 1970 by the clock that can be set."""
    return time.time_ns() // 1_000_000


@functools.cache
def _namespace_ms() -> int:
    """How far this process's rising clock is ahead of the machine's. A container may have a time namespace, whose clock
    begins elsewhere; processes that share a store must count alike."""
    try:
        if os.stat("/proc/self/ns/time").st_ino != os.stat("/proc/self/ns/time_for_children").st_ino:
            return 0  # the offsets that the system shows are those of this process's children
        lines = Path("/proc/self/timens_offsets").read_text("ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        name, seconds, nanoseconds = line.split()
        if name == "boottime":
            return int(seconds) * 1000 + int(nanoseconds) // 1_000_000
    return 0


def machine_ms() -> int:
    """Milliseconds since the machine was started, by a clock that only rises: the same for all its processes."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000 - _namespace_ms()


def check_era(now_ms: int) -> int:
    """Returns the time. Raises ConfigError for one before 1970: no store has room for it."""
    if now_ms <= 0:
        raise ConfigError(f"the machine's clock stands before 1970 ({now_ms} ms); set it, then open the store again")
    return now_ms


class StoreClock:
    """Milliseconds since 1970 that only rise. Thread-safe; good after ``fork`` too.

    Args:
        offset_ms: what the time was when the rising clock stood at 0.
        rising_ms, wall_ms: the two clocks; injectable for tests.
    """

    __slots__ = ("_ahead_ms", "_of_machine_ms", "_rising_ms", "_wall_ms", "offset_ms")

    def __init__(
        self,
        offset_ms: int,
        rising_ms: Callable[[], int] = machine_ms,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.offset_ms = offset_ms
        self._rising_ms = rising_ms
        self._of_machine_ms = offset_ms - _namespace_ms() if rising_ms is machine_ms else None
        self._wall_ms = wall_ms
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """The time now."""
        if self._of_machine_ms is not None:  # `machine_ms`, which every claim would call otherwise
            return time.clock_gettime_ns(_CLOCK) // 1_000_000 + self._of_machine_ms
        return self.offset_ms + self._rising_ms()

    def now_s(self) -> float:
        """The time now, in seconds and more exactly: for who reckons with it."""
        if self._of_machine_ms is not None:
            return time.clock_gettime_ns(_CLOCK) / 1e9 + self._of_machine_ms / 1000
        return self.now_ms() / 1000

    @property
    def of_boottime_ms(self) -> int | None:
        """What is added to the system's clock that only rises to get the time, for native code that reads that clock itself; None
        where the time comes from somewhere else."""
        return self._of_machine_ms

    def until_s(self, at_ms: int) -> float:
        """In how many seconds it is that time, to the microsecond: who sleeps so long does not sleep to the end of that
        millisecond. 0.0 when it is over."""
        return 0.0 if at_ms <= self.now_ms() else max(_MICROSECOND_S, at_ms / 1000 - self.now_s())

    def rising_ms(self) -> int:
        """Milliseconds since the machine was started."""
        return self._rising_ms()

    def expiry_ms(self, ttl_s: float | None) -> int:
        """When what is stored now ends; 0 = never. Raises ConfigError for a time to live that is not above 0, and where the
        clock stood before 1970."""
        if ttl_s is None:
            return 0
        ends_ms = self.now_ms() + ttl_milliseconds(ttl_s)
        return ends_ms if ends_ms > 0 else check_era(ends_ms)

    def ahead_ms(self) -> int:
        """How far it is ahead of the wall clock, which callers count in: to be added to what comes in and taken from what
        goes out, so that ages stay the same. What the two drift apart by, a few milliseconds, is left alone."""
        ahead_ms = self.now_ms() - self._wall_ms()
        if abs(ahead_ms - self._ahead_ms) > _DRIFT_MS:
            self._ahead_ms = ahead_ms
        return self._ahead_ms


@functools.cache
def process_clock() -> StoreClock:
    """The clock of the stores that live in this process's memory."""
    return StoreClock(wall_ms() - machine_ms())
