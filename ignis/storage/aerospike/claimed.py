"""What one claim got: pointers, and what their records turned out to be. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Span", "Taken", "merge", "places_of"]


class Span(NamedTuple):
    """What one claim got of one shard: first..last, both included."""

    shard: int
    first: int
    last: int
    born: int


class Taken:
    """What the records of one round turned out to be."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[list[int], list[bytes | None]]] = {}
        self.holes: list[tuple[int, int]] = []
        self.sealed: list[tuple[int, int]] = []
        self.expired: list[tuple[int, int]] = []
        self.voids: list[tuple[int, int]] = []
        self.back: Counter[int] = Counter()
        self.strangers: list[tuple[int, int]] = []

    def count(self) -> int:
        return sum(len(pointers) for pointers, _ in self.live.values())


def places_of(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """(shard, pointer) of all, in order."""
    return [(span.shard, pointer) for span in spans for pointer in range(span.first, span.last + 1)]


def merge(merged: dict[int, tuple[list[int], list[bytes | None]]], taken: Taken) -> int:
    """Adds what is live; returns its bytes."""
    size = 0
    for shard, (pointers, records) in taken.live.items():
        if pointers:
            size += sum(len(record or b"") for record in records)
            known = merged.get(shard)
            if known is None:
                merged[shard] = (pointers, records)
            else:
                known[0].extend(pointers)
                known[1].extend(records)
    return size
