"""The room of a store on its disk: how much is left, and the loads that were refused for want of it."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path

from ignis.errors import StoreFullError
from ignis.storage.os_errors import room_left

__all__ = ["LARGEST_SEGMENT_BYTES", "SMALLEST_SEGMENT_BYTES", "RefusedLoads", "free_bytes", "segment_bytes"]

LARGEST_SEGMENT_BYTES = 16 << 20
SMALLEST_SEGMENT_BYTES = 1 << 20
_SEGMENTS_THAT_FIT = 64


def free_bytes(path: Path) -> int:
    """What the file system of the path has left for this user. Raises OSError."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def segment_bytes(path: Path, max_store_bytes: int) -> int:
    """The size of a log's largest segments. They are laid out ahead: on a small file system, or for a small store, they are
    smaller. Raises OSError."""
    disk = os.statvfs(path)
    room = min(disk.f_blocks * disk.f_frsize, max_store_bytes)
    return max(SMALLEST_SEGMENT_BYTES, min(LARGEST_SEGMENT_BYTES, room // _SEGMENTS_THAT_FIT))


class RefusedLoads:
    """Counts the loads that a directory refused in this process. Thread-safe.

    The reason ``limit`` is max_store_bytes, ``room`` is the disk. Its errors are also told what the disk has left.

    Args:
        path: of the directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._counts = {"limit": 0, "room": 0}

    def count(self, exc: StoreFullError) -> None:
        reason = "limit" if "max_store_bytes" in str(exc) else "room"
        with self._lock:
            self._counts[reason] += 1
        if reason == "room":
            self._tell_room(exc)

    def _tell_room(self, exc: StoreFullError) -> None:
        """The log has one word for all that is no room: bytes, files, and the limit of the process for a file."""
        text, limit = str(exc), resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if "bytes are free" in text or "may have" in text or not text.startswith("store: disk full"):
            return
        more = room_left(self._path, OSError(errno.ENOSPC, ""))
        if limit != resource.RLIM_INFINITY:
            more += f" (a file of this process may have {limit:,} bytes: ulimit -f)"
        exc.args = (text + more,)

    def figures(self) -> dict[str, int]:
        """For `Store.stats`."""
        return {f"refused_loads_{reason}": count for reason, count in self._counts.items()}

    def __enter__(self) -> None:
        """What is raised in the block is counted."""

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, StoreFullError):
            self.count(exc)
