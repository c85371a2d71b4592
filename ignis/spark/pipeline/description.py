"""The description of a pipeline: a TOML file, checked as a whole before anything is read or claimed.

A key that is not known is an error that names it and what is allowed there; so is a value outside its range. Paths that
are not absolute are looked up from the directory of the file.
"""

from __future__ import annotations

import codecs
import datetime as dt
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ignis.config import QueueSettings, check_name, resolve
from ignis.errors import ConfigError, IgnisError
from ignis.regular_files import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - 3.10 only
    import tomli as tomllib

__all__ = [
    "ENVELOPE",
    "Column",
    "Csv",
    "Description",
    "Export",
    "Ingest",
    "QueuePart",
    "SparkPart",
    "StorePart",
    "load_description",
    "parse_description",
]

ENVELOPE = ("id", "key", "enqueued_at", "attempts", "crashes", "shard", "pointer")
"""What an export can keep of a message beside its body."""

P = TypeVar("P", bound="_Part")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_RUN_COLUMN = "run"
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Names = tuple[str, ...]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""


class Column(_Part, frozen=True):
    """One column of ``[schema]``: its type and what its values must be.

    Args:
        type: ``string``, ``integer`` (64 bits), ``number`` (double, finite), ``decimal``, ``boolean``, ``date``,
            ``timestamp``, or ``json`` (any JSON value, kept as it is, byte for byte).
        required: whether a missing value is a reason to reject the row.
        source: the column's name in the files, where it differs.
        format: of a ``date`` or ``timestamp``, in Spark's datetime patterns; default ISO 8601.
        precision, scale: of a ``decimal``: digits in all (1 to 38), digits behind the point.
        min, max: bounds, both included: of a number's value, or of a date or timestamp as ISO text.
        min_length, max_length: bounds of a string's length in characters.
        pattern: a Java regular expression that the whole string must match.
        values: the only strings that are allowed.
    """

    type: Literal["string", "integer", "number", "decimal", "boolean", "date", "timestamp", "json"] = "string"
    required: bool = False
    source: str = ""
    format: str = ""
    precision: Annotated[int, msgspec.Meta(ge=1, le=38)] = 38
    scale: Annotated[int, msgspec.Meta(ge=0, le=38)] = 9
    min: Optional[Union[int, float, str]] = None  # noqa: UP007, UP045 - msgspec reads annotations at run time
    max: Optional[Union[int, float, str]] = None  # noqa: UP007, UP045
    min_length: Optional[Count] = None  # noqa: UP045
    max_length: Optional[Count] = None  # noqa: UP045
    pattern: str = ""
    values: Names = ()


class Csv(_Part, frozen=True):
    """How CSV files are written.

    Args:
        delimiter, quote, escape: one character each; ``quote`` may be empty: nothing is quoted.
        encoding: ``UTF-8``, or a character set of one byte a character that has ASCII in it (``ISO-8859-1``,
            ``windows-1252``, ``US-ASCII``, ...). Bytes that it does not have are rejects.
        nulls: values that count as missing, beside the empty one.
        multiline: whether a quoted value may go over several lines. Such a file is read by one task. Otherwise these lines
            are one malformed row.
    """

    delimiter: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","
    quote: Annotated[str, msgspec.Meta(max_length=1)] = '"'
    escape: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = '"'
    encoding: str = "UTF-8"
    nulls: Names = ()
    multiline: bool = False


