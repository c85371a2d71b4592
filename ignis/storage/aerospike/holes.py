"""Pointers that were claimed and have no record yet.

A producer reserves pointers before it writes the records, so a claim can be quicker. Such holes are remembered in this
process and looked at again with growing pauses; after the grace period they are sealed with a tombstone that is
written only if there is still nothing. The claim itself (fire time and owner) is written where the record is going to be,
and the record joins it: when the process dies, the sweeper knows whose it was.

Only a producer of ours looks for a tombstone. A Java producer writes into it and is told that its message was stored. So
where others load too, see `catalogue`, nothing is sealed: the pointer is looked at for ten minutes more, and then left to
the sweeper, which knows it by the claim that stands there without a record.
"""

from __future__ import annotations

import logging
import math
import time

from ignis.log_format import event_text
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.connection import Connection, policy
from ignis.storage.aerospike.status_codes import ANY, OK

__all__ = ["MAX_HOLES", "Holes"]

log = logging.getLogger("ignis.storage.aerospike")

MAX_HOLES = 16_384
"""Per magazine. A process that remembers so many claims no more until some have filled or were sealed: a producer that
writes a large batch is overtaken by quick consumers all the time."""
SEAL_TTL_S = 86_400
_FIRST_LOOK_S = 0.01
_WATCH_S = 600.0
_MANY = 256


class Holes:
    """Waits for records that come after their pointers were claimed, and gives up those that do not come. Thread-safe.

    Its attributes ``seen``, ``filled``, ``sealed`` and ``left`` (to the sweeper) count since the store was opened.
    """

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self.seen = 0
        self.filled = 0
        self.sealed = 0
        self.left = 0

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

    def take_all(self, magazine: Magazine) -> list[tuple[int, int]]:
        """Takes all holes out: nobody of this process looks at them any more."""
        with magazine.lock:
            places = [(shard, pointer) for shard, view in enumerate(magazine.views) for pointer in view.holes]
            for view in magazine.views:
                view.holes.clear()
            magazine.holes = 0
        return places

    def keep(self, magazine: Magazine, holes: dict[tuple[int, int], tuple[float, float]]) -> None:
        with magazine.lock:
            for (shard, pointer), times in holes.items():
                magazine.views[shard].holes[pointer] = times
            magazine.holes += len(holes)

    def next_look_s(self, magazine: Magazine) -> float:
        """Seconds until a hole's time has come; infinite when there is none."""
        now = time.monotonic()
        with magazine.lock:
            if magazine.holes > _MANY:
                return _FIRST_LOOK_S
            times = [times for view in magazine.views for times in view.holes.values()]
        return max(0.0, min((since + pause - now for since, pause in times), default=math.inf))

    def later(self, magazine: Magazine, still: dict[tuple[int, int], tuple[float, float]]) -> None:
        """Remembers holes that were looked at and are still empty, and seals those whose grace is over."""
        grace, now = self._connection.options.hole_grace_s, time.monotonic()
        kept: dict[tuple[int, int], tuple[float, float]] = {}
        old: list[tuple[int, int]] = []
        left: list[tuple[int, int]] = []
        for place, (since, pause) in still.items():
            over = now - since >= grace
            if over and magazine.views[place[0]].shared:
                if now - since >= _WATCH_S:
                    left.append(place)
                else:
                    # Looked at when it is twice as old.
                    kept[place] = since, max(2 * (now - since), _FIRST_LOOK_S)
                continue
            if over:
                old.append(place)
            # Kept until the tombstone is there: a record that comes just before it is claimed by the next look.
            kept[place] = since, min(2 * pause, grace)
        self.keep(magazine, kept)
        if left:
            self.left += len(left)
            log.warning(
                event_text(
                    "holes_of_others",
                    "%d pointer(s) of %s that another's producer has reserved have no record after %g s; the sweeper goes on "
                    "looking"),
                len(left), magazine.name, _WATCH_S,
            )  # fmt: skip
        if old:
            self.seal(magazine, old)

    def seal(self, magazine: Magazine, places: list[tuple[int, int]]) -> None:
        """Makes sure that no record comes to these pointers any more. One that has just come stays remembered, and the
        next look claims it."""
        ops = [expressions.write(layout.SEALED, layout.HOLE)]
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
        log.info(event_text("holes_sealed", "%d pointer(s) of %s had no record and were sealed"), sealed, magazine.name)
