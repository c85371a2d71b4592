"""Removing messages that nobody is to handle: all of a magazine, or those that are looked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from ignis.config import check_whole, shown
from ignis.errors import ConfigError, IgnisError, StoreFullError, UnreadableMessageError
from ignis.message import Message, message_id
from ignis.storage.base import MagazineStore
from ignis.storage.purging import PURGE_BATCH

__all__ = ["Deleted", "Purged", "delete_matching", "match_messages", "purge"]

_PAGE = 1_000
_PAGE_BYTES = 8 << 20
_PAST = 1 << 62

Match = Callable[["bytes | None"], bool]
"""Whether a stored record is meant; None is one that does not match its checksum."""
Progress = Callable[[int], None]


class _Removed:
    """How many messages the transactions of one call have removed so far. What ends its block says so."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _Removed:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if not self.count or exc is None:
            return
        if isinstance(exc, IgnisError):
            exc.tell_of_removed(self.count)
            return
        with contextlib.suppress(Exception):  # of `where`, or of who ends the call; some errors take no attributes
            exc.removed_messages = self.count  # type: ignore[attr-defined]
            if hasattr(exc, "add_note"):  # from Python 3.11 on
                exc.add_note(f"{self.count:,} messages were removed before")


class Purged(NamedTuple):
    """How many messages a purge removed: of those that waited, and of those that somebody had claimed."""

    waiting: int
    in_flight: int


class Deleted(NamedTuple):
    """How many messages were removed (in a dry run: would have been), of how many that were looked at."""

    deleted: int
    looked_at: int


def purge(magazines: MagazineStore, name: str, *, in_flight: bool = False, progress: Progress | None = None) -> Purged:
    """Removes what is in a magazine when the call begins, 10,000 messages a transaction, fewer on a full disk.

    ``progress`` is called after each with how many it removed. Raises QueueNotFoundError and the store's errors: what was
    removed by then is gone, and counted as their ``removed_messages``."""
    with _Removed() as removed:
        return _purge(magazines, name, in_flight, progress, removed)


def _purge(
    magazines: MagazineStore, name: str, in_flight: bool, progress: Progress | None, removed: _Removed
) -> Purged:
    limit = PURGE_BATCH
    waiting = claimed = 0
    left = None
    while True:
        try:
            step = magazines.purge(name, limit, in_flight=in_flight, left=left)
        except StoreFullError:  # deletes need pages too: a smaller transaction may have them, and frees more
            if limit == 1:
                raise
            limit = max(1, limit // 4)
            continue
        waiting, claimed, left = waiting + step.waiting, claimed + step.in_flight, step.left
        removed.count = waiting + claimed
        if progress is not None:
            progress(step.waiting + step.in_flight)
        if not step.left:
            return Purged(waiting, claimed)


def match_messages(ids: Iterable[Any] | None, where: Callable[[Message], object] | None) -> Match:
    """Of messages with one of these ids, for which ``where`` is true. Raises ConfigError when neither is given."""
    if ids is None and where is None:
        raise ConfigError("give ids, where or both; all messages are for purge()")
    if where is not None and not callable(where):
        raise ConfigError(f"where is not callable: {shown(where)}")
    wanted = None if ids is None else _ids(ids)

    def match(record: bytes | None) -> bool:
        if record is None:
            return False
        try:
            message = Message.from_bytes(record)
            if wanted is not None and message.id not in wanted:
                return False
            return where is None or bool(where(message))
        except UnreadableMessageError:
            return False

    return match


def _ids(given: Iterable[Any]) -> frozenset[str]:
    if isinstance(given, (str, bytes, UUID)) or not isinstance(given, Iterable):
        raise ConfigError(f"ids = {shown(given)} is not a list of message ids")
    return frozenset(message_id(one) for one in given)


def delete_matching(
    magazines: MagazineStore,
    name: str,
    match: Match,
    *,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Deleted:
    """Looks through what waits in a magazine when the call begins, and removes what matches, a page of 1,000 at a time.

    It reads every waiting message once, in order of shards and pointers. What somebody claims meanwhile stays his. Raises the
    store's errors and those of ``match``: what was removed by then is gone, and counted as their ``removed_messages``.
    """
    if limit is not None:
        check_whole(limit, "limit", 0)
    with _Removed() as removed:
        return _delete_matching(magazines, name, match, limit, dry_run, progress, removed)


def _delete_matching(
    magazines: MagazineStore,
    name: str,
    match: Match,
    limit: int | None,
    dry_run: bool,
    progress: Progress | None,
    removed: _Removed,
) -> Deleted:
    ends = {one.shard: one.load_pointer for one in magazines.metadata(name)}
    after: dict[int, int] = {}
    deleted = looked_at = 0
    while limit is None or deleted < limit:
        page, cut = magazines.scan_within(name, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES, pending_only=True)
        found: dict[int, list[int]] = {}
        count = 0
        for shard, pointer, record in page:
            if pointer > ends.get(shard, 0):
                after[shard] = _PAST  # loaded since: those who publish must not keep this going for ever
            if after.get(shard, 0) == _PAST:
                continue
            after[shard] = pointer
            looked_at += 1
            if (limit is None or deleted + count < limit) and match(record):
                found.setdefault(shard, []).append(pointer)
                count += 1
        if found:
            if dry_run:
                deleted += count
            else:
                deleted = removed.count = deleted + magazines.delete_waiting(name, found)
        if progress is not None:
            progress(len(page))
        if len(page) < _PAGE and not cut:
            break
    return Deleted(deleted, looked_at)
