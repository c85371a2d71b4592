"""How large a transaction may be: what is bounded by its number of messages alone is divided by their bytes as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ignis.storage.records import Transfer

__all__ = ["BESIDE_BYTES", "MOST_BYTES", "MOST_RECORDS", "divided", "fitting"]

MOST_BYTES = 64 << 20
"""So many bytes of records one transaction has at most, unless one record alone has more. It bounds the memory that is taken, and
lies far below what one entry of the embedded store's log may have (512 MiB)."""

MOST_RECORDS = 65_535
"""So many records: each may be a batch of its own, and an entry of the log has no more batches."""

BESIDE_BYTES = 64
"""What a record takes beside its own bytes, at most: its line in an index, its place, its padding."""


def fitting(items: Sequence[Transfer], begin: int = 0, most_bytes: int | None = None) -> int:
    """How many of the items, from ``begin`` on, one transaction takes: one at the least, where there is one.

    ``most_bytes``: None = `MOST_BYTES`."""
    left = MOST_BYTES if most_bytes is None else most_bytes
    count = 0
    for item in items[begin : begin + MOST_RECORDS]:
        left -= len(item.record) + BESIDE_BYTES
        if left < 0 and count:
            break
        count += 1
    return count


def divided(items: Sequence[Transfer], most_bytes: int | None = None) -> Iterator[Sequence[Transfer]]:
    """The items in order, in parts that one transaction takes each. As a rule that is all of them, as they were given.

    ``most_bytes``: as for `fitting`."""
    begin = 0
    while begin < len(items):
        count = fitting(items, begin, most_bytes)
        yield items if count == len(items) else items[begin : begin + count]
        begin += count
