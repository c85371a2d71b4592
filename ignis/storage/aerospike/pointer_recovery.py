"""What a shard's data records say about its pointers, when the record of these was lost.

A pointers record that vanishes (evicted, removed by hand, not there after a cold start) must not begin anew: its first
pointers would be those of messages that nobody has read, and its new life would make these look like remains of an
earlier one. So the pointers are put where the records show that they were.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ignis.errors import StoreError
from ignis.storage.aerospike import layout
from ignis.storage.aerospike.connection import Connection
from ignis.storage.aerospike.layout import Keys

__all__ = ["Place", "find_places"]


class Place(NamedTuple):
    """Where a shard's pointers belong; ``voids`` as in `ShardPointers`."""

    load: int
    fire: int
    voids: int


class _Shard:
    """What was found of one shard above its low-water mark. Seeing a record twice changes nothing."""

    def __init__(self, low: int) -> None:
        self.low = low
        self.last = low
        self.first_unfired = 0
        self.voids: set[int] = set()

    def add(self, pointer: int, sealed: int | None, unfired: bool) -> None:
        if pointer <= self.low:
            return
        self.last = max(self.last, pointer)
        if sealed == layout.VOID:
            self.voids.add(pointer)
        if unfired and (not self.first_unfired or pointer < self.first_unfired):
            self.first_unfired = pointer

    def place(self) -> Place:
        fire = self.first_unfired - 1 if self.first_unfired else self.last
        return Place(self.last, fire, sum(pointer > fire for pointer in self.voids))


def find_places(connection: Connection, data_set: str, keys: Keys, lows: dict[int, int]) -> dict[int, Place]:
    """Looks at the keys of all records of the data set, which takes as long as that is large.

    Behind the last record of a shard nothing was loaded that is still there, so there the next one goes. Nothing from the
    first record that was never claimed on counts as claimed: what lies behind it and is in work at this moment is handed out
    again. Never below the low-water mark.

    Args:
        data_set: the set's name.
        keys: of the magazine.
        lows: the shards to look for, with their low-water marks.

    Raises:
        StoreError: a record without its user key is in the set, so nobody can tell where it belongs.
    """
    shards = {shard: _Shard(low) for shard, low in lows.items()}
    prefixes = [(keys.prefix(shard), found) for shard, found in shards.items()]
    nameless = 0

    def look(key: str | None, bins: dict[str, Any]) -> None:
        nonlocal nameless
        if key is None:
            nameless += 1
            return
        for prefix, found in prefixes:
            pointer = key.removeprefix(prefix)
            if pointer != key and pointer.isdecimal():
                there = layout.is_record(bins)
                unfired = there and bins.get(layout.FIRED_AT) is None
                found.add(int(pointer), None if there else bins.get(layout.SEALED), unfired)

    connection.each("restore", data_set, [layout.FIRED_AT, layout.SEALED, layout.MODIFIED_AT], look)
    if nameless:
        raise StoreError(
            f"set {data_set!r} has {nameless} record(s) that were written without their keys: lost pointers cannot be restored"
        )
    return {shard: found.place() for shard, found in shards.items()}
