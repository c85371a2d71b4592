"""Loading each id once: the ids that a magazine remembers, beside its data.

Key, integers big-endian: ``I | magazine u32 | day u32 | id`` -> nothing. The day, counted from the Unix epoch, is the last
one on which the id is remembered; so what may be forgotten lies together, in front of everything else, and different
loads may remember for different times. Looked up is every day that is there, which are few.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from ignis.native import PackedBatch
from ignis.storage.base import LoadedOnce
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.operations import Load, MagazineOperation, Place
from ignis.storage.embedded.recorder import put_new
from ignis.storage.identities import without_repeats

__all__ = ["LoadOnce"]

_DAY = struct.Struct(">cII")
_DAY_MS = 86_400_000
_FORGOTTEN_AT_ONCE = 4_096
"""So many old ids are removed with one load: more than a load of the same size adds, and little work."""
_ID_BYTES = 128
"""Room asked for per id: a B-tree that grows at random places is half empty at the worst."""


class LoadOnce(MagazineOperation):
    """Appends the records whose ids are not known, and remembers those ids, in one transaction; the result is a `LoadedOnce`
    for each batch."""

    def __init__(
        self, place: Place, batches: Sequence[tuple[int, PackedBatch]], expires_at_ms: int, remember_until_ms: int
    ) -> None:
        super().__init__(place)
        self.notify = place.event
        self._shards = [shard for shard, _ in batches]
        self._batches = [batch for _, batch in batches]
        self._expires_at_ms = expires_at_ms
        self._last_day = remember_until_ms // _DAY_MS
        self._need_bytes = Load(place, batches).need_bytes() + _ID_BYTES * sum(one.count for one in self._batches)
        self._ran = False

    def need_bytes(self) -> int:
        return self._need_bytes

    def run(self, txn: Txn) -> list[LoadedOnce]:
        info = self.place.current(txn)
        if self._ran:
            # The transaction runs again: the batches are sealed for pointers that may be others' now.
            self._batches = [PackedBatch.pack(batch.records()) for batch in self._batches]
        self._ran = True
        days = _days(txn, info.id, int(time.time() * 1000) // _DAY_MS)
        known = _known(txn, info.id, days, [id for batch in self._batches for id in batch.ids() if id])
        left, repeats = without_repeats(self._batches, known.__contains__)
        loading = [(shard, batch) for shard, batch in zip(self._shards, left, strict=True) if batch is not None]
        ids = [id for _, batch in loading for id in batch.ids() if id]
        if self._expires_at_ms:
            for _, batch in loading:
                batch.set_expiry(self._expires_at_ms)
        firsts = iter(Load(self.place, loading).run(txn))
        prefix = _DAY.pack(b"I", info.id, self._last_day)
        # In order, so that neighbours in the tree are met one after the other.
        put_new(txn, [(prefix + id, b"") for id in sorted(ids)])
        return [
            LoadedOnce(0, 0, lost) if batch is None else LoadedOnce(next(firsts), batch.count, lost)
            for batch, lost in zip(left, repeats, strict=True)
        ]


def _days(txn: Txn, magazine_id: int, today: int) -> list[int]:
    """The days that ids are there for, without those that are over; of these a part is removed."""
    days: list[int] = []
    cursor = txn.cursor()
    more = cursor.set_range(_DAY.pack(b"I", magazine_id, 0))
    old: list[bytes] = []
    while more and len(old) < _FORGOTTEN_AT_ONCE:
        day = _day_at(cursor.key(), magazine_id)
        if day is None or day >= today:
            break
        old.append(bytes(cursor.key()))
        more = cursor.next()
    for key in old:
        txn.delete(key)
    more = cursor.set_range(_DAY.pack(b"I", magazine_id, today))
    while more:
        day = _day_at(cursor.key(), magazine_id)
        if day is None:
            break
        days.append(day)
        more = cursor.set_range(_DAY.pack(b"I", magazine_id, day + 1))
    return days


def _day_at(key: memoryview, magazine_id: int) -> int | None:
    if len(key) < _DAY.size:
        return None
    kind, found_id, day = _DAY.unpack_from(key)
    return day if kind == b"I" and found_id == magazine_id else None


def _known(txn: Txn, magazine_id: int, days: Sequence[int], ids: Sequence[bytes]) -> set[bytes]:
    """Those of the ids that are remembered."""
    known: set[bytes] = set()
    for day in days:
        prefix = _DAY.pack(b"I", magazine_id, day)
        found = txn.cursor().getmulti([prefix + id for id in ids])
        known.update(bytes(key)[_DAY.size :] for key, _ in found)
    return known
