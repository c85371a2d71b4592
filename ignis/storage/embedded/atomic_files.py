"""Small files that must be whole or absent, and directories that must be on the disk."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ignis.private_files import open_private
from ignis.regular_files import read_bytes

__all__ = ["create_whole", "overwrite", "read_or_none", "remove", "sync_directory", "write_whole"]


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file; after a power cut it holds either the old or the new bytes."""
    fresh = _write_beside(path, data)
    os.rename(fresh, path)
    sync_directory(path.parent)


def overwrite(path: Path, data: bytes) -> None:
    """Writes over a small file's bytes, which takes no room on most file systems. After a power cut it may be torn."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def create_whole(path: Path, data: bytes) -> None:
    """Creates a file unless there is one, also when several processes do so at the same time: the first one's stays."""
    if path.exists():
        return
    fresh = _write_beside(path, data)
    try:
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        remove(fresh)
    sync_directory(path.parent)


def _write_beside(path: Path, data: bytes) -> Path:
    """The bytes, on the disk, in a file that no other process or thread uses."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    fd = open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except BaseException:
        remove(fresh)
        raise
    finally:
        os.close(fd)
    return fresh


def read_or_none(path: Path) -> bytes | None:
    """The file's bytes, or None when there is no such file."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None


def remove(path: Path) -> None:
    """Removes a file if it is there."""
    with suppress(FileNotFoundError):
        path.unlink()
