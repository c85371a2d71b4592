"""Looking for messages wherever a queue has them: waiting, claimed, delayed or failed. Claims nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ignis.control.inspection import scan_magazine
from ignis.control.queue_depths import shard_states
from ignis.errors import UnreadableMessageError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import Message
from ignis.message_filter import has_headers, has_text
from ignis.storage.base import Store

__all__ = ["Found", "Query", "Search"]

_PAGE, _PAGE_BYTES = 1_000, 8 << 20


class Query(NamedTuple):
    """What is looked for: messages that meet every condition. ``headers`` and ``text``: see `has_headers` and `has_text`."""

    id: str | None = None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    text: str | None = None

    def matches(self, message: Message) -> bool:
        """Raises UnreadableMessageError where headers are asked for that cannot be read."""
        if self.id is not None and message.id != self.id:
            return False
        if self.key is not None and message.key != self.key:
            return False
        if self.text is not None and not has_text(message, self.text):
            return False
        return has_headers(message, self.headers)


class Found(NamedTuple):
    """``state``: ``waiting``, ``in flight``, ``delayed`` or ``sideline``. ``due_ms``: by the store's clock."""

    queue: str
    state: str
    shard: int
    pointer: int
    record: bytes
    due_ms: int | None


class Search:
    """One pass over some queues. It reads every message until it is told to stop: an id has no index.

    Args:
        most: so many messages are looked at.
        progress: told how many more were looked at.
    """

    def __init__(self, store: Store, query: Query, most: int, progress: Callable[[int], None] | None = None) -> None:
        self.looked_at = 0
        self.complete = True
        """False once there were more than it may look at."""
        self._store = store
        self._query = query
        self._most = most
        self._progress = progress

    def in_queue(self, queue: str) -> Iterator[Found]:
        """What is found, as it is found: delayed, then in the queue, then in its sideline; a message mostly moves that way."""
        for place in self._places(queue):
            yield from self._meant(place)

    def some_of_each(self, queue: str, limit: int) -> list[Found]:
        """At most so many of what is found, in the same order, as evenly from each place as they have it: that of many delayed
        messages there is no room for the others is not meant by who only wants to see what is there."""
        places = [self._meant(place) for place in self._places(queue)]
        found: list[list[Found]] = [[] for _ in places]
        going = list(range(len(places)))
        left = limit
        while going and left:
            for at in going[:left]:
                one = next(places[at], None)
                if one is None:
                    going.remove(at)
                else:
                    found[at].append(one)
                    left -= 1
        return [one for some in found for one in some]

    def _meant(self, place: Iterator[Found]) -> Iterator[Found]:
        for found in place:
            if self.looked_at >= self._most:
                self.complete = False
                return
            self.looked_at += 1
            if self._progress is not None and self.looked_at % _PAGE == 0:
                self._progress(_PAGE)
            if self._is_meant(found.record):
                yield found

    def _is_meant(self, record: bytes) -> bool:
        try:
            return self._query.matches(Message.from_bytes(record))
        except UnreadableMessageError:
            return self._query == Query()  # who asks for nothing is shown what is there

    def _places(self, queue: str) -> list[Iterator[Found]]:
        return [self._delayed(queue), self._in_main(queue), self._in_sideline(queue)]

    def _in_main(self, queue: str) -> Iterator[Found]:
        fired = {one.shard: one.fire_pointer for one in shard_states(self._store, queue)}
        for shard, pointer, record in scan_magazine(self._store, queue):
            if record is not None:
                yield Found(
                    queue, "in flight" if pointer <= fired.get(shard, 0) else "waiting", shard, pointer, record, None
                )

    def _in_sideline(self, queue: str) -> Iterator[Found]:
        for shard, pointer, record in scan_magazine(self._store, queue + SIDELINE_SUFFIX):
            if record is not None:
                yield Found(queue, "sideline", shard, pointer, record, None)

    def _delayed(self, queue: str) -> Iterator[Found]:
        magazines = self._store.magazines
        if not magazines.keeps_later or not shard_states(self._store, queue):
            return
        after: tuple[int, int, int] | None = None
        while True:
            page, stopped = magazines.list_later_within(queue, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES)
            for one in page:
                if one.record is not None:
                    yield Found(queue, "delayed", one.shard, one.pointer, one.record, one.due_ms)
            if not page or (len(page) < _PAGE and not stopped):
                return
            after = page[-1][:3]
