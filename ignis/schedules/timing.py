"""When the ticks of a schedule are: every so often, or as a cron expression says in a time zone. No I/O.

A tick is a moment in milliseconds since 1970. Whoever asks for the ticks between two moments gets the same ones, in any process
and however often.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ignis.config import check_text, parse_duration_s, shown
from ignis.errors import ConfigError

__all__ = [
    "LEAST_EVERY_S",
    "MOST_COUNTED",
    "MOST_EVERY_S",
    "Counted",
    "Cron",
    "Every",
    "Timing",
    "cron_fields",
    "every_ms",
    "known_cron",
]

LEAST_EVERY_S = 0.1
MOST_EVERY_S = 365 * 86_400
MOST_COUNTED = 1_000
"""So many ticks of a cron expression are looked at in one go: that takes up to 0.2 s, and other queues wait for it."""
_LEAST_REACH_MS = 366 * 86_400_000
"""Ticks of a cron expression are made up for a year at least: it may name one day of the year."""
_NEVER = "names no moment within 50 years"
_FIELDS = 5
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""What cron has words for, as its own manual writes them out."""
_EPOCH = dt.datetime.fromtimestamp(0, dt.timezone.utc).replace(tzinfo=None)
_SECOND = dt.timedelta(seconds=1)
_STEP_S = 12 * 3600
"""No zone shifts its clocks twice within this time, so its ends tell whether there was a shift."""


class Counted(NamedTuple):
    """Ticks that were counted and not listed. ``more``: there are further ones behind ``newest_ms``, not counted yet."""

    total: int
    newest_ms: int
    more: bool


class Timing(Protocol):
    """The ticks of one schedule."""

    period_s: float
    """A lower bound of the seconds between two ticks."""

    def ticks(self, after_ms: int, until_ms: int, most: int) -> list[int]:
        """The oldest ``most`` ticks after the first moment, up to and with the second."""

    def count(self, after_ms: int, until_ms: int) -> Counted:
        """How many there are in between, and the newest of them. Bounded in time: see `Counted`."""

    def next_ms(self, after_ms: int) -> int | None:
        """The first one after a moment; None = there is none within 50 years."""

    def reach_ms(self, count: int) -> int:
        """How far back the newest so many ticks are made up."""


