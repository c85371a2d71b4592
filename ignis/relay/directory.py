"""The directory that producers and the relay share: who may use it, what lies where, and whether a relay is there.

::

    relay.lock         locked by the relay as long as it lives; the kernel lets go of it, however the relay ends
    relay.json         what the relay says of itself, and the queues' settings for producers
    bell               what producers ring when the relay may be asleep
    channels/          one file per producer's channel: messages that no store has yet
    aside/             what the relay refused, each file with its reason beside it
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from ignis.config import shown
from ignis.errors import ConfigError, LockHeldError, StoreUnreachableError
from ignis.file_lock import FileLock, is_locked
from ignis.private_files import open_private
from ignis.regular_files import read_text
from ignis.storage.os_errors import store_errors
from ignis.storage.private_directory import make_private

__all__ = ["CHANNEL_SUFFIX", "RelayDirectory"]

CHANNEL_SUFFIX = ".channel"
_LOCK_TRIES_S = 2.0
_LEFTOVER_S = 60.0
"""A half-made file of this age has no maker any more."""


class RelayDirectory:
    """Paths and checks; thread-safe. Makes what is missing with mode 0700.

    Args:
        path: absolute. On ``/dev/shm`` it survives every process but not the machine; on a disk it is slower when the
            page cache is written back, and survives no more: nothing in it is flushed.

    Raises:
        ConfigError: not absolute, a link, not a directory, not this user's, or open to others.
        StoreUnreachableError: it cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_absolute():
            raise ConfigError(f"relay directory {shown(str(path))} is not absolute; write relay:///dev/shm/ignis")
        self.channels = self.path / "channels"
        self.aside = self.path / "aside"
        self.bell = self.path / "bell"
        self._lock = self.path / "relay.lock"
        self._state = self.path / "relay.json"
        self.make()

    def make(self) -> bool:
        """Makes what is missing, and checks what is there: it may have been removed since, and another be in its place. Returns
        whether there was no directory. Raises as the constructor."""
        missing = not os.path.lexists(self.path)
        for one in (self.path, self.channels, self.aside):
            make_private(one, "relay directory")
        return missing

    @property
    def whole(self) -> bool:
        """Whether its parts are there."""
        return self.channels.is_dir() and self.aside.is_dir()

    # -- the relay's lock

    def lock(self, timeout_s: float = _LOCK_TRIES_S) -> FileLock:
        """Takes the relay's lock. Raises LockHeldError: another relay lives; StoreUnreachableError, StoreFullError: no
        descriptor, or no room for it."""
        deadline = time.monotonic() + timeout_s
        while True:
            with store_errors(f"relay directory {self.path}"):
                found = FileLock.take(self._lock)
            if found is not None:
                return found
            # Where looking takes the lock, a producer that looks whether we are there has it for a moment.
            if time.monotonic() >= deadline:
                raise LockHeldError(f"another relay runs on {self.path}{self._who()}")
            time.sleep(0.01)

    def relay_present(self) -> bool:
        """Whether a process holds the relay's lock at this moment."""
        try:
            with store_errors(f"relay directory {self.path}"):
                return is_locked(self._lock)
        except StoreUnreachableError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return False
            raise

    def _who(self) -> str:
        pid = self.read_state().get("pid")
        return f" (process {pid})" if isinstance(pid, int) else ""

    # -- what the relay says

    def write_state(self, state: dict[str, Any]) -> None:
        """Replaces the relay's words as a whole. Raises OSError: what was there before is there still."""
        temporary = self._state.with_suffix(f".{os.getpid()}.tmp")
        descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(state, file)
            temporary.replace(self._state)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def read_state(self) -> dict[str, Any]:
        """What the present or the last relay said; ``{}`` when there was none, or it makes no sense."""
        try:
            found = json.loads(read_text(self._state))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    # -- channels

    def channel_files(self) -> list[Path]:
        """The channels there are, oldest name first; none where the directory is gone. Removes what half-made files dead
        producers left."""
        found = []
        with store_errors(f"relay directory {self.path}"):
            try:
                entries = list(os.scandir(self.channels))
            except FileNotFoundError:
                return []
        for entry in entries:
            if entry.name.endswith(CHANNEL_SUFFIX):
                found.append(Path(entry.path))
            elif entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _LEFTOVER_S:
                        os.unlink(entry.path)
        return sorted(found)

    def reason_file(self, channel: Path) -> Path:
        """Where the reason stands for which a channel was refused."""
        return self.aside / f"{channel.name}.reason"

    def set_aside(self, channel: Path, why: str) -> Path:
        """Moves a channel out of the way, with the reason beside it. The reason is there first: the producer reads it.

        Without room for the reason it goes all the same, or it would be found and refused again for ever.
        """
        with contextlib.suppress(OSError):
            self.reason_file(channel).write_text(why + "\n", "utf-8")
        target = self.aside / channel.name
        channel.replace(target)
        return target

    def was_set_aside(self, channel: Path) -> bool:
        """Whether a relay has refused the channel of this name."""
        return os.path.lexists(self.aside / channel.name)

    def refusal_of(self, channel: Path) -> str:
        """The reason for which a channel was refused, or a word that there is none."""
        try:
            return read_text(self.reason_file(channel)).strip()
        except OSError:
            return "no reason is known"

    def __repr__(self) -> str:
        return f"<RelayDirectory {self.path}>"
