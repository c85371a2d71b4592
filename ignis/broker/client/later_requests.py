"""Requests about messages that wait for their time: those of the storage contract, and those that a user asks for by hand. No
I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ignis.broker.client.client_request import (
    Batches,
    ClientRequest,
    Ttl,
    build,
    encoded_name,
    packed_pointers,
    read_as,
    ttl_ms_of,
)
from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.later_payloads import pack_dues
from ignis.config import check_number, check_whole, shown
from ignis.errors import ConfigError
from ignis.native import ANY_SHARD, PackedBatch
from ignis.storage.base import KEEP_TTL, Fence, Pointers, Transfer
from ignis.storage.checks import MAX_TTL_S
from ignis.storage.later import Delayed, MovedDue

Placed = list[tuple[int, int, int]]
After = tuple[int, int, int] | None

_ROUNDING_MS = 1e-6
"""What a product of a number of seconds may be wrong by: it must not make a whole number of milliseconds one more."""


# -- of the contract


def load_later(
    magazine: str, batches: Batches, dues_ms: Sequence[Sequence[int]], ttl_s: Ttl, *, from_now: bool = False
) -> ClientRequest[Placed]:
    """Stores packed batches with a due time for each record; answers (shard, first pointer, count) for each."""
    bulk = pack_dues(dues_ms) + payloads.pack_send_batch(encoded_name(magazine), ttl_ms_of(ttl_s), batches)
    return build(Command.LOAD_LATER, magazine, from_now, bulk=bulk)


def defer(
    magazine: str, items: Sequence[Transfer], dues_ms: Sequence[int], ttl_s: float | None, fence: Fence | None
) -> ClientRequest[int]:
    ttl_ms = -1 if ttl_s == KEEP_TTL else ttl_ms_of(ttl_s)
    with_dues = [(*item, due_ms) for item, due_ms in zip(items, dues_ms, strict=True)]
    return build(Command.DEFER, magazine, with_dues, ttl_ms, fence)


def move_due(magazine: str, limit: int, fence: Fence | None) -> ClientRequest[MovedDue]:
    return read_as(lambda row: MovedDue(*row), build(Command.MOVE_DUE, magazine, limit, fence))


def listed(magazine: str, after: After, limit: int) -> ClientRequest[tuple[list[Delayed], bool]]:
    """Answers what waits, the next one first, and whether more was left out because the answer would be too large."""
    request = build(Command.LIST_LATER, magazine, after, limit)
    return read_as(lambda found: ([Delayed(*row) for row in found[0]], found[1]), request)


def run_now(magazine: str, runs: bytes) -> ClientRequest[int]:
    return build(Command.RUN_NOW, magazine, bulk=runs)


def cancel_later(magazine: str, runs: bytes) -> ClientRequest[int]:
    return build(Command.CANCEL_LATER, magazine, bulk=runs)


def delayed(magazine: str) -> ClientRequest[tuple[int, int | None]]:
    """Answers how many wait, and when the next one is due."""
    return build(Command.DELAYED, magazine)


def clock() -> ClientRequest[int]:
    """Answers microseconds since 1970, by the store's clock."""
    return build(Command.CLOCK)


# -- by hand


def send_later(
    queue: str, record: bytes, delay_s: float, *, shard: int = ANY_SHARD, ttl_s: Ttl = "queue"
) -> ClientRequest[tuple[int, int]]:
    """Stores one record that is due after so many seconds, by the store's clock; answers where it waits: (shard, pointer)."""
    given = record
    if not isinstance(given, bytes):
        raise ConfigError(f"record = {shown(given)} is not bytes; make it with ignis.native.encode_record")
    if shard != ANY_SHARD:
        check_whole(shard, "shard", 0, ANY_SHARD - 1)
    delay_ms = math.ceil(check_number(delay_s, "delay_s", 0, MAX_TTL_S) * 1000 - _ROUNDING_MS)
    batches = [(shard, PackedBatch.pack([record]))]
    return read_as(lambda placed: placed[0][:2], load_later(queue, batches, [[delay_ms]], ttl_s, from_now=True))


def list_later(queue: str, limit: int, after: After) -> ClientRequest[list[Delayed]]:
    """Answers what waits for its time, the next one first; fewer than ``limit`` where the answer would be too large."""
    check_whole(limit, "limit", 1)
    return read_as(lambda found: found[0], listed(queue, after, limit))


def run_named(queue: str, pointers: Pointers) -> ClientRequest[int]:
    """`run_now` of pointers as `list_later` tells them."""
    return run_now(queue, packed_pointers(pointers))


def cancel_named(queue: str, pointers: Pointers) -> ClientRequest[int]:
    """`cancel_later` of these."""
    return cancel_later(queue, packed_pointers(pointers))
