"""By what descriptor an event loop is told what is ready."""

from __future__ import annotations

import asyncio

__all__ = ["loop_descriptor"]


def loop_descriptor(loop: asyncio.AbstractEventLoop) -> int:
    """The descriptor of the epoll that the loop sleeps on, readable itself when anything is ready; -1 where there is none.

    No interface of asyncio names it. A loop of asyncio has a selector with a descriptor, one of uvloop says it to who tests it.
    """
    for found in (getattr(getattr(loop, "_selector", None), "fileno", None), getattr(loop, "_get_backend_id", None)):
        descriptor = found() if callable(found) else -1
        if isinstance(descriptor, int) and descriptor >= 0:
            return descriptor
    return -1
