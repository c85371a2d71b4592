"""Requests that are one call of the store: how each payload becomes the call, and its result the answer.

The functions run in a thread of the store's. What a request changes about the connection itself (which claims it
holds) is left to the event loop, as ``after`` of the `Reply`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ignis.array_queue import ArrayQueue
from ignis.broker.auth.principal import Principal
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.in_flight import as_pointers, runs_in
from ignis.broker.protocol.payloads import (
    AbandonedRequest,
    ArrayRequest,
    Declare,
    EpochRequest,
    Expire,
    LoadOnce,
    LockRequest,
    Named,
    PurgeRequest,
    QueueList,
    QueueReplace,
    Reload,
    Scan,
    TransferRequest,
    pack,
    unpack,
    unpack_enqueued,
)
from ignis.broker.server.permission_check import own_lock, own_scope
from ignis.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    PermissionDeniedError,
    QueueMismatchError,
    QueueNotFoundError,
)
from ignis.magazine import SIDELINE_SUFFIX
from ignis.native.wire import ClaimsFrame, unpack_send_batch
from ignis.storage.base import KEEP_TTL, Fence, LockRecord, LockTable, QueueRecord, Transfer
from ignis.storage.checks import check_declaration, check_settings, shorten
from ignis.storage.purging import PURGE_BATCH

if TYPE_CHECKING:
    from ignis.broker.server.application import Application
    from ignis.broker.server.session import Session

__all__ = ["BULKY", "CALLS", "Asked", "Reply"]

log = logging.getLogger("ignis.broker")

_RESULT = int(Command.RESULT)
_MOST_TTL_MS = 1 << 62


class Reply(NamedTuple):
    """An answer, and what the event loop does with the session when it is given."""

    command: int
    payload: bytes
    after: Callable[[Session], object] | None = None
    claims: ClaimsFrame | None = None
    """What follows the payload."""

    @property
    def nbytes(self) -> int:
        return len(self.payload) + (0 if self.claims is None else self.claims.nbytes)


class Asked(NamedTuple):
    """One request, whose sender may make it. ``bound``: bytes that the answer may take."""

    app: Application
    principal: Principal
    payload: bytes
    bound: int

    def may(self, command: Command, queue: str) -> bool:
        """Whether the sender may do something else as well."""
        return self.principal.allows(command.name, queue.removesuffix(SIDELINE_SUFFIX))


def _value(value: Any) -> Reply:
    return Reply(_RESULT, pack(value))


# -- magazines


def _declare(asked: Asked) -> Reply:
    """Who may not make queues declares a magazine only as it is. Who may changes the number of shards of a queue's magazine
    upwards only, which is logged: to fewer it goes with CREATE_QUEUE, which changes the queue's record too."""
    head, _ = unpack(asked.payload, Declare)
    app, magazine = asked.app, head.magazine
    check_declaration(magazine, head.shards, head.durability)
    try:
        shards = app.shards(magazine, fresh=True)
    except QueueNotFoundError:
        if not asked.may(Command.CREATE_QUEUE, magazine):
            raise PermissionDeniedError(Command.DECLARE.name, magazine.removesuffix(SIDELINE_SUFFIX)) from None
        shards = 0
    record = app.store.queues.get(magazine.removesuffix(SIDELINE_SUFFIX))
    if not asked.may(Command.CREATE_QUEUE, magazine):
        if head.shards != shards or (record is not None and head.durability != record.durability):
            durability = "" if record is None else f" and durability {record.durability!r}"
            raise QueueMismatchError(
                f"magazine {magazine!r} has {shards} shards{durability}; asked for {head.shards} and {head.durability!r}, "
                "which is for those who may manage it"
            )
        return _value(None)
    if record is not None and head.shards < shards:
        raise QueueMismatchError(
            f"magazine {magazine!r} of queue {record.name!r} has {shards} shards and cannot be declared with {head.shards}: "
            "those who publish to it would be refused. Change the queue with CREATE_QUEUE once they have stopped"
        )
    app.store.magazines.declare(magazine, head.shards, head.durability)
    if shards and head.shards != shards:
        log.warning("%s: %d shards instead of %d, by %s", magazine, head.shards, shards, asked.principal.name)
    app.forget(magazine)
    return _value(None)


def _reload(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Reload)
    runs = runs_in(asked.payload, at)
    count = asked.app.store.magazines.reload(head.magazine, as_pointers(runs), _fence(asked, head.fence))
    return Reply(_RESULT, pack(count), lambda session: session.let_go(head.magazine, runs))


def _fence(asked: Asked, fence: tuple[str, int] | None) -> Fence | None:
    """The epoch is that which the sender's own EPOCH_NEXT raises."""
    if fence is None:
        return None
    return Fence(own_scope(asked.principal, fence[0]), fence[1])


