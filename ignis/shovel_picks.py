"""Finds those messages of a sideline that a person has chosen: what is not chosen is neither claimed nor moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ignis.magazine import Magazine
from ignis.storage.base import Transfer
from ignis.storage.bounded_reads import PAST, Row, scan_fitting

__all__ = ["Picked", "is_spent", "pick", "rows_of"]

_PAGE = 1_000
_PAGE_BYTES = 16 << 20


class Picked(NamedTuple):
    """What a part of the sideline has: the chosen messages, as they come back, and how many were looked at."""

    moving: list[Transfer]
    looked_at: int


def is_spent(where: object) -> bool:
    """Whether a filter says by itself that it takes nothing more, such as one of ids when all have been found."""
    return getattr(where, "spent", False) is True


def rows_of(sideline: Magazine[Any], *, bounded: bool) -> Iterator[list[Row]]:
    """What waits in a sideline, page by page. ``bounded``: only what was there when it began."""
    ends = {one.shard: one.load_pointer for one in sideline.metadata()} if bounded else {}
    after: dict[int, int] = {}
    while True:
        page, cut = scan_fitting(
            sideline.store, sideline.name, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES, pending_only=True
        )
        after.update({shard: pointer for shard, pointer, _ in page})
        rows = [row for row in page if not bounded or row[1] <= ends.get(row[0], 0)]
        after.update(
            {shard: PAST for shard, pointer, _ in page if bounded and pointer >= ends.get(shard, 0)}
        )  # who fails meanwhile must not keep this going for ever
        if rows:
            yield rows
        if not cut and len(page) < _PAGE:
            return


def pick(
    sideline: Magazine[Any],
    fresh: Callable[[bytes | None], bytes | None],
    where: object,
    shards: int,
    limit: int | None,
    size: int,
) -> Iterator[Picked]:
    """Goes through what waits in the sideline when it begins, in order of shards and pointers.

    Args:
        sideline: where to look.
        fresh: gives a record as it comes back; None for one that stays.
        where: when this is spent, the rest is not looked at.
        shards: of the main magazine.
        limit: look at no more than this many.
        size: of a part, at most.
    """
    left = limit
    for page in rows_of(sideline, bounded=True):
        for at in range(0, len(page), size):
            moving: list[Transfer] = []
            looked_at = 0
            for shard, pointer, record in page[at : at + size]:
                if left == 0 or is_spent(where):
                    break
                left = None if left is None else left - 1
                looked_at += 1
                back = fresh(record)
                if back is not None:
                    moving.append(Transfer(shard, pointer, back, shard % shards))
            if looked_at:
                yield Picked(moving, looked_at)
            if left == 0 or is_spent(where):
                return
