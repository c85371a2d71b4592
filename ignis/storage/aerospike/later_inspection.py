"""What is asked about the messages that wait for their time, without moving any: how many, which, how many expired."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from ignis.storage.aerospike import layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.connection import Connection, read_entry
from ignis.storage.aerospike.due_index import Row
from ignis.storage.aerospike.later_records import LaterRecords
from ignis.storage.aerospike.layout import LaterKeys
from ignis.storage.aerospike.status_codes import NOT_FOUND, OK
from ignis.storage.records import ShardState

__all__ = ["LaterInspector"]

Place = tuple[int, int]


class LaterInspector:
    """Answers what is asked about the later magazine of a main one, which each call names. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue, records: LaterRecords) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._records = records

    def counted(self, magazine: Magazine) -> dict[int, tuple[int, int]]:
        """Per shard how many wait, and the lowest of their pointers."""
        counts: dict[int, tuple[int, int]] = {}

        def look(row: Row) -> None:
            count, first = counts.get(row.shard, (0, row.pointer))
            counts[row.shard] = count + 1, min(first, row.pointer)

        self._records.index.each(LaterKeys(magazine.name), look)
        return counts

    def scan(self, magazine: Magazine, after: Mapping[int, int], limit: int) -> list[tuple[int, int, bytes | None]]:
        """See `MagazineStore.scan`. Asks for all that wait each time."""
        places: list[Place] = []

        def look(row: Row) -> None:
            if row.pointer > after.get(row.shard, 0):
                places.append(row[1:3])
                if len(places) > 8 * limit + 1_000:
                    places[:] = heapq.nsmallest(limit, set(places))

        self._records.index.each(LaterKeys(magazine.name), look)
        wanted = heapq.nsmallest(limit, set(places))
        return [(*place, record) for place, record in self._records.peek(magazine, wanted)]

    def states(self, magazine: Magazine) -> list[ShardState]:
        """As of a magazine out of which nothing is claimed."""
        shards = range(magazine.shards)
        pointers = [read_entry(self._catalogue.pointers_key(magazine, shard)) for shard in shards]
        self._connection.send("pointers", pointers, allowed=(OK, NOT_FOUND))
        expired = self._expired(magazine)
        waiting = self.counted(magazine)
        states = []
        for shard in shards:
            bins = pointers[shard].record[2] if pointers[shard].result == OK else {}
            last = bins.get(layout.DELAYED) or 0
            count, first = waiting.get(shard, (0, last + 1))
            states.append(
                ShardState(
                    shard,
                    last,
                    first - 1,
                    last,
                    last - count,
                    0,
                    bins.get(layout.BORN) or 0,
                    expired[shard],
                )
            )
        return states

    def expired(self, magazine: Magazine) -> int:
        """How many have expired before they were due. One call."""
        return sum(self._expired(magazine))

    def _expired(self, magazine: Magazine) -> list[int]:
        counters = [read_entry(self._catalogue.counters_key(magazine, shard)) for shard in range(magazine.most_shards)]
        self._connection.send("counters", counters, allowed=(OK, NOT_FOUND))
        return [(entry.record[2].get(layout.DELAYED_EXPIRED) or 0) if entry.result == OK else 0 for entry in counters]
