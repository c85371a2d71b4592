"""Requests about queues as users know them, and messages that could not be handled. They run in a thread of the
store's."""

from __future__ import annotations

import dataclasses
from typing import Any

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.in_flight import PointerRange, as_pointers
from ignis.broker.protocol.payloads import CreateQueue, DeleteQueue, Nack, Named, QueueList
from ignis.broker.server.application import Application
from ignis.broker.server.calls import RESULT, Asked, Call, Reply, queue_page, value
from ignis.broker.server.peer import Peer
from ignis.broker.server.setting_aside import SettingAside
from ignis.broker.server.state import SidelinedCounts
from ignis.config import check_name
from ignis.errors import BadRequestError, QueueNotFoundError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import MAX_ERROR_CHARS, REASONS
from ignis.pausing import PAUSED
from ignis.queue import Queue
from ignis.storage.base import QueueRecord

__all__ = ["QUEUE_CALLS", "sideline"]


def _record(app: Application, name: str) -> QueueRecord:
    record = app.store.queues.get(check_name(name))
    if record is None:
        raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
    return record


def _described(record: QueueRecord) -> dict[str, Any]:
    out: dict[str, Any] = {**dataclasses.asdict(record), "paused": PAUSED in record.extra}
    for name in ("sweep_pointers", "sideline_sweep_pointers", "extra"):
        del out[name]
    return out


def _create(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, CreateQueue)
    settings = dict(head.settings)
    kind = bytes if settings.get("codec") == "raw" else None
    # A queue object of its own: that of another request may have been made with other settings.
    queue: Queue[Any] = Queue(asked.app.app.context, head.name, kind, settings)
    queue.open()
    asked.app.facts.forget(head.name)
    return value(_described(_record(asked.app, head.name)))


def _delete(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, DeleteQueue)
    names = (head.name, head.name + SIDELINE_SUFFIX)
    try:
        removed = asked.app.store.remove_queue(head.name, force=head.force)
    finally:
        for name in names:
            asked.app.facts.forget(name)

    def poke(_: Peer) -> None:
        """Who waits for its messages finds out now that there is no such queue."""
        for name in names:
            asked.app.poke(name)

    return Reply(RESULT, pack(removed), poke)


def _list(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, QueueList)
    records, cut = queue_page(asked, Command.LIST_QUEUES)
    described = [_described(one) for one in records]
    return value(described if head.after is None else (described, cut))


def _info(asked: Asked) -> Reply:
    head, _ = unpack(asked.payload, Named)
    record = _record(asked.app, head.name)
    magazines = asked.app.store.magazines
    main = magazines.metadata(head.name)
    sideline_states = magazines.metadata(head.name + SIDELINE_SUFFIX)
    figures = {
        "pending": sum(one.pending for one in main),
        "in_flight": sum(one.in_flight for one in main),
        "sideline": sum(one.pending for one in sideline_states),
        "sideline_in_flight": sum(one.in_flight for one in sideline_states),
        "expired": sum(one.expired for one in main) + magazines.expired_later(head.name),
        "sideline_expired": sum(one.expired for one in sideline_states),
        "oldest_enqueued_at_us": magazines.oldest_enqueued_at_us(head.name),
        "delayed": magazines.delayed(head.name),
    }
    return value({**_described(record), **figures})


QUEUE_CALLS: dict[int, Call] = {
    Command.CREATE_QUEUE: _create,
    Command.DELETE_QUEUE: _delete,
    Command.LIST_QUEUES: _list,
    Command.QUEUE_INFO: _info,
}


def sideline(
    app: Application, magazine: str, runs: list[PointerRange], nack: Nack, counts: SidelinedCounts, worker: str = ""
) -> int:
    """Moves what a consumer refused into its queue's sideline, with reason, error and who it was (``worker``) in the envelope,
    and adds to ``counts``; returns how many moved.

    Raises BadRequestError for an unknown reason, or a magazine that has no sideline.
    """
    if nack.reason not in REASONS:
        raise BadRequestError(f"reason {nack.reason!r} is not one of {', '.join(REASONS)}")
    if magazine.endswith(SIDELINE_SUFFIX):
        raise BadRequestError(f"{magazine!r} is a sideline and has none of its own; requeue instead")
    error = nack.error[:MAX_ERROR_CHARS]
    found = app.store.magazines.peek(magazine, as_pointers(runs))
    aside = SettingAside(app.store.magazines, magazine, counts)
    for shard, many in found.items():
        for pointer, record in many.items():
            aside.add(shard, pointer, record, nack.reason, error, worker=worker)
    return aside.move()
