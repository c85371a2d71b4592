"""From claims to what a worker gets at a time: large claims are cut, small ones are put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from ignis.consumer.pools.base import CHUNK_BYTES
from ignis.native import has_none, total_bytes
from ignis.storage.base import Claim

__all__ = ["Mixed", "bytes_of", "cut"]

Place = tuple[int, Sequence[int]]
"""(shard, pointers)."""


def cut(claim: Claim, size: int) -> Iterator[tuple[Place, list[bytes], int]]:
    """(place, records, their bytes) of at most ``size`` messages and CHUNK_BYTES (one message may be larger).

    Corrupt records are left out: the consumer has set them aside.
    """
    pointers, records = readable(claim)
    start = 0
    while start < len(records):
        stop = min(len(records), start + size)
        nbytes = total_bytes(records, start, stop)
        while nbytes > CHUNK_BYTES and stop > start + 1:
            stop -= 1
            nbytes -= len(records[stop])
        yield (claim.shard, pointers[start:stop]), records[start:stop], nbytes
        start = stop


class Mixed:
    """Small claims on their way into one chunk."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.records: list[bytes] = []
        self.nbytes = 0

    @property
    def count(self) -> int:
        return len(self.records)

    def has(self, shard: int) -> bool:
        return any(shard == one for one, _ in self.places)

    def takes(self, claim: Claim, size: int) -> bool:
        return self.count + len(claim.records) <= size and self.nbytes + bytes_of(claim) <= CHUNK_BYTES

    def add(self, claim: Claim) -> None:
        pointers, records = readable(claim)
        if records:
            self.places.append((claim.shard, pointers))
            self.records += records
            self.nbytes += total_bytes(records)


def readable(claim: Claim) -> tuple[Sequence[int], list[bytes]]:
    """A claim without its corrupt records."""
    if not has_none(claim.records):
        return claim.pointers, cast("list[bytes]", claim.records)
    pairs = [
        (pointer, record) for pointer, record in zip(claim.pointers, claim.records, strict=True) if record is not None
    ]
    return [pointer for pointer, _ in pairs], [record for _, record in pairs]


def bytes_of(claim: Claim) -> int:
    """Of its readable records."""
    return total_bytes(claim.records)
