"""Reading files as rows of plain text: nothing is judged here, so that a row that is wrong can still be shown.

Every reader gives the same columns: ``_raw``, the line as it stood in the file, or the values of a Parquet row as JSON;
``_raw_bytes``, only of a line whose bytes are not of the encoding; ``_file``, ``_block``, ``_order`` and ``_lines``, from which
`number_lines` makes the number of the line; ``_malformed``, why it could not be taken apart, null when it could; and one
column of text per column of the schema. Numbers are the text that stood there; a value of type ``json`` is its JSON.
"""

from __future__ import annotations

import codecs
import operator
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ignis.errors import ConfigError
from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, SparkSession, StringType, arrow_udf, functions
from ignis.spark.columns import WHOLE_MOMENTS
from ignis.spark.pipeline import csv_lines
from ignis.spark.pipeline.csv_lines import CsvLines, fields_of_line
from ignis.spark.pipeline.description import Column, Csv, Ingest
from ignis.spark.pipeline.files import File, Files, literal

__all__ = [
    "BLOCK",
    "FILE",
    "LINE",
    "LINES",
    "MALFORMED",
    "ORDER",
    "RAW",
    "RAW_BYTES",
    "UNSPLIT",
    "Headers",
    "Lines",
    "check_headers",
    "is_json",
    "number_lines",
    "read_rows",
    "take_apart",
    "with_line",
]  # fmt: skip

RAW = "_raw"
RAW_BYTES = "_raw_bytes"
FILE = "_file"
BLOCK = "_block"
ORDER = "_order"
LINES = "_lines"
LINE = "_line"
MALFORMED = "_malformed"
_PARSED = "_parsed"
_VALID = "_valid"
_WHITE = " \t\r\n"
_BOM = b"\xef\xbb\xbf"
_END = secrets.token_hex(8)
_ESCAPED_NAME = re.compile(r'["\\\x00-\x1f]')

UNSPLIT = {"spark.sql.files.maxPartitionBytes": str(1 << 50), "spark.sql.files.openCostInBytes": str(1 << 50)}
"""Settings under which a task reads whole files."""


class Headers(NamedTuple):
    """The names of a CSV's columns, and the files that have any line at all."""

    names: tuple[str, ...]
    paths: tuple[str, ...]


class Lines(NamedTuple):
    """Where the lines of a block of a file are: ``_order`` + ``shift`` is the number of a line, from 0 on."""

    file: str
    block: int
    shift: int


def check_headers(
    spark: SparkSession, files: Files, ingest: Ingest, schema: Mapping[str, Column], found: Sequence[File]
) -> Headers:
    """Looks at the first line of each CSV file, or at the footers of the Parquet files.

    Raises:
        ConfigError: a file lacks a column of the schema, names one twice, or has other columns than the first one, or these
            in another order; it is named.
    """
    paths = tuple(one.path for one in found)
    if ingest.format == "parquet":
        _must_have(_parquet(spark, ingest, paths).columns, schema, ", ".join(ingest.paths))
    if ingest.format != "csv":
        return Headers((), paths)
    names: tuple[str, ...] = ()
    first = ""
    filled: list[str] = []
    for one in found:
        line = _first_line(spark, files, one) if one.size_bytes else None
        if line is None:
            continue
        here = _header(line, ingest.csv, one.path)
        if not filled:
            _must_have(here, schema, one.path)
            names, first = here, one.path
        elif here != names:
            raise ConfigError(
                f"{one.path}: the header {_shown(here)} is not that of {first}, {_shown(names)}: "
                "all files of a run have the same columns in the same order"
            )
        filled.append(one.path)
    return Headers(names, tuple(filled))


def _first_line(spark: SparkSession, files: Files, file: File) -> bytes | None:
    if file.path.rsplit(".", 1)[-1].lower() in ("gz", "bz2", "zst", "lz4", "snappy", "deflate", "zstd"):
        row = spark.read.option("lineSep", "\n").text(literal(file.path)).select(functions.col("value").cast("binary"))
        found = row.first()
        return None if found is None else bytes(found[0])
    return files.first_line(file.path)


