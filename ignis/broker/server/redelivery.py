"""Messages that a lost connection held: one of them may be what killed its client.

Each counts one crash more, in its envelope, so that the count survives the broker and is the same at every broker of a
cluster. A message that was held by too many lost connections goes to its queue's sideline, reason ``crash``, instead of
killing one client after the other, and so does one whose envelope cannot be read, reason ``unreadable``; the others are
pending again, at their shards' tails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ignis.broker.protocol.in_flight import Run, as_pointers
from ignis.errors import UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_CRASH, corrupt_record, failed_record, is_readable
from ignis.native import Record
from ignis.storage.base import Transfer
from ignis.storage.parts import transfer_all

if TYPE_CHECKING:
    from ignis.broker.server.application import Application

__all__ = ["count_crash"]

_BATCH = 128
"""Messages rewritten in one transaction: each may have the size of the largest."""


def count_crash(app: Application, magazine: str, runs: list[Run]) -> int:
    """Gives the runs back with one crash more each, or sets them aside; returns how many were set aside. In a thread of the
    store's; durable on return. What was moved by an earlier try that failed half way is left alone.

    A time to live goes on, as with every move to a sideline.

    Args:
        app: whose store.
        magazine: claimed from. One that belongs to no queue, and a sideline, have nowhere to set aside to: there
            everything is only given back.
        runs: claimed by this broker, and no longer held by anybody.

    Raises:
        QueueNotFoundError: the magazine was dropped. StoreError.
    """
    magazines = app.store.magazines
    limit = app.broker.settings.max_crashes
    record = None if magazine.endswith(SIDELINE_SUFFIX) else app.record(magazine)
    if not limit or record is None:
        magazines.reload(magazine, as_pointers(runs))
        return 0
    set_aside = 0
    for part in _parts(runs):
        back: list[Transfer] = []
        aside: list[Transfer] = []
        for shard, many in magazines.peek(magazine, as_pointers(part)).items():
            for pointer, data in many.items():
                crashes = limit if data is None else _crashes(data) + 1
                why = f"held by {crashes} connection(s) that were lost"
                fresh = (
                    corrupt_record(magazine, shard, pointer)
                    if data is None
                    else failed_record(data, REASON_CRASH, why, crashed=True)
                )
                # Whoever cannot read its envelope cannot count either: it does not come back for ever.
                unreadable = data is not None and not is_readable(data)
                (aside if unreadable or crashes >= limit else back).append(Transfer(shard, pointer, fresh, shard))
        if back:
            transfer_all(back, lambda some: magazines.transfer(magazine, magazine, some))
        if aside:
            set_aside += transfer_all(
                aside, lambda some: magazines.transfer(magazine, magazine + SIDELINE_SUFFIX, some)
            )
    return set_aside


def _crashes(data: bytes) -> int:
    try:
        return Record(data).crashes
    except UnreadableMessageError:
        return 0


def _parts(runs: list[Run]) -> Iterator[list[Run]]:
    """The runs in pieces of at most `_BATCH` pointers."""
    part: list[Run] = []
    room = _BATCH
    for shard, start, stop in runs:
        low = start
        while low < stop:
            high = min(stop, low + room)
            part.append((shard, low, high))
            room -= high - low
            low = high
            if not room:
                yield part
                part, room = [], _BATCH
    if part:
        yield part
