"""Whether a queue that is in use here is still in the store."""

from __future__ import annotations

import time
from collections.abc import Callable

from ignis.errors import IgnisError, QueueNotFoundError, QueueRemovedError, StoreTimeoutError, StoreUnreachableError
from ignis.storage.base import QueueStore

__all__ = ["Registration"]


class Registration:
    """Knows whether one queue that this process uses is still in the store. Thread-safe.

    A removed queue's messages would be acknowledged and handled by nobody. Where the store has no magazine of it any more
    every load fails at once. Where only its record is gone, as after `QueueStore.remove` or the record's end on Aerospike,
    the look of `check` finds out.

    Args:
        queues: gives the store's queues.
        name: of the queue.
        every_s: seconds between two looks; so long a removal may stay unseen.
    """

    def __init__(self, queues: Callable[[], QueueStore], name: str, every_s: float) -> None:
        self._queues = queues
        self._name = name
        self._every_s = every_s
        self.due_s = 0.0
        """When `check` asks the store again, by ``time.monotonic``. Before that it only looks at `removed`."""
        self._found = False
        self.removed = False
        self.on_shards: Callable[[], object] = lambda: None
        """Called when a look finds another number of shards than the one before."""
        self._shards = 0

    def opened(self) -> None:
        """The queue was found in the store, or registered there, just now."""
        self._found, self.removed = True, False
        self.due_s = time.monotonic() + self._every_s

    def note_removed(self) -> None:
        """Somebody found out."""
        self.removed = self._found
        self.due_s = time.monotonic() + self._every_s

    def check(self) -> None:
        """Before messages are stored; asks the store now and then. Raises QueueRemovedError, StoreUnreachableError,
        StoreTimeoutError."""
        if self._found and time.monotonic() >= self.due_s:
            try:
                self._look(self._queues())
            except (StoreTimeoutError, StoreUnreachableError):
                raise  # the load that follows would wait for it as long again
            except IgnisError:
                pass  # the load that follows says what is wrong with the store
        if self.removed:
            raise self.error()

    def _look(self, queues: QueueStore) -> None:
        self.due_s = time.monotonic() + self._every_s
        if not queues.tells_removed:
            self.removed = False  # the load that follows finds out
            return
        record = queues.look(self._name)
        self.removed = record is None
        if record is not None and record.shards != self._shards:
            self._shards = record.shards
            self.on_shards()

    def explain(self, exc: BaseException) -> BaseException:
        """What to raise for an error of a load: QueueRemovedError where the queue is gone."""
        if not self._found or type(exc) is not QueueNotFoundError:
            return exc
        self.note_removed()
        error = self.error()
        error.__cause__ = exc
        return error

    def error(self) -> QueueRemovedError:
        return QueueRemovedError(
            f"queue {self._name!r} was removed from the store: nothing was stored. open() of the queue makes it anew"
        )
