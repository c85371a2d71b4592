"""What Python's own readers say of generated files, and of what the pipeline made of them.

``json`` with numbers as they stood, ``csv`` in strict mode, ``decimal``, `datetime.date.fromisoformat`, pyarrow: nothing here
is of the pipeline. A row is a dict by role, its values in a form that is the same for the same value and no other.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import decimal
import json
import math
import re
import struct
import sys
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from tests.torture.pipeline_files import LIMIT_BYTES, ROLES, Layout

__all__ = ["Read", "Row", "exported", "put_aside", "read_file"]

csv.field_size_limit(sys.maxsize)

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LONGEST_NUMBER = 1_000
_WHITE = " \t\r\n"

Row = tuple[Any, ...]
"""(the values in the order of `ROLES`, the key)."""


class Read(NamedTuple):
    """One row of a file: the number of its (first) line from 1 on, the bytes that stood there, and what it is; None when it
    is to be put aside."""

    line: int
    raw: bytes
    row: Row | None


def read_file(data: bytes, layout: Layout) -> Iterator[Read]:
    """The rows of a file."""
    for line, raw, values in _json_rows(data, layout) if layout.kind == "jsonl" else _csv_rows(data, layout):
        yield Read(line, raw, None if values is None else _row(values, layout))


# -- JSON lines


class _Number(str):
    """A number as it stood."""

    __slots__ = ()


def _number(text: str) -> _Number:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a number of more characters than are allowed")
    return _Number(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


_DECODER = json.JSONDecoder(
    parse_float=_number, parse_int=_number, parse_constant=_no_constant, object_pairs_hook=_once
)


def _read_json(text: str) -> Any:
    try:
        found = _DECODER.decode(text)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (RecursionError, UnicodeEncodeError) as exc:
        raise ValueError(text[:80]) from exc
    return found


def _pieces(text: str) -> dict[str, str]:
    """Name -> the text of its value, of one object that is known to be right."""

    def skip(at: int) -> int:
        while text[at] in _WHITE:
            at += 1
        return at

    found: dict[str, str] = {}
    at = skip(skip(0) + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        begin = skip(skip(at) + 1)
        _, at = _DECODER.raw_decode(text, begin)
        found[name] = text[begin:at]
        at = skip(at)
        if text[at] == ",":
            at = skip(at + 1)
    return found


def _json_rows(data: bytes, layout: Layout) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        raw = line
        try:
            text = line.decode().removesuffix("\r")
            raw = text.encode()
            if not text.strip(_WHITE):
                continue
            found = _read_json(text)
        except ValueError:
            yield number, raw, None
            continue
        if not isinstance(found, dict):
            yield number, raw, None
            continue
        pieces = _pieces(text)
        values: dict[str, Any] = {}
        for role, name in layout.sources.items():
            piece = pieces.get(name, "null")
            value = found.get(name)
            # A string is what it says; anything else the text that stood there.
            said = isinstance(value, str) and not isinstance(value, _Number) and role != "j"
            values[role] = None if piece == "null" else value if said else piece
        yield number, raw, values


# -- CSV


def _decoded(line: bytes, encoding: str) -> str | None:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return None


def _csv_rows(data: bytes, layout: Layout) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    lines = data.split(b"\n")
    texts = [_decoded(line, layout.encoding) for line in lines]
    index = 1  # behind the header
    while index < len(lines):
        text, used, fields = texts[index], 1, None
        if text is not None and not text.removesuffix("\r"):
            index += 1
            continue
        if text is not None:
            whole = texts[index : texts.index(None, index)] if None in texts[index:] else texts[index:]
            # The end of a line belongs to it, but there is none behind the last one.
            ended = [f"{one}\n" for one in whole if one is not None]
            reader = csv.reader(ended, **layout.options())
            try:
                fields = next(reader)
                used = reader.line_num
            except (csv.Error, StopIteration):
                fields, used = None, 1
        raw = b"\n".join(lines[index : index + used])
        if text is not None:  # bytes that are not of the encoding stand there as they are
            raw = raw.removesuffix(b"\r")
        whole_row = fields is not None and len(fields) == len(ROLES) and (used == 1 or layout.multiline)
        values = None
        if whole_row and fields is not None:
            nothing = ("", *layout.nulls)
            values = {role: None if one in nothing else one for role, one in zip(ROLES, fields, strict=True)}
        yield index + 1, raw, values
        index += used


# -- values


def _row(values: dict[str, Any], layout: Layout) -> Row | None:
    if values["id"] is None:
        return None
    try:
        row = tuple(_typed(role, values[role]) for role in ROLES)
    except (ValueError, decimal.InvalidOperation):
        return None
    shown = {layout.names[role]: "" if one is None else str(one) for role, one in zip(ROLES, row, strict=True)}
    # Generated values are far below the limit or far above it.
    if len(json.dumps(shown, ensure_ascii=False).encode()) > LIMIT_BYTES:
        return None
    return (*row, _key([values[role] for role in layout.key]))


def _key(values: list[str | None]) -> str | None:
    if len(values) < 2:
        return (values or [None])[0] or None
    if all(one is None for one in values):
        return None
    return "/".join("%00" if one is None else one.replace("%", "%25").replace("/", "%2F") for one in values)


def _typed(role: str, text: Any) -> Any:
    """A value of a row. Raises ValueError for one that is not of its type."""
    if text is None:
        return None
    if role in ("id", "p", "v"):
        return str(text)
    if role == "j":
        # In a body nothing tells JSON's null from a missing value.
        return None if _read_json(text) is None else text
    text = text.strip(" ")
    if role == "i":
        if not _INTEGER.fullmatch(text, 0) or not text.isascii() or not -(2**63) <= int(text) < 2**63:
            raise ValueError(text)
        return int(text)
    if role == "d":
        if not _DATE.fullmatch(text) or not text.isascii():
            raise ValueError(text)
        return str(dt.date.fromisoformat(text))
    if not _NUMBER.fullmatch(text) or not text.isascii():
        raise ValueError(text)
    if role == "f":
        return _double(float(text))
    with decimal.localcontext(decimal.Context(prec=2_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
        number = decimal.Decimal(text)
        if abs(number) >= 10**10 or number != round(number, 2):
            raise ValueError(text)
        return str(
            abs(number).quantize(decimal.Decimal("0.01")) if not number else number.quantize(decimal.Decimal("0.01"))
        )


def _double(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(value)
    return f"{struct.pack('>d', value).hex()} {value!r}"


# -- what came of them


def exported(out: Path, layout: Layout) -> Counter[Row]:
    """The rows of the Parquet files that a reader sees."""
    found: Counter[Row] = Counter()
    for path in sorted(out.rglob("*.parquet")) if out.exists() else []:
        folders = path.relative_to(out).parts[:-1]
        if any(part.startswith(("_", ".")) for part in path.relative_to(out).parts):
            continue
        table = pq.ParquetFile(path).read()
        by_name = {name: table[name].to_pylist() for name in table.column_names}
        for folder in folders:
            name, _, value = folder.partition("=")
            # A NUL stands for the empty text, which no folder can be named after.
            given = None if value == "__HIVE_DEFAULT_PARTITION__" else urllib.parse.unquote(value).replace("\0", "")
            by_name[urllib.parse.unquote(name)] = [given] * table.num_rows
        columns = [by_name[layout.names[role]] for role in ROLES]
        found.update(
            (*(_found(role, value) for role, value in zip(ROLES, row, strict=True)), key)
            for row, key in zip(zip(*columns, strict=True), by_name["_key"], strict=True)
        )
    return found


def _found(role: str, value: Any) -> Any:
    if value is None:
        return None
    if role == "f":
        return _double(value)
    return value if role == "i" else str(value)


def put_aside(folder: Path, encoding: str) -> Iterator[dict[str, Any]]:
    """The rows of the quarantine that a reader sees, with ``reason`` and the bytes that are said to have stood there."""
    for path in sorted(folder.rglob("*.json")) if folder.exists() else []:
        parts = path.relative_to(folder).parts
        if any(part.startswith(("_", ".")) for part in parts):
            continue
        reason = next(part.partition("=")[2] for part in parts if part.startswith("reason="))
        for line in path.read_bytes().split(b"\n"):
            if line:
                row = json.loads(line)
                given = row.get("raw_base64")
                row["bytes"] = base64.b64decode(given) if given else row.get("raw", "").encode(encoding)
                yield {**row, "reason": reason}


def body_row(body: bytes, key: str | None, layout: Layout) -> Row:
    """The row that a message's body holds, as `read_file` would say it."""
    text = body.decode()
    found, pieces = _read_json(text), _pieces(text)
    values: list[Any] = []
    for role in ROLES:
        value = found[layout.names[role]]
        if value is None:
            values.append(None)
        elif role == "j":
            values.append(pieces[layout.names[role]])
        else:
            values.append(_typed(role, str(value)))
    return (*values, key)
