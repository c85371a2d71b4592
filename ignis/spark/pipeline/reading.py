"""Reading files as rows of plain text: nothing is judged here, so that a row that is wrong can still be shown.

Every reader gives the same columns: ``_raw``, the row as it stood in the file (JSON lines, broken CSV) or as a line with
its values (CSV, Parquet); ``_file``, where it stood; ``_malformed``, whether it could not be taken apart; and one column per
column of the schema, as text, or as a variant for type ``json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ignis.errors import ConfigError
from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, SparkSession, functions
from ignis.spark.pipeline.description import Column, Csv, Ingest

__all__ = ["FILE", "MALFORMED", "RAW", "read_rows", "take_apart"]

RAW = "_raw"
FILE = "_file"
MALFORMED = "_malformed"
_CORRUPT = "_corrupt"
_LINE = "value"
_JSON = "_json"


def read_rows(spark: SparkSession, ingest: Ingest, schema: Mapping[str, Column], paths: Sequence[str]) -> DataFrame:
    """The rows of the files. Lazy, except that the first line (CSV) or the footers (Parquet) are looked at.

    Args:
        paths: of the files; all of the format that ``ingest`` names.

    Raises:
        ConfigError: the files lack a column of the schema.
    """
    if ingest.format == "csv":
        return _read_csv(spark, ingest.csv, schema, paths)
    if ingest.format == "jsonl":
        return _read_json_lines(spark, schema, paths)
    return _read_parquet(spark, ingest, schema, paths)


def take_apart(rows: DataFrame, text: str, schema: Mapping[str, Column]) -> DataFrame:
    """The rows with a column of JSON taken apart: `MALFORMED` where it is not one object, and the schema's columns.

    By way of a variant: decimals keep all their digits, and a name that occurs twice is an error.

    Args:
        text: the column, which stays as it is, as do the others.
    """
    # In brackets, because a parser stops at the end of the first value: what follows it would be lost without a word.
    wrapped = functions.try_parse_json(functions.concat(functions.lit("["), text, functions.lit("]")))
    alone = functions.try_variant_get(_JSON, "$[1]", "variant").isNull()
    is_object = functions.ltrim(functions.col(text)).startswith("{")
    malformed = functions.coalesce(~(functions.col(_JSON).isNotNull() & alone & is_object), functions.lit(True))
    columns = [
        functions.try_variant_get(
            _JSON, f"$[0]{_path(column.source or name)}", "variant" if column.type == "json" else "string"
        ).alias(name)
        for name, column in schema.items()
    ]
    # In two steps: in one, every column would be given a parser of its own.
    return rows.withColumn(_JSON, wrapped).select(*rows.columns, malformed.alias(MALFORMED), *columns)


def _path(name: str) -> str:
    """A name as one step of a variant's path."""
    quote = '"' if "'" in name else "'"
    return f"[{quote}{name}{quote}]"


def _read_json_lines(spark: SparkSession, schema: Mapping[str, Column], paths: Sequence[str]) -> DataFrame:
    lines = spark.read.text(list(paths)).where(functions.trim(_LINE) != "")
    return take_apart(lines.select(functions.col(_LINE).alias(RAW), _file()), RAW, schema)


def _read_csv(spark: SparkSession, csv: Csv, schema: Mapping[str, Column], paths: Sequence[str]) -> DataFrame:
    options = {
        "sep": csv.delimiter,
        "quote": csv.quote,
        "escape": csv.escape,
        "encoding": csv.encoding,
        "multiLine": str(csv.multiline).lower(),
    }
    reader = spark.read.options(**options).option("header", True)
    names = reader.csv(paths[0]).columns
    _must_have(names, schema, paths[0])
    fields = ", ".join(f"{_escaped(name)} string" for name in [*names, _CORRUPT])
    rows = (
        # Every file's header is compared with the first one's: by position alone, values would change columns.
        reader.option("enforceSchema", False)
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", _CORRUPT)
        .schema(fields)
        .csv(list(paths))
    )
    # multiLine and encoding are for reading; quoting a value again must not depend on the escape's being the quote.
    line = functions.to_csv(
        functions.struct(*map(_quoted, names)), {"sep": csv.delimiter, "quote": csv.quote or '"', "escape": csv.escape}
    )
    return rows.select(
        functions.coalesce(functions.col(_CORRUPT), line).alias(RAW),
        _file(),
        functions.col(_CORRUPT).isNotNull().alias(MALFORMED),
        *(_text(name, column, csv.nulls) for name, column in schema.items()),
    )


def _read_parquet(spark: SparkSession, ingest: Ingest, schema: Mapping[str, Column], paths: Sequence[str]) -> DataFrame:
    reader = spark.read.option("mergeSchema", True)
    if len(ingest.paths) == 1 and not set("*?[{") & set(ingest.paths[0]):
        reader = reader.option("basePath", ingest.paths[0])  # folders named x=1 are columns
    rows = reader.parquet(*paths)
    _must_have(rows.columns, schema, ", ".join(ingest.paths))
    return rows.select(
        functions.to_json(functions.struct(*map(_quoted, rows.columns)), {"ignoreNullFields": "false"}).alias(RAW),
        _file(),
        functions.lit(False).alias(MALFORMED),
        *(_text(name, column) for name, column in schema.items()),
    )


def _file() -> Expression:
    return functions.col("_metadata.file_path").alias(FILE)


def _must_have(names: Sequence[str], schema: Mapping[str, Column], where: str) -> None:
    for name, column in schema.items():
        if (column.source or name) not in names:
            raise ConfigError(f"{where} has no column {column.source or name!r}; it has {', '.join(names)}")


def _escaped(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quoted(name: str) -> Expression:
    return functions.col(_escaped(name))


def _text(name: str, column: Column, nulls: Sequence[str] = ()) -> Expression:
    found = _quoted(column.source or name).cast("string")
    if nulls:
        found = functions.when(~found.isin(*nulls), found)
    if column.type == "json":
        return functions.try_parse_json(found).alias(name)
    return found.alias(name)
