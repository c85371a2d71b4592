"""Taking what others have queued, and putting it back, without losing any of it where there is no memory for a moment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["NO_MEMORY_S", "add_one", "put_back", "taken_of", "wait_for_memory"]

T = TypeVar("T")

NO_MEMORY_S = 0.1
"""After so long it is tried again, or looked at anew, what found no memory."""


def wait_for_memory() -> None:
    """A pause, after which there may be some."""
    time.sleep(NO_MEMORY_S)


def taken_of(queued: deque[T]) -> list[T]:
    """What is in it, which is then in the list alone. Others may append meanwhile; nobody else takes. Raises MemoryError: it is
    as it was."""
    taken: list[Any] = [None] * len(queued)  # all the memory that it takes
    count = 0
    try:
        for _ in taken:
            taken[count] = queued.popleft()
            count += 1
    except MemoryError:
        put_back(queued, [one for one in taken if one is not None])
        raise
    return taken


def add_one(queued: deque[T] | list[T], one: T) -> None:
    """Appends it. Waits for the memory that it needs."""
    while True:
        try:
            queued.append(one)
            return
        except MemoryError:
            time.sleep(NO_MEMORY_S)


def put_back(queued: deque[T], taken: Sequence[T], start: int = 0) -> None:
    """Puts back what was taken, from ``start`` on, before what came since. Waits for the memory that it needs."""
    left = len(taken)
    while left > start:
        try:
            while left > start:
                queued.appendleft(taken[left - 1])
                left -= 1
        except MemoryError:
            time.sleep(NO_MEMORY_S)
