"""The queues' settings: ``Q | scope | name`` -> the record in MessagePack."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ignis.errors import QueueNotFoundError, StoreFormatError
from ignis.log_format import event_text
from ignis.safe_msgpack import MAX_INTEGER_KEYS, decoder
from ignis.storage.base import QueueStore
from ignis.storage.checks import check_queue, check_record, check_same_name
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.keys import Change, read_fence
from ignis.storage.fitting import first_fitting
from ignis.storage.in_flight import guarded
from ignis.storage.records import Fence, QueueRecord

__all__ = ["EmbeddedQueues"]

log = logging.getLogger("ignis.storage")

_read: Callable[[bytes], QueueRecord] = decoder(QueueRecord, max_integers=MAX_INTEGER_KEYS)


class EmbeddedQueues(QueueStore):
    """Queues of one application. Thread-safe; every change is durable on return."""

    def __init__(self, store: StoreContext) -> None:
        self._store = store
        self._reported: set[str] = set()

    @guarded
    def get(self, name: str) -> QueueRecord | None:
        value = self._store.keys.get(self._key(name))
        return None if value is None else decode(name, value)

    @guarded
    def put(self, record: QueueRecord) -> None:
        value = check_record(record)
        key = self._key(record.name)
        keys = self._store.keys
        keys.change(lambda: ([Change(key, keys.get(key), value)], None), f"queue {record.name!r}")

    @guarded
    def update(self, name: str, change: Callable[[QueueRecord], None], fence: Fence | None = None) -> QueueRecord:
        key = self._key(name)
        keys = self._store.keys

        def plan() -> tuple[Sequence[Change], QueueRecord]:
            conditions = []
            if fence is not None:
                fence_key, held = read_fence(keys, self._store.scope, fence)
                conditions.append(Change(fence_key, held, held))
            before = keys.get(key)
            if before is None:
                raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
            record = decode(name, before)
            change(record)
            check_same_name(name, record)
            return [*conditions, Change(key, before, check_record(record))], record

        return keys.change(plan, f"queue {name!r}", foreign=True)

    @guarded
    def list(self, active: bool | None = None) -> builtins.list[QueueRecord]:
        return [record for record, _ in self._records("", active, None)]

    @guarded
    def page(
        self,
        after: str,
        *,
        active: bool | None = None,
        max_bytes: int,
        wanted: Callable[[str], bool] | None = None,
    ) -> tuple[builtins.list[QueueRecord], bool]:
        return first_fitting(self._records(after, active, wanted), max_bytes)

    def _records(
        self, after: str, active: bool | None, wanted: Callable[[str], bool] | None
    ) -> Iterator[tuple[QueueRecord, int]]:
        """Records with their bytes, by name; decoded as they are asked for."""
        prefix = self._store.scope.prefix(b"Q")
        for key, value in self._store.keys.items(prefix):
            name = key[len(prefix) :].decode("utf-8", "backslashreplace")
            if name <= after or not (wanted is None or wanted(name)):
                continue
            try:
                record = decode(name, value)
            except StoreFormatError as exc:
                # The others go on; who asks for this one is told.
                if name not in self._reported:
                    self._reported.add(name)
                    log.error(event_text("queue_record_damaged", "%s"), exc)
                continue
            if active is None or record.active == active:
                yield record, len(value)

    @guarded
    def remove(self, name: str) -> bool:
        key = self._key(name)
        keys = self._store.keys

        def plan() -> tuple[Sequence[Change], bool]:
            before = keys.get(key)
            return ([], False) if before is None else ([Change(key, before, None)], True)

        return keys.change(plan, f"queue {name!r}")

    @guarded
    def applications(self) -> builtins.list[tuple[str, str]]:
        found = set()
        for key, _ in self._store.keys.items(b"Q"):
            farm_id, _, rest = key[1:].partition(b"\0")
            client_id, _, name = rest.partition(b"\0")
            if name:
                found.add((farm_id.decode("utf-8", "backslashreplace"), client_id.decode("utf-8", "backslashreplace")))
        return sorted(found)

    def _key(self, name: str) -> bytes:
        """Raises InvalidNameError."""
        return self._store.scope.key(b"Q", check_queue(name))


def decode(name: str, value: bytes) -> QueueRecord:
    """The record of the queue of that name. Raises StoreFormatError, which concerns this queue alone."""
    try:
        record = _read(value)
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
