"""Requests that are one call of the store: how each payload becomes the call, and its result the answer.

The functions run in a thread of the store's. What a request changes about the connection itself (which claims it
holds) is left to the event loop, as ``after`` of the `Reply`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ignis.broker.commands import Command
from ignis.broker.delivery import packed
from ignis.broker.holding import as_pointers
from ignis.broker.payloads import (
    AbandonedRequest,
    ArrayRequest,
    ClaimRequest,
    Declare,
    EpochRequest,
    Expire,
    Fire,
    LoadOnce,
    LockRequest,
    Named,
    OwnerRequest,
    QueueList,
    QueueReplace,
    Reload,
    Scan,
    TransferRequest,
    pack,
    unpack,
)
from ignis.errors import BadRequestError, ConfigError, ConflictError
from ignis.native.wire import unpack_runs, unpack_send_batch
from ignis.storage.base import Fence, LockTable, QueueRecord, Transfer

if TYPE_CHECKING:
    from ignis.broker.application import Application
    from ignis.broker.session import Session

__all__ = ["BULKY", "CALLS", "QUEUE_OF", "Reply"]

_RESULT = int(Command.RESULT)
_MOST_TTL_MS = 1 << 62


class Reply(NamedTuple):
    """An answer, and what the event loop does with the session when it is given."""

    command: int
    payload: bytes
    after: Callable[[Session], object] | None = None


def _value(value: Any) -> Reply:
    return Reply(_RESULT, pack(value))


# -- magazines


def _declare(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Declare)
    app.store.magazines.declare(head.magazine, head.shards, head.durability)
    app.forget(head.magazine)
    return _value(None)


def _fire(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Fire)
    result = app.store.magazines.fire(
        head.magazine, head.limit, head.owner, head.shards, max_bytes=min(head.max_bytes, bound)
    )
    found = packed(result)
    return Reply(_RESULT, found.payload, lambda session: session.hold(head.magazine, found.runs))


def _reload(app: Application, payload: bytes, bound: int) -> Reply:
    head, at = unpack(payload, Reload)
    runs = unpack_runs(payload, at)
    count = app.store.magazines.reload(head.magazine, as_pointers(runs), _fence(head.fence))
    return Reply(_RESULT, pack(count), lambda session: session.let_go(head.magazine, runs))


def _fence(fence: tuple[str, int] | None) -> Fence | None:
    return None if fence is None else Fence(*fence)


def _load_once(app: Application, payload: bytes, bound: int) -> Reply:
    head, at = unpack(payload, LoadOnce)
    name, ttl_ms, batches = unpack_send_batch(payload, at)
    if name.decode("utf-8", "replace") != head.magazine or ttl_ms > _MOST_TTL_MS:
        raise BadRequestError("LOAD_ONCE names two magazines, or no time to live")
    done = app.store.magazines.load_once(
        head.magazine, batches, ttl_ms / 1000 if ttl_ms else None, head.remember_ms / 1000
    )
    return _value(done)


def _claim(app: Application, payload: bytes, bound: int) -> Reply:
    """Not held by the connection: such claims outlive the process that made them."""
    head, _ = unpack(payload, ClaimRequest)
    return _value(app.store.magazines.claim(head.magazine, head.limit, head.owner, head.shards))


def _held(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, OwnerRequest)
    return _value(app.store.magazines.held(head.magazine, head.owner))


def _renew(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, OwnerRequest)
    return _value(app.store.magazines.renew(head.magazine, head.owner))


def _delete(app: Application, payload: bytes, bound: int) -> Reply:
    head, at = unpack(payload, Named)
    runs = unpack_runs(payload, at)
    count = app.store.magazines.delete(head.name, as_pointers(runs))
    return Reply(_RESULT, pack(count), lambda session: session.let_go(head.name, runs))


def _peek(app: Application, payload: bytes, bound: int) -> Reply:
    """(rows, whether some were left out because the answer would have been too large)."""
    head, at = unpack(payload, Named)
    found = app.store.magazines.peek(head.name, as_pointers(unpack_runs(payload, at)))
    rows = [(shard, pointer, found[shard][pointer]) for shard in sorted(found) for pointer in sorted(found[shard])]
    return _value(_fitting(rows, bound))


def _scan(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Scan)
    rows = app.store.magazines.scan(
        head.magazine, after=head.after, limit=min(head.limit, 100_000), pending_only=head.pending_only
    )
    fitting, cut = _fitting(rows, bound)
    return _value((fitting, cut or (len(rows) == 100_000 and head.limit > 100_000)))


def _fitting(rows: list[Any], bound: int) -> tuple[list[Any], bool]:
    """As many rows (shard, pointer, record, ...) as the answer has room for, one at least."""
    for index, row in enumerate(rows):
        bound -= len(row[2] or b"") + 64
        if bound < 0 and index:
            return rows[:index], True
    return rows, False


def _transfer(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, TransferRequest)
    items = [Transfer(*item) for item in head.items]
    ttl_s = head.ttl_ms / 1000 if head.ttl_ms else None
    moved = app.store.magazines.transfer(head.source, head.target, items, ttl_s, _fence(head.fence))
    gone = [(item.shard, item.pointer, item.pointer + 1) for item in items]
    return Reply(_RESULT, pack(moved), lambda session: session.let_go(head.source, gone))


def _abandoned(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, AbandonedRequest)
    rows = app.store.magazines.abandoned(
        head.magazine,
        head.shard,
        head.fired_before_ms,
        min(head.limit, 100_000),
        dead_owners=head.dead_owners,
        owner=head.owner,
    )
    return _value(_fitting([tuple(row) for row in rows], bound))


def _expire(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Expire)
    return _value(app.store.magazines.expire(head.magazine, head.limit))


def _metadata(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Named)
    states = app.store.magazines.metadata(head.name)
    return _value(
        [
            (one.shard, one.load_pointer, one.fire_pointer, one.load_counter, one.fire_counter, one.in_flight)
            for one in states
        ]
    )


def _oldest(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Named)
    return _value(app.store.magazines.oldest_enqueued_at_us(head.name))


def _wake(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Named)
    app.store.magazines.wake(head.name)
    return _value(None)


def _drop(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Named)
    app.store.magazines.drop(head.name)
    app.forget(head.name)
    return Reply(_RESULT, pack(None), lambda _: app.poke(head.name))


def _names(app: Application, payload: bytes, bound: int) -> Reply:
    return _value(app.store.magazines.names())


# -- queues' settings


def _queue_get(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Named)
    return _value(app.store.queues.get(head.name))


def _queue_put(app: Application, payload: bytes, bound: int) -> Reply:
    record, _ = unpack(payload, QueueRecord)
    app.store.queues.put(record)
    app.forget(record.name)
    return _value(None)


def _queue_replace(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, QueueReplace)

    def change(record: QueueRecord) -> None:
        if record != head.known:
            raise ConflictError(f"queue {record.name!r} was changed meanwhile")
        vars(record).update(vars(head.fresh))

    result = app.store.queues.update(head.known.name, change, _fence(head.fence))
    app.forget(head.known.name)
    return _value(result)


def _queue_list(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, QueueList)
    return _value(app.store.queues.list(head.active))


def _queue_remove(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, Named)
    removed = app.store.queues.remove(head.name)
    app.forget(head.name)
    return _value(removed)


# -- locks and epochs


def _table(app: Application, head: LockRequest) -> LockTable:
    return app.store.locks.table(head.table, head.farm_id) if head.table else app.store.locks


def _lock_acquire(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, LockRequest)
    return _value(_table(app, head).acquire(head.name, head.owner, head.ttl_s))


def _lock_renew(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, LockRequest)
    return _value(_table(app, head).renew(head.name, head.owner, head.ttl_s))


def _lock_release(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, LockRequest)
    return _value(_table(app, head).release(head.name, head.owner))


def _lock_get(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, LockRequest)
    return _value(_table(app, head).get(head.name))


def _lock_token(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, LockRequest)
    return _value(_table(app, head).draw_token(head.name, head.owner))


def _epoch_next(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, EpochRequest)
    return _value(app.store.locks.next_epoch(head.scope))


def _epoch_get(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, EpochRequest)
    return _value(app.store.locks.epoch(head.scope))


def _epoch_raise(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, EpochRequest)
    app.store.locks.raise_epoch(head.scope, head.epoch)
    return _value(None)


# -- array queues


def _array_enqueue(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, ArrayRequest)
    return _value(app.store.arrays.enqueue(head.name, head.bin_name, head.values))


def _limit(head: ArrayRequest) -> int:
    if not 1 <= head.limit <= 1_000_000:
        raise ConfigError(f"limit = {head.limit} is outside 1 to 1,000,000")
    return head.limit


def _array_dequeue(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, ArrayRequest)
    return _value(app.store.arrays.dequeue(head.name, head.bin_name, _limit(head)))


def _array_peek(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, ArrayRequest)
    return _value(app.store.arrays.peek(head.name, head.bin_name, _limit(head)))


def _array_size(app: Application, payload: bytes, bound: int) -> Reply:
    head, _ = unpack(payload, ArrayRequest)
    return _value(app.store.arrays.size(head.name, head.bin_name))


def _stats(app: Application, payload: bytes, bound: int) -> Reply:
    return _value(app.store.stats())


Call = Callable[["Application", bytes, int], Reply]
"""(application, payload, bytes that an answer may take) -> reply."""

CALLS: dict[int, Call] = {
    Command.DECLARE: _declare,
    Command.FIRE: _fire,
    Command.RELOAD: _reload,
    Command.DELETE: _delete,
    Command.PEEK: _peek,
    Command.SCAN: _scan,
    Command.TRANSFER: _transfer,
    Command.ABANDONED: _abandoned,
    Command.EXPIRE: _expire,
    Command.METADATA: _metadata,
    Command.OLDEST: _oldest,
    Command.WAKE: _wake,
    Command.DROP: _drop,
    Command.NAMES: _names,
    Command.LOAD_ONCE: _load_once,
    Command.CLAIM: _claim,
    Command.HELD: _held,
    Command.RENEW: _renew,
    Command.QUEUE_GET: _queue_get,
    Command.QUEUE_PUT: _queue_put,
    Command.QUEUE_REPLACE: _queue_replace,
    Command.QUEUE_LIST: _queue_list,
    Command.QUEUE_REMOVE: _queue_remove,
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
    Command.STATS: _stats,
}

BULKY = frozenset(
    {Command.FIRE, Command.PEEK, Command.SCAN, Command.ABANDONED, Command.ARRAY_DEQUEUE, Command.ARRAY_PEEK}
)
"""Their answers may be large: few of them at a time per connection."""


def _first_text(payload: bytes) -> str:
    """Every head that is about a queue or magazine begins with its name. Raises BadRequestError."""
    return unpack(payload, Named)[0].name


def _known_name(payload: bytes) -> str:
    return unpack(payload, QueueReplace)[0].known.name


def _put_name(payload: bytes) -> str:
    return unpack(payload, QueueRecord)[0].name


QUEUE_OF: dict[int, Callable[[bytes], str]] = {
    **dict.fromkeys(
        (
            Command.DECLARE, Command.FIRE, Command.RELOAD, Command.DELETE, Command.PEEK, Command.SCAN, Command.TRANSFER,
            Command.ABANDONED, Command.EXPIRE, Command.METADATA, Command.OLDEST, Command.WAIT, Command.WAKE, Command.DROP,
            Command.QUEUE_GET, Command.QUEUE_REMOVE, Command.ARRAY_ENQUEUE, Command.ARRAY_DEQUEUE, Command.ARRAY_PEEK,
            Command.ARRAY_SIZE, Command.LOCK_ACQUIRE, Command.LOCK_RENEW, Command.LOCK_RELEASE, Command.LOCK_GET,
            Command.LOCK_TOKEN, Command.SUBSCRIBE, Command.CONSUME, Command.ACK, Command.NACK, Command.CREATE_QUEUE,
            Command.DELETE_QUEUE, Command.QUEUE_INFO, Command.LOAD_ONCE, Command.CLAIM, Command.HELD, Command.RENEW,
        ),
        _first_text,
    ),
    Command.QUEUE_PUT: _put_name,
    Command.QUEUE_REPLACE: _known_name,
}  # fmt: skip
"""Which queue (or magazine, lock, array queue) a request is about: what permissions are looked up for."""
