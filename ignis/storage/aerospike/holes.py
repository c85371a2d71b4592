"""Pointers that were claimed and have no record yet.

A producer reserves pointers before it writes the records, so a claim can be quicker. Such holes are remembered in this
process and looked at again with growing pauses; after the grace period they are sealed with a tombstone that is
written only if there is still nothing. The claim itself (fire time and
owner) is written where the record is going to be, and the record joins it: when the process dies, the sweeper knows whose
it was.
"""

from __future__ import annotations

import logging
import time

from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.client import Connection, policy
from ignis.storage.aerospike.codes import ANY, OK

__all__ = ["MAX_HOLES", "Holes"]

log = logging.getLogger("ignis.storage.aerospike")

MAX_HOLES = 16_384
"""Per magazine. A process that remembers so many claims no more until some have filled or were sealed: a producer that
writes a large batch is overtaken by quick consumers all the time."""
SEAL_TTL_S = 86_400
_FIRST_LOOK_S = 0.01


class Holes:
    """See the module. Thread-safe. Attributes: ``seen``, ``filled``, ``sealed`` count since the store was opened."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self.seen = 0
        self.filled = 0
        self.sealed = 0

    def remember(self, magazine: Magazine, places: list[tuple[int, int]], holes: dict[int, list[int]]) -> None:
        if not places:
            return
        now = time.monotonic()
        self.seen += len(places)
        with magazine.lock:
            for shard, pointer in places:
                holes.setdefault(shard, []).append(pointer)
                known = magazine.views[shard].holes
                if pointer not in known:
                    known[pointer] = (now, _FIRST_LOOK_S)
                    magazine.holes += 1

    def pick(self, magazine: Magazine, shards: set[int], limit: int) -> dict[tuple[int, int], tuple[float, float]]:
        """Takes holes out whose time has come: nobody else of this process looks at them meanwhile."""
        now = time.monotonic()
        due: dict[tuple[int, int], tuple[float, float]] = {}
        with magazine.lock:
            for shard in shards:
                known = magazine.views[shard].holes
                for pointer, (since, pause) in list(known.items()):
                    if now - since >= pause and len(due) < limit:
                        due[shard, pointer] = known.pop(pointer)
            magazine.holes -= len(due)
        return due

    def keep(self, magazine: Magazine, holes: dict[tuple[int, int], tuple[float, float]]) -> None:
        with magazine.lock:
            for (shard, pointer), times in holes.items():
                magazine.views[shard].holes[pointer] = times
            magazine.holes += len(holes)

    def seal(self, magazine: Magazine, places: list[tuple[int, int]]) -> None:
        """Makes sure that no record comes to these pointers any more. One that has just come stays remembered, and the
        next look claims it."""
        ops = [
            expressions.write(layout.SEALED, layout.HOLE),
            expressions.write(layout.MODIFIED_AT, int(time.time() * 1000)),
        ]
        how = policy(ttl=SEAL_TTL_S, only_if=expressions.still_empty)
        entries = self._connection.operate("seal", self._catalogue.data_keys(magazine, places), ops, how, allowed=ANY)
        with magazine.lock:
            for (shard, pointer), entry in zip(places, entries, strict=True):
                view = magazine.views[shard]
                if entry.result == OK:
                    self.sealed += 1
                    view.gone.add(pointer, pointer)
                    magazine.holes -= view.holes.pop(pointer, None) is not None
        sealed = sum(entry.result == OK for entry in entries)
        log.info("%d pointer(s) of %s had no record and were sealed", sealed, magazine.name)
