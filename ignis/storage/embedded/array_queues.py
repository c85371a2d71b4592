"""Array queues, in the ``sync`` environment. Keys, each behind ``A | scope | name NUL bin NUL``:

* nothing -> head and tail: the number of the oldest value, and the number that the next one gets
* ``number u64`` -> one value in MessagePack

A value is written once and removed once, whatever the length of the queue.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ignis.errors import StoreFormatError
from ignis.storage.base import ArrayStore
from ignis.storage.checks import check_array, check_limit
from ignis.storage.embedded.calls import guarded
from ignis.storage.embedded.committer import Operation
from ignis.storage.embedded.environment import Txn
from ignis.storage.embedded.locks import Step

if TYPE_CHECKING:
    from ignis.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedArrays"]

_ENDS = struct.Struct(">QQ")
_NUMBER = struct.Struct(">Q")
_OVERHEAD_BYTES = 64
_PAGES_BYTES = 4 * 4096


class _Enqueue(Operation):
    """Appends packed values; the result is the new size."""

    def __init__(self, prefix: bytes, packed: list[bytes]) -> None:
        super().__init__()
        self._prefix = prefix
        self._packed = packed

    def need_bytes(self) -> int:
        return _PAGES_BYTES + sum(len(self._prefix) + len(one) + _OVERHEAD_BYTES for one in self._packed)

    def run(self, txn: Txn) -> int:
        head, tail = _ends(txn, self._prefix)
        for number, one in enumerate(self._packed, tail):
            txn.put(self._prefix + _NUMBER.pack(number), one)
        tail += len(self._packed)
        txn.put(self._prefix, _ENDS.pack(head, tail))
        return tail - head


class EmbeddedArrays(ArrayStore):
    """Array queues of one application. Thread-safe and shared by processes; every change is durable on return."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    @guarded
    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        prefix = self._prefix(name, bin_name)
        packed = [msgspec.msgpack.encode(value) for value in values]
        size: int = self._store.sync_data().committer.submit(_Enqueue(prefix, packed))
        return size

    @guarded
    def dequeue(self, name: str, bin_name: str, limit: int) -> list[Any]:
        check_limit(limit)
        prefix = self._prefix(name, bin_name)

        def run(txn: Txn) -> list[bytes]:
            head, tail = _ends(txn, prefix)
            end = min(head + limit, tail)
            packed = _read(txn, prefix, head, end)
            for number in range(head, end):
                txn.delete(prefix + _NUMBER.pack(number))
            if packed:
                txn.put(prefix, _ENDS.pack(end, tail))
            return packed

        found: list[bytes] = self._store.sync_data().committer.submit(Step(run))
        return _unpack(found)

    @guarded
    def peek(self, name: str, bin_name: str, limit: int) -> list[Any]:
        check_limit(limit)
        prefix = self._prefix(name, bin_name)
        with self._store.sync_data().env.reading() as txn:
            head, tail = _ends(txn, prefix)
            found = _read(txn, prefix, head, min(head + limit, tail))
        return _unpack(found)

    @guarded
    def size(self, name: str, bin_name: str) -> int:
        prefix = self._prefix(name, bin_name)
        with self._store.sync_data().env.reading() as txn:
            head, tail = _ends(txn, prefix)
        return tail - head

    def _prefix(self, name: str, bin_name: str) -> bytes:
        """Raises InvalidNameError."""
        check_array(name, bin_name)
        return self._store.scope.key(b"A", f"{name}\0{bin_name}\0")


def _ends(txn: Txn, prefix: bytes) -> tuple[int, int]:
    value = txn.get(prefix)
    if value is None:
        return 0, 0
    if len(value) != _ENDS.size:
        raise StoreFormatError(f"store: the ends of an array queue are damaged: {bytes(prefix)!r}")
    head, tail = _ENDS.unpack(value)
    return head, tail


def _read(txn: Txn, prefix: bytes, first: int, end: int) -> list[bytes]:
    found = []
    for number in range(first, end):
        value = txn.get(prefix + _NUMBER.pack(number))
        if value is None:
            raise StoreFormatError(f"store: value {number} of an array queue is missing: {bytes(prefix)!r}")
        found.append(bytes(value))
    return found


def _unpack(packed: list[bytes]) -> list[Any]:
    try:
        return [msgspec.msgpack.decode(one) for one in packed]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreFormatError(f"store: a value of an array queue is damaged: {exc}") from exc
