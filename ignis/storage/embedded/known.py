"""Loading each id once: the ids that a magazine remembers, beside its data.

Key, integers big-endian: ``I | magazine u32 | hour u32 | id`` -> 8 bytes drawn for the load that stored it. The hour,
counted from the Unix epoch, is when the id may be forgotten, rounded up to a power of two of at most half the time it is
to be remembered: so the ids of a time lie together, those that are over in front, and a lookup has few times to ask.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from ignis.native import PackedBatch, id_keys
from ignis.storage.base import LoadedOnce
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.operations import Load, MagazineOperation, Place
from ignis.storage.embedded.recorder import put_new
from ignis.storage.identities import without_repeats

__all__ = ["LoadOnce"]

_UNTIL = struct.Struct(">cII")
_HOUR_MS = 3_600_000
_FORGOTTEN_AT_ONCE = 4_096
"""So many old ids are removed with one load: little work beside it, and what is left waits for the next."""
_ID_BYTES = 128
"""Room asked for per id: a B-tree that grows at random places is half empty at the worst."""


def forget_hour(now_ms: int, remember_until_ms: int) -> int:
    """The hour until which an id is remembered."""
    hours = max(1, (remember_until_ms - now_ms) // _HOUR_MS)
    step = 1 << max(0, (hours // 2).bit_length() - 1)
    last = -(-remember_until_ms // _HOUR_MS)
    return -(-last // step) * step


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
        self._until_ms = remember_until_ms
        # Sorted before the lock is taken, so that neighbours in the tree are met one after the other.
        self._prefix = _prefix(place.info.id, forget_hour(place.directory.clock.now_ms(), remember_until_ms))
        self._keys, self._repeated = id_keys(self._batches, self._prefix)
        self._need_bytes = Load(place, batches).need_bytes() + _ID_BYTES * len(self._keys)
        self._ran = False

    def need_bytes(self) -> int:
        return self._need_bytes

    def run(self, txn: Txn) -> list[LoadedOnce]:
        info = self.place.current(txn)
        if self._ran:
            # The transaction runs again: the batches are sealed for pointers that may be others' now.
            self._batches = [PackedBatch.pack(batch.records()) for batch in self._batches]
        self._ran = True
        now_ms = self.place.directory.clock.now_ms()
        known = self._remember(txn, info.id, now_ms // _HOUR_MS, forget_hour(now_ms, self._until_ms))
        left: Sequence[PackedBatch | None] = self._batches
        repeats = [0] * len(left)
        counts = [batch.count for batch in self._batches]
        if len(known) == len(self._keys) and sum(counts) == len(self._keys) + self._repeated:
            left, repeats = [None] * len(counts), counts  # as when a task or a program is run again
        elif known or self._repeated:
            left, repeats = without_repeats(self._batches, known.__contains__)
        loading = [(shard, batch) for shard, batch in zip(self._shards, left, strict=True) if batch is not None]
        if self._expires_at_ms:
            for _, batch in loading:
                batch.set_expiry(self._expires_at_ms)
        firsts = iter(Load(self.place, loading).run(txn))
        return [
            LoadedOnce(0, 0, lost) if batch is None else LoadedOnce(next(firsts), batch.count, lost)
            for batch, lost in zip(left, repeats, strict=True)
        ]

    def _remember(self, txn: Txn, magazine_id: int, now: int, until: int) -> set[bytes]:
        """Stores the ids that are new; returns those that are not."""
        prefix, keys = _prefix(magazine_id, until), self._keys
        if prefix != self._prefix:  # the hour has passed meanwhile, or the magazine was made anew
            keys = [prefix + _id_of(key) for key in keys]
        known: set[bytes] = set()
        for hour in _hours(txn, magazine_id, now):
            if hour != until:
                earlier = _prefix(magazine_id, hour)
                known.update(id for id, _ in _look_up(txn, [earlier + _id_of(key) for key in keys]))
        if known:
            keys = [key for key in keys if _id_of(key) not in known]
        mine = os.urandom(8)
        if put_new(txn, keys, mine) < len(keys):
            known.update(id for id, load in _look_up(txn, keys) if load != mine)
        return known


def _prefix(magazine_id: int, hour: int) -> bytes:
    return _UNTIL.pack(b"I", magazine_id, hour)


def _id_of(key: bytes) -> bytes:
    return key[_UNTIL.size :]


def _hours(txn: Txn, magazine_id: int, now: int) -> list[int]:
    """The hours that there are ids for and that are not over. Of those that are, a part is removed."""
    cursor = txn.cursor()
    more = cursor.set_range(_prefix(magazine_id, 0))
    over: list[bytes] = []
    while more and len(over) < _FORGOTTEN_AT_ONCE:
        hour = _hour_at(cursor.key(), magazine_id)
        if hour is None or hour > now:
            break
        over.append(bytes(cursor.key()))
        more = cursor.next()
    for key in over:
        txn.delete(key)
    hours: list[int] = []
    more = cursor.set_range(_prefix(magazine_id, now + 1))
    while more:
        hour = _hour_at(cursor.key(), magazine_id)
        if hour is None:
            break
        hours.append(hour)
        more = cursor.set_range(_prefix(magazine_id, hour + 1))
    return hours


def _hour_at(key: memoryview, magazine_id: int) -> int | None:
    if len(key) < _UNTIL.size:
        return None
    kind, found_id, hour = _UNTIL.unpack_from(key)
    return int(hour) if kind == b"I" and found_id == magazine_id else None


def _look_up(txn: Txn, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """The ids of those of the keys that are there, each with the load that stored it."""
    return [(_id_of(bytes(key)), bytes(load)) for key, load in txn.cursor().getmulti(keys)]
