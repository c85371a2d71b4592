"""Judging rows: each value is cast to its type and held against the rules of its column, in Spark's own functions.

A row may break several rules; all are kept, and the first one names the reason under which it is put aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, functions
from ignis.spark.pipeline.description import Column
from ignis.spark.pipeline.reading import MALFORMED, is_json

__all__ = [
    "PROBLEMS", "REASONS", "REASON_PARTITION", "REASON_TOO_LARGE", "check_rows", "first_reason", "problem", "problem_texts",
    "sql_type",
]  # fmt: skip

PROBLEMS = "_problems"

REASON_MALFORMED = "malformed"
REASON_ENCODING = "encoding"
REASON_MISSING = "missing"
REASON_TYPE = "type"
REASON_RANGE = "range"
REASON_LENGTH = "length"
REASON_PATTERN = "pattern"
REASON_VALUE = "value"
REASON_TOO_LARGE = "too_large"
REASON_PARTITION = "partition"
REASONS = (
    REASON_MALFORMED, REASON_ENCODING, REASON_MISSING, REASON_TYPE, REASON_RANGE, REASON_LENGTH, REASON_PATTERN,
    REASON_VALUE, REASON_TOO_LARGE, REASON_PARTITION,
)  # fmt: skip

_SHOWN_CHARS = 80
"""A value is cut to this in the text of a problem; the row itself is kept whole."""

_SQL_TYPES = {
    "string": "string",
    "integer": "bigint",
    "number": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}

_ZONE = r" ?(?:[+-][0-9]{2}(?::?[0-9]{2})?|[A-Za-z][A-Za-z0-9_/+:-]*+)"
_FORMS = {
    "integer": r"[+-]?[0-9]++",
    "number": r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?",
    "decimal": r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?",
    "date": r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}",
    # Digits behind the microsecond would be cut off.
    "timestamp": r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*+)?)?"
    rf"(?:{_ZONE})?)?",
}
"""How a value of a type is written: a cast alone would take more, and make something else of it."""


def check_rows(
    rows: DataFrame, schema: Mapping[str, Column], *keep: str, texts: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows with typed columns, the columns named in ``keep``, and ``_problems``: an array, empty for a good row.

    Args:
        rows: as `ignis.spark.pipeline.reading` gives them.
        texts: columns of which the text is kept as well, and under what name.
    """
    problems: list[Expression] = []
    for name, column in schema.items():
        text, value = functions.col(name), _typed(name, column)
        for reason, broken, why in _rules(column, text, value):
            problems.append(functions.when(broken, _problem(reason, name, text, why, column)))
    apart = functions.lit("the row cannot be taken apart")
    encoding = functions.lit("the bytes of the line are not of the encoding")
    malformed = functions.array(
        functions.when(
            functions.col(MALFORMED) == REASON_ENCODING, _struct(REASON_ENCODING, functions.lit(""), encoding)
        ).otherwise(_struct(REASON_MALFORMED, functions.lit(""), apart))
    )
    found = functions.array_compact(functions.array(*problems))
    return rows.select(
        *keep,
        *(_typed(name, column).alias(name) for name, column in schema.items()),
        *(functions.col(name).alias(alias) for name, alias in (texts or {}).items()),
        functions.when(functions.col(MALFORMED).isNotNull(), malformed).otherwise(found).alias(PROBLEMS),
    )


def first_reason() -> Expression:
    """The reason that a row is put aside for; null for a good row."""
    return functions.get(functions.col(PROBLEMS), functions.lit(0))["reason"]


def problem_texts() -> Expression:
    """All problems of a row, as an array of texts."""
    return functions.transform(
        PROBLEMS,
        lambda one: functions.when(one["column"] == "", one["why"]).otherwise(
            functions.concat(one["column"], functions.lit(": "), one["why"])
        ),
    )


def sql_type(column: Column) -> str:
    """The type of the column's values in Spark, as a schema is written."""
    if column.type == "decimal":
        return f"decimal({column.precision},{column.scale})"
    return _SQL_TYPES.get(column.type, "string")


