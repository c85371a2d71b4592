"""A lock on a file that says who may act, as long as the file's name stands for that file.

Where the system has them these are locks of the open file description (``F_OFD_SETLK``): others can see whether one is held
without taking it for a moment, which would keep away whoever tries at that moment. Elsewhere it is ``flock``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path

from ignis.private_files import open_private

__all__ = ["FileLock", "identity_of", "is_locked"]

_TRIES = 100
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class FileLock:
    """A lock that is held. The kernel releases it when its holder dies, and not while the holder is merely stopped.

    A file that was deleted, replaced or moved away keeps its lock, and whoever comes next locks another one: then two hold
    "the" lock. So its name is looked at as well: `valid` says whether the lock still keeps others out. One thread at a time;
    a child after ``fork`` shares the lock and must `close` it, which leaves the parent's.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._identity = _identity(os.fstat(descriptor))

    @classmethod
    def take(cls, path: str | os.PathLike[str]) -> FileLock | None:
        """The lock, or None when another holds it. Makes the file, mode 0600. Never waits. Raises OSError."""
        target = Path(path)
        for _ in range(_TRIES):
            descriptor = open_private(target, _FLAGS | os.O_CREAT)
            try:
                taken = _try_lock(descriptor)
                found = cls(target, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if not taken:
                os.close(descriptor)
                return None
            if found.valid:
                return found
            os.close(descriptor)  # the file was replaced meanwhile
        return None

    @property
    def valid(self) -> bool:
        """Whether the name still stands for the locked file. Costs one look at the file system."""
        return identity_of(self.path) == self._identity

    def write(self, text: str) -> None:
        """Replaces what the file says: who holds it, for people. Raises OSError."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def release(self) -> None:
        """Empties the file and lets go of it. Idempotent."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, 0)
                _unlock(self.descriptor)  # a child that has not closed it yet must not keep it
        self.close()

    def close(self) -> None:
        """Closes this process's descriptor; the lock ends with the last one. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def identity_of(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Which file has this name; None: none, or it cannot be seen."""
    try:
        return _identity(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether anybody, this process included, holds the file's lock. Raises OSError when it is not there."""
    descriptor = os.open(path, _FLAGS)
    try:
        return _held(descriptor)
    finally:
        os.close(descriptor)


_FLOCK = "@hhqqi0q"  # struct flock: type, whence, start, length, pid
_WHOLE = (0, 0, 0, 0)
_GET: int | None = getattr(fcntl, "F_OFD_GETLK", None)
_SET: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a kernel or file system without such locks answers: then all who use the file use ``flock``."""


def _ofd(descriptor: int, command: int | None, kind: int) -> int | None:
    """The type of lock that the call answers with; None where there are no such locks."""
    if command is None:
        return None
    try:
        answer = fcntl.fcntl(descriptor, command, struct.pack(_FLOCK, kind, *_WHOLE))
    except OSError as exc:
        if exc.errno in _UNKNOWN:
            return None
        raise
    return int(struct.unpack(_FLOCK, answer)[0])


def _try_lock(descriptor: int) -> bool:
    try:
        if _ofd(descriptor, _SET, fcntl.F_WRLCK) is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _unlock(descriptor: int) -> None:
    if _ofd(descriptor, _SET, fcntl.F_UNLCK) is None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _held(descriptor: int) -> bool:
    found = _ofd(descriptor, _GET, fcntl.F_WRLCK)
    if found is not None:
        return found != fcntl.F_UNLCK
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
