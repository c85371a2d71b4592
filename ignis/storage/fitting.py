"""How much of what is stored goes into an answer of so many bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ignis.errors import MessageTooLargeError

__all__ = ["ValueRoom", "first_fitting"]

T = TypeVar("T")


def first_fitting(sized: Iterable[tuple[T, int]], max_bytes: int) -> tuple[list[T], bool]:
    """The first of what comes with its bytes, as far as ``max_bytes`` go, one at least; and whether there is more."""
    found: list[T] = []
    for one, size in sized:
        max_bytes -= size
        if max_bytes < 0 and found:
            return found, True
        found.append(one)
    return found, False


class ValueRoom:
    """Room for the values of one answer, asked for one after another.

    Args:
        max_bytes: of all values as MessagePack; None = no bound. The first one always fits.
        max_value_bytes: of one value; None = no bound.
    """

    def __init__(self, max_bytes: int | None, max_value_bytes: int | None) -> None:
        self._left = max_bytes
        self._most = max_value_bytes
        self._first = True

    def takes(self, size: int) -> bool:
        """Whether the next value, of so many bytes, goes into the answer too. After False there is nothing more to ask.

        Raises MessageTooLargeError for the first value when it is over ``max_value_bytes``: else nobody learned why none comes.
        """
        first, self._first = self._first, False
        if self._most is not None and size > self._most:
            if first:
                raise MessageTooLargeError(size, self._most, "max_value_bytes", "value")
            return False
        if self._left is not None:
            self._left -= size
            return first or self._left >= 0
        return True
