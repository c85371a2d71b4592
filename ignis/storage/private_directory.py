"""Directories that one user has for himself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ignis.errors import ConfigError, StoreUnreachableError

__all__ = ["make_private"]


def make_private(path: Path, what: str) -> None:
    """Makes the directory with mode 0700, or checks the one that is there: nobody else may put or replace files in it.

    Args:
        path: its parent must be there.
        what: names it in errors.

    Raises:
        ConfigError: a link, not a directory, not this user's, or open to others.
        StoreUnreachableError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=False, exist_ok=True)
        found = path.lstat()
    except FileExistsError:
        raise ConfigError(f"{what} {path} is not a directory") from None
    except OSError as exc:
        raise StoreUnreachableError(f"{what} {path}: {exc.strerror}") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{what} {path} is not a directory")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{what} {path} belongs to user {found.st_uid}, this process is {os.geteuid()}")
    if found.st_mode & 0o077:
        raise ConfigError(f"{what} {path} has mode {found.st_mode & 0o777:o}; it must be 700: chmod 700 {path}")
