"""Which magazines there are, and what this process knows about each.

A magazine is declared by a record of its own (set ``…_ignis_mags``): shards, durability, and per shard the low-water
mark. Its pointers records are made with it and removed with it. So when it was dropped, and somebody who does not know yet
loads or claims, there is no pointers record and nothing changes. A pointers record that is gone although the declaration
says that it was made was lost: it is restored, see `pointer_recovery`, and the magazine's life goes on.

The low-water mark. Everything up to it has been accounted for and is never looked at again. Community servers can bring
removed records back when they start from cold storage; below the mark such a record is dropped, not delivered. The mark
is raised by whoever sweeps; the queue's own sweep pointers, which Java instances use, are raised along with it. Java's
own sweeper passes a pointer whose record is not there yet, so its pointers count only when the magazine is declared.

Who loads. A pointers record counts the pointers that ignis has reserved. Where that is less than the load pointer, somebody
else (Java, an older version) loads too, and does not look whether its pointer was given up meanwhile. Such a shard is
*shared*: nothing in it is sealed, and pointers that never had a record are kept in a list (`OPEN`) when the low-water mark
passes them.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any

from ignis.errors import IgnisError, QueueMismatchError, QueueNotFoundError, StoreError
from ignis.log_format import event_text
from ignis.storage.aerospike import expressions, layout, pointer_recovery
from ignis.storage.aerospike.connection import Connection, policy, read_entry, write_entry
from ignis.storage.aerospike.layout import Keys, SetNames
from ignis.storage.aerospike.shard_count import ShardCount
from ignis.storage.aerospike.shard_view import Magazine, ShardPointers, ShardView
from ignis.storage.aerospike.status_codes import EXISTS, FILTERED, GENERATION, NOT_FOUND, OK
from ignis.storage.checks import check_declaration, check_printable
from ignis.storage.later import later_of
from ignis.storage.records import Pointers
from ignis.storage.runs import Runs, overlap, runs_of

__all__ = ["Catalogue", "Magazine", "ShardPointers", "ShardView"]

REFRESH_S = 10.0
"""How long a process goes on with what it knows of a magazine before it reads the record again."""
MAX_NAME_BYTES = 255
"""Of magazines that are looked up: those of Java may have names that ours cannot have."""

SIDELINE_SUFFIX = "_SIDELINE"
_NAME, _SHARDS, _MOST, _DURABILITY, _PLAIN, _LOW = "name", "shards", "most_shards", "durability", "plain", "low"
_LATER = "later"
"""Whether any message ever waited for its time."""
_BORN = "born"
"""Shard -> ``born`` of its pointers record, once that was made."""
_OURS = "ign_queue"
_TRIES = 100
_FEW = 1_000
"""So many pointers are looked up without asking first how far their shards were loaded."""
_NO_POINTER = 1 << 64

TTL_ENDLESS = 0xFFFFFFFF
"""What the driver shows of a record that never ends."""

Key = tuple[str, str, str]
log = logging.getLogger("ignis.storage.aerospike")


class Catalogue:
    """Declares, finds and drops magazines. Thread-safe."""

    def __init__(self, connection: Connection, sets: SetNames) -> None:
        self._connection = connection
        self.sets = sets
        self._lock = threading.Lock()
        self._known: dict[str, Magazine] = {}
        self._shard_count = ShardCount(connection, sets)
        self.restored = 0

    # -- keys

    def data_key(self, user_key: str) -> Key:
        return self._connection.namespace, self.sets.data, user_key

    def data_keys(self, magazine: Magazine, places: list[tuple[int, int]]) -> list[Key]:
        """Keys of records named by shard and pointer."""
        namespace, name = self._connection.namespace, self.sets.data
        prefixes = {shard: magazine.keys.prefix(shard) for shard in {shard for shard, _ in places}}
        return [(namespace, name, f"{prefixes[shard]}{pointer}") for shard, pointer in places]

    def pointers_key(self, magazine: Magazine, shard: int) -> Key:
        return self._connection.namespace, self.sets.meta, magazine.keys.pointers(shard)

    def counters_key(self, magazine: Magazine, shard: int) -> Key:
        return self._connection.namespace, self.sets.meta, magazine.keys.counters(shard)

    def open_key(self, magazine: Magazine, shard: int) -> Key:
        return self._connection.namespace, self.sets.meta, magazine.keys.open(shard)

    def _own_key(self, name: str) -> Key:
        return self._connection.namespace, self.sets.magazines, name

    def _queue_key(self, name: str) -> tuple[Key, str]:
        """The queue's record and the bin of its sweep pointers."""
        queue = name.removesuffix(SIDELINE_SUFFIX)
        return (
            self._connection.namespace,
            self.sets.queues,
            queue,
        ), "sweepPointers" if queue == name else "sidelineSweep"

    # -- looking up

    def get(self, name: str) -> Magazine:
        """The magazine. Raises QueueNotFoundError."""
        magazine = self._known.get(name)
        if magazine is None:
            return self.refresh(name)
        if time.monotonic() - magazine.checked_at > REFRESH_S:
            try:
                return self.refresh(name)
            except IgnisError as exc:
                # What is known is good enough as long as the server is away.
                if not exc.retryable:
                    raise
        return magazine

    def known(self) -> list[Magazine]:
        """Those that this process has used."""
        with self._lock:
            return list(self._known.values())

    def with_shard(self, name: str, shard: int) -> Magazine:
        """The magazine, read anew when the shard is beyond those known: another process may have added some."""
        magazine = self.get(name)
        return magazine if 0 <= shard < magazine.shards else self.refresh(name)

    def with_shards(self, name: str, shards: Iterable[int]) -> Magazine:
        """`with_shard` for each of them."""
        magazine = self.get(name)
        for shard in shards:
            if not 0 <= shard < magazine.shards:
                return self.refresh(name)
        return magazine

    def refresh(self, name: str) -> Magazine:
        """Reads the magazine's record. The magazines of a queue that Java has made are declared by the way. Raises
        QueueNotFoundError, InvalidNameError."""
        check_printable(name, "magazine", MAX_NAME_BYTES)
        queue_key, _ = self._queue_key(name)
        own = read_entry(self._own_key(name))
        queue = read_entry(queue_key, [expressions.read(one) for one in (_SHARDS, _OURS)])
        self._connection.send("look_up", [own, queue], allowed=(OK, NOT_FOUND))
        if own.result == NOT_FOUND:
            with self._lock:
                self._known.pop(name, None)
            bins = queue.record[2] if queue.result == OK else {}
            shards = max(bins.get(_SHARDS) or 0, self._shard_count.stored(Keys(name, True)) or 0)
            if not shards:
                raise QueueNotFoundError(f"magazine {name!r} is not declared in this store")
            self.declare(name, shards, (bins.get(_OURS) or {}).get(_DURABILITY, "sync"))
            return self.refresh(name)
        return self._learn(name, own.record[2])

    def _learn(self, name: str, bins: dict[str, Any]) -> Magazine:
        with self._lock:
            magazine = self._known.get(name)
            if magazine is None:
                magazine = Magazine(name, 0, 0, "", Keys(name, bool(bins[_PLAIN])), [], threading.Lock())
                self._known[name] = magazine
            magazine.shards, magazine.most_shards = bins[_SHARDS], bins[_MOST]
            magazine.durability = bins[_DURABILITY]
            before, magazine.born = magazine.born, dict(bins.get(_BORN) or {})
            magazine.later.made = bool(bins.get(_LATER))
            magazine.views += [ShardView() for _ in range(magazine.most_shards - len(magazine.views))]
            magazine.checked_at = time.monotonic()
        with magazine.lock:
            for shard, view in enumerate(magazine.views):
                born = magazine.born.get(shard)
                if before.get(shard, born) != born or (born and view.born and view.born != born):
                    self._forget(magazine, view)
            for shard, low in (bins.get(_LOW) or {}).items():
                magazine.views[shard].raise_low(low)
        return magazine

    def names(self) -> list[str]:
        """Declared magazines, sorted."""
        rows = self._connection.everything("names", self.sets.magazines)
        names = [bins[_NAME] for _, bins in rows]
        return sorted(names + [later_of(bins[_NAME]) for _, bins in rows if bins.get(_LATER)])

    # -- pointers

    def pointers(self, magazine: Magazine, shards: list[int]) -> dict[int, ShardPointers]:
        """Reads the pointers of some shards and takes note of them. Raises QueueNotFoundError when they are gone."""
        entries = [read_entry(self.pointers_key(magazine, shard)) for shard in shards]
        self._connection.send("pointers", entries, allowed=(OK, NOT_FOUND))
        if any(entry.result == NOT_FOUND for entry in entries):
            self.missing(magazine)
            return self.pointers(magazine, shards)
        found = {shard: ShardPointers.of(entry.record[2]) for shard, entry in zip(shards, entries, strict=True)}
        self.saw(magazine, found)
        self._keep(magazine, shards, entries)
        self._forget_voids(magazine, found)
        return found

    def mark_leaving(self, magazine: Magazine, shards: list[int]) -> dict[int, ShardPointers]:
        """`pointers` for who is going to delete or move messages that wait: claims from now on look at each record again
        before they hand it out. One call."""
        how = policy("update", ttl=layout.TTL_NEVER)
        ops = [expressions.write(layout.LEAVING, int(time.time() * 1000)), *expressions.READ_POINTERS]
        entries = [write_entry(self.pointers_key(magazine, shard), ops, how) for shard in shards]
        self._connection.send("pointers", entries, allowed=(OK, NOT_FOUND))
        if any(entry.result == NOT_FOUND for entry in entries):
            self.missing(magazine)
            return self.mark_leaving(magazine, shards)
        found = {shard: ShardPointers.of(entry.record[2]) for shard, entry in zip(shards, entries, strict=True)}
        self.saw(magazine, found)
        return found

    def _forget_voids(self, magazine: Magazine, found: dict[int, ShardPointers]) -> None:
        """A Java consumer passes a deleted message without saying so. Where all is claimed no deleted one is left to claim."""
        over = [shard for shard, one in found.items() if one.voids > 0 and one.fire >= one.load]
        if over:
            how = policy("update", ttl=layout.TTL_NEVER, only_if=expressions.nothing_unfired)
            none = [expressions.write(layout.VOIDS, 0)]
            entries = [write_entry(self.pointers_key(magazine, shard), none, how) for shard in over]
            self._connection.send("voids", entries, allowed=(OK, FILTERED, NOT_FOUND))

    def _keep(self, magazine: Magazine, shards: list[int], entries: list[Any]) -> None:
        """Java gives pointers and counters a time to live with each of its writes. Whoever looks at them uses them: they
        stay."""
        ending = [shard for shard, entry in zip(shards, entries, strict=True) if entry.record[1]["ttl"] != TTL_ENDLESS]
        if not ending or time.monotonic() - magazine.kept_at < REFRESH_S:
            return
        magazine.kept_at = time.monotonic()
        how = policy("update", ttl=layout.TTL_NEVER)
        keys = [key(magazine, shard) for shard in ending for key in (self.pointers_key, self.counters_key)]
        touched = [write_entry(key, [expressions.touch], how) for key in keys]
        self._connection.send("keep", touched, allowed=(OK, NOT_FOUND))

    def places(self, magazine: Magazine, pointers: Pointers, shards: int) -> list[tuple[int, int]]:
        """(shard, pointer) of what of the first ``shards`` shards may have a record, ascending, each once. Many pointers are
        cut to those between the low-water mark and the load pointer before anything is made per pointer; for that the
        load pointers are read where this process has not seen so far."""
        asked = {
            shard: overlap(runs_of(many), 1, _NO_POINTER) for shard, many in pointers.items() if 0 <= shard < shards
        }
        if sum(stop - start for runs in asked.values() for start, stop in runs) > _FEW:
            views = magazine.views
            far = sorted(shard for shard, runs in asked.items() if runs and runs[-1][1] - 1 > views[shard].fire_seen)
            known = self.pointers(magazine, far) if far else {}
            for shard, runs in asked.items():
                end = known[shard].load + 1 if shard in known else _NO_POINTER
                late = [run for one in sorted(views[shard].open) for run in overlap(runs, one, one + 1)]
                asked[shard] = late + overlap(runs, views[shard].low + 1, end)
        return [(shard, pointer) for shard in sorted(asked) for pointer in Runs(asked[shard])]

    def saw(self, magazine: Magazine, found: dict[int, ShardPointers]) -> None:
        """Takes note of pointers. Where they are of another life of the magazine than what is known, that is forgotten, and the
        next `get` reads the magazine's record."""
        with magazine.lock:
            for shard, pointers in found.items():
                view = magazine.views[shard]
                if view.born and pointers.born and view.born != pointers.born:
                    self._forget(magazine, view)
                    magazine.checked_at = -math.inf
                view.saw(pointers, self._connection.options.settle_s)
                if pointers.due_ms < layout.NO_DUE:
                    magazine.later.seen = True

    @staticmethod
    def _forget(magazine: Magazine, view: ShardView) -> None:
        """With the magazine's lock held."""
        magazine.holes -= len(view.holes)
        view.forget()

    def missing(self, magazine: Magazine) -> None:
        """A pointers record was not there: raises QueueNotFoundError when the magazine was dropped, else makes or restores
        it."""
        with self._lock:
            self._known.pop(magazine.name, None)
        fresh = self.refresh(magazine.name)
        self._make_pointers(fresh, range(fresh.shards))

    def _make_pointers(self, magazine: Magazine, shards: range) -> None:
        """Creates what is missing; what was there before goes on where it was. A pointers record that Java made gets
        ``born``."""
        never = policy("create", ttl=layout.TTL_NEVER)
        mark = policy("update", ttl=layout.TTL_KEEP, only_if=expressions.not_born)
        starts = self._lost(magazine, shards)
        entries = []
        for shard in shards:
            start = starts.get(shard, pointer_recovery.Place(0, 0, 0))
            ops = [
                expressions.write(layout.LOAD_POINTER, start.load), expressions.write(layout.FIRE_POINTER, start.fire),
                expressions.write(layout.BORN, magazine.born.get(shard) or secrets.randbits(31) | 1),
                # Of those before nobody knows whose they were.
                expressions.write(layout.OURS, 0),
                *([expressions.write(layout.VOIDS, start.voids)] if start.voids else []),
                # When the next message of a shard is due that lost its record: whoever claims finds out.
                *([expressions.write(layout.NEXT_DUE, 0)] if shard in starts and magazine.later.made else []),
            ]  # fmt: skip
            entries.append(write_entry(self.pointers_key(magazine, shard), ops, never))
            zero = [expressions.write(name, 0) for name in (layout.LOAD_COUNTER, layout.FIRE_COUNTER)]
            entries.append(write_entry(self.counters_key(magazine, shard), zero, never))
        self._connection.send("declare", entries, allowed=(OK, EXISTS))
        for shard, entry in zip(shards, entries[::2], strict=True):
            if entry.result == OK and shard in starts:
                self.restored += 1
                log.error(
                    event_text(
                        "pointers_restored",
                        "shard %d of %s had lost its pointers record; by the records that are there it goes on with %s"),
                    shard, magazine.name, starts[shard],
                )  # fmt: skip
        old = [(shard, entry) for shard, entry in zip(shards, entries[::2], strict=True) if entry.result == EXISTS]
        if old:
            marks = [
                write_entry(
                    entry.key,
                    [expressions.write(layout.BORN, magazine.born.get(shard) or secrets.randbits(31) | 1)],
                    mark,
                )
                for shard, entry in old
            ]
            self._connection.send("declare", marks, allowed=(OK, FILTERED, NOT_FOUND))
        self._note_born(magazine, [shard for shard in shards if shard not in magazine.born])

    def _lost(self, magazine: Magazine, shards: range) -> dict[int, pointer_recovery.Place]:
        """Of the pointers records that were made and are gone: where they belong."""
        made = [shard for shard in shards if shard in magazine.born]
        entries = [read_entry(self.pointers_key(magazine, shard), [expressions.read(layout.BORN)]) for shard in made]
        if entries:
            self._connection.send("declare", entries, allowed=(OK, NOT_FOUND))
        lows = {
            shard: magazine.views[shard].low
            for shard, entry in zip(made, entries, strict=True)
            if entry.result == NOT_FOUND
        }
        return pointer_recovery.find_places(self._connection, self.sets.data, magazine.keys, lows) if lows else {}

    def _note_born(self, magazine: Magazine, shards: list[int]) -> None:
        """Notes in the magazine's record that these shards' pointers were made."""
        if not shards:
            return
        entries = [read_entry(self.pointers_key(magazine, shard), [expressions.read(layout.BORN)]) for shard in shards]
        self._connection.send("declare", entries, allowed=(OK, NOT_FOUND))
        born = {
            shard: entry.record[2][layout.BORN]
            for shard, entry in zip(shards, entries, strict=True)
            if entry.result == OK
        }
        how = policy("update", ttl=layout.TTL_KEEP)
        written = write_entry(self._own_key(magazine.name), [expressions.put_in_map(_BORN, born)], how)
        self._connection.send("declare", [written], allowed=(OK, NOT_FOUND))
        magazine.born.update(born)

    # -- declaring and dropping

    def declare(self, name: str, shards: int, durability: str) -> None:
        """See `MagazineStore.declare`."""
        check_declaration(name, shards, durability)
        for _ in range(_TRIES):
            if self._declare_once(name, shards, durability):
                return
        raise StoreError(f"magazine {name!r} could not be declared: others change it all the time")

    def _declare_once(self, name: str, shards: int, durability: str) -> bool:
        key = self._own_key(name)
        found = self._connection.get("declare", key)
        if found is None:
            fresh = Keys(name, shards == 1)
            self._shard_count.check(name, fresh, shards, mine=None)
            bins: dict[str, Any] = {
                _NAME: name,
                _SHARDS: shards,
                _MOST: shards,
                _DURABILITY: durability,
                _PLAIN: int(fresh.plain),
                _LOW: self._swept(name, shards),
                _BORN: {},
            }
            if not self._connection.put("declare", key, bins, policy("create", ttl=layout.TTL_NEVER)):
                return False
        else:
            bins, generation = found
            if bins[_DURABILITY] != durability:
                raise QueueMismatchError(
                    f"magazine {name!r} has durability {bins[_DURABILITY]!r}; it cannot become {durability!r}"
                )
            if bins[_SHARDS] == shards and name in self._known:
                return True
            known, other = self._learn(name, bins), bins[_SHARDS] != shards
            if other:
                self._check_empty(known, shards)
            shared = other and self._is_shared(known)
            self._shard_count.check(name, known.keys, shards, mine=bins[_SHARDS], shared=shared)
            if other:
                log.warning(
                    event_text(
                        "shards_differ_for_java",
                        "magazine %s had %d shards and gets %d; a Java instance that runs uses its own number until it starts "
                        "again"),
                    name, bins[_SHARDS], shards,
                )  # fmt: skip
                bins[_SHARDS], bins[_MOST] = shards, max(shards, bins[_MOST])
                changed = {_SHARDS: shards, _MOST: bins[_MOST]}
                how = policy("update", ttl=layout.TTL_NEVER, generation=generation)
                if not self._connection.put("declare", key, changed, how, generation):
                    return False
        magazine = self._learn(name, bins)
        self._make_pointers(magazine, range(shards))
        self._shard_count.store(magazine.keys, shards)
        self._balance(magazine)
        return True

    def keep_later(self, magazine: Magazine) -> None:
        """Notes that messages of it wait for their time: it has a later magazine from now on."""
        how = policy("update", ttl=layout.TTL_KEEP)
        noted = write_entry(self._own_key(magazine.name), [expressions.write(_LATER, 1)], how)
        self._connection.send("declare", [noted], allowed=(OK, NOT_FOUND))
        if noted.result == NOT_FOUND:
            self.missing(magazine)
        magazine.later.made = True

    def _is_shared(self, magazine: Magazine) -> bool:
        """Whether others than ignis have loaded."""
        self.pointers(magazine, list(range(magazine.shards)))
        return any(view.shared for view in magazine.views)

    def _swept(self, name: str, shards: int) -> dict[int, int]:
        """Low-water marks to begin with: how far Java has swept. Its pointer may be the next record to look at."""
        key, sweep_bin = self._queue_key(name)
        found = self._connection.get("declare", key)
        swept = (found[0].get(sweep_bin) if found is not None else None) or {}
        return {
            int(text): pointer - 1
            for text, pointer in swept.items()
            if text.isdecimal() and int(text) < shards and isinstance(pointer, int) and pointer > 1
        }

    def _balance(self, magazine: Magazine) -> None:
        """Java fires only while more was counted as loaded than as fired. Fire counters that are ahead of what waits, as an
        earlier version left them, are put back."""
        shards = list(range(magazine.shards))
        known = self.pointers(magazine, shards)
        entries = [read_entry(self.counters_key(magazine, shard)) for shard in shards]
        self._connection.send("declare", entries, allowed=(OK, NOT_FOUND))
        changes = []
        for shard, entry in zip(shards, entries, strict=True):
            bins = entry.record[2] if entry.result == OK else {}
            loads, fires = bins.get(layout.LOAD_COUNTER) or 0, bins.get(layout.FIRE_COUNTER) or 0
            ahead = fires - max(0, loads - known[shard].unfired)
            if ahead > 0 and known[shard].unfired:
                update = policy("update", ttl=layout.TTL_NEVER)
                changes.append(write_entry(entry.key, [expressions.increment(layout.FIRE_COUNTER, -ahead)], update))
        if changes:
            self._connection.send("declare", changes, allowed=(OK, NOT_FOUND))

    def _check_empty(self, magazine: Magazine, shards: int) -> None:
        beyond = list(range(shards, magazine.shards))
        if not beyond:
            return
        for shard, pointers in self.pointers(magazine, beyond).items():
            view = magazine.views[shard]
            with magazine.lock:
                wanted = list(view.gone.missing(view.low + 1, pointers.load))
            if any(self.there(magazine, shard, wanted)):
                has = f"has {magazine.shards} shards, records beyond shard {shards - 1}"
                raise QueueMismatchError(f"magazine {magazine.name!r} {has}; asked for {shards}")

    def there(self, magazine: Magazine, shard: int, pointers: list[int]) -> list[bool]:
        """Per pointer whether it has a record that is no tombstone."""
        prefix = magazine.keys.prefix(shard)
        keys = [self.data_key(f"{prefix}{pointer}") for pointer in pointers]
        entries = self._connection.read("exists", keys, [layout.SEALED, layout.MODIFIED_AT])
        return [entry.result == OK and layout.is_record(entry.record[2]) for entry in entries]

    def drop(self, name: str) -> None:
        """See `MagazineStore.drop`. Pointers go first, so that nobody loads or claims meanwhile."""
        try:
            magazine = self.refresh(name)
        except QueueNotFoundError:
            return
        shards = list(range(magazine.most_shards))
        # Nobody must restore what is removed on purpose.
        forgotten = write_entry(
            self._own_key(name), [expressions.write(_BORN, {})], policy("update", ttl=layout.TTL_KEEP)
        )
        self._connection.send("drop", [forgotten], allowed=(OK, NOT_FOUND))
        entries = [read_entry(self.pointers_key(magazine, shard)) for shard in shards]
        self._connection.send("drop", entries, allowed=(OK, NOT_FOUND))
        found = {
            shard: ShardPointers.of(entry.record[2])
            for shard, entry in zip(shards, entries, strict=True)
            if entry.result == OK
        }
        meta = [
            key(magazine, shard) for shard in shards for key in (self.pointers_key, self.counters_key, self.open_key)
        ]
        self._connection.remove("drop", [*meta, self._shard_count.key(magazine.keys)])
        for shard, pointers in found.items():
            prefix = magazine.keys.prefix(shard)
            for first in range(magazine.views[shard].low + 1, pointers.load + 1, 5_000):
                last = min(first + 5_000, pointers.load + 1)
                self._connection.remove("drop", [self.data_key(f"{prefix}{pointer}") for pointer in range(first, last)])
        self._connection.discard("drop", self._own_key(name))
        with self._lock:
            self._known.pop(name, None)

    # -- the low-water mark

    def raise_low(self, magazine: Magazine, shard: int, low: int) -> None:
        """Stores a higher low-water mark, in the magazine's record and in the queue's, if there is one.

        Each is raised by an increment under the condition that it still has the value it was seen with, so that two
        sweepers cannot raise it twice.
        """
        name = magazine.name
        queue_key, sweep_bin = self._queue_key(name)
        own, queue = read_entry(self._own_key(name), [expressions.read(_LOW)]), read_entry(queue_key)
        self._connection.send("sweep_pointer", [own, queue], allowed=(OK, NOT_FOUND))
        entries = []
        for entry, bin_name, key in ((own, _LOW, shard), (queue, sweep_bin, str(shard))):
            if entry.result == OK:
                before = (entry.record[2].get(bin_name) or {}).get(key) or 0
                if before < low:
                    only_if = expressions.map_value_is(bin_name, key, before)
                    how = policy("update", ttl=layout.TTL_KEEP, only_if=only_if)
                    entries.append(write_entry(entry.key, expressions.advance_map(bin_name, key, before, low), how))
        if entries:
            self._connection.send("sweep_pointer", entries, allowed=(OK, FILTERED, NOT_FOUND, GENERATION))
        with magazine.lock:
            magazine.views[shard].raise_low(low)
