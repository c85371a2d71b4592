"""Array queues. Keys, each behind ``A | scope | name NUL bin NUL``:

* nothing -> head and tail: the number of the oldest value, and the number that the next one gets
* ``number u64`` -> one value in MessagePack

A value is written once and removed once, whatever the length of the queue.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from ignis.errors import StoreBusyError, StoreFormatError
from ignis.safe_msgpack import ANY_NUMBER, decoder
from ignis.storage.base import ArrayStore
from ignis.storage.checks import check_array, check_limit
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.keys import Change
from ignis.storage.fitting import ValueRoom
from ignis.storage.in_flight import guarded

__all__ = ["EmbeddedArrays"]

_ENDS = struct.Struct(">QQ")
_NUMBER = struct.Struct(">Q")
_ATTEMPTS = 1_000
_read = decoder(max_integers=ANY_NUMBER)


class EmbeddedArrays(ArrayStore):
    """Array queues of one application. Thread-safe and shared by processes; every change is durable on return."""

    def __init__(self, store: StoreContext) -> None:
        self._store = store

    @guarded
    def enqueue(self, name: str, bin_name: str, values: Sequence[Any]) -> int:
        prefix = self._prefix(name, bin_name)
        packed = [msgspec.msgpack.encode(value) for value in values]

        def plan() -> tuple[Sequence[Change], int]:
            before, head, tail = self._ends(prefix)
            end = tail + len(packed)
            added = [Change(prefix + _NUMBER.pack(number), None, one) for number, one in enumerate(packed, tail)]
            changes = [Change(prefix, before, _ENDS.pack(head, end)), *added] if packed else []
            return changes, end - head

        return self._store.keys.change(plan, f"array queue {name!r}")

    @guarded
    def dequeue(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        check_limit(limit)
        prefix = self._prefix(name, bin_name)

        def plan() -> tuple[Sequence[Change], list[bytes]]:
            before, head, tail, packed = self._oldest(prefix, limit, max_bytes, max_value_bytes)
            if not packed:
                return [], []
            end = head + len(packed)
            taken = [Change(prefix + _NUMBER.pack(number), one, None) for number, one in enumerate(packed, head)]
            return [Change(prefix, before, _ENDS.pack(end, tail)), *taken], packed

        return _unpack(self._store.keys.change(plan, f"array queue {name!r}"))

    @guarded
    def peek(
        self,
        name: str,
        bin_name: str,
        limit: int,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
    ) -> list[Any]:
        check_limit(limit)
        prefix = self._prefix(name, bin_name)
        return _unpack(self._oldest(prefix, limit, max_bytes, max_value_bytes)[3])

    @guarded
    def size(self, name: str, bin_name: str) -> int:
        _, head, tail = self._ends(self._prefix(name, bin_name))
        return tail - head

    def _prefix(self, name: str, bin_name: str) -> bytes:
        """Raises InvalidNameError."""
        check_array(name, bin_name)
        return self._store.scope.key(b"A", f"{name}\0{bin_name}\0")

    def _ends(self, prefix: bytes) -> tuple[bytes | None, int, int]:
        """The value as it is stored, head and tail."""
        value = self._store.keys.get(prefix)
        if value is None:
            return None, 0, 0
        if len(value) != _ENDS.size:
            raise StoreFormatError(f"store: the ends of an array queue are damaged: {prefix!r}")
        head, tail = _ENDS.unpack(value)
        return value, head, tail

    def _oldest(
        self, prefix: bytes, limit: int, max_bytes: int | None, max_value_bytes: int | None
    ) -> tuple[bytes | None, int, int, list[bytes]]:
        """The ends, and the oldest values as they were packed, see `dequeue`."""
        keys = self._store.keys
        for _ in range(_ATTEMPTS):
            before, head, tail = self._ends(prefix)
            room, packed = ValueRoom(max_bytes, max_value_bytes), list[bytes]()
            value: bytes | None = b""
            for number in range(head, min(head + limit, tail)):
                value = keys.get(prefix + _NUMBER.pack(number))
                if value is None or not room.takes(len(value)):
                    break
                packed.append(value)
            if value is not None:
                return before, head, tail, packed
            # Numbers are given once and taken once: either somebody took it meanwhile, or it is lost.
            if keys.get(prefix) == before:
                raise StoreFormatError(f"store: value {head + len(packed)} of an array queue is missing: {prefix!r}")
        raise StoreBusyError(f"store: an array queue is emptied by others all the time: {prefix!r}")


def _unpack(packed: list[bytes]) -> list[Any]:
    try:
        return [_read(one) for one in packed]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreFormatError(f"store: a value of an array queue is damaged: {exc}") from exc
