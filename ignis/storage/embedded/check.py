"""Looks at a store that nobody has open, and says what is wrong with it. Changes nothing.

The log is read by `log_files`, not by the engine, so what the engine wrote is judged by somebody else. Every file, every
checksum is looked at: also of what the next opening would not read, since messages live there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ignis.errors import ConfigError, IgnisError, StoreBusyError, StoreFormatError, StoreUnreachableError
from ignis.native.store import Places
from ignis.regular_files import read_bytes, regular_only
from ignis.storage.checks import DURABILITIES
from ignis.storage.embedded.format import FORMAT_FILE, check_format, refuse_former
from ignis.storage.embedded.log_files import (
    SECTOR_BYTES,
    Checkpoint,
    Control,
    Entry,
    FileDamaged,
    FileOfAnotherVersion,
    NothingWritten,
    Segment,
    parse_name,
)
from ignis.storage.embedded.options import StoreOptions
from ignis.storage.embedded.owners import FILE as OWNERS_FILE
from ignis.storage.embedded.owners import whole_file
from ignis.storage.embedded.room import free_bytes, segment_bytes
from ignis.storage.embedded.salvaged import PlacesRead, salvaged
from ignis.storage.os_errors import store_errors
from ignis.storage.private_directory import check_way
from ignis.urls import masked

__all__ = ["Alone", "ClassReport", "Problem", "Report", "check_store"]

ASIDE = "aside"
_OTHERS = {FORMAT_FILE, OWNERS_FILE, "clock", ASIDE, "lost+found", *DURABILITIES}
_ELECTION = re.compile(r"(leader|member)-.+\.lock")
_READ_ONLY = (
    "on a read-only file system: nobody writes from here, but whether the store is open where it can be written, or was when "
    "this copy of it was made, is not known; then there may be more at the log's end than what was looked at"
)
_CALLED = {"log": "segment", "checkpoint": "checkpoint", "control": "control"}


@dataclass
class Problem:
    """Something that is not as it should be.

    ``code``: for programs. ``harmless``: nothing that was acknowledged is lost by it. ``offset`` and ``bytes``: where in the
    file, when it is not all of it. ``readable`` and ``unreadable``: of the messages that were loaded there.
    """

    code: str
    file: str
    what: str
    offset: int | None = None
    bytes: int | None = None
    readable: int | None = None
    unreadable: int | None = None
    harmless: bool = False
    repaired: str = ""
    places: Places | None = field(default=None, repr=False)
    """Before a damaged range of a log."""

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, "") and name != "places"}


@dataclass
class ClassReport:
    """The log of one durability class."""

    durability: str
    segments: int = 0
    log_bytes: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    generation: int = 0
    checkpoints: int = 0
    checkpoint_position: int | None = None
    end_position: int = 0
    problems: list[Problem] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name != "problems"},
            "entries": dict(sorted(self.entries.items())),
            "problems": [one.document() for one in self.problems],
        }


@dataclass
class Report:
    """What `check_store` found."""

    directory: str
    classes: list[ClassReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    free_bytes: int | None = None
    """On the file system; None = it does not say."""
    short_of_room: bool = False
    """Whether there is less than a log takes next: loads are refused, or will be soon. The store may be sound all the same."""
    """Of the directory itself."""

    def all_problems(self) -> list[Problem]:
        return [*self.problems, *(problem for one in self.classes for problem in one.problems)]

    @property
    def sound(self) -> bool:
        return all(one.harmless for one in self.all_problems())

    def document(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "sound": self.sound,
            "room": None if self.free_bytes is None else {"free_bytes": self.free_bytes, "short": self.short_of_room},
            "problems": [one.document() for one in self.problems],
            "classes": [one.document() for one in self.classes],
        }


class Alone:
    """Nobody has the store open, and nobody opens it, as long as the block lasts.

    On a read-only file system that holds for this machine's other mounts of the same files alone: where else they can be
    written, or what was under way when they were copied, cannot be known.

    Args:
        directory: of the store.
        writes: the block changes files.

    Raises StoreBusyError, StoreUnreachableError (also for a block that writes on a read-only file system), and ConfigError for
    the store of another user.
    """

    def __init__(self, directory: Path, *, writes: bool = True) -> None:
        self._path = directory / OWNERS_FILE
        self._writes = writes
        self._fd = -1

    def __enter__(self) -> Alone:
        with store_errors(str(self._path)):
            _check_owner(self._path.parent)
            read_only = _is_read_only(self._path.parent)
            if read_only and self._writes:
                raise StoreUnreachableError(
                    f"store: {self._path.parent} is on a read-only file system: repair it where it can be written, or a copy"
                )
            try:
                self._fd = os.open(self._path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                return self  # never opened, or no store at all
            try:
                # To read is enough to keep out whoever writes: a store that is open has its byte for itself alone.
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, whole_file(fcntl.F_RDLCK if read_only else fcntl.F_WRLCK))
            except BlockingIOError:
                os.close(self._fd)
                self._fd = -1
                raise StoreBusyError(
                    f"{self._path.parent} is open in a process: stop what uses it, then try again"
                ) from None
        return self

    def __exit__(self, *exc: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def check_store(directory: Path) -> Report:
    """Reads all of the store in that directory, which nobody may have open (`Alone`).

    Raises StoreUnreachableError when there is none, StoreFormatError when it is of another version, ConfigError when it is
    another user's.
    """
    with store_errors(str(directory)):
        if not directory.is_dir():
            said = ": it is a file, and a store is a directory" if directory.exists() else ""
            raise StoreUnreachableError(f"no store at {masked(str(directory))}{said}")
        _check_owner(directory)
        refuse_former(directory)
        report = Report(str(directory))
        names = sorted(os.listdir(directory))
        classes = [name for name in DURABILITIES if (directory / name).is_dir()]
        _check_directory(report, directory, names, classes)
        read_only = _is_read_only(directory)
        if read_only:
            report.problems.append(Problem("read-only", ".", _READ_ONLY, harmless=True))
        report.classes += (_check_class(directory / name, name) for name in classes)
        with contextlib.suppress(OSError):  # a file system that does not say
            report.free_bytes = free_bytes(directory)
            report.short_of_room = not read_only and report.free_bytes < segment_bytes(
                directory, StoreOptions().max_store_bytes
            )
    return report


def _is_read_only(directory: Path) -> bool:
    """Whether nothing can be written there, whoever asks."""
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOSYS):
            return False  # what is wrong is said elsewhere
        raise


def _check_owner(directory: Path) -> None:
    """Raises ConfigError for a directory of another user, root not left out: its owner may have put links and named pipes
    there, for whoever looks to read, to wait at, or to repair what they name."""
    try:
        owner = os.stat(directory).st_uid
    except FileNotFoundError:
        return  # which is said elsewhere
    if owner != os.geteuid():
        raise ConfigError(
            f"store directory {directory} belongs to user {owner}: look at it as that user, such as with sudo -u '#{owner}'"
        )


def _check_directory(report: Report, directory: Path, names: list[str], classes: list[str]) -> None:
    try:
        check_format(directory)
    except StoreFormatError as exc:
        if not classes and FORMAT_FILE not in names:
            raise StoreUnreachableError(f"no store at {masked(str(directory))}") from None
        if not classes or _has_version(directory):
            raise  # no store, or one of another version
        report.problems.append(Problem("format", FORMAT_FILE, str(exc)))
    except IgnisError:
        raise
    for place in (".", *classes):
        mode = stat.S_IMODE(os.stat(directory / place).st_mode)
        if mode & 0o022:
            report.problems.append(Problem("mode", place, f"mode {mode:o}: others could replace files; chmod go-w it"))
    try:
        check_way(directory, "store directory")
    except ConfigError as exc:
        report.problems.append(Problem("place", ".", str(exc)))
    for name in names:
        if name.endswith(".new"):
            report.problems.append(
                Problem("leftover", name, "left by a process that ended while it wrote", harmless=True)
            )
        elif name not in _OTHERS and not _ELECTION.fullmatch(name):
            report.problems.append(Problem("stranger", name, "no file of a store", harmless=True))


def _has_version(directory: Path) -> bool:
    """Whether the format file can be read: then it is another version's, and no damage."""
    try:
        return type(json.loads(read_bytes(directory / FORMAT_FILE))["format"]) is int
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def _check_class(path: Path, durability: str) -> ClassReport:
    report = ClassReport(durability)
    segments: list[Segment] = []
    checkpoints: list[Checkpoint] = []
    try:
        names = sorted(os.listdir(path))
        for name in names:
            _check_file(report, path / name, f"{durability}/{name}", segments, checkpoints)
        controls = [name for name in names if name.startswith("control-")]
        control = Control.read(path / controls[-1]) if controls else None
        _check_log(report, durability, segments, checkpoints, control)
    finally:
        for segment in segments:
            segment.close()
    return report


