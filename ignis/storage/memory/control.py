"""Queues, locks and array queues of the memory store."""

from __future__ import annotations

import builtins
import copy
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ignis.errors import QueueNotFoundError
from ignis.safe_msgpack import ANY_NUMBER, decoder
from ignis.storage.base import ArrayStore, LockStore, LockTable, QueueStore
from ignis.storage.checks import (
    check_array,
    check_epoch_number,
    check_limit,
    check_lock,
    check_lock_in_table,
    check_owner,
    check_queue,
    check_record,
    check_same_name,
    check_scope,
    check_table,
    ttl_milliseconds,
)
from ignis.storage.fitting import ValueRoom, first_fitting
from ignis.storage.memory.state import StoreContext
from ignis.storage.records import Fence, LockRecord, QueueRecord

__all__ = ["MemoryArrays", "MemoryLocks", "MemoryQueues"]

_read = decoder(max_integers=ANY_NUMBER)


class MemoryQueues(QueueStore):
    """Queues of one application. Thread-safe. Records are copied in and out."""

    def __init__(self, store: StoreContext) -> None:
        self._store = store

    def _key(self, name: str) -> tuple[str, str]:
        return self._store.scope, check_queue(name)

    def get(self, name: str) -> QueueRecord | None:
        with self._store.open_content() as content:
            return copy.deepcopy(content.queues.get(self._key(name)))

    def put(self, record: QueueRecord) -> None:
        check_record(record)
        with self._store.open_content() as content:
            content.queues[self._key(record.name)] = copy.deepcopy(record)

    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        with self._store.open_content() as content:
            self._store.check_fence(fence)
            stored = content.queues.get(self._key(name))
            if stored is None:
                raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
            record = copy.deepcopy(stored)
            change(record)
            check_same_name(name, record)
            check_record(record)
            content.queues[self._key(name)] = record
            return copy.deepcopy(record)

    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        with self._store.open_content() as content:
            mine = sorted(key for key in content.queues if key[0] == self._store.scope)
            records = [copy.deepcopy(content.queues[key]) for key in mine]
            return [record for record in records if active is None or record.active == active]

    def page(
        self,
        after: str,
        *,
        active: bool | None = None,
        max_bytes: int,
        wanted: Callable[[str], bool] | None = None,
    ) -> tuple[builtins.list[QueueRecord], bool]:
        with self._store.open_content() as content:
            names = sorted(name for scope, name in content.queues if scope == self._store.scope and name > after)
            found = (content.queues[self._store.scope, name] for name in names if wanted is None or wanted(name))
            some = (one for one in found if active is None or one.active == active)
            records, more = first_fitting(((one, len(msgspec.msgpack.encode(one))) for one in some), max_bytes)
            return copy.deepcopy(records), more

    def remove(self, name: str) -> bool:
        with self._store.open_content() as content:
            return content.queues.pop(self._key(name), None) is not None

    def applications(self) -> builtins.list[tuple[str, str]]:
        with self._store.open_content() as content:
            scopes = {scope for scope, _ in content.queues}
        return sorted((farm_id, client_id) for farm_id, _, client_id in (scope.partition("/") for scope in scopes))


