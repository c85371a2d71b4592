"""The stages for ``mapInPandas``, with a real Spark session and real stores."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ignis.errors import ConfigError, IgnisError
from tests.conftest import MakeApp

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

import pandas as pd  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402, N812

from ignis.spark import drain, parse_in_pandas, publish, publish_in_pandas, read_in_pandas  # noqa: E402


def rows(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 3).select(
        F.to_json(F.struct("id", F.concat(F.lit("n"), "id").alias("name"))).alias("body"),
        (F.col("id") % 5).cast("string").alias("customer"),
        "id",
    )


def test_publish_read_and_parse(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    stage = publish_in_pandas(embedded_url, "q", key="customer", id="id", codec="json", shards=4)
    receipts = rows(spark, 200).mapInPandas(stage, stage.schema)
    assert receipts.groupBy().sum("count", "duplicates").first() == (200, 0)
    assert receipts.groupBy().sum("count", "duplicates").first() == (0, 200), "by its id each row is stored once"
    assert new_app(embedded_url).queue("q", dict).main.pending() == 200

    with drain(spark, embedded_url, "q") as drained:
        read = read_in_pandas(drained)
        messages = drained.parts.mapInPandas(read, read.schema)
        parse = parse_in_pandas("id long, name string", keep=["_key", "_shard", "_pointer"])
        found = messages.mapInPandas(parse, parse.schema)
        assert found.columns == ["id", "name", "_corrupt_record", "_key", "_shard", "_pointer"]
        got = found.collect()
        assert sorted(row.id for row in got) == list(range(200))
        assert all(row.name == f"n{row.id}" and bytes(row._key) == b"%d" % (row.id % 5) for row in got)
        assert {row._corrupt_record for row in got} == {None}
        same = drained.df.select("_id", "_enqueued_at", "_pointer", "_key", "_meta", "_failures").collect()
        assert sorted(
            messages.select("_id", "_enqueued_at", "_pointer", "_key", "_meta", "_failures").collect()
        ) == sorted(same)
        assert drained.commit().retired == 200


def test_the_ids_are_those_of_the_arrow_stage(spark: Any, embedded_url: str) -> None:
    texts = [*(f"order-{number}" for number in range(20)), str(uuid.uuid4()), "é", "ü"]
    df = spark.createDataFrame([(text,) for text in texts], "body string")
    stage = publish_in_pandas(embedded_url, "q", id="body")
    assert df.mapInPandas(stage, stage.schema).groupBy().sum("count").first()[0] == len(texts)
    assert publish(df, embedded_url, "q", value="body", id="body").groupBy().sum("count", "duplicates").first() == (
        0,
        len(texts),
    )


BODIES = {
    '{"id": 9007199254740993, "name": "x"}': (9007199254740993, "x", None, None),
    '{"total": 1.5, "ok": true, "more": [1]}': (None, None, 1.5, True),
    "{}": (None, None, None, None),
}
NO_ROWS = ['{"id": "text"}', '{"id": 1} {"id": 2}', "[1]", "", "broken", '{"id": 1.5}', "null", '{"id": 1', "\xff"]


def test_what_does_not_parse_is_no_row_of_nulls(spark: Any) -> None:
    parse = parse_in_pandas("id long, name string, total double, ok boolean")
    bodies = [one.encode("latin-1") for one in [*BODIES, *NO_ROWS]]
    df = spark.createDataFrame([(bytearray(one),) for one in bodies], "body binary").coalesce(1)
    found = df.mapInPandas(parse, parse.schema).collect()
    good = [tuple(row)[:4] for row in found if row._corrupt_record is None]
    assert good == list(BODIES.values())
    assert [bytes(row._corrupt_record) for row in found if row._corrupt_record is not None] == bodies[len(BODIES) :]
    assert all(tuple(row)[:4] == (None,) * 4 for row in found if row._corrupt_record is not None)


def test_an_empty_queue(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    new_app(embedded_url).queue("q", bytes).open()
    with drain(spark, embedded_url, "q") as drained:
        read = read_in_pandas(drained)
        assert drained.parts.mapInPandas(read, read.schema).collect() == []


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"body": [None, None]}, {}, "without a value"),
        ({"body": ["a", None]}, {}, "without a value"),
        ({"body": [1, 2]}, {}, "column of int64"),
        ({"body": ["a", 1]}, {}, "several types"),
        ({"body": ["a"]}, {"key": "nothing"}, "nothing"),
        ({"body": ["a", "b"], "n": [1, None]}, {"id": "n"}, "doubles"),
        ({"body": ["a", "b"], "n": ["1", None]}, {"id": "n"}, "id is null"),
    ],
)
def test_rows_that_cannot_be_published(
    embedded_url: str, columns: dict[str, list[Any]], options: dict[str, str], words: str
) -> None:
    stage = publish_in_pandas(embedded_url, "q", **options)
    with pytest.raises(IgnisError, match=words):
        list(stage([pd.DataFrame(columns)]))


@pytest.mark.parametrize("schema", ["a decimal(3,1)", "a struct<b: int>", "_a int", "a int, A int"])
def test_schemas_that_are_refused(spark: Any, schema: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        parse_in_pandas(schema)


def test_a_column_that_cannot_be_kept(spark: Any) -> None:
    with pytest.raises(ConfigError, match="keep"):
        parse_in_pandas("a int", keep=["customer"])
