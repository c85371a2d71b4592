"""A small first-in-first-out queue of plain values, shared by everybody who opens the store.

Not a message queue: no claims, no redelivery, no sideline. A value that was dequeued is gone, also when whoever asked for
it died. On Aerospike a whole queue is one record; ``docs/array-queue.md`` says what that means for its size and speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ignis.config import shown
from ignis.errors import InvalidMessageError
from ignis.storage.base import Store
from ignis.storage.checks import check_array, check_limit

__all__ = ["ArrayQueue"]

MAX_DEPTH = 32
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


class ArrayQueue:
    """A FIFO queue of values: int (64 bits), float, bool, text without NUL, bytes, and lists and dicts of these and None.

    Thread-safe. Objects with the same store, name and bin are the same queue. After ``fork`` calls in the child raise
    ForkedHandleError; it opens its own store. Every call is atomic, and what it changed is durable on return: on the
    embedded store as ``sync``, on Aerospike as the namespace is, on the memory store not at all.

    >>> from ignis.storage import open_store
    >>> queue = ArrayQueue(open_store("memory://"), "tickets")
    >>> queue.enqueue_many([14, 15])
    2
    >>> queue.dequeue()
    14

    Args:
        store: an opened store.
        name: ``[A-Za-z0-9._-]{1,128}``; on Aerospike the record's key.
        bin: text of 1 to 15 bytes that can be printed; on Aerospike the record's bin. Queues in several bins of one name share
            the record, and so its size limit.

    Raises:
        InvalidNameError.
    """

    def __init__(self, store: Store, name: str, bin: str = "Q") -> None:  # noqa: A002 - Aerospike's word
        check_array(name, bin)
        self.name = name
        self.bin = bin
        self._arrays = store.arrays

    def enqueue(self, value: Any) -> int:
        """Appends one value; returns the new size.

        Raises:
            InvalidMessageError: it is no such value. RecordTooLargeError (Aerospike), MessageTooLargeError (embedded),
            FrameTooLargeError (through a broker), StoreFullError: no room; nothing has changed. StoreTimeoutError: it may have
            been appended or not.
        """
        return self.enqueue_many((value,))

    def enqueue_many(self, values: Iterable[Any]) -> int:
        """Appends values in their order, all or none; returns the new size. Raises as `enqueue` does."""
        try:
            checked = list(values)
        except TypeError as exc:
            raise InvalidMessageError(f"values are {shown(values)}, not a sequence: {exc}") from None
        for value in checked:
            if value is None:
                raise InvalidMessageError("None cannot be enqueued: it is the answer of an empty queue")
            _check(value, 0)
        if not checked:
            return self.size()
        return self._arrays.enqueue(self.name, self.bin, checked)

    def dequeue(self) -> Any:
        """Removes and returns the oldest value; None when there is none.

        Raises:
            StoreTimeoutError, ConnectionLostError: the answer was lost; the value may be gone.
            MessageTooLargeError (through a broker): it does not fit into a frame, and is still there.
        """
        found = self.dequeue_many(1)
        return found[0] if found else None

    def dequeue_many(self, limit: int) -> list[Any]:
        """Removes and returns the oldest values, at most ``limit`` (from 1 on). Raises as `dequeue` does.

        Through a broker fewer may come though there are more: as many as one answer has room for, one at least. The queue is
        empty when none comes.
        """
        check_limit(limit)
        return self._arrays.dequeue(self.name, self.bin, limit)

    def peek(self) -> Any:
        """The oldest value, which stays; None when there is none."""
        found = self.peek_many(1)
        return found[0] if found else None

    def peek_many(self, limit: int) -> list[Any]:
        """The oldest values, at most ``limit`` (from 1 on), or through a broker fewer, as `dequeue_many` says; they stay."""
        check_limit(limit)
        return self._arrays.peek(self.name, self.bin, limit)

    def size(self) -> int:
        """How many values there are."""
        return self._arrays.size(self.name, self.bin)

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        """Always true: an empty queue is still one, and asking must not call the store."""
        return True

    def __repr__(self) -> str:
        return f"<ArrayQueue {self.name!r} bin {self.bin!r}>"


def _check(value: Any, depth: int) -> None:
    """Raises InvalidMessageError. By the exact type, because a store's driver knows no others."""
    kind = type(value)
    if kind is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise InvalidMessageError(f"{value} does not fit into 64 bits")
    elif kind is str:
        _check_text(value)
    elif kind is list or kind is dict:
        if depth >= MAX_DEPTH:
            raise InvalidMessageError(f"lists and dicts are nested deeper than {MAX_DEPTH}")
        for one in value if kind is list else value.values():
            _check(one, depth + 1)
        if kind is dict:
            for key in value:
                _check_key(key)
    elif kind not in _PLAIN:
        raise InvalidMessageError(f"a value of type {kind.__qualname__} cannot be in an array queue")


_PLAIN = frozenset({float, bool, bytes, type(None)})


def _check_key(key: Any) -> None:
    if type(key) is str:
        _check_text(key)
    elif type(key) is int:
        _check(key, 0)
    else:
        raise InvalidMessageError(f"the keys of a dict are text or ints, not {type(key).__qualname__}")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise InvalidMessageError("text with a NUL cannot be in an array queue; encode it to bytes")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidMessageError(f"text that is no UTF-8 cannot be in an array queue: {exc}") from None
