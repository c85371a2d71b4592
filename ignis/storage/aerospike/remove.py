"""Deleting, putting back, and moving to another magazine.

Two steps that belong together, loading a record elsewhere and removing it here, are kept apart from other hands by a
mark on the record (bin ``ign_move``: since when). While it is there nobody else moves or deletes the record; the mark of
a process that died is void after 30 s. So of a late acknowledgement and a sweeper one wins and the other changes
nothing, and a record is never loaded twice by two movers.

A record that was never claimed is replaced by a tombstone instead of being removed: the claim that passes it must not
take it for a hole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ignis.errors import IgnisError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.append import Appender, Item, Raw
from ignis.storage.aerospike.catalogue import Catalogue, Magazine
from ignis.storage.aerospike.connection import Connection, Entry, policy, write_entry
from ignis.storage.aerospike.status_codes import FILTERED, NOT_FOUND, OK
from ignis.storage.aerospike.trickle import MOST_RIDING, Trickle
from ignis.storage.checks import check_shards, expiry_ms
from ignis.storage.records import KEEP_TTL, Pointers, Transfer

__all__ = ["Remover"]

log = logging.getLogger("ignis.storage.aerospike")

MOVE_STALE_MS = 30_000
"""Longer than all attempts of the steps of one move together."""
VOID_TTL_S = 30 * 86_400

Place = tuple[int, int]


class Remover:
    """Deletes records, puts them back, and moves them to another magazine. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue, appender: Appender, trickle: Trickle) -> None:
        self._connection = connection
        self._trickle = trickle
        self._catalogue = catalogue
        self._said = LimitedLog(log)
        self._appender = appender

    # -- delete

    def delete(self, magazine: Magazine, pointers: Pointers) -> int:
        """See `MagazineStore.delete`."""
        fired, unfired = self._places(magazine, pointers)
        free = expressions.free_to_move(int(time.time() * 1000) - MOVE_STALE_MS)
        if unfired or len(fired) > MOST_RIDING:
            return len(self._remove(magazine, fired, unfired, free))
        unstamped = self._trickle.forget(magazine, fired)
        entries = self._trickle.ride(magazine, fired, expressions.compiled(free))
        if entries is None:
            entries = self._connection.remove(
                "delete", self._catalogue.data_keys(magazine, fired), expressions.compiled(free)
            )
        removed = [place for place, entry in zip(fired, entries, strict=True) if entry.result == OK]
        self._note_gone(magazine, removed)
        left = {place for place, entry in zip(fired, entries, strict=True) if entry.result == FILTERED}
        tombs = [place for place in unstamped if place in left]
        if tombs:
            self._trickle.passed(magazine, tombs)
        return len(removed)

    def delete_waiting(self, magazine: Magazine, pointers: Pointers) -> int:
        """See `MagazineStore.delete_waiting`: the server looks at each record whether it was stamped by a claim."""
        _, unfired = self._places(magazine, pointers)
        if not unfired:
            return 0
        voided, _ = self._void(magazine, unfired, expressions.free_to_move(int(time.time() * 1000) - MOVE_STALE_MS))
        return len(voided)

    def _places(self, magazine: Magazine, pointers: Pointers) -> tuple[list[Place], list[Place]]:
        """What of it can be there: claimed, and not claimed yet; ascending, each once."""
        wanted = self._catalogue.places(magazine, pointers, magazine.most_shards)
        views = magazine.views
        unsure = sorted({shard for shard, pointer in wanted if pointer > views[shard].fire_seen})
        if not unsure:
            return wanted, []
        known = self._catalogue.mark_leaving(magazine, unsure)
        fired = [place for place in wanted if place[0] not in known or place[1] <= known[place[0]].fire]
        unfired = [
            place for place in wanted if place[0] in known and known[place[0]].fire < place[1] <= known[place[0]].load
        ]
        return fired, unfired

    def _remove(self, magazine: Magazine, fired: list[Place], unfired: list[Place], only_if: Any) -> list[Place]:
        """Removes records that match; returns those that were there."""
        gone: list[Place] = []
        if unfired:
            voided, fired_meanwhile = self._void(magazine, unfired, only_if)
            gone += voided
            fired = fired + fired_meanwhile
        if fired:
            entries = self._connection.remove(
                "delete", self._catalogue.data_keys(magazine, fired), expressions.compiled(only_if)
            )
            removed = [place for place, entry in zip(fired, entries, strict=True) if entry.result == OK]
            self._note_gone(magazine, removed)
            gone += removed
        return gone

    def _void(self, magazine: Magazine, places: list[Place], only_if: Any) -> tuple[list[Place], list[Place]]:
        """Puts tombstones in place of unclaimed records; returns those, and the ones that were claimed meanwhile."""
        condition = expressions.compiled(expressions.both(only_if, expressions.is_unfired))
        how = policy("replace", ttl=VOID_TTL_S, only_if=condition)
        ops = [expressions.write(layout.SEALED, layout.VOID)]
        entries = self._connection.operate(
            "void", self._catalogue.data_keys(magazine, places), ops, how, allowed=(OK, NOT_FOUND, FILTERED)
        )  # fmt: skip
        voided = [place for place, entry in zip(places, entries, strict=True) if entry.result == OK]
        filtered = [place for place, entry in zip(places, entries, strict=True) if entry.result == FILTERED]
        counts: dict[int, int] = {}
        for shard, _ in voided:
            counts[shard] = counts.get(shard, 0) + 1
        changes: list[Entry] = []
        for shard, count in counts.items():
            # Counted as fired by the claim that passes them, ours or Java's: before that Java must not think that all is.
            voids = expressions.increment(layout.VOIDS, count)
            update = policy("update", ttl=layout.TTL_NEVER)
            changes.append(write_entry(self._catalogue.pointers_key(magazine, shard), [voids], update))
        if changes:
            self._connection.send("void", changes, allowed=(OK, NOT_FOUND))
        return voided, filtered

    def _note_gone(self, magazine: Magazine, places: list[Place]) -> None:
        """They were there and are not any more: nobody needs to look again."""
        if not places:
            return
        with magazine.lock:
            shard, first = places[0]
            last = first
            for number, pointer in places[1:]:
                if number != shard or pointer != last + 1:
                    magazine.views[shard].gone.add(first, last)
                    shard, first = number, pointer
                last = pointer
            magazine.views[shard].gone.add(first, last)

    # -- reload

    def reload(self, magazine: Magazine, pointers: Pointers, check: Callable[[], None] = lambda: None) -> int:
        """See `MagazineStore.reload`; ``check`` as for `transfer`."""
        check()
        fired, _ = self._places(magazine, pointers)
        marked, at_ms = self._mark(magazine, fired, _READ)
        if not marked:
            return 0
        items = [self._item(magazine, place, entry.record[2], entry.record[1]) for place, entry in marked]
        places = [place for place, _ in marked]
        try:
            check()
            self._appender.append(magazine, items, count_loads=False)
        except IgnisError:
            self._unmark(magazine, places, at_ms)
            raise
        counts: dict[int, int] = {}
        for shard, _ in places:
            counts[shard] = counts.get(shard, 0) + 1
        counters = [
            write_entry(
                self._catalogue.counters_key(magazine, shard), [expressions.increment(layout.FIRE_COUNTER, -count)],
                policy("update", ttl=layout.TTL_NEVER),
            )
            for shard, count in counts.items()
        ]  # fmt: skip
        self._connection.send("count", counters, allowed=(OK, NOT_FOUND))
        self._remove(magazine, places, [], expressions.only_moved_at(at_ms))
        return len(places)

    def _item(self, magazine: Magazine, place: Place, bins: dict[str, Any], meta: Any) -> Item:
        shard, pointer = place
        found = layout.decode(f"{magazine.keys.prefix(shard)}{pointer}", bins)
        if found.record is None:
            return Item(
                shard, Raw(bins.get(layout.DATA) or b"", bins.get(layout.ENVELOPE)), layout.ends_at_ms(bins, meta)
            )
        return Item(shard, found.record, layout.ends_at_ms(bins, meta))

    # -- transfer

    def transfer(
        self,
        source: Magazine,
        target: Magazine,
        moves: Sequence[Transfer],
        ttl_s: float | None,
        check: Callable[[], None],
    ) -> int:
        """See `MagazineStore.transfer`; `move_out` into another magazine."""
        check_shards(target.name, (move.target_shard for move in moves), target.shards)
        return self.move_out(source, moves, ttl_s, check, lambda _, items: self._appender.append(target, items))

    def move_out(
        self,
        source: Magazine,
        moves: Sequence[Transfer],
        ttl_s: float | None,
        check: Callable[[], None],
        load: Callable[[list[Place], list[Item]], object],
    ) -> int:
        """Marks, has ``load`` store what becomes of the records of these places elsewhere, removes; returns how many.

        ``check`` raises StaleEpochError; it is called right before each of the steps that change something, up to the load.
        After that the move is completed: stopping between the load and the removal would leave the message twice."""
        keeps = ttl_s == KEEP_TTL
        expires_at_ms = 0 if keeps else expiry_ms(ttl_s)
        check()
        wanted: dict[Place, Transfer] = {}
        for move in moves:
            wanted.setdefault((move.shard, move.pointer), move)
        grouped: dict[int, list[int]] = {}
        for shard, pointer in wanted:
            grouped.setdefault(shard, []).append(pointer)
        fired, unfired = self._places(source, grouped)
        possible = set(fired) | set(unfired)
        marked, at_ms = self._mark(source, [place for place in wanted if place in possible], _READ_END if keeps else [])
        if not marked:
            return 0
        places = [place for place, _ in marked]
        items = [
            Item(
                wanted[place].target_shard,
                wanted[place].record,
                layout.ends_at_ms(entry.record[2], entry.record[1]) if keeps else expires_at_ms,
            )
            for place, entry in marked
        ]
        try:
            check()
            load(places, items)
        except IgnisError:
            self._unmark(source, places, at_ms)
            raise
        mine = set(places)
        self._remove(
            source, [place for place in fired if place in mine], [place for place in unfired if place in mine],
            expressions.only_moved_at(at_ms),
        )  # fmt: skip
        return len(places)

    def _mark(self, magazine: Magazine, places: list[Place], read: list[Any]) -> tuple[list[tuple[Place, Entry]], int]:
        """Marks records as being moved by us; returns those that were there and free, and the mark."""
        at_ms = int(time.time() * 1000)
        if not places:
            return [], at_ms
        how = policy(
            "update", ttl=layout.TTL_KEEP, only_if=expressions.compiled(expressions.free_to_move(at_ms - MOVE_STALE_MS))
        )
        ops = [expressions.write(layout.MOVING, at_ms), *read]
        entries = self._connection.operate(
            "mark", self._catalogue.data_keys(magazine, places), ops, how, allowed=(OK, NOT_FOUND, FILTERED)
        )  # fmt: skip
        return [(place, entry) for place, entry in zip(places, entries, strict=True) if entry.result == OK], at_ms

    def _unmark(self, magazine: Magazine, places: list[Place], at_ms: int) -> None:
        """After a failure: the records are free again at once, and not only when the mark is old."""
        how = policy("update", ttl=layout.TTL_KEEP, only_if=expressions.compiled(expressions.only_moved_at(at_ms)))
        try:
            self._connection.operate(
                "unmark", self._catalogue.data_keys(magazine, places), [expressions.write(layout.MOVING, 0)], how,
                allowed=(OK, NOT_FOUND, FILTERED),
            )  # fmt: skip
        except IgnisError as exc:
            self._said.warning(
                event_text("records_not_moved", "%d record(s) of %s cannot be moved for %d s: %s"),
                len(places),
                magazine.name,
                MOVE_STALE_MS // 1000,
                exc,
                about=magazine.name,
            )


_READ_END = [expressions.read(layout.ENVELOPE)]
_READ = [expressions.read(name) for name in (layout.DATA, layout.ENVELOPE, layout.MODIFIED_AT)]
