"""Looking at magazines: records, columns, counters. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ignis.errors import UnreadableMessageError
from ignis.native import Record, segment_columns
from ignis.native.store import NoShardError
from ignis.storage import transactions
from ignis.storage.columns import RecordColumns
from ignis.storage.embedded.catalogue import Magazine
from ignis.storage.records import Pointers, ShardState
from ignis.storage.runs import Pair, Runs, overlap, runs_of

__all__ = ["columns", "existing", "metadata", "oldest_enqueued_at_us", "peek", "read_some", "scan"]

_END = 1 << 62
_INCARNATION = (1 << 52) - 1  # exact in JSON, whose numbers are doubles for many readers


def peek(found: Magazine, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
    """See `MagazineStore.peek`."""
    result: dict[int, dict[int, bytes | None]] = {}
    for shard, many in pointers.items():
        there: dict[int, bytes | None] = {}
        if 0 <= shard < 1 << 16:
            try:
                for first, records, _ in found.log.peek(found.number, shard, runs_of(many)):
                    there.update(zip(range(first, first + len(records)), records, strict=True))
            except NoShardError:
                continue
        if there:
            result[shard] = there
    return result


def read_some(
    found: Magazine, runs: Mapping[int, Sequence[Pair]]
) -> tuple[list[tuple[int, int, list[bytes | None], int]], dict[int, list[Pair]]]:
    """What exists of these pointers, as much as one transaction takes: (shard, first pointer, records, expires_at_ms) in their
    order. Also returns the runs that were not looked at."""
    room, room_bytes = transactions.MOST_RECORDS, transactions.MOST_BYTES
    pieces: list[tuple[int, int, list[bytes | None], int]] = []
    rest: dict[int, list[Pair]] = {}
    for shard, many in runs.items():
        left = list(many)
        if left and room > 0 and room_bytes > 0:
            try:
                read, cut = found.log.peek_within(found.number, shard, left, room_bytes, limit=room)
            except NoShardError:
                continue
            for first, records, expires in read:
                pieces.append((shard, first, records, expires))
                room -= len(records)
                room_bytes -= sum(len(record or b"") + transactions.BESIDE_BYTES for record in records)
            full = cut or room <= 0
            left = overlap(left, read[-1][0] + len(read[-1][1]), _END) if read and full else []
        if left:
            rest[shard] = left
    return pieces, rest


def columns(found: Magazine, shard: int, pointers: range, lines: bool) -> RecordColumns:
    """See `MagazineStore.peek_columns`."""
    parts = []
    if 0 <= shard < 1 << 16 and len(pointers):
        try:
            parts = found.log.batches(found.number, shard, max(pointers.start, 1), min(pointers.stop, _END) - 1)
        except NoShardError:
            parts = []
    return RecordColumns(*segment_columns(parts, found.number, shard if parts else 0, lines=lines))


def scan(
    found: Magazine, after: Mapping[int, int], limit: int, pending_only: bool
) -> list[tuple[int, int, bytes | None]]:
    """See `MagazineStore.scan`."""
    rows: list[tuple[int, int, bytes | None]] = []
    for shard, state in enumerate(found.log.shards(found.number)):
        fired, living = state[1], state[5]
        if not living:
            continue
        start = max(after.get(shard, 0), fired if pending_only else 0) + 1
        for first, records, _ in found.log.peek(found.number, shard, [(start, _END)], limit=limit - len(rows)):
            rows += ((shard, first + index, record) for index, record in enumerate(records))
        if len(rows) >= limit:
            break
    return rows


def scan_within(
    found: Magazine, after: Mapping[int, int], limit: int, max_bytes: int, pending_only: bool
) -> tuple[list[tuple[int, int, bytes | None]], bool]:
    """See `MagazineStore.scan_within`."""
    rows: list[tuple[int, int, bytes | None]] = []
    for shard, state in enumerate(found.log.shards(found.number)):
        fired, living = state[1], state[5]
        start = max(after.get(shard, 0), fired if pending_only else 0) + 1
        if not living or start >= _END:
            continue
        if rows and max_bytes <= 0:
            return rows, True
        pieces, cut = found.log.peek_within(
            found.number, shard, [(start, _END)], max(0, max_bytes), limit=limit - len(rows)
        )
        for first, records, _ in pieces:
            rows += ((shard, first + index, record) for index, record in enumerate(records))
            max_bytes -= sum(len(record or b"") + transactions.BESIDE_BYTES for record in records)
        if len(rows) >= limit:
            return rows, False
        if cut:
            return rows, True
    return rows, False


def existing(found: Magazine, shard: int, first: int, last: int, limit: int) -> tuple[Sequence[int], int]:
    """Up to ``limit`` of these pointers, all of which have a record, and the one to go on with: a walk over numbers would go
    through the gaps that every opening leaves."""
    try:
        there = found.log.living(found.number, shard, [(first, last + 1)], limit=limit)
    except NoShardError:
        return (), last + 1
    pointers = Runs((low, high + 1) for low, high, _, _ in there)
    return pointers, pointers[-1] + 1 if len(pointers) == limit else last + 1


def metadata(found: Magazine) -> list[ShardState]:
    """See `MagazineStore.metadata`."""
    states = []
    for shard, state in enumerate(found.log.shards(found.number)):
        load_pointer, fire_pointer, load_counter, fire_counter, in_flight, _, incarnation, expired = state
        if fire_counter >= load_counter:
            fire_pointer = load_pointer  # what is behind it was removed without ever being claimed
        states.append(
            ShardState(
                shard,
                load_pointer,
                fire_pointer,
                load_counter,
                fire_counter,
                in_flight,
                incarnation & _INCARNATION | 1,
                expired,
            )
        )
    return states


def oldest_enqueued_at_us(found: Magazine) -> int | None:
    """See `MagazineStore.oldest_enqueued_at_us`."""
    oldest: int | None = None
    for shard, state in enumerate(found.log.shards(found.number)):
        if state[2] > state[3]:
            at_us = _head_enqueued_at_us(found, shard, state[1] + 1)
            if at_us is not None and (oldest is None or at_us < oldest):
                oldest = at_us
    return oldest


def _head_enqueued_at_us(found: Magazine, shard: int, start: int) -> int | None:
    """Of the first readable record from ``start`` on."""
    while True:
        pieces = found.log.peek(found.number, shard, [(start, _END)], limit=1)
        if not pieces:
            return None
        first, (record,), _ = pieces[0]
        if record is not None:
            try:
                return Record(record).enqueued_at_us
            except UnreadableMessageError:
                pass
        start = first + 1
