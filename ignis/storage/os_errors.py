"""The errors of ours for what the system refuses to a store: room, files, the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ignis.errors import StoreError, StoreFailedError, StoreFullError, StoreUnreachableError

__all__ = ["NO_ROOM", "room_left", "store_error", "store_errors", "without_means"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def store_error(what: str, exc: OSError) -> StoreError:
    """The exception for one of the system's: StoreFullError for want of room, StoreFailedError for a disk that does not read
    or write, StoreUnreachableError for the rest: no descriptors or memory left, permissions, a read-only disk."""
    text = f"store: {what}: {exc.strerror or exc}"
    if exc.errno in NO_ROOM:
        return StoreFullError(text + room_left(_place(what, exc), exc))
    if exc.errno == errno.EIO:
        return StoreFailedError(text)
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        text += " (ulimit -n)"
    return StoreUnreachableError(text)


def _place(what: str, exc: OSError) -> str:
    """Where it happened: the file that the system names, or else the caller, or its directory when it could not be made."""
    name = exc.filename if isinstance(exc.filename, str) else what
    return name if os.path.exists(name) else os.path.dirname(name)


def room_left(path: str | os.PathLike[str], exc: OSError) -> str:
    """Makes the words for what a full disk has left for this user: too little, or no file more. Nothing where it is not known, or
    where the bound is another one, a quota or a limit of the process."""
    if exc.errno != errno.ENOSPC:
        return ""
    try:
        disk = os.statvfs(path)
    except OSError:
        return ""
    files = ", and no file more" if disk.f_files and not disk.f_favail else ""
    return f" ({disk.f_bavail * disk.f_frsize:,} bytes are free{files})"


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """No OSError leaves its block, those of the native core included."""
    try:
        yield
    except OSError as exc:
        raise store_error(what, exc) from exc


@contextmanager
def without_means(what: str) -> Iterator[None]:
    """Around what starts threads and takes memory: no MemoryError, OSError or RuntimeError of a thread that cannot start
    leaves its block, but StoreUnreachableError."""
    try:
        with store_errors(what):
            yield
    except MemoryError as exc:
        raise StoreUnreachableError(f"{what}: no memory is left (ulimit -v): {exc}") from exc
    except RuntimeError as exc:
        if "start new thread" not in str(exc):
            raise
        raise StoreUnreachableError(f"{what}: no thread can be started (ulimit -u, ulimit -v)") from exc
