"""Claiming: one walk over the unfired segments of a magazine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ignis.storage.base import Claim, Run, joined_runs
from ignis.storage.embedded import claims, segments
from ignis.storage.embedded.catalogue import MagazineInfo
from ignis.storage.embedded.claims import Held
from ignis.storage.embedded.directory import Directory
from ignis.storage.embedded.environment import Environment, Txn, WouldWait
from ignis.storage.embedded.segments import Found

__all__ = ["Walk"]

_MOST_EXPIRED = 100_000


class _Piece(NamedTuple):
    """The part of one segment that is claimed; ``records`` only where they had to be read to know their sizes."""

    found: Found
    start: int
    stop: int
    bitmap: int
    value: memoryview
    pointers: Sequence[int]
    records: list[bytes | None] | None


class Walk:
    """One fire. `run` goes into a transaction of the claims; `read` gets the records once that is committed, so that
    other claimers do not wait for the reading. `end` is due in any case.

    Args:
        limit: most records handed out; 0 = only look for expired ones at the heads.
        order: the shards to look at; each ascending part of it is walked with one cursor, so empty shards cost nothing.
        most_expired: bound on the records that are claimed because they expired.
        is_process: whether the owner is this process; otherwise a job that may outlive it.
        waits: whether it may wait; if not, `run` raises WouldWait instead, and also at expired records: to retire them is a
            commit of its own.
    """

    def __init__(
        self,
        directory: Directory,
        info: MagazineInfo,
        limit: int,
        owner: str,
        order: Sequence[int],
        max_bytes: int,
        most_expired: int = _MOST_EXPIRED,
        is_process: bool = True,
        waits: bool = True,
    ) -> None:
        self._directory = directory
        self._clock = directory.clock
        self._env: Environment = directory.data(info.durability).env
        self._info = info
        self._limit = limit
        self._owner = owner
        self._order = order
        self._max_bytes = max_bytes
        self._most_expired = most_expired
        self._is_process = is_process
        self._waits = waits
        self._data: Txn | None = None
        self._reset()

    def _reset(self) -> None:
        self.end()
        self.expired: dict[int, list[tuple[int, int]]] = {}
        self.expired_count = 0
        self.more = False
        self.last_shard = -1
        self._pieces: list[_Piece] = []
        self._left = self._limit
        self._bytes_left = self._max_bytes
        self._full = False

    def end(self) -> None:
        """Ends the read transaction. Idempotent."""
        data, self._data = self._data, None
        if data is not None:
            self._env.end_read(data)

    # -- claiming

    def run(self, txn: Txn) -> None:
        self._reset()
        # After the claims' lock was taken: what was loaded before this call began is seen.
        data = self._data = self._env.begin_read() if self._waits else self._env.try_begin_read()
        info = self._info
        self._now_ms = self._clock.now_ms()
        self._fired = claims.fire_pointers(txn, data, info.id, info.shards)
        self._cursor = data.cursor()
        self._owner_id = 0
        before = list(self._fired)
        hop = previous = -1
        for shard in self._order:
            if shard < previous:
                hop = -1
            previous = shard
            if shard < hop:
                continue
            hop = self._walk_shard(txn, data, shard)
            if self._full:
                break
        if self._fired != before:
            claims.put_fire_pointers(txn, info.id, self._fired)

    def _walk_shard(self, txn: Txn, data: Txn, shard: int) -> int:
        """Claims from one shard; returns the next shard that can have anything."""
        info, fired = self._info, self._fired
        while True:
            pointer = fired[shard] + 1
            found = segments.find(self._cursor, info.id, shard, pointer)
            if found is None:
                return info.shards
            if found.shard != shard:
                return found.shard
            start = max(pointer, found.first)
            bitmap = segments.read_bitmap(data, info.id, shard, found.last) if found.length > 1 else 0
            if bitmap and not segments.live(found, bitmap, start, found.last + 1):
                fired[shard] = found.last
                continue
            value = self._cursor.value()
            expires = segments.expires_at_ms(value)
            if expires and expires <= self._now_ms:
                if not self._waits:
                    raise WouldWait
                if self.expired_count >= self._most_expired:
                    self.more = self._full = True
                    return info.shards
                self._claim_expired(txn, found, start, bitmap)
                continue
            if not self._limit:
                return shard + 1
            if self._left <= 0 or not self._claim(txn, found, start, bitmap, value):
                self.more = self._full = True
                return info.shards

    def _claim_expired(self, txn: Txn, found: Found, start: int, bitmap: int) -> None:
        """Claimed like any other, so that they are not lost when we die before they are retired."""
        stop = min(found.last + 1, start + self._most_expired - self.expired_count)
        self.expired_count += len(segments.live(found, bitmap, start, stop))
        self.expired.setdefault(found.shard, []).append((start, stop))
        self._put(txn, found.shard, start, stop)

    def _claim(self, txn: Txn, found: Found, start: int, bitmap: int, value: memoryview) -> bool:
        """Claims what the limits allow of one segment; False when they allow nothing more."""
        pointers: Sequence[int]
        if bitmap:
            pointers = segments.live(found, bitmap, start, found.last + 1)[: self._left]
            stop = pointers[-1] + 1
        else:
            stop = min(found.last + 1, start + self._left)
            pointers = range(start, stop)
        records: list[bytes | None] | None = None
        if len(value) <= self._bytes_left:
            self._bytes_left -= len(value)
        else:
            records = segments.read_live(value, found, start, stop, bitmap)
            fitting = self._fitting(records)
            if not fitting:
                return False
            records, pointers = records[:fitting], pointers[:fitting]
            stop = pointers[-1] + 1
        self._pieces.append(_Piece(found, start, stop, bitmap, value, pointers, records))
        self._left -= len(pointers)
        self.last_shard = found.shard
        self._put(txn, found.shard, start, stop)
        return True

    def _fitting(self, records: Sequence[bytes | None]) -> int:
        """How many fit into the byte limit; the first of a call always does."""
        for index, record in enumerate(records):
            self._bytes_left -= len(record or b"")
            if self._bytes_left < 0 and (index or self._pieces):
                return index
        return len(records)

    def _put(self, txn: Txn, shard: int, start: int, stop: int) -> None:
        if not self._owner_id:
            self._owner_id = self._directory.owners.number(txn, self._owner, is_process=self._is_process)
        claims.put_claim(txn, self._info.id, Held(shard, start, stop - start, self._owner_id, self._now_ms))
        self._fired[shard] = stop - 1

    # -- after the commit

    def read(self) -> list[Claim]:
        if self._pieces or self.expired:
            self._directory.owners.written(self._owner, is_process=self._is_process)
        result: list[Claim] = []
        for piece in self._pieces:
            records = piece.records
            if records is None:
                records = segments.read_live(piece.value, piece.found, piece.start, piece.stop, piece.bitmap)
            result.append(Claim(piece.found.shard, piece.pointers, records))
        return result

    def runs(self) -> list[Run]:
        """What was claimed, without reading it."""
        if self._pieces or self.expired:
            self._directory.owners.written(self._owner, is_process=self._is_process)
        return joined_runs(
            Run(piece.found.shard, piece.start, piece.stop - 1, len(piece.pointers)) for piece in self._pieces
        )

    def expired_pointers(self) -> dict[int, list[int]]:
        return {
            shard: [pointer for start, stop in runs for pointer in range(start, stop)]
            for shard, runs in self.expired.items()
        }
