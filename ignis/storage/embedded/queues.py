"""The queues' settings, in the ``sync`` environment: ``Q | scope | name`` -> the record in MessagePack."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ignis.errors import QueueNotFoundError, StoreBusyError, StoreFormatError
from ignis.storage.base import Fence, QueueRecord, QueueStore
from ignis.storage.checks import check_epoch
from ignis.storage.embedded import catalogue
from ignis.storage.embedded.calls import guarded
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.locks import Step, read_epoch

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedQueues"]

_ATTEMPTS = 1_000


class EmbeddedQueues(QueueStore):
    """Queues of one application. Thread-safe; every change is durable on return."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    @guarded
    def get(self, name: str) -> QueueRecord | None:
        value = self._read(name)
        return None if value is None else decode(value)

    @guarded
    def put(self, record: QueueRecord) -> None:
        key, value = self._store.scope.key(b"Q", record.name), msgspec.msgpack.encode(record)
        self._store.sync_data().committer.submit(Step(lambda txn: txn.put(key, value)))

    @guarded
    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        # The change runs in the caller's thread, outside of any transaction, and is tried again when somebody else was
        # quicker: it is foreign code and may take its time or call the store.
        key = self._store.scope.key(b"Q", name)
        for _ in range(_ATTEMPTS):
            before = self._read(name)
            if before is None:
                raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
            record = decode(before)
            change(record)
            after = msgspec.msgpack.encode(record)

            def run(txn: Txn, before: bytes = before, after: bytes = after) -> bool:
                if fence is not None:
                    check_epoch(read_epoch(txn, self._store.scope, fence.scope), fence)
                if bytes(txn.get(key, b"")) != before:
                    return False
                txn.put(key, after)
                return True

            if self._store.sync_data().committer.submit(Step(run)):
                return record
        raise StoreBusyError(f"store: queue {name!r} is changed by others all the time")

    @guarded
    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        with self._store.sync_data().env.reading() as txn:
            values = [value for _, value in catalogue.items(txn, self._store.scope.prefix(b"Q"))]
        records = [decode(value) for value in values]
        return [record for record in records if active is None or record.active == active]

    @guarded
    def remove(self, name: str) -> bool:
        key = self._store.scope.key(b"Q", name)
        if self._read(name) is None:
            return False
        removed: bool = self._store.sync_data().committer.submit(Step(lambda txn: txn.delete(key)))
        return removed

    def _read(self, name: str) -> bytes | None:
        with self._store.sync_data().env.reading() as txn:
            value = txn.get(self._store.scope.key(b"Q", name))
            return None if value is None else bytes(value)


def decode(value: bytes) -> QueueRecord:
    try:
        return msgspec.msgpack.decode(value, type=QueueRecord)
    except msgspec.MsgspecError as exc:
        raise StoreFormatError(f"store: a queue's record is damaged: {exc}") from exc
