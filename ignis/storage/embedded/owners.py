"""Who holds claims, and who of them is dead, as the kernel says it.

Each opened store locks one byte of the file ``owners``, at a random offset, with an open-file-description lock. The kernel
drops the lock with the last descriptor of that opening, however its process ends and whatever pid namespace it lives in.
The file holds nothing but a number drawn when it was made: who locked a byte of another file, which somebody has
removed since, may live.

One byte behind all of these is locked by whoever opens the directory: one at a time.

A claim is stored under an owner's name and, behind ``0x1f``, what proves a death:

* ``l<offset>@<number of the file>``: the store that made the claim. Dead when nobody holds that byte: so is everybody of an
  earlier boot.
* ``p<pid>.<start time>.<namespace>.<boot>``: a process that another one made the claim for (a broker for its client).
* nothing: a job. It is nobody's death that ends its claims.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ignis.errors import StoreBusyError, StoreUnreachableError
from ignis.storage.embedded.atomic_files import create_whole
from ignis.storage.os_errors import store_errors
from ignis.storage.process_identity import Identity
from ignis.storage.records import Owner, Process

__all__ = ["Life", "Owners", "claimed_by_store", "owner_text", "process_of", "stored_owner", "whole_file"]

FILE = "owners"
SEPARATOR = "\x1f"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of a 64-bit system
_OFFSET_BITS = 62
_FILE_NUMBER_BYTES = 16
_ATTEMPTS = 16
_OPENING = 1 << _OFFSET_BITS
"""The byte of whoever opens the directory."""
_DOCTOR = "another process holds all of it, as 'ignis doctor' does while it works"
_OPENING_WAIT_S, _OPENING_PAUSE_S = 10.0, 0.005


def stored_owner(owner: str, life: Life) -> str:
    """Under what a claim in that owner's name is stored. A plain text stands for the store of that life."""
    if not isinstance(owner, Owner):
        return f"{owner}{SEPARATOR}l{life.offset:x}@{life.file}"
    process = owner.process
    if not process.start_time:
        return str(owner)
    return f"{owner}{SEPARATOR}p{process.pid}.{process.start_time}.{process.namespace}.{process.boot}"


def owner_text(stored: str) -> str:
    """The owner's name in what `stored_owner` made."""
    return stored.partition(SEPARATOR)[0]


def claimed_by_store(stored: str) -> bool:
    """Whether the store itself stands behind what `stored_owner` made, and no process that it claimed for."""
    return _proof(stored)[0] == "l"


