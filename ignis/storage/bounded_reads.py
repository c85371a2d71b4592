"""Reading records for somebody who can take only so many bytes: a few at a time, so that no more is read than fits, and a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ignis.storage.base import MagazineStore
from ignis.storage.records import group_pointers

__all__ = ["PAST", "ReadRows", "Row", "peek_fitting", "scan_fitting"]

Row = tuple[int, int, "bytes | None"]
"""Shard, pointer, record."""

PAST = 1 << 62
"""Behind every pointer."""
_FIRST = 4
_MOST = 64
"""Records in one read: what is read beyond the bound is at most so many of the largest."""
_BESIDE_BYTES = 64
"""What a row takes beside its record."""


class ReadRows(NamedTuple):
    """What was read. ``cut``: there may be more, which did not fit."""

    rows: list[Row]
    cut: bool


def scan_fitting(
    magazines: MagazineStore,
    magazine: str,
    *,
    after: Mapping[int, int],
    limit: int,
    max_bytes: int,
    pending_only: bool = False,
) -> ReadRows:
    """`MagazineStore.scan` of at most ``limit`` records which have ``max_bytes`` in all; one at least."""

    def pages() -> Iterator[list[Row]]:
        seen, left, step = dict(after), limit, _FIRST
        while left > 0:
            asked = min(step, left)
            page = magazines.scan(magazine, after=seen, limit=asked, pending_only=pending_only)
            yield page
            if len(page) < asked:
                return
            shard, pointer, _ = page[-1]
            seen.update(dict.fromkeys(range(shard), PAST))
            seen[shard] = pointer
            left -= len(page)
            step = _next_step(page, step)

    return _fitting(pages(), max_bytes)


def peek_fitting(
    magazines: MagazineStore, magazine: str, runs: Iterable[tuple[int, int, int]], *, max_bytes: int
) -> ReadRows:
    """`MagazineStore.peek` of the runs (shard, first, one behind the last), by shard and pointer, as far as ``max_bytes`` go;
    one at least."""

    return _fitting(_pages(magazines, magazine, sorted(runs)), max_bytes)


def _pages(magazines: MagazineStore, magazine: str, runs: list[tuple[int, int, int]]) -> Iterator[list[Row]]:
    few: list[tuple[int, int]] = []
    step = _FIRST
    for shard, first, stop in runs:
        if stop - first > _FIRST:
            if few:
                yield _peeked(magazines, magazine, few)
                few = []
            yield from _run(magazines, magazine, shard, first, stop)
            continue
        few += ((shard, pointer) for pointer in range(first, stop))
        if len(few) >= step:
            page = _peeked(magazines, magazine, few)
            yield page
            few, step = [], _next_step(page, step)
    if few or not runs:  # also of nothing at all: it says whether the magazine is there
        yield _peeked(magazines, magazine, few)


def _run(magazines: MagazineStore, magazine: str, shard: int, first: int, stop: int) -> Iterator[list[Row]]:
    """A long run, by what exists of it: most of its numbers may have no record."""
    after, step = {**dict.fromkeys(range(shard), PAST), shard: first - 1}, _FIRST
    while True:
        page = magazines.scan(magazine, after=after, limit=step)
        mine = [row for row in page if row[0] == shard and row[1] < stop]
        yield mine
        if len(mine) < len(page) or len(page) < step:
            return
        after[shard] = mine[-1][1]
        step = _next_step(page, step)


def _peeked(magazines: MagazineStore, magazine: str, places: list[tuple[int, int]]) -> list[Row]:
    found = magazines.peek(magazine, group_pointers(places))
    return [(shard, pointer, found[shard][pointer]) for shard in sorted(found) for pointer in sorted(found[shard])]


def _next_step(page: list[Row], step: int) -> int:
    """Twice as many, unless these were large."""
    large = sum(len(record or b"") for _, _, record in page) > len(page) * (64 << 10)
    return _FIRST if large else min(_MOST, step * 2)


def _fitting(pages: Iterator[list[Row]], max_bytes: int) -> ReadRows:
    rows: list[Row] = []
    for page in pages:
        for row in page:
            max_bytes -= len(row[2] or b"") + _BESIDE_BYTES
            if max_bytes < 0 and rows:
                return ReadRows(rows, True)
            rows.append(row)
    return ReadRows(rows, False)
