"""What waits for its time in the memory store: a magazine beside the main one, and a heap of due times."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence

from ignis.native import PackedBatch
from ignis.stacks import start_thread
from ignis.storage.checks import check_dues, check_loadable, check_shards
from ignis.storage.later import MOVE_LIMIT, Delayed, KeepsLater, MovedDue, later_of
from ignis.storage.memory.state import MagazineState, StoreContext
from ignis.storage.records import KEEP_TTL, Fence, Pointers, Transfer

__all__ = ["MemoryLater"]


class MemoryLater(KeepsLater):
    """The later magazines of one application. Thread-safe: every call holds the content's one lock."""

    keeps_later = True
    _store: StoreContext

    def _get(self, magazine: str) -> MagazineState:
        raise NotImplementedError

    def _notify(self, magazine: MagazineState) -> None:
        raise NotImplementedError

    def load_later(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        dues_ms: Sequence[Sequence[int]],
        ttl_s: float | None,
    ) -> list[int]:
        check_dues(dues_ms, [batch.count for _, batch in batches])
        expires_at_ms = self._store.clock.expiry_ms(ttl_s)
        with self._store.open_content():
            main = self._get(magazine)
            check_loadable(magazine, batches, len(main.shards))
            if not batches:
                return []
            later = self._later(magazine, main)
            firsts = []
            for (shard, batch), dues in zip(batches, dues_ms, strict=True):
                firsts.append(later.shards[shard].load_pointer + 1)
                for record, due_ms in zip(batch.records(), dues, strict=True):
                    self._put(main, later, shard, record, expires_at_ms, due_ms)
                batch.seal(later.number, shard, firsts[-1])
            self._store.calls["loads"] += 1
            self._reckon(main)
            return firsts

    def defer(
        self,
        magazine: str,
        items: Sequence[Transfer],
        dues_ms: Sequence[int],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        check_dues([dues_ms], [len(items)])
        expires_at_ms = None if ttl_s == KEEP_TTL else self._store.clock.expiry_ms(ttl_s)
        with self._store.open_content():
            main = self._get(magazine)
            self._store.check_fence(fence)
            check_shards(magazine, (item.target_shard for item in items), len(main.shards))
            count = 0
            for item, due_ms in zip(items, dues_ms, strict=True):
                shard = main.shards[item.shard] if 0 <= item.shard < len(main.shards) else None
                held = None if shard is None else shard.records.get(item.pointer)
                if shard is None or held is None or not shard.retire([item.pointer]):
                    continue
                ends_at_ms = held.expires_at_ms if expires_at_ms is None else expires_at_ms
                self._put(main, self._later(magazine, main), item.target_shard, item.record, ends_at_ms, due_ms)
                count += 1
            self._store.calls["transfers"] += 1
            self._reckon(main)
            return count

    def next_due_ms(self, magazine: str) -> int | None:
        with self._store.open_content():
            return self._next_due_ms(self._get(magazine))

    def due_in_s(self, magazine: str) -> float | None:
        due_ms = self.next_due_ms(magazine)
        return None if due_ms is None else self._store.clock.until_s(due_ms)

    def move_due(self, magazine: str, limit: int = MOVE_LIMIT, fence: Fence | None = None) -> MovedDue:
        with self._store.open_content():
            main = self._get(magazine)
            self._store.check_fence(fence)
            moved, expired = self._move_due(magazine, main, limit)
            return MovedDue(moved, expired, self._next_due_ms(main))

    def list_later(
        self, magazine: str, *, after: tuple[int, int, int] | None = None, limit: int = 100
    ) -> list[Delayed]:
        with self._store.open_content():
            main = self._get(magazine)
            later = main.later
            if later is None:
                return []
            there = (one for one in main.dues if _exists(later, *one[1:]) and (after is None or one > after))
            return [
                Delayed(due_ms, shard, pointer, later.shards[shard].records[pointer].data)
                for due_ms, shard, pointer in heapq.nsmallest(limit, there)
            ]

    def list_later_within(
        self, magazine: str, *, after: tuple[int, int, int] | None, limit: int, max_bytes: int
    ) -> tuple[list[Delayed], bool]:
        rows = self.list_later(magazine, after=after, limit=limit)  # they are in memory already, and found in one pass
        left = max_bytes
        for index, one in enumerate(rows):
            left -= len(one.record or b"")
            if left < 0 and index:
                return rows[:index], True
        return rows, False

    def run_now(self, magazine: str, pointers: Pointers) -> int:
        with self._store.open_content():
            main = self._get(magazine)
            wanted = [] if main.later is None else [
                (shard, pointer)
                for shard, many in sorted(pointers.items())
                if 0 <= shard < len(main.later.shards)
                for pointer in main.later.shards[shard].there(many)
            ]  # fmt: skip
            moved, expired = self._move(magazine, main, wanted)
            return moved + expired

    def cancel_later(self, magazine: str, pointers: Pointers) -> int:
        with self._store.open_content():
            later = self._get(magazine).later
            if later is None:
                return 0
            self._store.calls["deletes"] += 1
            return sum(
                later.shards[shard].retire(many) for shard, many in pointers.items() if 0 <= shard < len(later.shards)
            )

    def delayed(self, magazine: str) -> int:
        with self._store.open_content():
            later = self._get(magazine).later
            return 0 if later is None else sum(len(shard.records) for shard in later.shards)

    def expired_later(self, magazine: str) -> int:
        with self._store.open_content():
            later = self._get(magazine).later
            return 0 if later is None else sum(shard.expired for shard in later.all_shards)

    # -- for whoever holds the content

    def _later(self, magazine: str, main: MagazineState) -> MagazineState:
        if main.later is None:
            main.later = MagazineState(next(self._store.content.numbers), len(main.all_shards), main.durability)
            self._store.content.magazines[self._store.scope, later_of(magazine)] = main.later
        elif len(main.later.shards) < len(main.shards):
            main.later.resize(len(main.shards))
        return main.later

    @staticmethod
    def _put(
        main: MagazineState, later: MagazineState, shard: int, record: bytes, expires_at_ms: int, due_ms: int
    ) -> None:
        later.shards[shard].append(record, expires_at_ms)
        heapq.heappush(main.dues, (due_ms, shard, later.shards[shard].load_pointer))

    @staticmethod
    def _next_due_ms(main: MagazineState) -> int | None:
        while main.dues and not _exists(main.later, *main.dues[0][1:]):
            heapq.heappop(main.dues)  # it was cancelled, or moved by hand
        return main.dues[0][0] if main.dues else None

    def _move_due(self, magazine: str, main: MagazineState, limit: int = MOVE_LIMIT) -> tuple[int, int]:
        """What is due goes to the main magazine: how many, and how many had expired."""
        now_ms = self._store.clock.now_ms()
        wanted: list[tuple[int, int]] = []
        while len(wanted) < limit and (due_ms := self._next_due_ms(main)) is not None and due_ms <= now_ms:
            wanted.append(heapq.heappop(main.dues)[1:])
        return self._move(magazine, main, wanted) if wanted else (0, 0)

    def _move(self, magazine: str, main: MagazineState, wanted: Sequence[tuple[int, int]]) -> tuple[int, int]:
        now_ms, moved, expired = self._store.clock.now_ms(), 0, 0
        shards = [] if main.later is None else main.later.shards
        for number, pointer in wanted:
            shard = shards[number]
            held = shard.records[pointer]
            shard.retire([pointer])
            if held.expires_at_ms and held.expires_at_ms <= now_ms:
                shard.expired += 1
                expired += 1
            else:
                main.shards[number % len(main.shards)].append(held.data, held.expires_at_ms)
                moved += 1
        if moved:
            self._notify(main)
        self._store.expired_log.note(later_of(magazine), expired)
        return moved, expired

    def _reckon(self, main: MagazineState) -> None:
        """Who sleeps looks again when the next message is due, which may be earlier now."""
        self._store.content.changed.notify_all()
        if main.listeners:
            self._set_alarm(main)

    def _asleep_s(self, magazine: str, main: MagazineState, most_s: float) -> float:
        """So long, and at most ``most_s``, nothing is due. What is has been moved."""
        if main.later is None:
            return most_s
        self._move_due(magazine, main)
        due_ms = self._next_due_ms(main)
        return most_s if due_ms is None else min(most_s, self._store.clock.until_s(due_ms))

    def _set_alarm(self, main: MagazineState) -> None:
        """Those who listen are called when the next message is due: they claim, and that moves it."""
        due_ms = self._next_due_ms(main)
        if due_ms is None or (main.alarm is not None and main.alarm[0] <= due_ms):
            return
        if main.alarm is not None:
            main.alarm[1].cancel()
        wait_s = self._store.clock.until_s(due_ms)
        timer = threading.Timer(min(wait_s, threading.TIMEOUT_MAX), self._ring, [main])
        timer.daemon = True
        start_thread(timer)
        main.alarm = due_ms, timer

    def _ring(self, main: MagazineState) -> None:
        with self._store.content.changed:  # of all stores of the name: this one may be closed by now
            main.alarm = None
            due_ms = self._next_due_ms(main)
            if due_ms is not None and due_ms <= self._store.clock.now_ms():
                self._notify(main)
            elif main.listeners:
                self._set_alarm(main)


def _exists(later: MagazineState | None, shard: int, pointer: int) -> bool:
    return later is not None and shard < len(later.shards) and pointer in later.shards[shard].records
