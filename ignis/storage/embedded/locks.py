"""Locks and epochs. Times are the store clock's, which nobody can set. Keys:

* ``L | scope | name`` -> a lock: owner, token, times. It stays when it is released, so that the token rises for ever.
* ``E | scope | scope name`` -> an epoch, 8 bytes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ignis.errors import StoreFormatError
from ignis.safe_msgpack import decoder
from ignis.storage.base import LockStore, LockTable
from ignis.storage.checks import (
    check_epoch,
    check_epoch_number,
    check_lock,
    check_lock_in_table,
    check_owner,
    check_scope,
    check_table,
    ttl_milliseconds,
)
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.keys import Change, Scope, epoch_key, epoch_of, epoch_value
from ignis.storage.in_flight import guarded
from ignis.storage.records import Fence, LockRecord

__all__ = ["EmbeddedLocks"]


class _Stored(msgspec.Struct):
    owner: str
    token: int
    acquired_at_ms: int
    expires_at_ms: int
    boot: str = ""
    """As the store called it, when the times were set."""
    ttl_ms: int = 0


_read: Callable[[bytes], _Stored] = decoder(_Stored)

_Planned = tuple[Sequence[Change], LockRecord | None]


class EmbeddedLocks(LockStore):
    """Locks of one application, or of one table of distributed locks. Thread-safe; every change is durable on return."""

    def __init__(self, store: StoreContext, scope: Scope | None = None) -> None:
        self._store = store
        self._scope = store.scope if scope is None else scope
        self._check_name = check_lock if scope is None else check_lock_in_table

    def table(self, name: str, farm_id: str) -> LockTable:
        check_table(name, farm_id)
        # A farm has no "#" in its name, so that no table is an application's own scope.
        return EmbeddedLocks(self._store, Scope(name, ""))

    @guarded
    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)
        check_owner(owner)
        self._check_name(name)
        directory = self._store.directory

        def plan() -> _Planned:
            before, stored = self._read(name)
            if stored is not None and stored.owner and self._left_ms(stored) > 0:
                return [], None
            now_ms = directory.clock.now_ms()
            token = 1 if stored is None else stored.token + 1
            return self._changed(
                name, before, _Stored(owner, token, now_ms, now_ms + ttl_ms, directory.boot.name, ttl_ms)
            )

        return self._store.keys.change(plan, f"lock {name!r}")

    @guarded
    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        self._check_name(name)
        ttl_ms = ttl_milliseconds(ttl_s)
        directory = self._store.directory

        def plan() -> _Planned:
            before, stored = self._read(name)
            if stored is None or not self._holds(stored, owner):
                return [], None
            stored.expires_at_ms = directory.clock.now_ms() + ttl_ms
            stored.boot, stored.ttl_ms = directory.boot.name, ttl_ms
            return self._changed(name, before, stored)

        return self._store.keys.change(plan, f"lock {name!r}")

    @guarded
    def release(self, name: str, owner: str) -> bool:
        self._check_name(name)

        def plan() -> _Planned:
            before, stored = self._read(name)
            if stored is None or not self._holds(stored, owner):
                return [], None
            stored.owner, stored.expires_at_ms = "", 0
            return self._changed(name, before, stored)

        return self._store.keys.change(plan, f"lock {name!r}") is not None

    @guarded
    def get(self, name: str) -> LockRecord | None:
        self._check_name(name)
        _, stored = self._read(name)
        if stored is None or not self._holds(stored, stored.owner):
            return None
        return self._record(name, stored)

    @guarded
    def held(self) -> list[LockRecord]:
        found = []
        for key, value in self._store.keys.items(self._scope.prefix(b"L")):
            name = self._scope.name(b"L", key)
            stored = _decoded(name, value)
            if self._holds(stored, stored.owner):
                found.append(self._record(name, stored))
        return found

    @guarded
    def next_epoch(self, scope: str) -> int:
        key = epoch_key(self._scope, scope)
        keys = self._store.keys

        def plan() -> tuple[Sequence[Change], int]:
            before = keys.get(key)
            epoch = epoch_of(before, scope) + 1
            return [Change(key, before, epoch_value(epoch))], epoch

        return keys.change(plan, f"epoch {scope!r}")

    @guarded
    def raise_epoch(self, scope: str, epoch: int) -> None:
        check_scope(scope)
        check_epoch_number(epoch, raised=True)
        key = epoch_key(self._scope, scope)
        keys = self._store.keys

        def plan() -> tuple[Sequence[Change], None]:
            before = keys.get(key)
            check_epoch(epoch_of(before, scope), Fence(scope, epoch))
            # Written also where it is that one already: who wrote it may still wait for the disk.
            return [Change(key, before, epoch_value(epoch))], None

        keys.change(plan, f"epoch {scope!r}")

    @guarded
    def epoch(self, scope: str) -> int:
        return epoch_of(self._store.keys.get(epoch_key(self._scope, scope)), scope)

    @guarded
    def epochs(self) -> dict[str, int]:
        names = (
            (self._scope.name(b"E", key), value) for key, value in self._store.keys.items(self._scope.prefix(b"E"))
        )
        return {name: epoch_of(value, name) for name, value in names}

    def _read(self, name: str) -> tuple[bytes | None, _Stored | None]:
        """The value as it is stored, and what it says."""
        value = self._store.keys.get(self._scope.key(b"L", name))
        if value is None:
            return None, None
        return value, _decoded(name, value)

    def _changed(self, name: str, before: bytes | None, stored: _Stored) -> _Planned:
        change = Change(self._scope.key(b"L", name), before, msgspec.msgpack.encode(stored))
        return [change], self._record(name, stored)

    def _left_ms(self, stored: _Stored) -> int:
        """How long the lock still holds.

        One of an earlier boot holds until its whole time to live has passed since the store was first opened in this one:
        how long the machine was off only the wall clock knows, which is not asked, and a broker's client on another
        machine may hold it still. Nor does a new boot prove that the machine was off: a container may name one anew.
        """
        directory = self._store.directory
        if stored.boot and stored.boot != directory.boot.name:
            return directory.boot.began_ms + stored.ttl_ms - directory.clock.rising_ms()
        return stored.expires_at_ms - directory.clock.now_ms()

    def _holds(self, stored: _Stored, owner: str) -> bool:
        return bool(stored.owner) and stored.owner == owner and self._left_ms(stored) > 0

    def _record(self, name: str, stored: _Stored) -> LockRecord:
        directory = self._store.directory
        expires_at_ms = stored.expires_at_ms
        if stored.boot and stored.boot != directory.boot.name:
            expires_at_ms = directory.clock.offset_ms + directory.boot.began_ms + stored.ttl_ms
        ahead_ms = directory.clock.ahead_ms()
        return LockRecord(name, stored.owner, stored.token, stored.acquired_at_ms - ahead_ms, expires_at_ms - ahead_ms)


def _decoded(name: str, value: bytes) -> _Stored:
    """Raises StoreFormatError."""
    try:
        return _read(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreFormatError(f"store: lock {name!r} is damaged: {exc}") from exc
