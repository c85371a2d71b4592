"""Disks that are full, for tests that run as root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["disk", "fill_disk", "resize"]


@contextlib.contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of that size. Needs root."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "ignis-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, timeout=30, check=False)


def resize(path: Path, size: str) -> None:
    """Gives a file system of `disk` another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(path)], capture_output=True, timeout=30, check=True)


def fill_disk(path: Path) -> None:
    """Takes the disk to its last byte."""
    with open(path, "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))
