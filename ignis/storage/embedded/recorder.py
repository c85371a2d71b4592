"""A write transaction that notes what is written through it, for the journal."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Any

__all__ = ["DELETE", "MAX_RECORD_BYTES", "PUT", "WRITE", "Recorder", "put_new"]

WRITE = struct.Struct("<BHI")
"""What stands before each write: kind, key length, value length."""
PUT, DELETE = 1, 2
MAX_RECORD_BYTES = 256 << 10
"""Larger commits are flushed as a whole: writing them twice would cost more than the second flush."""


class Recorder:
    """See the module. Only these of the transaction's methods: what went past it would not be in the journal."""

    __slots__ = ("_delete", "_put", "cursor", "get", "nbytes", "parts")

    def __init__(self, txn: Any) -> None:
        self.get = txn.get
        self.cursor = txn.cursor
        self._put = txn.put
        self._delete = txn.delete
        self.parts: list[Any] = []
        self.nbytes = 0

    def put(self, key: bytes, value: Any) -> bool:
        self._put(key, value)
        if isinstance(value, memoryview):
            value = bytes(value)  # it may look into the map, which changes
        size = len(value) if isinstance(value, bytes) else memoryview(value).nbytes
        self.parts += (WRITE.pack(PUT, len(key), size), key, value)
        self.nbytes += WRITE.size + len(key) + size
        return True

    def delete(self, key: bytes) -> bool:
        found = bool(self._delete(key))
        if found:
            self.parts += (WRITE.pack(DELETE, len(key), 0), key)
            self.nbytes += WRITE.size + len(key)
        return found

    def note_puts(self, keys: Sequence[bytes], value: bytes) -> None:
        """Writes that were made through a cursor. So many that the commit will be flushed as a whole are only counted."""
        self.nbytes += sum(map(len, keys)) + len(keys) * (WRITE.size + len(value))
        if self.nbytes <= MAX_RECORD_BYTES:
            for key in keys:
                self.parts += (WRITE.pack(PUT, len(key), len(value)), key, value)


def put_new(txn: Any, keys: Sequence[bytes], value: bytes) -> int:
    """Puts one value under many keys at once, into a transaction or a recorder of one; returns how many. What has one of the
    keys already stays as it is, and must not be put by anything else: a recorder does not tell them apart."""
    _, added = txn.cursor().putmulti(zip(keys, repeat(value)), overwrite=False)
    if isinstance(txn, Recorder):
        txn.note_puts(keys, value)
    return int(added)
