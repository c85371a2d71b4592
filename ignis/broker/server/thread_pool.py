"""A fixed number of threads that do what the event loop must not wait for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from ignis.hooks import call_user_code
from ignis.log_format import event_text
from ignis.stacks import start_thread

__all__ = ["ThreadPool"]

log = logging.getLogger("ignis.broker")


class ThreadPool:
    """Takes calls in lines: of each line in order, and of the lines in turn, so that nobody waits for all that another one has
    asked for. Thread-safe. Leaner than ``ThreadPoolExecutor``, whose futures nobody would look at here: a call costs one put and
    one wake-up.

    Args:
        count: threads, started at once.
        name: of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._due: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One for each call; False = a thread is to end."""
        self._lines: dict[str, deque[Callable[[], None]]] = {}
        """Those with calls, in the order of their turns."""
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            start_thread(thread)

    def submit(self, call: Callable[[], None], line: str = "") -> None:
        """``call`` must not raise; what it raises all the same is logged, and the thread goes on. ``line``: where it waits."""
        with self._lock:
            self._lines.setdefault(line, deque()).append(call)
        self._due.put(True)

    def close(self, timeout: float) -> bool:
        """Ends the threads after what was submitted before; False when some are still at it after ``timeout``
        seconds."""
        for _ in self._threads:
            self._due.put(False)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        take = self._due.get
        while take():
            call = self._next()
            call_user_code(log, event_text("broker_call_failed", "a call in a thread of the broker failed"), call)
            del call  # a thread without work would keep what it was given, 64 MiB perhaps, until the next call

    def _next(self) -> Callable[[], None]:
        with self._lock:
            name, line = next(iter(self._lines.items()))
            del self._lines[name]
            call = line.popleft()
            if line:
                self._lines[name] = line  # behind the others
            return call
