"""A bounded number of threads for calls whose results are waited for, and coroutines' calls in threads.

Python's own executor and ``asyncio.to_thread`` wait without a bound for a thread that dies at its start. These do not.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from ignis.errors import StoreUnreachableError
from ignis.process_hooks import FORKS
from ignis.stacks import start_thread
from ignis.upkeep.threads import AGAIN_S, IDLE_S

__all__ = ["WorkThreads", "in_thread"]

P = ParamSpec("P")
R = TypeVar("R")

_Call = tuple["Future[Any]", Callable[[], Any]]


class WorkThreads(Executor):
    """An executor of threads. They end when they have been idle for a while, or with `shutdown`. Thread-safe.

    Args:
        most: threads at a time.
        name: of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._threads: list[threading.Thread] = []
        self._starting = 0
        self._idle = 0
        self._made = 0
        self._closed = False

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Makes the call in a thread. Raises RuntimeError when there is none and none can be started, and after `shutdown`."""
        future: Future[R] = Future()
        one: _Call = future, functools.partial(call, *args, **kwargs)
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.append(one)
            free = self._idle + self._starting
            if free >= len(self._calls) or len(self._threads) + self._starting >= self._most:
                self._changed.notify()
                return future
            self._starting += 1
            self._made += 1
        # Without the lock: it may take a while, and the others go on.
        try:
            start_thread(threading.Thread(target=self._run, name=f"{self._name}_{self._made}", daemon=True))
        except BaseException as exc:
            with self._changed:
                self._starting = max(0, self._starting - 1)
                if one not in self._calls or (self._threads and isinstance(exc, RuntimeError)):
                    return future  # another has taken it, or will
                self._calls.remove(one)
            raise
        return future

    def submit_or_run(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """`submit`; where there is no thread for it, the caller's makes the call."""
        try:
            return self.submit(call, *args, **kwargs)
        except RuntimeError:
            if self._closed:
                raise
        future: Future[R] = Future()
        _make((future, functools.partial(call, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. ``wait``: until those are made that were submitted before."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                while self._calls:
                    self._calls.popleft()[0].cancel()
            self._changed.notify_all()
            threads = list(self._threads)
        if wait:
            for thread in threads:
                thread.join()

    def _run(self) -> None:
        thread = threading.current_thread()
        counted = False
        while True:
            try:
                if not counted:
                    with self._changed:
                        self._threads.append(thread)
                        self._starting = max(0, self._starting - 1)
                        counted = True
                one = self._next(thread)
                if one is None:
                    return
                _make(one)
                del one  # what it gave is the caller's alone
            except BaseException:  # no memory for a moment
                time.sleep(AGAIN_S)

    def _next(self, thread: threading.Thread) -> _Call | None:
        with self._changed:
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


def _make(one: _Call) -> None:
    """Whoever waits hears of it, whatever goes wrong."""
    future, call = one
    try:
        if not future.set_running_or_notify_cancel():
            return
        result = call()
    except BaseException as exc:
        with contextlib.suppress(BaseException):
            future.set_exception(exc)
    else:
        future.set_result(result)


_of_process: dict[int, WorkThreads] = {}
"""By the count of forks."""


async def in_thread(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Makes a call off the event loop, in the caller's context: ``asyncio.to_thread`` on threads of ours.

    Raises what the call raises; StoreUnreachableError when there is no thread for it."""
    import asyncio  # loaded long ago by whoever awaits this; commands that do not should not pay for it

    pool = _of_process.get(FORKS[0]) or _of_process.setdefault(
        FORKS[0], WorkThreads(min(32, (os.cpu_count() or 1) + 4), "ignis-async")
    )
    context = contextvars.copy_context()
    try:
        future = pool.submit(context.run, functools.partial(call, *args, **kwargs))
    except RuntimeError as exc:
        raise StoreUnreachableError("no thread can be started (ulimit -u, ulimit -v)") from exc
    return await asyncio.wrap_future(future)
