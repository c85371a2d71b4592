"""Values of ``partition_by`` as folders' names: ``kind=a``, so that every reader finds each value as it was, or nearly so.

Spark names the folders of the empty text and of the text ``__HIVE_DEFAULT_PARTITION__`` as that of null, and so would merge the
three. An export writes them under marks that nobody else can have, and renames the folders before anybody sees them:

* ``__HIVE_DEFAULT_PARTITION__`` becomes ``kind=%5F_HIVE_DEFAULT_PARTITION__``, of which Spark and DuckDB make what it was.
  PyArrow and Polars look for null only after they have undone the ``%5F``: they read null;
* the empty text becomes ``kind=%00``, one NUL, since no folder's name stands for an empty value that Spark would read. No other
  value has a NUL: who removes NULs from the column has what it was. `read_exported` does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from ignis.errors import ConfigError
from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, SparkSession, functions
from ignis.spark.pipeline.checks import REASON_PARTITION, problem, sql_type
from ignis.spark.pipeline.description import Column, Description, Export
from ignis.spark.pipeline.files import Files, literal
from ignis.spark.pipeline.session import SETTINGS, settings

__all__ = ["Folders", "no_folder", "read_exported"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED_NULL = "%5F_HIVE_DEFAULT_PARTITION__"
_ESCAPED_EMPTY = "%00"
_SPARK_ESCAPES = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
_MOST_NAME_BYTES = 255
_ENVELOPE_TYPES = {
    "id": "string", "key": "string", "enqueued_at": "timestamp", "failures": "int", "crashes": "int", "shard": "int",
    "pointer": "bigint",
}  # fmt: skip


class Folders:
    """The folders of one write.

    Args:
        files: the file systems.
        schema: of the rows.
        partition_by: the columns that become folders, outermost first.
    """

    def __init__(self, files: Files, schema: Mapping[str, Column], partition_by: Sequence[str]) -> None:
        self._files = files
        self._levels = {name: level for level, name in enumerate(partition_by) if _is_text(schema[name])}
        # Drawn anew for each write, so that no message can hold them.
        self._marks = {value: secrets.token_hex(16) for value in ("", _NULL)}

    def marked(self, rows: DataFrame) -> DataFrame:
        """The rows to write: values that would be null as a folder's name are replaced by marks."""
        for name in self._levels:
            value = functions.col(name)
            marked = value
            for odd, mark in self._marks.items():
                marked = functions.when(value == odd, functions.lit(mark)).otherwise(marked)
            rows = rows.withColumn(name, marked)
        return rows

    def rename(self, top: str) -> None:
        """Gives the marked folders below ``top`` their names. Raises IgnisError."""
        names = {"": _ESCAPED_EMPTY, _NULL: _ESCAPED_NULL}
        # From the innermost on: a path to one that is still marked stays as it is.
        for name, level in reversed(self._levels.items()):
            for odd, mark in self._marks.items():
                pattern = f"{literal(top)}/{'*/' * level}*={mark}"
                self._files.rename_folders(pattern, f"{_escaped(name)}={names[odd]}")


def no_folder(name: str, column: Column, part: Export, encoding: str) -> Expression | None:
    """The problem of a value that no folder's name can hold; null for others. None for columns that have no such values.

    Args:
        encoding: in which the JVM names files: what is outside of it would end the export.

    Raises:
        ConfigError: the column's name alone is too long.
    """
    before = len(_escaped(name).encode()) + 1
    if before + len(_NULL) + 8 > _MOST_NAME_BYTES:
        raise ConfigError(
            f"export.partition_by: {name[:40]!r}... is too long for the name of a folder, which has {_MOST_NAME_BYTES} bytes "
            "with its value"
        )
    if not _is_text(column):
        return None
    value = functions.col(name)
    length = functions.octet_length(functions.regexp_replace(value, _SPARK_ESCAPES, "%00")) + before
    nul = functions.contains(value, functions.lit("\0"))
    why = functions.when(nul, functions.lit("has a NUL, which no folder's name can have"))
    why = why.when(
        length > _MOST_NAME_BYTES, functions.lit(f"makes a folder's name longer than {_MOST_NAME_BYTES} bytes")
    )
    if encoding.upper() not in ("UTF-8", "UTF8"):
        beyond = value.rlike(r"[^\x00-\x7f]")
        why = why.when(
            beyond, functions.lit(f"is not ASCII; Java names files in {encoding}: start with LC_ALL=C.UTF-8")
        )
    if part.null_like == "put_aside":
        for odd, shown in (("", "empty"), (_NULL, _NULL)):
            why = why.when(value == odd, functions.lit(f"is {shown}, which readers may take for null"))
    return functions.when(why.isNotNull(), problem(REASON_PARTITION, name, why))


def read_exported(spark: SparkSession, description: Description, *, run_id: str | None = None) -> DataFrame:
    """What the exports of a pipeline have written, each value as it was exported, with the schema's types.

    Args:
        spark: a session.
        description: with an ``[export]`` and a ``[schema]``.
        run_id: of one run; None = all that are there.

    Returns:
        The columns of the schema, those of the envelope, and ``run``. Lazy; columns that an earlier run did not have are null.

    Raises:
        ConfigError: the description has no export or no schema. Spark's AnalysisException: there are no files yet.
    """
    part: Export = description.wanted("export")
    if not description.schema:
        raise ConfigError("the description has no [schema]: read the files as they are")
    types = {name: sql_type(column) for name, column in description.schema.items()}
    types |= {f"_{name}": _ENVELOPE_TYPES[name] for name in part.envelope} | {"run": "string"}
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    with settings(spark, SETTINGS):
        # The zone is that in which an export names the folders of moments.
        reader = spark.read.schema(ddl).option("timeZone", "UTC").option("basePath", part.path)
        rows = reader.parquet(literal(part.path) + (f"/run={run_id}" if run_id is not None else ""))
    for name in part.partition_by:
        if _is_text(description.schema[name]):
            rows = rows.withColumn(name, functions.replace(functions.col(name), functions.lit("\0"), functions.lit("")))
    return rows.select(*types)


def _is_text(column: Column) -> bool:
    return column.type in ("string", "json")


def _escaped(name: str) -> str:
    """As Spark writes a column's name in front of a folder's value."""
    return re.sub(_SPARK_ESCAPES, lambda found: f"%{ord(found[0]):02X}", name)
