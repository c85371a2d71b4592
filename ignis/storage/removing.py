"""Removing a queue with its magazines: part of the storage contract."""

from __future__ import annotations

from typing import Protocol

from ignis.errors import QueueNotEmptyError, QueueNotFoundError
from ignis.storage.records import QueueRecord, ShardState

__all__ = ["remove_queue"]

_SIDELINE = "_SIDELINE"


class _Magazines(Protocol):
    """What of a `MagazineStore` is needed here."""

    def metadata(self, magazine: str) -> list[ShardState]: ...

    def declare(self, magazine: str, shards: int, durability: str = ...) -> None: ...

    def drop(self, magazine: str, *, only_empty: bool = ...) -> bool: ...

    def delayed(self, magazine: str) -> int: ...


class _Queues(Protocol):
    """What of a `QueueStore` is needed here."""

    def get(self, name: str) -> QueueRecord | None: ...

    def remove(self, name: str) -> bool: ...


def remove_queue(magazines: _Magazines, queues: _Queues, name: str, force: bool) -> bool:
    """See `Store.remove_queue`."""
    record = queues.get(name)
    main, sideline = name, name + _SIDELINE
    counts = {one: _messages(magazines, one) for one in (main, sideline)}
    if record is None and all(one is None for one in counts.values()):
        raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
    held = sum(one or 0 for one in counts.values())
    if held and not force:
        raise QueueNotEmptyError(name, held)
    for magazine in (sideline, main):
        if not magazines.drop(magazine, only_empty=not force):
            if magazine == main and record is not None:
                # It got a message since it was looked at: all is as it was.
                magazines.declare(sideline, record.shards, record.durability)
            raise QueueNotEmptyError(name, _messages(magazines, magazine) or 1)
    return queues.remove(name)


def _messages(magazines: _Magazines, magazine: str) -> int | None:
    """Waiting, delayed and claimed; None when there is no such magazine."""
    try:
        held = sum(one.pending + one.in_flight for one in magazines.metadata(magazine))
        return held if magazine.endswith(_SIDELINE) else held + magazines.delayed(magazine)
    except QueueNotFoundError:
        return None
