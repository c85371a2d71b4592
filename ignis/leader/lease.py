"""On a store of many machines, without ZooKeeper: who holds a lock in the store that ends by itself leads."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from typing import Any

from ignis.errors import IgnisError
from ignis.leader.base import REFRESH_S, Leadership, LeaderStatus, forget_after_fork
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.stacks import start_thread
from ignis.storage.base import Fence, Store
from ignis.upkeep import outlast

__all__ = ["LEASE_S", "LeaseLeader"]

log = logging.getLogger("ignis.leader")

LEASE_S = 30.0


class LeaseLeader(Leadership):
    """Leads while it holds a lock of the store that ends by itself; a thread extends it three times in that time.

    A holder that was paused past the end may believe for a moment longer that it leads: the epoch in its writes, which
    the next leader has raised, is what stops it.

    Args:
        store, scope: see `Leadership`.
        lease_s: after so many seconds without a sign of its holder the lock is free.
        refresh_s: how often a schedule should ask again.
    """

    kind = "lease"

    def __init__(self, store: Store, scope: str, lease_s: float = LEASE_S, refresh_s: float = REFRESH_S) -> None:
        super().__init__(store, scope, refresh_s)
        self._name = f"leader-{scope}"
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._owner = ""
        self._until_s = 0.0
        self._ended = threading.Event()
        self._said = LimitedLog(log)
        self._available = True

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
            forget_after_fork(self)
            try:
                fence = self._take_office()
            except BaseException:
                self._release()
                raise
            ended = self._ended
            extending = threading.Thread(
                target=outlast,
                args=(log, lambda: self._extend(owner, ended)),
                name=f"ignis-leader-{self.scope}",
                daemon=True,
            )
            try:
                start_thread(extending)
            except BaseException:
                self._release()  # nobody would prolong it
                raise
            return fence

    def _extend(self, owner: str, ended: threading.Event) -> None:
        while not ended.wait(self._lease_s / 3):
            began_s = time.monotonic()
            try:
                held = self._store.locks.renew(self._name, owner, self._lease_s) is not None
            except IgnisError as exc:
                if not exc.retryable:
                    return
                self._said.warning(
                    event_text("lease_renewal_failed", "lease of %s could not be extended, trying again: %s"),
                    self.scope,
                    exc,
                )
                self._available = False
                continue
            self._available = True
            with self._lock:
                if self._owner != owner:
                    return
                if held:
                    self._until_s = began_s + self._lease_s
                    continue
                log.warning(event_text("leadership_lost", "leadership of %s is lost: the lease ran out"), self.scope)
                self._owner, self._fence, self.since_s = "", None, None
                break
        else:
            return
        self._changed()

    def relinquish(self) -> None:
        with self._lock:
            self._release()

    def _release(self) -> None:
        owner, self._owner, self._fence, self.since_s = self._owner, "", None, None
        self._ended.set()
        forget_after_fork(self, holds=False)
        if owner:
            # What cannot be released ends by itself.
            with contextlib.suppress(IgnisError):
                self._store.locks.release(self._name, owner)

    def forget(self) -> None:
        """In a child after ``fork``: the lease is the parent's."""
        super().forget()
        self._lock = threading.Lock()
        self._owner = ""

    def stats(self) -> dict[str, Any]:
        return {**super().stats(), "available": self._available}

    def status(self) -> LeaderStatus:
        """The members are not known: the store lists no candidates."""
        try:
            record = self._store.locks.get(self._name)
            epoch = self._store.locks.epoch(self.scope)
        except IgnisError as exc:
            if not exc.retryable:
                raise
            return LeaderStatus(self.kind, self.scope, available=False, trouble=f"the store does not answer: {exc}")
        leader = "" if record is None else record.owner.rpartition("/")[0]
        return LeaderStatus(
            self.kind,
            self.scope,
            leader=leader,
            sweeping=leader,
            since_ms=None if record is None else record.acquired_at_ms,
            epoch=epoch,
            here=record is not None and record.owner == self._owner,
        )
