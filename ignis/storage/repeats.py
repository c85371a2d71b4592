"""Leaving out of a load what was loaded before, by the messages' ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ignis.native import PackedBatch

__all__ = ["dues_of_left", "without_repeats"]


def without_repeats(
    batches: Sequence[PackedBatch], is_known: Callable[[bytes], bool]
) -> tuple[list[PackedBatch | None], list[int]]:
    """The batches without the records whose id is known or comes twice, and how many each of them lost.

    A batch that loses nothing is handed back as it is, one that loses all as None. What is no record of this version has
    no id and stays.
    """
    seen: set[bytes] = set()
    left: list[PackedBatch | None] = []
    repeats: list[int] = []
    for batch in batches:
        keep: list[int] = []
        for index, id in enumerate(batch.ids()):
            if id:
                if id in seen or is_known(id):
                    continue
                seen.add(id)
            keep.append(index)
        repeats.append(batch.count - len(keep))
        if not repeats[-1]:
            left.append(batch)
        elif keep:
            records = batch.records()
            left.append(PackedBatch.pack([records[index] for index in keep]))
        else:
            left.append(None)
    return left, repeats


def dues_of_left(
    batches: Sequence[PackedBatch], left: Sequence[PackedBatch | None], dues_ms: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The due times of what `without_repeats` has left, for each batch of which something is. Of a record that comes twice the
    first one stays."""
    found: list[list[int]] = []
    for batch, rest, dues in zip(batches, left, dues_ms, strict=True):
        if rest is batch:
            found.append(list(dues))
        elif rest is not None:
            given = zip(batch.ids(), dues, strict=True)
            found.append([next(due_ms for id, due_ms in given if id == wanted) for wanted in rest.ids()])
    return found
