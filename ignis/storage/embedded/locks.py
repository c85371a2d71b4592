"""Locks and epochs, in the ``sync`` environment. Keys:

* ``L | scope | name`` -> a lock: owner, token, times. It stays when it is released, so that the token rises for ever.
* ``E | scope | scope name`` -> an epoch
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ignis.errors import ConfigError, StoreFormatError
from ignis.storage.base import Fence, LockRecord, LockStore, LockTable
from ignis.storage.checks import check_epoch, ttl_milliseconds
from ignis.storage.embedded.calls import guarded
from ignis.storage.embedded.catalogue import Scope
from ignis.storage.embedded.committer import Operation
from ignis.storage.embedded.environment import Txn

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedLocks", "read_epoch"]

_U64 = struct.Struct(">Q")


def read_epoch(txn: Txn, scope: Scope, name: str) -> int:
    """0 before the first."""
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

    def table(self, name: str, farm_id: str) -> LockTable:
        # A farm has no "#" in its name, so that no table is an application's own scope.
        return EmbeddedLocks(self._store, Scope(name, ""))

    @guarded
    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)

        def run(txn: Txn) -> LockRecord | None:
            now_ms = int(time.time() * 1000)
            stored = self._get(txn, name)
            if stored is not None and stored.owner and stored.expires_at_ms > now_ms:
                return None
            token = 1 if stored is None else stored.token + 1
            return self._put(txn, name, _Stored(owner, token, now_ms, now_ms + ttl_ms))

        if not owner:
            raise ConfigError("a lock's owner must not be empty")
        return self._submit(run)

    @guarded
    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)

        def run(txn: Txn) -> LockRecord | None:
            now_ms = int(time.time() * 1000)
            stored = self._get(txn, name)
            if stored is None or not _holds(stored, owner, now_ms):
                return None
            stored.expires_at_ms = now_ms + ttl_ms
            return self._put(txn, name, stored)

        return self._submit(run)

    @guarded
    def release(self, name: str, owner: str) -> bool:
        def run(txn: Txn) -> bool:
            stored = self._get(txn, name)
            if stored is None or not _holds(stored, owner, int(time.time() * 1000)):
                return False
            stored.owner, stored.expires_at_ms = "", 0
            self._put(txn, name, stored)
            return True

        released: bool = self._store.sync_data().committer.submit(Step(run))
        return released

    @guarded
    def get(self, name: str) -> LockRecord | None:
        with self._store.sync_data().env.reading() as txn:
            stored = self._get(txn, name)
        if stored is None or not _holds(stored, stored.owner, int(time.time() * 1000)):
            return None
        return _record(name, stored)

    @guarded
    def next_epoch(self, scope: str) -> int:
        def run(txn: Txn) -> int:
            epoch = read_epoch(txn, self._scope, scope) + 1
            txn.put(self._scope.key(b"E", scope), _U64.pack(epoch))
            return epoch

        epoch: int = self._store.sync_data().committer.submit(Step(run))
        return epoch

    @guarded
    def raise_epoch(self, scope: str, epoch: int) -> None:
        def run(txn: Txn) -> None:
            known = read_epoch(txn, self._scope, scope)
            check_epoch(known, Fence(scope, epoch))
            if epoch > known:
                txn.put(self._scope.key(b"E", scope), _U64.pack(epoch))

        self._store.sync_data().committer.submit(Step(run))

    @guarded
    def epoch(self, scope: str) -> int:
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
        except msgspec.MsgspecError as exc:
            raise StoreFormatError(f"store: lock {name!r} is damaged: {exc}") from exc

    def _put(self, txn: Txn, name: str, stored: _Stored) -> LockRecord:
        txn.put(self._scope.key(b"L", name), msgspec.msgpack.encode(stored))
        return _record(name, stored)


def _holds(stored: _Stored, owner: str, now_ms: int) -> bool:
    return bool(stored.owner) and stored.owner == owner and stored.expires_at_ms > now_ms


def _record(name: str, stored: _Stored) -> LockRecord:
    return LockRecord(name, stored.owner, stored.token, stored.acquired_at_ms, stored.expires_at_ms)
