"""On one machine: who holds the lock of a file leads."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import threading
from pathlib import Path

from ignis.leader.base import REFRESH_S, Leadership, LeaderStatus, forget_after_fork
from ignis.storage.base import Fence, Store
from ignis.storage.os_errors import store_errors

__all__ = ["FileLeader"]

_TEXT = re.compile(r"(?P<leader>.+) epoch (?P<epoch>\d+) since (?P<since_ms>\d+)\Z")
_USUAL = ("local", "ignis")


class FileLeader(Leadership):
    """Leads while it holds ``flock`` on a file of the store's directory, whose text names the holder.

    The kernel releases the lock when its holder dies, however it dies, and not while the holder is merely slow or
    stopped: nobody takes over from a stopped process.

    Each instance that is in the contest keeps a lock on a file of its own as well, by which the others see it.

    Args:
        store, scope: see `Leadership`.
        directory: shared by all candidates, on a local file system.
        refresh_s: how often a schedule should ask again.
    """

    kind = "file"

    def __init__(
        self, store: Store, scope: str, directory: str | os.PathLike[str], refresh_s: float = REFRESH_S
    ) -> None:
        super().__init__(store, scope, refresh_s)
        # Several applications may share the directory, each with a leader of its own.
        own = (store.farm_id, store.client_id)
        mark = "" if own == _USUAL else "-" + hashlib.blake2s("\0".join(own).encode(), digest_size=6).hexdigest()
        self._directory = Path(directory)
        self._path = self._directory / f"leader-{scope}{mark}.lock"
        self._members = f"member-{scope}{mark}+"
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._member_fd: int | None = None
        self._member_path: Path | None = None

    def start(self) -> None:
        with self._lock:
            self._join()

    def try_lead(self) -> Fence | None:
        """See `Leadership`. Raises StoreFullError, StoreUnreachableError where the lock's file cannot be made, too."""
        with self._lock:
            if self._fd is not None:
                return self._fence
            self._join()
            with store_errors(f"leader's lock {self._path}"):
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                    return None
                except OSError:
                    os.close(fd)
                    raise
            self._fd = fd
            try:
                fence = self._take_office()
                assert self.since_s is not None
                text = f"{self._store.owner} epoch {fence.epoch} since {int(self.since_s * 1000)}\n"
                with contextlib.suppress(OSError):  # only for show: on a full disk it leads without a name
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, text.encode(), 0)
                self._there(tidy=True)
            except BaseException:
                self._release()
                raise
            return fence

    def relinquish(self) -> None:
        with self._lock:
            self._release()
            self._leave()

    def _release(self) -> None:
        fd, self._fd, self._fence, self.since_s = self._fd, None, None, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _join(self) -> None:
        """Makes this instance seen. Only for show: on a full disk it leads unseen."""
        forget_after_fork(self)
        if self._member_fd is not None:
            return
        # The number keeps candidates of one process apart.
        path = self._directory / f"{self._members}{os.getpid()}-{id(self):x}.lock"
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(fd, self._store.owner.encode(), 0)
            except OSError:
                os.close(fd)
                raise
            self._member_fd, self._member_path = fd, path

    def _leave(self) -> None:
        fd, path, self._member_fd, self._member_path = self._member_fd, self._member_path, None, None
        forget_after_fork(self, holds=False)
        if fd is not None and path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(fd)

    def forget(self) -> None:
        """In a child after ``fork``: the locks are the parent's, and the child must not keep them beyond its death."""
        super().forget()
        fds = self._fd, self._member_fd
        self._fd = self._member_fd = self._member_path = None
        self._lock = threading.Lock()
        for fd in fds:
            if fd is not None:
                os.close(fd)

    def status(self) -> LeaderStatus:
        try:
            text = self._path.read_text("utf-8").strip() if _is_locked(self._path) else ""
        except OSError:
            text = ""
        found = _TEXT.match(text)
        leader = found["leader"] if found else text
        return LeaderStatus(
            self.kind,
            self.scope,
            leader=leader,
            sweeping=leader,
            since_ms=int(found["since_ms"]) if found else None,
            epoch=int(found["epoch"]) if found else self._store.locks.epoch(self.scope),
            members=self._there(),
            here=self._fd is not None,
        )

    def _there(self, *, tidy: bool = False) -> tuple[str, ...]:
        """The instances in the contest. ``tidy`` removes the files that dead ones have left."""
        names = []
        for path in sorted(self._directory.glob(f"{self._members}*.lock")):
            with contextlib.suppress(OSError):
                if path == self._member_path or _is_locked(path):
                    names.append(path.read_text("utf-8"))
                elif tidy:
                    path.unlink()
        return tuple(names)


def _is_locked(path: Path) -> bool:
    """Whether anybody, this process included, holds the file's lock. Raises OSError when it is not there."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
