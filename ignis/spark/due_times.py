"""The due times of rows, and their deadlines: from a column of moments, or of milliseconds since 1970, to milliseconds. Null: the
row is due at once, or has no deadline, and is a message like any other."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ignis.errors import ConfigError
from ignis.later import MAX_DELAY_S
from ignis.spark._pyspark import Column, IntegralType, TimestampType, functions
from ignis.storage.checks import MAX_TTL_SAID

__all__ = ["KINDS", "by_store_clock", "deadline_expression", "deadlines_of_column", "due_expression", "dues_of_column"]

KINDS = ("timestamp", "integer", "long")
"""Names of the types that a column of such times may have. A moment without a time zone is none of them."""


def due_expression(column: Column, kind: type) -> Column:
    """The due times of a column of that type, made in the JVM. Raises ConfigError for another type."""
    if issubclass(kind, IntegralType):
        return column.cast("bigint")
    if issubclass(kind, TimestampType):
        # Rounded up: nobody gets a message before its time. Whole numbers up to the year 2255 are exact as doubles.
        return functions.ceil(functions.unix_micros(column) / 1000).cast("bigint")
    raise _refused("at", kind)


def deadline_expression(column: Column, kind: type) -> Column:
    """Likewise the deadlines."""
    if issubclass(kind, IntegralType):
        return column.cast("bigint")
    if issubclass(kind, TimestampType):
        return functions.floor(functions.unix_micros(column) / 1000).cast("bigint")
    raise _refused("expires_at", kind)


def _refused(what: str, kind: type) -> ConfigError:
    return ConfigError(
        f"{what} is a column of {kind.__name__}; it must be timestamp, or whole numbers of ms since 1970"
    )


def dues_of_column(column: pa.Array) -> pa.Array:
    """The same for an Arrow column of one of `KINDS`."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return pc.add(pc.divide(pc.subtract(micros, 1), 1000), 1)  # rounded up; a moment before 1970 is over either way


def deadlines_of_column(column: pa.Array) -> pa.Array:
    """Likewise the deadlines."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return pc.divide(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1000)


def by_store_clock(dues: pa.Array, now_s: float, wall_s: float) -> list[int]:
    """Due times by the wall clock as the store counts them, where it is ``now_s`` when it is ``wall_s`` here. One that is over is
    due at once. Raises ConfigError: one is over 100 years away."""
    latest = pc.max(dues).as_py()
    if latest > (wall_s + MAX_DELAY_S) * 1000:
        raise ConfigError(f"a row is due at {latest} ms since 1970, which is more than {MAX_TTL_SAID} away")
    ahead_ms = -int((wall_s - now_s) * 1000 // 1)
    return [max(0, due_ms + ahead_ms) for due_ms in dues.to_pylist()]
