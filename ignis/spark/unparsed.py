"""Bodies that are no JSON of a drain's schema: they are no rows, and a commit does not delete them but puts them aside.

What Arrow's reader takes in the tasks is good. Spark's ``from_json`` decides about the rest, and what it refused is not told
to anybody. So the tasks note which parts they have read to the end, and which messages of these they left to Spark; a commit asks
Spark once more about those, and about the parts that nobody has read to the end. Mostly that is nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ignis.message import REASON_UNREADABLE, failed_record
from ignis.spark._pyspark import AccumulatorParam, Column, DataFrame, SparkSession, StructType, functions
from ignis.spark.queue_path import Place
from ignis.storage.base import Run, Transfer
from ignis.storage.parts import transfer_all
from ignis.storage.records import group_pointers

__all__ = ["CORRUPT", "Suspects", "parsed_with_spark", "put_aside"]

CORRUPT = "_corrupt_record"
_MOST_NOTED = 10_000
"""Messages of one part that are noted one by one; with more of them all of the part is asked about."""
_AT_ONCE = 1_000
"""Messages put aside in one transaction."""

Note = tuple[int, ...]
"""(part,): read to the end. (shard, pointer): left to Spark."""


class _Union(AccumulatorParam["frozenset[Note]"]):
    """Tasks that run again note the same."""

    def zero(self, value: frozenset[Note]) -> frozenset[Note]:
        return frozenset()

    def addInPlace(self, value1: frozenset[Note], value2: frozenset[Note]) -> frozenset[Note]:  # noqa: N802 - Spark's name
        return value1 | value2


class Suspects:
    """Which of a drain's messages may not have been parsed. Small, and pickled into its tasks.

    Args:
        spark: the session. One without a context (Spark Connect) tells nothing back: every message is suspect there.
    """

    def __init__(self, spark: SparkSession) -> None:
        try:
            self._notes: Any = spark.sparkContext.accumulator(frozenset(), _Union())
        except Exception:  # Spark Connect has no context; what it raises has changed between releases
            self._notes = None

    def read_to_the_end(self, part: int, left: Sequence[tuple[int, int]]) -> None:
        """For the task: all rows of the part were handed over, and these (shard, pointer) were left to Spark."""
        if self._notes is not None and len(left) <= _MOST_NOTED:
            self._notes.add(frozenset([(part,), *left]))

    def runs(self, parts: Sequence[tuple[Run, ...]]) -> list[Run]:
        """For the driver: where they are."""
        notes = frozenset() if self._notes is None else self._notes.value
        whole = [run for number, runs in enumerate(parts) if (number,) not in notes for run in runs]
        single = sorted(note for note in notes if len(note) == 2)
        return [*whole, *(Run(shard, pointer, pointer, 1) for shard, pointer in single)]


def parsed_with_spark(text: Column, schema: StructType) -> Column:
    """The struct of a body, with `CORRUPT` behind its columns; null where there is no value at all."""
    whole = StructType([*schema.fields]).add(CORRUPT, "string")
    # With an option, because without one Spark leaves out columns that nobody reads, and then refuses less.
    return functions.from_json(text, whole, {"columnNameOfCorruptRecord": CORRUPT})


def put_aside(place: Place, messages: DataFrame, schema: StructType) -> int:
    """Moves those of the messages whose body does not parse to the sideline, with the reason ``unreadable``; returns how many
    that were. Durable as the queue's setting promises.

    Args:
        messages: with ``body``, ``_shard`` and ``_pointer``.

    Raises:
        StoreError: some may have been moved; the others are where they were.
    """
    parsed = parsed_with_spark(functions.col("body").cast("string"), schema)
    checked = messages.select("_shard", "_pointer", parsed.alias("parsed"))
    bad = checked.where(functions.col("parsed").isNull() | functions.col(f"parsed.{CORRUPT}").isNotNull())
    moved = 0
    for places in _batches(bad.select("_shard", "_pointer").toLocalIterator()):
        moved += _move(place, places)
    return moved


def _batches(rows: Iterator[Any]) -> Iterator[list[tuple[int, int]]]:
    batch: list[tuple[int, int]] = []
    for row in rows:
        batch.append((row[0], row[1]))
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _move(place: Place, places: list[tuple[int, int]]) -> int:
    magazines = place.open().magazines
    items = [
        Transfer(shard, pointer, failed_record(data, REASON_UNREADABLE, "not a JSON body of the drain's schema"), shard)
        for shard, found in magazines.peek(place.queue, group_pointers(places)).items()
        for pointer, data in found.items()
        if data is not None
    ]
    return transfer_all(items, lambda part: magazines.transfer(place.queue, place.sideline, part))
