"""What waits for its time in the Aerospike store: who moves it, when, and who is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ignis.errors import IgnisError, QueueNotFoundError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native import PackedBatch
from ignis.storage.aerospike import remove
from ignis.storage.aerospike.append import Item
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.connection import Connection
from ignis.storage.aerospike.due_index import Row
from ignis.storage.aerospike.later_inspection import LaterInspector
from ignis.storage.aerospike.later_records import MOST_MOVED, Delay, LaterRecords, Moved
from ignis.storage.aerospike.layout import NO_DUE, LaterKeys
from ignis.storage.aerospike.remove import Remover
from ignis.storage.aerospike.waits import Waits
from ignis.storage.checks import check_dues, check_loadable, check_shards, expiry_ms
from ignis.storage.expired_log import ExpiredLog
from ignis.storage.later import LATER_SUFFIX, MOVE_LIMIT, Delayed, KeepsLater, MovedDue, later_of
from ignis.storage.records import KEEP_TTL, Fence, Pointers, Transfer
from ignis.storage.runs import Runs, runs_of

__all__ = ["AerospikeLater", "main_of_later"]

Place = tuple[int, int]

_MOVE, _LOOK = 2 * MOST_MOVED, 4 * MOST_MOVED
"""So many are moved before a claim at most, and so many of the earliest are looked at."""
_PAUSE_S, _MOST_PAUSE_S = 0.01, 1.0
"""Before the next look at what others are moving; doubled with each."""
_LATE_MS = 0.5
"""Who sleeps until something is due wakes so much later, lest he finds that it is not yet."""
_COUNTED = 50_000
"""So many are counted each time; the count of more is remembered for ten times as long as it took."""
_FEW = 4_096
"""So many pointers are looked up one by one; for more the index says which there are."""


class AerospikeLater(KeepsLater):
    """The later magazines of one application. Thread-safe.

    Time is the wall clock of the machine that claims, read once a claim. What is due is moved by whoever claims. The due times
    that a claim has seen say when the next one must be made."""

    keeps_later = True
    _connection: Connection
    _catalogue: Catalogue
    _remover: Remover
    _expired_log: ExpiredLog
    _said: LimitedLog
    _records: LaterRecords
    _later_inspector: LaterInspector
    waits: Waits

    def _call(self, counted: str = "") -> AbstractContextManager[None]:
        raise NotImplementedError

    def _check_fence(self, fence: Fence | None) -> None:
        raise NotImplementedError

    def load_later(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        dues_ms: Sequence[Sequence[int]],
        ttl_s: float | None,
    ) -> list[int]:
        """Three client calls, whatever the size. Not one transaction: see `AerospikeMagazines.load`."""
        check_dues(dues_ms, [batch.count for _, batch in batches])
        expires_at_ms = expiry_ms(ttl_s)
        with self._call("loads"):
            found = self._catalogue.with_shards(magazine, (shard for shard, _ in batches))
            check_loadable(magazine, batches, found.shards)
            if not batches:
                return []
            items: list[Delay] = []
            starts: list[int] = []
            for (shard, batch), dues in zip(batches, dues_ms, strict=True):
                starts.append(len(items))
                items += [
                    Delay(shard, record, expires_at_ms, due_ms)
                    for record, due_ms in zip(batch.records(), dues, strict=True)
                ]
            placed, earlier = self._records.put(found, items)
            firsts = [placed[start] if start < len(placed) else 0 for start in starts]
            for (shard, batch), first in zip(batches, firsts, strict=True):
                batch.seal(0, shard, first)
            if earlier:
                self._tell(magazine)
            return firsts

    def _tell(self, magazine: str) -> None:
        """Who sleeps on this machine looks, and reckons anew."""
        self.waits.ring(magazine, ())

    def defer(
        self,
        magazine: str,
        items: Sequence[Transfer],
        dues_ms: Sequence[int],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        """Marked, put into the later magazine, removed: a process that dies before the removal leaves the messages of the call in
        both, with the same ids. The fence is read before the mark and before the put."""
        check_dues([dues_ms], [len(items)])
        with self._call("transfers"):
            shards = [item.target_shard for item in items]
            found = self._catalogue.with_shards(magazine, shards)
            check_shards(magazine, shards, found.shards)
            dues: dict[Place, int] = {}
            for item, due_ms in zip(items, dues_ms, strict=True):
                dues.setdefault((item.shard, item.pointer), due_ms)

            def put(places: list[Place], moved: list[Item]) -> None:
                delays = [Delay(*item, dues[at]) for at, item in zip(places, moved, strict=True)]
                if self._records.put(found, delays)[1]:
                    self._tell(magazine)

            return self._remover.move_out(found, items, ttl_s, lambda: self._check_fence(fence), put)

    # -- when

    def next_due_ms(self, magazine: str) -> int | None:
        """Asks the index."""
        with self._call():
            found = self._waiting(magazine)
            return None if found is None else self._next_ms(found)

    def _next_ms(self, magazine: Magazine) -> int | None:
        rows = self._records.index.listed(LaterKeys(magazine.name), None, 1)
        return rows[0].due_ms if rows else None

    def _waiting(self, magazine: str) -> Magazine | None:
        """The magazine, if any of its messages ever waited."""
        found = self._catalogue.get(magazine)
        if not found.later.made:
            found = self._catalogue.refresh(magazine)
        return found if found.later.made else None

    def due_in_s(self, magazine: str) -> float | None:
        """By what claims have shown: asks nobody."""
        with self._call():
            return self._due_in_s(self._catalogue.get(magazine))

    def _due_in_s(self, magazine: Magazine) -> float | None:
        state = magazine.later
        if not state.seen:
            return None
        due_ms = _next_seen_ms(magazine)
        if due_ms >= NO_DUE:
            return None
        left_s = (due_ms + _LATE_MS) / 1000 - time.time()
        return max(0.0, left_s, state.not_before - time.monotonic())

    def _asleep_s(self, magazine: Magazine, timeout_s: float) -> float:
        """So long, and at most ``timeout_s``, nothing is due as far as this process knows."""
        due_in_s = self._due_in_s(magazine)
        return timeout_s if due_in_s is None else min(timeout_s, due_in_s)

    def _asleep_on_s(self, magazine: str) -> float | None:
        return self._due_in_s(self._catalogue.get(magazine))

    # -- moving

    @staticmethod
    def _is_ready(magazine: Magazine, now_ms: int) -> bool:
        """Whether something is due, as far as this process has seen, that others are not moving already."""
        state = magazine.later
        return state.seen and _next_seen_ms(magazine) <= now_ms and time.monotonic() >= state.not_before

    def _move_ready(self, magazine: Magazine, now_ms: int) -> bool:
        """Moves what is due by the due times that this process has seen: whether it moved anything. Nobody is asked where
        nothing is due."""
        if not self._is_ready(magazine, now_ms):
            return False
        with magazine.later.moving:
            if _next_seen_ms(magazine) > now_ms:
                return True  # another thread has moved it
            try:
                return self._move_found(magazine) or self._pass(magazine, now_ms, _MOVE).moved > 0
            except IgnisError as exc:
                # Whoever claims what there is makes room for more.
                magazine.later.not_before = time.monotonic() + _MOST_PAUSE_S
                self._said.warning(
                    event_text("due_not_moved", "what is due in %s cannot be moved now: %s"),
                    magazine.name,
                    exc,
                    about=magazine.name,
                )
                return False

    def _move_found(self, magazine: Magazine) -> bool:
        """Moves the next of what the last look has found; whether it moved anything."""
        state = magazine.later
        some, state.ready = state.ready[:_MOVE], state.ready[_MOVE:]
        return bool(some) and self._move(magazine, some).moved > 0

    def _move(self, magazine: Magazine, rows: list[Row], fence: Fence | None = None) -> Moved:
        """Moves these and tells who waits."""
        moved = self._records.move(magazine, [row[1:3] for row in rows], lambda: self._check_fence(fence))
        self._expired_log.note(later_of(magazine.name), moved.expired)
        if moved.moved:
            self.waits.ring(magazine.name, {row.shard % magazine.shards for row in rows})
        return moved

    def move_due(self, magazine: str, limit: int = MOVE_LIMIT, fence: Fence | None = None) -> MovedDue:
        with self._call():
            self._check_fence(fence)
            found = self._waiting(magazine)
            if found is None:
                return MovedDue(0, 0, None)
            self._catalogue.pointers(found, list(range(found.shards)))
            with found.later.moving:
                return self._pass(found, int(time.time() * 1000), limit, fence)

    def _pass(self, magazine: Magazine, now_ms: int, limit: int, fence: Fence | None = None) -> MovedDue:
        """Moves up to ``limit`` of what is due, and notes when the next is. What the views know of the due times is older than
        the answer of the index."""
        state, keys = magazine.later, LaterKeys(magazine.name)
        with magazine.lock:
            seen = [(view.due_ms, view.due_changes) for view in magazine.views[: magazine.shards]]
        rows, upto_ms = self._records.index.earliest(keys, max(_LOOK, 2 * limit))
        stale_ms = now_ms - remove.MOVE_STALE_MS
        ready = [row for row in rows if row.due_ms <= now_ms and row.moving_ms <= stale_ms]
        moved, expired, gone = self._move(magazine, ready[:limit], fence)
        # Asked for again only when these are through: an answer costs as much as a move.
        state.ready = ready[limit:]
        left = [row for row in rows if row[1:3] not in gone]
        self._note_next(magazine, seen, left, upto_ms)
        if moved + expired or not left or left[0].due_ms > now_ms:
            state.pause_s = state.not_before = 0.0
        else:
            # Others are at it; or one of them has died, and its marks get old.
            state.pause_s = min(_MOST_PAUSE_S, 2 * state.pause_s or _PAUSE_S)
            state.not_before = time.monotonic() + state.pause_s
        if left:
            return MovedDue(moved, expired, left[0].due_ms)
        return MovedDue(moved, expired, None if upto_ms >= NO_DUE - 1 else self._next_ms(magazine))

    def _note_next(self, magazine: Magazine, seen: list[tuple[int, int]], left: list[Row], upto_ms: int) -> None:
        """Writes when the next message of each shard is due, where that is not known yet."""
        rest_ms = NO_DUE if upto_ms >= NO_DUE - 1 else upto_ms + 1
        dues: dict[int, int] = {}
        for row in left:
            shard = row.shard % magazine.shards
            dues[shard] = min(row.due_ms, dues.get(shard, rest_ms))
        changed = {
            shard: (dues.get(shard, rest_ms), changes)
            for shard, (due_ms, changes) in enumerate(seen)
            if dues.get(shard, rest_ms) != due_ms
        }
        self._records.raise_due(magazine, changed)

    def run_now(self, magazine: str, pointers: Pointers) -> int:
        with self._call():
            found = self._waiting(magazine)
            if found is None:
                return 0
            places = self._places(found, pointers)
            moved = self._records.move(found, places)
            self.waits.ring(magazine, {shard % found.shards for shard, _ in places})
            return moved.moved + moved.expired

    # -- looking and removing

    def list_later(
        self, magazine: str, *, after: tuple[int, int, int] | None = None, limit: int = 100
    ) -> list[Delayed]:
        """A message that somebody is moving at this moment may be listed, or not."""
        with self._call():
            found = self._waiting(magazine)
            listed: list[Delayed] = []
            while found is not None and len(listed) < limit:
                rows = self._records.index.listed(LaterKeys(magazine), after, limit - len(listed))
                if not rows:
                    break
                there = dict(self._records.peek(found, [row[1:3] for row in rows]))
                listed += [Delayed(*row[:3], there[row[1:3]]) for row in rows if row[1:3] in there]
                after = rows[-1][:3]
            return listed

    def cancel_later(self, magazine: str, pointers: Pointers) -> int:
        """What is being moved at this moment is not removed, and not counted."""
        with self._call("deletes"):
            found = self._waiting(magazine)
            return 0 if found is None else self._records.remove(found, self._places(found, pointers))

    def _places(self, magazine: Magazine, pointers: Pointers) -> list[Place]:
        """(shard, pointer) of what may be there, in the order of their due times where many were asked for."""
        asked = {shard: runs_of(many) for shard, many in pointers.items()}
        if sum(stop - start for runs in asked.values() for start, stop in runs) <= _FEW:
            return [(shard, pointer) for shard in sorted(asked) for pointer in Runs(asked[shard])]
        wanted = {shard: Runs(runs) for shard, runs in asked.items()}
        found: set[Row] = set()
        self._records.index.each(
            LaterKeys(magazine.name), lambda row: found.add(row) if row.pointer in wanted.get(row.shard, ()) else None
        )  # fmt: skip
        return [row[1:3] for row in sorted(found)]

    def delayed(self, magazine: str) -> int:
        """Counts them. Where there are very many the figure may be late."""
        with self._call():
            found = self._waiting(magazine)
            if found is None:
                return 0
            state = found.later
            if time.monotonic() < state.counted_until:
                return state.count
            began = time.monotonic()
            state.count = sum(count for count, _ in self._later_inspector.counted(found).values())
            if state.count > _COUNTED:
                state.counted_until = time.monotonic() + 10 * (time.monotonic() - began)
            return state.count

    def expired_later(self, magazine: str) -> int:
        with self._call():
            found = self._waiting(magazine)
            return 0 if found is None else self._later_inspector.expired(found)

    # -- the later magazine, for the calls that name it

    def _main_of(self, name: str) -> Magazine | None:
        """The main magazine of a later one that there is. Raises QueueNotFoundError for a later one that there is not."""
        main = main_of_later(name)
        if main is None:
            return None
        found = self._waiting(main)
        return found if found is not None else self._catalogue.refresh(name)

    def _had_later(self, magazine: str) -> bool:
        """Whether any message of it ever waited; False where there is no such magazine."""
        try:
            return self._waiting(magazine) is not None
        except QueueNotFoundError:
            return False

    def _drop_later(self, magazine: str, only_empty: bool) -> bool:
        """See `MagazineStore.drop`, of the later magazine. Its name stays; its messages go."""
        if not self._had_later(magazine):
            return True
        if only_empty:
            return self._next_ms(self._catalogue.get(magazine)) is None
        self._records.clear(magazine)
        return True

    def _peek_later(self, magazine: Magazine, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        found: dict[int, dict[int, bytes | None]] = {}
        for (shard, pointer), record in self._records.peek(magazine, sorted(self._places(magazine, pointers))):
            found.setdefault(shard, {})[pointer] = record
        return found


def main_of_later(name: object) -> str | None:
    """The name of the main magazine, where this is that of a later one."""
    return name.removesuffix(LATER_SUFFIX) if isinstance(name, str) and name.endswith(LATER_SUFFIX) else None


def _next_seen_ms(magazine: Magazine) -> int:
    """The next due time that this process has seen, of any shard."""
    return min((view.due_ms for view in magazine.views[: magazine.shards]), default=NO_DUE)
