"""Bodies parsed in the tasks mean what Spark's ``from_json`` says."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.conftest import MakeApp
from tests.support import sidelined

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

import pyarrow as pa  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402, N812
from pyspark.sql.types import StructType  # noqa: E402

from ignis.spark import drain  # noqa: E402
from ignis.spark.parse_body import fields_of, parse_lines  # noqa: E402

FIELDS = pa.schema([("a", pa.int64()), ("s", pa.string())])
SCHEMA = "a long, s string, d double, b boolean, i int"

BODIES: list[bytes] = [
    b'{"a": 1, "s": "x", "d": 1.5, "b": true, "i": 7}',
    b'{"a": 1}',
    b"{}",
    b'{"a": null, "s": null}',
    b'{"other": [1, {"a": 2}], "a": 3}',
    b'{"a":1,"a":2}',
    b'{"a": 1.0, "d": 2}',
    b'{"a": 1e3}',
    b'{"a": 99999999999999999999, "i": 3000000000}',
    b'{"a": "5", "s": 5, "b": "true", "d": "1.5"}',
    b'{"s": {"nested": [1, 2]}}',
    b'{"s": "\\u00fc \\n \\ud83d\\ude00"}',
    '{"s": "ü"}'.encode(),
    b'{"s": "\xff\xfe"}',
    b'{"d": 1e400, "s": "big"}',
    b'{"d": NaN}',
    b'{"d": 0.1, "a": -0}',
    b'{"a": 1',
    b'{"a": }',
    b"",
    b"   ",
    b"null",
    b"[1, 2]",
    b"5",
    b'{"a": 1}{"a": 2}',
    b'{"a": 1}\n{"a": 2}',
    b'{"a": 1} ',
    b' {"a": 1}',
    b'{"s": "a',
    b'{"a":\n 1}',
    b'{"A": 1, "S": "case"}',
    b'{"a": 01}',
    b"{'a': 1}",
    b'{"a": 1, /* c */ "s": "x"}',
    b'{"s": "}"}',
    b'{"s": "{"}',
    b'{"d":Inf}',
    b'{"a":5,"z":[1, -Infinity]}',
    b'{"d":-0}',
    b'{"d": -0 ,"s":"-0,"}',
    b'{"d":-0.0}',
    b'{"a":1,"z":-NaN}',
    b'{"a":1,"z":' + b"[" * 1_100 + b"]" * 1_100 + b"}",
    b'{"a":1,"z":' + b"9" * 1_500 + b"}",
    b'{"d":0.' + b"1" * 1_500 + b"}",
    b'{"' + b"k" * 50_001 + b'":1}',
]


GOOD = [
    json.dumps({"a": number, "s": f"n{number}", "d": number / 8, "b": number % 2 == 0}).encode()
    for number in range(500)
]
TEXTS = [*GOOD, *BODIES, *GOOD, *reversed(BODIES)]
"""Odd ones among good ones, which are parsed in bulk, and each twice, beside different neighbours."""


def by_from_json(spark: Any, schema: str) -> list[tuple[Any, ...] | None]:
    """What Spark says of each text; None of one that is none."""
    df = spark.createDataFrame([(number, bytearray(text)) for number, text in enumerate(TEXTS)], "n int, body binary")
    parsed = F.from_json(F.col("body").cast("string"), f"{schema}, _corrupt_record string", {"mode": "PERMISSIVE"})
    rows = df.select("n", parsed.alias("x")).orderBy("n").collect()
    return [None if row.x is None or row.x["_corrupt_record"] is not None else tuple(row.x)[:-1] for row in rows]


@pytest.mark.parametrize("schema", [SCHEMA, f"{SCHEMA}, n decimal(4,1)"], ids=["in the tasks", "by Spark"])
def test_the_same_as_from_json(spark: Any, embedded_url: str, new_app: MakeApp, schema: str) -> None:
    queue = new_app(embedded_url).queue("q", bytes, shards=1)
    queue.publish_many(TEXTS)
    expected = by_from_json(spark, schema)
    columns = len(StructType.fromDDL(schema).fields)
    bad = [text for text, row in zip(TEXTS, expected, strict=True) if row is None]
    assert 20 < len(bad) < 2 * len(BODIES)
    with drain(spark, embedded_url, "q", schema=schema) as drained:
        rows = drained.df.orderBy("_pointer").collect()
        assert [repr(tuple(row)[:columns]) for row in rows] == [repr(row) for row in expected if row is not None]
        assert drained.commit() == (len(TEXTS) - len(bad), 0, len(bad))
    aside = sidelined(queue)
    assert Counter(bytes(one.body) for one in aside) == Counter(bad)
    assert {one.reason for one in aside} == {"unreadable"}


def test_a_commit_without_an_action_puts_aside_as_well(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    queue = new_app(embedded_url).queue("q", bytes, shards=2)
    queue.publish_many([b'{"a": 1}', b"broken", b'{"a": "x"}', b'{"a": 2}'])
    with drain(spark, embedded_url, "q", schema="a long", partition_rows=2) as drained:
        assert drained.df.limit(1).count() == 1  # reads a part of it
        assert drained.commit() == (2, 0, 2)
    assert len(sidelined(queue)) == 2


def test_a_commit_of_good_bodies_asks_nobody(
    spark: Any, embedded_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_app(embedded_url).queue("q", dict).publish_many([{"a": number} for number in range(1_000)])
    monkeypatch.setattr("ignis.spark.drain_task.put_aside", None)
    with drain(spark, embedded_url, "q", schema="a long", partition_rows=300) as drained:
        assert drained.df.count() == 1_000
        assert drained.df.groupBy().sum("a").first()[0] == 499_500
        assert drained.commit() == (1_000, 0, 0)


def test_who_wants_the_corrupt_ones_has_them(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    queue = new_app(embedded_url).queue("q", bytes)
    queue.publish_many([b'{"a": 1}', b"broken", b"", b" \t", b"null"])
    with drain(
        spark, embedded_url, "q", schema="a long, s string, m map<string,int>, _corrupt_record string"
    ) as drained:
        found = {row._corrupt_record: (row.a, row.s, row.m) for row in drained.df.collect()}
        nothing = (None, None, None)
        assert found == {None: (1, None, None), "broken": nothing, "": nothing, " \t": nothing, "null": nothing}
        assert drained.commit() == (5, 0, 0)
    assert sidelined(queue) == []


def test_without_the_envelope(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    new_app(embedded_url).queue("q", dict).publish_many([{"a": 1, "s": "x"}])
    with drain(spark, embedded_url, "q", schema="a long", envelope=False) as drained:
        assert [row.asDict() for row in drained.df.collect()] == [{"a": 1}]
    with drain(spark, embedded_url, "q", envelope=False) as drained:
        assert drained.df.columns == ["body"]


def lines(*bodies: bytes) -> Any:
    return pa.array([body + b"\n" for body in bodies], pa.binary())


@pytest.mark.parametrize(
    "body", [b'{"a": 1}{"a": 2}', b'{"a": 1}\n{"a": 2}', b"", b'{"a": "x"}', b'{"a": 1', b'{"a":1,"a":2}']
)
def test_what_is_not_plainly_one_object_is_left(body: bytes) -> None:
    # Beside an empty body the number of objects would come out right.
    bodies = [b'{"a": 7}'] * 100 + [body, b""] + [b'{"a": 8}'] * 100
    a, s, left = parse_lines(lines(*bodies), FIELDS)
    assert len(a) == len(s) == len(left) == len(bodies)
    for number, one in enumerate(bodies):
        if left[number].as_py() is None:
            assert one in (b'{"a": 7}', b'{"a": 8}')
            assert a[number].as_py() == json.loads(one)["a"]
        else:
            assert left[number].as_py() == one + b"\n"
    assert left.null_count >= 100, "only the neighbours of the odd one are left with it"


ODD = [body for body in BODIES[-10:] if b"-0.0" not in body]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_what_arrow_would_take_is_left_to_spark(body: bytes) -> None:
    """Alone: beside others it may be left to Spark for their sake."""
    *_, left = parse_lines(lines(body), pa.schema([("a", pa.int64()), ("d", pa.float64()), ("s", pa.string())]))
    assert left.to_pylist() == [body + b"\n"]


@pytest.mark.parametrize("text", ["Infinite-0NaNny", "2024-01-02", "x" * 3_000, "9" * 990])
def test_text_that_only_looks_odd_is_parsed_in_the_tasks(text: str) -> None:
    column = lines(json.dumps({"a": -10, "s": f"the{text}", "d": -0.5}).encode())
    *_, left = parse_lines(column, pa.schema([("a", pa.int64()), ("d", pa.float64()), ("s", pa.string())]))
    assert left.null_count == 1


def test_all_of_a_good_batch_is_parsed() -> None:
    column = lines(*(json.dumps({"a": number, "s": str(number)}).encode() for number in range(1_000)))
    a, s, left = parse_lines(column.slice(10, 900), FIELDS)
    assert left.null_count == 900
    assert a.to_pylist() == list(range(10, 910))
    assert s[0].as_py() == "10"
    assert [len(one) for one in parse_lines(column.slice(0, 0), FIELDS)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("schema", "quick"),
    [
        ("a long, b string, c double, d boolean, e int", True),
        ("a long, _corrupt_record string", False),
        ("a timestamp", False),
        ("a array<long>", False),
        ("a long, A string", False),
        ("a decimal(10, 2)", False),
    ],
)
def test_which_schemas_are_parsed_in_the_tasks(spark: Any, schema: str, quick: bool) -> None:
    assert (fields_of(StructType.fromDDL(schema)) is not None) is quick
