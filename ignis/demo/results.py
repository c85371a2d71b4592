"""What the workers have handled: one append-only file per worker process, one fixed-size entry per handled message.

An entry is written before the handler returns, so before the message can be acknowledged. Hence whatever a killed
worker had not acknowledged is delivered again and noted again: never lost, perhaps twice, and the reader counts each
flight once. What was written survives ``kill -9`` (it is in the page cache); a half-written last entry is passed over.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ignis.private_files import open_private

__all__ = ["Entry", "ResultsWriter", "count_entries", "read_entries"]

_LAYOUT = struct.Struct("<QQIhh2sBB4x")
"""Handled at, published at (both microseconds), row, departure and arrival delay, carrier, failed deliveries,
attempt."""
SUFFIX = ".results"
_NO_DELAY = -0x8000


class Entry(NamedTuple):
    """One handled flight. Delays None = there was none; ``attempts``: deliveries that failed before; ``attempt``: the one that
    succeeded, counted since the flight last came out of the sideline."""

    handled_at_us: int
    published_at_us: int
    row: int
    dep_delay: int | None
    arr_delay: int | None
    carrier: str
    attempts: int
    attempt: int = 1


class ResultsWriter:
    """Appends entries, one system call each: nothing is buffered in a process that may be killed. For one thread."""

    def __init__(self, directory: Path) -> None:
        path = directory / f"{os.getpid()}{SUFFIX}"
        self._fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, entry: Entry) -> None:
        packed = _LAYOUT.pack(
            entry.handled_at_us,
            entry.published_at_us,
            entry.row,
            _NO_DELAY if entry.dep_delay is None else entry.dep_delay,
            _NO_DELAY if entry.arr_delay is None else entry.arr_delay,
            entry.carrier.encode("ascii"),
            min(entry.attempts, 255),
            min(entry.attempt, 255),
        )
        if os.write(self._fd, packed) != _LAYOUT.size:
            raise OSError("the results file took only part of an entry")


def result_files(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{SUFFIX}"))


def count_entries(directory: Path, pid: int | None = None) -> int:
    """Entries written so far, by all workers or by one; cheap enough to poll."""
    paths = result_files(directory) if pid is None else [directory / f"{pid}{SUFFIX}"]
    return sum(path.stat().st_size // _LAYOUT.size for path in paths if path.exists())


def read_entries(directory: Path) -> Iterator[Entry]:
    """All entries of all workers, each worker's in its order."""
    for path in result_files(directory):
        data = path.read_bytes()
        whole = len(data) - len(data) % _LAYOUT.size
        for handled, published, row, dep, arr, carrier, attempts, attempt in _LAYOUT.iter_unpack(data[:whole]):
            yield Entry(
                handled,
                published,
                row,
                None if dep == _NO_DELAY else dep,
                None if arr == _NO_DELAY else arr,
                carrier.rstrip(b"\0").decode("ascii"),
                attempts,
                attempt,
            )