def _load_once(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, LoadOnce)
    name, ttl_ms, batches = unpack_send_batch(asked.payload, at)
    if name.decode("utf-8", "replace") != head.magazine or ttl_ms > _MOST_TTL_MS:
        raise BadRequestError("LOAD_ONCE names two magazines, or no time to live")
    done = asked.app.store.magazines.load_once(
        head.magazine, batches, ttl_ms / 1000 if ttl_ms else None, head.remember_ms / 1000
    )
    return _value(done)


def _delete(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Named)
    runs = runs_in(asked.payload, at)
    count = asked.app.store.magazines.delete(head.name, as_pointers(runs))
    return Reply(_RESULT, pack(count), lambda session: session.let_go(head.name, runs))


def _delete_waiting(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Named)
    runs = runs_in(asked.payload, at)
    return _value(asked.app.store.magazines.delete_waiting(head.name, as_pointers(runs)))


def _purge(asked: Asked) -> Reply:
    """One step. Whoever holds what was removed finds out when it acknowledges."""
    head, _ = unpack(asked.payload, PurgeRequest)
    limit = min(head.limit, PURGE_BATCH)
    return _value(asked.app.store.magazines.purge(head.magazine, limit, in_flight=head.in_flight, left=head.left))


def _peek(asked: Asked) -> Reply:
    """(rows, whether some were left out because the answer would have been too large)."""
    head, at = unpack(asked.payload, Named)
    found = asked.app.store.magazines.peek(head.name, as_pointers(runs_in(asked.payload, at)))
    rows = [(shard, pointer, found[shard][pointer]) for shard in sorted(found) for pointer in sorted(found[shard])]
    return _value(_fitting(rows, asked.bound))


def _scan(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Scan)
    rows = asked.app.store.magazines.scan(
        head.magazine, after=head.after, limit=min(head.limit, 100_000), pending_only=head.pending_only
    )
    fitting, cut = _fitting(rows, asked.bound)
    return _value((fitting, cut or (len(rows) == 100_000 and head.limit > 100_000)))


def _fitting(rows: list[Any], bound: int) -> tuple[list[Any], bool]:
    """As many rows (shard, pointer, record, ...) as the answer has room for, one at least."""
    for index, row in enumerate(rows):
        bound -= len(row[2] or b"") + 64
        if bound < 0 and index:
            return rows[:index], True
    return rows, False


def _transfer(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, TransferRequest)
    items = [Transfer(*item) for item in head.items]
    ttl_s = KEEP_TTL if head.ttl_ms < 0 else head.ttl_ms / 1000 if head.ttl_ms else None
    moved = asked.app.store.magazines.transfer(head.source, head.target, items, ttl_s, _fence(asked, head.fence))
    gone = [(item.shard, item.pointer, item.pointer + 1) for item in items]
    return Reply(_RESULT, pack(moved), lambda session: session.let_go(head.source, gone))


def _abandoned(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, AbandonedRequest)
    rows = asked.app.store.magazines.abandoned(
        head.magazine,
        head.shard,
        head.fired_before_ms,
        min(head.limit, 100_000),
        dead_owners=head.dead_owners,
        owner=head.owner,
    )
    # The owner is a name here: in a store of this process it carries the client's process.
    return _value(_fitting([tuple(row._replace(owner=str(row.owner))) for row in rows], asked.bound))


def _expire(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Expire)
    return _value(asked.app.store.magazines.expire(head.magazine, head.limit))