class Ingest(_Part, frozen=True):
    """``[ingest]``: files into the queue.

    Args:
        paths: files, directories or glob patterns.
        format: ``csv`` (with a header line), ``jsonl`` (one JSON object a line) or ``parquet``.
        quarantine: the folder for rejected rows.
        key: columns that make the message's key; several are joined by ``/``, with ``%25`` and ``%2F`` for a ``%`` and a ``/``
            in a value and ``%00`` for a missing one. Empty = no key.
        dedup: required columns that say which rows are the same message: one of them is published. Empty = every row is.
        scope: ``queue``: a row whose ``dedup`` values were published by an earlier run is not published again, as far
            back as the store remembers ids; ``run``: only the same line of the same file is not.
        prefer: column whose highest value decides which of the same rows is published; empty = the content does.
        columns: of the body; empty = all of the schema. Missing values are kept as ``null``.
        body: a string column that is the body as it stands, instead of an object of columns.
        max_rejected: part of the rows (0 to 1) above which nothing is published.
        csv: see `Csv`.
    """

    paths: Annotated[Names, msgspec.Meta(min_length=1)]
    format: Literal["csv", "jsonl", "parquet"]
    quarantine: str = "quarantine"
    key: Names = ()
    dedup: Names = ()
    scope: Literal["queue", "run"] = "queue"
    prefer: str = ""
    columns: Names = ()
    body: str = ""
    max_rejected: Share = 1.0
    csv: Csv = Csv()


class Export(_Part, frozen=True):
    """``[export]``: the queue into Parquet.

    Args:
        path: the folder; each run becomes ``run=<id>`` in it.
        partition_by: columns of the schema that become folders.
        null_like: what becomes of values in these that readers would take for null, the empty text and
            ``__HIVE_DEFAULT_PARTITION__``: ``escape`` = their folders have other names, see `folders`; ``put_aside`` = such
            rows go to the quarantine.
        quarantine: the folder for messages whose body does not fit the schema.
        envelope: which of `ENVELOPE` to keep, as columns with ``_`` before the name.
        limit: most messages a run takes; 0 = all that are pending when it begins.
        target_file_mb: files are made about this large, 1 to 4,096 MiB before compression.
        rows_per_file: upper limit of the rows in one file; 0 = none.
        compression: of the files.
    """

    path: str
    partition_by: Names = ()
    null_like: Literal["escape", "put_aside"] = "escape"
    quarantine: str = "quarantine"
    envelope: tuple[Literal["id", "key", "enqueued_at", "attempts", "crashes", "shard", "pointer"], ...] = ("id", "key")
    limit: Count = 0
    target_file_mb: Annotated[int, msgspec.Meta(ge=1, le=4_096)] = 128
    rows_per_file: Count = 0
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"


class QueuePart(_Part, frozen=True):
    """``[queue]``.

    Args:
        name: of the queue.
        settings: for a queue that does not exist yet; those of ``[queue]`` in ``docs/settings.md``.
    """

    name: str
    settings: dict[str, Any] = {}


class StorePart(_Part, frozen=True):
    """``[store]``: used where neither the command line nor ``IGNIS_URL`` names one."""

    url: str = ""
    client_id: str = "ignis"
    farm_id: str = "local"


class SparkPart(_Part, frozen=True):
    """``[spark]``.

    Args:
        master: e.g. ``local[2]``; empty = what ``spark-submit`` says, else ``local[*]``.
        conf: Spark's own settings by their names.
    """

    master: str = ""
    conf: dict[str, Union[str, int, float, bool]] = {}  # noqa: UP007


class Description(_Part, frozen=True):
    """A whole pipeline.

    Args:
        name: ``[A-Za-z0-9._-]{1,128}``; runs and message ids are made of it.
        folder: where the record of each run is kept, on the file system of the driver.
        queue, store, spark, ingest, export: the tables.
        schema: column -> `Column`, in the order of the columns.
    """

    name: str
    queue: QueuePart
    folder: str = "runs"
    store: StorePart = StorePart()
    spark: SparkPart = SparkPart()
    schema: dict[str, Column] = {}
    ingest: Optional[Ingest] = None  # noqa: UP045
    export: Optional[Export] = None  # noqa: UP045

    def wanted(self, part: Literal["ingest", "export"]) -> Any:
        """The table of that name. Raises ConfigError when the file has none."""
        found = getattr(self, part)
        if found is None:
            raise ConfigError(f"pipeline {self.name!r}: the description has no [{part}]")
        return found


