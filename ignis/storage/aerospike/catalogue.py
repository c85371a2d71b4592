"""Which magazines there are, and what this process knows about each.

A magazine is declared by a record of its own (set ``…_ignis_mags``): shards, durability, and per shard the low-water
mark. Its pointers records are made with it and removed with it, so that a load or a claim by somebody who does not know
yet that it was dropped finds no pointers record and changes nothing. A pointers record that is gone although the
declaration says that it was made was lost: it is restored, see `restoring`, and the magazine's life goes on.

The low-water mark. Everything up to it has been accounted for and is never looked at again. Community servers can bring
removed records back when they start from cold storage; below the mark such a record is dropped, not delivered. The mark
is raised by whoever sweeps; the queue's own sweep pointers, which Java instances use, are raised along with it and
count as well.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ignis.errors import IgnisError, QueueMismatchError, QueueNotFoundError, StoreError
from ignis.storage.aerospike import expressions, layout, restoring
from ignis.storage.aerospike.client import Connection, policy, read_entry, write_entry
from ignis.storage.aerospike.codes import EXISTS, FILTERED, GENERATION, NOT_FOUND, OK
from ignis.storage.aerospike.layout import Keys, SetNames
from ignis.storage.aerospike.ranges import Ranges
from ignis.storage.base import Pointers
from ignis.storage.checks import check_declaration, check_printable
from ignis.storage.runs import Runs, overlap, runs_of

__all__ = ["Catalogue", "Magazine", "ShardPointers", "ShardView"]

REFRESH_S = 10.0
"""How long a process goes on with what it knows of a magazine before it reads the record again."""
MAX_NAME_BYTES = 255
"""Of magazines that are looked up: those of Java may have names that ours cannot have."""

SIDELINE_SUFFIX = "_SIDELINE"
_NAME, _SHARDS, _MOST, _DURABILITY, _PLAIN, _LOW = "name", "shards", "most_shards", "durability", "plain", "low"
_BORN = "born"
"""Shard -> ``born`` of its pointers record, once that was made."""
_OURS = "ign_queue"
_TRIES = 100
_FEW = 1_000
"""So many pointers are looked up without asking first how far their shards were loaded."""
_NO_POINTER = 1 << 64

Key = tuple[str, str, str]
log = logging.getLogger("ignis.storage.aerospike")


class ShardPointers(NamedTuple):
    """One shard's pointers record. ``voids`` of the unfired pointers are deleted ones. ``born`` is drawn when the record
    is made: data records of an earlier life of the magazine carry another."""

    load: int
    fire: int
    voids: int
    born: int

    @classmethod
    def of(cls, bins: dict[str, Any]) -> ShardPointers:
        return cls(
            bins.get(layout.LOAD_POINTER) or 0, bins.get(layout.FIRE_POINTER) or 0,
            bins.get(layout.VOIDS) or 0, bins.get(layout.BORN) or 0,
        )  # fmt: skip

    @property
    def unfired(self) -> int:
        """Never below 0, whatever the order in which others' changes are seen."""
        return max(0, self.load - self.fire - self.voids)


class ShardView:
    """What this process knows of one shard. Guarded by the magazine's lock."""

    __slots__ = (
        "backlog",
        "born",
        "checked_below",
        "fire_seen",
        "gone",
        "holes",
        "low",
        "seen_at",
        "seen_fire",
        "settled",
        "uncounted",
        "uncounted_since",
    )

    def __init__(self) -> None:
        self.low = 0
        self.fire_seen = 0
        self.backlog = 0
        self.born = 0
        self.gone = Ranges()
        self.uncounted = Ranges()
        self.uncounted_since = 0.0
        self.holes: dict[int, tuple[float, float]] = {}
        self.settled = 0
        self.seen_fire = 0
        self.seen_at = 0.0
        self.checked_below = False

    def saw(self, pointers: ShardPointers, settle_s: float) -> None:
        """Takes note of the pointers. What was claimed ``settle_s`` ago and has no record will never have one that
        its producer did not check."""
        self.fire_seen = max(self.fire_seen, pointers.fire)
        self.backlog = pointers.unfired
        self.born = pointers.born
        now = time.monotonic()
        if not self.seen_at:
            self.seen_fire, self.seen_at = pointers.fire, now
        elif now - self.seen_at >= settle_s:
            self.settled, self.seen_fire, self.seen_at = self.seen_fire, pointers.fire, now

    def raise_low(self, low: int) -> None:
        if low > self.low:
            self.low = low
            self.gone.drop_to(low)


@dataclass
class Magazine:
    """One declared magazine as this process sees it. ``lock`` guards what changes."""

    name: str
    shards: int
    most_shards: int
    durability: str
    keys: Keys
    views: list[ShardView]
    lock: threading.Lock
    born: dict[int, int] = field(default_factory=dict)
    checked_at: float = 0.0
    next_shard: int = 0
    record_bytes: float = 0.0
    holes: int = 0


