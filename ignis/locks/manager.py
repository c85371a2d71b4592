"""The manager: which locks there are, and what all of one application's share."""

from __future__ import annotations

import itertools
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ignis.config import LockSettings, check_name, check_number, check_text, resolve, shown
from ignis.errors import ClosedError, ConfigError, LockError
from ignis.locks.calls import LockCalls, now_s
from ignis.locks.lock import Lock, LockLevel
from ignis.locks.renewal import BY_HAND_S, Renewer
from ignis.process_hooks import on_fork
from ignis.storage.base import LockRecord, LockTable, Store
from ignis.storage.checks import MAX_LOCK_ID_BYTES, check_printable
from ignis.upkeep import WorkThreads
from ignis.urls import redacted

__all__ = ["LockManager"]

_SUFFIX = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")
_ASYNC_THREADS = 16


class LockManager:
    """Makes the locks of one application, and renews those that ask for it. Thread-safe.

    >>> from ignis.storage import open_store
    >>> locks = LockManager("shop", "west", open_store("memory://"))
    >>> lock = locks.lock("nightly-report")
    >>> lock.try_acquire(), locks.holder("nightly-report") is None, lock.release()
    (True, False, True)

    In a child after ``fork`` no lock is held, whatever the parent holds; the child needs a manager of its own, on a store
    of its own.

    Args:
        client_id: the application; part of every lock's key.
        farm_id: the deployment (data centre). On Aerospike at most 9 bytes, because it is part of bin names.
        store: an opened store. It stays the caller's to close, after the manager.
        suffix: names the table of locks; ``[A-Za-z0-9._-]{1,32}``.
        level: of locks that are made without one.
        file: a parsed settings file, whose ``[locks]`` counts below the environment and ``settings``.
        settings: any of ``[locks]`` in ``docs/settings.md``: ``ttl="90s"``, ``timeout_s=90``, ``poll_s=1``, ...

    Raises:
        ConfigError, InvalidNameError.
    """

    def __init__(
        self,
        client_id: str,
        farm_id: str,
        store: Store,
        *,
        suffix: str = "distributed_lock",
        level: LockLevel = LockLevel.DC,
        file: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        given: Any = store  # whatever it is
        if not isinstance(given, Store):
            raise ConfigError(
                f"store = {redacted(given)} is not an opened store; pass that of an application (Ignis.store), or "
                "ignis.storage.open_store(url)"
            )
        self.client_id = check_name(client_id, "client_id")
        self.farm_id = check_name(farm_id, "farm_id")
        if _SUFFIX.match(check_text(suffix, "suffix")) is None:
            raise ConfigError(f"suffix = {shown(suffix)} does not match [A-Za-z0-9._-]{{1,32}}")
        self.level = _level(level)
        self.settings = resolve(LockSettings, settings, file)
        self._store_owner = store.owner
        by_hand = store.lock_clock
        self.now_s: Callable[[], float] = now_s if by_hand is None else by_hand.monotonic_s
        self._longest_wait_s = {} if by_hand is None else {"longest_wait_s": BY_HAND_S}
        self._tables: dict[LockLevel, LockTable] = {
            LockLevel.DC: store.locks.table(f"DC#{farm_id}#{suffix}", farm_id),
            LockLevel.XDC: store.locks.table(f"XDC#{suffix}", farm_id),
        }
        self.begin()
        on_fork(in_child=_in_child)
        _managers.add(self)

    def begin(self) -> None:
        """Everything that lives in this process only. Called again in the child of a fork."""
        self._who = f"{self._store_owner}/{secrets.token_hex(12)}-"
        self._acquisitions = itertools.count(1)
        self._mutex = threading.Lock()
        self._made: weakref.WeakSet[Lock] = weakref.WeakSet()
        self._executor: WorkThreads | None = None
        self._closed = False
        self.renewer = Renewer(self.client_id, self.now_s, **self._longest_wait_s)

    def lock(
        self,
        lock_id: str,
        level: LockLevel | None = None,
        *,
        renew: bool = False,
        max_hold_s: float | None = None,
        on_lost: Callable[[Lock], object] | None = None,
    ) -> Lock:
        """A lock, not yet acquired; every call makes a new object, which belongs to one holder at a time.

        Args:
            lock_id: text of 1 to 200 bytes that can be printed: no line ends, control or direction characters, and no
                ``..`` between slashes.
            level: see `LockLevel`; None = the manager's.
            renew: whether the lock is renewed in the background while it is held.
            max_hold_s: how long after `Lock.acquire` the renewals end; None = the setting.
            on_lost: called with the lock, in the background thread, when it turns out to be lost.

        Raises:
            InvalidNameError, ConfigError.
        """
        level = self.level if level is None else _level(level)
        calls = LockCalls(self._tables[level], self._key(lock_id), self.settings, self.now_s)
        if max_hold_s is None:
            max_hold_s = self.settings.max_hold_s
        else:
            check_number(max_hold_s, "max_hold_s", above=True)
        if on_lost is not None and not callable(on_lost):
            raise ConfigError(f"on_lost is not callable: {shown(on_lost)}")
        made = Lock(self, lock_id, level, calls, max_hold_s if renew else None, on_lost)
        with self._mutex:
            if self._closed:
                raise ClosedError("lock manager is closed")
            self._made.add(made)
        return made

    def holder(self, lock_id: str, level: LockLevel | None = None) -> LockRecord | None:
        """Who holds a lock at this moment, or None. ``owner`` is empty for a holder that is no ignis; ``token`` is 0
        as long as its holder did not ask for one (on Aerospike). Raises LockConnectionError, LockInternalError."""
        level = self.level if level is None else _level(level)
        return LockCalls(self._tables[level], self._key(lock_id), self.settings, self.now_s).get()

    def held(self, level: LockLevel | None = None) -> list[LockRecord] | None:
        """This application's locks of a level that somebody holds at this moment, each under its id; None where the store
        keeps no list of them (Aerospike, a broker): ask `holder` for one. Raises StoreError."""
        found = self._tables[self.level if level is None else _level(level)].held()
        mine = f"{self.client_id}#"
        return found and [one._replace(name=one.name.removeprefix(mine)) for one in found if one.name.startswith(mine)]

    def close(self, timeout: float = 30.0) -> None:
        """Ends the renewals, within ``timeout`` seconds, and releases what is still held. Idempotent. Thread-safe."""
        with self._mutex:
            self._closed = True
            made, executor = list(self._made), self._executor
        self.renewer.close(timeout)
        for one in made:
            with suppress(LockError):
                one.release()
        if executor is not None:
            executor.shutdown(wait=False)

    def __enter__(self) -> LockManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- for the locks

    def new_owner(self) -> str:
        """A name for one acquisition: who it is, and what nobody else can have."""
        return f"{self._who}{next(self._acquisitions)}"

    def executor(self) -> WorkThreads:
        """Where the store calls of coroutines run. Raises ClosedError."""
        with self._mutex:
            if self._closed:
                raise ClosedError("lock manager is closed")
            if self._executor is None:
                self._executor = WorkThreads(_ASYNC_THREADS, f"ignis-locks-{self.client_id}")
            return self._executor

    def _key(self, lock_id: str) -> str:
        check_printable(lock_id, "lock id", MAX_LOCK_ID_BYTES)
        # As the Java lock manager does.
        return f"{self.client_id}#{lock_id}"

    def forget_after_fork(self) -> None:
        """Begins anew in the child of a fork: what the parent holds is not held here."""
        for one in list(self._made):
            one.forget_after_fork()
        self.begin()


def _level(level: object) -> LockLevel:
    """Raises ConfigError."""
    try:
        return LockLevel(level)
    except Exception:  # the value's own repr may raise
        raise ConfigError(f"level = {shown(level)} is not one of {', '.join(one.name for one in LockLevel)}") from None


_managers: weakref.WeakSet[LockManager] = weakref.WeakSet()


def _in_child() -> None:
    for manager in list(_managers):
        manager.forget_after_fork()
