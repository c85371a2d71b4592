"""Requests of the storage contract: magazines, queues' settings, locks, epochs, array queues. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ignis.broker.client.client_request import (
    Batches,
    ClientRequest,
    Ttl,
    build,
    encoded_name,
    read_as,
    read_nothing,
    ttl_ms_of,
)
from ignis.broker.client.requests import delivered, pointers_of
from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.later_payloads import pack_dues
from ignis.broker.protocol.payloads import unpack_send_ack
from ignis.native import PackedBatch
from ignis.native.wire import Outgoing, pack_pointers
from ignis.storage.base import (
    KEEP_TTL,
    Abandoned,
    Fence,
    FireResult,
    LoadedOnce,
    LockRecord,
    QueueRecord,
    Run,
    ShardState,
    Transfer,
)
from ignis.storage.checks import ttl_milliseconds
from ignis.storage.purging import Purged

Row = tuple[int, int, "bytes | None"]


# -- magazines


def declare(magazine: str, shards: int, durability: str) -> ClientRequest[None]:
    return build(Command.DECLARE, magazine, shards, durability)


def _shards(shards: Sequence[int] | None) -> list[int] | None:
    return None if shards is None else list(shards)


def fire(
    magazine: str, limit: int, owner: str, shards: Sequence[int] | None, max_bytes: int, timeout_s: float = 0.0
) -> ClientRequest[FireResult]:
    def undo(request_id: int, command: int, payload: bytes) -> ClientRequest[int] | None:
        pointers = pointers_of(delivered(payload))
        return reload(magazine, pack_pointers(pointers)) if pointers else None

    request = build(Command.FIRE, magazine, limit, owner, _shards(shards), max_bytes, int(timeout_s * 1000))
    return replace(request, parse=delivered, undo=undo, extra_s=timeout_s)


def load(magazine: str, batches: Batches, ttl_s: Ttl) -> ClientRequest[list[tuple[int, int, int]]]:
    """`send_batch` of what was checked already."""
    payload = payloads.pack_send_batch(encoded_name(magazine), ttl_ms_of(ttl_s), batches)
    return ClientRequest(Command.SEND_BATCH, payload, unpack_send_ack)


def load_one(magazine: str, shard: int, batch: PackedBatch, ttl_s: Ttl) -> Outgoing:
    """Makes `load` of one batch, for a connection on which nobody waits; its answer is read with `unpack_send_ack`."""
    return Outgoing.load(encoded_name(magazine), 0 if ttl_s is None else ttl_ms_of(ttl_s), shard, batch)


def load_once(
    magazine: str,
    batches: Batches,
    ttl_s: Ttl,
    remember_s: float,
    dues_ms: Sequence[Sequence[int]] | None = None,
) -> ClientRequest[list[LoadedOnce]]:
    bulk = payloads.pack_send_batch(encoded_name(magazine), ttl_ms_of(ttl_s), batches)
    delayed = dues_ms is not None
    if dues_ms is not None:
        bulk = pack_dues(dues_ms) + bulk
    request = build(Command.LOAD_ONCE, magazine, ttl_milliseconds(remember_s), delayed, bulk=bulk)
    return read_as(lambda rows: [LoadedOnce(*row) for row in rows], request)


def _runs(rows: list[tuple[int, int, int, int]]) -> list[Run]:
    return [Run(*row) for row in rows]


def claim(magazine: str, limit: int, owner: str, shards: Sequence[int] | None) -> ClientRequest[list[Run]]:
    return read_as(_runs, build(Command.CLAIM, magazine, limit, owner, _shards(shards)))


def held(magazine: str, owner: str) -> ClientRequest[list[Run]]:
    return read_as(_runs, build(Command.HELD, magazine, owner))


def renew(magazine: str, owner: str) -> ClientRequest[bool]:
    return build(Command.RENEW, magazine, owner)


def reload(magazine: str, runs: bytes, fence: Fence | None = None) -> ClientRequest[int]:
    return build(Command.RELOAD, magazine, fence, bulk=runs)


def delete(magazine: str, runs: bytes) -> ClientRequest[int]:
    return build(Command.DELETE, magazine, bulk=runs)


def delete_waiting(magazine: str, runs: bytes) -> ClientRequest[int]:
    return build(Command.DELETE_WAITING, magazine, bulk=runs)


def purge(
    magazine: str, limit: int, in_flight: bool, left: Mapping[int, tuple[int, int]] | None
) -> ClientRequest[Purged]:
    """Removes one step of what waits; see `MagazineStore.purge`."""
    request = build(Command.PURGE, magazine, limit, in_flight, None if left is None else dict(left))
    return read_as(lambda row: Purged(*row), request)


def peek(magazine: str, runs: bytes) -> ClientRequest[tuple[list[Row], bool]]:
    """Answers rows in shard and pointer order, and whether more were left out because the answer would be too large."""
    return build(Command.PEEK, magazine, bulk=runs)


def scan(
    magazine: str, after: Mapping[int, int], limit: int, pending_only: bool
) -> ClientRequest[tuple[list[Row], bool]]:
    return build(Command.SCAN, magazine, dict(after), limit, pending_only)


def transfer(
    source: str, target: str, items: Sequence[Transfer], ttl_s: float | None, fence: Fence | None
) -> ClientRequest[int]:
    ttl_ms = -1 if ttl_s == KEEP_TTL else ttl_ms_of(ttl_s)
    return build(Command.TRANSFER, source, target, [tuple(item) for item in items], ttl_ms, fence)


def abandoned(
    magazine: str, shard: int, fired_before_ms: int, limit: int, dead_owners: bool, owner: str | None
) -> ClientRequest[list[Abandoned]]:
    request = build(Command.ABANDONED, magazine, shard, fired_before_ms, limit, dead_owners, owner)
    return read_as(lambda found: [Abandoned(*row) for row in found[0]], request)


def expire(magazine: str, limit: int) -> ClientRequest[int]:
    return build(Command.EXPIRE, magazine, limit)


def metadata(magazine: str) -> ClientRequest[list[ShardState]]:
    count = len(dataclasses.fields(ShardState))
    return read_as(lambda rows: [ShardState(*row[:count]) for row in rows], build(Command.METADATA, magazine))


def oldest(magazine: str) -> ClientRequest[int | None]:
    return build(Command.OLDEST, magazine)


def wait(magazine: str, seen: int, timeout_s: float) -> ClientRequest[int]:
    left_s = max(0.0, timeout_s)
    return replace(build(Command.WAIT, magazine, seen, int(left_s * 1000)), extra_s=left_s)


def wake(magazine: str) -> ClientRequest[None]:
    return build(Command.WAKE, magazine)


def drop(magazine: str) -> ClientRequest[None]:
    return build(Command.DROP, magazine)


def drop_empty(magazine: str) -> ClientRequest[bool]:
    return build(Command.DROP_EMPTY, magazine)


def names() -> ClientRequest[list[str]]:
    return build(Command.NAMES)


# -- queues' settings


def queue_get(name: str) -> ClientRequest[QueueRecord | None]:
    return build(Command.QUEUE_GET, name)


def queue_put(record: QueueRecord) -> ClientRequest[None]:
    return ClientRequest(Command.QUEUE_PUT, pack(record), read_nothing, True)


def queue_replace(known: QueueRecord, fresh: QueueRecord, fence: Fence | None) -> ClientRequest[QueueRecord]:
    return build(Command.QUEUE_REPLACE, known, fresh, fence)


def queue_list(active: bool | None, after: str) -> ClientRequest[tuple[list[QueueRecord], bool]]:
    """The queues behind that name, as many as the broker gives at a time; and whether there are more."""
    return build(Command.QUEUE_LIST, active, after)


def queue_remove(name: str) -> ClientRequest[bool]:
    return build(Command.QUEUE_REMOVE, name)


# -- locks and epochs


def lock(
    command: Command, name: str, owner: str = "", ttl_s: float = 0, table: str = "", farm_id: str = ""
) -> ClientRequest[LockRecord | None]:
    """LOCK_ACQUIRE, LOCK_RENEW, LOCK_GET."""
    request = build(command, name, owner, ttl_s, table, farm_id)
    return read_as(lambda row: None if row is None else LockRecord(*row), request)


def lock_release(name: str, owner: str, table: str = "", farm_id: str = "") -> ClientRequest[bool]:
    return build(Command.LOCK_RELEASE, name, owner, 0, table, farm_id)


def lock_token(name: str, owner: str, table: str = "", farm_id: str = "") -> ClientRequest[int | None]:
    return build(Command.LOCK_TOKEN, name, owner, 0, table, farm_id)


def epoch_next(scope: str) -> ClientRequest[int]:
    return build(Command.EPOCH_NEXT, scope)


def epoch_get(scope: str) -> ClientRequest[int]:
    return build(Command.EPOCH_GET, scope)


def epoch_raise(scope: str, epoch: int) -> ClientRequest[None]:
    return build(Command.EPOCH_RAISE, scope, epoch)


# -- array queues


def array_enqueue(name: str, bin_name: str, values: Sequence[Any]) -> ClientRequest[int]:
    return build(Command.ARRAY_ENQUEUE, name, bin_name, list(values))


def array_dequeue(
    name: str, bin_name: str, limit: int, max_bytes: int | None = None, max_value_bytes: int | None = None
) -> ClientRequest[list[Any]]:
    return build(Command.ARRAY_DEQUEUE, name, bin_name, [], limit, max_bytes, max_value_bytes)


def array_peek(
    name: str, bin_name: str, limit: int, max_bytes: int | None = None, max_value_bytes: int | None = None
) -> ClientRequest[list[Any]]:
    return build(Command.ARRAY_PEEK, name, bin_name, [], limit, max_bytes, max_value_bytes)


def array_size(name: str, bin_name: str) -> ClientRequest[int]:
    return build(Command.ARRAY_SIZE, name, bin_name)


def stats() -> ClientRequest[dict[str, Any]]:
    return build(Command.STATS)
