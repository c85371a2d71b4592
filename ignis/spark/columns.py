"""The columns of messages: how a DataFrame's rows become bodies, keys and ids, and records rows again.

What Spark can do for a whole column in the JVM (JSON, text, hashes) is done there; what is left for Python is a
record batch with three columns, of which the native core makes a packed batch without an object per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ignis.errors import ConfigError
from ignis.spark._pyspark import BinaryType, Column, DataFrame, StringType, functions
from ignis.spark.due_times import deadline_expression, due_expression
from ignis.spark.ids import id_expression
from ignis.spark.parse_body import UNPARSED, parse_lines
from ignis.storage.columns import RecordColumns

__all__ = ["ENVELOPE", "ENVELOPE_SCHEMA", "MESSAGE_SCHEMA", "WHOLE_MOMENTS", "message_batch", "to_messages"]

ENVELOPE_SCHEMA = (
    "_id string, _key binary, _enqueued_at timestamp, _failures int, _crashes int, _meta binary, _shard int, "
    "_pointer bigint"
)
MESSAGE_SCHEMA = f"body binary, {ENVELOPE_SCHEMA}"
"""The columns of a message. The envelope's names begin with an underscore, so that a body's may not. An id is
the text that `Published.id` and `Message.id` give."""
ENVELOPE = [field.split()[0] for field in ENVELOPE_SCHEMA.split(", ")]
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_ID_PLACES = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
"""Of each group of digits: where it begins among the digits, where in the text, and how many there are."""
_ID_CHARS = 36


WHOLE_MOMENTS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
"""Of ``to_json``, which would cut moments to milliseconds."""


def _column(df: DataFrame, named: str | Column, what: str) -> Column:
    if isinstance(named, Column):
        return named
    if named not in df.columns:
        raise ConfigError(f"{what} = {named!r} is not a column; there are {', '.join(df.columns)}")
    return df[named]


def _type_of(df: DataFrame, column: Column) -> type:
    return type(df.select(column).schema.fields[0].dataType)


def _as_bytes(df: DataFrame, column: Column) -> Column:
    """Binary as it is, everything else as the text that Spark makes of it. A cast from text to binary would copy every
    value twice in the JVM for bytes that are the same to Arrow."""
    return column if issubclass(_type_of(df, column), BinaryType) else column.cast("string")


def _id_column(df: DataFrame, id: str | Column | Sequence[str]) -> Column:
    """What `ignis.spark.ids` makes of one column, or the MD5 of several together."""
    if not isinstance(id, (str, Column)):
        # Text as bytes: JSON would make one text of all that is no UTF-8.
        named = [(name, _column(df, name, "id")) for name in id]
        text = {name for name, column in named if issubclass(_type_of(df, column), StringType)}
        whole = functions.struct(
            *((column.cast("binary") if name in text else column).alias(name) for name, column in named)
        )
        return functions.unhex(
            functions.md5(functions.to_json(whole, {**WHOLE_MOMENTS, "timeZone": "UTC", "ignoreNullFields": "false"}))
        )
    column = _column(df, id, "id")
    return id_expression(column, _type_of(df, column))


def to_messages(
    df: DataFrame,
    *,
    value: str | Column | None,
    columns: Sequence[str] | None,
    key: str | Column | None,
    id: str | Column | Sequence[str] | None,
    at: str | Column | None = None,
    expires_at: str | Column | None = None,
    traceparent: str | Column | None = None,
) -> DataFrame:
    """The DataFrame with the columns ``body``, ``key``, ``id``, ``due``, ``end`` and ``traceparent``, where they are asked for.

    Raises ConfigError: a name is no column, or both ``value`` and ``columns`` are given.
    """
    if value is not None and columns is not None:
        raise ConfigError("give value or columns, not both")
    if value is not None:
        column = _column(df, value, "value")
        body = _as_bytes(df, column)
    else:
        names = df.columns if columns is None else columns
        if not names:
            raise ConfigError("columns is empty: there is nothing to make a body of")
        body = functions.to_json(functions.struct(*(_column(df, name, "columns") for name in names)), WHOLE_MOMENTS)
    wanted = [body.alias("body")]
    if key is not None:
        wanted.append(_as_bytes(df, _column(df, key, "key")).alias("key"))
    if id is not None:
        wanted.append(_id_column(df, id).alias("id"))
    if at is not None:
        due = _column(df, at, "at")
        wanted.append(due_expression(due, _type_of(df, due)).alias("due"))
    if expires_at is not None:
        end = _column(df, expires_at, "expires_at")
        wanted.append(deadline_expression(end, _type_of(df, end)).alias("end"))
    if traceparent is not None:
        wanted.append(_column(df, traceparent, "traceparent").cast("string").alias("traceparent"))
    return df.select(*wanted)


def _id_texts(ids: bytes, count: int) -> pa.Array:
    """Ids of 16 bytes each, side by side, as the texts that `ignis.native.id_text` makes, without an object per row."""
    digits = np.empty((count, 32), np.uint8)
    raw = np.frombuffer(ids, np.uint8, count * 16).reshape(count, 16)
    digits[:, ::2], digits[:, 1::2] = _HEX_DIGITS[raw >> 4], _HEX_DIGITS[raw & 15]
    texts = np.full((count, _ID_CHARS), ord("-"), np.uint8)
    for first, place, size in _ID_PLACES:
        texts[:, place : place + size] = digits[:, first : first + size]
    ends = np.arange(count + 1, dtype=np.int32) * _ID_CHARS
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(texts)])


def message_batch(
    shard: int, records: RecordColumns, fields: pa.Schema | None = None, *, envelope: bool = True
) -> pa.RecordBatch:
    """Records of one shard as a record batch.

    With ``fields`` the bodies, which must be lines then, are parsed, see `ignis.spark.parse_body`: its columns stand in place of
    ``body``, and behind them ``_unparsed``, the body of each row that is left for Spark to parse. The envelope's columns come
    only where they are wanted: they are half of what a small message makes. A key and a meta that are empty are null. An
    id is text.
    """
    count = records.rows

    def fixed(kind: pa.DataType, data: bytes) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])

    def varying(ends: bytes, data: bytes) -> pa.Array:
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])

    def optional(ends: bytes, data: bytes) -> pa.Array:
        """Null where there is none, which costs whoever writes the column less than an empty value does."""
        if not data:
            return pa.nulls(count, pa.binary())
        there = np.packbits(np.diff(np.frombuffer(ends, np.int32)) > 0, bitorder="little")
        return pa.Array.from_buffers(pa.binary(), count, [pa.py_buffer(there), pa.py_buffer(ends), pa.py_buffer(data)])

    body = varying(records.body_offsets, records.bodies)
    columns: list[pa.Array] = [body] if fields is None else parse_lines(body, fields)
    names = ["body"] if fields is None else [*fields.names, UNPARSED]
    if envelope:
        names += ENVELOPE
        columns += [
            _id_texts(records.ids, count),
            optional(records.key_offsets, records.keys),
            fixed(pa.timestamp("us", tz="UTC"), records.enqueued_at_us),
            fixed(pa.int32(), records.attempts),
            fixed(pa.int32(), records.crashes),
            optional(records.meta_offsets, records.metas),
            pa.array(np.full(count, shard, np.int32)),
            fixed(pa.int64(), records.pointers),
        ]
    return pa.RecordBatch.from_arrays(columns, names=names)
