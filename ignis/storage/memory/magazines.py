"""The messages of the memory store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ignis.errors import ClosedError, ConfigError, QueueMismatchError, QueueNotFoundError, UnreadableMessageError
from ignis.native import PackedBatch, Record
from ignis.storage import transactions
from ignis.storage.base import KEEP_TTL, MagazineStore
from ignis.storage.checks import (
    check_declaration,
    check_dues,
    check_limit,
    check_loadable,
    check_magazine,
    check_owner,
    check_shards,
)
from ignis.storage.later import LATER_SUFFIX, later_of
from ignis.storage.memory.later import MemoryLater
from ignis.storage.memory.state import MagazineState, StoreContext
from ignis.storage.records import (
    Abandoned,
    Claim,
    Fence,
    FireResult,
    LoadedOnce,
    Pointers,
    Run,
    ShardState,
    Transfer,
    joined_runs,
    runs_of_pointers,
)
from ignis.storage.repeats import dues_of_left, without_repeats
from ignis.storage.runs import Runs, difference, runs_of
from ignis.storage.write_batch import WriteBatch

__all__ = ["MemoryMagazines"]


class MemoryMagazines(MemoryLater, MagazineStore):
    """Magazines of one application. Thread-safe: every call holds the content's one lock."""

    quick = True
    calls_back = True

    def __init__(self, store: StoreContext) -> None:
        self._store = store

    def _get(self, magazine: str) -> MagazineState:
        found = self._store.content.magazines.get((self._store.scope, magazine))
        if found is None:
            check_magazine(magazine)
            raise QueueNotFoundError(f"magazine {magazine!r} is not declared in this store")
        return found

    def declare(self, magazine: str, shards: int, durability: str = "sync") -> None:
        check_declaration(magazine, shards, durability)
        with self._store.open_content() as content:
            known = content.magazines.get((self._store.scope, magazine))
            if known is None:
                content.magazines[self._store.scope, magazine] = MagazineState(
                    next(content.numbers), shards, durability
                )
                return
            if known.durability != durability:
                raise QueueMismatchError(
                    f"magazine {magazine!r} has durability {known.durability!r}; it cannot become {durability!r}"
                )
            if any(shard.records for shard in known.shards[shards:]):
                raise QueueMismatchError(
                    f"magazine {magazine!r} has {len(known.shards)} shards, records beyond shard {shards - 1}; asked for {shards}"
                )
            known.resize(shards)

    def load(self, magazine: str, batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> list[int]:
        expires_at_ms = self._store.clock.expiry_ms(ttl_s)
        with self._store.open_content():
            found = self._get(magazine)
            check_loadable(magazine, batches, len(found.shards))
            firsts = []
            for shard, batch in batches:
                target = found.shards[shard]
                firsts.append(target.load_pointer + 1)
                for record in batch.records():
                    target.append(record, expires_at_ms)
                batch.seal(found.number, shard, firsts[-1])
            self._store.calls["loads"] += 1
            self._notify(found)
            return firsts

    tells_repeats = True

    def load_once(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        remember_s: float,
        dues_ms: Sequence[Sequence[int]] | None = None,
    ) -> list[LoadedOnce]:
        if dues_ms is not None:
            check_dues(dues_ms, [batch.count for _, batch in batches])
        now_ms, until_ms = self._store.clock.now_ms(), self._store.clock.expiry_ms(remember_s)
        with self._store.open_content():
            known = self._get(magazine).known_ids
            for old in [id for id, until in known.items() if until <= now_ms]:
                del known[old]
            left, repeats = without_repeats([batch for _, batch in batches], lambda id: id in known)
            loading = [(shard, batch) for (shard, _), batch in zip(batches, left, strict=True) if batch is not None]
            if dues_ms is None:
                firsts = iter(self.load(magazine, loading, ttl_s))
            else:
                dues_left = dues_of_left([batch for _, batch in batches], left, dues_ms)
                firsts = iter(self.load_later(magazine, loading, dues_left, ttl_s))
            known.update((id, until_ms) for _, batch in loading for id in batch.ids())
            return [
                LoadedOnce(0, 0, known_before) if batch is None else LoadedOnce(next(firsts), batch.count, known_before)
                for batch, known_before in zip(left, repeats, strict=True)
            ]

    def fire(
        self, magazine: str, limit: int, owner: str, shards: Sequence[int] | None = None, max_bytes: int = 64 << 20
    ) -> FireResult:
        check_limit(limit)
        check_owner(owner)
        with self._store.open_content():
            found = self._get(magazine)
            self._store.calls["fires"] += 1
            if found.later is not None:
                self._move_due(magazine, found)
            now_ms, left, expired, more = self._store.clock.now_ms(), limit, 0, False
            claims: list[Claim] = []
            for number in self._order(found, shards):
                shard = found.shards[number]
                pointers: list[int] = []
                for pointer in list(shard.unfired()):
                    held = shard.records[pointer]
                    if held.expires_at_ms and held.expires_at_ms <= now_ms:
                        del shard.records[pointer]
                        shard.expired += 1
                        expired += 1
                    elif not left or (len(held.data) > max_bytes and (claims or pointers)):
                        more = True
                        break
                    else:
                        held.owner, held.fired_at_ms = owner, now_ms
                        pointers.append(pointer)
                        left -= 1
                        max_bytes -= len(held.data)
                    shard.fire_pointer = pointer
                if pointers:
                    claims.append(Claim(number, pointers, [shard.records[pointer].data for pointer in pointers]))
                    found.next_shard = number + 1
                if more:
                    break
        self._store.expired_log.note(magazine, expired)
        return FireResult(claims, {}, expired, more)

    @staticmethod
    def _order(magazine: MagazineState, shards: Sequence[int] | None) -> list[int]:
        count = len(magazine.shards)
        wanted = range(count) if shards is None else sorted(set(shards))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < count:
            raise ConfigError(f"shards {wanted[0]} to {wanted[-1]}, the magazine has {count}")
        begin = magazine.next_shard % count
        return [one for one in wanted if one >= begin] + [one for one in wanted if one < begin]

    def reload(self, magazine: str, pointers: Pointers, fence: Fence | None = None) -> int:
        with self._store.open_content():
            found = self._get(magazine)
            self._store.check_fence(fence)
            count = 0
            for number, there in _there(found, pointers):
                shard = found.shards[number]
                for pointer in there:
                    if pointer <= shard.fire_pointer:
                        held = shard.records.pop(pointer)
                        shard.append(held.data, held.expires_at_ms)
                        shard.reloaded += 1
                        count += 1
            self._store.calls["reloads"] += 1
            self._notify(found)
            return count

    def held(self, magazine: str, owner: str) -> list[Run]:
        with self._store.open_content():
            return joined_runs(
                run
                for number, shard in enumerate(self._get(magazine).shards)
                for run in runs_of_pointers(
                    number, [pointer for pointer, one in shard.records.items() if one.owner == owner]
                )
            )

    def renew(self, magazine: str, owner: str) -> bool:
        now_ms = self._store.clock.now_ms()
        with self._store.open_content():
            for shard in self._get(magazine).shards:
                for one in shard.records.values():
                    if one.owner == owner:
                        one.fired_at_ms = now_ms
            return True

    def claimants(self, magazine: str) -> dict[str, bool]:
        with self._store.open_content():
            shards = self._get(magazine).shards
            return {one.owner: False for shard in shards for one in shard.records.values() if one.owner}

    def renew_claims(
        self, magazine: str, pointers: Pointers, owner: str, *, to_owner: str | None = None
    ) -> dict[int, Sequence[int]]:
        for name in (owner, to_owner or owner):
            check_owner(name)
        now_ms = self._store.clock.now_ms()
        mine: dict[int, list[int]] = {}
        with self._store.open_content():
            found = self._get(magazine)
            for number, there in _there(found, pointers):
                records = found.shards[number].records
                mine[number] = [one for one in there if owner and records[one].owner == owner]
                for one in mine[number]:
                    records[one].fired_at_ms, records[one].owner = now_ms, to_owner or owner
        left = {number: difference(runs_of(many), runs_of(mine.get(number, []))) for number, many in pointers.items()}
        return {number: Runs(runs) for number, runs in left.items() if runs}

    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        count = expired = 0
        with self._store.open_content():
            found = self._get(magazine)
            self._store.calls["deletes"] += 1
            now_ms = self._store.clock.now_ms()
            for number, shard in enumerate(found.shards):
                there = [one for one in shard.there(pointers.get(number, ())) if one > shard.fire_pointer]
                late = sum(0 < shard.records[one].expires_at_ms <= now_ms for one in there)
                count += shard.retire(there) - late
                expired += late
                shard.expired += late
        self._store.expired_log.note(magazine, expired)
        return count

    def delete(self, magazine: str, pointers: Pointers) -> int:
        with self._store.open_content():
            found = self._get(magazine)
            self._store.calls["deletes"] += 1
            return sum(
                found.shards[number].retire(many)
                for number, many in pointers.items()
                if 0 <= number < len(found.shards)
            )

    def peek(self, magazine: str, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        with self._store.open_content():
            found = self._get(magazine)
            result: dict[int, dict[int, bytes | None]] = {}
            for number, there in _there(found, pointers):
                records = found.shards[number].records
                if there:
                    result[number] = {pointer: records[pointer].data for pointer in there}
            return result

    def scan(
        self, magazine: str, *, after: Mapping[int, int] | None = None, limit: int = 100, pending_only: bool = False
    ) -> list[tuple[int, int, bytes | None]]:
        with self._store.open_content():
            rows: list[tuple[int, int, bytes | None]] = []
            for number, shard in enumerate(self._get(magazine).shards):
                start = (after or {}).get(number, 0)
                if pending_only:
                    start = max(start, shard.fire_pointer)
                rows += ((number, pointer, held.data) for pointer, held in shard.records.items() if pointer > start)
                if len(rows) >= limit:
                    break
            return rows[:limit]

    def scan_within(
        self, magazine: str, *, after: Mapping[int, int], limit: int, max_bytes: int, pending_only: bool = False
    ) -> tuple[list[tuple[int, int, bytes | None]], bool]:
        # They are in memory already, and found in one pass.
        rows = self.scan(magazine, after=after, limit=limit, pending_only=pending_only)
        for index, row in enumerate(rows):
            if max_bytes <= 0 and index:
                return rows[:index], True
            max_bytes -= len(row[2] or b"") + transactions.BESIDE_BYTES
        return rows, False

    def transfer(
        self,
        source: str,
        target: str,
        items: Sequence[Transfer],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        expires_at_ms = None if ttl_s == KEEP_TTL else self._store.clock.expiry_ms(ttl_s)
        with self._store.open_content():
            origin, destination = self._get(source), self._get(target)
            self._store.check_fence(fence)
            check_shards(target, (item.target_shard for item in items), len(destination.shards))
            # All of them out before the first goes in: within one magazine an arrival is not one of the items.
            moving: list[tuple[Transfer, int]] = []
            for item in items:
                shard = origin.shards[item.shard] if 0 <= item.shard < len(origin.shards) else None
                held = None if shard is None else shard.records.get(item.pointer)
                if shard is not None and held is not None and shard.retire([item.pointer]):
                    moving.append((item, held.expires_at_ms if expires_at_ms is None else expires_at_ms))
            for item, ends_at_ms in moving:
                destination.shards[item.target_shard].append(item.record, ends_at_ms)
            self._store.calls["transfers"] += 1
            self._notify(destination)
            return len(moving)

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
        ahead_ms = self._store.clock.ahead_ms()
        before_ms = fired_before_ms + ahead_ms
        with self._store.open_content():
            found = self._get(magazine)
            if not 0 <= shard < len(found.shards):
                return []
            rows = [
                Abandoned(shard, pointer, held.data, held.fired_at_ms - ahead_ms, held.owner, owner is not None)
                for pointer, held in found.shards[shard].records.items()
                if held.owner and (held.fired_at_ms < before_ms if owner is None else held.owner == owner)
            ][:limit]
        if max_bytes is not None:
            totals = itertools.accumulate(len(one.record or b"") for one in rows)
            rows = rows[: max(1, sum(total <= max_bytes for total in totals))]
        return rows

    def expire(self, magazine: str, limit: int = 10_000) -> int:
        with self._store.open_content():
            now_ms, count = self._store.clock.now_ms(), 0
            for shard in self._get(magazine).shards:
                for pointer in list(shard.unfired()):
                    held = shard.records[pointer]
                    if not held.expires_at_ms or held.expires_at_ms > now_ms or count >= limit:
                        break
                    del shard.records[pointer]
                    shard.fire_pointer = pointer
                    shard.expired += 1
                    count += 1
        self._store.expired_log.note(magazine, count)
        return count

    def metadata(self, magazine: str) -> list[ShardState]:
        with self._store.open_content():
            found = self._get(magazine)
            return [
                ShardState(
                    number,
                    shard.load_pointer,
                    shard.fired_to(),
                    shard.load_pointer - shard.reloaded,
                    shard.fired_to() - shard.reloaded,
                    sum(bool(held.owner) for held in shard.records.values()),
                    found.incarnation,
                    shard.expired,
                )
                for number, shard in enumerate(found.shards)
            ]

    def oldest_enqueued_at_us(self, magazine: str) -> int | None:
        with self._store.open_content():
            heads = []
            for shard in self._get(magazine).shards:
                for pointer in shard.unfired():
                    try:
                        heads.append(Record(shard.records[pointer].data).enqueued_at_us)
                    except UnreadableMessageError:
                        continue
                    break
            return min(heads, default=None)

    def wait(self, magazine: str, seen: int, timeout_s: float) -> int:
        store = self._store
        with store.open_content():
            found = self._get(magazine)
            store.waiting += 1
            found.waiting += timeout_s > 0
            try:
                until = time.monotonic() + timeout_s
                while not store.closed:
                    left_s = until - time.monotonic()
                    asleep_s = self._asleep_s(magazine, found, left_s)
                    if found.sequence != seen or left_s <= 0:
                        break
                    store.content.changed.wait(asleep_s)
                if store.closed:
                    raise ClosedError("store is closed")
                return found.sequence
            finally:
                store.waiting -= 1
                found.waiting -= timeout_s > 0
                if store.closed:
                    store.content.changed.notify_all()

    def on_load(self, magazine: str, seen: int, call: Callable[[], None]) -> Callable[[], None]:
        with self._store.open_content():
            found, wish = self._get(magazine), object()
            if found.sequence != seen:
                call()
            else:
                found.listeners[wish] = self._store, call
                if found.later is not None:
                    self._set_alarm(found)
        return lambda: found.listeners.pop(wish, None) and None

    def awaited(self, magazine: str) -> bool:
        with self._store.open_content():
            found = self._get(magazine)
            return found.waiting > 0 or bool(found.listeners)

    def wake(self, magazine: str) -> None:
        with self._store.open_content():
            self._notify(self._get(magazine))

    def _notify(self, magazine: MagazineState) -> None:
        magazine.sequence += 1
        self._store.content.changed.notify_all()
        if magazine.listeners:
            magazine.tell()

    def drop(self, magazine: str, *, only_empty: bool = False) -> bool:
        check_magazine(magazine)
        with self._store.open_content() as content:
            found = content.magazines.get((self._store.scope, magazine))
            going = [one for one in (found, found.later if found is not None else None) if one is not None]
            if only_empty and any(shard.records for one in going for shard in one.all_shards):
                return False
            content.magazines.pop((self._store.scope, magazine), None)
            if magazine.endswith(LATER_SUFFIX):
                main = content.magazines.get((self._store.scope, magazine.removesuffix(LATER_SUFFIX)))
                if main is not None:
                    main.later = None
            else:
                content.magazines.pop((self._store.scope, later_of(magazine)), None)
            content.changed.notify_all()
            if found is not None:
                found.tell()
            return True

    def names(self) -> list[str]:
        with self._store.open_content():
            return sorted(name for scope, name in self._store.content.magazines if scope == self._store.scope)

    # -- without waiting: the same calls, once the lock was had without a wait

    def try_together(self, writes: Sequence[WriteBatch]) -> None:
        if not self._store.content.changed.acquire(blocking=False):
            return
        try:
            for write in writes:
                try:
                    if write.batches is None:
                        write.count = self.delete(write.magazine, write.pointers)
                    else:
                        write.firsts = self.load(write.magazine, write.batches, write.ttl_s)
                except Exception as exc:
                    write.error = exc
                write.done = write.durable = True
        finally:
            self._store.content.changed.release()

    def try_fire(self, magazine: str, limit: int, owner: str, max_bytes: int = 64 << 20) -> FireResult | None:
        if not self._store.content.changed.acquire(blocking=False):
            return None
        try:
            return self.fire(magazine, limit, owner, max_bytes=max_bytes)
        finally:
            self._store.content.changed.release()


def _there(magazine: MagazineState, pointers: Pointers) -> Iterator[tuple[int, list[int]]]:
    """Shard and those of its pointers that have a record, in order: records that are reloaded together keep theirs."""
    for number in sorted(pointers):
        if 0 <= number < len(magazine.shards):
            yield number, magazine.shards[number].there(pointers[number])
