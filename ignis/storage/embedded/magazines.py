"""The messages of the embedded store: `MagazineStore` over the logs of its durability classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ignis.errors import QueueNotFoundError, StoreFullError
from ignis.native import PackedBatch, Watch
from ignis.native.lone import LoneAck, LoneLane, LoneRequest
from ignis.native.store import NoShardError, Recall, load_body
from ignis.native.wire import ClaimsFrame
from ignis.storage.base import KEEP_TTL, MagazineStore
from ignis.storage.checks import check_declaration, check_dues, check_limit, check_magazine, check_owner
from ignis.storage.columns import RecordColumns
from ignis.storage.embedded import inspection, transfers
from ignis.storage.embedded.catalogue import Catalogue, Magazine
from ignis.storage.embedded.claim_scan import ClaimScan
from ignis.storage.embedded.claims import Claims
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.later import EmbeddedLater
from ignis.storage.embedded.load_once import load_once
from ignis.storage.embedded.waiters import Waits
from ignis.storage.embedded.writes import Writes
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.in_flight import guarded
from ignis.storage.records import (
    Abandoned,
    Fence,
    FireResult,
    LoadedOnce,
    Pointers,
    Run,
    ShardState,
    Transfer,
    joined_runs,
)
from ignis.storage.write_batch import ClaimsWriter, FiredInto, LoneReceiver, PendingSync, WriteBatch

__all__ = ["EmbeddedMagazines"]


class EmbeddedMagazines(EmbeddedLater, MagazineStore):
    """Magazines of one application. Thread-safe."""

    quick = True
    calls_back = True
    tells_repeats = True
    takes_bodies = True

    def __init__(self, store: StoreContext) -> None:
        self._store = store
        self._directory = store.directory
        self._catalogue = Catalogue(store.directory, store.farm_id, store.client_id)
        self._claims = Claims(store)
        self._expired_log = ExpiredLog()
        self._scan = ClaimScan(store, self._expired_log)
        self._writes = Writes(store, self._catalogue)
        self._waits = Waits()
        self._wishes: dict[object, Callable[[], None]] = {}  # of this store, among those of the directory
        self.calls = {"loads": 0, "fires": 0, "deletes": 0, "reloads": 0, "transfers": 0}

    # -- the catalogue

    @guarded
    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        check_declaration(magazine, shards, durability)
        known = self._catalogue.remembered(magazine)
        if known is not None and (known.durability, known.shards) == (durability, shards):
            try:
                if len(known.log.shards(known.number)) == shards:
                    return
            except QueueNotFoundError:
                self._catalogue.forget(known)
        self._catalogue.declare(magazine, shards, durability)

    @guarded
    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        check_magazine(magazine)
        return self._catalogue.drop(magazine, only_empty)

    @guarded
    def names(self) -> list[str]:
        return self._catalogue.names()

    def _check_flushes(self, found: Magazine) -> None:
        """Raises what flushes in the background have met."""
        if found.durability == "interval":
            self._directory.changing("interval")

    # -- the way of a message

    @guarded
    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        if not batches:
            self._catalogue.find(magazine)
            return []
        known = self._catalogue.remembered(magazine)
        firsts: list[int] | None = None
        if known is not None:  # as a rule: what `append` does, without a call more
            if known.durability == "interval":
                self._directory.changing("interval")
            if ttl_s is not None:
                expires_at_ms = self._directory.clock.expiry_ms(ttl_s)
                for _, batch in batches:
                    batch.set_expiry(expires_at_ms)
            try:
                firsts = known.log.load(known.number, batches, durable=known.durability == "sync")
            except (QueueNotFoundError, NoShardError):
                firsts = None  # made anew, or with other shards
            except StoreFullError as exc:
                self._directory.refused_loads.count(exc)
                raise
        if firsts is None:
            with self._directory.refused_loads:
                firsts = self._catalogue.on(magazine, self._writes.append, batches, ttl_s)
            assert firsts is not None
        self.calls["loads"] += 1
        return firsts

    @guarded
    def load_body(
        self, magazine: str, shard: int, body: bytes, flags: int, ttl_s: float | None
    ) -> tuple[str, int, int] | None:
        known = self._catalogue.remembered(magazine)
        if known is None:
            return None
        if known.durability == "interval":
            self._directory.changing("interval")
        expires_at_ms = 0 if ttl_s is None else self._directory.clock.expiry_ms(ttl_s)
        try:
            loaded = load_body(
                known.log,
                known.number,
                shard,
                body,
                flags,
                expires_at_ms=expires_at_ms,
                durable=known.durability == "sync",
            )
        except (QueueNotFoundError, NoShardError):
            return None  # made anew, or with other shards
        except StoreFullError as exc:
            self._directory.refused_loads.count(exc)
            raise
        self.calls["loads"] += loaded is not None
        return loaded

    @guarded
    def load_once(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        remember_s: float,
        dues_ms: Sequence[Sequence[int]] | None = None,
    ) -> list[LoadedOnce]:
        clock = self._directory.clock
        self._catalogue.find(magazine)
        if dues_ms is not None:
            check_dues(dues_ms, [batch.count for _, batch in batches])
        if not batches:
            return []
        expires_at_ms, until_ms = clock.expiry_ms(ttl_s), clock.expiry_ms(remember_s)

        def load(found: Magazine) -> list[LoadedOnce]:
            self._check_flushes(found)
            try:
                return load_once(found, batches, clock, expires_at_ms, until_ms)
            except NoShardError:
                raise self._catalogue.no_shard(found, [shard for shard, _ in batches]) from None

        def load_later(found: Magazine, later: Magazine) -> list[LoadedOnce]:
            return load_once(found, batches, clock, expires_at_ms, until_ms, later, dues_ms or ())

        with self._directory.refused_loads:
            if dues_ms is None:
                loaded = self._catalogue.on(magazine, load)
            else:
                loaded = self._with_later(magazine, [shard for shard, _ in batches], load_later)
        self.calls["loads"] += 1
        return loaded

    @guarded
    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        check_limit(limit)
        stored = self._store.stored_owner_bytes(owner)
        fired: FireResult | None = None
        known = self._catalogue.remembered(magazine)
        if shards is not None:
            self._see(magazine, shards)
        elif known is not None:
            try:
                fired = self._scan.fire(known, limit, stored, None, max_bytes)
            except QueueNotFoundError:
                self._catalogue.forget(known)
        if fired is None:
            fired = self._catalogue.on(magazine, self._scan.fire, limit, stored, shards, max_bytes)
            assert fired is not None
        self.calls["fires"] += 1
        if fired.expired:
            self._expired_log.note(magazine, fired.expired)
        return fired

    def fire_into(
        self,
        writer: ClaimsWriter,
        magazine: str,
        limit: int,
        owner: str,
        shards: Sequence[int] | None = None,
        max_bytes: int = 64 << 20,
    ) -> FiredInto:
        if not isinstance(writer, ClaimsFrame):
            return super().fire_into(writer, magazine, limit, owner, shards, max_bytes)
        return self._fire_into(writer, magazine, limit, owner, shards, max_bytes)

    @guarded
    def _fire_into(
        self,
        frame: ClaimsFrame,
        magazine: str,
        limit: int,
        owner: str,
        shards: Sequence[int] | None,
        max_bytes: int,
    ) -> FiredInto:
        check_limit(limit)
        check_owner(owner)
        stored = self._store.stored_owner_bytes(owner)
        if shards is not None:
            self._see(magazine, shards)
        fired = self._catalogue.on(magazine, self._scan.fire_into, frame, limit, stored, shards, max_bytes)
        assert fired is not None
        self.calls["fires"] += 1
        self._expired_log.note(magazine, fired.expired)
        return fired

    def _see(self, magazine: str, shards: Sequence[int]) -> None:
        """Finds the magazine anew when what is asked for lies beyond what was known of it."""
        found = self._catalogue.find(magazine)
        if any(shard >= found.shards for shard in shards):
            self._catalogue.again(found)

    @guarded
    def claim(self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None) -> list[Run]:
        """See `MagazineStore.claim`. No record is read."""
        check_limit(limit)
        check_owner(owner)
        stored = str(owner).encode()  # a job: it does not end with this process

        if shards is not None:
            self._see(magazine, shards)
        runs, expired = self._catalogue.on(magazine, self._scan.claim, limit, stored, shards)
        self.calls["fires"] += 1
        self._expired_log.note(magazine, expired)
        return runs

    @guarded
    def held(self, magazine: str, owner: str) -> list[Run]:
        return self._catalogue.on(magazine, lambda found: joined_runs(self._claims.held(found, owner)))

    @guarded
    def renew(self, magazine: str, owner: str) -> bool:
        self._catalogue.on(magazine, lambda found: self._claims.renew(found, owner))
        return True

    @guarded
    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        for name in (owner, to_owner or owner):
            check_owner(name)
        return self._catalogue.on(magazine, lambda found: self._claims.renew_some(found, pointers, owner, to_owner))

    @guarded
    def claimants(self, magazine: str) -> dict[str, bool]:
        return self._catalogue.on(magazine, self._claims.claimants)

    @guarded
    def dead_claimants(self) -> frozenset[str]:
        return self._claims.dead_claimants()

    @guarded
    def expire(self, magazine: str, limit: int = 10_000) -> int:
        count = self._catalogue.on(magazine, lambda found: self._scan.expire(found, limit))
        self._expired_log.note(magazine, count)
        return count

    @guarded
    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        self.calls["reloads"] += 1

        def reload(found: Magazine) -> int:
            self._check_flushes(found)
            return transfers.reload(self._store, found, pointers, fence)

        return self._catalogue.on(magazine, reload)

    @guarded
    def delete(self, magazine: str, pointers: Pointers) -> int:
        self.calls["deletes"] += 1
        known = self._catalogue.remembered(magazine)
        if known is not None:
            # As `retire` begins, without a call more: a lone acknowledgement comes here.
            if known.durability == "interval":
                self._directory.changing("interval")
            try:
                return known.log.retire(known.number, pointers, durable=known.durability == "sync")
            except (QueueNotFoundError, NoShardError):
                pass  # made anew, or with other shards
        return self._catalogue.on(magazine, self._writes.retire, pointers)

    @guarded
    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        self.calls["deletes"] += 1
        # What had run out of time is not removed by anybody: it is counted as expired, as a claim would have done it.
        expired = self._catalogue.on(magazine, self._scan.expire_heads, pointers)
        self._expired_log.note(magazine, expired)
        return self._catalogue.on(magazine, self._writes.retire, pointers, True, True)

    @guarded
    def _purge_next(self, magazine: str, shard: int, first: int, last: int, limit: int) -> tuple[Sequence[int], int]:
        return self._catalogue.on(magazine, lambda found: inspection.existing(found, shard, first, last, limit))

    @guarded
    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        expires_at_ms = None if ttl_s == KEEP_TTL else self._directory.clock.expiry_ms(ttl_s)
        self.calls["transfers"] += 1

        def transfer(found: Magazine) -> int:
            def into(to: Magazine) -> int:
                self._check_flushes(to)
                try:
                    return transfers.transfer(self._store, found, to, items, expires_at_ms, fence)
                except NoShardError:
                    raise self._catalogue.no_shard(to, [item.target_shard for item in items]) from None

            self._check_flushes(found)
            return self._catalogue.on(target, into)

        return self._catalogue.on(source, transfer)

    # -- without waiting

    def try_together(self, writes: Sequence[WriteBatch]) -> PendingSync | None:
        unflushed = self._writes.try_together(writes)
        for write in writes:
            self.calls["deletes" if write.batches is None else "loads"] += write.done
            if isinstance(write.error, StoreFullError) and write.batches is not None:
                self._directory.refused_loads.count(write.error)
        return unflushed

    def try_load_lone(
        self,
        magazine: str,
        lone: LoneRequest,
        shards: int,
        any_shard: int,
        ttl_s: float | None,
        taker: LoneReceiver | None = None,
    ) -> PendingSync | bool:
        with self._directory.refused_loads:
            loaded = self._writes.try_load_lone(magazine, lone, shards, any_shard, ttl_s, taker)
        self.calls["loads"] += loaded is not False
        return loaded

    def lone_lane(self, magazine: str) -> LoneLane | None:
        return self._writes.lone_lane(magazine, self.calls)

    def try_delete_lone(self, magazine: str, ack: LoneAck) -> PendingSync | bool:
        deleted = self._writes.try_delete_lone(magazine, ack)
        self.calls["deletes"] += deleted is not False
        return deleted

    def try_fire(self, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20) -> FireResult | None:
        check_limit(limit)
        stored = self._store.stored_owner_bytes(owner)
        if not self._store.gate.try_enter():
            return None
        try:
            fired = self._catalogue.try_on(magazine, self._scan.fire, limit, stored, None, max_bytes, False)
        finally:
            self._store.gate.leave()
        self.calls["fires"] += fired is not None
        return fired

    def try_fire_into(
        self, writer: ClaimsWriter, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20
    ) -> FiredInto | None:
        if not isinstance(writer, ClaimsFrame):
            return super().try_fire_into(writer, magazine, limit, owner, max_bytes)
        check_limit(limit)
        stored = self._store.stored_owner_bytes(owner)
        if not self._store.gate.try_enter():
            return None
        try:
            fired = self._catalogue.try_on(
                magazine, self._scan.fire_into, writer, limit, stored, None, max_bytes, False
            )
        finally:
            self._store.gate.leave()
        self.calls["fires"] += fired is not None
        return fired

    # -- looking

    @guarded
    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        return self._catalogue.on(magazine, lambda found: inspection.peek(found, pointers))

    @guarded
    def peek_columns(self, magazine: str, shard: int, pointers: range, *, lines: bool = False) -> RecordColumns:
        return self._catalogue.on(magazine, lambda found: inspection.columns(found, shard, pointers, lines))

    @guarded
    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        return self._catalogue.on(magazine, lambda found: inspection.scan(found, after or {}, limit, pending_only))

    @guarded
    def scan_within(
        self, magazine: str, *, after: Mapping[int, int], limit: int, max_bytes: int, pending_only: bool = False
    ) -> tuple[list[tuple[int, int, bytes | None]], bool]:
        return self._catalogue.on(
            magazine, lambda found: inspection.scan_within(found, after, limit, max_bytes, pending_only)
        )

    @guarded
    def abandoned(
        self,
        magazine: str,
        shard: int,
        fired_before_ms: int,
        limit: int,
        *,
        dead_owners: bool = True,
        owner: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Abandoned]:
        return self._catalogue.on(
            magazine,
            lambda found: self._claims.abandoned(found, shard, fired_before_ms, limit, dead_owners, owner, max_bytes),
        )

    @guarded
    def metadata(self, magazine: str) -> list[ShardState]:
        return self._catalogue.on(magazine, inspection.metadata)

    @guarded
    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        return self._catalogue.on(magazine, inspection.oldest_enqueued_at_us)

    # -- waking

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        self._store.waiting_gate.enter()
        try:
            found = self._catalogue.find(magazine)
            self._waits.note(found.log, found.number)
            if timeout_s > 0 and found.log.later:
                return found.log.wait(found.number, seen, timeout_s, self._directory.clock.now_ms())
            return found.log.wait(found.number, seen, timeout_s)
        finally:
            self._store.waiting_gate.leave()

    def forewarn(self, magazine: str) -> None:
        found = self._catalogue.remembered(magazine)
        if found is not None:
            found.log.forewarn(found.number)

    def fire_next(
        self,
        magazine: str,
        limit: int,
        owner: str,
        seen: int,
        timeout_s: float,
        recall: Recall,
        max_bytes: int = 64 << 20,
    ) -> tuple[int, FireResult | None]:
        check_limit(limit)
        stored = self._store.stored_owner_bytes(owner)
        self._store.waiting_gate.enter()
        try:
            found = self._catalogue.find(magazine)
            self._waits.note(found.log, found.number)
            try:
                number, fired = self._scan.fire_next(found, limit, stored, seen, timeout_s, recall, max_bytes)
            except QueueNotFoundError:
                self._catalogue.forget(found)  # made anew, or removed: `fire` says which
                return seen + 1, None
        finally:
            self._store.waiting_gate.leave()
        if fired is not None:
            self.calls["fires"] += 1
            if fired.expired:
                self._expired_log.note(magazine, fired.expired)
        return number, fired

    def watch(self, magazine: str, seen: int, watch: Watch) -> int | None:
        self._store.waiting_gate.enter()
        try:
            found = self._catalogue.find(magazine)
            self._waits.note(found.log, found.number)
            return found.log.watch(found.number, seen, watch)
        finally:
            self._store.waiting_gate.leave()

    @guarded
    def on_load(self, magazine: str, seen: int, call: Callable[[], None]) -> Callable[[], None]:
        found = self._catalogue.find(magazine)
        wish = object()
        self._wishes[wish] = call

        def loaded() -> None:
            if self._wishes.pop(wish, None) is not None:
                call()

        cancel = self._directory.listener(found.durability).on_load(found.number, seen, loaded)

        def forget() -> None:
            self._wishes.pop(wish, None)
            cancel()

        return forget

    @guarded
    def wake(self, magazine: str) -> None:
        found = self._catalogue.find(magazine)
        found.log.wake(found.number)

    @guarded
    def awaited(self, magazine: str) -> bool:
        found = self._catalogue.find(magazine)
        return found.log.awaited(found.number)

    def wake_waiting(self) -> None:
        """Ends every `wait` of this store: for who closes it."""
        self._waits.wake()
        while self._wishes:
            with suppress(KeyError):
                self._wishes.popitem()[1]()
