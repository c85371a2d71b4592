"""The schedules of an application: declared, added, looked at, paused, resumed, run by hand, removed."""

from __future__ import annotations

import base64
import builtins
import datetime as dt
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ignis.clock import Clock
from ignis.config import check_name, check_queue_name, shown
from ignis.errors import (
    ConfigError,
    InvalidMessageError,
    MessageTooLargeError,
    PermissionDeniedError,
    PublishOnlyError,
    ScheduleNotFoundError,
)
from ignis.message import BodyCodec
from ignis.native import id_text, new_id
from ignis.schedules.due import MISSED
from ignis.schedules.fire import load_ticks
from ignis.schedules.stored import (
    MAX_BYTES,
    StoredSchedule,
    count_from,
    draw_incarnation,
    drop_schedule,
    read_schedules,
    schedule_figures,
    write_schedule,
)
from ignis.schedules.timing import Cron, cron_fields, every_ms
from ignis.storage.base import QueueRecord, Store

__all__ = ["Schedule", "Schedules", "encoded_message"]


@dataclass(frozen=True)
class Schedule:
    """A stored schedule as it is now.

    Attributes:
        name: of the schedule.
        queue: where its messages go.
        cron, timezone: when it ticks; "" = it goes by ``every_s``.
        every_s: seconds between ticks; None = it goes by ``cron``.
        missed: what becomes of ticks that nobody fired in time: ``skip``, ``once`` or ``all``.
        paused: whether it is.
        next_at: the tick that comes next; None = it is paused, or there is none within 50 years.
        last_at: the last tick that was fired; None = none was.
        last_lag_s: how late that one was fired.
        fired, missed_ticks: how many were fired since it was made, and how many left out because they were missed.
        message: the encoded body that it publishes.
        codec: by which the body is encoded.
    """

    name: str
    queue: str
    cron: str
    timezone: str
    every_s: float | None
    missed: str
    paused: bool
    next_at: dt.datetime | None
    last_at: dt.datetime | None
    last_lag_s: float | None
    fired: int
    missed_ticks: int
    message: bytes
    codec: str