def _unread(name: str, shown: str) -> Problem:
    if name.startswith("damaged-"):
        return Problem("aside", shown, "a copy of what was damaged, kept for you; no program reads it", harmless=True)
    return Problem("stranger", shown, "no file of a log", harmless=True)


def _check_file(
    report: ClassReport, path: Path, shown: str, segments: list[Segment], checkpoints: list[Checkpoint]
) -> None:
    named = parse_name(path.name)
    if named is None:
        report.problems.append(_unread(path.name, shown))
        return
    kind, generation, number = named
    if kind.startswith("tmp-"):
        _check_temporary(report, kind, shown)
        return
    try:
        if kind == "log":
            segment = Segment(path)
            segments.append(segment)
            if (segment.generation, segment.number) != (generation, number):
                raise FileDamaged(f"its header is that of segment {segment.generation:x}-{segment.number:x}")
            if segment.file_bytes < segment.size:
                what = f"it was cut short: {segment.file_bytes} of {segment.size} bytes are left"
                report.problems.append(Problem("segment-short", shown, what))
            report.segments += 1
            report.log_bytes += segment.file_bytes
            report.generation = max(report.generation, generation)
        elif kind == "checkpoint":
            found = Checkpoint.read(path)
            if (found.generation, found.position) != (generation, number):
                raise FileDamaged(f"its header is that of checkpoint {found.generation:x}-{found.position:x}")
            checkpoints.append(found)
    except NothingWritten as exc:
        if _all_zeros(path):
            report.problems.append(Problem("leftover", shown, "begun by a process that ended then", harmless=True))
        else:
            report.problems.append(Problem("segment-damaged", shown, str(exc)))
    except FileDamaged as exc:
        # The engine takes it for not there. A checkpoint has another one behind it, or the log from its beginning.
        if segments and segments[-1].path == path:
            segments.pop().close()
        if kind == "log" and _all_zeros(path, SECTOR_BYTES):
            report.problems.append(Problem("leftover", shown, "begun by a process that ended then", harmless=True))
            return
        report.problems.append(Problem(f"{_CALLED[kind]}-damaged", shown, str(exc), harmless=kind == "checkpoint"))
    except FileOfAnotherVersion as exc:
        raise StoreFormatError(f"{path}: {exc}") from None
    except OSError as exc:
        report.problems.append(Problem(f"{_CALLED[kind]}-unreadable", shown, exc.strerror or str(exc)))


