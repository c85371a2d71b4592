"""A fixed number of threads that do what the event loop must not wait for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from ignis.hooks import call_user_code
from ignis.log_format import event_text
from ignis.stacks import start_thread

__all__ = ["ThreadPool"]

log = logging.getLogger("ignis.broker")


class ThreadPool:
    """Takes calls in order. Thread-safe. Leaner than ``ThreadPoolExecutor``, whose futures nobody would look at
    here: a call costs one put and one wake-up.

    Args:
        count: threads, started at once.
        name: of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            start_thread(thread)

    def submit(self, call: Callable[[], None]) -> None:
        """``call`` must not raise; what it raises all the same is logged, and the thread goes on."""
        self._calls.put(call)

    def close(self, timeout: float) -> bool:
        """Ends the threads after what was submitted before; False when some are still at it after ``timeout``
        seconds."""
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        take = self._calls.get
        while True:
            call = take()
            if call is None:
                return
            call_user_code(log, event_text("broker_call_failed", "a call in a thread of the broker failed"), call)
            del call  # a thread without work would keep what it was given, 64 MiB perhaps, until the next call
