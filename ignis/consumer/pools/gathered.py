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
        count = self.count + len(part[1])
        self._parts.append(part)
        self.count = count

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

    def oldest(self, most: int) -> list[Part]:
        """The oldest messages, at most so many. They stay."""
        found: list[Part] = []
        at = self._at
        for first, records in self._parts:
            if most <= 0:
                break
            stop = min(len(records), at + most)
            whole = at == 0 and stop == len(records)
            found.append((first + at, records if whole else records[at:stop]))
            most -= stop - at
            at = 0
        return found

    def begin(self, parts: Sequence[Part]) -> None:
        """They are the oldest, and begun."""
        for _, records in parts:
            self.skip(len(records))

    def take(self, most: int) -> list[Part]:
        """The oldest messages, at most so many. Raises MemoryError: it is as it was."""
        taken = self.oldest(most)
        self.begin(taken)
        return taken

    def runs(self) -> list[tuple[int, int]]:
        """(first request id, messages) of each part that there is; nothing is left then. Raises MemoryError: it is as it was."""
        parts = self.oldest(self.count)
        runs = [(first, len(records)) for first, records in parts]
        self.begin(parts)
        return runs


def records_of(parts: Sequence[Part]) -> Sequence[bytes]:
    """All their records."""
    if len(parts) == 1:
        return parts[0][1]
    return [record for _, records in parts for record in records]
