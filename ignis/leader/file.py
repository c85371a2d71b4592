"""On one machine: who holds the lock of a file leads."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
from pathlib import Path

from ignis.file_lock import FileLock, is_locked
from ignis.leader.base import REFRESH_S, Leadership, LeaderStatus, forget_after_fork
from ignis.log_format import event_text
from ignis.regular_files import read_text
from ignis.storage.base import Fence, Store
from ignis.storage.os_errors import store_errors

__all__ = ["FileLeader"]

log = logging.getLogger("ignis.leader")

_TEXT = re.compile(r"(?P<leader>.+) epoch (?P<epoch>\d+) since (?P<since_ms>\d+)\Z")
_USUAL = ("local", "ignis")


class FileLeader(Leadership):
    """Leads while it holds the lock of a file in the store's directory, whose text names the holder.

    The kernel releases the lock when its holder dies, however it dies, and not while the holder is merely slow or
    stopped: nobody takes over from a stopped process. Who holds the lock of a file that was deleted, replaced or moved leads
    no more, for others lock another file.

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
        self._held: FileLock | None = None
        self._member: FileLock | None = None

    @property
    def fence(self) -> Fence | None:
        """Also None once the locked file is no longer the one by that name."""
        held, fence = self._held, self._fence
        return fence if held is not None and held.valid else None

    def start(self) -> None:
        with self._lock:
            self._join()

    def try_lead(self) -> Fence | None:
        """See `Leadership`. Raises StoreFullError, StoreUnreachableError where the lock's file cannot be made, too."""
        with self._lock:
            if self._held is not None:
                if self._held.valid:
                    return self._fence
                log.warning(
                    event_text(
                        "leadership_given_up", "leadership of %s is given up: %s was deleted, moved or replaced"
                    ),
                    self.scope,
                    self._path,
                )
                self._release()
            self._join()
            with store_errors(f"leader's lock {self._path}"):
                held = FileLock.take(self._path)
            if held is None:
                return None
            self._held = held
            try:
                fence = self._take_office()
                assert self.since_s is not None
                text = f"{self._store.owner} epoch {fence.epoch} since {int(self.since_s * 1000)}\n"
                with contextlib.suppress(OSError):  # only for show: on a full disk it leads without a name
                    held.write(text)
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
        held, self._held, self._fence, self.since_s = self._held, None, None, None
        if held is not None:
            held.release()

    def _join(self) -> None:
        """Makes this instance seen. Only for show: on a full disk it leads unseen."""
        forget_after_fork(self)
        if self._member is not None:
            if self._member.valid:
                return
            self._member.close()
            self._member = None
        # The number keeps candidates of one process apart.
        path = self._directory / f"{self._members}{os.getpid()}-{id(self):x}.lock"
        with contextlib.suppress(OSError):
            member = FileLock.take(path)
            if member is None:
                return
            try:
                member.write(self._store.owner)
            except OSError:
                member.close()
                raise
            self._member = member

    def _leave(self) -> None:
        member, self._member = self._member, None
        forget_after_fork(self, holds=False)
        if member is not None:
            with contextlib.suppress(OSError):
                member.path.unlink()
            member.close()

    def forget(self) -> None:
        """In a child after ``fork``: the locks are the parent's, and the child must not keep them beyond its death."""
        super().forget()
        held = self._held, self._member
        self._held = self._member = None
        self._lock = threading.Lock()
        for one in held:
            if one is not None:
                one.close()

    def status(self) -> LeaderStatus:
        try:
            text = read_text(self._path, "replace").strip() if is_locked(self._path) else ""
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
            here=self.fence is not None,
        )

    def _there(self, *, tidy: bool = False) -> tuple[str, ...]:
        """The instances in the contest. ``tidy`` removes the files that dead ones have left."""
        names = []
        for path in sorted(self._directory.glob(f"{self._members}*.lock")):
            with contextlib.suppress(OSError):
                if is_locked(path):
                    names.append(read_text(path, "replace"))
                elif tidy:
                    path.unlink()
        return tuple(names)
