"""Small writes and claims by a thread that never waits: `MagazineStore.try_together` and `try_fire` of the embedded store.

A write is in the log, and seen by others, before it is durable; who was promised the durability is told after `flush`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ignis.errors import IgnisError, QueueNotFoundError, StoreBusyError
from ignis.native import PackedBatch
from ignis.native.store import Log, Mark, NoShardError, fire_into
from ignis.native.wire import ClaimsFrame
from ignis.storage.checks import check_limit
from ignis.storage.embedded.catalogue import Catalogue, Magazine
from ignis.storage.embedded.claim_scan import Firing
from ignis.storage.embedded.context import StoreContext
from ignis.storage.records import Claim, FireResult
from ignis.storage.write_batch import DirectReceiver, FiredInto, WriteBatch

__all__ = ["AtOnce"]

_ANY_SIZE = 1 << 62
T = TypeVar("T")


class _Noted:
    """See `ignis.storage.write_batch.Unflushed`."""

    def __init__(self, store: StoreContext, log: Log, mark: Mark) -> None:
        self._store = store
        self._log = log
        self._mark = mark

    def flush(self) -> None:
        self._store.gate.enter()
        try:
            self._log.flush(self._mark)
        finally:
            self._store.gate.leave()


class AtOnce:
    """Of one store. Thread-safe."""

    def __init__(self, store: StoreContext, catalogue: Catalogue, firing: Firing) -> None:
        self._store = store
        self._directory = store.directory
        self._catalogue = catalogue
        self._firing = firing

    # -- writing

    def write(self, writes: Sequence[WriteBatch]) -> _Noted | None:
        """`MagazineStore.try_together`: an entry each."""
        if not self._store.gate.try_enter():
            return None
        try:
            unflushed: Log | None = None
            for write in writes:
                found = self._catalogue.remembered(write.magazine)
                if found is not None and self._make(write, found) and not write.durable:
                    unflushed = found.log
            return None if unflushed is None else _Noted(self._store, unflushed, unflushed.mark())
        finally:
            self._store.gate.leave()

    def load(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        taker: DirectReceiver | None,
    ) -> tuple[list[int], _Noted | None] | None:
        """`MagazineStore.try_load`."""
        store = self._store
        if not store.gate.try_enter():
            return None
        try:
            found = self._catalogue.remembered(magazine)
            if found is None or not batches:
                return None
            if not found.durable:
                self._directory.changing(found.durability)
            expires_at_ms = self._directory.clock.expiry_ms(ttl_s)
            if expires_at_ms:
                for _, batch in batches:
                    batch.set_expiry(expires_at_ms)
            log = found.log
            if taker is None:
                firsts = log.load(found.number, batches, durable=False, at_once=True)
                assert firsts is not None
            else:
                firsts = self._load_for(taker.owner, found, batches)
                if firsts is None:
                    return None
                taker.give(batches, firsts)
            return firsts, _Noted(store, log, log.mark()) if found.durable else None
        except QueueNotFoundError:
            assert found is not None
            self._catalogue.forget(found)
            return None
        except (StoreBusyError, NoShardError):
            return None
        finally:
            store.gate.leave()

    def _make(self, write: WriteBatch, found: Magazine) -> bool:
        """True when it was made or refused."""
        try:
            if not found.durable:
                self._directory.changing(found.durability)
            if write.batches is None:
                write.count = found.log.retire(found.number, write.pointers, durable=False, at_once=True)
            else:
                self._load(write, found)
        except (StoreBusyError, NoShardError):
            return False  # for who may wait: it is made then, or refused with the right words
        except QueueNotFoundError:
            self._catalogue.forget(found)
            return False
        except (IgnisError, ValueError, BufferError) as exc:
            write.error = exc
            write.durable = True
        else:
            write.durable = not found.durable
        write.done = True
        return True

    def _load(self, write: WriteBatch, found: Magazine) -> None:
        batches = write.batches
        assert batches is not None
        if not batches:
            return
        expires_at_ms = self._directory.clock.expiry_ms(write.ttl_s)
        if expires_at_ms:
            for _, batch in batches:
                batch.set_expiry(expires_at_ms)
        if write.taker is not None and self._give(write, write.taker, found):
            return
        write.firsts = found.log.load(found.number, batches, durable=False, at_once=True) or []

    def _give(self, write: WriteBatch, taker: DirectReceiver, found: Magazine) -> bool:
        """Loads and claims in one entry; False when older messages go first."""
        batches = write.batches or []
        firsts = self._load_for(taker.owner, found, batches)
        if firsts is None:
            return False
        write.firsts = firsts
        write.given = True
        taker.give(batches, firsts)
        return True

    def _load_for(self, owner: str, found: Magazine, batches: Sequence[tuple[int, PackedBatch]]) -> list[int] | None:
        """Claimed in the same entry. None, and nothing was made, when older messages go first."""
        stored = self._store.stored_owner_bytes(owner)
        now_ms = self._directory.clock.now_ms()
        return found.log.load(found.number, batches, durable=False, at_once=True, owner=stored, ms=now_ms)

    # -- claiming

    def fire(self, magazine: str, limit: int, owner: str, max_bytes: int) -> FireResult | None:
        """`MagazineStore.try_fire`."""

        def fire(found: Magazine, stored: bytes, now_ms: int, size: int) -> FireResult | None:
            pieces, expired, more, _ = found.log.fire(
                found.number, limit, stored, now_ms, begin=self._firing.begin(found), max_bytes=size, at_once=True
            )
            if expired and not pieces:
                return None  # they are retired by who may wait
            claims = [Claim(shard, pointers, records) for shard, pointers, records, _ in pieces]
            if claims:
                self._firing.served(found, claims[-1].shard)
            return FireResult(claims, {}, 0, more or bool(expired))

        return self._fire(magazine, limit, owner, max_bytes, fire)

    def fire_into(self, frame: ClaimsFrame, magazine: str, limit: int, owner: str, max_bytes: int) -> FiredInto | None:
        """`MagazineStore.try_fire_into`."""

        def fire(found: Magazine, stored: bytes, now_ms: int, size: int) -> FiredInto | None:
            served, expired, more, _ = fire_into(
                found.log,
                frame,
                found.number,
                limit,
                stored,
                now_ms,
                begin=self._firing.begin(found),
                max_bytes=size,
                at_once=True,
            )
            if expired and served is None:
                return None
            if served is not None:
                self._firing.served(found, served)
            return FiredInto({}, 0, more or bool(expired))

        return self._fire(magazine, limit, owner, max_bytes, fire)

    def _fire(
        self,
        magazine: str,
        limit: int,
        owner: str,
        max_bytes: int,
        fire: Callable[[Magazine, bytes, int, int], T | None],
    ) -> T | None:
        check_limit(limit)
        stored = self._store.stored_owner_bytes(owner)
        if not self._store.gate.try_enter():
            return None
        try:
            found = self._catalogue.remembered(magazine)
            if found is None:
                return None
            try:
                return fire(found, stored, self._directory.clock.now_ms(), min(max(max_bytes, 0), _ANY_SIZE))
            except StoreBusyError:
                return None
            except QueueNotFoundError:
                self._catalogue.forget(found)
                return None
        finally:
            self._store.gate.leave()
