"""One thread for all who wait for a load without a thread of their own: `MagazineStore.on_load`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable

from ignis.errors import ClosedError, ForkedHandleError, IgnisError, WaitTimeoutError
from ignis.hooks import call_user_code
from ignis.log_format import event_text
from ignis.native.store import Log, move_due, next_due
from ignis.stacks import start_thread
from ignis.storage.clock import StoreClock
from ignis.storage.later import MOVE_LIMIT
from ignis.storage.os_errors import without_means
from ignis.upkeep import outlast

__all__ = ["Listener"]

log = logging.getLogger("ignis.storage")

_LOOK_S = 1.0
"""So often it looks for what was loaded by somebody who died before he rang."""

_SOON_S = 0.001
"""What is due and could not be moved is tried again after that."""

_LOAD_COUNTER, _FIRE_COUNTER = 2, 3
"""Of `Log.shards`."""

_Wish = tuple[int, int, Callable[[], None], int]
"""(number of the magazine, what it was at, call, number of the wish)."""


class Listener:
    """Calls back when a magazine of one log was loaded. Thread-safe. The thread is started with the first wish.

    Args:
        of: the log.
        clock: the store's. What comes to be due is moved by the thread, and so loaded.
    """

    def __init__(self, of: Log, clock: StoreClock) -> None:
        self._log = of
        self._clock = clock
        self._wishes: dict[int, _Wish] = {}
        self._fresh: set[int] = set()  # they have not been looked at without being rung for
        self._numbers = itertools.count()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._looked_at = -1

    def on_load(self, magazine: int, seen: int, call: Callable[[], None]) -> Callable[[], None]:
        """See `MagazineStore.on_load`. Raises StoreUnreachableError when the thread cannot be started, ClosedError."""
        if self._thread is None:
            with without_means("store: waits without a thread"):
                self._start()
        number = next(self._numbers)
        self._wishes[number] = magazine, seen, call, number
        self._fresh.add(number)
        try:
            announced = self._log.announce(magazine, seen)
        except BaseException:
            self._forget(number)
            raise
        if self._closing:
            self._forget(number)
            raise ClosedError(f"store: {self._log.directory} is closed")
        if not announced:
            self._grant(number)
        elif self._log.later:
            self._log.ring()  # it may sleep beyond what is due in this magazine
        return lambda: self._forget(number)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closing:
                thread = threading.Thread(target=self._run, name="ignis-watch", daemon=True)
                start_thread(thread)
                self._thread = thread

    def _forget(self, number: int) -> None:
        self._wishes.pop(number, None)
        self._fresh.discard(number)

    def _grant(self, number: int) -> None:
        wish = self._wishes.pop(number, None)
        self._fresh.discard(number)
        if wish is not None:
            call_user_code(log, event_text("load_listener_failed", "a call after a load failed"), wish[2])

    def _grant_all(self, magazine: int) -> None:
        for wish in list(self._wishes.values()):
            if wish[0] == magazine:
                self._grant(wish[3])

    def _run(self) -> None:
        try:
            outlast(log, self._listen)
        finally:
            self._closing = True
            for number in list(self._wishes):
                self._grant(number)

    def _listen(self) -> None:
        bell, look_at = -1, time.monotonic()  # begun again, it looks at all of it
        with contextlib.suppress(ClosedError, ForkedHandleError):
            while not self._closing:
                bell = self._log.listen(bell, max(0.0, min(look_at - time.monotonic(), self._move_due())))
                # Behind the bell: what is rung for from now on ends the next wait.
                for wish in self._log.moved(list(self._wishes.values())):
                    self._grant(wish[3])
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_S
                    self._look()

    def _move_due(self) -> float:
        """Moves what is due of what is wished for; returns in how many seconds the next is."""
        rest_s = _LOOK_S
        if not self._log.later:
            return rest_s
        for number in {wish[0] for wish in list(self._wishes.values())}:
            try:
                due_ms, now_ms = next_due(self._log, number), self._clock.now_ms()
                if due_ms is not None and due_ms <= now_ms:
                    moved, expired, due_ms = move_due(self._log, number, now_ms, MOVE_LIMIT)
                    if expired and not moved:  # nobody is rung for that; who claims is told what expired, and warns
                        self._grant_all(number)
            except (ClosedError, ForkedHandleError):
                raise
            except IgnisError:
                continue  # busy, full, or removed: it is looked at again in a second
            if due_ms is not None:
                rest_s = min(rest_s, _SOON_S if due_ms <= now_ms else self._clock.until_s(due_ms))
        return rest_s

    def _look(self) -> None:
        """For what nobody has rung for. A log that has not grown has nothing new."""
        try:
            end = self._log.figures()["end"]
        except (ClosedError, ForkedHandleError):
            raise
        except IgnisError:
            return  # busy, or worse: who claims is told
        if end != self._looked_at:
            todo, self._looked_at = list(self._wishes), end
        else:
            todo = list(self._fresh)
        for number in todo:
            wish = self._wishes.get(number)
            self._fresh.discard(number)
            if wish is not None and self._pending(wish[0]):
                self._grant(number)

    def _pending(self, magazine: int) -> bool:
        try:
            return any(one[_LOAD_COUNTER] > one[_FIRE_COUNTER] for one in self._log.shards(magazine))
        except IgnisError:
            return True  # it was removed, or cannot be read: who waits is to hear so

    def close(self, timeout_s: float) -> None:
        """All are called. Idempotent. Raises WaitTimeoutError; may then be called again."""
        with self._starting:
            self._closing = True
            thread = self._thread
        if thread is None:
            return
        with contextlib.suppress(IgnisError):
            self._log.ring()
        thread.join(timeout_s)
        if thread.is_alive():
            raise WaitTimeoutError(f"store: {thread.name} still runs after {timeout_s:g} s")
