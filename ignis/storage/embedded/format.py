"""What a store's directory holds, and whether this version may touch it. Looked at before a byte is written.

| name | what |
| --- | --- |
| ``format`` | the version, in JSON |
| ``owners`` | bytes that living stores lock, see `owners` |
| ``clock`` | see `ignis.storage.embedded.clock` |
| ``sync``, ``interval``, ``none`` | the log of a durability class, made when it is first used |
"""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from ignis.errors import ConfigError, StoreFormatError, StoreFullError, StoreUnreachableError
from ignis.log_format import event_text
from ignis.regular_files import regular_only
from ignis.storage.embedded.atomic_files import create_whole, read_or_none, sync_directory, write_whole
from ignis.storage.embedded.log_files import (
    FileDamaged,
    FileOfAnotherVersion,
    NothingWritten,
    SegmentHeader,
    parse_name,
)
from ignis.storage.os_errors import NO_ROOM, room_left, store_errors
from ignis.storage.private_directory import as_owner, check_way, make_way

__all__ = [
    "FORMAT_FILE",
    "FORMAT_VERSION",
    "LATER_VERSION",
    "check_format",
    "check_private",
    "keep_later",
    "look_at_segments",
    "prepare",
    "refuse_former",
]

log = logging.getLogger("ignis.storage")

FORMAT_VERSION = 2
LATER_VERSION = 3
"""As `FORMAT_VERSION`, but there may be due times in the logs: what cannot read them must not open the store."""
FORMAT_FILE = "format"
_FORMER_FILE = "FORMAT"
_BEFORE_FORMAT = {"lost+found"}


def prepare(path: Path, create: bool) -> None:
    """Makes a store's directory where there is none.

    Raises StoreUnreachableError when there is none and ``create`` is false; ConfigError for a directory in which others could
    replace files, or that they could replace as a whole; StoreFormatError for one that holds something else, or a store of
    another format. Then nothing is written.
    """
    with store_errors(f"directory {path}"):
        check_way(path, "store directory")
        if not path.is_dir():
            if path.exists() and not path.is_dir():  # in this order: somebody else may just be making it
                raise StoreUnreachableError(f"no store at {path}: it is a file, and a store is a directory")
            if not create:
                raise _missing(path)
            make_way(path)
            sync_directory(path.parent)
            check_way(path, "store directory")
        check_private(path)
        names = os.listdir(path)
        if FORMAT_FILE not in names:
            _check_empty(path, names)
            if FORMAT_FILE not in os.listdir(path):  # somebody else may just have made it
                if not create:
                    raise _missing(path)
                create_whole(path / FORMAT_FILE, json.dumps({"format": FORMAT_VERSION}).encode())
        check_format(path)


def _missing(path: Path) -> StoreUnreachableError:
    error = StoreUnreachableError(f"no store at {path}")
    error.missing = True
    return error


def _check_empty(path: Path, names: list[str]) -> None:
    refuse_former(path)
    strangers = [
        name
        for name in names
        if name not in _BEFORE_FORMAT and not (name.startswith(f"{FORMAT_FILE}.") and name.endswith(".new"))
    ]
    if strangers and FORMAT_FILE not in os.listdir(path):
        raise StoreFormatError(f"{path} is not a store and not empty: it has {min(strangers)!r}")


def refuse_former(path: Path) -> None:
    """Raises StoreFormatError for a directory with the files of the embedded store that was kept in LMDB."""
    if (path / _FORMER_FILE).exists():
        raise StoreFormatError(
            f"{path} holds an embedded store of format 1, which was kept in LMDB; this version reads format {FORMAT_VERSION}. "
            f"Drain it with the version that wrote it, or name another directory"
        )


def check_format(path: Path) -> None:
    """Raises StoreFormatError unless the directory holds a store of this version's format."""
    text = read_or_none(path / FORMAT_FILE)
    try:
        version = json.loads(text or b"")["format"]
        if type(version) is not int:
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise StoreFormatError(f"{path / FORMAT_FILE} is not the format file of a store") from None
    if version not in (FORMAT_VERSION, LATER_VERSION):
        raise StoreFormatError(
            f"{path} holds a store of format {version}, this version reads {FORMAT_VERSION} and {LATER_VERSION}"
        )


def keep_later(path: Path) -> None:
    """From now on there may be delayed messages in the store: versions that do not know them refuse to open it."""
    text = json.dumps({"format": LATER_VERSION}).encode()
    with store_errors(str(path / FORMAT_FILE)):
        if read_or_none(path / FORMAT_FILE) == text:
            return
        try:
            write_whole(path / FORMAT_FILE, text)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
            raise StoreFullError(
                f"store: {path}: the first delayed message raises the store's format, and there is no room on the disk for that "
                f"file: {exc.strerror}{room_left(path, exc)}"
            ) from exc


def look_at_segments(path: Path, directory: Path) -> None:
    """Logs which segments of a log are damaged as a whole: the engine takes those for not there, and what follows from
    the others for all there is. Raises StoreFormatError when none is left: an empty store would stand for a lost one."""
    whole = damaged = 0
    for name in os.listdir(path):
        named = parse_name(name)
        if named is None or named[0] != "log":
            continue
        try:
            with open(path / name, "rb", opener=regular_only) as file:
                header = SegmentHeader.read(file)
                size = os.fstat(file.fileno()).st_size
            whole += 1
            why = f"{size} of its {header.size} bytes are left" if size < header.size else ""
        except (FileNotFoundError, NothingWritten):
            continue  # removed, or begun, at this moment
        except FileDamaged as exc:
            damaged += 1
            why = str(exc)
        except FileOfAnotherVersion as exc:
            raise StoreFormatError(f"{path / name}: {exc}") from None
        if why:
            log.error(
                event_text("format_damaged", "store: %s is damaged: %s; see what 'ignis doctor %s' says"),
                path / name,
                why,
                directory,
            )
    if damaged and not whole:
        raise StoreFormatError(
            f"store: no segment of the log in {path} is whole, {damaged} are damaged; see what 'ignis doctor {directory}' says"
        )


def check_private(path: Path) -> None:
    """Raises ConfigError for a directory in which others could replace files, or put links to what is not theirs, and for
    one in which they did while they could. What root put there is as good as the user's own."""
    found, here = os.stat(path), os.geteuid()
    if found.st_uid != here:
        raise ConfigError(
            f"store directory {path} belongs to user {found.st_uid}, this process is user {here}: its owner could "
            f"replace files. {as_owner(found.st_uid, path)}, or name a directory elsewhere"
        )
    if found.st_mode & 0o022:
        below = not found.st_mode & stat.S_IWOTH or found.st_mode & stat.S_ISVTX
        raise ConfigError(
            f"store directory {path} has mode {found.st_mode & 0o7777:o}: others could replace files. chmod go-w it, "
            f"or name a directory {f'in it that is made now, such as {path}/store' if below else 'elsewhere'}"
        )
    with os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed at this moment
                owner = entry.stat(follow_symlinks=False).st_uid
                if owner not in (here, 0):
                    raise ConfigError(
                        f"{entry.path} in a store of user {here} belongs to user {owner}, who could change it or wait for "
                        f"what is put there: remove it, or name a directory that is made now"
                    )
