"""Appending records at the shards' tails.

Two calls for a batch of any size: one reserves pointers (and counts), one writes the records, each only if its pointer
holds nothing yet but perhaps the claim of a consumer who was quicker. Between the two a consumer may claim a pointer that
has no record: a *hole*. It looks again for a while and then seals the pointer with a tombstone, also only if there is
nothing yet. So exactly one of the two wins: a producer that finds its pointer sealed loads that record again at a new one,
and acknowledges nothing before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from ignis.errors import IgnisError, RecordTooLargeError, StoreError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.catalogue import Catalogue, Magazine, ShardPointers
from ignis.storage.aerospike.connection import OP_WRITE, Connection, Entry, policy, write_entry
from ignis.storage.aerospike.status_codes import EXISTS, FILTERED, NOT_FOUND, OK, TOO_BIG

__all__ = ["Appender", "Item", "Raw"]

log = logging.getLogger("ignis.storage.aerospike")

_ROUNDS = 20


class Raw(NamedTuple):
    """The bins of a record that could not be read: they are kept as they are, and stay unreadable."""

    data: str | bytes
    envelope: bytes | None


class Item(NamedTuple):
    """One record to append; ``expires_at_ms`` 0 = never."""

    shard: int
    record: bytes | Raw
    expires_at_ms: int


class Appender:
    """Appends records to the shards of magazines: reserves pointers, writes, takes back what failed. Thread-safe."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._said = LimitedLog(log)
        self.sealed_seen = 0

    def append(self, magazine: Magazine, items: Sequence[Item], *, count_loads: bool = True) -> list[int]:
        """Appends the items, in order within each shard; returns their pointers.

        Args:
            magazine: where to.
            items: records; the shards have been checked.
            count_loads: whether they are new messages (a reload's are not).

        Raises:
            The store's typed errors: then nothing was acknowledged, and what had been written was removed as far as the
            server could be reached. QueueNotFoundError when the magazine was dropped.
        """
        placed: list[int] = [0] * len(items)
        todo = list(range(len(items)))
        for _ in range(_ROUNDS):
            began = time.monotonic()
            reserved = self._reserve(magazine, [items[index].shard for index in todo], count_loads)
            count_loads = False
            following = {shard: pointers.load + 1 - count for shard, (pointers, count) in reserved.items()}
            firsts = dict(following)
            for index in todo:
                shard = items[index].shard
                placed[index] = following[shard]
                following[shard] += 1
            # All heads first, as consumers claim: else they meet holes in the shards whose turn is last.
            todo.sort(key=lambda index: placed[index] - firsts[items[index].shard])
            try:
                refused = self._write(magazine, items, todo, placed, reserved)
                if time.monotonic() - began > self._connection.options.settle_s / 2:
                    refused += self._too_late(magazine, items, todo, placed)
            except IgnisError:
                self._undo(magazine, items, todo, placed)
                raise
            if not refused:
                return placed
            self.sealed_seen += len(refused)
            log.info(
                event_text("pointers_sealed", "%d pointer(s) of %s were sealed meanwhile: loaded again"),
                len(refused),
                magazine.name,
            )
            todo = sorted(set(refused))
        raise StoreError(f"{len(todo)} record(s) of {magazine.name!r} found their pointers sealed {_ROUNDS} times")

    def _reserve(
        self, magazine: Magazine, shards: Sequence[int], count_loads: bool
    ) -> dict[int, tuple[ShardPointers, int]]:
        """One call: pointers for all of them. Per shard the pointers afterwards and how many are ours.

        The load counter rides along. When the writing then fails, more was counted as loaded than there is, which keeps
        nobody from firing: Java fires while more was counted as loaded than as fired, and asks the pointers as well.
        """
        counts: dict[int, int] = {}
        for shard in shards:
            counts[shard] = counts.get(shard, 0) + 1
        how = policy("update", ttl=layout.TTL_NEVER)
        counters = [
            write_entry(
                self._catalogue.counters_key(magazine, shard), [expressions.increment(layout.LOAD_COUNTER, count)],
                policy(ttl=layout.TTL_NEVER),
            )
            for shard, count in counts.items()
            if count_loads
        ]  # fmt: skip
        reserved: dict[int, tuple[ShardPointers, int]] = {}
        for _ in range(2):
            left = [shard for shard in counts if shard not in reserved]
            entries = [
                write_entry(self._catalogue.pointers_key(magazine, shard), expressions.reserve(counts[shard]), how)
                for shard in left
            ]
            self._connection.send("reserve", entries + counters, allowed=(OK, NOT_FOUND))
            for shard, entry in zip(left, entries, strict=True):
                if entry.result == OK:
                    reserved[shard] = ShardPointers.of(entry.record[2]), counts[shard]
            if len(reserved) == len(counts):
                return reserved
            self._catalogue.missing(magazine)
            counters = []
        raise StoreError(f"magazine {magazine.name!r} loses its pointers records")

    def _write(
        self,
        magazine: Magazine,
        items: Sequence[Item],
        todo: list[int],
        placed: list[int],
        reserved: dict[int, tuple[ShardPointers, int]],
    ) -> list[int]:
        """Writes the records; returns the indices of those whose pointers were taken by a tombstone."""
        refused: list[int] = []
        prefixes = {shard: magazine.keys.prefix(shard) for shard in reserved}
        hows: dict[int, dict[str, object]] = {}
        stamp = expressions.write(layout.MODIFIED_AT, int(time.time() * 1000))
        size, key_of = self._connection.options.batch_records, self._catalogue.data_key
        for start in range(0, len(todo), size):
            part = todo[start : start + size]
            entries = []
            for index in part:
                shard, record, expires_at_ms = items[index]
                how = hows.get(expires_at_ms)
                if how is None:
                    ttl = layout.server_ttl(expires_at_ms)
                    how = hows[expires_at_ms] = policy("create", ttl=ttl)
                key = f"{prefixes[shard]}{placed[index]}"
                if isinstance(record, Raw):
                    data, env = record.data, record.envelope or b""
                else:
                    data, env = layout.encode(key, record, expires_at_ms, reserved[shard][0].born)
                ops = [
                    {"op": OP_WRITE, "bin": layout.DATA, "val": data}, stamp,
                    {"op": OP_WRITE, "bin": layout.ENVELOPE, "val": env},
                ]  # fmt: skip
                entries.append(write_entry(key_of(key), ops, how))
            self._connection.send("load", entries, allowed=(OK, EXISTS, TOO_BIG))
            self._join_claims(entries)
            refused += self._refused(items, part, entries)
        return refused

    def _join_claims(self, entries: list[Entry]) -> None:
        """Writes once more what met something: now also where a consumer's claim stands. Not so at once, because asking
        that for each record makes every load slower."""
        taken = [entry for entry in entries if entry.result == EXISTS]
        for entry in taken:
            entry.policy = policy(ttl=entry.policy["ttl"], only_if=expressions.still_empty)
        if taken:
            self._connection.send("join", taken, allowed=(OK, FILTERED, TOO_BIG))

    def _refused(self, items: Sequence[Item], part: list[int], entries: list[Entry]) -> list[int]:
        """Indices whose pointer holds something else. A record of ours counts as written: an attempt whose answer was
        lost has put it there."""
        there = []
        for index, entry in zip(part, entries, strict=True):
            if entry.result == TOO_BIG:
                record = items[index].record
                size = len(record.data) if isinstance(record, Raw) else len(record)
                raise RecordTooLargeError(size, self._connection.record_limit())
            if entry.result == FILTERED:
                there.append((index, entry))
        if not there:
            return []
        found = self._connection.read("sealed", [entry.key for _, entry in there])
        refused = []
        for (index, entry), one in zip(there, found, strict=True):
            ours = {op["bin"]: op["val"] for op in entry.ops}
            bins = one.record[2] if one.result == OK else {}
            if bins.get(layout.ENVELOPE) != ours[layout.ENVELOPE] or bins.get(layout.DATA) != ours[layout.DATA]:
                refused.append(index)
        return refused

    def _too_late(self, magazine: Magazine, items: Sequence[Item], todo: list[int], placed: list[int]) -> list[int]:
        """After a long pause between reserving and writing: indices whose pointers nobody looks at any more."""
        self._catalogue.refresh(magazine.name)
        late = [index for index in todo if placed[index] <= magazine.views[items[index].shard].low]
        if late:
            self._connection.remove("undo", self._keys(magazine, items, late, placed))
        return late

    def _undo(self, magazine: Magazine, items: Sequence[Item], todo: list[int], placed: list[int]) -> None:
        """Takes back what a failed load has written, as far as that is possible. What a consumer has taken already stays
        taken; what cannot be reached may be delivered although the load failed."""
        try:
            entries = self._connection.remove(
                "undo", self._keys(magazine, items, todo, placed), expressions.is_unfired_record
            )
            removed = sum(entry.result == OK for entry in entries)
            if removed:
                log.info(
                    event_text("failed_load_removed", "%d record(s) of a failed load to %s were removed again"),
                    removed,
                    magazine.name,
                )
        except IgnisError as exc:
            self._said.warning(
                event_text("failed_load_left", "up to %d record(s) of a failed load to %s may be stored: %s"),
                len(todo),
                magazine.name,
                exc,
                about=magazine.name,
            )

    def _keys(
        self, magazine: Magazine, items: Sequence[Item], todo: list[int], placed: list[int]
    ) -> list[tuple[str, str, str]]:
        return [
            self._catalogue.data_key(f"{magazine.keys.prefix(items[index].shard)}{placed[index]}") for index in todo
        ]
