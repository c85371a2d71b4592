"""Threads for work that may wait: there are as many as there is work at a time, and none for what is idle."""

from __future__ import annotations

import abc
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.process_hooks import FORKS
from ignis.stacks import start_thread

__all__ = ["SharedThreads", "Threads", "shared_threads"]

T = TypeVar("T")
log = logging.getLogger("ignis.upkeep")

IDLE_S = 10.0
"""A thread without work ends after so long."""

AGAIN_S = 0.1
"""After so long a thread goes on that ran out of memory."""

MOST_OF_A_QUEUE = 9
"""Storing outcomes, renewing, claiming for an event loop, what it does when that is idle, giving back what was claimed too late;
looking at the workers, while the next look is asked for; looking at cancelled messages; a pass of the shovel."""


class Threads(abc.ABC, Generic[T]):
    """Threads that take what is added, oldest first. One that has nothing to do for a while ends. Thread-safe.

    A thread is started when all others are at work.

    Args:
        name: of the threads; a number follows.
        most: threads at a time; None = there is no bound.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._most = most
        # Entered by its lock: entering a Condition is a function of Python, and an interrupt in it leaves the lock taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls: deque[T] = deque()
        self._threads: list[threading.Thread] = []
        self._starting = 0
        self._idle = 0
        self._made = itertools.count(1)
        self._closed = False

    @abc.abstractmethod
    def _make(self, call: T) -> None:
        """In a thread."""

    @property
    def count(self) -> int:
        """Threads that run."""
        return len(self._threads)

    def _add(self, call: T) -> None:
        """Raises RuntimeError when there is no thread and none can be started, and when it is closed: it is not made then."""
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.append(call)
            wanted = len(self._calls) - self._idle - self._starting
            if self._most is not None:
                wanted = min(wanted, self._most - len(self._threads) - self._starting)
            if wanted <= 0:
                self._changed.notify()
                return
            self._starting += wanted
        # Without the lock: a thread that finds no memory begins late or never, and the others go on meanwhile.
        while wanted:
            try:
                name = f"{self._name}{next(self._made)}"
                start_thread(threading.Thread(target=self._run, name=name, daemon=True))
            except BaseException as exc:
                with self._lock:
                    self._starting = max(0, self._starting - wanted)
                    if isinstance(exc, RuntimeError) and self._threads:
                        return  # the next of the others that is free takes it, or a thread that the next call starts
                    if call in self._calls:
                        self._calls.remove(call)
                        raise
                    return
            wanted -= 1

    def _run(self) -> None:
        thread = threading.current_thread()
        counted = False
        while True:
            # What is out of memory for a moment must not end a thread that others count on.
            try:
                if not counted:
                    with self._lock:
                        self._threads.append(thread)
                        self._starting = max(0, self._starting - 1)
                        counted = True
                call = self._next(thread)
                if call is None:
                    return
                self._make(call)
                del call  # what it gave is its caller's alone
            except BaseException:
                time.sleep(AGAIN_S)

    def _next(self, thread: threading.Thread) -> T | None:
        with self._lock:
            while not self._calls:
                called = False
                if not self._closed:
                    self._idle += 1
                    try:
                        called = self._changed.wait(IDLE_S)
                    finally:
                        self._idle -= 1
                if not called and not self._calls:
                    self._threads.remove(thread)
                    return None
            return self._calls.popleft()


class SharedThreads(Threads[Callable[[], None]]):
    """Runs calls, each at once in a thread of its own: calls may wait for long and never hold each other up. Thread-safe.

    It refuses nothing: a call that waited behind others could be the one that frees them. Its bound is that of whoever calls it.
    A queue has at most `MOST_OF_A_QUEUE` calls at a time, however many messages and workers it has: each kind of call is under
    way once, and its next one is put off until it has ended.
    """

    def __init__(self) -> None:
        super().__init__("ignis-upkeep-")

    def submit(self, call: Callable[[], None]) -> None:
        """Runs it soon. What it raises is logged. Where a thread has to be started it takes `ignis.stacks.START_S` at most.

        Raises RuntimeError when there is no thread and none can be started: then the call is not made."""
        self._add(call)

    def _make(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as exc:
            trace = exc.__traceback__
            if isinstance(exc, MemoryError) and trace is not None and trace.tb_next is None:
                # It has not begun: there was no memory for calling it.
                time.sleep(AGAIN_S)
                with self._lock:
                    self._calls.appendleft(call)
                return
            log_safely(
                log, logging.ERROR, event_text("shared_call_failed", "a call in a shared thread failed"), exc_info=exc
            )


_of_process: dict[int, SharedThreads] = {}
"""By the count of forks: the threads of a parent are not in its child."""


def shared_threads() -> SharedThreads:
    """Those of this process."""
    return _of_process.get(FORKS[0]) or _of_process.setdefault(FORKS[0], SharedThreads())