def _metadata(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    states = asked.app.store.magazines.metadata(head.name)
    return _value(
        [
            (
                one.shard,
                one.load_pointer,
                one.fire_pointer,
                one.load_counter,
                one.fire_counter,
                one.in_flight,
                one.incarnation,
                one.expired,
            )
            for one in states
        ]
    )


def _oldest(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    return _value(asked.app.store.magazines.oldest_enqueued_at_us(head.name))


def _wake(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    asked.app.store.magazines.wake(head.name)
    return _value(None)


def _drop(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    asked.app.store.magazines.drop(head.name)
    asked.app.forget(head.name)
    return Reply(_RESULT, pack(None), lambda _: asked.app.poke(head.name))


def _drop_empty(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    dropped = asked.app.store.magazines.drop(head.name, only_empty=True)
    asked.app.forget(head.name)
    return Reply(_RESULT, pack(dropped), lambda _: asked.app.poke(head.name))


def _names(asked: Asked) -> Reply:
    names = asked.app.store.magazines.names()
    return _value([name for name in names if asked.may(Command.NAMES, name)])


# -- queues' settings


def _queue_get(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    return _value(asked.app.store.queues.get(head.name))


def _queue_put(asked: Asked) -> Reply:
    record, _ = unpack(asked.payload, QueueRecord)
    check_settings(record)
    asked.app.store.queues.put(record)
    asked.app.forget(record.name)
    return Reply(_RESULT, pack(None), lambda _: asked.app.look_at(record.name))


def _queue_replace(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, QueueReplace)
    known, fresh = head.known, head.fresh
    if known.name != fresh.name:
        raise BadRequestError(f"QUEUE_REPLACE of {known.name[:128]!a} by a record of {fresh.name[:128]!a}")
    check_settings(fresh, known)
    if not asked.may(Command.CREATE_QUEUE, known.name):
        for name in ("shards", "durability", "codec"):
            if getattr(known, name) != getattr(fresh, name):
                raise QueueMismatchError(
                    f"queue {known.name!r}: {name} is {getattr(known, name)!r}; to change it to {shorten(getattr(fresh, name))} "
                    "is for those who may manage it"
                )

    def change(record: QueueRecord) -> None:
        if record != known:
            raise ConflictError(f"queue {record.name!r} was changed meanwhile")
        vars(record).update(vars(fresh))

    result = asked.app.store.queues.update(known.name, change, _fence(asked, head.fence))
    asked.app.forget(known.name)
    return Reply(_RESULT, pack(result), lambda _: asked.app.look_at(known.name))


def _queue_list(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, QueueList)
    records = asked.app.store.queues.list(head.active)
    return _value([one for one in records if asked.may(Command.QUEUE_LIST, one.name)])


def _queue_remove(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    removed = asked.app.store.queues.remove(head.name)
    asked.app.forget(head.name)
    return _value(removed)


# -- locks and epochs


def _lock_of(asked: Asked) -> tuple[LockRequest, LockTable, str]:
    """(head, the table, the lock's name there)."""
    head, _ = unpack(asked.payload, LockRequest)
    locks = asked.app.store.locks
    if head.table:
        return head, locks.table(head.table, head.farm_id), head.name
    return head, locks, own_lock(asked.principal, head.name)


def _lock_value(head: LockRequest, record: LockRecord | None) -> Reply:
    return _value(None if record is None else record._replace(name=head.name))


def _lock_acquire(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _lock_value(head, table.acquire(name, head.owner, head.ttl_s))


def _lock_renew(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _lock_value(head, table.renew(name, head.owner, head.ttl_s))


def _lock_release(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _value(table.release(name, head.owner))


def _lock_get(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _lock_value(head, table.get(name))


def _lock_token(asked: Asked) -> Reply:
    head, table, name = _lock_of(asked)
    return _value(table.draw_token(name, head.owner))


def _epoch_next(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, EpochRequest)
    return _value(asked.app.store.locks.next_epoch(own_scope(asked.principal, head.scope)))


def _epoch_get(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, EpochRequest)
    return _value(asked.app.store.locks.epoch(own_scope(asked.principal, head.scope)))


def _epoch_raise(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, EpochRequest)
    scope = own_scope(asked.principal, head.scope)
    asked.app.store.locks.raise_epoch(scope, head.epoch)
    return _value(None)


# -- array queues


def _array_enqueue(asked: Asked) -> Reply:
    name, bin_name, values = unpack_enqueued(asked.payload)
    # With the checks of values that its clients make.
    return _value(ArrayQueue(asked.app.store, name, bin_name).enqueue_many(values))


def _limit(head: ArrayRequest) -> int:
    if not 1 <= head.limit <= 1_000_000:
        raise ConfigError(f"limit = {head.limit} is outside 1 to 1,000,000")
    return head.limit


def _array_dequeue(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, ArrayRequest)
    return _value(asked.app.store.arrays.dequeue(head.name, head.bin_name, _limit(head)))


def _array_peek(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, ArrayRequest)
    return _value(asked.app.store.arrays.peek(head.name, head.bin_name, _limit(head)))


def _array_size(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, ArrayRequest)
    return _value(asked.app.store.arrays.size(head.name, head.bin_name))


def _stats(asked: Asked) -> Reply:
    return _value(asked.app.store.stats())


Call = Callable[[Asked], Reply]

CALLS: dict[int, Call] = {
    Command.DECLARE: _declare,
    Command.RELOAD: _reload,
    Command.DELETE: _delete,
    Command.DELETE_WAITING: _delete_waiting,
    Command.PURGE: _purge,
    Command.PEEK: _peek,
    Command.SCAN: _scan,
    Command.TRANSFER: _transfer,
    Command.ABANDONED: _abandoned,
    Command.EXPIRE: _expire,
    Command.METADATA: _metadata,
    Command.OLDEST: _oldest,
    Command.WAKE: _wake,
    Command.DROP: _drop,
    Command.DROP_EMPTY: _drop_empty,
    Command.NAMES: _names,
    Command.LOAD_ONCE: _load_once,
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