class Life:
    """One opened store, alive until it is closed or its process ends."""

    __slots__ = ("_fd", "file", "offset")

    def __init__(self, fd: int, offset: int, file: str) -> None:
        self._fd = fd
        self.offset = offset
        self.file = file

    def end(self) -> None:
        """Idempotent. In the child of a fork it must be called too: the lock is the descriptor's, not the process's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Owners:
    """The file ``owners`` of one directory. Thread-safe.

    Raises StoreUnreachableError when it cannot be opened.
    """

    def __init__(self, directory: Path, here: Identity) -> None:
        self._path = directory / FILE
        self._here = here
        self._lock = threading.Lock()
        self._lives: set[Life] = set()
        # A descriptor that never locks: one that holds a byte is not told of its own lock.
        with store_errors(str(self._path)), _told_read_only(self._path.parent):
            create_whole(self._path, secrets.token_hex(_FILE_NUMBER_BYTES).encode())
        self._probe = self._open()
        self._file = os.pread(self._probe, 2 * _FILE_NUMBER_BYTES, 0).decode("ascii", "replace")

    def begin(self) -> Life:
        """A life of its own for a store that is opened. Raises StoreUnreachableError; StoreBusyError while a doctor is at it."""
        with self._lock, store_errors(str(self._path)):
            fd = self._open()
            try:
                if not os.path.sameopenfile(fd, self._probe):
                    raise StoreUnreachableError(
                        f"store: {self._path} was removed or replaced while the store is open; open it again"
                    )
                for _ in range(_ATTEMPTS):
                    offset = secrets.randbits(_OFFSET_BITS)
                    try:
                        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, offset))
                    except BlockingIOError:
                        continue  # somebody's already
                    life = Life(fd, offset, self._file)
                    self._lives.add(life)
                    return life
                raise StoreBusyError(f"store: {self._path}: no byte could be locked in {_ATTEMPTS} attempts: {_DOCTOR}")
            except BaseException:
                os.close(fd)
                raise

    @contextmanager
    def opening(self) -> Iterator[bool]:
        """Keeps out who else opens the directory until the block ends, and tells it whether nobody has it open. A life that began
        within such a block is seen by all that come later.

        Raises StoreUnreachableError; StoreBusyError while a doctor is at it, and where another opening lasts for 10 s.
        """
        fd = self._open()
        try:
            with store_errors(str(self._path)):
                self._wait_for_opening(fd)
                alone = _held_by(fd, 0, _OPENING) is None
            try:
                yield alone
            finally:  # not with the descriptor alone: a child may have it
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, _OPENING))
        finally:
            os.close(fd)

    def _wait_for_opening(self, fd: int) -> None:
        until_s = time.monotonic() + _OPENING_WAIT_S
        while True:
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, _OPENING))
                return
            except BlockingIOError:
                held = _held_by(fd, _OPENING, 1)
            if held == (0, 0):
                raise StoreBusyError(f"store: {self._path}: {_DOCTOR}")
            if time.monotonic() > until_s:
                raise StoreBusyError(
                    f"store: {self._path.parent} is being opened by another process for over {_OPENING_WAIT_S:g} s; let that "
                    "process go on, or end it"
                )
            time.sleep(_OPENING_PAUSE_S)

    def end(self, life: Life) -> None:
        with self._lock:
            self._lives.discard(life)
            life.end()

    def dead(self, stored: str) -> bool:
        """Whether whoever stands behind a claim is provably dead."""
        kind, proof = _proof(stored)
        if kind == "l":
            return self._ended(proof)
        if kind == "p":
            process = _process(proof)
            return process is not None and process.provably_dead(self._here)
        return False

    def _ended(self, proof: str) -> bool:
        try:
            number, _, file = proof.partition("@")
            if file != self._file:
                return False
            offset = int(number, 16)
            # The file that stores open now is another one, when somebody replaced it: nothing can be told by this one.
            mine, named = os.fstat(self._probe), os.stat(self._path)
            if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino):
                return False
            return _held_by(self._probe, offset, 1) is None
        except (OSError, ValueError, struct.error):
            return False

    def close(self) -> None:
        """Idempotent. Ends the lives that are left."""
        with self._lock:
            for life in self._lives:
                life.end()
            self._lives.clear()
            probe, self._probe = self._probe, -1
            if probe >= 0:
                os.close(probe)

    def abandon(self) -> None:
        """In the child of a fork: lets go of everything, without the lock, which a thread may hold that is not here."""
        for life in list(self._lives):
            life.end()
        if self._probe >= 0:
            os.close(self._probe)
            self._probe = -1

    def _open(self) -> int:
        with store_errors(str(self._path)), _told_read_only(self._path.parent):
            return os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


@contextmanager
def _told_read_only(directory: Path) -> Iterator[None]:
    """Whoever opens a store writes: why, and what can be done, is more than the system says."""
    try:
        yield
    except OSError as exc:
        if exc.errno != errno.EROFS:
            raise
        raise StoreUnreachableError(
            f"store: {directory} is on a read-only file system, and whoever opens a store writes into its files, also to look at "
            f"it: name a copy that can be written. 'ignis doctor {directory}' checks the files there as they are"
        ) from exc


def _flock(kind: int, offset: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)


def _held_by(fd: int, offset: int, count: int) -> tuple[int, int] | None:
    """What somebody else has locked of these bytes: where it begins and how long it is, 0 = to the end. None = nothing."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, count, 0))
    kind, _, start, length, _ = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else (start, length)


def whole_file(kind: int) -> bytes:
    """A ``struct flock`` over all bytes that a store may lock."""
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _proof(stored: str) -> tuple[str, str]:
    text = stored.partition(SEPARATOR)[2]
    return text[:1], text[1:]


def _process(proof: str) -> Identity | None:
    parts = proof.split(".", 3)
    try:
        return Identity(int(parts[0]), int(parts[1]), int(parts[2]), parts[3])
    except (ValueError, IndexError):
        return None


def process_of(stored: str) -> Process | None:
    """The process that a claim was made for; None where it was made by a store, or by a job."""
    kind, proof = _proof(stored)
    return _process(proof) if kind == "p" else None
