"""What the calls of an ``ignis://`` store are given, checked and cut before anything is sent. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ignis.broker.protocol.row_count import MAX_ROWS
from ignis.errors import ConfigError
from ignis.native import PackedBatch
from ignis.native.wire import MAX_POINTERS, pack_pointers
from ignis.storage.base import Pointers, Transfer
from ignis.storage.runs import Runs

__all__ = ["MOST_SHARDS", "check_batches", "pointer_pieces", "row_pieces"]

MOST_SHARDS = _MOST_BATCHES = 0xFFFF
_ROW_BYTES = 32
"""What a row takes beside its record, at most."""


def check_batches(batches: Sequence[tuple[int, PackedBatch]]) -> None:
    """Raises ConfigError, and ValueError for a batch that was loaded before."""
    if len(batches) > _MOST_BATCHES:
        raise ConfigError(f"{len(batches)} batches in one request; 1 to {_MOST_BATCHES} are allowed")
    for shard, batch in batches:
        if batch.sealed:
            raise ValueError("the batch is sealed already")
        if not 0 <= shard < MOST_SHARDS:
            raise ConfigError(f"shard {shard} is outside 0 to {MOST_SHARDS - 1}")


def _lowest(pointers: Sequence[int]) -> int:
    """The lowest of them, or less; not negative when there is none."""
    if isinstance(pointers, Runs):
        return pointers.runs[0][0] if pointers.runs else 0
    if isinstance(pointers, range):
        return min(pointers[0], pointers[-1]) if pointers else 0
    return min(pointers, default=0)


def pointer_pieces(pointers: Pointers) -> Iterator[tuple[bytes, int]]:
    """Packs pointers in pieces that one request may have, with how many each names. What no shard can have is left out."""
    pieces: list[tuple[int, Sequence[int]]] = []
    count = 0
    for shard, many in pointers.items():
        if not 0 <= shard <= MOST_SHARDS:
            continue
        left = many if _lowest(many) >= 0 else [one for one in many if one >= 0]
        while left:
            part = left[: MAX_POINTERS - count]
            left = left[len(part) :]
            pieces.append((shard, part))
            count += len(part)
            if count == MAX_POINTERS:
                yield pack_pointers(pieces), count
                pieces, count = [], 0
    yield pack_pointers(pieces), count


def row_pieces(items: Sequence[Transfer], most_bytes: int) -> Iterator[slice]:
    """The parts of a TRANSFER or DEFER that one request may have each; one at least, so that names and fence are checked.

    Args:
        most_bytes: of a request, for its rows.
    """
    begin = size = 0
    for at, item in enumerate(items):
        row = len(item.record) + _ROW_BYTES
        size += row
        if at > begin and (at - begin == MAX_ROWS or size > most_bytes):
            yield slice(begin, at)
            begin, size = at, row
    yield slice(begin, len(items))
