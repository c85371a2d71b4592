"""Requests about magazines and queues' settings: how each payload becomes the call of the store, and its result the answer."""

from __future__ import annotations

import logging
from typing import Any

from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.in_flight import as_pointers, runs_in
from ignis.broker.protocol.later_payloads import spread_dues, unpack_dues
from ignis.broker.protocol.payloads import (
    AbandonedRequest,
    AnyNamed,
    Declare,
    Expire,
    LoadOnce,
    Named,
    PurgeRequest,
    QueueList,
    QueueReplace,
    Reload,
    Scan,
    TransferRequest,
)
from ignis.broker.server.calls import MOST_ROWS, RESULT, Asked, Call, Reply, kept_ttl_s, queue_page, value
from ignis.broker.server.peer import Peer
from ignis.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    PermissionDeniedError,
    QueueMismatchError,
    QueueNotFoundError,
)
from ignis.log_format import event_text
from ignis.magazine import SIDELINE_SUFFIX
from ignis.native.wire import unpack_send_batch
from ignis.schedules.stored import check_schedules, definitions, with_bodies_of, without_bodies
from ignis.storage.base import QueueRecord, Transfer
from ignis.storage.bounded_reads import peek_fitting, scan_fitting
from ignis.storage.checks import MAX_TTL_S, check_declaration, check_settings, shorten
from ignis.storage.purging import PURGE_BATCH

__all__ = ["STORE_CALLS"]

log = logging.getLogger("ignis.broker")

_MOST_TTL_MS = MAX_TTL_S * 1000


# -- magazines


def _declare(asked: Asked) -> Reply:
    """Who may not make queues declares a magazine only as it is. Who may changes the number of shards of a queue's magazine
    upwards only, which is logged: to fewer it goes with CREATE_QUEUE, which changes the queue's record too."""
    head, _ = unpack(asked.payload, Declare)
    app, magazine = asked.app, head.magazine
    check_declaration(magazine, head.shards, head.durability)
    try:
        shards = app.facts.shards(magazine, fresh=True)
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
        return value(None)
    if record is not None and head.shards < shards:
        raise QueueMismatchError(
            f"magazine {magazine!r} of queue {record.name!r} has {shards} shards and cannot be declared with {head.shards}: "
            "those who publish to it would be refused. Change the queue with CREATE_QUEUE once they have stopped"
        )
    app.store.magazines.declare(magazine, head.shards, head.durability)
    if shards and head.shards != shards:
        log.warning(
            event_text("shards_changed_by_client", "%s: %d shards instead of %d, by %s"),
            magazine,
            head.shards,
            shards,
            asked.principal.name,
        )
    app.facts.forget(magazine)
    return value(None)


def _reload(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Reload)
    runs = runs_in(asked.payload, at)
    count = asked.app.store.magazines.reload(head.magazine, as_pointers(runs), asked.fence(head.fence))

    def after(peer: Peer) -> None:
        peer.claims.let_go(head.magazine, runs)
        asked.app.poke(head.magazine)

    return Reply(RESULT, pack(count), after)


def _load_once(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, LoadOnce)
    runs, at = unpack_dues(asked.payload, at) if head.delayed else ([], at)
    name, ttl_ms, batches = unpack_send_batch(asked.payload, at)
    if name.decode("utf-8", "replace") != head.magazine:
        raise BadRequestError("LOAD_ONCE names two magazines")
    if ttl_ms == OWN_TTL:
        ttl_ms = asked.app.facts.ttl_ms(head.magazine)
    elif ttl_ms > _MOST_TTL_MS:
        raise ConfigError(f"ttl_ms = {ttl_ms} is outside 0 to {_MOST_TTL_MS}")
    dues_ms = spread_dues(runs, [batch.count for _, batch in batches]) if head.delayed else None
    done = asked.app.store.magazines.load_once(
        head.magazine, batches, ttl_ms / 1000 if ttl_ms else None, head.remember_ms / 1000, dues_ms
    )
    return Reply(RESULT, pack(done), lambda _: asked.app.poke(head.magazine))


def _delete(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, AnyNamed)
    runs = runs_in(asked.payload, at)
    count = asked.app.store.magazines.delete(head.name, as_pointers(runs))
    return Reply(RESULT, pack(count), lambda peer: peer.claims.let_go(head.name, runs))


def _delete_waiting(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Named)
    runs = runs_in(asked.payload, at)
    return value(asked.app.store.magazines.delete_waiting(head.name, as_pointers(runs)))


def _purge(asked: Asked) -> Reply:
    """Makes one step. Whoever holds what was removed finds out when it acknowledges."""
    head, _ = unpack(asked.payload, PurgeRequest)
    limit = min(head.limit, PURGE_BATCH)
    return value(asked.app.store.magazines.purge(head.magazine, limit, in_flight=head.in_flight, left=head.left))


def _peek(asked: Asked) -> Reply:
    """(rows, whether some were left out because the answer would have been too large)."""
    head, at = unpack(asked.payload, AnyNamed)
    found = peek_fitting(asked.app.store.magazines, head.name, runs_in(asked.payload, at), max_bytes=asked.bound)
    return value(tuple(found))


