"""Claiming records.

Three calls a batch, whatever its size: one moves the fire pointers of all shards, each by an expression that the server
evaluates (never beyond the load pointer, so that no two claims get the same pointer); one stamps and reads the claimed
records; the third, the removal, is the consumer's acknowledgement.

A claimed pointer without a record is a hole, see `holes`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ignis.errors import ConfigError, IgnisError
from ignis.log_format import event_text
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine, ShardPointers
from ignis.storage.aerospike.claimed import Span, Taken, merge, places_of
from ignis.storage.aerospike.connection import Connection, Entry, policy, read_entry, write_entry
from ignis.storage.aerospike.holes import MAX_HOLES, Holes
from ignis.storage.aerospike.status_codes import ANY, BUSY, FILTERED, NOT_FOUND, OK
from ignis.storage.aerospike.trickle import Riding, Trickle
from ignis.storage.records import Claim, FireResult, Pointers
from ignis.storage.runs import Runs, difference, runs_of

__all__ = ["Claimer"]

log = logging.getLogger("ignis.storage.aerospike")

_RIDE = 256
"""Up to so many records the fire counters travel in the same batch; beyond, a batch of equal operations is so much
quicker that a call for the counters of their own pays."""

_BUSY_PAUSE_S = 0.002
"""Before the next round, when records that too many want at this moment were all that could have had something."""


class Claimer:
    """Claims the next records of a magazine, over its shards. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue, trickle: Trickle) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._trickle = trickle
        self.resurrected_seen = 0
        self.holes = Holes(connection, catalogue)

    def fire(
        self,
        magazine: Magazine,
        limit: int,
        owner: str,
        shards: Sequence[int] | None,
        max_bytes: int,
        expected: Sequence[int] | None = None,
    ) -> tuple[FireResult, list[tuple[int, int]]]:
        """See `MagazineStore.fire`. ``expected``: the shards where messages are likely, None = all; those of others may take a
        call more. Also returns (shard, pointer) of records that were claimed and do not fit into ``max_bytes``, and could not
        be handed back to the head: the caller reloads them."""
        order = self._order(magazine, shards)
        merged: dict[int, tuple[list[int], list[bytes | None]]] = {}
        holes: dict[int, list[int]] = {}
        expired, left, surplus = 0, limit, []
        more = False
        if magazine.holes:
            found = self._look_at_holes(magazine, set(order), owner, left)
            expired += len(found.expired)
            self._retire(magazine, found)
            left -= found.count()
            max_bytes -= merge(merged, found)
        todo, fruitless = order, 0
        while left > 0 and todo and fruitless < 3:
            room = MAX_HOLES - magazine.holes
            if room <= 0:
                more = True
                break
            spans, riding = self._claim(magazine, todo, self._fitting(magazine, min(left, room), max_bytes), expected)
            expected = None
            # Without a claim the round has still shown where the backlog is; others may take it first, now and then.
            fruitless = 0 if spans else fruitless + 1
            if not spans and (riding is None or not magazine.trickle.young):
                todo = self._with_backlog(magazine, order)
                continue
            taken = self._taken(magazine, spans, owner, riding)
            cut = self._cut(magazine, spans, taken, max_bytes, bool(merged))
            if cut:
                self._trickle.forget(magazine, places_of(cut))
                surplus = self._give_back(magazine, cut, taken)
                more = True
            expired += len(taken.expired)
            self._retire(magazine, taken)
            self.holes.remember(magazine, taken.holes, holes)
            left -= taken.count()
            max_bytes -= merge(merged, taken)
            if cut:
                break
            todo = self._with_backlog(magazine, order)
        more = more or bool(self._with_backlog(magazine, order))
        if more:
            # A backlog: batches of their own are quicker than reads beside each claim.
            magazine.trickle.on_until = 0.0
        with magazine.lock:
            if merged:
                magazine.next_shard = next(reversed(merged)) + 1
        claims = [Claim(shard, pointers, records) for shard, (pointers, records) in merged.items()]
        return FireResult(claims, holes, expired, more), surplus

    @staticmethod
    def _order(magazine: Magazine, shards: Sequence[int] | None) -> list[int]:
        wanted = range(magazine.shards) if shards is None else sorted(set(shards))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < magazine.shards:
            raise ConfigError(f"shards {wanted[0]} to {wanted[-1]}, the magazine has {magazine.shards}")
        begin = magazine.next_shard % magazine.shards
        return [one for one in wanted if one >= begin] + [one for one in wanted if one < begin]

    @staticmethod
    def with_backlog(magazine: Magazine, shards: list[int]) -> list[int]:
        """These, and those of which it is known that something waits there."""
        with magazine.lock:
            return sorted({*shards, *(one for one in range(magazine.shards) if magazine.views[one].backlog > 0)})

    @staticmethod
    def _with_backlog(magazine: Magazine, shards: list[int]) -> list[int]:
        with magazine.lock:
            return [shard for shard in shards if magazine.views[shard].backlog > 0]

    @staticmethod
    def _fitting(magazine: Magazine, left: int, max_bytes: int) -> int:
        """How many to claim so that they fit, by the size that records had so far."""
        if not magazine.record_bytes:
            return left
        return max(1, min(left, int(max_bytes / magazine.record_bytes)))

    def renew(
        self, magazine: Magazine, pointers: Pointers, owner: str, to_owner: str | None
    ) -> dict[int, Sequence[int]]:
        """See `MagazineStore.renew_claims`. One call a batch; of a record that is still there and still this owner's only the
        fire time is written, and the new owner if there is one."""
        places = self._catalogue.places(magazine, pointers, magazine.shards) if owner else []
        renewed: dict[int, list[int]] = {}
        if places:
            how = policy("update", ttl=layout.TTL_KEEP, only_if=expressions.is_claimed_by(str(owner)))
            ops = [expressions.write(layout.FIRED_AT, int(time.time() * 1000))]
            if to_owner is not None:
                ops.append(expressions.write(layout.OWNER, str(to_owner)))
            entries = self._connection.operate(
                "renew", self._catalogue.data_keys(magazine, places), ops, how, allowed=(OK, FILTERED, NOT_FOUND)
            )
            for (shard, pointer), entry in zip(places, entries, strict=True):
                if entry.result == OK:
                    renewed.setdefault(shard, []).append(pointer)
        left = {shard: difference(runs_of(many), runs_of(renewed.get(shard, []))) for shard, many in pointers.items()}
        return {shard: Runs(runs) for shard, runs in left.items() if runs}

    def settle(self, magazine: Magazine) -> None:
        """Writes what claims have left to the next one, see `trickle`."""
        self.holes.remember(magazine, self._trickle.flush(magazine), {})

    def leave(self, magazine: Magazine, places: list[tuple[int, int]], owner: str) -> None:
        """Nobody of this process looks at these holes any more: a record that comes joins the claim, for the sweeper."""
        if places:
            now_ms = int(time.time() * 1000)
            self._connection.operate(
                "holes", self._catalogue.data_keys(magazine, places), _stamp(now_ms, owner), _STAMPED, allowed=ANY
            )

    # -- the first call: pointers

    def _claim(
        self, magazine: Magazine, todo: list[int], count: int, expected: Sequence[int] | None
    ) -> tuple[list[Span], Riding | None]:
        """Moves the fire pointers. Shards that get no share are only looked at. Also returns what travelled along."""
        shares = self._shares(magazine, todo, count)
        how = policy("update", ttl=layout.TTL_NEVER, only_if=expressions.has_unfired)
        entries = []
        for shard in todo:
            key = self._catalogue.pointers_key(magazine, shard)
            share = shares[shard]
            entries.append(write_entry(key, expressions.claim(share), how) if share else read_entry(key))
        riding = None
        magazine.trickle.looked_at = time.monotonic()
        if self._trickle.on(magazine) or magazine.trickle.loaded:
            reading = (todo if expected is None else expected) if self._trickle.on(magazine) else []
            looked = [shard for shard in todo if shares[shard] and shard in reading]
            riding = self._trickle.board(magazine, looked)
            try:
                self._connection.send("claim", entries + riding.entries, allowed=ANY)
            except BaseException:
                self._trickle.missed(magazine, riding)
                raise
            self._trickle.landed(magazine, riding)
            self._connection.check("claim", entries, _CLAIMED)
        else:
            self._connection.send("claim", entries, allowed=_CLAIMED)
        if any(entry.result == NOT_FOUND for entry in entries):
            self._catalogue.missing(magazine)
            return [], riding
        spans, seen = [], {}
        for shard, entry in zip(todo, entries, strict=True):
            if entry.result != OK:
                with magazine.lock:
                    view = magazine.views[shard]
                    # Busy says nothing about what is there: the next round looks again, and `more` says so.
                    view.backlog = max(1, view.backlog) if entry.result == BUSY else 0
                    if entry.result == FILTERED:
                        view.due_ms = layout.NO_DUE
                continue
            bins = entry.record[2]
            seen[shard] = after = ShardPointers.of(bins)
            if shares[shard] and after.fire > bins["before"]:
                spans.append(Span(shard, bins["before"] + 1, after.fire, after.born))
        self._catalogue.saw(magazine, seen)
        if not spans and any(entry.result == BUSY for entry in entries):
            time.sleep(_BUSY_PAUSE_S)
        return spans, riding

    @staticmethod
    def _shares(magazine: Magazine, todo: list[int], count: int) -> dict[int, int]:
        """Splits ``count`` by the backlogs last seen; what they do not explain is spread evenly."""
        with magazine.lock:
            shares = {shard: min(magazine.views[shard].backlog, count) for shard in todo}
        known = sum(shares.values())
        if known > count:
            shares = {shard: share * count // known for shard, share in shares.items()}
            rest = count - sum(shares.values())
            for shard in todo:
                if not rest:
                    break
                with magazine.lock:
                    wants = magazine.views[shard].backlog > shares[shard]
                shares[shard] += wants
                rest -= wants
            return shares
        every, rest = divmod(count - known, len(todo))
        return {shard: shares[shard] + every + (number < rest) for number, shard in enumerate(todo)}

    # -- the second call: records

    def _taken(self, magazine: Magazine, spans: list[Span], owner: str, riding: Riding | None) -> Taken:
        """The claimed records: from what was read along with the claim, and by a call for the rest."""
        wanted, taken = places_of(spans), Taken()
        if riding is not None:
            now_ms = int(time.time() * 1000)
            got, entries, wanted = self._trickle.sort(magazine, wanted, riding, owner, now_ms)
            self._sort_out(magazine, got, entries, now_ms, taken)
        if wanted:
            self._take(magazine, wanted, owner, taken)
        for span in spans:
            taken.live.setdefault(span.shard, ([], []))
        return taken

    def _take(self, magazine: Magazine, wanted: list[tuple[int, int]], owner: str, taken: Taken) -> None:
        """Stamps and reads claimed records and counts them as fired."""
        counted = Counter(shard for shard, _ in wanted)
        rides = len(wanted) <= _RIDE
        now_ms = int(time.time() * 1000)
        ops = _stamp(now_ms, owner)
        keys = self._catalogue.data_keys(magazine, wanted)
        try:
            if rides:
                counters = [
                    write_entry(
                        self._catalogue.counters_key(magazine, shard), [expressions.increment(layout.FIRE_COUNTER, count)],
                        policy(ttl=layout.TTL_NEVER),
                    )
                    for shard, count in counted.items()
                ]  # fmt: skip
                entries = [write_entry(key, ops, _STAMPED) for key in keys]
                self._connection.send("take", entries + counters, allowed=ANY)
            else:
                entries = self._connection.operate("take", keys, ops, _STAMPED, allowed=ANY)
        except IgnisError:
            # Claimed, and nobody else gets them: this process looks at them again, as at holes.
            self.holes.remember(magazine, wanted, {})
            raise
        self._sort_out(magazine, wanted, entries, now_ms, taken)
        empty = Counter(shard for shard, _ in (*taken.holes, *taken.sealed))
        # What rode along is put right where there was less than was claimed.
        self.count(magazine, {shard: -count for shard, count in empty.items()} if rides else counted - empty)
        failed = [entry.result for entry in entries if entry.result not in {OK, NOT_FOUND}]
        if len(failed) == len(entries):
            self.holes.remember(magazine, wanted, {})
            raise self._connection.error(failed[0], "take")

    def _sort_out(
        self, magazine: Magazine, wanted: list[tuple[int, int]], entries: list[Entry], now_ms: int, taken: Taken
    ) -> None:
        shard, prefix, born = -1, "", 0
        pointers: list[int] = []
        records: list[bytes | None] = []
        for place, entry in zip(wanted, entries, strict=True):
            if place[0] != shard:
                shard = place[0]
                prefix = magazine.keys.prefix(shard)
                born = magazine.views[shard].born
                pointers, records = taken.live.setdefault(shard, ([], []))
            if entry.result != OK:
                taken.holes.append(place)
                continue
            bins = entry.record[2]
            sealed = bins.get(layout.SEALED)
            if sealed == layout.VOID:
                taken.voids.append(place)
            if bins.get(layout.DATA) is None:
                if sealed is None:
                    taken.holes.append(place)
                elif sealed != layout.VOID:
                    taken.sealed.append(place)
                continue
            record, expires_at_ms, life = layout.decode(f"{prefix}{place[1]}", bins)
            if life is not None and born and life != born:
                taken.strangers.append(place)
            elif expires_at_ms and expires_at_ms <= now_ms:
                taken.expired.append(place)
            else:
                pointers.append(place[1])
                records.append(record)

    def _retire(self, magazine: Magazine, taken: Taken) -> None:
        """Removes what is not handed out: run out, deleted before, or of an earlier life of the magazine."""
        gone = taken.expired + taken.strangers
        if taken.voids:
            live = {(shard, pointer) for shard, (pointers, _) in taken.live.items() for pointer in pointers}
            gone += [place for place in taken.voids if place not in live]
        if not gone and not taken.voids:
            return
        gone = list(dict.fromkeys(gone))
        if taken.strangers:
            self.resurrected_seen += len(taken.strangers)
            log.warning(
                event_text("earlier_records_dropped", "%d record(s) of an earlier life of %s were dropped"),
                len(taken.strangers),
                magazine.name,
            )
        self._connection.remove("retire", self._catalogue.data_keys(magazine, gone))
        with magazine.lock:
            for shard, pointer in gone:
                magazine.views[shard].gone.add(pointer, pointer)
        expired: dict[int, int] = {}
        for shard, _ in taken.expired:
            expired[shard] = expired.get(shard, 0) + 1
        if expired:
            counted = [
                write_entry(
                    self._catalogue.counters_key(magazine, shard), [expressions.increment(layout.EXPIRED, count)],
                    policy("update", ttl=layout.TTL_NEVER),
                )
                for shard, count in expired.items()
            ]  # fmt: skip
            self._connection.send("expired", counted, allowed=(OK, NOT_FOUND))
        voids: dict[int, int] = {}
        for shard, _ in taken.voids:
            voids[shard] = voids.get(shard, 0) + 1
        if voids:
            self._connection.send("voids", _uncount(self._catalogue, magazine, {}, voids), allowed=(OK, NOT_FOUND))
            with magazine.lock:
                for shard, count in voids.items():
                    # Seen before they were taken off: without this the shard looks emptier than it is.
                    magazine.views[shard].backlog += count

    # -- more bytes than asked for

    def _cut(self, magazine: Magazine, spans: list[Span], taken: Taken, max_bytes: int, has_some: bool) -> list[Span]:
        """Takes out of ``taken`` what is beyond ``max_bytes``; returns the parts of the spans that go back."""
        cut: list[Span] = []
        for span in spans:
            pointers, records = taken.live[span.shard]
            keep = 0
            for record in records:
                size = len(record or b"")
                if cut or (size > max_bytes and has_some):
                    break
                keep += 1
                has_some = True
                max_bytes -= size
                magazine.record_bytes += (size - magazine.record_bytes) / 16 if magazine.record_bytes else size
            if keep < len(pointers):
                cut.append(Span(span.shard, pointers[keep], span.last, span.born))
                del pointers[keep:], records[keep:]
            elif cut:
                cut.append(span)
                del pointers[:], records[:]
        return cut

    def _give_back(self, magazine: Magazine, cut: list[Span], taken: Taken) -> list[tuple[int, int]]:
        """Moves the fire pointers back, where nobody has claimed since; returns the places where somebody has."""
        entries = [
            write_entry(
                self._catalogue.pointers_key(magazine, span.shard),
                [expressions.write(layout.FIRE_POINTER, span.first - 1), *expressions.READ_POINTERS],
                policy("update", ttl=layout.TTL_NEVER, only_if=expressions.fire_pointer_is(span.last)),
            )
            for span in cut
        ]
        self._connection.send("give_back", entries, allowed=(OK, FILTERED, NOT_FOUND))
        surplus: list[tuple[int, int]] = []
        back: dict[int, int] = {}
        for span, entry in zip(cut, entries, strict=True):
            if entry.result != OK:
                surplus += [(span.shard, pointer) for pointer in range(span.first, span.last + 1)]
                continue
            back[span.shard] = span.last - span.first + 1
            empty = [pointer for shard, pointer in (*taken.holes, *taken.sealed) if shard == span.shard]
            taken.back[span.shard] += sum(pointer >= span.first for pointer in empty)
            for places in (taken.holes, taken.sealed, taken.expired, taken.voids, taken.strangers):
                places[:] = [place for place in places if place[0] != span.shard or place[1] < span.first]
            with magazine.lock:
                view = magazine.views[span.shard]
                view.backlog = ShardPointers.of(entry.record[2]).unfired
                # What is known of the shard's pointers must not be ahead of them.
                view.fire_seen = min(view.fire_seen, span.first - 1)
                view.seen_at = 0.0
        if back:
            # Holes and tombstones were not counted as fired.
            counted = {shard: count - taken.back[shard] for shard, count in back.items()}
            self._connection.send(
                "give_back", _uncount(self._catalogue, magazine, counted, {}), allowed=(OK, NOT_FOUND)
            )
        return surplus

    # -- holes

    def _look_at_holes(self, magazine: Magazine, shards: set[int], owner: str, limit: int) -> Taken:
        """Looks again at the holes whose time has come; what has arrived is claimed, what is too old is sealed."""
        due = self.holes.pick(magazine, shards, limit)
        taken = Taken()
        if not due:
            return taken
        now_ms = int(time.time() * 1000)
        places = sorted(due)
        try:
            entries = self._connection.operate(
                "holes", self._catalogue.data_keys(magazine, places), _stamp(now_ms, owner), _STAMPED, allowed=ANY
            )  # fmt: skip
        except IgnisError:
            self.holes.keep(magazine, due)
            raise
        self._sort_out(magazine, places, entries, now_ms, taken)
        still = {place: due[place] for place in taken.holes}
        taken.holes = []
        filled = [place[0] for place in places if place not in still]
        self.holes.filled += len(filled)
        self.count(magazine, Counter(filled))
        self.holes.later(magazine, still)
        return taken

    def count(self, magazine: Magazine, fired: dict[int, int]) -> None:
        """Changes fire counters. They count what had a record, as Java's do: Java fires only while more was loaded than
        fired, and a pointer whose producer died was never counted as loaded."""
        changes = [
            write_entry(
                self._catalogue.counters_key(magazine, shard), [expressions.increment(layout.FIRE_COUNTER, count)],
                policy(ttl=layout.TTL_NEVER),
            )
            for shard, count in fired.items()
            if count
        ]  # fmt: skip
        if changes:
            self._connection.send("count", changes, allowed=ANY)


_CLAIMED = (OK, FILTERED, NOT_FOUND, BUSY)
_STAMPED = policy(ttl=layout.TTL_KEEP)
"""Where there is no record yet the stamp makes one, which the producer's write completes."""
_READ = [expressions.read(name) for name in (layout.DATA, layout.ENVELOPE, layout.MODIFIED_AT, layout.SEALED)]


def _stamp(now_ms: int, owner: str) -> list[Any]:
    return [expressions.write(layout.FIRED_AT, now_ms), expressions.write(layout.OWNER, str(owner)), *_READ]


def _uncount(catalogue: Catalogue, magazine: Magazine, fired: dict[int, int], voids: dict[int, int]) -> list[Entry]:
    """Entries that take counts off the fire counters and the voids."""
    counters = [
        write_entry(
            catalogue.counters_key(magazine, shard), [expressions.increment(layout.FIRE_COUNTER, -count)],
            policy("update", ttl=layout.TTL_NEVER),
        )
        for shard, count in fired.items()
    ]  # fmt: skip
    return counters + [
        write_entry(
            catalogue.pointers_key(magazine, shard), [expressions.increment(layout.VOIDS, -count)],
            policy("update", ttl=layout.TTL_NEVER),
        )
        for shard, count in voids.items()
    ]  # fmt: skip
