"""What a broker's process does with memory that it has no use for at the moment."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from typing import Any

from ignis.upkeep import run_soon

__all__ = ["begin_crowd", "collect_all", "collect_little", "end_crowd", "keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 32 << 20
_LARGE_BYTES = 4 << 20
_LARGE_IN_A_CROWD_BYTES = 128 << 10
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_TRIM_AGAIN_S = 5.0
_LONG_S = 0.02
"""A search for garbage that took longer held up every request."""
_ALL_AGAIN_S = 600.0
_OLDEST = 2


class _Heap:
    """The C library's, once it is ours to set."""

    def __init__(self, libc: Any) -> None:
        self.mallopt = libc.mallopt
        self.trim = libc.malloc_trim
        self.trimmed_s = float("-inf")

    def give_back(self) -> None:
        self.trim(_KEPT_BYTES)


_ours: list[_Heap] = []


def keep_freed_memory() -> bool:
    """Up to 32 MiB that were freed stay with this process for what is received next, in blocks of up to 4 MiB. Larger ones, and
    what is more, the system gets back as ever. For processes whose heap is ours: it holds for all that runs in them.

    Left alone, the C library of Linux may give a request of 1 MiB back when it is done, and each page of the next one is then
    made anew. False where that library is another one, or the environment chooses (``MALLOC_TRIM_THRESHOLD_`` and the like).

    All threads share one arena: what one of them frees another uses again. With one for each, holes in each of them stay.
    """
    if any(name in os.environ for name in _CHOSEN):
        return False
    try:
        heap = _Heap(ctypes.CDLL(None))
    except (OSError, AttributeError, TypeError):
        return False
    heap.mallopt(_M_ARENA_MAX, 1)
    if not (heap.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) and heap.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)):
        return False
    _ours[:] = [heap]
    return True


def begin_crowd() -> None:
    """Clients leave much unread: from now on what is large has pages of its own, which the system gets back with its end. Answers
    of all sizes in one heap left holes of ten times what was unread. Nothing where `keep_freed_memory` is not in force."""
    for heap in _ours:
        heap.mallopt(_M_MMAP_THRESHOLD, _LARGE_IN_A_CROWD_BYTES)


def end_crowd() -> None:
    """That is over. What the heap has to spare goes back soon, from a shared thread."""
    for heap in _ours:
        heap.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        now_s = time.monotonic()
        if now_s - heap.trimmed_s >= _TRIM_AGAIN_S:
            heap.trimmed_s = now_s
            run_soon(heap.give_back)


def collect_little() -> None:
    """From now on Python's search for garbage in cycles looks only at what is younger than this call, and than the last search
    that took long. A hundred thousand requests that wait are millions of objects, and each search looked through all of them. For
    processes that are ours.

    What is passed over is freed as ever with its last reference. Cycles among it stay until `collect_all`."""
    gc.collect()
    gc.freeze()
    if not _searches:
        _searches.append(_Searches())
        gc.callbacks.append(_searches[0].seen)


def collect_all() -> None:
    """Searches everything, where a search has passed over something since the last one and that is long ago. To be called now and
    then while there is little to look through. Nothing where `collect_little` is not in force."""
    for searches in _searches:
        if searches.passed_over and time.monotonic() - searches.all_s >= _ALL_AGAIN_S:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            searches.passed_over, searches.all_s = False, time.monotonic()


class _Searches:
    """Watches them."""

    def __init__(self) -> None:
        self.passed_over = False
        self._began_s = self.all_s = time.monotonic()

    def seen(self, phase: str, info: dict[str, int]) -> None:
        """What `gc.callbacks` is for."""
        if info["generation"] != _OLDEST:
            return
        now_s = time.monotonic()
        if phase == "start":
            self._began_s = now_s
        elif now_s - self._began_s > _LONG_S:
            gc.freeze()
            self.passed_over = True


_searches: list[_Searches] = []
