"""Words in shared memory by which the processes of one user on one machine wake each other.

No Aerospike server tells anybody that a record was written. A process that loads raises the word of the magazine, and who
waits for that magazine on the same machine sleeps on the word. A word of each shard says where to look. All of it is a
hint: a word may be raised for nothing (two magazines can share one), and a load on another machine raises none. So nobody
waits without a bound, and nobody relies on the words alone.

The file lies in a private directory, so no other user can read, raise or cut it. Where it cannot be had the words are
those of this process alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import threading
import time
from pathlib import Path

from ignis.errors import ConfigError, IgnisError, NativeError
from ignis.log_format import event_text
from ignis.native import EventBoard
from ignis.storage.private_directory import make_private

__all__ = ["AUTO", "MAGAZINES", "SHARDS", "WakeWords", "default_directory"]

log = logging.getLogger("ignis.storage.aerospike")

AUTO = "auto"
MAGAZINES, SHARDS = 4_096, 4_096
"""Words of each kind in the file, 64 bytes each. All processes must have the same numbers."""
_FILE = f"wake-words-{MAGAZINES + SHARDS}"
_LOOK_S = 10.0
"""How often it is looked whether the file is still there: some systems clear /dev/shm when a user logs out."""
_said: set[str] = set()


def default_directory() -> str:
    """Of this user; "" where the machine has no directory for shared memory."""
    memory = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
    return str(memory / f"ignis-wake-{os.geteuid()}") if memory.is_dir() else ""


class WakeWords:
    """The words of one store. Thread-safe; of a process, and not of its children.

    Args:
        directory: where the file is; "" = words of this process alone, `AUTO` = `default_directory`.
        scope: what tells magazines of the same name apart: all processes that mean the same one give the same.
    """

    def __init__(self, directory: str, scope: str) -> None:
        self._scope = scope
        directory = default_directory() if directory == AUTO else directory
        self._wanted = Path(directory) if directory else None
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._inode = 0
        self.path: Path | None = None
        """The file; None: the words are those of this process alone."""
        self._board = self._open()

    def index(self, magazine: str) -> int:
        """The word of a magazine, to sleep on. Others may have the same."""
        return self._hash(magazine) % MAGAZINES

    def shard_indices(self, magazine: str, shards: int) -> list[int]:
        """The words of its shards, which nobody sleeps on. Others may have the same."""
        first = self._hash(magazine) // MAGAZINES
        return [MAGAZINES + (first + shard) % SHARDS for shard in range(shards)]

    def _hash(self, magazine: str) -> int:
        digest = hashlib.blake2b(f"{self._scope}\0{magazine}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def sequence(self, index: int) -> int:
        """How often the word was raised. Read it before the look at the server."""
        board = self._board
        try:
            return board.sequence(index)
        except NativeError as exc:
            return self._without(board, exc).sequence(index)

    def sequences(self, indices: list[int]) -> list[int]:
        """`sequence` of several."""
        board = self._board
        try:
            return [board.sequence(index) for index in indices]
        except NativeError as exc:
            board = self._without(board, exc)
            return [board.sequence(index) for index in indices]

    def notify(self, *indices: int) -> None:
        """Raises the words, in this order, and wakes who sleeps on them."""
        self._look()
        board = self._board
        try:
            for index in indices:
                board.notify(index)
        except NativeError as exc:
            board = self._without(board, exc)
            for index in indices:
                board.notify(index)

    def wait(self, index: int, seen: int, timeout_s: float) -> int:
        """Until the word is not ``seen``, or the time is over; returns what it is."""
        self._look()
        board = self._board
        try:
            return board.wait(index, seen, max(0.0, timeout_s))
        except NativeError as exc:
            return self._without(board, exc).sequence(index)

    def close(self) -> None:
        """Nobody may wait any more."""
        with contextlib.suppress(IgnisError):
            self._board.close(0.0)

    # -- the file

    def _open(self) -> EventBoard:
        if self._wanted is not None:
            try:
                return self._open_file(self._wanted)
            except (IgnisError, OSError) as exc:
                self._say(exc)
        self.path, self._look_at = None, math.inf
        return EventBoard(None, MAGAZINES + SHARDS)

    def _open_file(self, directory: Path) -> EventBoard:
        make_private(directory, "wake directory")
        path = directory / _FILE
        board = EventBoard(path, MAGAZINES + SHARDS)
        # In a private directory nobody else makes files, but root may have.
        found = path.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            board.close(0.0)
            raise ConfigError(
                f"wake file {path} belongs to user {found.st_uid} and has mode {found.st_mode & 0o777:o}; it must belong to "
                f"{os.geteuid()} and have 600: remove it"
            )
        self._inode, self._look_at, self.path = found.st_ino, time.monotonic() + _LOOK_S, path
        return board

    def _look(self) -> None:
        """Opens the file again when it was removed or replaced: who comes after that has another."""
        if time.monotonic() < self._look_at:
            return
        with self._lock:
            path = self.path
            if path is None or time.monotonic() < self._look_at:
                return
            self._look_at = time.monotonic() + _LOOK_S
            try:
                if path.lstat().st_ino == self._inode:
                    return
            except OSError:
                pass
            # The old one is unmapped when the last thread has left it.
            self._board = self._open()

    def _without(self, board: EventBoard, exc: NativeError) -> EventBoard:
        """The words of this process alone: somebody has cut the file."""
        with self._lock:
            if self._board is board:
                self._say(exc)
                self.path, self._look_at = None, math.inf
                self._board = EventBoard(None, MAGAZINES + SHARDS)
            return self._board

    def _say(self, exc: Exception) -> None:
        """Once in a process."""
        text = f"no wake-ups between processes, consumers look by themselves: {exc}"
        if text not in _said:
            _said.add(text)
            log.warning(event_text("wake_words_missing", "%s"), text)
