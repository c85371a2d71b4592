"""Loading the lines of a dump into a store: each id once where the store tells repeats, else at least once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ignis.config import check_queue_name, shown
from ignis.deadlines import DROP, LEAST_TTL_S, ON_EXPIRY, SIDELINE, note_on_expiry, on_expiry_of
from ignis.dump.lines import (
    FORMAT,
    VERSION,
    BadLineError,
    End,
    Head,
    MessageLine,
    Place,
    QueueLine,
    deadline_ms_of,
    parse_line,
    record_of_line,
)
from ignis.dump.writing import SETTINGS, magazine_of
from ignis.errors import ConfigError, DelayNotSupportedError, IgnisError, QueueMismatchError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_EXPIRED
from ignis.native import PackedBatch, Record, shard_for_key
from ignis.shovel_rounds import SHOVEL_RETRY, note_shovel_retry, policy_in
from ignis.storage.base import QueueRecord, Store
from ignis.storage.checks import check_settings

__all__ = ["Loaded", "Loader"]

_MOST, _MOST_BYTES = 2_000, 1 << 20
"""What is loaded in one transaction, unless one message is larger."""
_BATCH, _BATCH_BYTES = 256, 32 << 10
_DEADLINE_STEP_S = 60
"""The store retires what has a deadline up to so much later, so that many go into a transaction: handlers look at it anyway."""
_EXPIRY_STEPS = 100
"""A queue's time to live is lengthened by at most this part of it, for the same reason."""
_BAD_LINES = 10


class Loaded:
    """What was done so far.

    * ``loaded``, ``repeats`` (left out: an earlier load brought their ids), ``expired`` (loaded, and past their time already);
    * ``bad``: lines that were skipped, and ``first_bad`` the first of them, as text;
    * ``line``: everything up to this line is stored; 0 = nothing was read;
    * ``whole``: the dump's last line was met, and ``stated``, how many messages it says there are;
    * ``read``: how many lines of messages there were, those that were skipped by ``from_line`` too.
    """

    def __init__(self) -> None:
        self.loaded = self.repeats = self.expired = self.bad = self.messages = self.line = 0
        self.first_bad: list[str] = []
        self.whole = False
        self.stated = self.read = 0
        self.made: list[str] = []
        self.changed: list[str] = []


class _Target(NamedTuple):
    record: QueueRecord
    shards: int


class _Group(NamedTuple):
    """Messages that go into one transaction. ``until_s``: when the store retires them, since 1970; 0 = never."""

    queue: str
    place: Place
    until_s: float


