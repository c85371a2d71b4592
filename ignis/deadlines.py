"""Until when a message is worth handling: deadlines as users give them.

A deadline stands in the message's envelope, and whoever is about to call a handler looks at it. Where the queue drops what has
expired the store is told as well: it retires the message by itself, whoever claims. A message without one pays for nothing.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, NamedTuple

from ignis.config import shown, unlimited_duration_s
from ignis.errors import ConfigError
from ignis.storage.base import QueueRecord, Store
from ignis.storage.checks import MAX_TTL_S, MAX_TTL_SAID

__all__ = [
    "DROP",
    "LEAST_TTL_S",
    "ON_EXPIRY",
    "SIDELINE",
    "Deadline",
    "check_deadline",
    "deadline_ms",
    "deadline_of",
    "note_on_expiry",
    "on_expiry_of",
]

DROP, SIDELINE = "drop", "sideline"
ON_EXPIRY = "on_expiry"
"""Where the stored queue keeps in its ``extra`` where expired messages go; absent: they are dropped."""
LEAST_TTL_S = 0.001
"""What the store is told of a deadline that is over."""


class Deadline(NamedTuple):
    """``at_ms``: for the envelope, milliseconds since 1970 by the wall clock. ``ttl_s``: for the store, from now on; None where
    the store is to keep what has expired."""

    at_ms: int
    ttl_s: float | None

    def ttl_within(self, ttl_s: float | None) -> float | None:
        """The time to live for the store, where messages have this one without a deadline; None = for ever."""
        return ttl_s if self.ttl_s is None else self.ttl_s if ttl_s is None else min(ttl_s, self.ttl_s)


def check_deadline(deadline: Any) -> int | None:
    """What the envelope is told of it, where there is one. Raises ConfigError for what `deadline_of` has not made."""
    if deadline is None:
        return None
    if isinstance(deadline, Deadline):
        at_ms, ttl_s = deadline
        if type(at_ms) is int and 0 < at_ms < 1 << 53 and (ttl_s is None or type(ttl_s) in (int, float)):
            return at_ms
    raise ConfigError(f"deadline = {shown(deadline)} is none: give expires_in or expires_at to the queue's publish")


def deadline_of(store: Store, expires_in: Any, expires_at: Any, on_expiry: str) -> Deadline | None:
    """None where neither is given. A time that is over is no error: the message expires at once.

    Raises ConfigError: both are given, a time has no time zone, it is not above 0 or over 100 years from now.
    """
    if expires_in is None and expires_at is None:
        return None
    now_s = store.wall_s()
    left_s = _left_s(now_s, expires_in, expires_at)
    return Deadline(_at_ms(now_s + left_s), max(left_s, LEAST_TTL_S) if on_expiry == DROP else None)


def deadline_ms(wall_s: float, expires_in: Any, expires_at: Any) -> int | None:
    """The same for an envelope alone, milliseconds since 1970, where it is ``wall_s`` now."""
    if expires_in is None and expires_at is None:
        return None
    return _at_ms(wall_s + _left_s(wall_s, expires_in, expires_at))


def _at_ms(at_s: float) -> int:
    return max(1, math.floor(at_s * 1000))


def _left_s(now_s: float, expires_in: Any, expires_at: Any) -> float:
    if expires_in is not None and expires_at is not None:
        raise ConfigError("give expires_in or expires_at, not both")
    if expires_in is not None:
        left_s = unlimited_duration_s(expires_in, "expires_in")
        if not 0 < left_s <= MAX_TTL_S:
            raise ConfigError(f"expires_in = {shown(expires_in)} is not above 0 and at most {MAX_TTL_SAID}")
    else:
        left_s = _moment_s(expires_at) - now_s
        if left_s > MAX_TTL_S:
            raise ConfigError(f"expires_at = {shown(expires_at)} is more than {MAX_TTL_SAID} away")
    return left_s


def _moment_s(at: Any) -> float:
    if not isinstance(at, datetime):
        raise ConfigError(f"expires_at = {shown(at)} is not a datetime")
    if at.utcoffset() is None:
        raise ConfigError(
            f"expires_at = {shown(at)} has no time zone, so nobody can tell when it is: give one, as in "
            "datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    return at.timestamp()


def on_expiry_of(record: QueueRecord) -> str:
    """What the stored queue does with what has expired."""
    return SIDELINE if record.extra.get(ON_EXPIRY) == SIDELINE else DROP


def note_on_expiry(record: QueueRecord, on_expiry: str) -> None:
    """Writes it into the queue's record."""
    if on_expiry == DROP:
        record.extra.pop(ON_EXPIRY, None)
    else:
        record.extra[ON_EXPIRY] = on_expiry
