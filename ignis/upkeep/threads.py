"""Threads for work that may wait: there are as many as there is work at a time, and none for what is idle."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.process_hooks import FORKS
from ignis.stacks import start_thread

__all__ = ["AGAIN_S", "IDLE_S", "SharedThreads", "shared_threads"]

log = logging.getLogger("ignis.upkeep")

IDLE_S = 10.0
"""A thread without work ends after so long."""

AGAIN_S = 0.1
"""After so long a thread goes on that ran out of memory."""

MOST_OF_A_QUEUE = 8
"""Storing outcomes, claiming for an event loop, what it does when that is idle, giving back what was claimed too late; looking at
the workers, while the next look is asked for; looking at cancelled messages; a pass of the shovel."""


class SharedThreads:
    """Runs calls, each at once in a thread of its own. Thread-safe.

    A thread is started when all others are at work: calls may wait for long and never hold each other up.

    It refuses nothing: a call that waited behind others could be the one that frees them. Its bound is that of whoever calls it.
    A queue has at most `MOST_OF_A_QUEUE` calls at a time, however many messages and workers it has: each kind of call is under
    way once, and its next one is put off until it has ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._made = 0
        self._starting = 0
        self.count = 0
        """Threads that run."""

    def submit(self, call: Callable[[], None]) -> None:
        """Runs it soon. What it raises is logged. Where a thread has to be started it takes `ignis.stacks.START_S` at most.

        Raises RuntimeError when there is no thread and none can be started: then the call is not made."""
        with self._changed:
            self._calls.append(call)
            wanted = len(self._calls) - self._idle - self._starting
            if wanted <= 0:
                self._changed.notify()
                return
            self._starting += wanted
        # Without the lock: a thread that finds no memory begins late or never, and the others go on meanwhile.
        while wanted:
            try:
                start_thread(self._thread())
            except BaseException as exc:
                with self._changed:
                    self._starting = max(0, self._starting - wanted)
                    if isinstance(exc, RuntimeError) and self.count:
                        return  # the next of the others that is free takes it, or a thread that the next call starts
                    if call in self._calls:
                        self._calls.remove(call)
                        raise
                    return
            wanted -= 1

    def _thread(self) -> threading.Thread:
        self._made += 1
        return threading.Thread(target=self._run, name=f"ignis-upkeep-{self._made}", daemon=True)

    def _run(self) -> None:
        counted = False
        while True:
            # What is out of memory for a moment must not end the thread that acknowledges and renews.
            try:
                if not counted:
                    with self._changed:
                        self._starting = max(0, self._starting - 1)
                        self.count += 1
                        counted = True
                call = self._next()
                if call is None:
                    return
                self._make(call)
            except BaseException:
                time.sleep(AGAIN_S)

    def _make(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as exc:
            trace = exc.__traceback__
            if isinstance(exc, MemoryError) and trace is not None and trace.tb_next is None:
                # It has not begun: there was no memory for calling it.
                time.sleep(AGAIN_S)
                with self._changed:
                    self._calls.appendleft(call)
                return
            log_safely(
                log, logging.ERROR, event_text("shared_call_failed", "a call in a shared thread failed"), exc_info=exc
            )

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._calls:
                self._idle += 1
                try:
                    called = self._changed.wait(IDLE_S)
                finally:
                    self._idle -= 1
                if not called and not self._calls:
                    self.count -= 1
                    return None
            return self._calls.popleft()


_of_process: dict[int, SharedThreads] = {}
"""By the count of forks: the threads of a parent are not in its child."""


def shared_threads() -> SharedThreads:
    """Those of this process."""
    return _of_process.get(FORKS[0]) or _of_process.setdefault(FORKS[0], SharedThreads())
