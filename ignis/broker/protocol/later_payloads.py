"""Payloads of the commands about messages that wait for their time: the heads, and the due times that stand behind that of
LOAD_LATER. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, islice, repeat
from typing import Annotated

from msgspec import Meta

from ignis.broker.protocol.payloads import (
    Count,
    Fencing,
    Head,
    Magazine,
    MillisecondsOrKeep,
    Name,
    Pointer,
    Shard,
)
from ignis.errors import ConfigError, MalformedFrameError
from ignis.native.wire import MAX_POINTERS
from ignis.storage.checks import MOST_DUE_MS
from ignis.storage.later import MOVE_LIMIT

__all__ = ["DeferRequest", "DueRuns", "ListLater", "LoadLater", "MoveDue", "pack_dues", "spread_dues", "unpack_dues"]

Due = Annotated[int, Meta(ge=0, le=MOST_DUE_MS)]
DueRuns = list[tuple[int, int]]
"""(records, due time in ms): so many records side by side are due at the same time."""

_COUNT = struct.Struct(">I")
_RUN = struct.Struct(">IQ")


class LoadLater(Head):
    """LOAD_LATER; due times and the payload of a SEND_BATCH follow as bulk. ``from_now``: the due times count from the moment at
    which the broker has the request."""

    magazine: Name
    from_now: bool = False


class DeferRequest(Head):
    """DEFER. Items are (shard, pointer, record, target shard, due time); the rest is as in TRANSFER."""

    magazine: Name
    items: list[tuple[Shard, Pointer, bytes, Shard, Due]]
    ttl_ms: MillisecondsOrKeep = -1
    fence: Fencing = None


class MoveDue(Head):
    """MOVE_DUE."""

    magazine: Magazine
    limit: Count = MOVE_LIMIT
    fence: Fencing = None


class ListLater(Head):
    """LIST_LATER. ``after``: due time, shard and pointer."""

    magazine: Magazine
    after: tuple[Due, Shard, Pointer] | None = None
    limit: Count = 100


def pack_dues(dues_ms: Iterable[Sequence[int]]) -> bytes:
    """``u32 runs``, then ``u32 count | u64 due_ms`` each: the due times of all records, in their order."""
    runs = [
        _RUN.pack(sum(1 for _ in many), due_ms) for due_ms, many in groupby(one for dues in dues_ms for one in dues)
    ]
    return b"".join((_COUNT.pack(len(runs)), *runs))


def unpack_dues(payload: bytes, at: int) -> tuple[DueRuns, int]:
    """The due times that begin there, and where they end.

    Raises MalformedFrameError: not what `pack_dues` makes, or for more records than a request may have. Raises ConfigError: a
    time that no store keeps.
    """
    end = at + _COUNT.size
    runs = _COUNT.unpack_from(payload, at)[0] if len(payload) >= end else 0
    at, end = end, end + runs * _RUN.size
    if not runs or len(payload) < end:
        raise MalformedFrameError(f"due times of {runs} runs in {max(0, len(payload) - at)} bytes")
    if runs > MAX_POINTERS:  # each is of one record at least; known before any of them is made
        raise MalformedFrameError(
            f"due times of {runs} records or more; at most {MAX_POINTERS} are taken in one request"
        )
    found: DueRuns = list(_RUN.iter_unpack(memoryview(payload)[at:end]))
    if min(count for count, _ in found) < 1 or sum(count for count, _ in found) > MAX_POINTERS:
        raise MalformedFrameError(f"due times of no record, or of more than {MAX_POINTERS} records")
    latest = max(due_ms for _, due_ms in found)
    if latest > MOST_DUE_MS:
        raise ConfigError(f"due time {latest} is not a whole number of milliseconds in 0..{MOST_DUE_MS}")
    return found, end


def spread_dues(runs: DueRuns, counts: Sequence[int]) -> list[list[int]]:
    """A due time for each record of each batch. Raises ConfigError when there are more, or fewer, before any is made."""
    given, records = sum(count for count, _ in runs), sum(counts)
    if given != records:
        raise ConfigError(f"{given} due times were given for {records} records")
    dues_ms = chain.from_iterable(repeat(due_ms, count) for count, due_ms in runs)
    return [list(islice(dues_ms, count)) for count in counts]
