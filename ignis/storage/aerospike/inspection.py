"""What does not claim: peeking, scanning, counting, ages, finding what was abandoned, and clearing what ran out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ignis.errors import StoreError, UnreadableMessageError
from ignis.native import Record
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine, ShardPointers
from ignis.storage.aerospike.connection import Connection, policy, read_entry, write_entry
from ignis.storage.aerospike.open_pointers import OpenPointers
from ignis.storage.aerospike.owner import provably_dead
from ignis.storage.aerospike.ranges import Ranges
from ignis.storage.aerospike.status_codes import FILTERED, NOT_FOUND, OK
from ignis.storage.process_identity import this_process
from ignis.storage.records import Abandoned, Pointers, Run, ShardState, joined_runs, runs_of_pointers
from ignis.storage.runs import overlap, runs_of

__all__ = ["Inspector"]

SWEEP_BATCH = 1_000
_COUNT_BATCH = 5_000
_UNCOUNTED_S = 30.0
_BINS = [layout.DATA, layout.ENVELOPE, layout.MODIFIED_AT, layout.SEALED, layout.FIRED_AT, layout.OWNER]


class Inspector:
    """Answers what is asked about a magazine without claiming anything. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._open = OpenPointers(connection, catalogue)
        self._here = this_process()
        self.resurrected_seen = 0

    # -- reading records

    def _rows(
        self, magazine: Magazine, places: list[tuple[int, int]], claims: list[tuple[int, int]] | None = None
    ) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(shard, pointer, bins) of those that hold a record. Places that hold a claim and no record are put into
        ``claims``; a tombstone for a hole is one too where Java may write into it."""
        keys = self._catalogue.data_keys(magazine, places)
        for (shard, pointer), entry in zip(places, self._connection.read("read", keys, _BINS), strict=True):
            if entry.result != OK:
                continue
            bins = entry.record[2]
            if bins.get(layout.DATA) is not None:
                yield shard, pointer, bins
            elif claims is not None:
                sealed = bins.get(layout.SEALED)
                if sealed is None or (sealed == layout.HOLE and magazine.views[shard].shared):
                    claims.append((shard, pointer))

    def _decode(self, magazine: Magazine, shard: int, pointer: int, bins: dict[str, Any]) -> layout.Decoded | None:
        """The record, or None when it is of an earlier life of the magazine: a server without durable deletes has
        brought it back."""
        found = layout.decode(f"{magazine.keys.prefix(shard)}{pointer}", bins)
        if self._is_stranger(magazine, shard, found):
            self.resurrected_seen += 1
            return None
        return found

    @staticmethod
    def _is_stranger(magazine: Magazine, shard: int, found: layout.Decoded) -> bool:
        born = magazine.views[shard].born
        return found.born is not None and bool(born) and found.born != born

    def peek(self, magazine: Magazine, pointers: Pointers) -> dict[int, dict[int, bytes | None]]:
        """See `MagazineStore.peek`. What is below the low-water mark is not there.

        Both the mark and the life of the magazine by which a record is judged may be out of date, since a peek reads no
        pointers: where something is left out for one of them, they are read, and all is looked at again."""
        result, left_out, _ = self._peek(magazine, pointers)
        if left_out:
            magazine = self._catalogue.refresh(magazine.name)
            self._catalogue.pointers(magazine, sorted(shard for shard in left_out if shard < magazine.shards))
            result, _, strangers = self._peek(magazine, pointers)
            self.resurrected_seen += strangers
        return result

    def _peek(self, magazine: Magazine, pointers: Pointers) -> tuple[dict[int, dict[int, bytes | None]], set[int], int]:
        """What is there by what is known; the shards in which something was left out; and of how many records the life is
        another."""
        views = magazine.views
        left_out = {
            shard
            for shard, many in pointers.items()
            if 0 <= shard < magazine.shards and overlap(runs_of(many), 1, views[shard].low + 1)
        }
        places = [
            (shard, pointer)
            for shard, pointer in self._catalogue.places(magazine, pointers, magazine.shards)
            if pointer > views[shard].low or pointer in views[shard].open
        ]
        result: dict[int, dict[int, bytes | None]] = {}
        strangers = 0
        for shard, pointer, bins in self._rows(magazine, places):
            found = layout.decode(f"{magazine.keys.prefix(shard)}{pointer}", bins)
            if self._is_stranger(magazine, shard, found):
                strangers += 1
                left_out.add(shard)
            else:
                result.setdefault(shard, {})[pointer] = found.record
        return result, left_out, strangers

    def scan(
        self, magazine: Magazine, after: Mapping[int, int] | None, limit: int, pending_only: bool
    ) -> list[tuple[int, int, bytes | None]]:
        """See `MagazineStore.scan`."""
        rows: list[tuple[int, int, bytes | None]] = []
        known = self._catalogue.pointers(magazine, list(range(magazine.shards)))
        for shard, pointers in known.items():
            start = max((after or {}).get(shard, 0), magazine.views[shard].low)
            if pending_only:
                start = max(start, pointers.fire)
            for places in self._places(magazine, shard, start + 1, pointers.load, max(64, min(limit, SWEEP_BATCH))):
                for _, pointer, bins in self._rows(magazine, places):
                    found = self._decode(magazine, shard, pointer, bins)
                    if found is not None:
                        rows.append((shard, pointer, found.record))
                if len(rows) >= limit:
                    return rows[:limit]
        return rows

    @staticmethod
    def _places(
        magazine: Magazine, shard: int, first: int, last: int, size: int, known: Ranges | None = None
    ) -> Iterator[list[tuple[int, int]]]:
        """Places that may hold a record, in pieces; those in ``known`` (default: what is gone) are left out."""
        while first <= last:
            piece = Inspector._piece(magazine, shard, first, last, size, known)
            if not piece:
                return
            yield piece
            first = piece[-1][1] + 1

    @staticmethod
    def _piece(
        magazine: Magazine, shard: int, first: int, last: int, size: int, known: Ranges | None = None
    ) -> list[tuple[int, int]]:
        """The first ``size`` of these places."""
        with magazine.lock:
            # What is known to be gone may grow meanwhile; that only spares looks.
            missing = (magazine.views[shard].gone if known is None else known).missing(first, last)
            return [(shard, pointer) for pointer in itertools.islice(missing, size)]

    # -- counting

    def metadata(self, magazine: Magazine) -> list[ShardState]:
        """See `MagazineStore.metadata`.

        Pending is what the pointers say, so that it is exact even after a process died between two steps; the fire
        counter shown follows from it and from the load counter.
        """
        shards = list(range(magazine.shards))
        known = self._catalogue.pointers(magazine, shards)
        counters = [read_entry(self._catalogue.counters_key(magazine, shard)) for shard in shards]
        self._connection.send("counters", counters, allowed=(OK, NOT_FOUND))
        in_flight = self._in_flight(magazine, known)
        states = []
        for shard, entry in zip(shards, counters, strict=True):
            pointers = known[shard]
            bins = entry.record[2] if entry.result == OK else {}
            loads = (bins.get(layout.LOAD_COUNTER) or 0) if entry.result == OK else pointers.load
            states.append(
                ShardState(
                    shard,
                    pointers.load,
                    pointers.fire,
                    loads,
                    loads - pointers.unfired,
                    in_flight.get(shard, 0),
                    pointers.born,
                    bins.get(layout.EXPIRED) or 0,
                )
            )
        return states

    def _in_flight(self, magazine: Magazine, known: dict[int, ShardPointers]) -> dict[int, int]:
        """Claimed and still there. What is known to be gone is not asked for again."""
        counts: dict[int, int] = {}
        todo: list[tuple[int, int]] = []
        now = time.monotonic()
        for shard, pointers in known.items():
            view = magazine.views[shard]
            with magazine.lock:
                # What was missing is not looked at again for a while, so that asking often costs little. It may have been
                # a hole that has filled since: then the figure is late, and nothing else.
                if now - view.uncounted_since > _UNCOUNTED_S:
                    view.uncounted, view.uncounted_since = Ranges(), now
                view.uncounted.update(view.gone)
            for places in self._places(magazine, shard, view.low + 1, pointers.fire, _COUNT_BATCH, view.uncounted):
                todo += places
                if len(todo) >= _COUNT_BATCH:
                    self._count(magazine, todo, counts)
                    todo = []
        self._count(magazine, todo, counts)
        return counts

    def _count(self, magazine: Magazine, places: list[tuple[int, int]], counts: dict[int, int]) -> None:
        if not places:
            return
        keys = self._catalogue.data_keys(magazine, places)
        entries = self._connection.read("exists", keys, [layout.SEALED, layout.MODIFIED_AT])
        with magazine.lock:
            for (shard, pointer), entry in zip(places, entries, strict=True):
                if entry.result == OK and layout.is_record(entry.record[2]):
                    counts[shard] = counts.get(shard, 0) + 1
                    continue
                view = magazine.views[shard]
                view.uncounted.add(pointer, pointer)
                # Where a claim waits for a record of Java's, it is the sweeper that decides.
                if pointer <= view.settled and not (view.shared and entry.result == OK):
                    view.gone.add(pointer, pointer)

    def oldest_enqueued_at_us(self, magazine: Magazine) -> int | None:
        """See `MagazineStore.oldest_enqueued_at_us`: the head of every shard in one call, further on only where the head
        is missing."""
        known = self._catalogue.pointers(magazine, list(range(magazine.shards)))
        heads: list[int] = []
        following = {shard: one.fire + 1 for shard, one in known.items() if one.load > one.fire}
        step = 1
        while following:
            places = [
                (shard, pointer)
                for shard, first in following.items()
                for pointer in range(first, min(first + step, known[shard].load + 1))
            ]
            found: set[int] = set()
            for shard, pointer, bins in self._rows(magazine, places):
                if shard not in found:
                    at_us = _enqueued_at(self._decode(magazine, shard, pointer, bins))
                    if at_us is not None:
                        heads.append(at_us)
                        found.add(shard)
            following = {
                shard: first + step
                for shard, first in following.items()
                if shard not in found and first + step <= known[shard].load
            }
            step = min(2 * step, SWEEP_BATCH)
        return min(heads, default=None)

    # -- sweeping

    def held(self, magazine: Magazine, owner: str) -> list[Run]:
        """See `MagazineStore.held`. Looks at every record between the low-water mark and the fire pointer."""
        runs: list[Run] = []
        for shard, pointers in self._catalogue.pointers(magazine, list(range(magazine.shards))).items():
            view = magazine.views[shard]
            mine: list[int] = []
            for places in self._places(magazine, shard, view.low + 1, pointers.fire, SWEEP_BATCH):
                mine += (
                    pointer for _, pointer, bins in self._rows(magazine, places) if bins.get(layout.OWNER) == owner
                )
            runs += runs_of_pointers(shard, mine)
        return joined_runs(runs)

    def claimants(self, magazine: Magazine) -> dict[str, bool]:
        """See `MagazineStore.claimants`. Looks as `held` does."""
        found: dict[str, bool] = {}
        for shard, pointers in self._catalogue.pointers(magazine, list(range(magazine.shards))).items():
            view = magazine.views[shard]
            for places in self._places(magazine, shard, view.low + 1, pointers.fire, SWEEP_BATCH):
                for _, _, bins in self._rows(magazine, places):
                    owner = bins.get(layout.OWNER)
                    if isinstance(owner, str) and owner and owner not in found:
                        found[owner] = provably_dead(owner, self._here)
        return found

    def abandoned(
        self,
        magazine: Magazine,
        shard: int,
        fired_before_ms: int,
        limit: int,
        dead_owners: bool,
        gone_owner: str | None = None,
    ) -> list[Abandoned]:
        """See `MagazineStore.abandoned`.

        Looks from the low-water mark to the fire pointer, 1,000 records a batch (more where there are none): claims that are
        renewed may lie before older ones. And behind the mark at the pointers that never had a record, see `open_pointers`.
        With ``dead_owners`` also those whose owner was a process of this machine that is
        dead, with ``gone_owner`` that one's alone. A claimed record without a fire time was taken by somebody who died
        before he could stamp it, or came too late for its claim: the time it was written counts. Raises StoreError when the
        pointers cannot be right.
        """
        view = magazine.views[shard]
        pointers = self._catalogue.pointers(magazine, [shard])[shard]
        known = self._open.read(magazine, shard)
        if view.low > pointers.fire:
            pointers = self._above(magazine, shard)
        last = pointers.claimed
        if not view.checked_below:
            view.checked_below = True
            self._check_below(magazine, shard)
        settle_ms = int(time.time() * 1000 - self._connection.options.settle_s * 1000)
        found: list[Abandoned] = []
        settled, ended = view.settled, False
        dead: dict[str, bool] = {} if gone_owner is None else {gone_owner: True}
        absent: list[int] = []
        claims: list[tuple[int, int]] = []
        size = SWEEP_BATCH
        place = view.low + 1
        behind = sorted(known)
        while not ended and (behind or place <= last):
            if behind:
                places, behind = [(shard, pointer) for pointer in behind[:size]], behind[size:]
            else:
                places = self._piece(magazine, shard, place, last, size)
                if not places:
                    break
                place = places[-1][1] + 1
            there = {pointer: bins for _, pointer, bins in self._rows(magazine, places, claims)}
            # Where everything is long gone, larger steps cost the server as little and the network less.
            size = SWEEP_BATCH if there else min(2 * size, self._connection.options.batch_records)
            for _, pointer in places:
                bins = there.get(pointer)
                if bins is None:
                    absent.append(pointer)
                    continue
                fired_at_ms = int(bins.get(layout.FIRED_AT) or bins.get(layout.MODIFIED_AT) or 0)
                owner = bins.get(layout.OWNER)
                owner = owner if isinstance(owner, str) else ""
                if owner not in dead:
                    dead[owner] = dead_owners and gone_owner is None and provably_dead(owner, self._here)
                if len(found) >= limit:
                    ended = True
                    break
                if (fired_at_ms >= fired_before_ms or gone_owner is not None) and not dead[owner]:
                    continue
                if fired_at_ms < settle_ms:
                    settled = max(settled, pointer)
                record = self._decode(magazine, shard, pointer, bins)
                if record is None:
                    absent.append(pointer)
                    continue
                found.append(Abandoned(shard, pointer, record.record, fired_at_ms, owner, dead[owner]))
        waiting = {pointer for _, pointer in claims} if view.shared else set()
        self._open.forget(
            magazine, shard, [pointer for pointer in absent if pointer in known and pointer not in waiting]
        )
        # Noted before the mark passes them: else a process that dies here would leave them to nobody.
        remembered = self._open.note(magazine, shard, [one for one in waiting if one <= settled and one not in known])
        absent = [pointer for pointer in absent if pointer not in waiting or pointer in remembered]
        self._raise_low(magazine, shard, absent, settled, last)
        passed = [place for place in claims if place[1] <= view.low and place[1] not in waiting]
        if passed:
            self._connection.remove("retire", self._catalogue.data_keys(magazine, passed))
        return found

    def _above(self, magazine: Magazine, shard: int) -> ShardPointers:
        """The pointers, read again: another thread may have raised the mark since. Raises StoreError when the shard was
        claimed less far than it is accounted for, as after its pointers record was lost: what is abandoned there cannot be
        told."""
        view = magazine.views[shard]
        low = view.low
        pointers = self._catalogue.pointers(magazine, [shard])[shard]
        if low > pointers.fire:
            raise StoreError(
                f"shard {shard} of {magazine.name!r}: everything up to {low} is accounted for, but only {pointers.fire} was "
                "claimed; its pointers record was lost, so what is abandoned cannot be told"
            )
        return pointers

    def _raise_low(self, magazine: Magazine, shard: int, absent: list[int], settled: int, fire: int) -> None:
        """Everything up to the first record that is still there is accounted for, as far as it is settled."""
        view = magazine.views[shard]
        with magazine.lock:
            for pointer in absent:
                if pointer <= settled:
                    view.gone.add(pointer, pointer)
            low = min(view.gone.after(view.low), fire)
            raised = low > view.low
        if raised:
            self._catalogue.raise_low(magazine, shard, low)

    def _check_below(self, magazine: Magazine, shard: int) -> None:
        """Once per process: removed records just below the mark that are back, as after a cold start of a server without
        durable deletes, are counted and removed again."""
        view = magazine.views[shard]
        low = view.low
        places = [(shard, pointer) for pointer in range(max(1, low - SWEEP_BATCH + 1), low + 1)]
        if not places:
            return
        back = [(one, pointer) for one, pointer, _ in self._rows(magazine, places) if pointer not in view.open]
        if back:
            self.resurrected_seen += len(back)
            prefix = magazine.keys.prefix(shard)
            self._connection.remove("retire", [self._catalogue.data_key(f"{prefix}{pointer}") for _, pointer in back])

    def expire(self, magazine: Magazine, limit: int) -> int:
        """See `MagazineStore.expire`."""
        known = self._catalogue.pointers(magazine, list(range(magazine.shards)))
        count = 0
        for shard, first in known.items():
            pointers = first
            while count < limit and pointers.load > pointers.fire:
                size = min(SWEEP_BATCH, limit - count)
                gone = self._expire_heads(magazine, shard, pointers, size)
                count += gone
                if gone < size:
                    break
                pointers = self._catalogue.pointers(magazine, [shard])[shard]
        return count

    def _expire_heads(self, magazine: Magazine, shard: int, pointers: ShardPointers, size: int) -> int:
        """Retires expired records at one shard's head; 0 also when somebody claims there at this moment."""
        last = min(pointers.fire + size, pointers.load)
        now_ms = int(time.time() * 1000)
        places = [(shard, pointer) for pointer in range(pointers.fire + 1, last + 1)]
        expired: list[int] = []
        for _, pointer, bins in self._rows(magazine, places):
            found = self._decode(magazine, shard, pointer, bins)
            ended = found is None or (found.expires_at_ms and found.expires_at_ms <= now_ms)
            # A gap is left to the claims: it may be a record on its way.
            if not ended or pointer != pointers.fire + len(expired) + 1:
                break
            expired.append(pointer)
        if not expired:
            return 0
        moved = write_entry(
            self._catalogue.pointers_key(magazine, shard),
            [expressions.write(layout.FIRE_POINTER, expired[-1])],
            policy("update", ttl=layout.TTL_NEVER, only_if=expressions.fire_pointer_is(pointers.fire)),
        )
        self._connection.send("expire", [moved], allowed=(OK, FILTERED, NOT_FOUND))
        if moved.result != OK:
            return 0
        counted = write_entry(
            self._catalogue.counters_key(magazine, shard),
            [expressions.increment(name, len(expired)) for name in (layout.FIRE_COUNTER, layout.EXPIRED)],
            policy("update", ttl=layout.TTL_NEVER),
        )  # fmt: skip
        self._connection.send("expire", [counted], allowed=(OK, NOT_FOUND))
        prefix = magazine.keys.prefix(shard)
        self._connection.remove("expire", [self._catalogue.data_key(f"{prefix}{pointer}") for pointer in expired])
        with magazine.lock:
            magazine.views[shard].gone.add(expired[0], expired[-1])
        return len(expired)


def _enqueued_at(found: layout.Decoded | None) -> int | None:
    if found is None or found.record is None:
        return None
    try:
        return Record(found.record).enqueued_at_us
    except UnreadableMessageError:
        return None