def _typed(name: str, column: Column) -> Expression:
    """The value in its type, null where it is not of that type."""
    text = functions.col(name)
    if column.type in ("string", "json"):
        return text
    text = functions.btrim(text)
    if column.format:
        moment = functions.try_to_timestamp(text, functions.lit(column.format))
        moment = functions.when(functions.year(moment).between(1, 9_999), moment)
        return moment if column.type == "timestamp" else moment.cast("date")
    if column.type in _FORMS:
        text = functions.when(text.rlike(rf"\A{_FORMS[column.type]}\z"), text)
    if column.type == "decimal":
        fits = _is_exact(text, column.scale)
        return functions.when(fits, text.try_cast(sql_type(column)))
    value = text.try_cast(sql_type(column))
    # A zone may carry the moment over the edge of the years that dates are written in.
    return functions.when(functions.year(value).between(1, 9_999), value) if column.type == "timestamp" else value


def _is_exact(text: Expression, scale: int) -> Expression:
    """Whether no digit but zeros stands behind the last place of a decimal: a cast would round."""
    plain = text.rlike(rf"\A[+-]?[0-9]*+(?:\.[0-9]{{0,{scale}}}0*+)?\z")
    whole = functions.regexp_extract(text, r"\A[+-]?([0-9]*)", 1)
    fraction = functions.regexp_extract(text, r"\.([0-9]*)", 1)
    exponent = functions.regexp_extract(text, r"[eE]([+-]?[0-9]+)\z", 1).try_cast("int")
    digits = functions.concat(whole, fraction)
    zeros = functions.length(digits) - functions.length(functions.rtrim(digits, functions.lit("0")))
    places = functions.length(fraction) - exponent - zeros
    return plain | functions.coalesce(places <= scale, functions.lit(False)) | text.rlike(r"\A[+-]?[0.]++[eE]")


def _rules(column: Column, text: Expression, value: Expression) -> Iterator[tuple[str, Expression, str]]:
    """(reason, whether the value breaks the rule, what it is then)."""
    if column.required:
        yield REASON_MISSING, text.isNull(), "is missing"
    if column.type == "json":
        yield REASON_TYPE, text.isNotNull() & ~is_json(text), "is not JSON"
    elif column.type != "string":
        wrong = text.isNotNull() & value.isNull()
        if column.type == "number":
            # Infinity and NaN are doubles and no JSON.
            wrong = wrong | functions.isnan(value) | (functions.abs(value) == float("inf"))
        yield REASON_TYPE, wrong, f"is not {_described(column)}"
    for bound, breaks, word in ((column.min, value.__lt__, "below"), (column.max, value.__gt__, "above")):
        if bound is not None:
            yield REASON_RANGE, breaks(_bound(column, bound)), f"is {word} {bound}"
    if column.min_length is not None:
        yield REASON_LENGTH, functions.length(text) < column.min_length, f"is shorter than {column.min_length}"
    if column.max_length is not None:
        yield REASON_LENGTH, functions.length(text) > column.max_length, f"is longer than {column.max_length}"
    if column.pattern:
        yield REASON_PATTERN, ~text.rlike(rf"\A(?:{column.pattern})\z"), f"does not match {column.pattern}"
    if column.values:
        yield REASON_VALUE, ~text.isin(*column.values), f"is not one of {', '.join(column.values)}"


def _described(column: Column) -> str:
    if column.format:
        return f"a {column.type} like {column.format}"
    if column.type == "decimal":
        return f"a decimal of {column.precision} digits, {column.scale} of them behind the point"
    return "an integer of 64 bits" if column.type == "integer" else f"a {column.type}"


def _bound(column: Column, bound: Any) -> Expression:
    """A bound in the column's type: what `_typed` is compared with."""
    if column.type in ("date", "timestamp"):
        return functions.lit(bound).cast(column.type)
    return functions.lit(Decimal(str(bound)) if column.type == "decimal" else bound)


def problem(reason: str, name: str, why: Expression) -> Expression:
    """One problem, as `PROBLEMS` holds them."""
    return _struct(reason, functions.lit(name), why)


def _problem(reason: str, name: str, text: Expression, why: str, column: Column) -> Expression:
    if reason == REASON_MISSING or column.type == "json":
        return _struct(reason, functions.lit(name), functions.lit(why))
    shown = functions.concat(functions.substring(text, 1, _SHOWN_CHARS), functions.lit(f" {why}"))
    return _struct(reason, functions.lit(name), shown)


def _struct(reason: str, name: Expression, why: Expression) -> Expression:
    return functions.struct(functions.lit(reason).alias("reason"), name.alias("column"), why.alias("why"))
