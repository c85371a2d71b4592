"""The data of a magazine inside an environment: segments, bitmaps of deleted records, retired pointers.

Keys, integers big-endian so that they sort by number:

* ``S | magazine u32 | shard u16 | last pointer u64 | count u32`` -> a sealed segment. The last pointer comes first so
that
  the tail of a shard is its last key, and ``set_range`` of a pointer finds the segment that holds it. The count is
  there so that a segment whose header is damaged still says which pointers it had.
* ``T | magazine | shard | last pointer`` -> the deleted records of a partly deleted segment: CRC32C, then one bit each.
* ``I | magazine | ...`` -> ids that were loaded, see `known`.
* ``X | magazine`` -> CRC32C, then per shard how many records were retired because they expired. Absent while there is none.
* ``R | magazine`` -> CRC32C, then per shard the highest retired pointer and the number of reloaded records. Written
only
  by deletes and reloads: the load pointer is the larger of the highest retired pointer and the last key.

Functions over one transaction; no state. A record that is not here is gone for good: pointers are never used twice.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from ignis.errors import CorruptRecordError
from ignis.native import crc32c, segment_info, unpack_segment
from ignis.storage.embedded.environment import Cursor, Txn
from ignis.storage.runs import first_reaching

__all__ = ["Found", "Retired", "Touched", "expires_at_ms", "find", "forget_magazine", "read_live", "retire"]

log = logging.getLogger("ignis.storage")

_SEGMENT = struct.Struct(">cIHQI")
_PLACE = struct.Struct(">cIHQ")
_SHARD = struct.Struct(">cIH")
_MAGAZINE = struct.Struct(">cI")
_U32 = struct.Struct("<I")
_SEGMENT_KEY_BYTES = _SEGMENT.size
_NO_POINTER = (1 << 64) - 1


class Found(NamedTuple):
    """A segment's key."""

    magazine_id: int
    shard: int
    last: int
    length: int

    @property
    def first(self) -> int:
        return self.last - self.length + 1


class Touched(NamedTuple):
    """What a retire left of a segment: ``deleted`` is its bitmap, or None when it is gone altogether."""

    shard: int
    first: int
    last: int
    deleted: int | None


def segment_key(magazine_id: int, shard: int, last: int, count: int) -> bytes:
    return _SEGMENT.pack(b"S", magazine_id, shard, last, count)


def find(cursor: Cursor, magazine_id: int, shard: int, pointer: int) -> Found | None:
    """The segment that holds the pointer, or else the next one of the magazine (perhaps of a later shard); the cursor is on
    it."""
    if not cursor.set_range(_PLACE.pack(b"S", magazine_id, shard, pointer)):
        return None
    return at(cursor, magazine_id)


def at(cursor: Cursor, magazine_id: int) -> Found | None:
    """The segment that the cursor is on, if it is one of the magazine's."""
    key = cursor.key()
    if len(key) != _SEGMENT_KEY_BYTES:
        return None
    kind, found_id, shard, last, count = _SEGMENT.unpack(key)
    if found_id != magazine_id or kind != b"S":
        return None
    return Found(found_id, shard, last, count)


def tail(cursor: Cursor, magazine_id: int, shard: int) -> int:
    """The last pointer that a segment of the shard has; 0 when it has no segment."""
    positioned = cursor.set_range(_PLACE.pack(b"S", magazine_id, shard, _NO_POINTER))
    if not (cursor.prev() if positioned else cursor.last()):
        return 0
    found = at(cursor, magazine_id)
    return found.last if found is not None and found.shard == shard else 0


# -- bitmaps of deleted records


def read_bitmap(txn: Txn, magazine_id: int, shard: int, last: int) -> int:
    """Bit i set = the i-th record of the segment is deleted. A damaged bitmap counts as none: better twice than never."""
    value = txn.get(_PLACE.pack(b"T", magazine_id, shard, last))
    if value is None:
        return 0
    bits = bytes(value[4:])
    if len(value) < 4 or _U32.unpack_from(value)[0] != crc32c(bits):
        log.error(
            "store: bitmap of magazine %d shard %d pointer %d is damaged; its records come again",
            magazine_id,
            shard,
            last,
        )
        return 0
    return int.from_bytes(bits, "little")


