"""Removing a queue with its magazines: part of the storage contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignis.errors import QueueNotEmptyError, QueueNotFoundError

if TYPE_CHECKING:
    from ignis.storage.base import Store

__all__ = ["remove_queue"]

_SIDELINE = "_SIDELINE"


def remove_queue(store: Store, name: str, force: bool) -> bool:
    """See `Store.remove_queue`."""
    record = store.queues.get(name)
    main, sideline = name, name + _SIDELINE
    counts = {one: _messages(store, one) for one in (main, sideline)}
    if record is None and all(one is None for one in counts.values()):
        raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
    held = sum(one or 0 for one in counts.values())
    if held and not force:
        raise QueueNotEmptyError(name, held)
    for magazine in (sideline, main):
        if not store.magazines.drop(magazine, only_empty=not force):
            if magazine == main and record is not None:
                # It got a message since it was looked at: all is as it was.
                store.magazines.declare(sideline, record.shards, record.durability)
            raise QueueNotEmptyError(name, _messages(store, magazine) or 1)
    return store.queues.remove(name)


def _messages(store: Store, magazine: str) -> int | None:
    """Waiting and claimed; None when there is no such magazine."""
    try:
        return sum(one.pending + one.in_flight for one in store.magazines.metadata(magazine))
    except QueueNotFoundError:
        return None
