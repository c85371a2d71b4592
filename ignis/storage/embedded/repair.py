"""Repairs what `check` finds, as far as it can be: nothing is thrown away, what is taken out is laid into ``aside``.

A damaged entry that loaded messages becomes a whole one, of what can still be read of it; every other damaged range becomes
entries that say nothing. So the log is whole again. Messages in it that do not match their own checksums come out as damaged
records (`corrupt` in the sideline).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ignis.native.store import Log, Places
from ignis.private_files import make_directory, open_private
from ignis.regular_files import regular_only
from ignis.storage.embedded.atomic_files import sync_directory, write_whole
from ignis.storage.embedded.check import ASIDE, ClassReport, Problem, Report
from ignis.storage.embedded.format import FORMAT_FILE, LATER_VERSION
from ignis.storage.embedded.log_files import (
    ENTRY_HEADER_BYTES,
    SECTOR_BYTES,
    Segment,
    mended_header,
    seal_entry,
)
from ignis.storage.embedded.salvaged import salvaged
from ignis.storage.os_errors import store_errors

__all__ = ["repair_store"]

_KEY_ENTRY = 9
_LONGEST_ENTRY = 1 << 29
_PIECE = 1 << 20


def repair_store(report: Report) -> None:
    """Repairs what it can of what `check_store` has just found, and notes it in each problem. Nobody may have the store open.

    Raises StoreFullError, StoreFailedError, StoreUnreachableError; may then be called again after another check.
    """
    directory = Path(report.directory)
    with store_errors(str(directory)):
        for problem in report.problems:
            _repair_directory(directory, problem)
        for one in report.classes:
            for problem in one.problems:
                _repair_file(directory, problem)
    for one in report.classes:
        if not any(problem.code == "no-checkpoint" for problem in one.problems):
            _begin_anew(directory / one.durability, one)


def _repair_directory(directory: Path, problem: Problem) -> None:
    path = directory / problem.file
    if problem.code == "format":
        write_whole(
            directory / FORMAT_FILE, json.dumps({"format": LATER_VERSION}).encode()
        )  # there may be delayed messages
        problem.repaired = "written anew"
    elif problem.code == "leftover":
        path.unlink(missing_ok=True)
        problem.repaired = "removed"
    elif problem.code == "mode":
        os.chmod(path, 0o700)
        problem.repaired = "mode 700"


def _repair_file(directory: Path, problem: Problem) -> None:
    path = directory / problem.file
    if problem.code == "leftover":
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
        problem.repaired = "removed"
    elif problem.code == "log-damaged" and problem.offset is not None and problem.bytes:
        aside = _copy_aside(directory, problem)
        _fill(path, problem.offset, problem.bytes, problem.places or Places())
        problem.repaired = f"set aside as {aside}"
    elif problem.code == "segment-short":
        segment = Segment(path)
        size = segment.size
        segment.close()
        os.truncate(path, size)
        problem.repaired = f"{size} bytes again, the end empty"
    elif problem.code == "segment-damaged" and _mend_header(path):
        problem.repaired = "the one byte of its header that was wrong is right again"
    elif problem.code in ("segment-damaged", "checkpoint-damaged"):
        to = _aside(directory, problem) / path.name
        os.rename(path, to)
        sync_directory(to.parent)
        sync_directory(path.parent)
        problem.repaired = f"set aside as {to.relative_to(directory)}"


def _mend_header(path: Path) -> bool:
    with open(path, "rb", opener=regular_only) as file:
        mended = mended_header(file.read(SECTOR_BYTES))
    if mended is None:
        return False
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, mended, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _aside(directory: Path, problem: Problem) -> Path:
    place = directory / ASIDE / Path(problem.file).parent
    for one in (directory / ASIDE, place):
        make_directory(one)
    for made in (place, place.parent, directory):
        sync_directory(made)
    return place


def _copy_aside(directory: Path, problem: Problem) -> str:
    """The damaged bytes in a file of their own, and beside it why."""
    path, offset, left = directory / problem.file, problem.offset or 0, problem.bytes or 0
    to = _aside(directory, problem) / f"{path.name}@{offset}"
    with open(path, "rb", opener=regular_only) as source, open(to, "wb", opener=open_private) as copy:
        source.seek(offset)
        while left > 0 and (piece := source.read(min(_PIECE, left))):
            copy.write(piece)
            left -= len(piece)
        copy.flush()
        os.fsync(copy.fileno())
    write_whole(to.with_name(f"{to.name}.reason"), f"{problem.what}\n".encode())
    return str(to.relative_to(directory))


def _fill(path: Path, offset: int, count: int, places: Places) -> None:
    """What can be read of a damaged range as whole entries, and entries that say nothing in place of the rest."""
    segment = Segment(path)
    salt, base = segment.salt, segment.base
    position = base + offset - SECTOR_BYTES
    until = position + count
    kept = salvaged(segment, position, until, places)
    segment.close()
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for one in kept:
            if one.entry is None:
                continue
            _fill_empty(fd, position, one.position, salt, base)
            _write(fd, one.entry, one.position - base + SECTOR_BYTES)
            position = one.next
        _fill_empty(fd, position, until, salt, base)
        os.fsync(fd)
    finally:
        os.close(fd)


def _fill_empty(fd: int, position: int, until: int, salt: int, base: int) -> None:
    while (count := until - position) > 0:
        length = min(count, _LONGEST_ENTRY)
        if 0 < count - length < ENTRY_HEADER_BYTES:
            length -= ENTRY_HEADER_BYTES
        entry = seal_entry(_KEY_ENTRY, bytes(length - ENTRY_HEADER_BYTES), salt, position)
        _write(fd, entry, position - base + SECTOR_BYTES)
        position += length


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]


def _begin_anew(path: Path, report: ClassReport) -> None:
    """Opens the log twice, each time with a checkpoint: from then on nothing before the repair is needed to open it."""
    for _ in range(2):
        log = Log(str(path), pass_over=True)
        try:
            log.checkpoint()
        finally:
            log.close()
    for problem in report.problems:
        if problem.code == "segment-missing":
            problem.repaired = "passed over: what it held is gone"
        elif problem.code == "tail":
            problem.repaired = "cut"