def bitmap_bytes(bitmap: int, count: int) -> bytes:
    return bitmap.to_bytes((count + 7) // 8, "little")


def _put_bitmap(txn: Txn, found: Found, bitmap: int) -> None:
    bits = bitmap_bytes(bitmap, found.length)
    txn.put(_PLACE.pack(b"T", found.magazine_id, found.shard, found.last), _U32.pack(crc32c(bits)) + bits)


def live(found: Found, bitmap: int, start: int, stop: int) -> Sequence[int]:
    """The pointers of ``start..stop-1`` that are not deleted; the range must lie within the segment."""
    if not bitmap:
        return range(start, stop)
    first = found.first
    return [pointer for pointer in range(start, stop) if not bitmap >> (pointer - first) & 1]


# -- retired pointers


class Retired:
    """Highest retired pointer and reloaded count per shard, read from and written to one transaction."""

    __slots__ = ("_changed", "_key", "damaged", "high", "reloaded")

    def __init__(self, txn: Txn, magazine_id: int, shards: int) -> None:
        self._key = _MAGAZINE.pack(b"R", magazine_id)
        self._changed = False
        self.damaged = False
        self.high: list[int] = []
        self.reloaded: list[int] = []
        value = txn.get(self._key)
        if value is not None:
            numbers = bytes(value[4:])
            if len(value) < 4 or len(numbers) % 16 or _U32.unpack_from(value)[0] != crc32c(numbers):
                log.error("store: counters of magazine %d are damaged; they begin anew", magazine_id)
                self.damaged = True
            else:
                flat = struct.unpack(f"<{len(numbers) // 8}Q", numbers)
                half = len(flat) // 2
                self.high, self.reloaded = list(flat[:half]), list(flat[half:])
        missing = shards - len(self.high)
        if missing > 0:
            self.high += [0] * missing
            self.reloaded += [0] * missing

    def raise_high(self, shard: int, pointer: int) -> None:
        if pointer > self.high[shard]:
            self.high[shard] = pointer
            self._changed = True

    def add_reloaded(self, shard: int, count: int) -> None:
        self.reloaded[shard] += count
        self._changed = True

    def store(self, txn: Txn) -> None:
        """Writes it if it changed."""
        if self._changed:
            numbers = struct.pack(f"<{2 * len(self.high)}Q", *self.high, *self.reloaded)
            txn.put(self._key, _U32.pack(crc32c(numbers)) + numbers)
            self._changed = False


# -- what has expired


def read_expired(txn: Txn, magazine_id: int, shards: int) -> list[int]:
    """Per shard how many records have expired. Where what is stored is damaged the count begins anew."""
    value = txn.get(_MAGAZINE.pack(b"X", magazine_id))
    counts: list[int] = []
    if value is not None:
        numbers = bytes(value[4:])
        if len(value) < 4 or len(numbers) % 8 or _U32.unpack_from(value)[0] != crc32c(numbers):
            log.error("store: the counts of expired messages of magazine %d are damaged; they begin anew", magazine_id)
        else:
            counts = list(struct.unpack(f"<{len(numbers) // 8}Q", numbers))
    return counts + [0] * (shards - len(counts))


def add_expired(txn: Txn, magazine_id: int, found: Mapping[int, int]) -> None:
    """Adds to the counts: shard -> so many more."""
    counts = read_expired(txn, magazine_id, max(found) + 1)
    for shard, count in found.items():
        counts[shard] += count
    numbers = struct.pack(f"<{len(counts)}Q", *counts)
    txn.put(_MAGAZINE.pack(b"X", magazine_id), _U32.pack(crc32c(numbers)) + numbers)


def load_pointer(cursor: Cursor, retired: Retired, magazine_id: int, shard: int) -> int:
    return max(retired.high[shard], tail(cursor, magazine_id, shard))


# -- reading


def expires_at_ms(segment: memoryview) -> int:
    """0 = never; also for a segment with a damaged header, which is handed out as corrupt."""
    try:
        return segment_info(segment)[1]
    except CorruptRecordError:
        return 0


def read_live(segment: memoryview, found: Found, start: int, stop: int, bitmap: int) -> list[bytes | None]:
    """The records of ``start..stop-1`` that are not deleted, None for each that does not match its checksum."""
    skip = bitmap_bytes(bitmap, found.length) if bitmap else None
    try:
        return unpack_segment(segment, found.magazine_id, found.shard, found.last, start, stop, skip)
    except (CorruptRecordError, ValueError):
        return [None] * len(live(found, bitmap, start, stop))


def walk(
    txn: Txn, magazine_id: int, shard: int, start: int, stop: int
) -> Generator[tuple[Found, int, int, int, memoryview], None, Found | None]:
    """The segments of one shard that overlap ``start..stop-1``: (segment, first wanted, behind the last, bitmap,
    value). Returns the segment that holds ``stop``, or else the next one of the magazine."""
    cursor = txn.cursor()
    start = max(start, 1)
    found = find(cursor, magazine_id, shard, start) if start < _NO_POINTER else None
    while found is not None and found.shard == shard and found.first < stop:
        bitmap = read_bitmap(txn, magazine_id, shard, found.last)
        yield found, max(start, found.first), min(stop, found.last + 1), bitmap, cursor.value()
        if found.last >= stop:
            break
        found = at(cursor, magazine_id) if cursor.next() else None
    return found


def walk_runs(
    txn: Txn, magazine_id: int, shard: int, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[Found, int, int, int, memoryview]]:
    """`walk` for each of ascending runs. Those without a segment are passed over, however many there are and however long:
    whoever names them costs no more than what there is."""
    index = 0
    while index < len(runs):
        following = yield from walk(txn, magazine_id, shard, *runs[index])
        if following is None or following.shard != shard:
            return
        index = first_reaching(runs, following.first, index + 1)


def first_live(txn: Txn, magazine_id: int, shard: int, start: int) -> int | None:
    """The first pointer from ``start`` on that has a record."""
    for found, low, high, bitmap, _ in walk(txn, magazine_id, shard, start, _NO_POINTER):
        there = live(found, bitmap, low, high)
        if there:
            return there[0]
    return None


def has_records(txn: Txn, magazine_id: int, low_shard: int) -> bool:
    """Whether any shard from ``low_shard`` on holds a segment."""
    return find(txn.cursor(), magazine_id, low_shard, 0) is not None


# -- retiring


def retire(
    txn: Txn, magazine_id: int, shard: int, runs: Sequence[tuple[int, int]], retired: Retired, touched: list[Touched]
) -> int:
    """Deletes the records of the ascending runs; returns how many were still there. ``touched`` gets the segments
    concerned, those that were gone already not included. Runs without a segment are passed over, as in `walk_runs`."""
    cursor = txn.cursor()
    count = index = 0
    while index < len(runs):
        start, stop = runs[index]
        index += 1
        pointer = max(start, 1)
        while pointer < min(stop, _NO_POINTER):
            found = find(cursor, magazine_id, shard, pointer)
            if found is None or found.shard != shard:
                return count
            if found.first >= stop:
                index = first_reaching(runs, found.first, index)
                break
            count += _retire_part(
                txn, cursor, found, max(pointer, found.first), min(stop, found.last + 1), retired, touched
            )
            pointer = found.last + 1
    return count


def _retire_part(
    txn: Txn, cursor: Cursor, found: Found, start: int, stop: int, retired: Retired, touched: list[Touched]
) -> int:
    before = read_bitmap(txn, found.magazine_id, found.shard, found.last)
    whole = (1 << found.length) - 1
    after = before | ((1 << (stop - start)) - 1) << (start - found.first)
    if after == whole:
        txn.delete(bytes(cursor.key()))
        if found.length > 1:
            txn.delete(_PLACE.pack(b"T", found.magazine_id, found.shard, found.last))
        retired.raise_high(found.shard, found.last)
        touched.append(Touched(found.shard, found.first, found.last, None))
    else:
        if after != before:
            _put_bitmap(txn, found, after)
        touched.append(Touched(found.shard, found.first, found.last, after))
    return after.bit_count() - before.bit_count()


def forget_magazine(txn: Txn, magazine_id: int, limit: int) -> bool:
    """Deletes up to ``limit`` keys of the magazine; False when there are none left."""
    cursor = txn.cursor()
    for kind in (b"S", b"T", b"R", b"I", b"X"):
        prefix = _MAGAZINE.pack(kind, magazine_id)
        while cursor.set_range(prefix) and bytes(cursor.key()[: len(prefix)]) == prefix:
            txn.delete(bytes(cursor.key()))
            limit -= 1
            if not limit:
                return True
    return False
