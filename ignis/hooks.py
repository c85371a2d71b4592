"""Callbacks after messages were stored and after they were handled: for scaling and counting of one's own.

They are called once per batch, in the thread that stored or acknowledged it, after the store has said yes. What they
raise is logged and goes no further. Without any a batch costs one look at an empty tuple.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["AfterHandling", "AfterPublish", "Hooks"]

log = logging.getLogger("ignis.hooks")

AfterPublish = Callable[[str, int], object]
"""``fn(queue, count)``: so many messages of the queue are durable, as its setting promises."""

AfterHandling = Callable[[str, int, int], object]
"""``fn(queue, handled, sidelined)``: so many were handled or dropped and are gone, so many are in the sideline."""


class Hooks:
    """The callbacks of one application. Thread-safe; may be added at any time."""

    def __init__(self) -> None:
        self.after_publish: tuple[AfterPublish, ...] = ()
        self.after_handling: tuple[AfterHandling, ...] = ()
        self._lock = threading.Lock()

    def add_after_publish(self, fn: AfterPublish) -> None:
        with self._lock:
            self.after_publish = (*self.after_publish, fn)

    def add_after_handling(self, fn: AfterHandling) -> None:
        with self._lock:
            self.after_handling = (*self.after_handling, fn)

    def published(self, queue: str, count: int) -> None:
        for fn in self.after_publish:
            try:
                fn(queue, count)
            except Exception:
                log.exception("after_publish hook failed for %d message(s) of %s", count, queue)

    def handled(self, queue: str, handled: int, sidelined: int) -> None:
        for fn in self.after_handling:
            try:
                fn(queue, handled, sidelined)
            except Exception:
                log.exception("after_handling hook failed for %d message(s) of %s", handled + sidelined, queue)
