"""What is stored of a schedule: in the record of its queue, beside what others keep there.

So a schedule is changed in one transaction with the check of the leader's epoch, on every store and through a broker, and goes
with its queue when that is removed.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from ignis.config import check_name, shown
from ignis.errors import ConfigError
from ignis.schedules.due import MISSED
from ignis.schedules.timing import LEAST_EVERY_S, MOST_EVERY_S, Every, Timing, known_cron
from ignis.storage.base import QueueRecord

__all__ = [
    "MAX_BYTES",
    "SCHEDULES",
    "StoredSchedule",
    "check_schedules",
    "count_from",
    "definitions",
    "draw_incarnation",
    "drop_schedule",
    "has_schedules",
    "read_schedules",
    "schedule_figures",
    "tick_id",
    "with_bodies_of",
    "without_bodies",
    "write_schedule",
]

SCHEDULES = "schedules"
"""Where the record's ``extra`` keeps them, by name. On Aerospike that is a bin of ours."""
MAX_BYTES = 24 << 10
"""Of all schedules of one queue, messages included: a broker takes both forms of a record, before and after, in one request."""


_LAST_MS = 32_503_680_000_000
"""The year 3000."""
_NUMBERS = (
    "done_ms", "created_at_ms", "anchor_ms", "paused_at_ms", "last_tick_ms", "last_lag_ms", "fired", "missed_ticks", "restarts",
)  # fmt: skip


_SKEW_MS = 5_000
"""By so much the clocks of two machines may differ: a last tick that is ahead by no more is right."""

_COURSE = ("done_ms", "paused_at_ms", "fired", "missed_ticks", "last_tick_ms", "last_lag_ms", "epoch", "restarts")
"""What changes while a schedule runs: who may work on its queue fires, pauses and resumes it."""


class StoredSchedule(msgspec.Struct, omit_defaults=True):
    """One schedule as it is stored.

    Attributes:
        incarnation: drawn when it is made; one that was removed and made again has another.
        cron, timezone: when it ticks; or
        every_ms, anchor_ms: when it ticks.
        missed: what becomes of ticks that nobody fired in time: ``skip``, ``once`` or ``all``.
        codec, body: the encoded message, in base64.
        done_ms: ticks up to here are fired or left out; only `count_from` takes it back.
        created_at_ms, paused_at_ms: when; 0 = it is not paused.
        declared: what the code asked for last; see `Schedules.declare`.
        fired, missed_ticks: how many were fired, and how many were left out because they were missed.
        last_tick_ms, last_lag_ms: the last that was fired, and how late.
        epoch: of the leader that fired last.
        restarts: how often it was told to count from a time before its last tick; see `count_from`.
    """

    incarnation: str
    missed: str
    codec: str
    body: str
    done_ms: int
    created_at_ms: int
    cron: str = ""
    timezone: str = "UTC"
    every_ms: int = 0
    anchor_ms: int = 0
    paused_at_ms: int = 0
    declared: str = ""
    fired: int = 0
    missed_ticks: int = 0
    last_tick_ms: int = 0
    last_lag_ms: int = 0
    epoch: int = 0
    restarts: int = 0

    @property
    def life(self) -> str:
        """What ids of ticks follow from: a schedule that comes to the same tick again in another one fires it again."""
        return f"{self.incarnation}.{self.restarts}" if self.restarts else self.incarnation

    def timing(self) -> Timing:
        """When it ticks. Raises ConfigError: a package is missing here, or the zone is not known here."""
        return known_cron(self.cron, self.timezone) if self.cron else Every(self.anchor_ms, self.every_ms)

    def message(self) -> bytes:
        """The encoded body."""
        return base64.b64decode(self.body)


def draw_incarnation() -> str:
    """Names one life of a schedule."""
    return secrets.token_hex(8)


def has_schedules(record: QueueRecord) -> bool:
    """Whether anything is scheduled for the queue."""
    return bool(record.extra.get(SCHEDULES))


def read_schedules(
    record: QueueRecord, damaged: Callable[[str, Exception], None] | None = None
) -> dict[str, StoredSchedule]:
    """The queue's schedules by name. One that is damaged is left out; ``damaged`` is told of it, and why."""
    rows = record.extra.get(SCHEDULES)
    if not rows or not isinstance(rows, dict):
        return {}
    found: dict[str, StoredSchedule] = {}
    for name, row in rows.items():
        try:
            found[check_name(name, "schedule")] = _checked(msgspec.convert(row, StoredSchedule))
        except (msgspec.MsgspecError, ConfigError, ValueError) as exc:
            if damaged is not None:
                damaged(str(name), exc)
    return found


def _checked(one: StoredSchedule) -> StoredSchedule:
    """Whoever may change the queue's record may have written anything there, and that must not stop the other schedules. Raises
    ValueError."""
    if bool(one.cron) == bool(one.every_ms):
        raise ValueError("it names neither or both of cron and every")
    if one.every_ms and not LEAST_EVERY_S * 1000 <= one.every_ms <= MOST_EVERY_S * 1000:
        raise ValueError(f"every_ms is {one.every_ms}")
    if one.missed not in MISSED:
        raise ValueError(f"missed is {one.missed[:32]!r}")
    if one.codec not in ("json", "msgpack", "raw"):
        raise ValueError(f"codec is {one.codec[:32]!r}")
    for name in _NUMBERS:
        if not 0 <= getattr(one, name) <= _LAST_MS:
            raise ValueError(f"{name} is out of bounds")
    base64.b64decode(one.body, validate=True)
    return one


