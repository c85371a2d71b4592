"""Loads and deletes: each is one entry of the log, whether its caller may wait or not.

Who must not wait is told of a write when it is in the log, and seen by others, but not durable yet. Who was promised the
durability is told after `PendingSync.flush`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ignis.errors import IgnisError, QueueNotFoundError, StoreBusyError
from ignis.native import PackedBatch
from ignis.native.lone import LoneAck, LoneLane, LoneRequest
from ignis.native.store import Log, NoShardError
from ignis.storage.embedded.catalogue import Catalogue, Magazine
from ignis.storage.embedded.context import StoreContext
from ignis.storage.records import Pointers
from ignis.storage.write_batch import DirectReceiver, LoneReceiver, WriteBatch

__all__ = ["Writes"]


class _Unflushed:
    """All that is in a log so far. See `ignis.storage.write_batch.PendingSync`."""

    def __init__(self, store: StoreContext, log: Log) -> None:
        self._gate = store.gate
        self._log = log
        self._mark = log.mark()

    def flush(self) -> None:
        self._gate.enter()
        try:
            self._log.flush(self._mark)
        finally:
            self._gate.leave()


class Writes:
    """Loads into, and deletes from, the magazines of one store. Thread-safe."""

    def __init__(self, store: StoreContext, catalogue: Catalogue) -> None:
        self._store = store
        self._directory = store.directory
        self._catalogue = catalogue

    # -- one entry

    def append(
        self,
        found: Magazine,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        wait: bool = True,
        taker: DirectReceiver | None = None,
    ) -> list[int] | None:
        """Loads; returns the first pointer of each batch. With ``wait`` it is as durable as the magazine promises.

        With a taker, which must not wait, they are claimed in the same entry; None, and nothing was made, when older messages go
        first.

        Raises QueueNotFoundError, ConfigError; without ``wait`` NoShardError, and StoreBusyError where it would have to.
        """
        if found.durability == "interval":
            self._directory.changing("interval")
        if ttl_s is not None:
            expires_at_ms = self._directory.clock.expiry_ms(ttl_s)
            for _, batch in batches:
                batch.set_expiry(expires_at_ms)
        if taker is not None:
            stored = self._store.stored_owner_bytes(taker.owner)
            now_ms = self._directory.clock.now_ms()
            return found.log.load(found.number, batches, durable=False, at_once=True, owner=stored, ms=now_ms)
        if not wait:
            return found.log.load(found.number, batches, durable=False, at_once=True)
        try:
            return found.log.load(found.number, batches, durable=found.durability == "sync")
        except NoShardError:
            raise self._catalogue.no_shard(found, [shard for shard, _ in batches]) from None

    def retire(self, found: Magazine, pointers: Pointers, wait: bool = True, waiting_only: bool = False) -> int:
        """Deletes; returns how many records were still there. Raises as `append`."""
        if found.durability == "interval":
            self._directory.changing("interval")
        if not wait:
            return found.log.retire(found.number, pointers, durable=False, at_once=True)
        durable = found.durability == "sync"
        try:
            return found.log.retire(found.number, pointers, durable=durable, waiting_only=waiting_only)
        except NoShardError:
            shards = self._catalogue.again(found).shards
            there = {shard: many for shard, many in pointers.items() if 0 <= shard < shards}
            return found.log.retire(found.number, there, durable=durable, waiting_only=waiting_only)

    # -- for callers that must not wait

    def try_together(self, writes: Sequence[WriteBatch]) -> _Unflushed | None:
        """See `MagazineStore.try_together`."""
        if not self._store.gate.try_enter():
            return None
        try:
            unflushed: Log | None = None
            for write in writes:
                unflushed = self._catalogue.try_on(write.magazine, self._make, write) or unflushed
            return None if unflushed is None else _Unflushed(self._store, unflushed)
        finally:
            self._store.gate.leave()

    def try_load_lone(
        self,
        magazine: str,
        lone: LoneRequest,
        shards: int,
        any_shard: int,
        ttl_s: float | None,
        taker: LoneReceiver | None,
    ) -> _Unflushed | bool:
        """See `MagazineStore.try_load_lone`."""
        if not self._store.gate.try_enter():
            return False
        try:
            return self._catalogue.try_on(magazine, self._load_lone, lone, shards, any_shard, ttl_s, taker) or False
        finally:
            self._store.gate.leave()

    def _load_lone(
        self,
        found: Magazine,
        lone: LoneRequest,
        shards: int,
        any_shard: int,
        ttl_s: float | None,
        taker: LoneReceiver | None,
    ) -> _Unflushed | bool:
        """`append` of a request where it was received; False when it is not as simple as that."""
        if found.durability == "interval":
            self._directory.changing("interval")
        clock = self._directory.clock
        ends_ms = clock.expiry_ms(ttl_s)
        if taker is None:
            first = lone.load(found.log, found.number, shards, any_shard, ends_ms)
        else:
            stored = self._store.stored_owner_bytes(taker.owner)
            first = lone.load(found.log, found.number, shards, any_shard, ends_ms, stored, clock.now_ms())
        if first is None:
            return False
        if taker is not None:
            taker.give_lone(lone)
        return _Unflushed(self._store, found.log) if found.durability == "sync" else True

    def lone_lane(self, magazine: str, calls: dict[str, int]) -> LoneLane | None:
        """See `MagazineStore.lone_lane`."""
        found = self._catalogue.remembered(magazine)
        if found is None or not isinstance(found.log, Log):
            return None
        directory, sync = self._directory, found.durability == "sync"
        interval = directory.interval if found.durability == "interval" else None
        refused = directory.refused_loads.count
        return LoneLane(
            self._store.gate, found.log, found.number, interval, sync, calls, self._claimant, directory.clock.expiry_ms,
            refused,
        )  # fmt: skip

    def _claimant(self, owner: str) -> tuple[bytes, int]:
        return self._store.stored_owner_bytes(owner), self._directory.clock.now_ms()

    def try_delete_lone(self, magazine: str, ack: LoneAck) -> _Unflushed | bool:
        """See `MagazineStore.try_delete_lone`."""
        if not self._store.gate.try_enter():
            return False
        try:
            return self._catalogue.try_on(magazine, self._retire_lone, ack) or False
        finally:
            self._store.gate.leave()

    def _retire_lone(self, found: Magazine, ack: LoneAck) -> _Unflushed | bool:
        """`retire` of a request where it was received; False when it is not as simple as that."""
        if found.durability == "interval":
            self._directory.changing("interval")
        if ack.retire(found.log, found.number) is None:
            return False
        return _Unflushed(self._store, found.log) if found.durability == "sync" else True

    def _make(self, found: Magazine, write: WriteBatch) -> Log | None:
        """Returns the log to flush before anybody is told of the write."""
        try:
            if write.batches is None:
                write.count = self.retire(found, write.pointers, False)
            elif write.batches and (write.taker is None or not self._give(write, write.taker, found)):
                write.firsts = self.append(found, write.batches, write.ttl_s, False) or []
        except (StoreBusyError, NoShardError, QueueNotFoundError):
            raise  # for who may wait: it is made then, or refused with the right words
        except (IgnisError, ValueError, BufferError) as exc:
            write.error = exc
            write.durable = True
        else:
            write.durable = found.durability != "sync"
        write.done = True
        return None if write.durable else found.log

    def _give(self, write: WriteBatch, taker: DirectReceiver, found: Magazine) -> bool:
        """Loads and claims in one entry; False when older messages go first."""
        batches = write.batches or []
        firsts = self.append(found, batches, write.ttl_s, False, taker)
        if firsts is None:
            return False
        write.firsts = firsts
        write.given = True
        taker.give(batches, firsts)
        return True
