"""What one consumer has claimed and not accounted for yet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

from ignis.consumer.pools.base import INDEX_BITS, Chunk

__all__ = ["InHand"]


class InHand:
    """The chunks whose messages are with workers, or wait for one. Thread-safe.

    Args:
        on_add: called with the number of its messages before a chunk is handed out.
    """

    def __init__(self, on_add: Callable[[int], None]) -> None:
        self.nbytes = 0
        self.unwatched = False
        """Whether nobody could be found who looks after it."""
        self._on_add = on_add
        self._chunks: dict[int, Chunk] = {}
        self._numbers = itertools.count(1)
        self._renewed_to = 0  # the number of the newest chunk at the last look
        self._lock = threading.Lock()  # over nbytes and what is left of each chunk

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def messages(self) -> int:
        return sum(chunk.left for chunk in list(self._chunks.values()))

    def numbers(self) -> tuple[int, int]:
        """Those of the oldest and of the newest chunk; (0, 0) = there is none."""
        numbers = list(self._chunks)
        return (numbers[0], numbers[-1]) if numbers else (0, 0)

    def chunks(self) -> list[Chunk]:
        """Those that are not accounted for as a whole."""
        return list(self._chunks.values())

    def add(self, places: Sequence[tuple[int, Sequence[int]]], records: Sequence[bytes], nbytes: int) -> Chunk:
        chunk = Chunk(next(self._numbers), places, records, nbytes)
        number = chunk.first_id >> INDEX_BITS
        with self._lock:
            total = self.nbytes + nbytes
            self._chunks[number] = chunk  # from here on it is in hand, whatever there is no memory for
            self.nbytes = total
        try:  # as `watch`, in one function: a lone message waits for this
            self.unwatched = False
            self._on_add(chunk.left)
        except (MemoryError, RuntimeError):
            self.unwatched = True
        return chunk

    def watch(self, count: int) -> None:
        """What is in hand, so many messages more, is looked after from now on; where there are no means for that, with the next
        look."""
        try:
            self.unwatched = False
            self._on_add(count)
        except (MemoryError, RuntimeError):
            self.unwatched = True

    def locate(self, request_id: int) -> tuple[Chunk, int]:
        """The chunk of a message, and its index there."""
        chunk = self._chunks[request_id >> INDEX_BITS]
        return chunk, request_id - chunk.first_id

    def place(self, request_id: int) -> tuple[int, int] | None:
        """(shard, pointer) of a message; None when it is accounted for."""
        chunk = self._chunks.get(request_id >> INDEX_BITS)
        return None if chunk is None else chunk.place(request_id - chunk.first_id)

    def forget(self, chunk: Chunk, count: int) -> None:
        """So many of its messages are accounted for."""
        with self._lock:
            chunk.left -= count
            if chunk.left == 0:
                del self._chunks[chunk.first_id >> INDEX_BITS]
                self.nbytes -= chunk.nbytes

    def long_held(self) -> list[tuple[int, Sequence[int]]]:
        """What was in hand at the last look and still is, in whole chunks: to be renewed. What of a chunk is finished the
        store knows."""
        chunks = list(self._chunks.items())
        old = [chunk for number, chunk in chunks if number <= self._renewed_to]
        self._renewed_to = max((number for number, _ in chunks), default=self._renewed_to)
        return [place for chunk in old for place in chunk.places(0, len(chunk.records))]
