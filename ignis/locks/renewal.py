"""The thread that renews a manager's locks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ignis.hooks import log_safely
from ignis.locks.calls import now_s
from ignis.log_format import event_text
from ignis.stacks import start_thread
from ignis.upkeep import outlast

__all__ = ["BY_HAND_S", "Renewer"]

log = logging.getLogger("ignis.locks")

_LINGER_S = 10.0
"""How long the thread stays when there is nothing to renew: most locks come again soon."""

_LONGEST_WAIT_S = 3_600.0
BY_HAND_S = 0.02
"""How often a clock that is set by hand is looked at."""

Task = Callable[[], float | None]
"""Does what is due and returns when it wants to be called again (seconds of `now_s`), or None for never."""


class Renewer:
    """Calls tasks when they are due, all in one thread, which runs only while there are any. Thread-safe.

    Args:
        name: of the thread.
        clock: by which tasks are due.
        longest_wait_s: how long it sleeps at most, where time may pass while it does.

    A task that takes long delays the others; renewals come at a third of a lock's time to live, so that two may fail.
    """

    def __init__(self, name: str, clock: Callable[[], float] = now_s, longest_wait_s: float = _LONGEST_WAIT_S) -> None:
        self._name = name
        self._clock = clock
        self._longest_wait_s = longest_wait_s
        self._changed = threading.Condition()
        self._due: dict[Task, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, task: Task, due_s: float) -> None:
        """Calls ``task`` at ``due_s`` and from then on as it asks for. Nothing after `close`."""
        with self._changed:
            if self._closed:
                return
            self._due[task] = due_s
            self._changed.notify()
            if self._thread is not None:
                return
            thread = self._thread = threading.Thread(
                target=outlast, args=(log, self._run), name=f"ignis-renew-{self._name}", daemon=True
            )
        try:
            start_thread(thread)
        except BaseException:
            with self._changed:
                self._thread = None
                self._due.pop(task, None)
            raise

    def remove(self, task: Task) -> None:
        """The task is not called again; a call that is under way is not waited for."""
        with self._changed:
            self._due.pop(task, None)

    def close(self, timeout: float) -> None:
        """Ends the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._due.clear()
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            task = self._next()
            if task is None:
                return
            again: float | None = None
            try:
                again = task()
            except Exception as exc:
                log_safely(
                    log, logging.ERROR, event_text("lock_renewal_broken", "a lock could not be renewed"), exc_info=exc
                )
            with self._changed:
                # Removed meanwhile: then it stays removed.
                if again is None:
                    self._due.pop(task, None)
                elif task in self._due:
                    self._due[task] = again

    def _next(self) -> Task | None:
        """Waits for the next task that is due; None = the thread ends."""
        with self._changed:
            idle_since = self._clock()
            while not self._closed:
                now = self._clock()
                if self._due:
                    task = min(self._due, key=self._due.__getitem__)
                    wait_s = self._due[task] - now
                    if wait_s <= 0:
                        return task
                    idle_since = now
                else:
                    wait_s = idle_since + _LINGER_S - now
                    if wait_s <= 0:
                        break
                self._changed.wait(min(wait_s, self._longest_wait_s))
            self._thread = None
            return None
