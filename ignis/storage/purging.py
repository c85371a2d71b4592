"""Removing what waits, without handling it: part of the storage contract."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ignis.storage import transactions
from ignis.storage.records import Pointers

__all__ = ["PURGE_BATCH", "Left", "Purged", "Purges", "begin_purge"]

PURGE_BATCH = 10_000
"""Messages that one step of a purge removes at most: one transaction, and all that it keeps in memory."""

_IN_FLIGHT_BATCH = 200
"""Claimed records are read to be found."""
_FAR_MS = 1 << 53

Left = dict[int, tuple[int, int]]
"""Of a purge: shard -> (the first pointer not looked at, the last that was loaded when the purge began)."""


class Purged(NamedTuple):
    """What one step of a purge removed. ``left`` is what the next step is given; empty = done."""

    waiting: int
    in_flight: int
    left: Left


class Purges(abc.ABC):
    """Removes what waits in a magazine, without handling it."""

    @abc.abstractmethod
    def delete_waiting(self, magazine: str, pointers: Pointers) -> int:
        """`MagazineStore.delete`, but only of records that wait: what was claimed stays with its owner. Returns how many were
        removed; those whose time had run out go too, and are counted as expired instead. No record is both removed and handed
        out. Atomic where the store has transactions, else for each record.

        Where later records of the shard wait, `MagazineStore.metadata` may count the removed ones as pending until a claim has
        passed them."""

    def purge(
        self, magazine: str, limit: int = PURGE_BATCH, *, in_flight: bool = False, left: Mapping[int, Any] | None = None
    ) -> Purged:
        """One step of a purge: removes up to ``limit`` of the records that were there when the purge began. Those whose time had
        run out go too, and are counted as expired and not here.

        Those that wait are removed as `delete_waiting` does it; with ``in_flight``, after all of these, also the claimed
        ones: their owners' acknowledgements find nothing then. What was loaded since the first step stays. Call it with what
        it returned as ``left`` until that is empty. A step that fails, or a process that ends between two, has removed whole
        batches and nothing else.

        Args:
            limit: bounds the step's transaction and its memory.
            left: None begins a purge.

        Raises QueueNotFoundError.
        """
        rest = (
            begin_purge(self, magazine)
            if left is None
            else {int(one): (int(a), int(b)) for one, (a, b) in left.items()}
        )
        part: dict[int, Sequence[int]] = {}
        room = limit
        for shard, (first, last) in rest.items():
            if room <= 0:
                break
            if first <= last:
                pointers, behind = self._purge_next(magazine, shard, first, last, room)
                if pointers:
                    part[shard] = pointers
                    room -= len(pointers)
                rest[shard] = behind, last
        if part:
            waiting = self._purge_waiting(magazine, part, {shard: last for shard, (_, last) in rest.items()})
            return Purged(waiting, 0, rest if in_flight else {one: at for one, at in rest.items() if at[0] <= at[1]})
        removed = 0
        for shard in list(rest) if in_flight else ():
            removed += self._purge_claimed(magazine, shard, rest, min(limit, _IN_FLIGHT_BATCH))
            if removed:
                break
        return Purged(0, removed, rest if in_flight else {})

    def _purge_next(self, magazine: str, shard: int, first: int, last: int, limit: int) -> tuple[Sequence[int], int]:
        """Up to ``limit`` of these pointers, and the one to go on with. For stores whose pointers have gaps: those that exist."""
        stop = min(last, first + limit - 1) + 1
        return range(first, stop), stop

    def _purge_waiting(self, magazine: str, part: Pointers, ends: Mapping[int, int]) -> int:
        """``ends``: per shard the last pointer of the whole purge, for stores that cannot end at that of the part."""
        return self.delete_waiting(magazine, part)

    def _purge_claimed(self, magazine: str, shard: int, rest: Left, limit: int) -> int:
        """Claimed records of one shard, whoever claimed them; the shard leaves ``rest`` when it has none."""
        store: Any = self
        found = store.abandoned(magazine, shard, _FAR_MS, limit, max_bytes=transactions.MOST_BYTES)
        mine = [one.pointer for one in found if one.pointer <= rest[shard][1]]
        if not mine:
            del rest[shard]
        return int(store.delete(magazine, {shard: mine})) if mine else 0


def begin_purge(store: Any, magazine: str) -> Left:
    """What a purge that begins now has before it."""
    return {
        one.shard: (one.fire_pointer + 1, one.load_pointer)
        for one in store.metadata(magazine)
        if one.load_pointer > one.fire_pointer or one.in_flight
    }
