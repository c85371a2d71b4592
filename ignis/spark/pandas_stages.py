"""Functions for ``df.mapInPandas``: publish a DataFrame's rows, parse bodies, read what a drain has claimed.

Each is a small object that is called in the tasks with an iterator of pandas frames and gives one; its ``schema`` is what
``mapInPandas`` wants beside it::

    stage = publish_in_pandas(url, "orders", key="customer", id="order_no")
    receipts = df.mapInPandas(stage, stage.schema)

They do the same as the Arrow stages (`ignis.spark.publish`, `ignis.spark.drain`), with one conversion between Arrow and pandas
more each way. Use them where a pipeline is made of pandas functions already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ignis.errors import ConfigError, InvalidMessageError
from ignis.spark._pyspark import StructType
from ignis.spark.columns import MESSAGE_SCHEMA
from ignis.spark.drain_task import Drained, struct_of
from ignis.spark.ids import ids_of_column
from ignis.spark.parse_body import fields_of, parse_lines
from ignis.spark.publish_task import RECEIPT_SCHEMA, Publishing
from ignis.spark.queue_path import Place, make_place
from ignis.spark.read_task import Reading
from ignis.spark.traces import JobTrace, given_context, is_context, job_trace
from ignis.storage import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID

__all__ = ["PandasParser", "PandasPublisher", "PandasReader", "parse_in_pandas", "publish_in_pandas", "read_in_pandas"]

Frames = Iterable[pd.DataFrame]

_CORRUPT = "_corrupt_record"
_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
"""Whole numbers with nulls would be doubles otherwise, which lose those beyond 2^53."""


@dataclass(frozen=True)
class PandasPublisher:
    """Publishes the frames' rows; see `publish_in_pandas`."""

    place: Place
    value: str
    key: str | None
    id: str | None
    schema: str = RECEIPT_SCHEMA
    traceparent: str | None = None
    trace: JobTrace | None = None

    def __call__(self, frames: Frames) -> Iterator[pd.DataFrame]:
        for receipts in Publishing(self.place, self.trace)(self._messages(one) for one in frames if len(one)):
            yield receipts.to_pandas()

    def _messages(self, frame: pd.DataFrame) -> pa.RecordBatch:
        names, columns = ["body"], [_column(frame, self.value, "value")]
        if self.key is not None:
            names.append("key")
            columns.append(_column(frame, self.key, "key"))
        if self.id is not None:
            names.append("id")
            columns.append(ids_of_column(_column(frame, self.id, "id", whole=True)))
        if self.traceparent is not None:
            names.append("traceparent")
            columns.append(_column(frame, self.traceparent, "traceparent").cast(pa.string()))
        return pa.RecordBatch.from_arrays(columns, names=names)


def _column(frame: pd.DataFrame, name: str, what: str, *, whole: bool = False) -> pa.Array:
    """Text or binary as Arrow has it, or with ``whole`` whole numbers. Raises ConfigError, InvalidMessageError."""
    if name not in frame.columns:
        raise ConfigError(f"{what} = {name!r} is not a column; there are {', '.join(map(str, frame.columns))}")
    try:
        column = pa.array(frame[name], from_pandas=True)
    except pa.ArrowException as exc:
        raise InvalidMessageError(f"{what} = {name!r}: values of several types, or none that Arrow has: {exc}") from exc
    kind = column.type
    if whole and pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_null(kind):
        return column.cast(pa.binary())
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
        raise InvalidMessageError(
            f"{what} = {name!r} is a column of {kind}; it must be text or binary{' or whole numbers' if whole else ''}. "
            "Of whole numbers with nulls pandas makes doubles: cast them to string before mapInPandas"
        )
    return column


def publish_in_pandas(
    url: str,
    queue: str,
    *,
    value: str = "body",
    key: str | None = None,
    id: str | None = None,
    traceparent: str | None = None,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
    **options: Any,
) -> PandasPublisher:
    """A function for ``mapInPandas`` that publishes every row and gives receipts.

    The queue is registered in the store at once if it was not there. What a receipt tells of is as durable as the queue's
    setting promises. With ``id`` a row that is published again is stored once, on stores that can tell; without it at least once.

    Args:
        url, queue, client_id, farm_id, config: see `ignis.spark.publish`.
        value: the column with the bodies, text or binary, stored as they are. Make JSON with ``to_json`` before.
        key: a column of text or binary; rows of the same value go to one shard. None: no keys.
        id: a column of text, binary values or whole numbers that tells the rows apart. Not null.
        traceparent: a column of text, or a context for all rows, see `ignis.spark.publish`.
        options: settings of ``[spark]`` and, for a queue that is not there yet, of ``[queue]``; ``codec`` is ``raw`` unless
            given: ``codec="json"`` for bodies of JSON.

    Returns:
        The function. Its ``schema`` is that of the receipts. It may be pickled, and called in any number of tasks.

    Raises:
        ConfigError, InvalidNameError, QueueMismatchError, StoreUnreachableError: at once. The action fails on what
        `ignis.spark.publish` names, with what was stored before staying.
    """
    place = make_place(url, queue, options, codec="raw", client_id=client_id, farm_id=farm_id, config=config)
    given = given_context(traceparent) if traceparent is not None and is_context(traceparent) else None
    own = None if given is not None else traceparent
    return PandasPublisher(
        place, value, key, id, traceparent=own, trace=job_trace(place, given, column=own is not None)
    )


