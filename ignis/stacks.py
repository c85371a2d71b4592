"""Room on the stack for whatever a message nests, in the threads that read messages.

A body's depth is bounded by how deep Python's C code may call itself; the C library's default stack is to have room for that.
musl's has not (128 KiB, or what the interpreter was linked with), nor has glibc's where ``ulimit -s`` is low, or is unlimited
(2 MiB): there a message of some hundred levels would end the process instead of being unreadable.
"""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ignis.process_hooks import FORKS

__all__ = ["STACK_BYTES", "roomy_stacks", "start_thread"]

STACK_BYTES = 8 << 20
"""Address space; memory is taken only for what a thread uses of it."""

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


def start_thread(thread: threading.Thread) -> None:
    """``thread.start()``, with the room."""
    with roomy_stacks():
        thread.start()