class Catalogue:
    """Declares, finds and drops magazines. Thread-safe."""

    def __init__(self, connection: Connection, sets: SetNames) -> None:
        self._connection = connection
        self.sets = sets
        self._lock = threading.Lock()
        self._known: dict[str, Magazine] = {}
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

    def with_shard(self, name: str, shard: int) -> Magazine:
        """The magazine, read anew when the shard is beyond those known: another process may have added some."""
        magazine = self.get(name)
        return magazine if 0 <= shard < magazine.shards else self.refresh(name)

    def refresh(self, name: str) -> Magazine:
        """Reads the magazine's record. The magazines of a queue that Java has made are declared by the way. Raises
        QueueNotFoundError, InvalidNameError."""
        check_printable(name, "magazine", MAX_NAME_BYTES)
        queue_key, sweep_bin = self._queue_key(name)
        own = read_entry(self._own_key(name))
        queue = read_entry(queue_key, [expressions.read(one) for one in (sweep_bin, _SHARDS, _OURS)])
        self._connection.send("look_up", [own, queue], allowed=(OK, NOT_FOUND))
        if own.result == NOT_FOUND:
            with self._lock:
                self._known.pop(name, None)
            bins = queue.record[2] if queue.result == OK else {}
            if not isinstance(bins.get(_SHARDS), int):
                raise QueueNotFoundError(f"magazine {name!r} is not declared in this store")
            self.declare(name, bins[_SHARDS], (bins.get(_OURS) or {}).get(_DURABILITY, "sync"))
            return self.refresh(name)
        swept = (queue.record[2].get(sweep_bin) if queue.result == OK else None) or {}
        return self._learn(name, own.record[2], swept)

    def _learn(self, name: str, bins: dict[str, Any], swept: dict[str, int]) -> Magazine:
        with self._lock:
            magazine = self._known.get(name)
            if magazine is None:
                magazine = Magazine(name, 0, 0, "", Keys(name, bool(bins[_PLAIN])), [], threading.Lock())
                self._known[name] = magazine
            magazine.shards, magazine.most_shards = bins[_SHARDS], bins[_MOST]
            magazine.durability = bins[_DURABILITY]
            magazine.born = dict(bins.get(_BORN) or {})
            magazine.views += [ShardView() for _ in range(magazine.most_shards - len(magazine.views))]
            magazine.checked_at = time.monotonic()
        with magazine.lock:
            for shard, low in (bins.get(_LOW) or {}).items():
                magazine.views[shard].raise_low(low)
            for text, pointer in swept.items():
                if text.isdecimal() and int(text) < len(magazine.views) and isinstance(pointer, int):
                    # Java's pointer may be the next record to look at.
                    magazine.views[int(text)].raise_low(pointer - 1)
        return magazine

    def names(self) -> list[str]:
        """Declared magazines, sorted."""
        rows = self._connection.everything("names", self.sets.magazines)
        return sorted(bins[_NAME] for _, bins in rows)

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
        return found

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
                asked[shard] = overlap(runs, views[shard].low + 1, end)
        return [(shard, pointer) for shard in sorted(asked) for pointer in Runs(asked[shard])]

    def saw(self, magazine: Magazine, found: dict[int, ShardPointers]) -> None:
        with magazine.lock:
            for shard, pointers in found.items():
                magazine.views[shard].saw(pointers, self._connection.options.settle_s)

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
            start = starts.get(shard, restoring.Place(0, 0, 0))
            ops = [
                expressions.write(layout.LOAD_POINTER, start.load), expressions.write(layout.FIRE_POINTER, start.fire),
                expressions.write(layout.BORN, magazine.born.get(shard) or secrets.randbits(31) | 1),
                *([expressions.write(layout.VOIDS, start.voids)] if start.voids else []),
            ]  # fmt: skip
            entries.append(write_entry(self.pointers_key(magazine, shard), ops, never))
            zero = [expressions.write(name, 0) for name in (layout.LOAD_COUNTER, layout.FIRE_COUNTER)]
            entries.append(write_entry(self.counters_key(magazine, shard), zero, never))
        self._connection.send("declare", entries, allowed=(OK, EXISTS))
        for shard, entry in zip(shards, entries[::2], strict=True):
            if entry.result == OK and shard in starts:
                self.restored += 1
                log.error(
                    "shard %d of %s had lost its pointers record; by the records that are there it goes on with %s",
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

    def _lost(self, magazine: Magazine, shards: range) -> dict[int, restoring.Place]:
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
        return restoring.find_places(self._connection, self.sets.data, magazine.keys, lows) if lows else {}

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
        noted = write_entry(self._own_key(magazine.name), [expressions.put_in_map(_BORN, born)], how)
        self._connection.send("declare", [noted], allowed=(OK, NOT_FOUND))
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
            bins: dict[str, Any] = {
                _NAME: name,
                _SHARDS: shards,
                _MOST: shards,
                _DURABILITY: durability,
                _PLAIN: int(shards == 1),
                _LOW: {},
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
            if bins[_SHARDS] != shards:
                self._check_empty(self._learn(name, bins, {}), shards)
                bins[_SHARDS], bins[_MOST] = shards, max(shards, bins[_MOST])
                changed = {_SHARDS: shards, _MOST: bins[_MOST]}
                how = policy("update", ttl=layout.TTL_NEVER, generation=generation)
                if not self._connection.put("declare", key, changed, how, generation):
                    return False
        self._make_pointers(self._learn(name, bins, {}), range(shards))
        return True

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
        meta = [key(magazine, shard) for shard in shards for key in (self.pointers_key, self.counters_key)]
        self._connection.remove("drop", meta)
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
