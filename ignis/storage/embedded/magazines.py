"""The messages of the embedded store: `MagazineStore` over segments, claims and the committers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ignis.errors import ConfigError, QueueMismatchError, UnreadableMessageError
from ignis.native import PackedBatch, Record, segment_columns
from ignis.storage.base import (
    KEEP_TTL,
    Abandoned,
    Fence,
    FireResult,
    LoadedOnce,
    MagazineStore,
    Pointers,
    Run,
    ShardState,
    Transfer,
    group_pointers,
    joined_runs,
)
from ignis.storage.checks import (
    check_declaration,
    check_epoch,
    check_limit,
    check_magazine,
    check_owner,
    draw_incarnation,
)
from ignis.storage.columns import RecordColumns
from ignis.storage.embedded import catalogue, claims, segments
from ignis.storage.embedded.at_once import AtOnce
from ignis.storage.embedded.calls import guarded
from ignis.storage.embedded.catalogue import Catalogue, MagazineInfo
from ignis.storage.embedded.claims import Held
from ignis.storage.embedded.delete_waiting import delete_waiting
from ignis.storage.embedded.environment import Environment, Txn
from ignis.storage.embedded.firing import Walk
from ignis.storage.embedded.known import LoadOnce
from ignis.storage.embedded.locks import Step, read_epoch
from ignis.storage.embedded.operations import Delete, Load, Move, Place, Reload, pack_transfers, still_there
from ignis.storage.embedded.segments import Retired
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.runs import Runs, runs_of
from ignis.storage.together import Unflushed, Write

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedMagazines"]

_ANY_SIZE = 1 << 62


class EmbeddedMagazines(MagazineStore):
    """Magazines of one application. Thread-safe."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._directory = store.directory
        self._catalogue = Catalogue(store.directory.data("sync").env, store.scope)
        self._rotation: dict[str, int] = {}
        self._expired_log = ExpiredLog()
        self._at_once = AtOnce(store, self._catalogue, lambda info: self._order(info, None), self._served)
        self.calls = {"loads": 0, "fires": 0, "deletes": 0, "reloads": 0, "transfers": 0}

    # -- the catalogue

    @guarded
    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        check_declaration(magazine, shards, durability)
        env = self._directory.data(durability).env
        scope = self._store.scope
        with self._directory.data("sync").env.reading() as txn:
            known = catalogue.get(txn, scope, magazine)
        wanted = (durability, shards)
        if known is not None and (known.durability, known.shards) == wanted and known.incarnation:
            return

        def run(txn: Txn) -> None:
            info = catalogue.get(txn, scope, magazine)
            if info is None:
                info = MagazineInfo(catalogue.next_id(txn), magazine, shards, durability, draw_incarnation())
            elif info.durability != durability:
                raise QueueMismatchError(
                    f"magazine {magazine!r} has durability {info.durability!r}; it cannot become {durability!r}"
                )
            elif shards < info.shards and _has_records(env, txn, info, shards):
                raise QueueMismatchError(
                    f"magazine {magazine!r} has {info.shards} shards with records beyond shard {shards - 1}; asked for {shards}"
                )
            incarnation = info.incarnation or draw_incarnation()
            catalogue.put(txn, scope, MagazineInfo(info.id, magazine, shards, durability, incarnation))

        self._directory.data("sync").committer.submit(Step(run))
        self._directory.board.notify(self._directory.catalogue_event)

    @guarded
    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        check_magazine(magazine)
        scope = self._store.scope

        def run(txn: Txn) -> tuple[bool, int | None]:
            if only_empty:
                info = catalogue.get(txn, scope, magazine)
                if info is not None and _has_records(self._env(info), txn, info, 0):
                    return False, None
            return True, catalogue.drop(txn, scope, magazine)

        dropped, magazine_id = self._directory.data("sync").committer.submit(Step(run))
        if magazine_id is not None:
            # Before the records go: whoever loads from now on looks the magazine up again and does not find it.
            self._directory.board.notify(self._directory.catalogue_event)
            self._directory.forget_records(magazine_id)
        return bool(dropped)

    @guarded
    def names(self) -> list[str]:
        with self._directory.data("sync").env.reading() as txn:
            prefix = self._store.scope.prefix(b"M")
            return sorted(catalogue.text_of(key[len(prefix) :]) for key, _ in catalogue.items(txn, prefix))

    def _find(self, magazine: str) -> MagazineInfo:
        return self._catalogue.find(magazine, self._directory.board.sequence(self._directory.catalogue_event))

    def _place(self, magazine: str) -> Place:
        return Place(self._directory, self._catalogue, self._find(magazine))

    def _env(self, info: MagazineInfo) -> Environment:
        return self._directory.data(info.durability).env

    # -- the way of a message

    @guarded
    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        place = self._place(magazine)
        if not batches:
            return []
        expires_at_ms = self._directory.clock.expiry_ms(ttl_s)
        if expires_at_ms:
            for _, batch in batches:
                batch.set_expiry(expires_at_ms)
        firsts: list[int] = self._directory.data(place.info.durability).committer.submit(Load(place, batches))
        self.calls["loads"] += 1
        return firsts

    tells_repeats = True

    @guarded
    def load_once(
        self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None, remember_s: float
    ) -> list[LoadedOnce]:
        place = self._place(magazine)
        if not batches:
            return []
        clock = self._directory.clock
        load = LoadOnce(place, batches, clock.expiry_ms(ttl_s), clock.expiry_ms(remember_s))
        loaded: list[LoadedOnce] = self._directory.data(place.info.durability).committer.submit(load)
        self.calls["loads"] += 1
        return loaded

    @guarded
    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        check_limit(limit)
        check_owner(owner)
        info = self._find(magazine)
        walk = Walk(self._directory, info, limit, owner, self._order(info, shards), max_bytes)
        try:
            self._directory.claims.transact(walk.run)
            fired = walk.read()
        finally:
            walk.end()
        self.calls["fires"] += 1
        if walk.last_shard >= 0:
            self._served(magazine, walk.last_shard)
        expired = self._retire_expired(info, walk)
        return FireResult(fired, {}, expired, walk.more)

    @guarded
    def claim(self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None) -> list[Run]:
        """See `MagazineStore.claim`. No record is read."""
        check_limit(limit)
        check_owner(owner)
        info = self._find(magazine)
        order = self._order(info, shards)
        walk = Walk(self._directory, info, limit, owner, order, _ANY_SIZE, is_process=False)
        try:
            self._directory.claims.transact(walk.run)
            runs = walk.runs()
        finally:
            walk.end()
        self.calls["fires"] += 1
        self._retire_expired(info, walk)
        return runs

    @guarded
    def held(self, magazine: str, owner: str) -> list[Run]:
        info = self._find(magazine)
        runs: list[Run] = []
        with self._directory.claims.reading() as txn, self._env(info).reading() as data:
            for claim in claims.named(txn, self._directory.owners, info.id, owner):
                for found, low, high, bitmap, _ in segments.walk(data, info.id, claim.shard, claim.first, claim.stop):
                    count = len(segments.live(found, bitmap, low, high))
                    if count:
                        runs.append(Run(claim.shard, low, high - 1, count))
        return joined_runs(runs)

    @guarded
    def renew(self, magazine: str, owner: str) -> bool:
        info, now_ms = self._find(magazine), self._directory.clock.now_ms()
        owners = self._directory.owners
        self._directory.claims.transact(lambda txn: claims.renew(txn, owners, info.id, owner, now_ms))
        return True

    @guarded
    def claimants(self, magazine: str) -> dict[str, bool]:
        info = self._find(magazine)
        found: dict[int, tuple[str, bool]] = {}
        with self._directory.claims.reading() as txn:
            for claim in claims.claims_of(txn, info.id):
                if claim.length and claim.owner_id not in found:
                    self._owner(txn, claim.owner_id, found)
        # A name may have stood for several processes: it is dead when all of them are.
        names: dict[str, bool] = {}
        for name, dead in found.values():
            names[name] = dead and names.get(name, True)
        return names

    @guarded
    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        for name in (owner, to_owner or owner):
            check_owner(name)
        info, now_ms = self._find(magazine), self._directory.clock.now_ms()
        owners, env = self._directory.owners, self._env(info)
        asked = {shard: runs_of(many) for shard, many in pointers.items()}
        with self._directory.claims.reading() as known, env.reading() as data:
            if not claims.holds_any(known, data, owners, info.id, asked, owner):
                # Who names what it does not hold keeps nobody from writing.
                return {shard: Runs(runs) for shard, runs in asked.items() if runs}

        def run(txn: Txn) -> dict[int, Sequence[int]]:
            # After the claims' lock was taken: whatever was retired before this call is seen to be gone.
            with env.reading() as data:
                new_id = None if to_owner is None else owners.number(txn, to_owner)
                return claims.renew_some(txn, data, owners, info.id, asked, owner, now_ms, new_id)

        lost = self._directory.claims.transact(run)
        if to_owner is not None:
            owners.written(to_owner)
        return lost

    def _served(self, magazine: str, shard: int) -> None:
        self._rotation[magazine] = shard + 1

    def _order(self, info: MagazineInfo, shards: Sequence[int] | None) -> Sequence[int]:
        """The shards to look at, beginning behind the one that was served last."""
        begin = self._rotation.get(info.name, 0) % info.shards
        if shards is None:
            return range(info.shards) if not begin else [*range(begin, info.shards), *range(begin)]
        wanted = sorted(set(shards))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < info.shards:
            raise ConfigError(f"shards {wanted[0]} to {wanted[-1]} of magazine {info.name!r}, which has {info.shards}")
        return [shard for shard in wanted if shard >= begin] + [shard for shard in wanted if shard < begin]

    def _retire_expired(self, info: MagazineInfo, walk: Walk) -> int:
        if not walk.expired_count:
            return 0
        place = Place(self._directory, self._catalogue, info)
        retire = Delete(place, walk.expired_pointers(), expired=True)
        count: int = self._directory.data(info.durability).committer.submit(retire)
        self._expired_log.note(info.name, count)
        return count

    @guarded
    def expire(self, magazine: str, limit: int = 10_000) -> int:
        info = self._find(magazine)
        walk = Walk(self._directory, info, 0, self._store.owner, range(info.shards), 0, most_expired=limit)
        try:
            self._directory.claims.transact(walk.run)
            walk.read()
        finally:
            walk.end()
        return self._retire_expired(info, walk)

    @guarded
    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        place = self._place(magazine)
        count: int = self._directory.data(place.info.durability).committer.submit(Reload(place, pointers, fence))
        self.calls["reloads"] += 1
        return count

    @guarded
    def delete(self, magazine: str, pointers: Pointers) -> int:
        place = self._place(magazine)
        count: int = self._directory.data(place.info.durability).committer.submit(Delete(place, pointers))
        self.calls["deletes"] += 1
        return count

    @guarded
    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        place = self._place(magazine)
        self.calls["deletes"] += 1
        count, expired = delete_waiting(place, self._env(place.info), pointers)
        self._expired_log.note(place.info.name, expired)
        return count

    @guarded
    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        from_place, to_place = self._place(source), self._place(target)
        expires_at_ms = None if ttl_s == KEEP_TTL else self._directory.clock.expiry_ms(ttl_s)
        self.calls["transfers"] += 1
        if from_place.info.durability == to_place.info.durability:
            move = Move(from_place, to_place, items, expires_at_ms, fence)
            moved: int = self._directory.data(from_place.info.durability).committer.submit(move)
            return moved
        with self._env(from_place.info).reading() as txn:
            moving = still_there(txn, from_place.info, items)
        if not moving:
            self._check_fence(fence)
            return 0
        load = Load(to_place, pack_transfers(moving, expires_at_ms), fence)
        self._directory.data(to_place.info.durability).committer.submit(load)
        gone = Delete(from_place, group_pointers((item.shard, item.pointer) for item, _ in moving))
        self._directory.data(from_place.info.durability).committer.submit(gone)
        return len(moving)

    def _check_fence(self, fence: Fence | None) -> None:
        if fence is not None:
            with self._directory.data("sync").env.reading() as txn:
                epoch = read_epoch(txn, self._store.scope, fence.scope)
            check_epoch(epoch, fence)

    # -- without waiting

    quick = True

    def try_together(self, writes: Sequence[Write]) -> Unflushed | None:
        noted = self._at_once.write(writes)
        for write in writes:
            self.calls["deletes" if write.batches is None else "loads"] += write.done
        return noted

    def try_fire(self, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20) -> FireResult | None:
        fired = self._at_once.fire(magazine, limit, owner, max_bytes)
        self.calls["fires"] += fired is not None
        return fired

    def catch_up(self) -> bool:
        return self._at_once.catch_up()

    # -- looking

    @guarded
    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        info = self._find(magazine)
        result: dict[int, dict[int, bytes | None]] = {}
        with self._env(info).reading() as txn:
            for shard, many in pointers.items():
                there: dict[int, bytes | None] = {}
                if 0 <= shard < info.shards:
                    for found, low, high, bitmap, value in segments.walk_runs(txn, info.id, shard, runs_of(many)):
                        records = segments.read_live(value, found, low, high, bitmap)
                        there.update(zip(segments.live(found, bitmap, low, high), records, strict=True))
                if there:
                    result[shard] = there
        return result

    @guarded
    def peek_columns(self, magazine: str, shard: int, pointers: range, *, lines: bool = False) -> RecordColumns:
        info = self._find(magazine)
        with self._env(info).reading() as txn:
            wanted = segments.walk(txn, info.id, shard, pointers.start, pointers.stop)
            parts = [
                (
                    value,
                    found.first,
                    found.last,
                    low,
                    high,
                    segments.bitmap_bytes(bitmap, found.length) if bitmap else None,
                )
                for found, low, high, bitmap, value in wanted
            ]
            return RecordColumns(*segment_columns(parts, info.id, shard, lines=lines))

    @guarded
    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        info = self._find(magazine)
        after = after or {}
        rows: list[tuple[int, int, bytes | None]] = []
        with self._directory.claims.reading() as txn, self._env(info).reading() as data:
            fired = claims.fire_pointers(txn, data, info.id, info.shards) if pending_only else [0] * info.shards
            for shard in range(info.shards):
                start = max(after.get(shard, 0), fired[shard]) + 1
                for found, low, high, bitmap, value in segments.walk(data, info.id, shard, start, 1 << 63):
                    if len(rows) >= limit:
                        return rows
                    pointers = segments.live(found, bitmap, low, high)[: limit - len(rows)]
                    if pointers:
                        records = segments.read_live(value, found, low, pointers[-1] + 1, bitmap)
                        rows += zip([shard] * len(pointers), pointers, records, strict=True)
        return rows

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
    ) -> list[Abandoned]:
        info = self._find(magazine)
        ahead_ms = self._directory.clock.ahead_ms()
        before_ms = fired_before_ms + ahead_ms if fired_before_ms else 0
        found: list[Abandoned] = []
        finished: list[Held] = []
        owners: dict[int, tuple[str, bool]] = {}
        # The claims first: a claim whose records are gone in a later state of the data has nothing left for good.
        with self._directory.claims.reading() as txn, self._env(info).reading() as data:
            for claim, stop in claims.with_ends(txn, data, info.id, info.shards, shard):
                if len(found) >= limit:
                    break
                holder, dead = owners.get(claim.owner_id) or self._owner(txn, claim.owner_id, owners)
                if owner is not None:
                    if holder != owner:
                        continue
                    dead = True
                elif claim.fired_at_ms >= before_ms and not (dead and dead_owners):
                    continue
                before = len(found)
                fired_at_ms = claim.fired_at_ms - ahead_ms if claim.fired_at_ms else 0
                for segment, low, high, bitmap, value in segments.walk(data, info.id, shard, claim.first, stop):
                    pointers = segments.live(segment, bitmap, low, high)
                    records = segments.read_live(value, segment, low, high, bitmap)
                    found += [
                        Abandoned(shard, pointer, record, fired_at_ms, holder, dead)
                        for pointer, record in zip(pointers, records, strict=True)
                    ]
                if len(found) == before:
                    finished.append(claim)
        if finished:
            self._directory.claims.transact(lambda txn: claims.forget_claims(txn, info.id, finished))
        return found[:limit]

    def _owner(self, txn: Txn, number: int, owners: dict[int, tuple[str, bool]]) -> tuple[str, bool]:
        name, identity = self._directory.owners.look_up(txn, number)
        owners[number] = name, identity is not None and identity.provably_dead(self._directory.here)
        return owners[number]

    @guarded
    def metadata(self, magazine: str) -> list[ShardState]:
        info = self._find(magazine)
        in_flight = [0] * info.shards
        with self._directory.claims.reading() as txn, self._env(info).reading() as data:
            fired = claims.fire_pointers(txn, data, info.id, info.shards)
            retired = Retired(data, info.id, info.shards)
            expired = segments.read_expired(data, info.id, info.shards)
            cursor = data.cursor()
            loaded = [segments.load_pointer(cursor, retired, info.id, shard) for shard in range(info.shards)]
            # What is behind the last record was removed without ever being claimed.
            empty = {
                shard
                for shard in range(info.shards)
                if loaded[shard] > fired[shard] and segments.first_live(data, info.id, shard, fired[shard] + 1) is None
            }
            for claim, stop in claims.with_ends(txn, data, info.id, info.shards):
                if claim.shard < info.shards:
                    for segment, low, high, bitmap, _ in segments.walk(data, info.id, claim.shard, claim.first, stop):
                        in_flight[claim.shard] += len(segments.live(segment, bitmap, low, high))
        states = []
        for shard in range(info.shards):
            # The data are read a moment later than the claims, never earlier.
            fire_pointer = loaded[shard] if shard in empty else min(fired[shard], loaded[shard])
            reloaded = retired.reloaded[shard]
            states.append(
                ShardState(
                    shard,
                    loaded[shard],
                    fire_pointer,
                    loaded[shard] - reloaded,
                    fire_pointer - reloaded,
                    in_flight[shard],
                    info.incarnation,
                    expired[shard],
                )
            )
        return states

    @guarded
    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        info = self._find(magazine)
        oldest: int | None = None
        with self._directory.claims.reading() as txn, self._env(info).reading() as data:
            fired = claims.fire_pointers(txn, data, info.id, info.shards)
            for shard in range(info.shards):
                at_us = _head_enqueued_at_us(data, info, shard, fired[shard] + 1)
                if at_us is not None and (oldest is None or at_us < oldest):
                    oldest = at_us
        return oldest

    # -- waking

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        store = self._store
        known = self._at_once.remembered(magazine) if seen < 0 else None
        if known is not None:
            return self._directory.board.sequence(known.id % self._directory.events)
        event = self._event(magazine)
        store.enter_wait()
        try:
            with store.waits.on(event):
                return self._directory.board.wait(event, seen, timeout_s)
        finally:
            store.leave_wait()

    @guarded
    def _event(self, magazine: str) -> int:
        return self._find(magazine).id % self._directory.events

    @guarded
    def wake(self, magazine: str) -> None:
        self._directory.board.notify(self._find(magazine).id % self._directory.events)


def _has_records(env: Environment, txn: Txn, info: MagazineInfo, low_shard: int) -> bool:
    if info.durability == "sync":
        return segments.has_records(txn, info.id, low_shard)
    with env.reading() as other:
        return segments.has_records(other, info.id, low_shard)


def _head_enqueued_at_us(data: Txn, info: MagazineInfo, shard: int, start: int) -> int | None:
    """Of the first readable record from ``start`` on."""
    for found, low, high, bitmap, value in segments.walk(data, info.id, shard, start, 1 << 63):
        for pointer in segments.live(found, bitmap, low, high):
            record = segments.read_live(value, found, pointer, pointer + 1, 0)[0]
            if record is not None:
                try:
                    return Record(record).enqueued_at_us
                except UnreadableMessageError:
                    continue
    return None