def _header(line: bytes, layout: Csv, path: str) -> tuple[str, ...]:
    try:
        text = line.removeprefix(_BOM).decode(layout.encoding).removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: the header is not {layout.encoding}: {exc}") from exc
    names = fields_of_line(text, layout)
    if names is None:
        raise ConfigError(f"{path}: the header {_cut(text)!r} is not one line of CSV")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{path}: the header names {', '.join(map(repr, twice))} twice: {_shown(names)}")
    return tuple(names)


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _shown(names: Sequence[str]) -> str:
    return _cut(", ".join(names))


def read_rows(
    spark: SparkSession, ingest: Ingest, schema: Mapping[str, Column], headers: Headers, *, in_order: bool
) -> DataFrame:
    """The rows of the files, those of CSV with the header lines. Lazy.

    Args:
        headers: as `check_headers` found them.
        in_order: CSV: each file is read by one task, under the settings `UNSPLIT`, so that the lines of a record that
            takes several are put together. Without it such lines have `csv_lines.OPEN` in ``_malformed``.
    """
    if ingest.format == "parquet":
        return _read_parquet(spark, ingest, schema, headers.paths)
    if ingest.format == "csv":
        return _read_csv(spark, ingest.csv, schema, headers, in_order)
    return _read_json_lines(spark, schema, headers.paths)


def number_lines(rows: DataFrame, *, parquet: bool) -> tuple[list[Lines], dict[str, int]]:
    """(where the lines of each block are, file -> its lines). Runs one job over the rows."""
    least = functions.min(ORDER) if not parquet else functions.lit(0)
    found = rows.groupBy(FILE, BLOCK).agg(least.alias("least"), functions.sum(LINES).alias("lines")).collect()
    blocks: list[Lines] = []
    totals: dict[str, int] = {}
    for row in sorted(found, key=lambda one: (one[FILE], one[BLOCK])):
        before = totals.get(row[FILE], 0)
        # The rows of a block follow each other in its task, so their numbers do.
        blocks.append(Lines(row[FILE], row[BLOCK], 0 if parquet else before - row["least"]))
        totals[row[FILE]] = before + row["lines"]
    return blocks, totals


def with_line(spark: SparkSession, rows: DataFrame, blocks: Sequence[Lines], first: Mapping[str, int]) -> DataFrame:
    """The rows with `LINE`, their number in the file from 0 on; without those before the ``first`` of their file."""
    where = spark.createDataFrame(
        [(*one, first.get(one.file, 0)) for one in blocks],
        f"{FILE} string, {BLOCK} bigint, _shift bigint, _first bigint",
    )
    line = functions.col(ORDER) + functions.col("_shift")
    placed = rows.join(functions.broadcast(where), [FILE, BLOCK]).withColumn(LINE, line)
    return placed.where(functions.col(LINE) >= functions.col("_first")).drop("_shift", "_first", ORDER, BLOCK)


# -- lines


def _lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Each line's bytes, and where it stands."""
    # By the line feed alone: a carriage return within a quoted value is part of it.
    reader = spark.read.option("lineSep", "\n").option("recursiveFileLookup", True)
    return reader.text([literal(path) for path in paths]).select(
        "value",
        functions.col("_metadata.file_path").alias(FILE),
        functions.col("_metadata.file_block_start").alias(BLOCK),
        functions.monotonically_increasing_id().alias(ORDER),
    )


def _read_json_lines(spark: SparkSession, schema: Mapping[str, Column], paths: Sequence[str]) -> DataFrame:
    value = functions.col("value")
    valid = functions.is_valid_utf8(value)
    whole = functions.when(valid, value).otherwise(functions.make_valid_utf8(value))
    length = functions.length(whole)
    text = functions.when(
        functions.endswith(whole, functions.lit("\r")), functions.substring(whole, functions.lit(1), length - 1)
    )
    lines = _lines(spark, paths).select(
        functions.coalesce(text, whole).alias(RAW),
        functions.when(~valid, value.cast("binary")).alias(RAW_BYTES),
        FILE, BLOCK, ORDER, functions.lit(1).alias(LINES),
    )  # fmt: skip
    apart = take_apart(lines, RAW, schema)
    why = (
        functions.when(functions.col(RAW_BYTES).isNotNull(), functions.lit(csv_lines.ENCODING))
        .when(functions.btrim(RAW, functions.lit(_WHITE)) == "", functions.lit(csv_lines.BLANK))
        .otherwise(functions.col(MALFORMED))
    )
    return apart.withColumn(MALFORMED, why)


