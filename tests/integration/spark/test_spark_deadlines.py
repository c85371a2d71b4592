"""Rows with a deadline: by `ignis.spark.publish` and by ``format("ignis")``."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ignis.errors import ConfigError
from ignis.testing import drain
from tests.conftest import MakeApp

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: E402, N812

from ignis.spark import IgnisDataSource, publish  # noqa: E402

FAR_S = int(dt.datetime(2090, 1, 1, tzinfo=dt.timezone.utc).timestamp())
PAST_S = 1_000_000_000


@pytest.fixture(autouse=True)
def _registered(spark: Any) -> None:
    spark.dataSource.register(IgnisDataSource)


def rows(spark: Any, count: int = 60) -> Any:
    """Every third row has a deadline of its own, every third one that is over; the others have none."""
    n = F.col("id")
    seconds = F.when(n % 3 == 0, FAR_S + n).when(n % 3 == 1, F.lit(PAST_S))
    return spark.range(0, count, 1, 3).select(
        n.cast("string").alias("body"),
        (n % 7).cast("string").alias("customer"),
        F.timestamp_seconds(seconds).alias("end"),
        (seconds * 1000).cast("bigint").alias("end_ms"),
        F.when(n % 2 == 0, F.lit(FAR_S * 1000)).alias("due_ms"),
    )


def check(app: Any, count: int = 60) -> None:
    """Each message has the deadline of its row, and what is over comes to no handler."""
    queue = app.queue("q", str)
    found = {int(one.body): one for one in (fired.envelope for fired in queue.main.peek(1_000))}
    late = {int(one.message.body): one.message for one in queue.later if one.message is not None}
    assert sorted([*found, *late]) == list(range(count))
    for number, one in [*found.items(), *late.items()]:
        wanted = (FAR_S + number) * 1000 if number % 3 == 0 else PAST_S * 1000 if number % 3 == 1 else None
        assert (one.expires_at_ms, one.key) == (wanted, str(number % 7))
    handled: list[str] = []
    queue.handler(handled.append)
    drain(queue)
    assert sorted(map(int, handled)) == [number for number in sorted(found) if number % 3 != 1]


@pytest.mark.parametrize("named", [{}, {"id": "body"}], ids=["", "ids"])
def test_each_row_has_its_own(spark: Any, embedded_url: str, new_app: MakeApp, named: dict[str, str]) -> None:
    for column in ("end", "end_ms") if named else ("end_ms",):  # with ids they are stored once
        publish(
            rows(spark),
            embedded_url,
            "q",
            value="body",
            key="customer",
            at="due_ms",
            expires_at=column,
            codec="raw",
            **named,
        ).collect()
    check(new_app(embedded_url))


def test_the_sink_takes_the_column_too(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    options = {"url": embedded_url, "queue": "q", "key": "customer", "expires_at": "end"}
    rows(spark).write.format("ignis").options(**options).mode("append").save()
    check(new_app(embedded_url))


def test_the_store_drops_what_is_over_where_the_queue_does(spark: Any, embedded_url: str, new_app: MakeApp) -> None:
    over = rows(spark).where(f"end_ms = {PAST_S * 1000}")
    for queue, on_expiry in (("q", "drop"), ("kept", "sideline")):
        publish(
            over, embedded_url, queue, value="body", expires_at="end_ms", codec="raw", on_expiry=on_expiry
        ).collect()
    app = new_app(embedded_url)
    assert app.queue("q", str).main.fire(1_000) == []
    assert len(app.queue("kept", str).main.fire(1_000)) == 20


def test_refusals(spark: Any, embedded_url: str) -> None:
    df = rows(spark, 6)
    with pytest.raises(ConfigError, match="expires_at is a column of StringType"):
        publish(df, embedded_url, "q", value="body", expires_at="body")


@pytest.mark.long
def test_what_a_task_or_the_sink_refuses(spark: Any, embedded_url: str) -> None:
    df = rows(spark, 6)
    with pytest.raises(Exception, match="not a column"):
        df.write.format("ignis").options(url=embedded_url, queue="q", expires_at="none").mode("append").save()
    far = df.withColumn("far", F.lit(1 << 47))
    with pytest.raises(Exception, match="100 years"):
        publish(far, embedded_url, "q", value="body", expires_at="far").collect()