def _check_temporary(report: ClassReport, kind: str, shown: str) -> None:
    """Room that the store keeps is no trouble: the next opening gives it back."""
    if kind not in ("tmp-ahead", "tmp-spare"):
        report.problems.append(Problem("leftover", shown, "left by a process that ended while it wrote", harmless=True))


def _all_zeros(path: Path, start: int = 0) -> bool:
    with open(path, "rb", opener=regular_only) as file:
        file.seek(start)
        while piece := file.read(1 << 20):
            if any(piece):
                return False
    return True


def _check_log(
    report: ClassReport, shown: str, segments: list[Segment], checkpoints: list[Checkpoint], control: Control | None
) -> None:
    segments.sort(key=lambda one: (one.generation, one.number))
    stores = {one.store for one in segments} | {one.store for one in checkpoints}
    if len(stores) > 1:
        report.problems.append(Problem("two-stores", shown, f"files of {len(stores)} stores lie in one directory"))
        return
    for place, segment in enumerate(segments):
        for before in segments[:place]:
            before.limit = min(before.limit, segment.base)
    holding = sorted((one for one in segments if one.base < one.limit), key=lambda one: one.base)
    # One that a later generation began below of is not used.
    good = sorted(
        (
            one
            for one in checkpoints
            if not any(s.generation > one.generation and s.base < one.position for s in segments)
        ),
        key=lambda one: (one.position, one.generation),
    )
    report.checkpoints = len(good)
    report.checkpoint_position = good[-1].position if good else None
    from_start = any(one.base == 0 for one in segments)
    if segments and not good and not from_start:
        report.problems.append(
            Problem(
                "no-checkpoint",
                shown,
                "no checkpoint is whole, and the beginning of the log is gone: it cannot be opened",
            )
        )
    # Behind the older of two checkpoints everything must be there; before it only what still holds messages.
    needed = good[-2:][0].position if good else 0
    _check_missing(report, shown, segments, holding, good[-1] if good else None, control)
    position = holding[0].base if holding else 0
    bases = {one.base for one in holding}
    places = PlacesRead()
    for segment in holding:
        if segment.base > position and segment.base > needed:
            start = max(position, needed)
            report.problems.append(
                Problem(
                    "segment-missing",
                    shown,
                    f"positions {start:#x} to {segment.base:#x} are in no file",
                    bytes=segment.base - start,
                )
            )
        # What came behind it was taken away: it ended somewhere before the older checkpoint, and its file says where.
        last = segment is holding[-1]
        open_before = 0 if last or segment.limit in bases else needed
        places.begin(segment, segment.base)
        position = _check_entries(report, shown, segment, max(position, segment.base), last, open_before, places)
    for problem in report.problems:
        if problem.code == "log-damaged" and problem.readable is not None and problem.unreadable is not None:
            loaded = problem.readable + problem.unreadable
            problem.what += f"; {problem.readable} of the {loaded} messages loaded there can be read"
    report.end_position = position