def take_apart(rows: DataFrame, text: str, schema: Mapping[str, Column]) -> DataFrame:
    """The rows with a column of JSON taken apart: `MALFORMED` where it is not one object, and the schema's columns.

    Numbers, and objects and lists in columns of text, are the text that stands there; a string is what it says. A name that
    occurs twice in an object is an error, as are more than 1,000 digits in a number.

    Args:
        text: the column, which stays as it is, as do the others.
    """
    sources = {(column.source or name, column.type == "json") for name, column in schema.items()}
    wanted = tuple(sorted(sources))
    body = functions.col(text)
    starts = functions.startswith(functions.btrim(body, functions.lit(_WHITE)), functions.lit("{"))
    # In steps: in one, every column would be given a parser of its own.
    steps = rows.withColumn(_VALID, functions.coalesce(is_json(body) & starts, functions.lit(False)))
    steps = steps.withColumn(_PARSED, _values(wanted)(functions.when(functions.col(_VALID), body)))
    columns = [
        functions.col(_PARSED)[f"c{wanted.index((column.source or name, column.type == 'json'))}"].alias(name)
        for name, column in schema.items()
    ]
    found = functions.coalesce(functions.col(_PARSED)["found"], functions.lit(False))
    malformed = functions.when(~found, functions.lit(csv_lines.MALFORMED)).alias(MALFORMED)
    return steps.select(*rows.columns, malformed, *columns)


def is_json(text: Expression) -> Expression:
    """Whether a text is one value of JSON, with nothing behind it and no name twice in an object."""
    # A parser stops at the end of the first value. Here it is followed by one that no text can know of.
    wrapped = functions.try_parse_json(functions.concat(functions.lit("["), text, functions.lit(f',"{_END}"]')))
    found = functions.try_variant_get(wrapped, "$[1]", "string") == _END
    return functions.coalesce(found, functions.lit(False))


def _values(wanted: Sequence[tuple[str, bool]]) -> Any:
    """A function of a column of objects: whether each is one, and its values.

    Not Spark's own, which make doubles of numbers. Args: ``wanted``: name, and whether its value is kept as JSON.
    """
    names = [f"c{index}" for index in range(len(wanted))]
    places = {name: place for place, (name, _) in zip(names, wanted, strict=True)}
    # The decoder of structs takes no names that JSON writes with a backslash.
    escaped = any(_ESCAPED_NAME.search(name) for name in places)

    def values(texts: pa.Array) -> pa.Array:
        row: Any = dict[str, msgspec.Raw]
        if not escaped:
            fields = [
                (place, msgspec.Raw, msgspec.field(name=name, default=msgspec.Raw())) for name, place in places.items()
            ]
            row = msgspec.defstruct("Row", fields)
        found = _decoded_rows(texts.to_pylist(), row)
        columns = []
        for name, as_json in wanted:
            value_of = operator.methodcaller("get", name, b"") if escaped else operator.attrgetter(places[name])
            raws = [b"" if one is None else bytes(value_of(one)) for one in found]
            given = pa.array(raws, pa.binary()).cast(pa.string())
            columns.append(_null_or_json(given) if as_json else _plain_texts(given))
        whether = pa.array([one is not None for one in found], pa.bool_())
        return pa.StructArray.from_arrays([whether, *columns], ["found", *names])

    kind = ", ".join(["found boolean", *(f"{place} string" for place in names)])
    return arrow_udf(values, kind)  # type: ignore[call-overload]


