"""The queues' settings, in the ``sync`` environment: ``Q | scope | name`` -> the record in MessagePack."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ignis.errors import QueueNotFoundError, StoreBusyError, StoreFormatError
from ignis.storage.base import Fence, QueueRecord, QueueStore
from ignis.storage.checks import check_epoch, check_queue, check_record, check_same_name
from ignis.storage.embedded import catalogue
from ignis.storage.embedded.calls import guarded
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.locks import Step, read_epoch

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedQueues"]

log = logging.getLogger("ignis.storage")

_ATTEMPTS = 1_000


class EmbeddedQueues(QueueStore):
    """Queues of one application. Thread-safe; every change is durable on return."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._reported: set[str] = set()

    @guarded
    def get(self, name: str) -> QueueRecord | None:
        value = self._read(name)
        return None if value is None else decode(name, value)

    @guarded
    def put(self, record: QueueRecord) -> None:
        value = check_record(record)
        key = self._key(record.name)
        self._store.sync_data().committer.submit(Step(lambda txn: txn.put(key, value)))

    @guarded
    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        # The change runs in the caller's thread, outside of any transaction, and is tried again when somebody else was
        # quicker: it is foreign code and may take its time or call the store.
        key = self._key(name)
        for _ in range(_ATTEMPTS):
            before = self._read(name)
            if before is None:
                raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
            record = decode(name, before)
            change(record)
            check_same_name(name, record)
            after = check_record(record)

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
        prefix = self._store.scope.prefix(b"Q")
        with self._store.sync_data().env.reading() as txn:
            values = [(catalogue.text_of(key[len(prefix) :]), value) for key, value in catalogue.items(txn, prefix)]
        records: builtins.list[QueueRecord] = []
        for name, value in values:
            try:
                records.append(decode(name, value))
            except StoreFormatError as exc:
                # The others go on; who asks for this one is told.
                if name not in self._reported:
                    self._reported.add(name)
                    log.error("%s", exc)
        return [record for record in records if active is None or record.active == active]

    @guarded
    def remove(self, name: str) -> bool:
        key = self._key(name)
        if self._read(name) is None:
            return False
        removed: bool = self._store.sync_data().committer.submit(Step(lambda txn: txn.delete(key)))
        return removed

    def _key(self, name: str) -> bytes:
        """Raises InvalidNameError."""
        return self._store.scope.key(b"Q", check_queue(name))

    def _read(self, name: str) -> bytes | None:
        key = self._key(name)
        with self._store.sync_data().env.reading() as txn:
            value = txn.get(key)
            return None if value is None else bytes(value)


def decode(name: str, value: bytes) -> QueueRecord:
    """The record of the queue of that name. Raises StoreFormatError, which concerns this queue alone."""
    try:
        record = msgspec.msgpack.decode(value, type=QueueRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _damaged(name, str(exc)) from exc
    if record.name != name:
        raise _damaged(name, f"it names {record.name!r}")
    return record


def _damaged(name: str, why: str) -> StoreFormatError:
    return StoreFormatError(
        f"store: the record of queue {name!r} is damaged: {why}; its messages are not touched, removing the queue's record "
        "and using the queue again makes a new one"
    )
