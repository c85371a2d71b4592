"""What a publishing task does: record batches in, loads into the store, one receipt row per load out."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ignis.errors import InvalidMessageError, QueueRemovedError
from ignis.native import PackedBatch, position_ids
from ignis.spark._pyspark import TaskContext
from ignis.spark.deadlines import check_deadlines, mortal_batches, ttl_within
from ignis.spark.due_times import by_store_clock
from ignis.spark.ids import ids_from_jvm
from ignis.spark.queue_path import Place
from ignis.spark.traces import JobTrace
from ignis.storage.base import LoadedOnce
from ignis.upkeep import WorkThreads

__all__ = ["RECEIPT_SCHEMA", "Publishing", "gathered", "load_rows"]

_SEGMENT_RECORDS = 4_096
_SEGMENT_BYTES = 512 << 10
"""What goes into one shard side by side. Larger ones would save little and need more room in one piece."""

_PREFIX_BYTES = 6
"""Of the ids that are drawn for a load: no other load has the same."""

_AHEAD = 4
"""So many transactions' rows wait at most, so that a flush that takes long does not keep Spark from working."""

RECEIPT_SCHEMA = "partition int, shard int, first_pointer bigint, count bigint, duplicates bigint"
_RECEIPTS = pa.schema(
    [
        ("partition", pa.int32()),
        ("shard", pa.int32()),
        ("first_pointer", pa.int64()),
        ("count", pa.int64()),
        ("duplicates", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Publishing:
    """The function of a ``mapInArrow``: publishes the columns ``body``, ``key``, ``id``, ``due``, ``end``, ``traceparent`` of a
    partition."""

    place: Place
    trace: JobTrace | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        settings = self.place.settings
        try:
            # The store makes transactions durable while Spark hands over the rows of the next ones. One thread loads, so that
            # rows of one key stay in their order.
            with WorkThreads(1, "ignis-spark-load") as loader:
                loading: deque[Future[list[tuple[int, LoadedOnce]]]] = deque()
                for number, rows in enumerate(gathered(batches, settings.batch_rows, settings.batch_bytes)):
                    loading.append(
                        loader.submit_or_run(load_rows, self.place, partition + number, rows, trace=self.trace)
                    )
                    while len(loading) > _AHEAD or (loading and loading[0].done()):
                        yield _receipts(partition, loading.popleft().result())
                while loading:
                    yield _receipts(partition, loading.popleft().result())
        finally:
            if self.trace is not None:
                self.trace.flush()


def _receipts(partition: int, loaded: list[tuple[int, LoadedOnce]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([partition] * len(loaded), pa.int32()),
            pa.array([shard for shard, _ in loaded], pa.int32()),
            pa.array([one.first for _, one in loaded], pa.int64()),
            pa.array([one.loaded for _, one in loaded], pa.int64()),
            pa.array([one.repeats for _, one in loaded], pa.int64()),
        ],
        schema=_RECEIPTS,
    )


def gathered(batches: Iterable[pa.RecordBatch], max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Spark's batches put together, or cut, to what one transaction should take. Holds about one transaction."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for whole in batches:
        for batch in _cut(whole, max_rows, max_bytes):
            size = batch.nbytes
            if held and (rows + batch.num_rows > max_rows or nbytes + size > max_bytes):
                yield _joined(held)
                held, rows, nbytes = [], 0, 0
            held.append(batch)
            rows += batch.num_rows
            nbytes += size
    if held:
        yield _joined(held)


def _cut(batch: pa.RecordBatch, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    pieces = max(-(-batch.num_rows // max_rows), -(-batch.nbytes // max_bytes))
    step = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def load_rows(
    place: Place, turn: int, rows: pa.RecordBatch, ids: Any = None, trace: JobTrace | None = None
) -> list[tuple[int, LoadedOnce]]:
    """Stores the rows, in one transaction where the store has them; durable as the queue's setting promises on return. Those with
    a due time are stored before the others, in a transaction of their own.

    Args:
        turn: where rows without a key begin, modulo the shards.
        rows: with the columns ``body`` and, where wanted, ``key``, ``id``, ``due`` and ``end``, see `ignis.spark.due_times`;
            with a ``trace`` also ``traceparent``.
        ids: a column of ids that goes before the rows' own.
        trace: what the messages carry of the job's trace; None = nothing.

    Returns what became of each batch, with its shard: -1 where it waits for its time.

    Raises:
        InvalidMessageError (a null body or id), MessageTooLargeError, StoreFullError, StoreFailedError, QueueRemovedError.
    """
    if trace is None:
        return _load_rows(place, turn, rows, ids)
    with trace.load(place.queue, rows) as load:
        loaded = _load_rows(place, turn, load.rows, ids)
        load.repeats = sum(one.repeats for _, one in loaded)
    return loaded


def _load_rows(place: Place, turn: int, rows: pa.RecordBatch, ids: Any) -> list[tuple[int, LoadedOnce]]:
    names = rows.schema.names
    if rows.column("body").null_count:
        raise InvalidMessageError(f"{rows.column('body').null_count} row(s) without a value cannot be messages")
    if ids is None and "id" in names:
        ids = ids_from_jvm(rows.column("id"))
    store = place.open()
    if store.queues.get(place.queue) is None:
        raise QueueRemovedError(f"queue {place.queue!r} was removed from the store: nothing was stored")
    if "end" in names:
        check_deadlines(rows.column("end"), time.time())
    magazines = store.magazines
    delayed: list[tuple[int, LoadedOnce]] = []
    if "due" in names:
        waits = pc.is_valid(rows.column("due"))
        delayed = _load_delayed(place, turn, rows.filter(waits), None if ids is None else ids.filter(waits))
        rows, ids = rows.filter(pc.invert(waits)), None if ids is None else ids.filter(pc.invert(waits))
        if not rows.num_rows:
            return delayed
    batches = _packed(place, turn, rows, ids)
    if ids is not None:
        loaded = magazines.load_once(place.queue, batches, _ttl_s(place, rows), place.settings.remember_ids_s)
    else:
        counts = [batch.count for _, batch in batches]
        firsts = magazines.load(place.queue, batches, _ttl_s(place, rows))
        loaded = [LoadedOnce(first, count, 0) for first, count in zip(firsts, counts, strict=True)]
    return delayed + [(shard, one) for (shard, _), one in zip(batches, loaded, strict=True)]


def _packed(place: Place, turn: int, rows: pa.RecordBatch, ids: Any) -> list[tuple[int, PackedBatch]]:
    mortal = "end" in rows.schema.names and rows.column("end").null_count < rows.num_rows
    if mortal and ids is None:
        ids = _drawn(rows.column("body"))
    batches = PackedBatch.pack_columns(
        rows.column("body"),
        flags=place.flags,
        shards=place.shards,
        any_shard=turn % place.shards,
        keys=rows.column("key") if "key" in rows.schema.names else None,
        ids=ids,
        metas=rows.column("meta") if "meta" in rows.schema.names else None,
        max_body_bytes=place.max_message_bytes,
        max_records=_SEGMENT_RECORDS,
        max_bytes=_SEGMENT_BYTES,
    )
    return mortal_batches(batches, ids.to_pylist(), rows.column("end")) if mortal else batches


def _drawn(body: Any) -> Any:
    """A column of ids that are drawn for these bodies."""
    drawn = position_ids(os.urandom(_PREFIX_BYTES), 0, body)
    return pa.Array.from_buffers(pa.binary(16), len(body), [None, pa.py_buffer(drawn)])


def _ttl_s(place: Place, rows: pa.RecordBatch) -> float | None:
    """What the store is told. Each row has its own deadline in its envelope."""
    if "end" not in rows.schema.names or not place.drops:
        return place.ttl_s
    return ttl_within(place.ttl_s, rows.column("end"), time.time())


def _load_delayed(place: Place, turn: int, rows: pa.RecordBatch, ids: Any) -> list[tuple[int, LoadedOnce]]:
    """Stores rows with a due time each. They are told apart in the batches by their ids, or by some that are drawn for them."""
    if not rows.num_rows:
        return []
    store, body = place.open(), rows.column("body")
    dues_ms = by_store_clock(rows.column("due"), store.now_s(), time.time())
    once = ids is not None
    if ids is None:
        ids = _drawn(body)
    due_of: dict[bytes, int] = {}
    for one, due_ms in zip(ids.to_pylist(), dues_ms, strict=True):
        due_of.setdefault(one, due_ms)  # of an id that comes twice the first row is stored
    batches = _packed(place, turn, rows, ids)
    counts = [batch.count for _, batch in batches]
    dues = [[due_of[one] for one in batch.ids()] for _, batch in batches]
    if once:
        loaded = store.magazines.load_once(
            place.queue, batches, _ttl_s(place, rows), place.settings.remember_ids_s, dues
        )
        return [(-1, LoadedOnce(0, one.loaded, one.repeats)) for one in loaded]
    store.magazines.load_later(place.queue, batches, dues, _ttl_s(place, rows))
    return [(-1, LoadedOnce(0, count, 0)) for count in counts]
