"""Writing with ``format("ignis")``: batches and streams, once each where the store can tell."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeApp
from tests.support import WAIT_S

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: E402, N812

from ignis.spark import IgnisDataSource, publish  # noqa: E402


@pytest.fixture(autouse=True)
def _registered(spark: Any) -> None:
    spark.dataSource.register(IgnisDataSource)


def rows(spark: Any, count: int, parts: int = 3) -> Any:
    return spark.range(0, count, 1, parts).select("id", F.concat(F.lit("m"), "id").alias("body"))


def write(df: Any, url: str, **options: Any) -> None:
    df.write.format("ignis").options(**{"url": url, "queue": "q", **options}).mode("append").save()


def stored(app: Any) -> Counter[str]:
    return Counter(one.message for one in app.queue("q", str).main.peek(100_000))


class TestBatch:
    def test_rows_are_messages(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        write(rows(spark, 100), embedded_url, shards=4)
        assert stored(new_app(embedded_url)) == Counter(f"m{number}" for number in range(100))

    def test_equal_rows_are_messages_each(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        write(rows(spark, 40).select(F.lit("same").alias("body")), embedded_url)
        assert stored(new_app(embedded_url)) == Counter({"same": 40})

    def test_a_named_job_writes_once(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        for _ in range(3):
            write(rows(spark, 50), embedded_url, job="load-7")
        app = new_app(embedded_url)
        assert sum(stored(app).values()) == 50
        write(rows(spark, 50), embedded_url, job="load-8")
        write(rows(spark, 50), embedded_url)
        assert sum(stored(app).values()) == 150

    def test_a_row_that_changed_is_not_taken_for_the_one_before(
        self, spark: Any, embedded_url: str, new_app: MakeApp
    ) -> None:
        write(rows(spark, 30, 1), embedded_url, job="load")
        write(rows(spark, 30, 1).withColumn("body", F.when(F.col("id") == 7, "other").otherwise(F.col("body"))),
              embedded_url, job="load")  # fmt: skip
        found = stored(new_app(embedded_url))
        assert found["other"] == 1
        assert sum(found.values()) == 31

    def test_columns_of_other_names(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        df = rows(spark, 20).withColumnRenamed("body", "text").withColumn("customer", F.col("id").cast("string"))
        for _ in range(2):
            write(df.repartition(5), embedded_url, value="text", key="customer", id="id")
        found = new_app(embedded_url).queue("q", str).main.peek(100)
        assert sorted(one.message for one in found) == sorted(f"m{number}" for number in range(20))
        assert {one.envelope.key for one in found} == {str(number) for number in range(20)}

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            pytest.param({"value": "nothing"}, "nothing", marks=pytest.mark.long),
            ({"value": "id"}, "expected string, binary"),
            pytest.param({"key": "id"}, "expected string, binary", marks=pytest.mark.long),
            pytest.param({"unknown": "1"}, "unknown option", marks=pytest.mark.long),
            pytest.param({"batch_rows": "0"}, "batch_rows", marks=pytest.mark.long),
            ({"job": "a b"}, "job"),
            ({"url": ""}, "url"),
        ],
    )
    def test_refusals(self, spark: Any, embedded_url: str, options: dict[str, str], words: str) -> None:
        with pytest.raises(Exception, match=words):
            write(rows(spark, 1), **{"url": embedded_url, **options})

    def test_a_queue_is_not_overwritten(self, spark: Any, embedded_url: str) -> None:
        writer = rows(spark, 1).write.format("ignis").options(url=embedded_url, queue="q").mode("overwrite")
        with pytest.raises(Exception, match="appended to"):
            writer.save()

    @pytest.mark.long
    def test_a_null_fails_the_write(self, spark: Any, embedded_url: str) -> None:
        df = spark.createDataFrame([("a",), (None,)], "body string").coalesce(1)
        with pytest.raises(Exception, match="without a value"):
            write(df, embedded_url)


VALUES = (
    "id bigint, a string, b binary, f float, d double, n decimal(30,4), day date, at timestamp, local timestamp_ntz, "
    "yes boolean, s struct<x: int, y: array<double>>, m map<string, int>"
)


def odd_rows(spark: Any) -> Any:
    utc = dt.datetime(2024, 7, 1, 12, 30, 0, 123456, dt.timezone.utc)
    moment = utc.replace(tzinfo=None)
    return spark.createDataFrame(
        [
            (1, "é\n\"", b"\x00\xff", 0.1, 1e300, Decimal("12345678901234567890.1250"), dt.date(1, 1, 1), utc, moment, True,
             (1, [0.1, None, float("inf")]), {"k": 1, "": None}),
            (2, None, None, None, None, None, None, None, None, None, None, None),
            (-(2**63), "", b"", float("nan"), -0.0, Decimal("0.0000"), dt.date(9999, 12, 31), utc.replace(microsecond=0), moment,
             False, (None, []), {}),
        ],
        VALUES,
    ).coalesce(1)  # fmt: skip


def plain(message: bytes) -> dict[str, Any]:
    """A body with moments as moments and numbers to the digit."""
    found: dict[str, Any] = json.loads(message, parse_float=Decimal)
    moments = {
        name: dt.datetime.fromisoformat(found[name].replace("Z", "+00:00")) for name in ("at", "local") if name in found
    }
    return {**found, **moments}


class TestColumns:
    """Rows that are no raw body become JSON."""

    def test_a_queue_of_dicts(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        df = spark.range(0, 20, 1, 2).select("id", F.concat(F.lit("c"), "id").alias("customer"))
        write(df, embedded_url, key="customer")
        found = new_app(embedded_url).queue("q", dict).main.peek(100)
        assert sorted(one.message["id"] for one in found) == list(range(20))
        assert all(one.message["customer"] == f"c{one.message['id']}" == one.envelope.key for one in found)

    def test_the_values_are_those_that_the_stage_publishes(
        self, spark: Any, embedded_url: str, new_app: MakeApp
    ) -> None:
        publish(odd_rows(spark), embedded_url, "stage").collect()
        write(odd_rows(spark), embedded_url)
        app = new_app(embedded_url)
        stage, sink = (
            {body["id"]: body for one in app.queue(name).main.peek(10) for body in [plain(one.envelope.body)]}
            for name in ("stage", "q")
        )
        assert stage == sink
        assert sink[2] == {"id": 2}
        assert sink[1]["at"].microsecond == 123456, "nothing of a moment is cut off"
        assert sink[1]["n"] == Decimal("12345678901234567890.1250")

    def test_a_value_that_is_an_object(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        df = odd_rows(spark).where("s is not null").select("s", "b")
        write(df, embedded_url, value="s")
        found = [one.message for one in new_app(embedded_url).queue("q", dict).main.peek(10)]
        assert sorted(found, key=len) == [{"y": []}, {"x": 1, "y": [0.1, None, "Infinity"]}]

    def test_text_of_json_where_the_writer_says_so(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        df = spark.range(3).select(F.to_json(F.struct("id")).alias("body"))
        write(df, embedded_url, codec="json")
        assert sorted(one.message["id"] for one in new_app(embedded_url).queue("q", dict).main.peek(10)) == [0, 1, 2]

    def test_a_raw_queue_takes_no_columns(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        new_app(embedded_url).queue("q", bytes).open()
        with pytest.raises(Exception, match="has codec 'raw'"):
            write(spark.range(3), embedded_url)

    @pytest.mark.long
    def test_columns_of_which_no_json_is_made(self, spark: Any, embedded_url: str) -> None:
        with pytest.raises(Exception, match="no JSON is made"):
            write(spark.sql("select interval 1 day as i"), embedded_url)
        with pytest.raises(Exception, match="outside of the years 1 to 9999"):
            write(spark.sql("select make_date(10000, 1, 1) as day"), embedded_url, queue="later")


class TestStream:
    def run(self, spark: Any, source: Path, url: str, checkpoint: Path) -> Any:
        query = (
            spark.readStream.schema("body string")
            .json(str(source))
            .writeStream.format("ignis")
            .options(url=url, queue="q")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(2 * WAIT_S)
        finally:
            query.stop()
        return query

    def add(self, spark: Any, source: Path, first: int, count: int) -> None:
        df = spark.range(first, first + count, 1, 2).select(F.concat(F.lit("m"), "id").alias("body"))
        df.write.mode("append").json(str(source))

    def test_batches_are_written_once(self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path) -> None:
        source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
        self.add(spark, source, 0, 50)
        self.run(spark, source, embedded_url, checkpoint)
        self.add(spark, source, 50, 30)
        self.run(spark, source, embedded_url, checkpoint)
        app = new_app(embedded_url)
        assert stored(app) == Counter(f"m{number}" for number in range(80))
        # As if the query had died between the batch and its entry in the checkpoint: the batch is run again.
        commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
        self.run(spark, source, embedded_url, checkpoint)
        assert stored(app) == Counter(f"m{number}" for number in range(80))

    @pytest.mark.long
    def test_without_the_checkpoint_it_is_another_query(
        self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        self.add(spark, source, 0, 80)
        for checkpoint in ("checkpoint", "another"):
            self.run(spark, source, embedded_url, tmp_path / checkpoint)
        assert stored(new_app(embedded_url)) == Counter({f"m{number}": 2 for number in range(80)})
