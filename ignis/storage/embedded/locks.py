"""Locks and epochs, in the ``sync`` environment. Times are the store clock's, which nobody can set. Keys:

* ``L | scope | name`` -> a lock: owner, token, times. It stays when it is released, so that the token rises for ever.
* ``E | scope | scope name`` -> an epoch
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ignis.errors import StoreFormatError
from ignis.storage.base import Fence, LockRecord, LockStore, LockTable
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
from ignis.storage.embedded.calls import guarded
from ignis.storage.embedded.catalogue import Scope
from ignis.storage.embedded.committer import Operation
from ignis.storage.embedded.environment import Txn

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedLocks", "read_epoch"]

_U64 = struct.Struct(">Q")


def read_epoch(txn: Txn, scope: Scope, name: str) -> int:
    """0 before the first. Raises InvalidNameError."""
    check_scope(name)
    value = txn.get(scope.key(b"E", name))
    if value is None:
        return 0
    epoch: int = _U64.unpack(value)[0]
    return epoch


class _Stored(msgspec.Struct):
    owner: str
    token: int
    acquired_at_ms: int
    expires_at_ms: int
    boot: str = ""
    """Of the machine, when the times were set; empty in what earlier versions stored."""
    ttl_ms: int = 0


class Step(Operation):
    """An operation made of a function."""

    def __init__(self, run: Callable[[Txn], object]) -> None:
        super().__init__()
        self._run = run

    def run(self, txn: Txn) -> object:
        return self._run(txn)


class EmbeddedLocks(LockStore):
    """Locks of one application, or of one table of distributed locks. Thread-safe; every change is durable on return."""

    def __init__(self, store: EmbeddedStore, scope: Scope | None = None) -> None:
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

        def run(txn: Txn) -> LockRecord | None:
            stored = self._get(txn, name)
            if stored is not None and stored.owner and self._left_ms(stored) > 0:
                return None
            now_ms = self._store.directory.clock.now_ms()
            token = 1 if stored is None else stored.token + 1
            boot = self._store.directory.here.boot
            return self._put(txn, name, _Stored(owner, token, now_ms, now_ms + ttl_ms, boot, ttl_ms))

        check_owner(owner)
        self._check_name(name)
        return self._submit(run)

    @guarded
    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        self._check_name(name)
        ttl_ms = ttl_milliseconds(ttl_s)

        def run(txn: Txn) -> LockRecord | None:
            stored = self._get(txn, name)
            if stored is None or not self._holds(stored, owner):
                return None
            stored.expires_at_ms = self._store.directory.clock.now_ms() + ttl_ms
            stored.boot, stored.ttl_ms = self._store.directory.here.boot, ttl_ms
            return self._put(txn, name, stored)

        return self._submit(run)

    @guarded
    def release(self, name: str, owner: str) -> bool:
        self._check_name(name)

        def run(txn: Txn) -> bool:
            stored = self._get(txn, name)
            if stored is None or not self._holds(stored, owner):
                return False
            stored.owner, stored.expires_at_ms = "", 0
            self._put(txn, name, stored)
            return True

        released: bool = self._store.sync_data().committer.submit(Step(run))
        return released

    @guarded
    def get(self, name: str) -> LockRecord | None:
        self._check_name(name)
        with self._store.sync_data().env.reading() as txn:
            stored = self._get(txn, name)
        if stored is None or not self._holds(stored, stored.owner):
            return None
        return self._record(name, stored)

    @guarded
    def next_epoch(self, scope: str) -> int:
        check_scope(scope)

        def run(txn: Txn) -> int:
            epoch = read_epoch(txn, self._scope, scope) + 1
            txn.put(self._scope.key(b"E", scope), _U64.pack(epoch))
            return epoch

        epoch: int = self._store.sync_data().committer.submit(Step(run))
        return epoch

    @guarded
    def raise_epoch(self, scope: str, epoch: int) -> None:
        check_scope(scope)
        check_epoch_number(epoch, raised=True)

        def run(txn: Txn) -> None:
            known = read_epoch(txn, self._scope, scope)
            check_epoch(known, Fence(scope, epoch))
            if epoch > known:
                txn.put(self._scope.key(b"E", scope), _U64.pack(epoch))

        self._store.sync_data().committer.submit(Step(run))

    @guarded
    def epoch(self, scope: str) -> int:
        check_scope(scope)
        with self._store.sync_data().env.reading() as txn:
            return read_epoch(txn, self._scope, scope)

    def _submit(self, run: Callable[[Txn], LockRecord | None]) -> LockRecord | None:
        record: LockRecord | None = self._store.sync_data().committer.submit(Step(run))
        return record

    def _get(self, txn: Txn, name: str) -> _Stored | None:
        value = txn.get(self._scope.key(b"L", name))
        if value is None:
            return None
        try:
            return msgspec.msgpack.decode(value, type=_Stored)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise StoreFormatError(f"store: lock {name!r} is damaged: {exc}") from exc

    def _put(self, txn: Txn, name: str, stored: _Stored) -> LockRecord:
        txn.put(self._scope.key(b"L", name), msgspec.msgpack.encode(stored))
        return self._record(name, stored)

    def _left_ms(self, stored: _Stored) -> int:
        """How long the lock still holds.

        One of an earlier boot holds until its whole time to live has passed in this one: how long the machine was off
        only the wall clock knows, which is not asked, and a broker's client on another machine may hold it still.
        """
        directory = self._store.directory
        if stored.boot and stored.boot != directory.here.boot:
            return stored.ttl_ms - directory.clock.rising_ms()
        return stored.expires_at_ms - directory.clock.now_ms()

    def _holds(self, stored: _Stored, owner: str) -> bool:
        return bool(stored.owner) and stored.owner == owner and self._left_ms(stored) > 0

    def _record(self, name: str, stored: _Stored) -> LockRecord:
        directory = self._store.directory
        expires_at_ms = stored.expires_at_ms
        if stored.boot and stored.boot != directory.here.boot:
            expires_at_ms = directory.clock.offset_ms + stored.ttl_ms
        ahead_ms = directory.clock.ahead_ms()
        return LockRecord(name, stored.owner, stored.token, stored.acquired_at_ms - ahead_ms, expires_at_ms - ahead_ms)
