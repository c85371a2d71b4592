"""Reading queues out of a store as the lines of a dump. Claims nothing and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ignis._version import __version__
from ignis.control.inspection import scan_magazine
from ignis.control.queue_depths import shard_states
from ignis.deadlines import ON_EXPIRY, on_expiry_of
from ignis.dump.lines import FORMAT, VERSION, End, Head, Line, MessageLine, Place, QueueLine, line_of_record
from ignis.magazine import SIDELINE_SUFFIX
from ignis.shovel_rounds import SHOVEL_RETRY, shovel_retry_of
from ignis.storage.base import QueueRecord, ShardState, Store
from ignis.storage.later import later_of

__all__ = ["SETTINGS", "Dumped", "dump_queues", "magazine_of", "settings_of"]

SETTINGS = (
    "shards", "durability", "codec", "message_expiry_s", "queue_expiry_s", "stuck_after_s", "shovel_interval_s",
    "shovel_concurrency", "max_returns", "handler_type", "concurrency", "max_batch_size", "max_wait_s",
)  # fmt: skip
"""Of a stored queue: what the queue in another store is made with. Not what others do with it at the moment, such as a pause."""

_PAGE_BYTES = 8 << 20
_MOST = 1_000


class Dumped:
    """What was dumped so far. ``corrupt``: records that do not match their checksum, of which nothing can be dumped."""

    def __init__(self) -> None:
        self.messages = 0
        self.corrupt = 0
        self.changed: list[str] = []


def settings_of(record: QueueRecord) -> dict[str, object]:
    """As the queue's line has them."""
    kept: dict[str, object] = {name: getattr(record, name) for name in SETTINGS}
    return {**kept, ON_EXPIRY: on_expiry_of(record), SHOVEL_RETRY: shovel_retry_of(record)}


def magazine_of(queue: str, place: Place) -> str:
    """The name of the magazine in which messages of the queue are."""
    return {"main": queue, "later": later_of(queue), "sideline": queue + SIDELINE_SUFFIX}[place]


def dump_queues(store: Store, records: Sequence[QueueRecord], places: Sequence[Place], done: Dumped) -> Iterator[Line]:
    """The lines of these queues, the first and the last among them; memory for a page of about 8 MiB.

    What comes behind a shard's tail after its magazine was begun is left out, so that it ends while others publish. What is
    claimed is in the dump as well: it was not finished.
    """
    yield Head(FORMAT, VERSION, __version__, int(time.time() * 1000))
    for record in records:
        before = _states(store, record.name)
        yield QueueLine(record.name, settings_of(record))
        for place in places:
            read = _delayed if place == "later" else _stored
            yield from read(store, record.name, place, done)
        if _states(store, record.name) != before:
            done.changed.append(record.name)
    yield End(done.messages, done.changed)


def _states(store: Store, queue: str) -> list[list[ShardState]]:
    return [shard_states(store, magazine_of(queue, place)) for place in ("main", "later", "sideline")]


def _stored(store: Store, queue: str, place: Place, done: Dumped) -> Iterator[MessageLine]:
    for shard, _, data in scan_magazine(store, magazine_of(queue, place)):
        if (line := _line(done, queue, place, shard, data, None)) is not None:
            yield line


def _delayed(store: Store, queue: str, place: Place, done: Dumped) -> Iterator[MessageLine]:
    magazines = store.magazines
    if not magazines.keeps_later or not shard_states(store, queue):
        return
    # Once: two looks at the clocks differ, and messages that are due together would be no more.
    ahead_ms = round((store.now_s() - store.wall_s()) * 1000)
    after: tuple[int, int, int] | None = None
    while True:
        page, stopped = magazines.list_later_within(queue, after=after, limit=_MOST, max_bytes=_PAGE_BYTES)
        for one in page:
            if (line := _line(done, queue, place, one.shard, one.record, one.due_ms - ahead_ms)) is not None:
                yield line
        if not page or (len(page) < _MOST and not stopped):
            return
        after = page[-1][:3]


def _line(
    done: Dumped, queue: str, place: Place, shard: int, data: bytes | None, due_at_ms: int | None
) -> MessageLine | None:
    if data is None:
        done.corrupt += 1
        return None
    done.messages += 1
    return line_of_record(queue, place, shard, data, None if due_at_ms is None else max(0, due_at_ms))
