"""JSON bodies into columns, in the tasks: Arrow's reader parses a whole batch where it and Spark cannot differ.

It is several times quicker than Spark's ``from_json``, which is asked for the rest: for schemas with other types than those
below, and for every row that Arrow refuses or that is not plainly one JSON object. What a body means is therefore always
what Spark says.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from ignis.spark._pyspark import StructType

__all__ = ["UNPARSED", "fields_of", "parse_lines"]

UNPARSED = "_unparsed"
_CORRUPT = "_corrupt_record"
_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
_NEWLINE, _OPEN, _CLOSE = 10, ord("{"), ord("}")
_NUMBER_ENDS = b",}] \t\r\n"
_BEFORE_NUMBER = np.frombuffer(b":,[-+ \t\r\n", np.uint8)
_LONG_LINE = 1_000
_LONGEST_NAME = 50_000
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{1000}")
_FEWEST_ROWS = 32
"""A batch with a row that Arrow refuses is halved until so few are left; those go to Spark."""


def fields_of(schema: StructType) -> pa.Schema | None:
    """The schema in Arrow's terms; None for one that Spark has to parse alone."""
    names = schema.fieldNames()
    known = [_TYPES.get(field.dataType.typeName()) for field in schema.fields]
    special = any(name.startswith("_") for name in names)  # Spark's corrupt record, and the envelope's columns
    if not names or len({name.lower() for name in names}) < len(names) or special or None in known:
        return None
    return pa.schema(list(zip(names, known, strict=True)))


def parse_lines(lines: pa.Array, fields: pa.Schema, *, fewest: int = _FEWEST_ROWS) -> list[pa.Array]:
    """A column for each field, and one with the bodies that were not parsed, null where one was.

    Args:
        lines: binary values without nulls, side by side, each ending in a newline.
        fewest: a batch with a row that Arrow refuses is halved until so few are left, which count as refused.
    """
    pieces: list[list[pa.Array]] = []
    _parse(lines, fields, pieces, fewest)
    if not pieces:
        return [pa.nulls(0, field.type) for field in [*fields, pa.field(UNPARSED, pa.binary())]]
    return [pa.concat_arrays(column) for column in zip(*pieces, strict=True)]


def _parse(lines: pa.Array, fields: pa.Schema, pieces: list[list[pa.Array]], fewest: int) -> None:
    count = len(lines)
    if not count:
        return
    table = _read(lines, fields)
    if table is not None:
        columns = [column.combine_chunks() for column in table.columns]
        pieces.append([*columns, pa.nulls(count, pa.binary())])
    elif count <= fewest:
        pieces.append([*(pa.nulls(count, field.type) for field in fields), lines])
    else:
        _parse(lines.slice(0, count // 2), fields, pieces, fewest)
        _parse(lines.slice(count // 2), fields, pieces, fewest)


def _read(lines: pa.Array, fields: pa.Schema) -> Any:
    """A table with a row for each line, or None when one of them is not plainly one object of these fields."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    data = lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    text = np.frombuffer(data, np.uint8)
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    # Each line begins and ends as an object does, and there are as many lines as bodies: Arrow, which reads objects
    # wherever they begin, then finds as many as there are bodies only if each body is one.
    if (ends - starts).min() < 3 or np.count_nonzero(text == _NEWLINE) != len(lines):
        return None
    if not ((text[starts] == _OPEN).all() and (text[ends - 2] == _CLOSE).all()):
        return None
    if _has_odd_number(text) or _has_odd_line(data, starts, ends):
        return None
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore"),
        )
        table.validate(full=True)  # text that is no UTF-8 is Spark's to mend
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return table if table.num_rows == len(lines) and table.schema.equals(fields) else None


def _has_odd_number(text: Any) -> bool:
    """Whether something in it may be a number that Arrow takes and Spark does not, or otherwise: ``Inf``, ``NaN``, and ``-0``."""
    for first, second, third in ((b"-", b"0", _NUMBER_ENDS), (b"I", b"n", b"f"), (b"N", b"a", b"N")):
        found = np.flatnonzero(text == ord(first))
        found = found[(found > 0) & (found + 2 < len(text))]
        found = found[text[found + 1] == ord(second)]
        found = found[np.isin(text[found + 2], np.frombuffer(third, np.uint8))]
        if np.isin(text[found - 1], _BEFORE_NUMBER).any():
            return True
    return False


def _has_odd_line(data: Any, starts: Any, ends: Any) -> bool:
    """Whether a line has what Spark's reader refuses for its size: over 1,000 levels, a number of over 1,000 characters, a name
    of over 50,000."""
    for line in np.flatnonzero(ends - starts > _LONG_LINE):
        value = data[int(starts[line]) : int(ends[line])].to_pybytes()
        if (
            len(value) > _LONGEST_NAME
            or value.count(b"{") + value.count(b"[") > _LONG_LINE
            or _LONG_NUMBER.search(value)
        ):
            return True
    return False