def _scan(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Scan)
    limit = min(head.limit, MOST_ROWS)
    rows, cut = scan_fitting(
        asked.app.store.magazines, head.magazine, after=head.after or {}, limit=limit, max_bytes=asked.bound,
        pending_only=head.pending_only,
    )  # fmt: skip
    return value((rows, cut or len(rows) == limit < head.limit))


def _fitting(rows: list[Any], bound: int) -> tuple[list[Any], bool]:
    """Returns as many rows (shard, pointer, record, ...) as the answer has room for, one at least."""
    for index, row in enumerate(rows):
        bound -= len(row[2] or b"") + 64
        if bound < 0 and index:
            return rows[:index], True
    return rows, False


def _transfer(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, TransferRequest)
    items = [Transfer(*item) for item in head.items]
    moved = asked.app.store.magazines.transfer(
        head.source, head.target, items, kept_ttl_s(head.ttl_ms), asked.fence(head.fence)
    )
    gone = [(item.shard, item.pointer, item.pointer + 1) for item in items]

    def after(peer: Peer) -> None:
        peer.claims.let_go(head.source, gone)
        asked.app.poke(head.target)

    return Reply(RESULT, pack(moved), after)


def _abandoned(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, AbandonedRequest)
    rows = asked.app.store.magazines.abandoned(
        head.magazine,
        head.shard,
        head.fired_before_ms,
        min(head.limit, 100_000),
        dead_owners=head.dead_owners,
        owner=head.owner,
        max_bytes=asked.bound,
    )
    # The owner is a name here: in a store of this process it carries the client's process.
    return value(_fitting([tuple(row._replace(owner=str(row.owner))) for row in rows], asked.bound))


def _expire(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Expire)
    return value(asked.app.store.magazines.expire(head.magazine, head.limit))


def _metadata(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, AnyNamed)
    states = asked.app.store.magazines.metadata(head.name)
    return value(
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
    return value(asked.app.store.magazines.oldest_enqueued_at_us(head.name))


def _wake(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    asked.app.store.magazines.wake(head.name)
    return value(None)


def _drop(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, AnyNamed)
    asked.app.store.magazines.drop(head.name)
    asked.app.facts.forget(head.name)
    return Reply(RESULT, pack(None), lambda _: asked.app.poke(head.name))


def _drop_empty(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    dropped = asked.app.store.magazines.drop(head.name, only_empty=True)
    asked.app.facts.forget(head.name)
    return Reply(RESULT, pack(dropped), lambda _: asked.app.poke(head.name))


def _names(asked: Asked) -> Reply:
    names = asked.app.store.magazines.names()
    return value([name for name in names if asked.may(Command.NAMES, name)])


# -- queues' settings


def _queue_get(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    return value(_shown(asked, asked.app.store.queues.get(head.name)))


def _shown(asked: Asked, record: QueueRecord | None) -> QueueRecord | None:
    """What its schedules publish are messages of the queue: for those who may look at them."""
    return record if record is None or asked.may(Command.PEEK, record.name) else without_bodies(record)


def _queue_put(asked: Asked) -> Reply:
    record, _ = unpack(asked.payload, QueueRecord)
    check_settings(record)
    check_schedules(record, None)
    stored = None if asked.may(Command.PEEK, record.name) else asked.app.store.queues.get(record.name)
    asked.app.store.queues.put(record if stored is None else with_bodies_of(record, stored))
    asked.app.facts.forget(record.name)
    return Reply(RESULT, pack(None), lambda _: asked.app.look_at(record.name))


def _queue_replace(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, QueueReplace)
    known, fresh = head.known, head.fresh
    if known.name != fresh.name:
        raise BadRequestError(
            f"QUEUE_REPLACE of {known.name[:128]!a} by a record of {fresh.name[:128]!a}; give two records of one queue"
        )
    check_settings(fresh, known)
    check_schedules(fresh, known)
    manages, looks = asked.may(Command.CREATE_QUEUE, known.name), asked.may(Command.PEEK, known.name)
    if not manages:
        for name in ("shards", "durability", "codec"):
            if getattr(known, name) != getattr(fresh, name):
                raise QueueMismatchError(
                    f"queue {known.name!r}: {name} is {getattr(known, name)!r}; to change it to {shorten(getattr(fresh, name))} "
                    "is for those who may manage it"
                )

        if definitions(known) != definitions(fresh):
            raise PermissionDeniedError("SCHEDULES", known.name)

    def change(record: QueueRecord) -> None:
        if (record if looks else without_bodies(record)) != known:
            raise ConflictError(f"queue {record.name!r} was changed meanwhile")
        vars(record).update(vars(fresh if looks else with_bodies_of(fresh, record)))

    result = asked.app.store.queues.update(known.name, change, asked.fence(head.fence))
    asked.app.facts.forget(known.name)
    return Reply(RESULT, pack(_shown(asked, result)), lambda _: asked.app.look_at(known.name))


def _queue_list(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, QueueList)
    records, cut = queue_page(asked, Command.QUEUE_LIST)
    shown = [_shown(asked, one) for one in records]
    return value(shown if head.after is None else (shown, cut))


def _queue_remove(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    removed = asked.app.store.queues.remove(head.name)
    asked.app.facts.forget(head.name)
    return value(removed)


def _stats(asked: Asked) -> Reply:
    return value(asked.app.store.stats())


STORE_CALLS: dict[int, Call] = {
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
    Command.STATS: _stats,
}
