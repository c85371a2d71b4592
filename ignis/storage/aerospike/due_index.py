"""Which messages are due when: asks the server's index over the due times of delayed messages.

Why an index of the server and no buckets of our own: it changes in the same write as the message, so no death between two
writes can leave a message that no bucket names, or a bucket with a message that is gone. It costs the server some 20 bytes
of memory a message, and 16 MiB as soon as an application has delayed its first one.

The server answers in no order, and some of a range of times as quickly as all of it. So the earliest are found by asking for
a few hundred of them, which are a sample of all, and for ever shorter ranges while there are more.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import NamedTuple

from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.connection import Connection
from ignis.storage.aerospike.layout import NO_DUE, LaterKeys, SetNames, due_of

__all__ = ["DueIndex", "Row"]

_PROBE, _PART = 500, 8
"""So many are asked for at first. A range with more is cut to the earliest of so many parts of what was seen of it."""


class Row(NamedTuple):
    """A message that waits: when it is due, where it is, and since when somebody is moving it (0 = nobody is)."""

    due_ms: int
    shard: int
    pointer: int
    moving_ms: int = 0


class DueIndex:
    """Finds delayed messages by their due times. Thread-safe.

    Args:
        connection: to the cluster.
        sets: where the messages are.
    """

    def __init__(self, connection: Connection, sets: SetNames) -> None:
        self._connection = connection
        self._set = sets.later
        self._lock = threading.Lock()
        self._there = False

    def ensure(self) -> None:
        """Makes the index, if this process has not seen it yet. Until it can be asked the messages themselves are."""
        with self._lock:
            if not self._there:
                self._connection.index(self._set, layout.DUE, f"{self._set}_{layout.DUE}", "numeric")
                self._there = True

    def earliest(self, keys: LaterKeys, most: int, first_ms: int = 0) -> tuple[list[Row], int]:
        """The next messages from that time on, about ``most``, in order; and the time up to which these are all. The rows
        behind that time are some of those that are due in the millisecond after it."""
        last_ms, wider_ms, some = NO_DUE - 1, -1, min(most, _PROBE)
        rows: list[Row] = []
        while first_ms <= last_ms:
            rows, dues, done = self._ask(keys, first_ms, last_ms, some)
            if done:
                break
            rows = []
            if not dues:
                some *= 2
                continue
            wider_ms = last_ms
            # At last a single millisecond is left with more than can be had at once; is there anything before it?
            last_ms = min(dues[len(dues) // _PART], last_ms - 1)
        if wider_ms < 0:
            return rows, last_ms
        beyond, _, done = self._ask(keys, last_ms + 1, wider_ms, most)
        if done:
            return rows + beyond, wider_ms
        return (rows + beyond if wider_ms == last_ms + 1 else rows), last_ms

    def _ask(self, keys: LaterKeys, first_ms: int, last_ms: int, most: int) -> tuple[list[Row], list[int], bool]:
        """Some rows, ascending; the due times of all that were looked at; and whether these are all."""
        span = keys.due(first_ms), keys.due(last_ms)
        self.ensure()
        found, done = self._connection.between(
            "due", self._set, layout.DUE, span, [layout.DUE, layout.MOVING], expressions.is_within(layout.DUE, *span),
            most,
        )  # fmt: skip
        rows, dues = [], []
        for key, bins in found:
            due_ms = due_of(bins[layout.DUE])
            dues.append(due_ms)
            place = keys.place(key)
            if place is not None:
                rows.append(Row(due_ms, *place, bins.get(layout.MOVING) or 0))
        return sorted(rows), sorted(dues), done

    def each(self, keys: LaterKeys, look: Callable[[Row], None], first_ms: int = 0, last_ms: int = NO_DUE - 1) -> None:
        """Calls with each that is due within these times, in no order."""

        def seen(key: str | None, value: int) -> None:
            place = keys.place(key)
            if place is not None:
                look(Row(due_of(value), *place))

        span = keys.due(first_ms), keys.due(last_ms)
        self.ensure()
        self._connection.each_between(
            "due", self._set, layout.DUE, span, expressions.is_within(layout.DUE, *span), seen
        )  # fmt: skip

    def listed(self, keys: LaterKeys, after: tuple[int, int, int] | None, limit: int) -> list[Row]:
        """The next ``limit`` behind that (due time, shard, pointer), in order."""
        found: list[Row] = []
        begin_ms = 0 if after is None else after[0]
        while len(found) < limit and begin_ms < NO_DUE:
            rows, upto_ms = self.earliest(keys, max(1_000, 2 * limit), begin_ms)
            found += [row for row in rows if row.due_ms <= upto_ms and (after is None or row[:3] > after)]
            begin_ms = upto_ms + 1
            if len(rows) and rows[-1].due_ms > upto_ms and len(found) < limit:
                found += self._of_one_time(keys, begin_ms, after, limit - len(found))
                begin_ms += 1
        return found[:limit]

    def _of_one_time(self, keys: LaterKeys, due_ms: int, after: tuple[int, int, int] | None, limit: int) -> list[Row]:
        """The first of very many that are due at the same time."""
        gathered: list[Row] = []

        def look(row: Row) -> None:
            if after is None or row[:3] > after:
                gathered.append(row)
                if len(gathered) > 8 * limit + 1_000:
                    gathered[:] = heapq.nsmallest(limit, set(gathered))

        self.each(keys, look, due_ms, due_ms)
        return heapq.nsmallest(limit, set(gathered))
