"""What a worker was given and has not begun: parts, from which batches are cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ignis.consumer.pools.base import Part

__all__ = ["Gathered", "records_of"]


class Gathered:
    """Parts in the order in which they came. Not thread-safe.

    Attributes:
        count: the number of messages.
    """

    __slots__ = ("_at", "_parts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._parts: deque[Part] = deque()
        self._at = 0  # what of the first part is begun

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, part: Part) -> None:
        """Behind what there is."""
        self.count += len(part[1])
        self._parts.append(part)

    def head(self) -> tuple[int, Sequence[bytes], int]:
        """(first request id, records, the place of the oldest message there) of the first part. There is one."""
        first, records = self._parts[0]
        return first, records, self._at

    def skip(self, count: int) -> None:
        """So many of the first part are begun."""
        self.count -= count
        self._at += count
        if self._at == len(self._parts[0][1]):
            self._parts.popleft()
            self._at = 0

    def take(self, most: int) -> list[Part]:
        """The oldest messages, at most so many."""
        taken: list[Part] = []
        while most > 0 and self._parts:
            first, records, at = self.head()
            stop = min(len(records), at + most)
            whole = at == 0 and stop == len(records)
            taken.append((first + at, records if whole else records[at:stop]))
            most -= stop - at
            self.skip(stop - at)
        return taken

    def runs(self) -> list[tuple[int, int]]:
        """(first request id, messages) of each part that there is; nothing is left then."""
        return [(first, len(records)) for first, records in self.take(self.count)]


def records_of(parts: Sequence[Part]) -> Sequence[bytes]:
    """All their records."""
    if len(parts) == 1:
        return parts[0][1]
    return [record for _, records in parts for record in records]
