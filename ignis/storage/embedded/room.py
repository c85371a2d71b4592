"""The room of a store on its disk: how much is left, and the loads that were refused for want of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ignis.errors import StoreFullError

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

    The reason ``limit`` is max_store_bytes, ``room`` is the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"limit": 0, "room": 0}

    def count(self, exc: StoreFullError) -> None:
        reason = "limit" if "max_store_bytes" in str(exc) else "room"
        with self._lock:
            self._counts[reason] += 1

    def figures(self) -> dict[str, int]:
        """For `Store.stats`."""
        return {f"refused_loads_{reason}": count for reason, count in self._counts.items()}

    def __enter__(self) -> None:
        """What is raised in the block is counted."""

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, StoreFullError):
            self.count(exc)
