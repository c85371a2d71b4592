"""How every thread of the library is started: with room on its stack for whatever a message nests, and within a bounded time.

Python's own ``Thread.start`` waits for ever for a thread that dies before it says that it runs, as one does that finds no
memory. Here it is an error after a while, the one of a system that starts no threads.

A body's depth is bounded by how deep Python's C code may call itself, and a thread's stack must have room for that. The
default stack of musl has not: it is 128 KiB, or what the interpreter was linked with. Nor has that of glibc where
``ulimit -s`` is low, or unlimited (2 MiB then). There a message of some hundred levels would end the process instead of
being unreadable.
"""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ignis.process_hooks import FORKS

__all__ = ["STACK_BYTES", "START_S", "roomy_stacks", "start_thread"]

STACK_BYTES = 8 << 20
"""Address space; memory is taken only for what a thread uses of it."""

START_S = 5.0
"""So long a thread has to begin; a process that is stopped meanwhile has longer."""

_STEPS = 20
"""In so many waits, because the time for which a process is stopped ends only one of them."""

_locks: dict[int, Any] = {}
"""By the count of forks: in a child another thread of the parent may have held it."""


def _default_has_room() -> bool:
    """Whether a thread's stack has the room unasked."""
    if sys.platform != "linux":
        return True  # macOS: Python itself asks for 16 MiB
    if "musl" in getattr(sys.implementation, "_multiarch", ""):
        return False
    limit: int = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return limit != resource.RLIM_INFINITY and limit >= STACK_BYTES


@contextmanager
def roomy_stacks() -> Iterator[None]:
    """Threads started within it have the room. What the application has set with ``threading.stack_size`` stays as it is."""
    if _default_has_room():
        yield
        return
    with _locks.setdefault(FORKS[0], threading.RLock()):
        # The only way to ask is to set: the answer is what was set before.
        given = threading.stack_size(STACK_BYTES)
        if given:
            threading.stack_size(given)
        try:
            yield
        finally:
            threading.stack_size(given)


class _Unwaited(threading.Event):
    """In place of ``Thread._started``, for which Python waits without a bound. Who starts the thread waits by himself."""

    def wait(self, timeout: float | None = None) -> bool:
        return True if timeout is None else super().wait(timeout)


class _Start:
    """Whether a thread has begun, or nobody waits for it any more: what comes first holds. Locks only, which take no memory."""

    __slots__ = ("begun", "first", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work
        self.first = threading.Lock()
        self.begun = threading.Lock()
        self.begun.acquire()

    def run(self) -> None:
        """In the thread. One that comes too late does nothing: its work is another's by now."""
        if not self.first.acquire(blocking=False):
            return
        self.begun.release()
        work, self.work = self.work, None
        if work is not None:
            work()

    def wait(self, name: str, timeout_s: float) -> None:
        for _ in range(_STEPS):
            if self.begun.acquire(timeout=timeout_s / _STEPS):
                return
        if self.first.acquire(blocking=False):
            self.work = None
            raise RuntimeError(
                f"can't start new thread: {name} has not begun within {timeout_s:g} s; a thread that finds no memory ends so"
            )


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread, and returns once it runs. One that raises here runs nothing of its work, not later either.

    It may take `START_S`: not for callers that hold a lock which others need.

    Raises:
        RuntimeError: no thread can be started, for want of threads or of memory. ``without_means`` makes it a store's error.
    """
    try:
        start = _Start(thread.run)
        thread.run = start.run  # type: ignore[method-assign]
        started = getattr(thread, "_started", None)
        if isinstance(started, threading.Event) and not started.is_set():
            thread._started = _Unwaited()  # type: ignore[attr-defined]
        with roomy_stacks():
            thread.start()
    except MemoryError as exc:
        raise RuntimeError(f"can't start new thread: no memory is left for {thread.name}") from exc
    start.wait(thread.name, START_S)
