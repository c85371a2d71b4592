"""What a broker's process does with memory that it has no use for at the moment."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20
_LARGE_BYTES = 4 << 20
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Up to 32 MiB that were freed stay with this process for what is received next, in blocks of up to 4 MiB. Larger ones, and
    what is more, the system gets back as ever. For processes whose heap is ours: it holds for all that runs in them.

    Left alone, the C library of Linux may give a request of 1 MiB back when it is done, and each page of the next one is then
    made anew. False where that library is another one, or the environment chooses (``MALLOC_TRIM_THRESHOLD_`` and the like).
    """
    if any(name in os.environ for name in _CHOSEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
