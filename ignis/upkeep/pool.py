"""A bounded number of threads for calls whose results are waited for, and coroutines' calls in threads.

Python's own executor and ``asyncio.to_thread`` wait without a bound for a thread that dies at its start. These do not.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from ignis.errors import StoreUnreachableError
from ignis.process_hooks import FORKS
from ignis.upkeep.threads import Threads

__all__ = ["WorkThreads", "in_thread"]

P = ParamSpec("P")
R = TypeVar("R")

_Call = tuple["Future[Any]", Callable[[], Any]]


class WorkThreads(Threads[_Call], Executor):
    """An executor of threads. They end when they have been idle for a while, or with `shutdown`. Thread-safe.

    Args:
        most: threads at a time.
        name: of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(f"{name}_", most)

    def submit(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Makes the call in a thread. Raises RuntimeError when there is none and none can be started, and after `shutdown`."""
        future: Future[R] = Future()
        self._add((future, functools.partial(call, *args, **kwargs)))
        return future

    def submit_or_run(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """`submit`; where there is no thread for it, the caller's makes the call."""
        try:
            return self.submit(call, *args, **kwargs)
        except RuntimeError:
            if self._closed:
                raise
        future: Future[R] = Future()
        self._make((future, functools.partial(call, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. ``wait``: until those are made that were submitted before."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                while self._calls:
                    self._calls.popleft()[0].cancel()
            self._changed.notify_all()
            threads = list(self._threads)
        if wait:
            for thread in threads:
                thread.join()

    def _make(self, call: _Call) -> None:
        """Whoever waits hears of it, whatever goes wrong."""
        future, made = call
        try:
            if not future.set_running_or_notify_cancel():
                return
            result = made()
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