@dataclass(frozen=True)
class PandasParser:
    """Turns a column of JSON bodies into columns; see `parse_in_pandas`."""

    fields: pa.Schema
    body: str
    kept: tuple[str, ...]
    schema: str = field(default="")

    def __call__(self, frames: Frames) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield self._parsed(frame)

    def _parsed(self, frame: pd.DataFrame) -> pd.DataFrame:
        bodies = _column(frame, self.body, "body").cast(pa.binary())
        columns = parse_lines(_lines(bodies), self.fields, fewest=1)
        # A null body is a row like the others that are no such JSON; its bytes are not there.
        corrupt = columns[-1].to_pylist()
        table = pa.Table.from_arrays(columns[:-1], schema=self.fields)
        found = table.to_pandas(types_mapper=_NULLABLE.get)
        found[_CORRUPT] = [None if line is None else bodies[at].as_py() for at, line in enumerate(corrupt)]
        for name in self.kept:
            if name not in frame.columns:
                raise ConfigError(f"keep = {name!r} is not a column; there are {', '.join(map(str, frame.columns))}")
            found[name] = frame[name].to_numpy()
        return found


def _lines(bodies: pa.Array) -> pa.Array:
    """The values side by side, each with a newline behind it, none of them null: what `parse_lines` takes."""
    values = [(value or b"") + b"\n" for value in bodies.to_pylist()]
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def parse_in_pandas(schema: str | StructType, *, body: str = "body", keep: Iterable[str] = ()) -> PandasParser:
    """A function for ``mapInPandas`` that parses JSON bodies.

    A body that is not one JSON object with values of these types is no row of nulls: it stands, whole, in the column
    ``_corrupt_record``, which is null for all others. A field that is missing in a body is null.

    Args:
        schema: the columns, as DDL (``"order_no long, total double"``) or as a ``StructType``; of string, integer, long, double
            and boolean. Needs a Spark session.
        body: the column with the bodies, text or binary.
        keep: columns of the input that come along, of the types that `ignis.spark.drain` gives them.

    Returns:
        The function. Its ``schema``: the columns, ``_corrupt_record binary``, then those kept.

    Raises:
        ConfigError: a column of another type, or a name twice or with an underscore in front.
    """
    struct = struct_of(schema)
    fields = fields_of(struct)
    if fields is None:
        raise ConfigError(
            f"schema = {schema!r}: columns of string, integer, long, double and boolean, each name once and without _ in front"
        )
    known = dict(one.split(maxsplit=1) for one in MESSAGE_SCHEMA.split(", "))
    kept = tuple(keep)
    for name in kept:
        if name not in known:
            raise ConfigError(f"keep = {name!r} is none of the columns that a drain gives: {', '.join(known)}")
    columns = [f"`{one.name}` {one.dataType.simpleString()}" for one in struct.fields]
    ddl = ", ".join([*columns, f"{_CORRUPT} binary", *(f"{name} {known[name]}" for name in kept)])
    return PandasParser(fields, body, kept, ddl)


@dataclass(frozen=True)
class PandasReader:
    """Reads the parts of a drain; see `read_in_pandas`."""

    reading: Reading
    schema: str = MESSAGE_SCHEMA

    def __call__(self, frames: Frames) -> Iterator[pd.DataFrame]:
        parts = (pa.RecordBatch.from_arrays([pa.array(frame.iloc[:, 0])], names=["part"]) for frame in frames)
        for batch in self.reading(parts):
            yield batch.to_pandas(types_mapper=_NULLABLE.get)


def read_in_pandas(drained: Drained) -> PandasReader:
    """A function for ``drained.parts.mapInPandas``: the messages that the drain has claimed, with their envelope.

    Reading changes nothing: tasks that fail, come again or run twice give the same rows. `Drained.commit` retires them.

    Args:
        drained: what `ignis.spark.drain` or `ignis.spark.resume` gave.

    Returns:
        The function. Its ``schema`` is that of messages: ``body``, ``_id``, ``_key`` and so on.
    """
    return PandasReader(Reading(drained.place, drained.run_lists))
