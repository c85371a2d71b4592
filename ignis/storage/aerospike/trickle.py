"""Where messages come one by one: one call a look instead of three a message.

A consumer that has emptied its queue looks again and again. Such a look is the claim itself, and in the same batch travel

- reads of the records that the claim is going to get, if it gets any: they stand right behind the fire pointers. A record
  is not changed once it is written, so that what was read holds if the claim succeeds. Only who deletes or moves messages that
  wait changes one; he says so first in the pointers record (`LEAVING`), where the claim sees it, and then records are read
  and stamped by a call of their own;
- the stamps (fire time, owner) of what the look before has claimed, if it is still being worked on;
- acknowledgements, which wait a few milliseconds for a look;
- counts.

A claim is stamped one look later, or when no look follows (`Trickle.flush`). A process that dies before that leaves a claim
without a stamp, which the sweeper judges by the time at which the message was written; so only what was written a moment ago
is claimed in this way. A record that is still on its way is read again by the next look before it is treated as a hole.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ignis.errors import IgnisError
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.connection import Connection, Entry, policy, read_entry, remove_entry, write_entry
from ignis.storage.aerospike.status_codes import ANY, FILTERED, NOT_FOUND, OK

__all__ = ["MOST_RIDING", "Riding", "Trickle"]

Place = tuple[int, int]

MOST_RIDING = 64
"""Acknowledgements that wait for a look; more are worth a call of their own."""
_RIDE_S = 0.025
"""The longest wait of an acknowledgement for a look."""
_SENT_S = 60.0
"""Longer than all attempts of a look that is under way."""
_ON_S = 2.0
"""So long after a consumer has waited a look counts as one of a row."""
_FRESH_MS = 30_000
_LEAVING_MS = 120_000
"""So long after somebody began to delete messages that wait what was read beside a claim does not count; longer than all
attempts of such a call, and than clocks differ."""
_YOUNG_S = 0.01
_MOST_DEPTH = 8


@dataclass
class _Ride:
    """Acknowledgements that wait for a look. ``answers`` None: not sent."""

    entries: list[Entry]
    over: threading.Event = field(default_factory=threading.Event)
    answered: bool = False


@dataclass
class Riding:
    """What travels with one look."""

    stamps: dict[Place, tuple[str, int]]
    stamp_entries: list[Entry]
    rides: list[_Ride]
    counts: Counter[int]
    reads: dict[Place, Entry]
    entries: list[Entry]


class Trickle:
    """See the module. Thread-safe; what it knows of a magazine is in ``Magazine.trickle``."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def idle(self, magazine: Magazine) -> None:
        """A consumer waits, and will look again."""
        magazine.trickle.on_until = time.monotonic() + _ON_S

    def on(self, magazine: Magazine) -> bool:
        return time.monotonic() < magazine.trickle.on_until

    # -- a look

    def board(self, magazine: Magazine, shards: list[int]) -> Riding:
        """What travels with the next look, which gets shares of these shards. `landed` or `missed` must follow."""
        state = magazine.trickle
        with magazine.lock:
            stamps, state.unstamped = state.unstamped, {}
            counts, state.fired = state.fired, Counter()
            rides, state.rides = state.rides, []
            places = list(state.young)
            for shard in shards:
                first = magazine.views[shard].fire + 1
                places += [(shard, pointer) for pointer in range(first, first + round(state.depth))]
        reads = dict(zip(places, (read_entry(key) for key in self._catalogue.data_keys(magazine, places)), strict=True))
        stamp_entries = self._stamps(magazine, stamps)
        counters = [
            write_entry(
                self._catalogue.counters_key(magazine, shard), [expressions.increment(layout.FIRE_COUNTER, count)],
                policy(ttl=layout.TTL_NEVER),
            )
            for shard, count in counts.items()
        ]  # fmt: skip
        entries = [*reads.values(), *stamp_entries, *counters, *(entry for ride in rides for entry in ride.entries)]
        return Riding(stamps, stamp_entries, rides, counts, reads, entries)

    def _stamps(self, magazine: Magazine, stamps: dict[Place, tuple[str, int]]) -> list[Entry]:
        keys = self._catalogue.data_keys(magazine, list(stamps))
        return [
            write_entry(
                key, [expressions.write(layout.FIRED_AT, at_ms), expressions.write(layout.OWNER, owner)], _STAMPED
            )
            for key, (owner, at_ms) in zip(keys, stamps.values(), strict=True)
        ]

    def landed(self, magazine: Magazine, riding: Riding) -> None:
        """It was sent. What has no answer is kept for the next look; acknowledgements are told."""
        again = {
            place: riding.stamps[place]
            for place, entry in zip(riding.stamps, riding.stamp_entries, strict=True)
            if entry.result not in {OK, NOT_FOUND, FILTERED}
        }
        if again:
            with magazine.lock:
                magazine.trickle.unstamped |= again
        for ride in riding.rides:
            ride.answered = True
            ride.over.set()
        tombs = [
            place for place, entry in zip(riding.stamps, riding.stamp_entries, strict=True) if entry.result == FILTERED
        ]
        if tombs:
            self.passed(magazine, tombs)

    def missed(self, magazine: Magazine, riding: Riding) -> None:
        """It was not sent, or nobody knows."""
        with magazine.lock:
            magazine.trickle.unstamped |= riding.stamps
            magazine.trickle.fired += riding.counts
        for ride in riding.rides:
            ride.over.set()

    def passed(self, magazine: Magazine, places: list[Place]) -> None:
        """Of these, which were claimed as messages, the ones that are tombstones: deleted between the read and the claim.
        They are removed, and no longer counted among those that wait."""
        found = self._connection.read("sealed", self._catalogue.data_keys(magazine, places), [layout.SEALED])
        void = [
            place
            for place, entry in zip(places, found, strict=True)
            if entry.result == OK and entry.record[2].get(layout.SEALED) == layout.VOID
        ]
        if not void:
            return
        changes = [
            write_entry(
                self._catalogue.pointers_key(magazine, shard), [expressions.increment(layout.VOIDS, -count)],
                policy("update", ttl=layout.TTL_NEVER),
            )
            for shard, count in Counter(shard for shard, _ in void).items()
        ]  # fmt: skip
        removals = [remove_entry(key) for key in self._catalogue.data_keys(magazine, void)]
        self._connection.send("voids", changes + removals, allowed=ANY)

    def sort(
        self, magazine: Magazine, claimed: list[Place], riding: Riding, owner: str, now_ms: int
    ) -> tuple[list[Place], list[Entry], list[Place]]:
        """What a look has brought: places and entries of messages, and the places that need a call of their own. Records on
        their way are remembered for the next look."""
        state, now = magazine.trickle, time.monotonic()
        got: list[Place] = []
        entries: list[Entry] = []
        rest: list[Place] = []
        behind: set[int] = set()
        with magazine.lock:
            young, state.young = state.young, {}
            for place in [*young, *claimed]:
                entry = riding.reads.get(place)
                if place[0] in behind or abs(now_ms - magazine.views[place[0]].leaving) < _LEAVING_MS:
                    rest.append(place)  # in the order of their pointers
                elif entry is not None and entry.result == OK and _plain(entry.record[2], now_ms):
                    got.append(place)
                    entries.append(entry)
                    state.unstamped[place] = owner, now_ms
                    state.fired[place[0]] += 1
                elif entry is not None and entry.result == NOT_FOUND and now - young.get(place, now) < _YOUNG_S:
                    state.young[place] = young.get(place, now)
                else:
                    rest.append(place)
                    behind.add(place[0])
            most = max(Counter(shard for shard, _ in claimed).values(), default=0)
            # Deeper at once, less deep slowly: a record more costs little beside a call.
            state.depth = min(_MOST_DEPTH, max(1.0, most, state.depth - 1 / 8))
        return got, entries, rest

    # -- without a look

    def ride(self, magazine: Magazine, places: list[Place], only_if: Any) -> list[Entry] | None:
        """Removals that travel with the next look; None when none came in time, or it failed: then they have not been sent,
        or may be sent again."""
        state = magazine.trickle
        ride = _Ride([remove_entry(key, only_if) for key in self._catalogue.data_keys(magazine, places)])
        with magazine.lock:
            if not self.on(magazine) or time.monotonic() - state.looked_at > _RIDE_S:
                return None
            state.rides.append(ride)
        if not ride.over.wait(_RIDE_S):
            with magazine.lock:
                if ride in state.rides:
                    state.rides.remove(ride)
                    return None
            ride.over.wait(_SENT_S)
        return ride.entries if ride.answered and all(entry.result in _DONE for entry in ride.entries) else None

    def forget(self, magazine: Magazine, places: list[Place]) -> list[Place]:
        """Of these, those that were not stamped yet, and need not be: they are removed."""
        state = magazine.trickle
        if not state.unstamped:
            return []
        with magazine.lock:
            return [place for place in places if state.unstamped.pop(place, None) is not None]

    def flush(self, magazine: Magazine) -> list[Place]:
        """No look follows, or somebody asks about the claims: writes what has not been written. Returns the places of
        records that were still on their way."""
        state = magazine.trickle
        state.on_until = 0.0
        if not state.loaded:
            return []
        with magazine.lock:
            young, state.young = list(state.young), {}
        riding = self.board(magazine, [])
        try:
            if riding.entries:
                self._connection.send("stamp", riding.entries, allowed=ANY)
        except IgnisError:
            self.missed(magazine, riding)
            raise
        self.landed(magazine, riding)
        return young


_DONE = frozenset({OK, NOT_FOUND, FILTERED})
_STAMPED = policy("update", ttl=layout.TTL_KEEP, only_if=expressions.has_data)


def _plain(bins: dict[str, Any], now_ms: int) -> bool:
    """Whether this is a message that was written a moment ago and never claimed."""
    at_ms = bins.get(layout.MODIFIED_AT)
    return (
        bins.get(layout.DATA) is not None
        and bins.get(layout.SEALED) is None
        and bins.get(layout.FIRED_AT) is None
        and isinstance(at_ms, int)
        and abs(now_ms - at_ms) < _FRESH_MS
    )
