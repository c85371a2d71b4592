"""Who runs the tasks that only one instance may run.

On one machine a lock on a file in the store's directory decides: the kernel releases it when its holder dies, however
it dies, and not while the holder is merely slow. The epoch, which every control-plane write carries and the store
checks, comes from the store, so that a leader that was replaced cannot write. Other deciders implement the same
interface.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import threading
import time
import weakref
from pathlib import Path

from ignis.errors import LockHeldError
from ignis.storage.base import Fence, Store

__all__ = ["FileLeader", "Leadership", "SoleLeader", "make_leader"]


class Leadership(abc.ABC):
    """One candidate for one scope. Thread-safe."""

    def __init__(self, store: Store, scope: str) -> None:
        self._store = store
        self.scope = scope
        self._fence: Fence | None = None
        self.since_s: float | None = None

    @abc.abstractmethod
    def try_lead(self) -> Fence | None:
        """The fence to write under when this instance leads or becomes leader now; None when another leads.
        Never waits."""

    @abc.abstractmethod
    def relinquish(self) -> None:
        """Gives the leadership up, if held. Idempotent."""

    @property
    def fence(self) -> Fence | None:
        """The current authority, or None when not leading."""
        return self._fence

    def lead(self) -> Fence:
        """`try_lead`, or LockHeldError."""
        fence = self.try_lead()
        if fence is None:
            raise LockHeldError(f"another instance leads {self.scope}: {self.describe()}")
        return fence

    def describe(self) -> str:
        """Who leads, as far as this instance can tell."""
        return "unknown"

    def _take_office(self) -> Fence:
        self._fence = Fence(self.scope, self._store.locks.next_epoch(self.scope))
        self.since_s = time.time()
        return self._fence


class FileLeader(Leadership):
    """Leads while it holds ``flock`` on ``<directory>/leader-<scope>.lock``; the file's text names the holder."""

    def __init__(self, store: Store, scope: str, directory: str | os.PathLike[str]) -> None:
        super().__init__(store, scope)
        self._path = Path(directory) / f"leader-{scope}.lock"
        self._lock = threading.Lock()
        self._fd: int | None = None

    def try_lead(self) -> Fence | None:
        with self._lock:
            if self._fd is not None:
                return self._fence
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
            _holders.add(self)
            try:
                fence = self._take_office()
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{self._store.owner} epoch {fence.epoch}\n".encode(), 0)
            except BaseException:
                self._release()
                raise
            return fence

    def relinquish(self) -> None:
        with self._lock:
            self._release()

    def _release(self) -> None:
        fd, self._fd, self._fence, self.since_s = self._fd, None, None, None
        _holders.discard(self)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def forget(self) -> None:
        """In a child after ``fork``: the lock is the parent's, and the child must not keep it beyond its death."""
        fd, self._fd, self._fence, self.since_s = self._fd, None, None, None
        self._lock = threading.Lock()
        if fd is not None:
            os.close(fd)

    def describe(self) -> str:
        try:
            return self._path.read_text("utf-8").strip() or "nobody"
        except OSError:
            return "nobody"


_holders: weakref.WeakSet[FileLeader] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for leader in list(_holders):
        leader.forget()
    _holders.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class SoleLeader(Leadership):
    """For a store that only this process can see: the only candidate always leads."""

    def __init__(self, store: Store, scope: str) -> None:
        super().__init__(store, scope)
        self._lock = threading.Lock()

    def try_lead(self) -> Fence | None:
        with self._lock:
            return self._fence or self._take_office()

    def relinquish(self) -> None:
        self._fence = None

    def describe(self) -> str:
        return self._store.owner


def make_leader(store: Store, scope: str) -> Leadership:
    """The decider that fits the store: a file lock where all its users share a directory, else this process alone."""
    if store.local_dir is not None:
        return FileLeader(store, scope, store.local_dir)
    return SoleLeader(store, scope)
