"""Requests about locks, epochs and array queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ignis.array_queue import ArrayQueue
from ignis.broker.protocol.array_values import unpack_enqueued
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import unpack
from ignis.broker.protocol.payloads import ArrayRequest, EpochRequest, LockRequest
from ignis.broker.server.calls import Asked, Call, Reply, value
from ignis.broker.server.permission_check import own_lock, own_scope
from ignis.errors import ConfigError, MessageTooLargeError
from ignis.storage.base import LockRecord, LockTable

__all__ = ["LOCK_CALLS"]

_FRAME = "broker.max_frame_bytes"
_MOST_GROWTH = 2
"""A float of five bytes is kept in nine."""


def _lock_of(asked: Asked) -> tuple[LockRequest, LockTable, str]:
    """(head, the table, the lock's name there)."""
    head, _ = unpack(asked.payload, LockRequest)
    locks = asked.app.store.locks
    if head.table:
        return head, locks.table(head.table, head.farm_id), head.name
    return head, locks, own_lock(asked.principal, head.name)


def _lock_value(head: LockRequest, record: LockRecord | None) -> Reply:
    return value(None if record is None else record._replace(name=head.name))


def _lock_acquire(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _lock_value(head, table.acquire(name, head.owner, head.ttl_s))


def _lock_renew(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _lock_value(head, table.renew(name, head.owner, head.ttl_s))


def _lock_release(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return value(table.release(name, head.owner))


def _lock_get(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _lock_value(head, table.get(name))


def _lock_token(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return value(table.draw_token(name, head.owner))


def _epoch_next(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, EpochRequest)
    return value(asked.app.store.locks.next_epoch(own_scope(asked.principal, head.scope)))


def _epoch_get(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, EpochRequest)
    return value(asked.app.store.locks.epoch(own_scope(asked.principal, head.scope)))


def _epoch_raise(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, EpochRequest)
    scope = own_scope(asked.principal, head.scope)
    asked.app.store.locks.raise_epoch(scope, head.epoch)
    return value(None)


# -- array queues


def _array_enqueue(asked: Asked) -> Reply:
    name, bin_name, values = unpack_enqueued(asked.payload)
    _check_sizes(asked, values)
    # With the checks of values that its clients make.
    return value(ArrayQueue(asked.app.store, name, bin_name).enqueue_many(values))


def _limit(head: ArrayRequest) -> int:
    if not 1 <= head.limit <= 1_000_000:
        raise ConfigError(f"limit = {head.limit} is outside 1 to 1,000,000")
    return head.limit


def _check_sizes(asked: Asked, values: list[Any]) -> None:
    """Refuses what no answer could bring back: numbers may be sent in fewer bytes than they are kept in.

    Raises MessageTooLargeError.
    """
    limit = asked.most_bytes
    if len(asked.payload) * _MOST_GROWTH <= limit:
        return
    for one in values:
        if (size := len(msgspec.msgpack.encode(one))) > limit:
            raise MessageTooLargeError(size, limit, _FRAME, "value")


def _array_dequeue(asked: Asked) -> Reply:
    return _array_values(asked, asked.app.store.arrays.dequeue)


def _array_peek(asked: Asked) -> Reply:
    return _array_values(asked, asked.app.store.arrays.peek)


def _array_values(asked: Asked, read: Callable[..., list[Any]]) -> Reply:
    """As many values as the answer has room for. One that no frame can bring stays where it is."""
    head, _ = unpack(asked.payload, ArrayRequest)
    limit, most = _limit(head), asked.most_bytes
    room = asked.bound if head.max_bytes is None else min(head.max_bytes, asked.bound)
    largest = most if head.max_value_bytes is None else min(head.max_value_bytes, most)
    try:
        return value(read(head.name, head.bin_name, limit, max_bytes=room, max_value_bytes=largest))
    except MessageTooLargeError as exc:
        setting = _FRAME if largest == most else exc.setting
        raise MessageTooLargeError(exc.size_bytes, largest, setting, exc.part) from exc


def _array_size(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, ArrayRequest)
    return value(asked.app.store.arrays.size(head.name, head.bin_name))


LOCK_CALLS: dict[int, Call] = {
    Command.LOCK_ACQUIRE: _lock_acquire,
    Command.LOCK_RENEW: _lock_renew,
    Command.LOCK_RELEASE: _lock_release,
    Command.LOCK_GET: _lock_get,
    Command.LOCK_TOKEN: _lock_token,
    Command.EPOCH_NEXT: _epoch_next,
    Command.EPOCH_GET: _epoch_get,
    Command.EPOCH_RAISE: _epoch_raise,
    Command.ARRAY_ENQUEUE: _array_enqueue,
    Command.ARRAY_DEQUEUE: _array_dequeue,
    Command.ARRAY_PEEK: _array_peek,
    Command.ARRAY_SIZE: _array_size,
}