def load_description(path: str | os.PathLike[str]) -> Description:
    """Reads and checks a description. Raises ConfigError naming the file, the key and what is allowed."""
    file = Path(path)
    try:
        data = tomllib.loads(read_text(file))
    except OSError as exc:
        raise ConfigError(f"pipeline description {file}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"pipeline description {file}: {exc}") from exc
    try:
        return parse_description(data, file.resolve().parent)
    except IgnisError as exc:
        raise ConfigError(f"pipeline description {file}: {exc}") from exc


def parse_description(data: Mapping[str, Any], base: str | os.PathLike[str] = ".") -> Description:
    """Checks what a description says; paths in it are relative to ``base``. Raises ConfigError."""
    unknown = next(_unknown(data, Description, ""), None)
    if unknown is not None:
        where, allowed = unknown
        raise ConfigError(f"unknown key {where}; allowed there: {', '.join(allowed)}")
    columns: dict[str, Any] = data.get("schema") or {}
    for name, column in columns.items():  # first, and one by one: msgspec would not name the column
        _convert(column, Column, f"schema.{name}")
    description = _convert(data, Description, "")
    _check(description)
    return _with_paths(description, Path(base).resolve())


def _convert(data: Any, kind: type[P], where: str) -> P:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as exc:
        text, _, place = str(exc).partition(" - at `$")
        path = (where + place.removesuffix("`")).lstrip(".")
        raise ConfigError(f"{path}: {text}" if path else text) from exc


def _unknown(data: Any, kind: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    """Keys that no table has, with those that it has: msgspec would only name the key."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if not isinstance(data, Mapping):
        return
    if get_origin(kind) is dict:
        for name, value in data.items():
            yield from _unknown(value, get_args(kind)[1], f"{where}{name}.")
        return
    if not (isinstance(kind, type) and issubclass(kind, _Part)):
        return
    hints = get_type_hints(kind)
    for name, value in data.items():
        if name not in hints:
            yield f"{where}{name}", sorted(hints)
        else:
            yield from _unknown(value, hints[name], f"{where}{name}.")


def _check(description: Description) -> None:
    """What the types do not say."""
    check_name(description.name, "pipeline")
    check_name(description.queue.name)
    resolve(QueueSettings, description.queue.settings, name=description.queue.name)
    check_name(description.store.client_id, "client_id")
    check_name(description.store.farm_id, "farm_id")
    for name, column in description.schema.items():
        _check_column(f"schema.{name}", name, column)
    if description.ingest is not None:
        _check_ingest(description.ingest, description.schema)
    if description.export is not None:
        _check_export(description.export, description.schema)


def _check_column(where: str, name: str, column: Column) -> None:
    if not name or name.startswith("_") or "`" in name or "." in name:
        raise ConfigError(
            f"{where}: a column's name is not empty, does not begin with _, and has no dot and no backtick"
        )
    numeric = column.type in ("integer", "number", "decimal")
    dated = column.type in ("date", "timestamp")
    text = column.type == "string"
    rules = {
        "format": (column.format, dated),
        "pattern": (column.pattern, text),
        "values": (column.values, text),
        "min_length": (column.min_length is not None, text),
        "max_length": (column.max_length is not None, text),
        "min": (column.min is not None, numeric or dated),
        "max": (column.max is not None, numeric or dated),
    }
    for rule, (given, fits) in rules.items():
        if given and not fits:
            raise ConfigError(f"{where}.{rule}: not for a column of type {column.type}")
    if column.scale > column.precision:
        raise ConfigError(f"{where}.scale = {column.scale} is above precision = {column.precision}")
    for rule, bound in (("min", column.min), ("max", column.max)):
        if bound is not None and isinstance(bound, str) != dated:
            raise ConfigError(f"{where}.{rule} = {bound!r} is not {'text' if dated else 'a number'}")
        if bound is not None and dated:
            _check_moment(f"{where}.{rule}", str(bound))
    if not dated:
        _check_order(where, "min", "max", column.min, column.max)
    _check_order(where, "min_length", "max_length", column.min_length, column.max_length)
    try:
        re.compile(column.pattern)  # Java's expressions are nearly the same: this finds what neither can mean
    except re.error as exc:
        raise ConfigError(f"{where}.pattern = {column.pattern!r} is not a regular expression: {exc}") from exc


def _check_moment(where: str, text: str) -> None:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{where} = {text!r} is not a date or a moment like 2026-01-31 or 2026-01-31T12:00:00"
        ) from None


def _check_order(where: str, low_name: str, high_name: str, low: Any, high: Any) -> None:
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{where}.{low_name} = {low!r} is above {high_name} = {high!r}")


def _check_csv(layout: Csv) -> None:
    signs = {"delimiter": layout.delimiter, "quote": layout.quote}
    for name, sign in {**signs, "escape": layout.escape}.items():
        if sign and sign in "\r\n":
            raise ConfigError(f"ingest.csv.{name} = {sign!r} ends a line")
    if layout.delimiter in (layout.quote, layout.escape):
        raise ConfigError(f"ingest.csv.delimiter = {layout.delimiter!r} is the quote or the escape as well")
    where = f"ingest.csv.encoding = {layout.encoding!r}"
    try:
        name = codecs.lookup(layout.encoding).name
        ascii_alone = all(bytes([code]).decode(name) == chr(code) for code in range(128))
        single = name == "utf-8" or all(
            len(bytes([code, code]).decode(name, "replace")) == 2 for code in range(128, 256)
        )
    except (LookupError, UnicodeError):
        ascii_alone = single = False
    if not (ascii_alone and single):
        raise ConfigError(
            f"{where} cannot be read: UTF-8 can, and character sets of one byte a character that have ASCII in them; "
            "convert the files to UTF-8 first, e.g. with iconv"
        )


def _check_ingest(ingest: Ingest, schema: Mapping[str, Column]) -> None:
    _check_csv(ingest.csv)
    if not schema:
        raise ConfigError("[ingest] wants a [schema]: which columns are read, and what they must be")
    for rule in ("key", "dedup", "columns"):
        _check_columns(f"ingest.{rule}", getattr(ingest, rule), schema)
    for name in ingest.dedup:
        if not schema[name].required:
            raise ConfigError(f"ingest.dedup: column {name!r} is not required; all rows without it would be the same")
    for rule in ("prefer", "body"):
        if getattr(ingest, rule):
            _check_columns(f"ingest.{rule}", (getattr(ingest, rule),), schema)
    if ingest.body and (ingest.columns or schema[ingest.body].type not in ("string", "json")):
        raise ConfigError("ingest.body names one column of type string or json, and goes without ingest.columns")
    if ingest.prefer and not ingest.dedup:
        raise ConfigError("ingest.prefer chooses among the same rows: it wants ingest.dedup")
    if "json" in {schema[name].type for name in (*ingest.key, *ingest.dedup, *filter(None, [ingest.prefer]))}:
        raise ConfigError("a column of type json cannot be in ingest.key, ingest.dedup or ingest.prefer")


def _check_export(export: Export, schema: Mapping[str, Column]) -> None:
    _check_columns("export.partition_by", export.partition_by, schema)
    if set(export.partition_by) == set(schema) and schema:
        raise ConfigError("export.partition_by names every column: none is left for the files")
    if _RUN_COLUMN in schema:
        raise ConfigError(
            f"schema.{_RUN_COLUMN}: an export's folders are named {_RUN_COLUMN}=<id>, which readers take for it"
        )


def _check_columns(where: str, names: Names, schema: Mapping[str, Column]) -> None:
    for name in names:
        if name not in schema:
            raise ConfigError(f"{where}: {name!r} is not a column of the schema; it has {', '.join(schema) or 'none'}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{where} names a column twice")


def _with_paths(description: Description, base: Path) -> Description:
    replace = msgspec.structs.replace
    if description.ingest is not None:
        description = replace(
            description,
            ingest=replace(
                description.ingest,
                paths=tuple(_absolute(path, base) for path in description.ingest.paths),
                quarantine=_absolute(description.ingest.quarantine, base),
            ),
        )
    if description.export is not None:
        description = replace(
            description,
            export=replace(
                description.export,
                path=_absolute(description.export.path, base),
                quarantine=_absolute(description.export.quarantine, base),
            ),
        )
    return replace(description, folder=str(base / description.folder))


def _absolute(path: str, base: Path) -> str:
    """A path of the local file system becomes absolute; ``hdfs://...`` and the like stay."""
    return path if _SCHEME.match(path) else str(base / path)
