"""Requests about messages that wait for their time: how each payload becomes the call of the store, and its result the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ignis.broker.protocol.commands import OWN_TTL, Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.in_flight import as_pointers, runs_in
from ignis.broker.protocol.later_payloads import (
    DeferRequest,
    ListLater,
    LoadLater,
    MoveDue,
    spread_dues,
    unpack_dues,
)
from ignis.broker.protocol.payloads import Named
from ignis.broker.server.calls import MOST_ROWS, RESULT, Asked, Call, Reply, kept_ttl_s, value
from ignis.broker.server.peer import Peer
from ignis.errors import BadRequestError, ConfigError
from ignis.magazine import route_with_dues
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.wire import unpack_send_batch
from ignis.storage.base import Transfer
from ignis.storage.checks import MAX_TTL_S, check_queue
from ignis.storage.later import MOVE_LIMIT

__all__ = ["LATER_CALLS"]

_MOST_TTL_MS = MAX_TTL_S * 1000
_ROW_BYTES = 64
"""What a row takes beside its record, and more than that."""

_Batches = Sequence[tuple[int, PackedBatch]]


def _load_later(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, LoadLater)
    runs, at = unpack_dues(asked.payload, at)
    name, ttl_ms, batches = unpack_send_batch(asked.payload, at)
    app, magazine = asked.app, check_queue(head.magazine)
    if name.decode("utf-8", "replace") != magazine:
        raise BadRequestError("LOAD_LATER names two magazines")
    if ttl_ms == OWN_TTL:
        ttl_ms = app.facts.ttl_ms(magazine)
    elif ttl_ms > _MOST_TTL_MS:
        raise ConfigError(f"ttl_ms = {ttl_ms} is outside 0 to {_MOST_TTL_MS}")
    if head.from_now:
        now_ms = math.ceil(app.store.now_s() * 1000)
        runs = [(count, now_ms + due_ms) for count, due_ms in runs]
    routed, dues_ms = _routed(asked, magazine, batches, spread_dues(runs, [batch.count for _, batch in batches]))
    firsts = app.store.magazines.load_later(magazine, routed, dues_ms, ttl_ms / 1000 if ttl_ms else None)
    placed = [(shard, first, batch.count) for (shard, batch), first in zip(routed, firsts, strict=True)]

    def stored(_: Peer) -> None:
        app.context.broker.state.messages_in += sum(count for _, _, count in placed)
        app.poke(magazine)  # for what is due already

    return Reply(RESULT, pack(placed), stored)


def _routed(
    asked: Asked, magazine: str, batches: _Batches, dues_ms: Sequence[Sequence[int]]
) -> tuple[_Batches, Sequence[Sequence[int]]]:
    """The same with a shard for each batch: where the sender leaves it to the broker, by the records' keys."""
    if all(shard != ANY_SHARD for shard, _ in batches):
        return batches, dues_ms
    facts = asked.app.facts
    shards, turn = facts.shards(magazine), facts.next_shard()
    routed: list[tuple[int, PackedBatch]] = []
    times: list[Sequence[int]] = []
    for (shard, batch), dues in zip(batches, dues_ms, strict=True):
        if shard != ANY_SHARD:
            some: _Batches = [(shard, batch)]
            theirs: Sequence[Sequence[int]] = [dues]
        else:
            some, theirs = route_with_dues([(turn, batch)], [dues], shards)
        routed += some
        times += theirs
    return routed, times


def _defer(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, DeferRequest)
    magazine = check_queue(head.magazine)
    items = [Transfer(*item[:4]) for item in head.items]
    moved = asked.app.store.magazines.defer(
        magazine, items, [item[4] for item in head.items], kept_ttl_s(head.ttl_ms), asked.fence(head.fence)
    )
    gone = [(item.shard, item.pointer, item.pointer + 1) for item in items]

    def after(peer: Peer) -> None:
        peer.claims.let_go(magazine, gone)
        asked.app.poke(magazine)  # for what is due already

    return Reply(RESULT, pack(moved), after)


def _move_due(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, MoveDue)
    moved = asked.app.store.magazines.move_due(head.magazine, min(head.limit, MOVE_LIMIT), asked.fence(head.fence))
    return Reply(RESULT, pack(tuple(moved)), lambda _: asked.app.poke(head.magazine))


def _list_later(asked: Asked) -> Reply:
    """(rows, whether some were left out because there is a bound on the answer, and on what is read for it)."""
    head, _ = unpack(asked.payload, ListLater)
    limit = min(head.limit, MOST_ROWS, max(1, asked.bound // (2 * _ROW_BYTES)))
    rows, cut = asked.app.store.magazines.list_later_within(
        head.magazine, after=head.after, limit=limit, max_bytes=max(0, asked.bound - limit * _ROW_BYTES)
    )
    return value((rows, cut or len(rows) == limit < head.limit))


def _run_now(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Named)
    count = asked.app.store.magazines.run_now(head.name, as_pointers(runs_in(asked.payload, at)))
    return Reply(RESULT, pack(count), lambda _: asked.app.poke(head.name))


def _cancel_later(asked: Asked) -> Reply:
    head, at = unpack(asked.payload, Named)
    return value(asked.app.store.magazines.cancel_later(head.name, as_pointers(runs_in(asked.payload, at))))


def _delayed(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    magazines = asked.app.store.magazines
    return value((magazines.delayed(head.name), magazines.next_due_ms(head.name)))


def _clock(asked: Asked) -> Reply:
    return value(int(asked.app.store.now_s() * 1e6))


LATER_CALLS: dict[int, Call] = {
    Command.LOAD_LATER: _load_later,
    Command.DEFER: _defer,
    Command.MOVE_DUE: _move_due,
    Command.LIST_LATER: _list_later,
    Command.RUN_NOW: _run_now,
    Command.CANCEL_LATER: _cancel_later,
    Command.DELAYED: _delayed,
    Command.CLOCK: _clock,
}
