"""What is remembered of the store's magazines and queues, so that it is not asked for each request. Any thread."""

from __future__ import annotations

import itertools
import threading
import time
from typing import NamedTuple

from ignis.errors import QueueNotFoundError
from ignis.magazine import SIDELINE_SUFFIX
from ignis.pausing import PAUSED
from ignis.storage.base import QueueRecord, Store

__all__ = ["Known", "QueueFacts"]

_RECORD_S = 5.0


class Known(NamedTuple):
    """What is remembered of a magazine, and how long it is good (monotonic). Of its queue perhaps nothing is."""

    shards: int
    ttl_ms: int | None
    until_s: float


class QueueFacts:
    """Remembers shards for good, and a queue's settings for five seconds. Thread-safe.

    Args:
        store: the application's.
    """

    def __init__(self, store: Store) -> None:
        self.known_paused: set[str] = set()
        """The queues whose messages somebody waits for and that were found paused. Belongs to the event loop."""
        self._store = store
        self.turn = itertools.count()
        """Rises with every batch that has no shard of its own."""
        self.forgotten = 0
        """Rises when a magazine may have been made anew: what was counted of it before means nothing then."""
        self.remembered: dict[str, Known] = {}
        """What `known` found. Always the same dict; what is too old stays until `tidy`."""
        self._lock = threading.Lock()  # over those below
        self._shards: dict[str, int] = {}
        self._records: dict[str, tuple[float, QueueRecord | None]] = {}

    def next_shard(self) -> int:
        """See `turn`."""
        return next(self.turn)

    def remembers(self, magazine: str) -> bool:
        """Whether `shards` would answer from memory."""
        return magazine in self._shards

    def known(self, magazine: str) -> Known | None:
        """What `shards` and `ttl_ms` would answer from memory; None when the store would have to be asked for the shards."""
        found = self.remembered.get(magazine)
        if found is not None and time.monotonic() <= found.until_s:
            return found
        with self._lock:
            shards = self._shards.get(magazine)
            if shards is None:
                return None
            at_s, record = self._records.get(magazine.removesuffix(SIDELINE_SUFFIX), (0.0, None))
            now_s = time.monotonic()
            found = Known(shards, None, now_s + _RECORD_S)
            if record is not None and now_s <= at_s + _RECORD_S:
                found = Known(shards, record.message_expiry_s * 1000, at_s + _RECORD_S)
            self.remembered[magazine] = found
            return found

    def shards(self, magazine: str, *, fresh: bool = False) -> int:
        """Returns the facts of the magazine, from memory unless ``fresh``. Raises QueueNotFoundError."""
        with self._lock:
            known = self._shards.get(magazine)
        if known is None or fresh:
            known = len(self._store.magazines.metadata(magazine))
            with self._lock:
                self.remembered.pop(magazine, None)
                self._shards[magazine] = known
        return known

    def ttl_ms(self, magazine: str) -> int:
        """The time to live that the magazine's queue gives its messages. Raises QueueNotFoundError."""
        record = self.record(magazine)
        if record is None:
            raise QueueNotFoundError(f"magazine {magazine!r} belongs to no queue; give a time to live")
        return record.message_expiry_s * 1000

    def record(self, magazine: str) -> QueueRecord | None:
        """The stored queue that a magazine belongs to, as it was at most five seconds ago."""
        name = magazine.removesuffix(SIDELINE_SUFFIX)
        with self._lock:
            at_s, record = self._records.get(name, (0.0, None))
        if record is None or time.monotonic() - at_s > _RECORD_S:
            record = self._store.queues.get(name)
            with self._lock:
                self._records[name] = time.monotonic(), record
                self.remembered.pop(name, None)
                self.remembered.pop(name + SIDELINE_SUFFIX, None)
        return record

    def paused(self, magazine: str) -> bool:
        """Whether nothing is to be delivered of it, as it was at most five seconds ago. Its sideline goes on."""
        record = None if magazine.endswith(SIDELINE_SUFFIX) else self.record(magazine)
        return record is not None and PAUSED in record.extra

    def forget(self, magazine: str) -> None:
        """After a change of its declaration or its queue."""
        with self._lock:
            self.remembered.pop(magazine, None)
            self._shards.pop(magazine, None)
            self._records.pop(magazine.removesuffix(SIDELINE_SUFFIX), None)
            self.forgotten += 1

    def tidy(self) -> None:
        """Forgets what is too old: names come from clients."""
        now_s = time.monotonic()
        with self._lock:
            self._records = {name: one for name, one in self._records.items() if now_s - one[0] <= _RECORD_S}
            for name in [name for name, one in self.remembered.items() if now_s > one.until_s]:
                del self.remembered[name]
