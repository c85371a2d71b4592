"""Rows with a due time: by `ignis.spark.publish` and by ``format("ignis")``."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ignis.errors import ConfigError, DelayNotSupportedError
from ignis.storage.embedded.magazines import EmbeddedMagazines
from tests.conftest import MakeApp

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: E402, N812

from ignis.spark import IgnisDataSource, publish  # noqa: E402

FAR = dt.datetime(2090, 1, 1, tzinfo=dt.timezone.utc)
AROUND = dt.timedelta(seconds=5)
"""So far apart the wall clock and the store's may be on a machine whose clock is being set."""


@pytest.fixture(autouse=True)
def _registered(spark: Any) -> None:
    spark.dataSource.register(IgnisDataSource)


def rows(spark: Any, count: int = 300) -> Any:
    """Every third row waits for a time of its own, every third for one that is over; the others have none."""
    far_s = int(FAR.timestamp())
    n = F.col("n")
    seconds = F.when(n % 3 == 0, far_s + n).when(n % 3 == 1, F.lit(1_000_000_000))
    return spark.range(0, count, 1, 3).select(
        F.col("id").alias("n")
    ).select(
        F.concat(F.lit("m"), n).alias("body"),
        (n % 7).cast("string").alias("customer"),
        F.timestamp_seconds(seconds).alias("due"),
        (seconds * 1000).cast("bigint").alias("due_ms"),
    )  # fmt: skip


def check(app: Any, count: int = 300) -> None:
    """Each message is where it belongs, and due when its row says."""
    queue = app.queue("q", str)
    waiting = list(queue.later)
    late = [one for one in waiting if one.due > FAR - dt.timedelta(days=1)]
    bodies = [one.message.body.decode() for one in late if one.message is not None]
    assert bodies == [f"m{number}" for number in range(0, count, 3)]
    for one, body in zip(late, bodies, strict=True):
        number = int(body[1:])
        assert abs(one.due - FAR - dt.timedelta(seconds=number)) < AROUND
        assert one.message is not None
    got: list[str] = []
    while fired := queue.main.fire(10_000):
        got += [one.message for one in fired]
        queue.main.delete(fired)
    assert sorted(got) == sorted(f"m{number}" for number in range(count) if number % 3)
    assert len(queue.later) == len(late)


@pytest.mark.parametrize("column", ["due", "due_ms"])
def test_rows_wait_for_their_time(spark: Any, embedded_url: str, new_app: MakeApp, column: str) -> None:
    receipts = publish(rows(spark), embedded_url, "q", value="body", key="customer", at=column, codec="raw").collect()
    assert sum(one["count"] for one in receipts) == 300
    assert sum(one["count"] for one in receipts if one["shard"] == -1) == 200
    assert {one["first_pointer"] for one in receipts if one["shard"] == -1} == {0}
    app = new_app(embedded_url)
    keyed = [one.message.key for one in app.queue("q", str).later if one.message is not None]
    assert set(keyed) == {str(number) for number in range(7)}
    check(app)


@pytest.mark.parametrize("column", ["due", "due_ms"])
def test_the_sink_takes_the_column_too(spark: Any, embedded_url: str, new_app: MakeApp, column: str) -> None:
    options = {"url": embedded_url, "queue": "q", "key": "customer", "at": column}
    rows(spark).write.format("ignis").options(**options).mode("append").save()
    check(new_app(embedded_url))


def test_a_row_that_is_published_again_waits_twice(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    receipts = publish(rows(spark, 30), embedded_url, "q", value="body", at="due_ms", codec="raw")
    receipts.collect()
    receipts.collect()
    assert len([one for one in new_app(embedded_url).queue("q", str).later if one.due > FAR - AROUND]) == 20


def test_rows_of_one_time_keep_the_order_of_their_key(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    df = spark.range(0, 2_000, 1, 1).select(
        F.col("id").cast("string").alias("body"), F.lit("k").alias("key"), F.lit(5).alias("at")
    )
    publish(df, embedded_url, "q", value="body", key="key", at="at", codec="raw", batch_rows=300).collect()
    queue = new_app(embedded_url).queue("q", str)
    got = [one.message for one in queue.main.fire(10_000)]
    while fired := queue.main.fire(10_000):
        got += [one.message for one in fired]
    assert got == [str(number) for number in range(2_000)]


@pytest.mark.parametrize("sink", [False, True])
def test_with_ids_each_row_is_stored_once_whenever_it_is_due(
    spark: Any, embedded_url: str, new_app: MakeApp, sink: bool
) -> None:
    df = rows(spark, 60)
    for count, at in ((60, "due"), (60, "due_ms"), (90, "due")):
        some = df if count == 60 else rows(spark, count)
        if sink:
            options = {"url": embedded_url, "queue": "q", "value": "body", "id": "body", "at": at}
            some.write.format("ignis").options(**options).mode("append").save()
        else:
            publish(some, embedded_url, "q", value="body", id="body", at=at).collect()
    check(new_app(embedded_url), 90)


def test_refusals(spark: Any, embedded_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    df = rows(spark, 6)
    with pytest.raises(ConfigError, match="StringType"):
        publish(df, embedded_url, "q", value="body", at="body")
    naive = df.withColumn("naive", F.col("due").cast("timestamp_ntz"))
    with pytest.raises(ConfigError, match="NTZ"):
        publish(naive, embedded_url, "q", value="body", at="naive")
    monkeypatch.setattr(EmbeddedMagazines, "keeps_later", False)
    with pytest.raises(DelayNotSupportedError):
        publish(df, embedded_url, "q", value="body", at="due")


@pytest.mark.long
def test_what_a_task_or_the_sink_refuses(spark: Any, embedded_url: str) -> None:
    df = rows(spark, 6)
    for options, words in (
        ({"at": "body"}, "string"),
        ({"at": "none"}, "not a column"),
    ):
        with pytest.raises(Exception, match=words):
            df.write.format("ignis").options(url=embedded_url, queue="q", **options).mode("append").save()
    far = df.withColumn("far", F.lit(1 << 47))
    with pytest.raises(Exception, match="100 years"):
        publish(far, embedded_url, "q", value="body", at="far").collect()
