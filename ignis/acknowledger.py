"""The acknowledger of one consumer: what has gathered becomes one delete and one transfer to the sideline per round.

Nothing is lost whatever fails: what could not be acknowledged stays queued here, and claimed in the store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ignis.config import ConsumerSettings
from ignis.errors import ClosedError, ForkedHandleError, IgnisError, StoreFailedError
from ignis.handler import Failure
from ignis.message import REASON_CORRUPT
from ignis.workers import Chunk
from ignis.workers.settling import sideline_items

if TYPE_CHECKING:
    from ignis.queue import Queue

__all__ = ["Acknowledger"]

log = logging.getLogger("ignis.consumer")

_FULL_ENOUGH = 64
"""Runs of outcomes that are worth a transaction without waiting for more."""


class Acknowledger:
    """Thread-safe: any worker adds outcomes, one thread runs `run`.

    Args:
        queue: whose messages they are.
        handler: the handler's name, for the failures.
        settings: see ``ignis.config``.
        counts: where it counts.
        on_room: called when less is unacknowledged than before.
    """

    def __init__(
        self,
        queue: Queue[Any],
        handler: str,
        settings: ConsumerSettings,
        counts: Counter[str],
        on_room: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._settings = settings
        self._counts = counts
        self._on_room = on_room
        self._magazines = queue.main.store
        self._done: deque[tuple[int, Sequence[int]]] = deque()
        self._failures: deque[tuple[Chunk, int, Failure]] = deque()
        self._corrupt: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()  # over unacked
        self._settling = False
        self._until = 0.0
        self._work = threading.Event()
        self.unacked = 0
        """Messages handled and not retired yet: would be handled again if this process died now."""
        self.finishing = threading.Event()

    @property
    def waiting(self) -> bool:
        """Whether any outcome is not stored yet. An outcome passes through what is looked at here in this order, so that
        none is missed on its way from one to the next."""
        return bool(self._done or self._failures or self._corrupt or self.unacked) or self._settling

    @property
    def left(self) -> bool:
        """Whether outcomes are queued."""
        return bool(self._done or self._failures or self._corrupt)

    def add_done(self, chunk: Chunk, start: int, count: int) -> None:
        with self._lock:
            self.unacked += count
        self._done.extend(chunk.places(start, start + count))
        self._work.set()

    def add_failed(self, chunk: Chunk, index: int, failure: Failure) -> None:
        self._failures.append((chunk, index, failure))
        self._work.set()

    def add_corrupt(self, shard: int, pointer: int) -> None:
        self._corrupt.append((shard, pointer))
        self._work.set()

    def finish(self, until: float) -> None:
        """Lets `run` end once everything is stored. ``until``: monotonic time up to which what fails is tried again."""
        self._until = until
        self.finishing.set()
        self._work.set()

    def run(self) -> None:
        """Until `finish`. Raises what cannot be tried again."""
        retry_at = 0.0
        while True:
            last = self.finishing.is_set()
            if not last:
                self._work.wait(0.5)
                if self._settings.ack_linger_s and len(self._done) < _FULL_ENOUGH:
                    self.finishing.wait(self._settings.ack_linger_s)
            self._work.clear()
            if time.monotonic() >= retry_at or last:
                try:
                    self._round()
                except (ClosedError, ForkedHandleError, StoreFailedError):
                    raise
                except IgnisError as exc:
                    self._counts["ack_errors"] += 1
                    log.warning("acknowledgement on %s failed, trying again: %s", self._queue.name, exc)
                    retry_at = time.monotonic() + self._settings.ack_retry_s
                    self._work.set()
                    if not last:
                        self.finishing.wait(self._settings.ack_retry_s)
                    elif exc.retryable and retry_at < self._until:
                        time.sleep(self._settings.ack_retry_s)
                        continue
            if last:
                return

    def _round(self) -> None:
        """One delete and one transfer for everything that has gathered."""
        self._settling = True
        try:
            self._settle_done()
            self._settle_failed()
        finally:
            self._settling = False

    def _settle_done(self) -> None:
        taken = [self._done.popleft() for _ in range(len(self._done))]
        if not taken:
            return
        pointers: dict[int, list[int]] = {}
        for shard, some in taken:
            pointers.setdefault(shard, []).extend(some)
        asked = sum(map(len, pointers.values()))
        try:
            gone = self._magazines.delete(self._queue.main.name, pointers)
        except BaseException:
            self._done.extendleft(reversed(taken))
            raise
        with self._lock:
            self.unacked -= asked
        self._on_room()
        self._counts["handled"] += asked
        self._counts["late_acks"] += asked - gone
        if self._queue.app.hooks.after_handling:
            self._queue.app.hooks.handled(self._queue.name, gone, 0)

    def _settle_failed(self) -> None:
        queue = self._queue
        failures = [self._failures.popleft() for _ in range(len(self._failures))]
        corrupt = [self._corrupt.popleft() for _ in range(len(self._corrupt))]
        if not failures and not corrupt:
            return
        items = sideline_items(queue.main.name, self._handler, failures, corrupt)
        try:
            moved = self._magazines.transfer(
                queue.main.name, queue.sideline.name, items, queue.settings.message_expiry_s
            )
        except BaseException:
            self._failures.extendleft(reversed(failures))
            self._corrupt.extendleft(reversed(corrupt))
            raise
        for _, _, failure in failures:
            self._counts[f"sidelined_{failure.reason}"] += 1
        if corrupt:
            self._counts[f"sidelined_{REASON_CORRUPT}"] += len(corrupt)
        self._counts["sidelined"] += moved
        self._counts["late_acks"] += len(items) - moved
        if queue.app.hooks.after_handling:
            queue.app.hooks.handled(queue.name, 0, moved)
