"""Files that somebody named, or that stand in a directory of ours: opened only when they are files.

A named pipe in the place of a file holds up whoever opens it until somebody writes, a device may give bytes without end or do
something when it is opened. Every file that is named by a setting, an option or a fixed place is opened with these.
"""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["check_regular", "read_bytes", "read_text", "regular_only"]

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def regular_only(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`. Never waits. Raises OSError, also for what is no file."""
    _check(os.stat(path, follow_symlinks=not flags & os.O_NOFOLLOW), path)  # before: opening a device may do something
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: str | os.PathLike[str]) -> None:
    """Before others open the file. Raises OSError: it is none, or is not there."""
    _check(os.stat(path), path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Raises OSError."""
    with open(path, "rb", opener=regular_only) as file:
        return file.read()


def read_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """As UTF-8. Raises OSError, UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8", errors)


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(found.st_mode) or (
        stat.S_ISLNK(found.st_mode)
    ):  # a link that is not followed fails when it is opened
        return
    kind = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "something else")
    number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
    raise OSError(number, f"it is {kind} and not a file", os.fspath(path))