def without_bodies(record: QueueRecord) -> QueueRecord:
    """The record for somebody who may not look at the queue's messages: what its schedules publish is left empty."""
    rows = record.extra.get(SCHEDULES)
    if not isinstance(rows, dict):
        return record
    hidden = {
        name: {**row, "body": ""} if isinstance(row, dict) and "body" in row else row for name, row in rows.items()
    }
    return dataclasses.replace(record, extra={**record.extra, SCHEDULES: hidden})


def with_bodies_of(record: QueueRecord, stored: QueueRecord) -> QueueRecord:
    """What `without_bodies` has left empty, as it is stored: an empty body of a schedule that has another one there."""
    rows, known = record.extra.get(SCHEDULES), stored.extra.get(SCHEDULES)
    if not isinstance(rows, dict) or not isinstance(known, dict):
        return record
    filled = {name: _filled(row, known.get(name)) for name, row in rows.items()}
    return dataclasses.replace(record, extra={**record.extra, SCHEDULES: filled})


def _filled(row: Any, stored: Any) -> Any:
    if not isinstance(row, dict) or not isinstance(stored, dict) or row.get("body") != "":
        return row
    return {**row, "body": stored.get("body", "")} if row.get("incarnation") == stored.get("incarnation") else row


def check_schedules(fresh: QueueRecord, known: QueueRecord | None) -> None:
    """For a record that others hand in: no schedule in it may be damaged that was not so before. Such a one is not fired, and
    cannot be found to remove it. Raises ConfigError."""
    rows, before = fresh.extra.get(SCHEDULES) or {}, (known.extra.get(SCHEDULES) if known is not None else None) or {}
    if _same(rows, before):
        return
    if not isinstance(rows, dict):
        raise ConfigError(f"the schedules of queue {fresh.name!r} are {shown(rows)}, not a table by name")

    def refuse(name: str, why: Exception) -> None:
        if not isinstance(before, dict) or name not in before or not _same(before[name], rows.get(name)):
            raise ConfigError(f"schedule {shown(name)} of queue {fresh.name!r} could not be fired: {why}")

    read_schedules(fresh, refuse)


def _same(one: Any, other: Any) -> bool:
    """As they are stored: 1, 1.0 and True are not."""
    return msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def definitions(record: QueueRecord) -> Any:
    """What the queue's schedules are, without how far they have come."""
    rows = record.extra.get(SCHEDULES) or {}
    if not isinstance(rows, dict):
        return rows
    return {
        name: {field: value for field, value in row.items() if field not in _COURSE} if isinstance(row, dict) else row
        for name, row in rows.items()
    }


def schedule_figures(record: QueueRecord) -> list[dict[str, Any]]:
    """The figures of the queue's schedules, for ``stats`` and metrics: the same from every instance."""
    return [
        {
            "schedule": name,
            "queue": record.name,
            "fired": one.fired,
            "missed": one.missed_ticks,
            "lag_s": one.last_lag_ms / 1000,
            "paused": bool(one.paused_at_ms),
        }
        for name, one in sorted(read_schedules(record).items())
    ]


def write_schedule(record: QueueRecord, name: str, one: StoredSchedule) -> None:
    """Into the record. Raises ConfigError when the queue's schedules are too large together."""
    rows = dict(record.extra.get(SCHEDULES) or {})
    rows[name] = msgspec.to_builtins(one)
    size = len(msgspec.msgpack.encode(rows))
    if size > MAX_BYTES:
        raise ConfigError(
            f"the schedules of queue {record.name!r} would take {size} bytes with their messages, at most {MAX_BYTES} are kept; "
            "let the message name what it is about"
        )
    record.extra[SCHEDULES] = rows


def drop_schedule(record: QueueRecord, name: str) -> None:
    """Out of the record. Idempotent."""
    rows = dict(record.extra.get(SCHEDULES) or {})
    rows.pop(name, None)
    if rows:
        record.extra[SCHEDULES] = rows
    else:
        record.extra.pop(SCHEDULES, None)


def count_from(one: StoredSchedule, now_ms: int) -> None:
    """Ticks up to now are done with, and no others are. Where a clock that ran ahead has fired some, they come again, under other
    ids. Where clocks differ by a little the last tick was right, and does not come again."""
    if one.done_ms > now_ms + _SKEW_MS:
        one.restarts += 1
        one.done_ms = now_ms
    else:
        one.done_ms = max(one.done_ms, now_ms)


def tick_id(name: str, life: str, tick_ms: int) -> bytes:
    """The id of a tick's message: the same for whoever fires the tick. It has the form of any id, a UUID that begins with a
    time."""
    told = hashlib.blake2b(f"{life}/{name}/{tick_ms}".encode(), digest_size=10).digest()
    made = bytearray(max(0, tick_ms).to_bytes(8, "big")[-6:] + told)
    made[6] = 0x70 | made[6] & 0x0F
    made[8] = 0x80 | made[8] & 0x3F
    return bytes(made)