@dataclass(frozen=True)
class _Asked:
    """What a schedule is to be."""

    name: str
    queue: str
    cron: str
    timezone: str
    every_ms: int
    missed: str
    message: Any

    def told(self, body: bytes) -> str:
        """The same text for the same wish."""
        parts = (self.queue, self.cron, self.timezone, str(self.every_ms), self.missed, body.hex())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class Schedules:
    """The schedules of one application: what is published by the clock. Thread-safe.

    They are ``app.schedules``; `declare` is ``app.schedule``.

    Args:
        store: gives the application's store; opens it on first use.
        codec: opens the queue of that name and gives its codec.
        clock: the time.
        changed: called after a schedule was stored or changed here.
        check_queue: raises where a declared schedule's queue is nobody's; is told the schedule's name and the queue's.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        codec: Callable[[str], BodyCodec[Any]],
        clock: Callable[[], Clock],
        changed: Callable[[], None],
        check_queue: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock
        self._changed = changed
        self._check_queue = check_queue
        self._lock = threading.Lock()
        self._declared: dict[str, _Asked] = {}

    # -- declared in code

    def declare(
        self, name: str, *, queue: str, message: Any, cron: str | None, every: Any, timezone: str | None, missed: str
    ) -> None:
        """What ``app.schedule`` was told; stored by `store_declared`. Raises ConfigError, InvalidNameError."""
        asked = _asked(name, queue, message, cron, every, timezone, missed)
        with self._lock:
            known = self._declared.get(asked.name)
            if known is not None and known != asked:
                raise ConfigError(f"schedule {asked.name!r} is declared twice in this application, and not alike")
            self._declared[asked.name] = asked

    def store_declared(self) -> None:
        """Stores what the code has declared, where that is new: see ``app.schedule``. Raises what `add` raises;
        QueueNotFoundError where a queue is neither declared nor in the store, with nothing stored."""
        with self._lock:
            declared = list(self._declared.values())
        for asked in declared:
            self._check_queue(asked.name, asked.queue)
        for asked in declared:
            self._put(asked, declared=True)

    # -- stored

    def add(
        self,
        name: str,
        *,
        queue: str,
        message: Any,
        cron: str | None = None,
        every: Any = None,
        timezone: str | None = None,
        missed: str = "once",
        sees: Callable[[str], bool] | None = None,
    ) -> Schedule:
        """Stores a schedule, or changes the one of that name; durable on return.

        Of a schedule that is there its figures stay, and whether it is paused. Where its times change, they count from now.

        Args:
            name: ``[A-Za-z0-9._-]{1,128}``.
            queue: where the messages go; made when it does not exist.
            message: of the queue's type; encoded now, so that who fires it needs no class for it.
            cron: five fields: minute, hour, day of the month, month, day of the week; or ``@daily`` and the like. Needs the
                extra ``schedules``.
            every: seconds, or a duration such as ``"5m"``; at least 0.1 s. Give ``cron`` or ``every``.
            timezone: of ``cron``; None = UTC.
            missed: ``skip``, ``once`` or ``all``: what becomes of ticks that nobody fired in time.
            sees: as for `get`.

        Raises:
            ConfigError, InvalidNameError, InvalidMessageError, MessageTooLargeError: nothing was stored. ConfigError also
            when a schedule of that name stands at another queue, and not at this one.
        """
        stored = self._put(_asked(name, queue, message, cron, every, timezone, missed), sees=sees)
        return _shown(name, queue, stored)

    def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        found = [
            _shown(name, record.name, one)
            for record in self._store().queues.list()
            for name, one in read_schedules(record).items()
        ]
        return sorted(found, key=lambda one: (one.name, one.queue))

    def figures(self) -> builtins.list[dict[str, Any]]:
        """Of each schedule how often it was fired, what it missed and how late it was; none where that may not be seen from
        here."""
        try:
            return [one for record in self._store().queues.list() for one in schedule_figures(record)]
        except (PermissionDeniedError, PublishOnlyError):
            return []

    def get(self, name: str, *, queue: str | None = None, sees: Callable[[str], bool] | None = None) -> Schedule:
        """The schedule of that name.

        Args:
            name: of the schedule.
            queue: its queue. Without it the name alone says which; here and below.
            sees: whose queues count, where somebody may not know of all.

        Raises:
            ScheduleNotFoundError.
            ConfigError: several queues have one of that name, so name the queue. It names them.
        """
        record, one = self._find(name, queue, sees)
        return _shown(name, record.name, one)

    def pause(self, name: str, *, queue: str | None = None) -> Schedule:
        """No tick is fired until `resume`, and those of that time are not missed. What is published stays. Idempotent.

        Raises what `get` raises.
        """

        def change(one: StoredSchedule, now_ms: int) -> None:
            one.paused_at_ms = one.paused_at_ms or now_ms

        return self._change(name, queue, change)

    def resume(self, name: str, *, queue: str | None = None) -> Schedule:
        """Ticks are fired again, from now on. Idempotent. Raises what `get` raises."""

        def change(one: StoredSchedule, now_ms: int) -> None:
            if one.paused_at_ms:
                one.paused_at_ms = 0
                count_from(one, now_ms)

        return self._change(name, queue, change)

    def remove(self, name: str, *, queue: str | None = None) -> None:
        """Removes the schedule; what is published stays. Raises what `get` raises."""
        record, found = self._find(name, queue)

        def change(record: QueueRecord) -> None:
            one = read_schedules(record).get(name)
            if one is None or one.incarnation == found.incarnation:
                drop_schedule(record, name)

        self._store().queues.update(record.name, change)
        self._changed()

    def run(self, name: str, *, queue: str | None = None) -> str:
        """Publishes the schedule's message now, beside its ticks, paused or not; returns the message's id. Durable as the queue
        is. Raises what `get` and publishing raise."""
        record, one = self._find(name, queue)
        id = new_id()
        load_ticks(self._store().magazines, record, name, one, [self._now_ms()], ids=[id])
        return id_text(id)

    # -- one

    def _now_ms(self) -> int:
        return int(self._clock()() * 1000)

    def _find(
        self, name: str, queue: str | None, sees: Callable[[str], bool] | None = None
    ) -> tuple[QueueRecord, StoredSchedule]:
        """Raises ScheduleNotFoundError, and ConfigError where several queues have one of that name."""
        name = check_name(name, "schedule")
        wanted = None if queue is None else check_queue_name(queue)
        known: set[str] = set()
        found: list[tuple[QueueRecord, StoredSchedule]] = []
        for record in self._store().queues.list():
            if (wanted is not None and record.name != wanted) or (sees is not None and not sees(record.name)):
                continue
            of_queue = read_schedules(record)
            known.update(of_queue)
            if name in of_queue:
                found.append((record, of_queue[name]))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(sorted(record.name for record, _ in found)[:10])
            raise ConfigError(f"schedule {name!r} stands at {len(found)} queues: {names}; name the queue as well")
        where = "" if wanted is None else f" at queue {wanted!r}"
        raise ScheduleNotFoundError(
            f"schedule {name!r} does not exist{where}; there is {', '.join(sorted(known)[:10]) or 'none'}"
        )

    def _change(self, name: str, queue: str | None, change: Callable[[StoredSchedule, int], None]) -> Schedule:
        record, _ = self._find(name, queue)
        now_ms = self._now_ms()
        changed: list[StoredSchedule] = []

        def apply(record: QueueRecord) -> None:
            one = read_schedules(record).get(name)
            if one is None:
                raise ScheduleNotFoundError(f"schedule {name!r} was removed meanwhile")
            change(one, now_ms)
            write_schedule(record, name, one)
            changed[:] = [one]

        self._store().queues.update(record.name, apply)
        self._changed()
        return _shown(name, record.name, changed[0])

    def _put(self, asked: _Asked, declared: bool = False, sees: Callable[[str], bool] | None = None) -> StoredSchedule:
        codec = self._codec(asked.queue)
        body = encoded_message(asked.name, codec, asked.message)
        told = asked.told(body) if declared else ""
        queues, now_ms = self._store().queues, self._now_ms()
        record = queues.get(asked.queue)
        known = None if record is None else read_schedules(record).get(asked.name)
        if known is None:
            self._check_elsewhere(asked, sees)
        if declared and known is not None and known.declared == told:
            return known  # what was changed by hand since then stays until the code asks for something else
        made: list[StoredSchedule] = []

        def apply(record: QueueRecord) -> None:
            one = read_schedules(record).get(asked.name)
            if one is None:
                one = StoredSchedule(
                    incarnation=draw_incarnation(), missed=asked.missed, codec="", body="", done_ms=now_ms, created_at_ms=now_ms
                )  # fmt: skip
            if (one.cron, one.timezone, one.every_ms) != (asked.cron, asked.timezone, asked.every_ms):
                one.cron, one.timezone, one.every_ms = asked.cron, asked.timezone, asked.every_ms
                one.anchor_ms = now_ms
                count_from(one, now_ms)
            one.missed, one.codec, one.body = asked.missed, codec.name, base64.b64encode(body).decode()
            one.declared = told or one.declared
            write_schedule(record, asked.name, one)
            made[:] = [one]

        queues.update(asked.queue, apply)
        self._changed()
        return made[0]

    def _check_elsewhere(self, asked: _Asked, sees: Callable[[str], bool] | None) -> None:
        """Raises ConfigError where another queue has a schedule of that name."""
        try:
            at = self._find(asked.name, None, sees)[0].name
        except ScheduleNotFoundError:
            return
        raise ConfigError(f"schedule {asked.name!r} publishes to queue {at!r}, not {asked.queue!r}: remove it first")


def encoded_message(schedule: str, codec: BodyCodec[Any], message: Any) -> bytes:
    """The body that the schedule of that name publishes. Raises InvalidMessageError, MessageTooLargeError, which name it."""
    try:
        body = codec.encode_checked(message)
    except InvalidMessageError as exc:
        raise InvalidMessageError(f"schedule {schedule!r}: {exc}") from exc
    if len(body) > MAX_BYTES:
        raise MessageTooLargeError(len(body), MAX_BYTES, f"what schedule {schedule!r} may carry")
    return body


def _asked(
    name: str, queue: str, message: Any, cron: str | None, every: Any, timezone: str | None, missed: str
) -> _Asked:
    """Raises ConfigError, InvalidNameError."""
    name = check_name(name, "schedule")
    queue = check_queue_name(queue)
    if (cron is None) == (every is None):
        raise ConfigError(f"schedule {name!r} takes one of cron and every")
    if missed not in MISSED:
        raise ConfigError(f"missed = {shown(missed)} is not one of {', '.join(MISSED)}")
    if cron is not None:
        zone = "UTC" if timezone is None else timezone
        Cron(cron, zone)
        return _Asked(name, queue, cron_fields(cron), zone, 0, missed, message)
    if timezone is not None:
        raise ConfigError("timezone goes with cron: every so often is the same everywhere")
    return _Asked(name, queue, "", "UTC", every_ms(every), missed, message)


def _shown(name: str, queue: str, one: StoredSchedule) -> Schedule:
    next_ms: int | None = None
    if not one.paused_at_ms:
        try:
            next_ms = one.timing().next_ms(one.done_ms)
        except ConfigError:  # a package or a time zone that this machine has not
            next_ms = None
    return Schedule(
        name=name, queue=queue, cron=one.cron, timezone=one.timezone,
        every_s=one.every_ms / 1000 if one.every_ms else None, missed=one.missed, paused=bool(one.paused_at_ms),
        next_at=_moment(next_ms), last_at=_moment(one.last_tick_ms or None),
        last_lag_s=one.last_lag_ms / 1000 if one.last_tick_ms else None,
        fired=one.fired, missed_ticks=one.missed_ticks, message=one.message(), codec=one.codec,
    )  # fmt: skip


def _moment(at_ms: int | None) -> dt.datetime | None:
    return None if at_ms is None else dt.datetime.fromtimestamp(at_ms / 1000, dt.timezone.utc)
