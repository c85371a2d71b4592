"""Leaving out of a load what was loaded before, by the messages' ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ignis.native import PackedBatch

__all__ = ["without_repeats"]


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
