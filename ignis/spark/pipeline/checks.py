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
from ignis.spark.pipeline.reading import MALFORMED

__all__ = ["PROBLEMS", "REASONS", "check_rows", "first_reason", "problem_texts"]

PROBLEMS = "_problems"

REASON_MALFORMED = "malformed"
REASON_MISSING = "missing"
REASON_TYPE = "type"
REASON_RANGE = "range"
REASON_LENGTH = "length"
REASON_PATTERN = "pattern"
REASON_VALUE = "value"
REASONS = (
    REASON_MALFORMED, REASON_MISSING, REASON_TYPE, REASON_RANGE, REASON_LENGTH, REASON_PATTERN, REASON_VALUE,
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


def check_rows(rows: DataFrame, schema: Mapping[str, Column], *keep: str) -> DataFrame:
    """The rows with typed columns, the columns named in ``keep``, and ``_problems``: an array, empty for a good row.

    Args:
        rows: as `ignis.spark.pipeline.reading` gives them.
    """
    problems: list[Expression] = []
    for name, column in schema.items():
        text, value = functions.col(name), _typed(name, column)
        for reason, broken, why in _rules(column, text, value):
            problems.append(functions.when(broken, _problem(reason, name, text, why, column)))
    malformed = functions.array(
        _struct(REASON_MALFORMED, functions.lit(""), functions.lit("the row cannot be taken apart"))
    )
    found = functions.array_compact(functions.array(*problems))
    return rows.select(
        *keep,
        *(_typed(name, column).alias(name) for name, column in schema.items()),
        functions.when(functions.col(MALFORMED), malformed).otherwise(found).alias(PROBLEMS),
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


def _typed(name: str, column: Column) -> Expression:
    """The value in its type, null where it is not of that type."""
    text = functions.col(name)
    if column.type in ("string", "json"):
        return text
    if column.type == "decimal":
        return text.try_cast(f"decimal({column.precision},{column.scale})")
    if column.format:
        moment = functions.try_to_timestamp(text, functions.lit(column.format))
        return moment if column.type == "timestamp" else moment.cast("date")
    return text.try_cast(_SQL_TYPES[column.type])


def _rules(column: Column, text: Expression, value: Expression) -> Iterator[tuple[str, Expression, str]]:
    """(reason, whether the value breaks the rule, what it is then)."""
    if column.required:
        yield REASON_MISSING, text.isNull(), "is missing"
    if column.type not in ("string", "json"):
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


def _problem(reason: str, name: str, text: Expression, why: str, column: Column) -> Expression:
    if reason == REASON_MISSING or column.type == "json":
        return _struct(reason, functions.lit(name), functions.lit(why))
    shown = functions.concat(functions.substring(text, 1, _SHOWN_CHARS), functions.lit(f" {why}"))
    return _struct(reason, functions.lit(name), shown)


def _struct(reason: str, name: Expression, why: Expression) -> Expression:
    return functions.struct(functions.lit(reason).alias("reason"), name.alias("column"), why.alias("why"))