class Loader:
    """Takes the lines one after the other. For one thread.

    Args:
        store: where to. Queues that it does not have are made, with the settings in the dump.
        remember_s: how long the store is to know the ids of what was loaded.
        skip_bad: lines that cannot be loaded are counted; None of the others is left out.
        from_line: messages of earlier lines are passed over.
        progress: told how many messages more are stored.
    """

    def __init__(
        self,
        store: Store,
        *,
        remember_s: float,
        skip_bad: bool = False,
        from_line: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.done = Loaded()
        self._store = store
        self._remember_s = remember_s
        self._skip_bad = skip_bad
        self._from_line = from_line
        self._progress = progress
        self._targets: dict[str, _Target] = {}
        self._ahead_ms = round((store.now_s() - store.wall_s()) * 1000)
        self._group: _Group | None = None
        self._records: list[tuple[int, bytes, int]] = []
        self._bytes = 0
        self._seen = 0

    def load(self, lines: Iterable[bytes]) -> None:
        """Stores what the lines say; an empty line is passed over. Raises BadLineError, which names the line's number, and the
        store's errors: what was stored by then is in ``done``."""
        number = 0
        try:
            for number, data in enumerate(lines, 1):
                try:
                    self._take(number, data)
                except BadLineError as exc:
                    told = f"line {number}: {exc}"
                    if not self._skip_bad or not self._seen:
                        raise BadLineError(told) from None
                    self.done.bad += 1
                    if len(self.done.first_bad) < _BAD_LINES:
                        self.done.first_bad.append(told)
                if not self._records:
                    self.done.line = number
        except BadLineError:
            self._flush(number - 1)
            raise
        self._flush(number)
        if not self._seen:
            raise BadLineError("there is no line: that is no dump")

    # -- one line

    def _take(self, number: int, data: bytes) -> None:
        if not data.strip():
            return
        line = parse_line(data)
        if not self._seen:
            _check_head(line)
            self._seen = number
        elif isinstance(line, MessageLine):
            self._take_message(number, line)
        elif isinstance(line, QueueLine):
            self._flush(number - 1)
            self._open(line)
        elif isinstance(line, End):
            self.done.whole, self.done.changed = True, line.changed
            self.done.stated += line.messages
        else:
            _check_head(line)  # dumps may stand one behind the other

    def _take_message(self, number: int, line: MessageLine) -> None:
        self.done.whole = False
        self.done.read += 1
        target = self._targets.get(line.queue)
        if target is None:
            raise BadLineError(f"no line before it has the settings of queue {shown(line.queue)}")
        if (line.due_at_ms is not None) != (line.magazine == "later"):
            raise BadLineError("due_at_ms is for what is in the magazine later, and there it must be")
        if line.shard < 0:
            raise BadLineError(f"shard = {line.shard} is below 0")
        if line.codec not in (None, target.record.codec):
            raise BadLineError(f"codec {shown(line.codec)} is not that of queue {line.queue!r}, {target.record.codec}")
        data = record_of_line(line)
        due_ms = 0
        if line.due_at_ms is not None:
            if not self._store.magazines.keeps_later:
                raise DelayNotSupportedError(type(self._store.magazines).__name__)
            due_ms = max(0, line.due_at_ms + self._ahead_ms)
            if due_ms >= 1 << 48:
                raise BadLineError(f"due_at_ms = {line.due_at_ms} is too far away")
        if number < self._from_line:
            return
        self.done.messages += 1
        group = _Group(line.queue, line.magazine, self._until_s(target.record, line.magazine, data))
        if group != self._group or len(self._records) >= _MOST or self._bytes + len(data) > _MOST_BYTES:
            self._flush(number - 1)
        self._group = group
        self._records.append((_shard(line, data, target.shards), data, due_ms))
        self._bytes += len(data)

    def _until_s(self, record: QueueRecord, place: Place, data: bytes) -> float:
        """When the store is to retire it, rounded up to a step."""
        deadline_ms, reason, enqueued_at_us = deadline_ms_of(data)
        ends: list[float] = []
        if record.message_expiry_s and enqueued_at_us:
            step_s = max(1.0, record.message_expiry_s / _EXPIRY_STEPS)
            since_s = min(enqueued_at_us / 1e6, self._store.wall_s())
            ends.append(math.ceil((since_s + record.message_expiry_s) / step_s) * step_s)
        kept = on_expiry_of(record) != DROP or (place == "sideline" and reason == REASON_EXPIRED)
        if deadline_ms is not None and not kept:
            ends.append(math.ceil(deadline_ms / 1000 / _DEADLINE_STEP_S) * _DEADLINE_STEP_S)
        return float(min(ends, default=0.0))

    # -- into the store

    def _flush(self, line: int) -> None:
        """Stores what was gathered, of lines up to this one."""
        if self._records and self._group is not None:
            group, records = self._group, self._records
            self._group, self._records, self._bytes = None, [], 0
            left_s = group.until_s - self._store.wall_s() if group.until_s else None
            ttl_s = None if left_s is None else max(LEAST_TTL_S, left_s)
            loaded = self._store_all(group, records, ttl_s)
            self.done.loaded += loaded
            self.done.repeats += len(records) - loaded
            if left_s is not None and left_s <= 0:
                self.done.expired += loaded
            if self._progress is not None:
                self._progress(len(records))
        self.done.line = max(self.done.line, line)

    def _store_all(self, group: _Group, records: list[tuple[int, bytes, int]], ttl_s: float | None) -> int:
        magazines = self._store.magazines
        batches: list[tuple[int, PackedBatch]] = []
        dues_ms: list[list[int]] = []
        for shard, part in _batches(records):
            batches.append((shard, PackedBatch.pack([data for data, _ in part])))
            dues_ms.append([due_ms for _, due_ms in part])
        name = magazine_of(group.queue, "sideline" if group.place == "sideline" else "main")
        dues = dues_ms if group.place == "later" else None
        # Also on a store that does not tell repeats: it loads everything, and says so.
        return sum(one.loaded for one in magazines.load_once(name, batches, ttl_s, self._remember_s, dues))

    # -- queues

    def _open(self, line: QueueLine) -> None:
        """Takes the queue as it is, or makes it. Raises BadLineError, QueueMismatchError."""
        try:
            wanted = _record_of(line)
        except IgnisError as exc:
            raise BadLineError(f"the settings of queue {shown(line.queue)}: {exc}") from None
        store = self._store
        record = store.queues.get(wanted.name)
        if record is None:
            # Magazines first, as when an application makes a queue: a record without them is a queue that nobody can use.
            for name in (wanted.name, wanted.name + SIDELINE_SUFFIX):
                store.magazines.declare(name, wanted.shards, wanted.durability)
            wanted.created_at_ms = int(self._store.wall_s() * 1000)
            store.queues.chosen(wanted.name, {*SETTINGS})
            store.queues.put(wanted)
            record = wanted
            self.done.made.append(wanted.name)
        elif record.codec != wanted.codec:
            raise QueueMismatchError(
                f"queue {wanted.name!r} has the codec {record.codec} here, the dump's messages have {wanted.codec}: nothing of "
                f"it was loaded; remove the queue first (ignis queue delete {wanted.name}), or load into another store"
            )
        shards = len(store.magazines.metadata(wanted.name))
        self._targets[wanted.name] = _Target(record, shards)


def _check_head(line: object) -> None:
    if not isinstance(line, Head) or line.format != FORMAT:
        raise BadLineError(f'no dump: the first line must be {{"format":"{FORMAT}",...}}')
    if line.version != VERSION:
        made = f", made by ignis {line.ignis}" if line.ignis else ""
        raise BadLineError(f"a dump of version {line.version}{made}; this ignis reads version {VERSION}")


def _record_of(line: QueueLine) -> QueueRecord:
    settings = dict(line.settings)
    on_expiry, shovel_retry = settings.pop(ON_EXPIRY, DROP), settings.pop(SHOVEL_RETRY, "")
    if unknown := sorted(settings.keys() - {*SETTINGS}):
        raise ConfigError(f"there is no setting {shown(unknown[0])}")
    if on_expiry not in (DROP, SIDELINE):
        raise ConfigError(f"{ON_EXPIRY} = {shown(on_expiry)} is neither {DROP} nor {SIDELINE}")
    try:
        record = msgspec.convert({"name": check_queue_name(line.queue), **settings}, QueueRecord)
    except msgspec.ValidationError as exc:
        raise ConfigError(str(exc)) from None
    policy_in(shovel_retry)
    note_on_expiry(record, on_expiry)
    note_shovel_retry(record, shovel_retry)
    check_settings(record)
    return record


def _shard(line: MessageLine, data: bytes, shards: int) -> int:
    if line.record_base64 is not None:
        return line.shard % shards
    key = Record(data).key
    return shard_for_key(key, shards) if key else line.shard % shards


def _batches(records: list[tuple[int, bytes, int]]) -> list[tuple[int, list[tuple[bytes, int]]]]:
    """By shard, in order and in pieces."""
    found: dict[int, list[list[tuple[bytes, int]]]] = {}
    sizes: dict[int, int] = {}
    for shard, data, due_ms in records:
        pieces = found.setdefault(shard, [[]])
        if len(pieces[-1]) >= _BATCH or (pieces[-1] and sizes[shard] + len(data) > _BATCH_BYTES):
            pieces.append([])
        sizes[shard] = (sizes[shard] if pieces[-1] else 0) + len(data)
        pieces[-1].append((data, due_ms))
    return [(shard, piece) for shard, pieces in found.items() for piece in pieces]
