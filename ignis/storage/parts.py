"""Transfers in parts: of bounded size, and on a full store down to single messages, since what has moved frees room for what
follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ignis.errors import RecordTooLargeError, StoreFullError
from ignis.message import bare_record, slim_record, unmarked_record
from ignis.native.store import GrowthError
from ignis.storage.records import Transfer
from ignis.storage.transactions import fitting

__all__ = ["in_parts", "transfer_all", "transfer_in_parts"]

_MOST_REFUSED = 8
"""So many single messages refused one after the other: there is no room for any."""
_SHORTER = (slim_record, bare_record)
"""What a failed message goes without on a full store, one after the other."""


def in_parts(
    items: Sequence[Transfer], transfer: Callable[[Sequence[Transfer]], int], begin: int = 0
) -> Iterator[tuple[Sequence[Transfer], int]]:
    """Transfers the items: as many at once as a transaction takes; where there is no room, in halves, down to single messages.

    Yields each part that was transferred, and how many of it moved. What was not yielded is where it was. A message that is
    too large for the store with all that its failure says goes without the history, and if need be without anything that its
    failure says. So does one for which a full store has no room by itself, and those behind it: else each transfer would need
    more room than it frees. That it stays in the sideline is the last thing that is left out, and only of one that is too large.

    Args:
        items: what is to move. Neighbours go together, so that whole segments become free early.
        transfer: makes one transfer; returns how many moved.
        begin: where to begin, modulo their number: on a full store not always with those that do not fit.

    Raises:
        StoreFullError: not all could be moved; the rest may be tried again. What ``transfer`` raises.
        RecordTooLargeError: one is too large even so; the others have moved.
    """
    ordered = sorted(items, key=lambda item: (item.shard, item.pointer))
    if ordered:
        begin %= len(ordered)
        ordered = ordered[begin:] + ordered[:begin]
    at, size, in_a_row = 0, len(ordered), 0
    refused: StoreFullError | RecordTooLargeError | None = None
    while at < len(ordered):
        part = ordered[at : at + min(size, fitting(ordered, at))]
        try:
            moved = transfer(part)
        except RecordTooLargeError as exc:
            if len(part) > 1:
                size = len(part) // 2
                continue
            if _shorten(ordered, at, at + 1, *_SHORTER, unmarked_record):
                continue
            refused = exc
        except GrowthError as exc:
            # Such as those that follow: of what they may spare there is as much in each.
            if _shorten(ordered, at, len(ordered), *_SHORTER):
                continue
            if len(part) > 1:
                size = len(part) // 2
                continue
            refused = exc
        except StoreFullError as exc:
            if len(part) > 1:
                size = len(part) // 2
                continue
            if _shorten(ordered, at, len(ordered), *_SHORTER):
                continue
            refused, in_a_row = exc, in_a_row + 1
            if in_a_row == _MOST_REFUSED:
                raise
        else:
            in_a_row = 0
            yield part, moved
            size *= 2
        at += len(part)
    if refused is not None:
        try:
            raise refused
        finally:
            del refused  # with its traceback it would keep alive whoever called


def _shorten(items: list[Transfer], begin: int, end: int, *ways: Callable[[bytes], bytes]) -> bool:
    """Takes from those items the next thing that a failed message may go without. False when the first has no such thing."""
    for shorter in ways:
        if shorter(items[begin].record) != items[begin].record:
            items[begin:end] = [item._replace(record=shorter(item.record)) for item in items[begin:end]]
            return True
    return False


def transfer_all(items: Sequence[Transfer], transfer: Callable[[Sequence[Transfer]], int]) -> int:
    """`in_parts` for who needs all of them moved, and the sum. Raises what `in_parts` raises: a part may have moved then."""
    return sum(moved for _, moved in in_parts(items, transfer))


def transfer_in_parts(items: Sequence[Transfer], transfer: Callable[[Sequence[Transfer]], int]) -> int:
    """`in_parts` for who needs but the sum. Raises StoreFullError when nothing at all could be moved."""
    total, done = 0, False
    try:
        for _, moved in in_parts(items, transfer):
            total, done = total + moved, True
    except StoreFullError:
        if not done:
            raise
    return total
