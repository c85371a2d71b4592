"""``df.write.format("ignis")`` and ``writeStream``.

Options: ``url``, ``queue``, ``client_id``, ``farm_id``, ``config``, the settings of ``[spark]`` and, for a queue that is not
there yet, of ``[queue]``; ``value``, ``key``, ``id``, ``at`` and ``expires_at`` name columns, as the arguments of
`ignis.spark.publish` do; ``traceparent`` names a column too, or is the context of all rows, with ``tracestate`` beside it;
``job``, see `IgnisWriter`.

A column of text or binary is the body as it stands: the one that ``value`` names, else ``body``. A ``value`` of another kind, or
all columns where there is no ``body``, become JSON, and a queue that is made for them has the codec ``json``.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ignis.config import check_name
from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.native import position_ids
from ignis.spark._pyspark import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    StructType,
    TaskContext,
    WriterCommitMessage,
)
from ignis.spark.due_times import KINDS, deadlines_of_column, dues_of_column
from ignis.spark.ids import ids_of_column
from ignis.spark.json_bodies import check_json, json_objects, json_values
from ignis.spark.publish_task import gathered, load_rows
from ignis.spark.queue_path import Place, make_place, must_keep_later, split_options
from ignis.spark.traces import JobTrace, given_context, is_context, job_trace

__all__ = ["IgnisStreamWriter", "IgnisWriter", "Written"]

log = logging.getLogger("ignis.spark")

_BODIES = ("string", "binary")
"""Columns that can be a body as they stand."""
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    stored: int
    duplicates: int


@dataclass(frozen=True)
class Target:
    """The queue and the columns that go into it. ``value`` is None where all of them are the body, as a JSON object."""

    place: Place
    value: str | None
    key: str | None
    id: str | None
    at: str | None
    expires_at: str | None
    schema: StructType
    traceparent: str | None = None
    trace: JobTrace | None = None

    @classmethod
    def of(cls, schema: StructType, options: Mapping[str, str], overwrite: bool) -> Target:
        """Raises ConfigError: a column is not there, or no text and no binary; or the queue is to be overwritten."""
        if overwrite:
            raise ConfigError("a queue is appended to: use mode('append')")
        names, rest = split_options(
            options, "value", "key", "id", "at", "expires_at", "job", "traceparent", "tracestate"
        )
        value, key, id, at = options.get("value"), options.get("key"), options.get("id"), options.get("at")
        expires_at, traceparent = options.get("expires_at"), options.get("traceparent")
        given = None
        if traceparent is not None and is_context(traceparent):
            given, traceparent = given_context(traceparent, options.get("tracestate")), None
        if value is None and "body" in schema.fieldNames():
            value = "body"
        for what, name, kinds in (
            ("value", value, (*_BODIES, "struct", "map", "array")),
            ("key", key, ("string", "binary")),
            ("id", id, ("string", "binary", "byte", "short", "integer", "long")),
            ("at", at, KINDS),
            ("expires_at", expires_at, KINDS),
            ("traceparent", traceparent, ("string",)),
        ):
            if name is not None:
                if name not in schema.fieldNames():
                    raise ConfigError(f"{what} = {name!r} is not a column; there are {', '.join(schema.fieldNames())}")
                kind = schema[name].dataType.typeName()
                if kind not in kinds:
                    raise ConfigError(f"{what} = {name!r} is a column of {kind}, expected {', '.join(kinds)}")
        raw = value is not None and schema[value].dataType.typeName() in _BODIES
        if not raw:
            check_json(schema if value is None else StructType([schema[value]]))
        place = make_place(options=rest, codec="raw" if raw else "json", **names)
        if not raw and place.codec != "json":
            raise ConfigError(
                f"queue {place.queue!r} has codec {place.codec!r}, and the rows would be JSON: name a value column of text or "
                "binary with the bodies"
            )
        if at is not None:
            must_keep_later(place)
        trace = job_trace(place, given, column=traceparent is not None)
        return cls(place, value, key, id, at, expires_at, schema, traceparent, trace)

    def write(self, batches: Iterator[pa.RecordBatch], origin: Sequence[object]) -> Written:
        """Publishes a partition.

        Args:
            origin: what names this partition, in every attempt and every run alike. A row without an id of its own gets
                one from it, from its place in the partition, and from what it holds.
        """
        try:
            return self._write(batches, origin)
        finally:
            if self.trace is not None:
                self.trace.flush()

    def _write(self, batches: Iterator[pa.RecordBatch], origin: Sequence[object]) -> Written:
        settings = self.place.settings
        prefix = hashlib.md5("/".join(map(str, origin)).encode(), usedforsecurity=False).digest()[:6]
        row = stored = duplicates = 0
        context = TaskContext.get()
        turn = context.partitionId() if context is not None else 0
        for rows in gathered(map(self._message_columns, batches), settings.batch_rows, settings.batch_bytes):
            body = rows.column("body")
            if self.id is not None:
                ids = ids_of_column(rows.column("id"))
            elif body.null_count:
                ids = None  # refused where it is loaded, in words
            else:
                ids = pa.Array.from_buffers(
                    pa.binary(16), len(body), [None, pa.py_buffer(position_ids(prefix, row, body))]
                )
            row += len(body)
            for _, one in load_rows(self.place, turn, rows, ids, self.trace):
                stored += one.loaded
                duplicates += one.repeats
            turn += 1
        return Written(stored, duplicates)

    def _plain_columns(self) -> tuple[tuple[str, str | None], ...]:
        return ("key", self.key), ("id", self.id), ("traceparent", self.traceparent)

    def _message_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: batch.column(column) for name, column in self._plain_columns() if column is not None}
        if self.at is not None:
            columns["due"] = dues_of_column(batch.column(self.at))
        if self.expires_at is not None:
            columns["end"] = deadlines_of_column(batch.column(self.expires_at))
        if self.value is None:
            body = json_objects(batch)
        elif self.schema[self.value].dataType.typeName() in _BODIES:
            body = batch.column(self.value)
        else:
            body = json_values(batch.column(self.value))
        return pa.RecordBatch.from_pydict({"body": body, **columns})


class IgnisWriter(DataSourceArrowWriter):
    """A batch write. Every row is stored at least once and, where the store can tell, once, whatever its task goes through.

    Without an ``id`` column this holds for this write, and for all with the same ``job`` option: a program that runs
    again names the job, and writes the same rows in the same partitions, to find stored what is stored. A row that is
    elsewhere by then is stored again; none is taken for another.

    What was stored before a write failed stays.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._target = Target.of(schema, options, overwrite)
        self._job = check_name(options["job"], "job") if "job" in options else uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        return self._target.write(iterator, ("job", self._job, context.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log("written to", self._target, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log("left by a failed write in", self._target, messages)


class IgnisStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write. The rows of a micro-batch are known by the query, the batch, the partition, the row and what it
    holds: a batch that is run again after a restart from the checkpoint stores what is missing of it."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if "job" in options:
            raise ConfigError("option job is for batches: a query is known by its checkpoint")
        self._target = Target.of(schema, options, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise ConfigError("Spark does not tell the task which query and batch it writes: name an id column")
        return self._target.write(iterator, ("query", query, batch, context.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _log(f"of batch {batchId} written to", self._target, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log(f"of batch {batchId}, which failed, left in", self._target, messages)


def _log(what: str, target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [one for one in messages if isinstance(one, Written)]
    log.info(
        event_text("spark_batch_stored", "%d message(s) %s %s, %d known ones left out"),
        sum(one.stored for one in written), what, target.place.queue, sum(one.duplicates for one in written),
    )  # fmt: skip