class Every:
    """A tick every so many milliseconds, the first one period after the anchor.

    Args:
        anchor_ms: a moment since 1970.
        period_ms: above 0.
    """

    def __init__(self, anchor_ms: int, period_ms: int) -> None:
        self._anchor_ms = anchor_ms
        self._period_ms = period_ms
        self.period_s = period_ms / 1000

    def _number(self, at_ms: int) -> int:
        """Of the last tick that is not after the moment; 0 = none has been."""
        return max(0, (at_ms - self._anchor_ms) // self._period_ms)

    def _at(self, number: int) -> int:
        return self._anchor_ms + number * self._period_ms

    def ticks(self, after_ms: int, until_ms: int, most: int) -> list[int]:
        first = self._number(after_ms) + 1
        last = min(self._number(until_ms), first + most - 1)
        return [self._at(number) for number in range(first, last + 1)]

    def count(self, after_ms: int, until_ms: int) -> Counted:
        last = self._number(until_ms)
        return Counted(max(0, last - self._number(after_ms)), self._at(last), False)

    def next_ms(self, after_ms: int) -> int | None:
        return self._at(self._number(after_ms) + 1)

    def reach_ms(self, count: int) -> int:
        return count * self._period_ms


class Cron:
    """The ticks of a cron expression of five fields, as Debian's cron has them.

    Where the clocks go forward, what names a time of day that does not exist is due right behind the gap. Where they go back,
    what names a time of day is due at the first of the two. An expression whose minute or hour begins with ``*`` goes by real
    time: nothing in the gap, and both times in the hour that comes twice.

    Args:
        expression: minute, hour, day of the month, month, day of the week; or a word such as ``@daily``.
        timezone: of the IANA database, such as ``Europe/Berlin``.

    Raises ConfigError: it cannot be read, names no moment within 50 years, the zone is not known, or a package is missing.
    """

    period_s = 60.0

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self._expression = cron_fields(expression)
        self._zone = _zone(check_text(timezone, "timezone"))
        fields = self._expression.split()
        try:
            from cronsim import CronSim, CronSimError
        except ModuleNotFoundError as exc:
            raise ConfigError(
                f"cron needs a package ({exc.name} is missing): pip install 'ignis-mq[schedules]'"
            ) from exc
        self._simulate = CronSim
        self._found: tuple[int, int] | None = None
        """A moment, and the first tick behind it."""
        self._is_real_time = fields[0].startswith("*") or fields[1].startswith("*")
        try:
            found = self.next_ms(1_704_067_200_000)
        except CronSimError as exc:
            raise ConfigError(f"cron = {shown(expression)} cannot be read: {exc}") from None
        if found is None:
            raise ConfigError(f"cron = {shown(expression)} {_NEVER}")

    def _from(self, after_ms: int) -> Iterator[int]:
        """The ticks after a moment, each once."""
        last_ms = after_ms
        for at_s in self._by_real_time(after_ms // 1000) if self._is_real_time else self._by_name(after_ms // 1000):
            # Several times of day in the gap are one moment behind it, and one in the second of two hours is the first's.
            if at_s * 1000 > last_ms:
                last_ms = at_s * 1000
                yield last_ms

    def _by_name(self, after_s: int) -> Iterator[int]:
        for one in self._simulate(self._expression, dt.datetime.fromtimestamp(after_s, self._zone)):
            yield round(one.timestamp())

    def _by_real_time(self, after_s: int) -> Iterator[int]:
        """Between two shifts local time runs as real time does, so the library reckons without a zone from shift to shift: by
        itself it takes every shift for one of whole hours."""
        from_s: int | None = after_s + 1
        while from_s is not None:
            at_s, offset_s = from_s, self._offset_s(from_s)
            from_s = None
            for one in self._simulate(self._expression, _EPOCH + _SECOND * (at_s + offset_s - 1)):
                tick_s = (one - _EPOCH) // _SECOND - offset_s
                from_s = self._shift_s(at_s, tick_s, offset_s)
                if from_s is not None:
                    break
                yield tick_s
                at_s = tick_s

    def _offset_s(self, at_s: int) -> int:
        offset = dt.datetime.fromtimestamp(at_s, self._zone).utcoffset()
        assert offset is not None
        return offset // _SECOND

    def _shift_s(self, at_s: int, until_s: int, offset_s: int) -> int | None:
        """The first moment after the one and up to the other at which the offset is another than at the first; None = none is."""
        while at_s < until_s:
            next_s = min(at_s + _STEP_S, until_s)
            if self._offset_s(next_s) != offset_s:
                while next_s - at_s > 1:
                    middle_s = (at_s + next_s) // 2
                    if self._offset_s(middle_s) == offset_s:
                        at_s = middle_s
                    else:
                        next_s = middle_s
                return next_s
            at_s = next_s
        return None

    def ticks(self, after_ms: int, until_ms: int, most: int) -> list[int]:
        found: list[int] = []
        for at_ms in self._from(after_ms):
            if at_ms > until_ms or len(found) == most:
                break
            found.append(at_ms)
        return found

    def count(self, after_ms: int, until_ms: int) -> Counted:
        found = self.ticks(after_ms, until_ms, MOST_COUNTED + 1)
        more = len(found) > MOST_COUNTED
        counted = found[:MOST_COUNTED]
        return Counted(len(counted), counted[-1] if counted else 0, more)

    def next_ms(self, after_ms: int) -> int | None:
        # A rare moment takes up to 0.1 s to find, and is asked for at every look.
        if (known := self._found) is not None and known[0] <= after_ms < known[1]:
            return known[1]
        found = next(self._from(after_ms), None)
        if found is not None:
            self._found = (after_ms, found)
        return found

    def reach_ms(self, count: int) -> int:
        # Only a count of all would tell which are the newest so many. As many minutes hold no more of them, and may hold none of
        # an expression that is rare.
        return max(_LEAST_REACH_MS, count * 60_000)


def known_cron(expression: str, timezone: str) -> Cron:
    """A `Cron`, which is made once: so that what it has found is known at the next look. Raises what `Cron` raises."""
    made = _made(expression, timezone)
    if isinstance(made, str):
        raise ConfigError(made)
    return made


@functools.lru_cache(2_048)
def _made(expression: str, timezone: str) -> Cron | str:
    """What it is, or why it never ticks: that takes up to 0.1 s to find out, too."""
    try:
        return Cron(expression, timezone)
    except ConfigError as exc:
        if not str(exc).endswith(_NEVER):
            raise  # a package or a zone that is missing may be there at the next look
        return str(exc)


def cron_fields(expression: object) -> str:
    """The five fields of a cron expression, words such as ``@daily`` written out. Raises ConfigError."""
    fields = check_text(expression, "cron").split()
    if len(fields) == 1 and fields[0].startswith("@"):
        if (told := _SHORTHANDS.get(fields[0].lower())) is None:
            raise ConfigError(
                f"cron = {shown(expression)} is none of {', '.join(_SHORTHANDS)}; give five fields, or every='5m' for an interval"
            )
        return told
    if len(fields) != _FIELDS:
        raise ConfigError(
            f"cron = {shown(expression)} has {len(fields)} fields; it takes {_FIELDS}: minute, hour, day of the month, "
            "month, day of the week. For seconds give every"
        )
    return " ".join(fields)


def _zone(name: str) -> dt.tzinfo:
    """Raises ConfigError."""
    if name == "UTC":  # also where there is no database
        return dt.timezone.utc
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        try:
            zoneinfo.ZoneInfo("Europe/Berlin")
        except (zoneinfo.ZoneInfoNotFoundError, OSError):
            raise ConfigError("this machine has no time zones: pip install 'ignis-mq[schedules]'") from None
        raise ConfigError(f"timezone = {shown(name)} is not known; give one such as Europe/Berlin") from None


def every_ms(every: object) -> int:
    """A period in whole milliseconds, from what `parse_duration_s` takes. Raises ConfigError."""
    seconds = parse_duration_s(every, "every")
    if not (math.isfinite(seconds) and LEAST_EVERY_S <= seconds <= MOST_EVERY_S):
        raise ConfigError(f"every = {shown(every)} is outside {LEAST_EVERY_S:g} s to 365 days")
    return round(seconds * 1000)
