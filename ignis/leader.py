"""Who runs the tasks that only one instance may run.

On one machine a lock on a file in the store's directory decides: the kernel releases it when its holder dies, however
it dies, and not while the holder is merely slow. On a store of many machines a lock in the store decides, which its
holder extends and which runs out when it does not. The epoch, which every control-plane write carries and the store
checks, comes from the store, so that a leader that was replaced cannot write. Other deciders implement the same
interface.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import logging
import os
import secrets
import threading
import time
import weakref
from pathlib import Path

from ignis.errors import IgnisError, LockHeldError
from ignis.storage.base import Fence, Store

__all__ = ["FileLeader", "Leadership", "LeaseLeader", "SoleLeader", "make_leader"]

log = logging.getLogger("ignis.leader")

LEASE_S = 30.0


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


class LeaseLeader(Leadership):
    """Leads while it holds a lock of the store that ends by itself; a thread extends it three times in that time.

    A holder that was paused past the end may believe for a moment longer that it leads: the epoch in its writes, which
    the next leader has raised, is what stops it.

    Args:
        store: whose locks are used.
        scope: what is led.
        lease_s: after so many seconds without a sign of its holder the lock is free.
    """

    def __init__(self, store: Store, scope: str, lease_s: float = LEASE_S) -> None:
        super().__init__(store, scope)
        self._name = f"leader-{scope}"
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._owner = ""
        self._until_s = 0.0
        self._ended = threading.Event()

    @property
    def fence(self) -> Fence | None:
        return self._fence if time.monotonic() < self._until_s else None

    def try_lead(self) -> Fence | None:
        with self._lock:
            if self._fence is not None and time.monotonic() < self._until_s:
                return self._fence
            self._release()
            owner, began_s = f"{self._store.owner}/{secrets.token_hex(8)}", time.monotonic()
            if self._store.locks.acquire(self._name, owner, self._lease_s) is None:
                return None
            self._owner, self._until_s, self._ended = owner, began_s + self._lease_s, threading.Event()
            _holders.add(self)
            try:
                fence = self._take_office()
            except BaseException:
                self._release()
                raise
            threading.Thread(
                target=self._extend, args=(owner, self._ended), name=f"ignis-leader-{self.scope}", daemon=True
            ).start()
            return fence

    def _extend(self, owner: str, ended: threading.Event) -> None:
        while not ended.wait(self._lease_s / 3):
            began_s = time.monotonic()
            try:
                held = self._store.locks.renew(self._name, owner, self._lease_s) is not None
            except IgnisError as exc:
                if not exc.retryable:
                    return
                log.warning("lease of %s could not be extended, trying again: %s", self.scope, exc)
                continue
            with self._lock:
                if self._owner != owner:
                    return
                if held:
                    self._until_s = began_s + self._lease_s
                    continue
                log.warning("leadership of %s is lost: the lease ran out", self.scope)
                self._owner, self._fence, self.since_s = "", None, None
                return

    def relinquish(self) -> None:
        with self._lock:
            self._release()

    def _release(self) -> None:
        owner, self._owner, self._fence, self.since_s = self._owner, "", None, None
        self._ended.set()
        _holders.discard(self)
        if owner:
            # What cannot be released ends by itself.
            with contextlib.suppress(IgnisError):
                self._store.locks.release(self._name, owner)

    def forget(self) -> None:
        """In a child after ``fork``: the lease is the parent's."""
        self._lock = threading.Lock()
        self._owner, self._fence, self.since_s = "", None, None

    def describe(self) -> str:
        try:
            record = self._store.locks.get(self._name)
        except IgnisError:
            return "unknown"
        return (
            "nobody"
            if record is None
            else f"{record.owner.rpartition('/')[0]} epoch {self._store.locks.epoch(self.scope)}"
        )


_holders: weakref.WeakSet[FileLeader | LeaseLeader] = weakref.WeakSet()


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
    """The decider that fits the store: a file lock where all its users share a directory, this process alone where
    nobody else can see the store, else a lease in it."""
    if store.local_dir is not None:
        return FileLeader(store, scope, store.local_dir)
    return SoleLeader(store, scope) if store.in_process else LeaseLeader(store, scope)