class MemoryLocks(LockStore):
    """Locks of one application, or of one table of distributed locks. Thread-safe."""

    def __init__(self, store: StoreContext, scope: str | None = None) -> None:
        self._store = store
        self._scope = store.scope if scope is None else scope
        self._check_name = check_lock if scope is None else check_lock_in_table

    def table(self, name: str, farm_id: str) -> LockTable:
        check_table(name, farm_id)
        # A farm has no "#" in its name, so that no table is an application's own scope.
        return MemoryLocks(self._store, name)

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)
        check_owner(owner)
        with self._store.open_content() as content:
            self._check_name(name)
            if self._held(name) is not None:
                return None
            now_ms = self._store.clock.now_ms()
            known = content.locks.get((self._scope, name))
            token = 1 if known is None else known.token + 1
            return self._put(LockRecord(name, owner, token, now_ms, now_ms + ttl_ms))

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_ms = ttl_milliseconds(ttl_s)
        with self._store.open_content():
            self._check_name(name)
            known = self._held(name)
            if known is None or known.owner != owner:
                return None
            return self._put(known._replace(expires_at_ms=self._store.clock.now_ms() + ttl_ms))

    def release(self, name: str, owner: str) -> bool:
        with self._store.open_content():
            self._check_name(name)
            known = self._held(name)
            if known is None or known.owner != owner:
                return False
            # Kept for its token, which rises for ever.
            self._put(known._replace(owner="", expires_at_ms=0))
            return True

    def get(self, name: str) -> LockRecord | None:
        with self._store.open_content():
            self._check_name(name)
            known = self._held(name)
            return None if known is None else self._shown(known)

    def held(self) -> list[LockRecord]:
        with self._store.open_content() as content:
            names = sorted(name for scope, name in content.locks if scope == self._scope)
            return [self._shown(known) for name in names if (known := self._held(name)) is not None]

    def _held(self, name: str) -> LockRecord | None:
        """Times are the store clock's in what is kept. Caller holds the lock."""
        known = self._store.content.locks.get((self._scope, name))
        held = known is not None and known.owner and known.expires_at_ms > self._store.clock.now_ms()
        return known if held else None

    def _shown(self, record: LockRecord) -> LockRecord:
        ahead_ms = self._store.clock.ahead_ms()
        return record._replace(
            acquired_at_ms=record.acquired_at_ms - ahead_ms, expires_at_ms=record.expires_at_ms - ahead_ms
        )

    def next_epoch(self, scope: str) -> int:
        check_scope(scope)
        with self._store.open_content() as content:
            key = (self._scope, scope)
            content.epochs[key] = epoch = content.epochs.get(key, 0) + 1
            return epoch

    def raise_epoch(self, scope: str, epoch: int) -> None:
        check_scope(scope)
        check_epoch_number(epoch, raised=True)
        with self._store.open_content() as content:
            self._store.check_fence(Fence(scope, epoch))
            content.epochs[self._scope, scope] = epoch

    def epoch(self, scope: str) -> int:
        check_scope(scope)
        with self._store.open_content() as content:
            return content.epochs.get((self._scope, scope), 0)

    def epochs(self) -> dict[str, int]:
        with self._store.open_content() as content:
            return {name: content.epochs[scope, name] for scope, name in sorted(content.epochs) if scope == self._scope}

    def _put(self, record: LockRecord) -> LockRecord:
        with self._store.open_content() as content:
            content.locks[self._scope, record.name] = record
        return self._shown(record)


class MemoryArrays(ArrayStore):
    """Array queues of one application. Thread-safe. Values are copied in and out."""

    def __init__(self, store: StoreContext) -> None:
        self._store = store

    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        check_array(name, bin_name)
        packed = [msgspec.msgpack.encode(value) for value in values]
        with self._store.open_content() as content:
            queue = content.arrays.setdefault((self._store.scope, name, bin_name), deque())
            queue.extend(packed)
            return len(queue)

    def dequeue(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> builtins.list[Any]:
        check_array(name, bin_name)
        check_limit(limit)
        room, packed = ValueRoom(max_bytes, max_value_bytes), list[bytes]()
        with self._store.open_content() as content:
            queue = content.arrays.get((self._store.scope, name, bin_name), deque())
            while queue and len(packed) < limit and room.takes(len(queue[0])):
                packed.append(queue.popleft())
        return [_read(one) for one in packed]

    def peek(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> builtins.list[Any]:
        check_array(name, bin_name)
        check_limit(limit)
        room = ValueRoom(max_bytes, max_value_bytes)
        with self._store.open_content() as content:
            queue = content.arrays.get((self._store.scope, name, bin_name), deque())
            packed = list(itertools.takewhile(lambda one: room.takes(len(one)), itertools.islice(queue, limit)))
        return [_read(one) for one in packed]

    def size(self, name: str, bin_name: str) -> int:
        check_array(name, bin_name)
        with self._store.open_content() as content:
            return len(content.arrays.get((self._store.scope, name, bin_name), ()))