def _decoded_rows(texts: list[str | None], row: Any) -> list[Any]:
    """The object of each text; None for null, and for one that is none."""
    there = [text for text in texts if text is not None]
    try:
        rows = iter(msgspec.json.Decoder(list[row]).decode(f"[{','.join(there)}]"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decode = msgspec.json.Decoder(row).decode
        return [None if text is None else _decoded_row(decode, text) for text in texts]
    return [None if text is None else next(rows) for text in texts]


def _decoded_row(decode: Any, text: str) -> Any:
    try:
        return decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _null_or_json(given: pa.Array) -> pa.Array:
    nothing = pc.is_in(given, pa.array(["", "null"]))
    return pc.if_else(nothing, pa.scalar(None, pa.string()), given)


def _plain_texts(given: pa.Array) -> pa.Array:
    """Strings as what they say, everything else as it stands."""
    quoted = pc.starts_with(given, '"')
    if not pc.any(quoted).as_py():
        return _null_or_json(given)
    texts = pc.if_else(quoted, pc.utf8_slice_codeunits(given, 1, -1), _null_or_json(given))
    escaped = pc.and_(quoted, pc.match_substring(given, "\\"))
    if pc.any(escaped).as_py():
        said = pa.array(
            [msgspec.json.decode(text, type=str) for text in given.filter(escaped).to_pylist()], pa.string()
        )
        texts = pc.replace_with_mask(texts, escaped, said)
    return texts


# -- CSV


def _read_csv(
    spark: SparkSession, layout: Csv, schema: Mapping[str, Column], headers: Headers, in_order: bool
) -> DataFrame:
    wanted = (
        sorted({headers.names.index(column.source or name) for name, column in schema.items()}) if headers.names else []
    )
    apart = CsvLines(layout, codecs.lookup(layout.encoding).name, len(headers.names), tuple(wanted), in_order)
    kinds = "raw string, raw_bytes binary, file string, block bigint, order bigint, lines int, malformed string"
    kinds += "".join(f", c{index} string" for index in wanted)
    if headers.paths:
        lines = _lines(spark, headers.paths)
        lines = lines.select(functions.col("value").cast("binary").alias("value"), FILE, BLOCK, ORDER)
        rows = lines.mapInArrow(apart, kinds)
    else:
        rows = spark.createDataFrame([], kinds)

    def text(name: str, column: Column) -> Expression:
        if not headers.names:
            return functions.lit(None).cast("string").alias(name)
        return _given(functions.col(f"c{headers.names.index(column.source or name)}"), layout.nulls).alias(name)

    # What is shown of a line whose bytes are not of the encoding; the bytes stand beside it.
    shown = functions.make_valid_utf8(functions.col("raw_bytes").cast("string"))
    return rows.select(
        functions.coalesce("raw", shown).alias(RAW),
        functions.col("raw_bytes").alias(RAW_BYTES),
        functions.col("file").alias(FILE),
        functions.col("block").alias(BLOCK),
        functions.col("order").alias(ORDER),
        functions.col("lines").alias(LINES),
        functions.col("malformed").alias(MALFORMED),
        *(text(name, column) for name, column in schema.items()),
    )


def _given(text: Expression, nulls: Sequence[str]) -> Expression:
    return functions.when(~text.isin("", *nulls), text)


# -- Parquet


def _parquet(spark: SparkSession, ingest: Ingest, paths: Sequence[str]) -> DataFrame:
    reader = spark.read.option("mergeSchema", True)
    if len(ingest.paths) == 1 and not set("*?[{") & set(ingest.paths[0]):
        reader = reader.option("basePath", ingest.paths[0])  # folders named x=1 are columns
    return reader.parquet(*(literal(path) for path in paths))


def _read_parquet(spark: SparkSession, ingest: Ingest, schema: Mapping[str, Column], paths: Sequence[str]) -> DataFrame:
    rows = _parquet(spark, ingest, paths)
    # A folder of an export that stands for the empty text, see `folders`.
    empty = functions.contains(functions.col("_metadata.file_path"), functions.lit("=%2500/"))
    text = {field.name for field in rows.schema.fields if isinstance(field.dataType, StringType)}
    values = {
        name: functions.when((_quoted(name) == "\0") & empty, "").otherwise(_quoted(name))
        if name in text
        else _quoted(name)
        for name in rows.columns
    }
    whole = functions.struct(*(value.alias(name) for name, value in values.items()))
    raw = functions.to_json(whole, {**WHOLE_MOMENTS, "ignoreNullFields": "false"})
    return rows.select(
        raw.alias(RAW),
        functions.lit(None).cast("binary").alias(RAW_BYTES),
        functions.col("_metadata.file_path").alias(FILE),
        functions.lit(0).cast("bigint").alias(BLOCK),
        functions.col("_metadata.row_index").alias(ORDER),
        functions.lit(1).alias(LINES),
        functions.lit(None).cast("string").alias(MALFORMED),
        *(values[column.source or name].cast("string").alias(name) for name, column in schema.items()),
    )


def _must_have(names: Sequence[str], schema: Mapping[str, Column], where: str) -> None:
    for name, column in schema.items():
        if (column.source or name) not in names:
            raise ConfigError(f"{where} has no column {column.source or name!r}; it has {_shown(names)}")


def _escaped(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quoted(name: str) -> Expression:
    return functions.col(_escaped(name))
