"""Rows as bodies of JSON, in Python: for the sink, which gets its rows too late for Spark's ``to_json``.

What is made has the values that ``to_json`` gives: nulls are left out of objects, bytes are Base64, dates and moments ISO 8601,
numbers that JSON has none for are text (``NaN``, ``Infinity``). The texts of numbers and moments may be written another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ignis.errors import ConfigError, InvalidMessageError
from ignis.spark._pyspark import StructType

__all__ = ["check_json", "json_objects", "json_values"]

_encode = msgspec.json.Encoder(decimal_format="number").encode

_TYPES = frozenset((
    "string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "date", "timestamp",
    "timestamp_ntz",
))  # fmt: skip


def check_json(schema: StructType) -> None:
    """Raises ConfigError, which names the column, for a type that has no JSON here."""
    for field in schema.fields:
        _check(field.name, field.dataType)


def _check(name: str, kind: Any) -> None:
    word = kind.typeName()
    if word == "struct":
        for field in kind.fields:
            _check(f"{name}.{field.name}", field.dataType)
    elif word == "array":
        _check(name, kind.elementType)
    elif word == "map" and kind.keyType.typeName() == "string":
        _check(name, kind.valueType)
    elif word not in _TYPES:
        raise ConfigError(
            f"column {name!r} is of type {kind.simpleString()}, of which no JSON is made: cast it to string"
        )


def json_objects(batch: pa.RecordBatch) -> pa.Array:
    """An object for each row."""
    return json_values(batch.to_struct_array())


def json_values(column: pa.Array) -> pa.Array:
    """The values of a column as JSON; null where the column is. Raises InvalidMessageError: a date that Python has not."""
    fitted = _fitting(column.type)
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError) as exc:
        raise InvalidMessageError(
            f"a date or moment is outside of the years 1 to 9999 ({exc}): cast it to string"
        ) from exc
    return pa.array([None if value is None else _encode(fitted(value)) for value in values], pa.binary())


def _fitting(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes, of a value that is not null and as Arrow gives it, one that the encoder takes."""
    if pa.types.is_struct(kind):
        members = [(field.name, _fitting(field.type)) for field in kind]
        return lambda value: {name: fit(value[name]) for name, fit in members if value[name] is not None}
    if pa.types.is_map(kind):
        of_value = _or_null(_fitting(kind.item_type))
        return lambda value: {name: of_value(item) for name, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of_item = _or_null(_fitting(kind.value_type))
        return lambda value: [of_item(item) for item in value]
    if pa.types.is_float32(kind):
        # The shortest text that means the number, as Spark writes it, and not that of the double next to it.
        return lambda value: float(str(np.float32(value))) if math.isfinite(value) else _word(value)
    if pa.types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else _word(value)
    return _as_is


def _or_null(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else fit(value)


def _as_is(value: Any) -> Any:
    return value


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
