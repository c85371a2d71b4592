"""Files and directories that are made for this user alone, whatever the umask.

A umask takes bits from the mode that is asked for, the owner's too. A file that its own user cannot open again, or a directory
that he cannot enter, would make what is kept there useless for good.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time

__all__ = ["make_directory", "make_temporary", "open_private", "remove_temporary"]

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_REMOVALS, _REMOVAL_PAUSE_S = 10, 0.1


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`, for what makes files: with mode 0600. One that is there keeps its mode, and gets what bits its
    owner, this user, lacks. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and _FILE_MODE & ~found.st_mode:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | _FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directory(path: str | os.PathLike[str], mode: int = _DIRECTORY_MODE) -> None:
    """Makes a directory that its owner can use; one that is there stays as it is. The way to it must be safe. Raises OSError."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    _open_to_owner(path)


def make_temporary(prefix: str, parent: str | os.PathLike[str] | None = None) -> str:
    """Makes a directory of an own name, mode 0700, as `tempfile.mkdtemp` does. Raises OSError."""
    made = tempfile.mkdtemp(prefix=prefix, dir=parent)
    _open_to_owner(made)
    return made


def remove_temporary(path: str | os.PathLike[str]) -> None:
    """Removes such a directory with all that is in it. A process that is about to end may still put something there: then it is
    tried again, for a second."""
    for _ in range(_REMOVALS):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(_REMOVAL_PAUSE_S)


def _open_to_owner(path: str | os.PathLike[str]) -> None:
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if _DIRECTORY_MODE & ~mode:
        os.chmod(path, mode | _DIRECTORY_MODE)
