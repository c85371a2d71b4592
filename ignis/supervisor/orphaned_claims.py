"""Gives back what dead worker processes held, in a thread of its own: a store that is slow must not keep the supervisor
from watching the living."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from ignis.control.redelivery import Aside, Recovered, recover_owner
from ignis.errors import IgnisError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.stacks import start_thread
from ignis.storage.base import Store
from ignis.upkeep import outlast

__all__ = ["OrphanedClaims"]

log = logging.getLogger("ignis.supervisor")

_RETRY_S = 1.0


class OrphanedClaims:
    """What dead owners had claimed, given back one owner after the other. Thread-safe.

    Args:
        store: opens it, or returns the opened one.
        on_aside: called with how many messages of a dead owner were set aside, by queue and reason.
    """

    def __init__(self, store: Callable[[], Store], on_aside: Callable[[Aside], None]) -> None:
        self._store = store
        self._on_aside = on_aside
        self._todo: deque[tuple[str, str]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._said = LimitedLog(log)
        self._thread: threading.Thread | None = None
        self.total = Recovered()

    def give_back(self, owner: str, why: str) -> None:
        """``owner`` is dead; what it had claimed is given back soon."""
        with self._changed:
            self._todo.append((owner, why))
            self._changed.notify_all()
            if self._thread is not None:
                return
            thread = self._thread = threading.Thread(
                target=outlast, args=(log, self._loop), name="ignis-orphaned-claims", daemon=True
            )
        try:
            start_thread(thread)
        except BaseException:
            self._thread = None
            raise

    def wait_done(self, timeout: float) -> bool:
        """Waits until all of it is given back; False when that takes longer. What is left then is the sweeper's."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._todo, timeout)

    def close(self) -> None:
        """Ends after the one at hand. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(5.0)

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self._closing)
                if self._closing:
                    return
                owner, why = self._todo[0]
            began, found = time.monotonic(), Recovered()
            try:
                try:
                    recover_owner(self._store(), owner, why, found)
                finally:
                    self._count(found)
            except IgnisError as exc:
                later = "tried again" if exc.retryable else "left to the sweeper"
                self._said.warning(
                    event_text("dead_process_waits", "what %s held cannot be given back now and is %s: %s"),
                    owner,
                    later,
                    exc,
                    about=owner,
                )
                if exc.retryable:
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, _RETRY_S)
                    continue
            except Exception:
                log.exception(event_text("dead_process_left", "what %s held is left to the sweeper"), owner)
            else:
                if found.sidelined or found.returned:  # else there is nothing to say beside its end
                    log.warning(
                        event_text(
                            "dead_process_recovered",
                            "%s is dead (%s): %d message(s) that it held are in the sideline now, %d are back there that it "
                            "was shovelling, after %.3f s"),
                        owner, why, found.sidelined, found.returned, time.monotonic() - began,
                    )  # fmt: skip
            with self._changed:
                self._todo.popleft()
                self._changed.notify_all()

    def _count(self, found: Recovered) -> None:
        self.total.sidelined += found.sidelined
        self.total.returned += found.returned
        self._on_aside(found.aside)
