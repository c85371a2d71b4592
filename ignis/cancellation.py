"""Cancelling a message by its id, wherever it is: what waits is removed, and who handles it is told.

The request for one that is being handled is an entry in the queue's record. Consumers look there once a second, while anything
has been with them for longer than that: quick messages cost nothing. An entry is removed by the consumer that had the message,
or grows old.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

from ignis.clearing import delete_matching, match_messages
from ignis.errors import IgnisError, UnreadableMessageError
from ignis.later import Later
from ignis.message import message_id
from ignis.native import Record
from ignis.storage.base import MagazineStore, QueueRecord, QueueStore, Store

__all__ = ["CANCEL", "Cancelled", "cancel_message", "forget_former_requests", "forget_requests", "requests_of"]

CANCEL = "cancel"
"""Where the stored queue keeps in its ``extra`` which running messages are to end: id -> when that was asked, in ms."""

Cancelled = Literal["delayed", "waiting", "running"]

_MOST = 100
_AGE_MS = 86_400_000
_FAR_MS = 1 << 53
_LOOKS = 8
_LOOK_AGAIN_S = 2.0
"""No further look is begun after so long."""
_SPARE = 1_000
"""More claims than were counted may have been made meanwhile."""


def cancel_message(store: Store, queue: str, id: Any) -> Cancelled | None:
    """See `Queue.cancel`."""
    wanted = message_id(id)
    until, moved = time.monotonic() + _LOOK_AGAIN_S, _moved(store.magazines, queue)
    for _ in range(_LOOKS):
        if (found := _cancel_once(store, queue, wanted)) is not None or time.monotonic() > until:
            return found
        # One that is tried again at once goes round while it is looked for. Where nothing has moved meanwhile, it is not there.
        before, moved = moved, _moved(store.magazines, queue)
        if moved == before:
            return None
    return None


def _moved(magazines: MagazineStore, queue: str) -> list[tuple[int, int]]:
    """By shard how far it was loaded and claimed ever: what goes round is both."""
    return [(state.load_pointer, state.fire_pointer) for state in magazines.metadata(queue)]


def _cancel_once(store: Store, queue: str, wanted: str) -> Cancelled | None:
    # In the order in which a message moves: what is on its way meanwhile is met at the next place.
    if _cancel_delayed(store, queue, wanted):
        return "delayed"
    if delete_matching(store.magazines, queue, match_messages([wanted], None), limit=1).deleted:
        return "waiting"
    if _is_claimed(store.magazines, queue, wanted):
        _request(store.queues, queue, wanted)
        return "running"
    return (
        "delayed" if _cancel_delayed(store, queue, wanted) else None
    )  # it may have failed, and wait for its next attempt


def _cancel_delayed(store: Store, queue: str, id: str) -> bool:
    return store.magazines.keeps_later and bool(Later(store, queue).cancel(id))


def _is_claimed(magazines: MagazineStore, queue: str, id: str) -> bool:
    match = match_messages([id], None)
    return any(
        match(one.record)
        for state in magazines.metadata(queue)
        if state.in_flight
        for one in magazines.abandoned(queue, state.shard, _FAR_MS, state.in_flight + _SPARE)
    )


def _request(queues: QueueStore, queue: str, id: str) -> None:
    now_ms = time.time_ns() // 1_000_000

    def change(record: QueueRecord) -> None:
        kept = {one: at for one, at in _entries(record).items() if now_ms - at < _AGE_MS and one != id}
        newest = sorted(kept.items(), key=lambda entry: entry[1])[-(_MOST - 1) :]
        record.extra[CANCEL] = {**dict(newest), id: now_ms}

    queues.update(queue, change)


def _entries(record: QueueRecord) -> dict[str, int]:
    """Another version, or another program, may have written there."""
    found = record.extra.get(CANCEL)
    if not isinstance(found, dict):
        return {}
    return {id: at for id, at in found.items() if isinstance(id, str) and isinstance(at, int)}


def requests_of(record: QueueRecord) -> frozenset[bytes]:
    """The ids of the messages that are to end."""
    found = set()
    for id in _entries(record):
        with suppress(ValueError):
            found.add(UUID(id).bytes)
    return frozenset(found)


def forget_former_requests(queues: QueueStore, queue: str, records: Iterable[bytes]) -> None:
    """Before these come back from the sideline: what was asked of an earlier delivery is not asked of the next. Whoever was to
    tell it may have died with it. Raises the store's error."""
    record = queues.get(queue)
    wanted = frozenset() if record is None else requests_of(record)
    if not wanted:
        return
    former = set()
    for data in records:
        with suppress(UnreadableMessageError):
            former.add(Record(data).id)
    if former & wanted:
        forget_requests(queues, queue, former & wanted)


def forget_requests(queues: QueueStore, queue: str, ids: Iterable[bytes]) -> None:
    """Their messages are accounted for. What the store refuses grows old."""
    gone = {str(UUID(bytes=id)) for id in ids}

    def change(record: QueueRecord) -> None:
        left = {id: at for id, at in _entries(record).items() if id not in gone}
        if left:
            record.extra[CANCEL] = left
        else:
            record.extra.pop(CANCEL, None)

    with suppress(IgnisError):
        queues.update(queue, change)
