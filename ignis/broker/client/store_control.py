"""Queues' settings, locks, epochs and array queues of an ``ignis://`` store, each call a request to the broker."""

from __future__ import annotations

import builtins
import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

from ignis.broker.client import store_requests
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.store_calls import StoreCalls
from ignis.broker.protocol.commands import Command
from ignis.errors import ConflictError, ConnectionLostError, MessageTooLargeError, QueueNotFoundError
from ignis.storage.base import ArrayStore, Fence, LockRecord, LockStore, LockTable, QueueRecord, QueueStore
from ignis.storage.checks import check_record, ttl_milliseconds

__all__ = ["BrokerArrays", "BrokerLocks", "BrokerQueues"]

_FRAME_ROOM_BYTES = 64
"""Of a frame for its header, and for what stands in an answer before its values."""


class BrokerQueues(QueueStore):
    """The queues' settings."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls

    def get(self, name: str) -> QueueRecord | None:
        return self._calls.ask(store_requests.queue_get(name))

    def look(self, name: str) -> QueueRecord | None:
        """Over the connection that stands, and over no other."""
        request = store_requests.queue_get(name)
        with self._calls.call() as client:
            connection = client.connection
            if connection is None:
                raise ConnectionLostError("there is no connection", sent=False)
            return request.parse(connection.exchange(request.command, request.payload, client.settings.timeout_s))

    def put(self, record: QueueRecord) -> None:
        check_record(record)
        self._calls.ask(store_requests.queue_put(record))

    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        """The change is made here: the record is read, changed, and replaced if nobody else changed it meanwhile. Raises
        ConflictError when others change it again and again for ``client.timeout_s``."""
        with self._calls.call() as client:
            deadline = time.monotonic() + client.settings.timeout_s
            while True:
                known = client.ask(store_requests.queue_get(name))
                if known is None:
                    raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
                fresh = copy.deepcopy(known)
                change(fresh)
                check_record(fresh)
                try:
                    return client.ask(store_requests.queue_replace(known, fresh, fence))
                except ConflictError:
                    if time.monotonic() >= deadline:
                        raise

    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        found: builtins.list[QueueRecord] = []
        more = True
        while more:
            records, more = self._calls.ask(store_requests.queue_list(active, found[-1].name if found else ""))
            found += records
            more = more and bool(records)
        return found

    def remove(self, name: str) -> bool:
        return self._calls.ask(store_requests.queue_remove(name))


class _Locks(LockTable):
    def __init__(self, calls: StoreCalls, table: str = "", farm_id: str = "") -> None:
        self._calls = calls
        self._where = table, farm_id

    def acquire(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_milliseconds(ttl_s)
        return self._calls.ask(store_requests.lock(Command.LOCK_ACQUIRE, name, owner, ttl_s, *self._where))

    def renew(self, name: str, owner: str, ttl_s: float) -> LockRecord | None:
        ttl_milliseconds(ttl_s)
        return self._calls.ask(store_requests.lock(Command.LOCK_RENEW, name, owner, ttl_s, *self._where))

    def release(self, name: str, owner: str) -> bool:
        return self._calls.ask(store_requests.lock_release(name, owner, *self._where))

    def get(self, name: str) -> LockRecord | None:
        return self._calls.ask(store_requests.lock(Command.LOCK_GET, name, "", 0, *self._where))

    def draw_token(self, name: str, owner: str) -> int | None:
        return self._calls.ask(store_requests.lock_token(name, owner, *self._where))


class BrokerLocks(_Locks, LockStore):
    """Locks and epochs of the store behind the broker."""

    def table(self, name: str, farm_id: str) -> LockTable:
        return _Locks(self._calls, name, farm_id)

    def next_epoch(self, scope: str) -> int:
        return self._calls.ask(store_requests.epoch_next(scope))

    def raise_epoch(self, scope: str, epoch: int) -> None:
        self._calls.ask(store_requests.epoch_raise(scope, epoch))

    def epoch(self, scope: str) -> int:
        return self._calls.ask(store_requests.epoch_get(scope))


class BrokerArrays(ArrayStore):
    """Array queues of the store behind the broker. Fewer values may come than there are: as many as one answer has room for."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls

    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        request = store_requests.array_enqueue(name, bin_name, values)
        self._calls.check_size(len(request.payload))
        return self._calls.ask(request)

    def dequeue(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> builtins.list[Any]:
        return self._ask(store_requests.array_dequeue, name, bin_name, limit, max_bytes, max_value_bytes)

    def peek(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> builtins.list[Any]:
        return self._ask(store_requests.array_peek, name, bin_name, limit, max_bytes, max_value_bytes)

    def _ask(
        self,
        request: Callable[..., ClientRequest[builtins.list[Any]]],
        name: str,
        bin_name: str,
        limit: int,
        max_bytes: int | None,
        max_value_bytes: int | None,
    ) -> builtins.list[Any]:
        """Asks for no more than this client can receive: what a lost answer held is gone."""
        most = self._calls.client.settings.max_frame_bytes - _FRAME_ROOM_BYTES
        room = most if max_bytes is None else min(max_bytes, most)
        largest = most if max_value_bytes is None else min(max_value_bytes, most)
        try:
            return self._calls.ask(request(name, bin_name, limit, room, largest))
        except MessageTooLargeError as exc:
            if max_value_bytes is None and exc.setting == "max_value_bytes":
                raise MessageTooLargeError(exc.size_bytes, largest, "client.max_frame_bytes", exc.part) from None
            raise

    def size(self, name: str, bin_name: str) -> int:
        return self._calls.ask(store_requests.array_size(name, bin_name))
