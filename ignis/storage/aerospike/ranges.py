"""A set of whole numbers that come in long runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["Ranges"]

MAX_RUNS = 4_096


class Ranges:
    """Disjoint runs, ascending. Forgets its highest runs beyond 4,096, so that memory stays bounded: it is used for
    what is *known*, and knowing less costs only a second look. Not thread-safe."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Adds first..last, both included."""
        firsts, lasts = self._firsts, self._lasts
        begin = bisect_right(lasts, first - 2)  # the first run that touches or overlaps
        end = bisect_right(firsts, last + 1)
        if begin < end:
            first = min(first, firsts[begin])
            last = max(last, lasts[end - 1])
        firsts[begin:end] = [first]
        lasts[begin:end] = [last]
        del firsts[MAX_RUNS:], lasts[MAX_RUNS:]

    def update(self, other: Ranges) -> None:
        """Adds all of the other's."""
        for first, last in zip(other._firsts, other._lasts, strict=True):
            self.add(first, last)

    def drop_to(self, last: int) -> None:
        """Forgets everything up to and including ``last``."""
        count = bisect_right(self._lasts, last)
        del self._firsts[:count], self._lasts[:count]
        if self._firsts and self._firsts[0] <= last:
            self._firsts[0] = last + 1

    def after(self, pointer: int) -> int:
        """The last number of the run that holds ``pointer + 1``, or ``pointer`` when none does."""
        at = bisect_right(self._firsts, pointer + 1) - 1
        return self._lasts[at] if at >= 0 and self._lasts[at] > pointer else pointer

    def missing(self, first: int, last: int) -> Iterator[int]:
        """The numbers of first..last that are not in the set, ascending."""
        at = bisect_right(self._lasts, first - 1)
        while first <= last:
            if at < len(self._firsts) and self._firsts[at] <= last:
                yield from range(first, self._firsts[at])
                first = self._lasts[at] + 1
                at += 1
            else:
                yield from range(first, last + 1)
                return
