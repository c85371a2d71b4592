"""Locks with fencing tokens, and epochs.

A lock is one record that stays: owner, token, and how long it may go without a renewal. Taking, renewing and releasing
it are one operation each, under a condition that the server checks together with the write. Whether a lock ran out is
decided by the server's clock alone. The record outlives the lock because the token must rise for ever.

In a cluster that is split, both sides may give a lock away: without strong consistency a lock is advisory, and what must
not happen twice has to check the token.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from ignis.errors import IgnisError
from ignis.storage.aerospike import expressions, layout
from ignis.storage.aerospike.connection import policy
from ignis.storage.aerospike.context import StoreContext
from ignis.storage.aerospike.java_locks import AerospikeLockTable
from ignis.storage.base import LockStore, LockTable
from ignis.storage.checks import (
    check_epoch,
    check_epoch_number,
    check_lock,
    check_owner,
    check_scope,
    check_table,
    ttl_milliseconds,
)
from ignis.storage.records import Fence, LockRecord

__all__ = ["AerospikeLocks"]

OWNER, TOKEN, TTL_MS, ACQUIRED, EXPIRES, ATTEMPT = "owner", "token", "ttl_ms", "acquired_ms", "expires_ms", "attempt"
EPOCH = "epoch"
_FIELDS = (OWNER, TOKEN, TTL_MS, ACQUIRED, EXPIRES, ATTEMPT)


class AerospikeLocks(LockStore):
    """Locks of one application. Thread-safe."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._connection = context.connection
        self._free = expressions.lock_is_free(OWNER, TTL_MS)

    def _key(self, name: str) -> tuple[str, str, str]:
        """Raises InvalidNameError."""
        check_lock(name)
        return self._connection.namespace, self._context.sets.locks, name

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        """One client call. When its answer is lost the record is read back: ours if it carries this attempt's number."""
        ttl_ms = ttl_milliseconds(ttl_s)
        check_owner(owner)
        with self._context.call():
            now_ms = int(time.time() * 1000)
            attempt = secrets.randbits(62)
            values = {OWNER: owner, TTL_MS: ttl_ms, ACQUIRED: now_ms, EXPIRES: now_ms + ttl_ms, ATTEMPT: attempt}
            ops = [expressions.increment(TOKEN, 1), *_writes(values), expressions.read(TOKEN)]
            how = policy(ttl=layout.TTL_NEVER, only_if=self._free)
            try:
                bins = self._connection.apply("lock", self._key(name), ops, how, repeat=False)
            except IgnisError as exc:
                if not exc.retryable:
                    raise
                found = self._connection.get("lock", self._key(name))
                if found is None or found[0].get(ATTEMPT) != attempt:
                    raise
                bins = found[0]
            return None if bins is None else LockRecord(name, owner, bins[TOKEN], now_ms, now_ms + ttl_ms)

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)
        with self._context.call():
            expires_ms = int(time.time() * 1000) + ttl_ms
            ops = [*_writes({TTL_MS: ttl_ms, EXPIRES: expires_ms}), expressions.read(TOKEN), expressions.read(ACQUIRED)]
            how = policy("update", ttl=layout.TTL_NEVER, only_if=expressions.lock_is_of(OWNER, TTL_MS, owner))
            bins = self._connection.apply("lock", self._key(name), ops, how)
            return None if bins is None else LockRecord(name, owner, bins[TOKEN], bins[ACQUIRED], expires_ms)

    def release(self, name: str, owner: str) -> bool:
        with self._context.call():
            how = policy("update", ttl=layout.TTL_NEVER, only_if=expressions.lock_is_of(OWNER, TTL_MS, owner))
            return self._connection.apply("lock", self._key(name), _writes({OWNER: ""}), how) is not None

    def get(self, name: str) -> LockRecord | None:
        with self._context.call():
            found = self._connection.get("lock", self._key(name), expressions.lock_is_held(OWNER, TTL_MS))
            if found is None:
                return None
            bins = found[0]
            return LockRecord(name, bins[OWNER], bins[TOKEN], bins[ACQUIRED], bins[EXPIRES])

    def table(self, name: str, farm_id: str) -> LockTable:
        check_table(name, farm_id)
        return AerospikeLockTable(self._context, name, farm_id)

    def _epoch_key(self, scope: str) -> tuple[str, str, str]:
        """Raises InvalidNameError."""
        check_scope(scope)
        return self._connection.namespace, self._context.sets.epochs, scope

    def next_epoch(self, scope: str) -> int:
        """Repeated after a lost answer it rises by two; epochs only have to rise."""
        with self._context.call():
            ops = [expressions.increment(EPOCH, 1), expressions.read(EPOCH)]
            bins = self._connection.apply("epoch", self._epoch_key(scope), ops, policy(ttl=layout.TTL_NEVER))
            return int((bins or {})[EPOCH])

    def raise_epoch(self, scope: str, epoch: int) -> None:
        """One client call: compared and written by the server in one operation."""
        check_epoch_number(epoch, raised=True)
        with self._context.call():
            how = policy(ttl=layout.TTL_NEVER, only_if=expressions.is_at_most(EPOCH, epoch))
            written = self._connection.apply("epoch", self._epoch_key(scope), [expressions.write(EPOCH, epoch)], how)
            if written is None:
                check_epoch(self.epoch(scope), Fence(scope, epoch))

    def epoch(self, scope: str) -> int:
        with self._context.call():
            found = self._connection.get("epoch", self._epoch_key(scope))
            return 0 if found is None else int(found[0][EPOCH])


def _writes(values: dict[str, Any]) -> list[Any]:
    return [expressions.write(name, value) for name, value in values.items()]
