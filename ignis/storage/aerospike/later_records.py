"""Messages that wait for their time: storing them, moving them to the main magazine, removing them.

They have a set of their own, in which Java looks for nothing. Each is one record: the message as in the data set, and the bin
`DUE`, over which the server keeps an index (`due_index`). The main magazine's pointers records say when the next one of each
shard is due (`NEXT_DUE`), or earlier: every claim reads them anyway.

There is no transaction over several records. So the order of the steps is:

- *Put*: pointers are reserved, the messages written, and only then `NEXT_DUE` is lowered. Who raises it has seen how often it
  was lowered before he asked the index, and raises it only if that has not changed since: a message that he cannot have
  seen has lowered it after that.
- *Move*: marked (bin `ign_move`, so that nobody else moves it), loaded into the main magazine, removed here. Who dies between the
  last two leaves the messages of one such batch (`MOST_MOVED`) in both places, with the same ids; they are moved once
  more when the mark is old. Who dies before leaves nothing but a mark.
- *Retry*: marked in the main magazine, put here, removed there. Who dies between the last two leaves the messages of this one
  call in both places: the sweeper finds those in the main magazine.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ignis.errors import IgnisError, RecordTooLargeError, StoreError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.storage.aerospike import expressions, layout, remove
from ignis.storage.aerospike.append import Appender, Item, Raw
from ignis.storage.aerospike.catalogue import Catalogue, Key, Magazine, ShardPointers
from ignis.storage.aerospike.connection import Connection, Entry, policy, write_entry
from ignis.storage.aerospike.due_index import DueIndex, Row
from ignis.storage.aerospike.layout import NO_DUE, LaterKeys
from ignis.storage.aerospike.status_codes import EXISTS, FILTERED, NOT_FOUND, OK, TOO_BIG

__all__ = ["MOST_MOVED", "Delay", "LaterRecords", "Moved"]

log = logging.getLogger("ignis.storage.aerospike")

MOST_MOVED = 1_000
"""So many messages are moved in one batch, and so many are doubled at most by one death."""
_FIRST_MOVED, _MOST_BYTES = 32, 32 << 20
"""Fewer where they are large: so many bytes are moved in one batch, and so few messages as long as nobody knows their size."""
_ROUNDS = 20
_SLACK_MS = 86_400_000
"""So long behind its due time, and behind the end of its time to live, the server keeps a message that nobody has moved: what
has run out is counted by whoever moves."""
_LONGEST_MOVE_MS = 10_000
"""Who needed longer from the mark to the load stood still: others may soon take the mark for that of a dead process."""

Place = tuple[int, int]


class Delay(NamedTuple):
    """One message to put; ``expires_at_ms`` 0 = never."""

    shard: int
    record: bytes | Raw
    expires_at_ms: int
    due_ms: int


class Moved(NamedTuple):
    """What a move did. ``gone``: those that do not wait any more, whoever has moved or removed them."""

    moved: int
    expired: int
    gone: set[Place]


class LaterRecords:
    """The records of the later magazines. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue, appender: Appender) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._appender = appender
        self._said = LimitedLog(log)
        self.index = DueIndex(connection, catalogue.sets)

    def keys(self, keys: LaterKeys, places: Iterable[Place]) -> list[Key]:
        """Keys of records named by shard and pointer."""
        namespace, name = self._connection.namespace, self._catalogue.sets.later
        return [(namespace, name, keys.key(*place)) for place in places]

    # -- put

    def put(self, magazine: Magazine, items: Sequence[Delay]) -> tuple[list[int], bool]:
        """Stores the messages; returns their pointers, in a row for each shard in the order given, and whether something is due
        earlier now than before in one of the shards. Three calls.

        Raises the store's typed errors: then nothing was acknowledged, and what had been written was removed as far as the
        server could be reached. QueueNotFoundError when the magazine was dropped.
        """
        self.index.ensure()
        keys = LaterKeys(magazine.name)
        for _ in range(_ROUNDS):
            placed, born = self._reserve(magazine, [item.shard for item in items])
            if any(magazine.born.get(shard) != one for shard, one in born.items()):
                magazine = self._catalogue.refresh(magazine.name)  # it was dropped and declared again
            if not magazine.later.made:
                self._catalogue.keep_later(magazine)
            try:
                taken = self._write(keys, items, placed, born)
                if not taken:
                    return placed, self._lower(magazine, items)
            except IgnisError:
                self._undo(magazine, keys, items, placed)
                raise
            # The pointers record was lost and made anew: it counts from the beginning again.
            self._undo(magazine, keys, items, placed, but=taken)
            self._skip(magazine, keys, {items[index].shard for index in taken})
        raise StoreError(
            f"{len(items)} delayed record(s) of {magazine.name!r} found their pointers taken {_ROUNDS} times"
        )

    def _reserve(self, magazine: Magazine, shards: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """Pointers for all of them; and per shard the life of the magazine."""
        counts = Counter(shards)
        how = policy("update", ttl=layout.TTL_NEVER)
        following: dict[int, int] = {}
        born: dict[int, int] = {}
        for _ in range(2):
            left = [shard for shard in counts if shard not in following]
            entries = [
                write_entry(
                    self._catalogue.pointers_key(magazine, shard), expressions.reserve_delayed(counts[shard]), how
                )
                for shard in left
            ]
            self._connection.send("later_reserve", entries, allowed=(OK, NOT_FOUND))
            for shard, entry in zip(left, entries, strict=True):
                if entry.result == OK:
                    bins = entry.record[2]
                    following[shard] = bins[layout.DELAYED] - counts[shard]
                    born[shard] = bins.get(layout.BORN) or 0
            if len(following) == len(counts):
                break
            self._catalogue.missing(magazine)
        else:
            raise StoreError(f"magazine {magazine.name!r} loses its pointers records")
        placed = []
        for shard in shards:
            following[shard] += 1
            placed.append(following[shard])
        return placed, born

    def _write(self, keys: LaterKeys, items: Sequence[Delay], placed: Sequence[int], born: dict[int, int]) -> list[int]:
        """Writes the records; returns the indices of those in whose place another one stands."""
        stamp = expressions.write(layout.MODIFIED_AT, int(time.time() * 1000))
        hows: dict[int, dict[str, Any]] = {}
        taken: list[int] = []
        size = self._connection.options.batch_records
        for start in range(0, len(items), size):
            part = range(start, min(start + size, len(items)))
            entries = []
            for index, key in zip(
                part, self.keys(keys, ((items[one].shard, placed[one]) for one in part)), strict=True
            ):
                shard, record, expires_at_ms, due_ms = items[index]
                ends_at_ms = max(expires_at_ms, due_ms) + _SLACK_MS if expires_at_ms else 0
                how = hows.get(ends_at_ms)
                if how is None:
                    how = hows[ends_at_ms] = policy("create", ttl=layout.server_ttl(ends_at_ms))
                if isinstance(record, Raw):
                    data, env = record.data, record.envelope or b""
                else:
                    data, env = layout.encode(key[2], record, expires_at_ms, born[shard])
                bins = (layout.DATA, data), (layout.ENVELOPE, env), (layout.DUE, keys.due(due_ms))
                entries.append(write_entry(key, [stamp, *(expressions.write(*one) for one in bins)], how))
            self._connection.send("later_load", entries, allowed=(OK, EXISTS, TOO_BIG))
            taken += self._taken(items, part, entries)
        return taken

    def _taken(self, items: Sequence[Delay], part: range, entries: list[Entry]) -> list[int]:
        """A record of ours counts as written: an attempt whose answer was lost has put it there."""
        there = []
        for index, entry in zip(part, entries, strict=True):
            if entry.result == TOO_BIG:
                record = items[index].record
                raise RecordTooLargeError(_bytes_of(record), self._connection.record_limit())
            if entry.result == EXISTS:
                there.append((index, entry))
        if not there:
            return []
        found = self._connection.read("later_read", [entry.key for _, entry in there])
        taken = []
        for (index, entry), one in zip(there, found, strict=True):
            ours = {op["bin"]: op["val"] for op in entry.ops}
            bins = one.record[2] if one.result == OK else {}
            if any(bins.get(name) != ours[name] for name in (layout.DATA, layout.ENVELOPE, layout.DUE)):
                taken.append(index)
        return taken

    def _skip(self, magazine: Magazine, keys: LaterKeys, shards: set[int]) -> None:
        """Goes on behind the last pointer that is in use."""
        last = dict.fromkeys(shards, 0)

        def look(row: Row) -> None:
            if row.shard in last:
                last[row.shard] = max(last[row.shard], row.pointer)

        self.index.each(keys, look)
        how = policy("update", ttl=layout.TTL_NEVER)
        entries = [
            write_entry(
                self._catalogue.pointers_key(magazine, shard), [expressions.raise_to(layout.DELAYED, pointer)], how
            )
            for shard, pointer in last.items()
        ]
        self._connection.send("later_reserve", entries, allowed=(OK, NOT_FOUND))

    def _lower(self, magazine: Magazine, items: Sequence[Delay]) -> bool:
        """Who claims learns that something is due earlier; whether it is."""
        dues: dict[int, int] = {}
        for item in items:
            dues[item.shard] = min(item.due_ms, dues.get(item.shard, item.due_ms))
        how = policy("update", ttl=layout.TTL_NEVER)
        entries = [
            write_entry(self._catalogue.pointers_key(magazine, shard), expressions.lower_due(due_ms), how)
            for shard, due_ms in dues.items()
        ]
        self._connection.send("later_due", entries, allowed=(OK, NOT_FOUND))
        if any(entry.result == NOT_FOUND for entry in entries):
            self._catalogue.missing(magazine)  # dropped; or lost and made again, which finds out what is due
        lowered = [(shard, entry.record[2]) for shard, entry in zip(dues, entries, strict=True) if entry.result == OK]
        self._catalogue.saw(magazine, {shard: ShardPointers.of(bins) for shard, bins in lowered})
        return any(bins["before"] > dues[shard] for shard, bins in lowered)

    def _undo(
        self,
        magazine: Magazine,
        keys: LaterKeys,
        items: Sequence[Delay],
        placed: Sequence[int],
        but: Sequence[int] = (),
    ) -> None:
        others = frozenset(but)
        places = [(item.shard, placed[index]) for index, item in enumerate(items) if index not in others]
        try:
            self._connection.remove("later_undo", self.keys(keys, places), self._free())
        except IgnisError as exc:
            self._said.warning(
                event_text(
                    "failed_load_left",
                    "up to %d delayed record(s) of a failed load to %s may be stored: %s"), len(places), magazine.name, exc,
                about=magazine.name,
            )  # fmt: skip

    @staticmethod
    def _free() -> Any:
        return expressions.compiled(expressions.free_to_move(int(time.time() * 1000) - remove.MOVE_STALE_MS))

    # -- move

    def move(self, magazine: Magazine, places: Sequence[Place], check: Callable[[], None] = lambda: None) -> Moved:
        """Moves these to the tail of the main magazine, in this order, unless others are at it. ``check`` is called right before
        each load; what it raises ends the move."""
        total, start = Moved(0, 0, set()), 0
        while start < len(places):
            size = self._fitting(magazine)
            some = self._move_batch(magazine, places[start : start + size], check)
            total = Moved(total.moved + some.moved, total.expired + some.expired, total.gone | some.gone)
            start += size
        return total

    @staticmethod
    def _fitting(magazine: Magazine) -> int:
        """How many to move at once, by the size that messages had in the last batch."""
        record_bytes = magazine.later.record_bytes
        return max(1, min(MOST_MOVED, _MOST_BYTES // record_bytes)) if record_bytes else _FIRST_MOVED

    def _move_batch(self, magazine: Magazine, places: Sequence[Place], check: Callable[[], None]) -> Moved:
        at_ms = int(time.time() * 1000)
        keys = LaterKeys(magazine.name)
        how = policy("update", ttl=layout.TTL_KEEP, only_if=self._free())
        entries = self._connection.operate(
            "later_mark", self.keys(keys, places), [expressions.write(layout.MOVING, at_ms), *_READ], how,
            allowed=(OK, NOT_FOUND, FILTERED),
        )  # fmt: skip
        items: list[Item] = []
        expired: list[Place] = []
        marked: list[Place] = []
        gone: set[Place] = set()
        for place, entry in zip(places, entries, strict=True):
            if entry.result != OK:
                if entry.result == NOT_FOUND:
                    gone.add(place)
                continue
            marked.append(place)
            item = self._item(magazine, keys, place, entry.record[2], at_ms)
            if item is None:
                expired.append(place)
            else:
                items.append(item)
        if not marked:
            return Moved(0, 0, gone)
        if items:
            magazine.later.record_bytes = 1 + sum(_bytes_of(item.record) for item in items) // len(items)
        try:
            check()
            if items:
                if int(time.time() * 1000) - at_ms > _LONGEST_MOVE_MS:
                    raise StoreError(f"moving what is due in {magazine.name!r} took too long, it is left to others")
                self._appender.append(magazine, items)
        except BaseException:
            self._unmark(keys, marked, at_ms)
            raise
        self._connection.remove(
            "later_remove", self.keys(keys, marked), expressions.compiled(expressions.only_moved_at(at_ms))
        )  # fmt: skip
        if expired:
            counted = [
                write_entry(
                    self._catalogue.counters_key(magazine, shard),
                    [expressions.increment(layout.DELAYED_EXPIRED, count)],
                    policy("update", ttl=layout.TTL_NEVER),
                )
                for shard, count in Counter(shard for shard, _ in expired).items()
            ]
            self._connection.send("expired", counted, allowed=(OK, NOT_FOUND))
        return Moved(len(items), len(expired), gone | set(marked))

    def _item(
        self, magazine: Magazine, keys: LaterKeys, place: Place, bins: dict[str, Any], now_ms: int
    ) -> Item | None:
        """What goes to the main magazine; None when its time is over, or it is of an earlier life of the magazine."""
        shard = place[0]
        found = layout.decode(keys.key(*place), bins)
        ends_at_ms = layout.ends_at_ms(bins, None)
        target = shard % magazine.shards
        if found.record is None:
            return Item(target, Raw(bins.get(layout.DATA) or b"", bins.get(layout.ENVELOPE)), ends_at_ms)
        born = magazine.views[shard].born if shard < len(magazine.views) else 0
        if (ends_at_ms and ends_at_ms <= now_ms) or (born and found.born and found.born != born):
            return None
        return Item(target, found.record, ends_at_ms)

    def _unmark(self, keys: LaterKeys, places: Sequence[Place], at_ms: int) -> None:
        """After a failure: they are free again at once, and not only when the mark is old."""
        how = policy("update", ttl=layout.TTL_KEEP, only_if=expressions.compiled(expressions.only_moved_at(at_ms)))
        try:
            self._connection.operate(
                "later_unmark", self.keys(keys, places), [expressions.write(layout.MOVING, 0)], how,
                allowed=(OK, NOT_FOUND, FILTERED),
            )  # fmt: skip
        except IgnisError as exc:
            self._said.warning(
                event_text("due_not_moved", "%d delayed record(s) cannot be moved for a while: %s"),
                len(places),
                exc,
                about=keys.key(0, 0),
            )

    def raise_due(self, magazine: Magazine, dues: dict[int, tuple[int, int]]) -> None:
        """Sets when the next message of each shard is due: shard -> (that, how often it had been lowered before the index was
        asked). Left as it is where it was lowered since."""
        entries = [
            write_entry(
                self._catalogue.pointers_key(magazine, shard),
                [expressions.write(layout.NEXT_DUE, due_ms), *expressions.READ_POINTERS],
                policy("update", ttl=layout.TTL_NEVER, only_if=expressions.due_unchanged(changes)),
            )
            for shard, (due_ms, changes) in dues.items()
        ]
        if not entries:
            return
        self._connection.send("later_due", entries, allowed=(OK, NOT_FOUND, FILTERED))
        self._catalogue.saw(
            magazine,
            {
                shard: ShardPointers.of(entry.record[2])
                for shard, entry in zip(dues, entries, strict=True)
                if entry.result == OK
            },
        )

    # -- the rest

    def peek(self, magazine: Magazine, places: Sequence[Place]) -> list[tuple[Place, bytes | None]]:
        """Those that are there."""
        keys = LaterKeys(magazine.name)
        entries = self._connection.read("later_read", self.keys(keys, places))
        found: list[tuple[Place, bytes | None]] = []
        for place, entry in zip(places, entries, strict=True):
            if entry.result == OK and entry.record[2].get(layout.DATA) is not None:
                found.append((place, layout.decode(keys.key(*place), entry.record[2]).record))
        return found

    def remove(self, magazine: Magazine, places: Sequence[Place]) -> int:
        """Removes those that nobody is moving at this moment; returns how many."""
        keys = LaterKeys(magazine.name)
        entries = self._connection.remove("later_delete", self.keys(keys, places), self._free())
        return sum(entry.result == OK for entry in entries)

    def clear(self, name: str) -> None:
        """Removes all of a magazine's, whoever is moving them."""
        keys, begin_ms = LaterKeys(name), 0
        while begin_ms < NO_DUE:
            rows, upto_ms = self.index.earliest(keys, self._connection.options.batch_records, begin_ms)
            self._connection.remove("drop", self.keys(keys, (row[1:3] for row in rows)))
            if not rows:
                begin_ms = upto_ms + 1


def _bytes_of(record: bytes | Raw) -> int:
    return len(record.data) if isinstance(record, Raw) else len(record)


_READ = [expressions.read(name) for name in (layout.DATA, layout.ENVELOPE, layout.MODIFIED_AT)]