def _check_missing(
    report: ClassReport,
    shown: str,
    segments: list[Segment],
    holding: list[Segment],
    checkpoint: Checkpoint | None,
    control: Control | None,
) -> None:
    """Segments of which a checkpoint or the control file says that they were there."""
    there = {(one.generation, one.number) for one in segments}
    missing: dict[tuple[int, int], str] = {}
    if checkpoint is not None and checkpoint.segments:
        for generation, number, base, living in checkpoint.segments[:-1]:
            if living and (generation, number) not in there:
                missing[generation, number] = f"{living} bytes of messages lived in it, from position {base:#x} on"
        generation, number, base, _ = checkpoint.segments[-1]
        newest = max(
            ((one.generation, one.number) for one in holding if one.base <= checkpoint.position), default=(0, 0)
        )
        if newest < (generation, number):
            missing[generation, number] = (
                f"it was written when the newest checkpoint was made, from position {base:#x} on"
            )
    if control is not None and all(one.generation <= control.generation for one in segments):
        for one in segments:
            if (one.generation, one.number) == (control.generation, control.number) and control.durable <= one.end:
                one.flushed = max(one.flushed, control.durable)
        if (control.generation, control.number) not in there:
            missing[control.generation, control.number] = (
                f"it was written last, and the log was flushed up to position {control.durable:#x}"
            )
    told = {one.file for one in report.problems if one.code == "segment-damaged"}
    for (generation, number), why in missing.items():
        file = f"{shown}/log-{generation:016x}-{number:016x}"
        if file not in told:
            report.problems.append(Problem("segment-missing", file, f"it is not there: {why}"))


def _check_entries(
    report: ClassReport,
    shown: str,
    segment: Segment,
    position: int,
    last: bool,
    open_before: int,
    places: PlacesRead,
) -> int:
    """Returns where the segment's entries end.

    ``last``: of the log. ``open_before``: nobody says where it ends, but that it does before this position; 0 = its limit does.
    """
    while position < segment.limit:
        try:
            entry = segment.entry_at(position)
        except FileDamaged as exc:
            why = str(exc)
        else:
            if entry is not None:
                report.entries[entry.kind] += 1
                _count_missing(report, places.see(segment, entry))
                position = entry.next
                continue
            if segment.flushed <= position < open_before and not segment.written_behind(position):
                return segment.limit  # its unused end
            why = f"position {position:#x} (offset {segment.offset(position)}): nothing was written here"
        behind = segment.search(position, segment.limit)
        if behind is not None:
            until = behind.position
        else:
            until = segment.flushed if last else segment.limit
        if last and position >= segment.flushed and (behind is None or not _once_durable(segment, behind, position)):
            _check_tail(report, shown, segment, position)
            return position
        report.problems.append(_damage(f"{shown}/{segment.path.name}", segment, position, until, why, places.places))
        position = until
    return position


def _damage(shown: str, segment: Segment, position: int, until: int, why: str, places: Places) -> Problem:
    problem = Problem("log-damaged", shown, why, offset=segment.offset(position), bytes=until - position)
    problem.places = places.copy()
    if found := salvaged(segment, position, until, places):
        problem.readable = sum(one.readable for one in found)
        problem.unreadable = sum(one.unreadable for one in found)
    return problem


def _count_missing(report: ClassReport, records: int) -> None:
    """They were in the damage before: the pointers behind it say so."""
    damaged = [problem for problem in report.problems if problem.code == "log-damaged"] if records else []
    if damaged:
        damaged[-1].readable = damaged[-1].readable or 0
        damaged[-1].unreadable = (damaged[-1].unreadable or 0) + records


def _once_durable(segment: Segment, entry: Entry | None, position: int) -> bool:
    """Whether an entry behind a position says that it was flushed: what is there was on the disk, and is damaged now. If not,
    it is a tail that did not all get there. They are looked through once."""
    if segment.witnessed is None:
        segment.witnessed = 0
        while entry is not None:
            segment.witnessed, behind = max(segment.witnessed, entry.durable), entry.next
            try:
                entry = segment.entry_at(behind) if behind < segment.limit else None
            except FileDamaged:
                entry = None
            entry = entry or segment.search(behind, segment.limit)
    return segment.witnessed > position


def _check_tail(report: ClassReport, shown: str, segment: Segment, position: int) -> None:
    left = segment.written_behind(position)
    if left:
        what = "the end of the log did not all get to the disk before the power went; the next opening cuts it there"
        report.problems.append(
            Problem(
                "tail", f"{shown}/{segment.path.name}", what, offset=segment.offset(position), bytes=left, harmless=True
            )
        )
