"""From failures to what the sideline gets."""

from __future__ import annotations

from collections.abc import Iterable

from ignis.consumer.handler import Failure
from ignis.consumer.outcome import attempts_of
from ignis.consumer.pools.base import Chunk
from ignis.message import REASON_CRASH, corrupt_record, failed_record
from ignis.storage.base import Transfer

__all__ = ["sideline_items"]


def sideline_items(
    magazine: str, handler: str, failures: Iterable[tuple[Chunk, int, Failure]], corrupt: Iterable[tuple[int, int]]
) -> list[Transfer]:
    """Messages on their way from a main magazine to its sideline, with the reason in each.

    Args:
        magazine: the main one.
        handler: the name of the handler that failed.
        failures: chunk, place in it, and why.
        corrupt: (shard, pointer) of records whose checksum does not match.
    """
    items = []
    for chunk, index, failure in failures:
        shard, pointer = chunk.place(index)
        crashed = failure.reason == REASON_CRASH
        record = failed_record(
            chunk.records[index], failure.reason, failure.error, handler=handler, crashed=crashed,
            attempts=attempts_of(failure),
        )  # fmt: skip
        items.append(Transfer(shard, pointer, record, shard))
    items += [Transfer(shard, pointer, corrupt_record(magazine, shard, pointer), shard) for shard, pointer in corrupt]
    return items
