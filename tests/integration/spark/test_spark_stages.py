"""Publishing a DataFrame and draining a queue, with a real Spark session and real stores."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import ClosedError, ConfigError, InvalidNameError, QueueMismatchError, QueueNotFoundError
from ignis.native import encode_record
from tests.conftest import MakeApp
from tests.support import sidelined
from tests.support.embedded import newest_segment

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: E402, N812

from ignis.spark import Committed, drain, publish, resume  # noqa: E402
from ignis.spark.drain_task import pieces  # noqa: E402
from ignis.spark.read_task import cut_runs  # noqa: E402
from ignis.storage.base import Run  # noqa: E402


def numbers(spark: Any, count: int, parts: int = 3) -> Any:
    return spark.range(0, count, 1, parts).select("id", F.concat(F.lit("n"), "id").alias("name"))


def totals(receipts: Any) -> tuple[int, int]:
    rows = receipts.collect()
    return sum(row["count"] for row in rows), sum(row["duplicates"] for row in rows)


def bodies(df: Any) -> list[str]:
    return sorted(bytes(row.body).decode() for row in df.select("body").collect())


class TestPublish:
    def test_rows_are_json_messages(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        receipts = publish(numbers(spark, 100), embedded_url, "q", shards=4).collect()
        assert sum(row["count"] for row in receipts) == 100
        assert {row["partition"] for row in receipts} == {0, 1, 2}
        queue = new_app(embedded_url).queue("q")
        found = queue.main.fire(1_000)
        assert sorted(one.message["id"] for one in found) == list(range(100))
        assert all(one.message["name"] == f"n{one.message['id']}" for one in found)
        stored: Counter[int] = Counter()
        for row in receipts:
            stored[row["shard"]] += row["count"]
        assert stored == Counter(one.shard for one in found)
        first = {(row["shard"], row["first_pointer"]) for row in receipts}
        assert {(shard, 1) for shard in stored} <= first

    def test_nothing_happens_before_an_action(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        receipts = publish(numbers(spark, 10), embedded_url, "q")
        queue = new_app(embedded_url).queue("q")
        assert queue.main.pending() == 0
        receipts.collect()
        assert queue.main.pending() == 10

    def test_a_value_is_stored_as_it_is(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        df = spark.createDataFrame([(b"\x00\xff",), (b"",)], "payload binary")
        publish(df, embedded_url, "q", value="payload").collect()
        queue = new_app(embedded_url).queue("q", bytes)
        assert queue.codec.name == "raw"
        assert sorted(one.message for one in queue.main.fire(10)) == [b"", b"\x00\xff"]

    def test_some_columns_and_a_key(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        df = numbers(spark, 60).withColumn("customer", F.col("id") % 5)
        publish(df, embedded_url, "q", columns=["name"], key="customer").collect()
        found = new_app(embedded_url).queue("q").main.fire(100)
        assert {json.dumps(one.message) for one in found} == {json.dumps({"name": f"n{i}"}) for i in range(60)}
        shards: dict[Any, set[int]] = {}
        for one in found:
            assert one.envelope.key == str(int(one.message["name"][1:]) % 5)
            shards.setdefault(one.envelope.key, set()).add(one.shard)
        assert all(len(many) == 1 for many in shards.values())

    def test_a_stored_queue_keeps_its_settings(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        new_app(embedded_url).queue("q", dict, shards=2, durability="none", codec="json").open()
        assert totals(publish(numbers(spark, 20), embedded_url, "q")) == (20, 0)
        record = new_app(embedded_url).store.queues.get("q")
        assert record is not None
        assert (record.shards, record.durability) == (2, "none")

    def test_applications_do_not_meet(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        publish(numbers(spark, 5), embedded_url, "q", client_id="billing", farm_id="east").collect()
        assert new_app(embedded_url).store.queues.get("q") is None
        assert new_app(embedded_url, client_id="billing", farm_id="east").queue("q").main.pending() == 5

    def test_more_rows_than_a_transaction_takes(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        receipts = publish(numbers(spark, 1_000, 1), embedded_url, "q", batch_rows=64).collect()
        assert sum(row["count"] for row in receipts) == 1_000
        assert len(receipts) == 16
        assert max(row["count"] for row in receipts) <= 64
        assert new_app(embedded_url).queue("q").main.pending() == 1_000

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"key": "nothing"}, ConfigError, "nothing"),
            ({"value": "name", "columns": ["id"]}, ConfigError, "not both"),
            ({"columns": []}, ConfigError, "empty"),
            ({"unknown": 1}, ConfigError, "unknown"),
            ({"batch_rows": 0}, ConfigError, "spark.batch_rows"),
            ({"shards": 0}, ConfigError, "queue.shards"),
            ({"codec": "xml"}, ConfigError, "codec"),
            ({"codec": "raw"}, ConfigError, "value column"),
        ],
    )
    def test_refusals_at_once(
        self, spark: Any, embedded_url: str, options: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            publish(numbers(spark, 1), embedded_url, "q", **options)

    def test_a_store_in_memory_is_refused(self, spark: Any) -> None:
        with pytest.raises(ConfigError, match="other processes"):
            publish(numbers(spark, 1), "memory://shared", "q")

    def test_a_row_without_a_value_fails_the_action(self, spark: Any, embedded_url: str) -> None:
        df = spark.createDataFrame([("a",), (None,)], "text string").coalesce(1)
        with pytest.raises(Exception, match="without a value"):
            publish(df, embedded_url, "q", value="text").collect()

    def test_a_row_that_is_too_large_fails_the_action(self, spark: Any, embedded_url: str) -> None:
        with pytest.raises(Exception, match="max_message_bytes"):
            publish(numbers(spark, 1), embedded_url, "q", max_message_bytes=4).collect()


class TestIds:
    def test_every_action_publishes_once(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        receipts = publish(numbers(spark, 200), embedded_url, "q", id="id")
        assert totals(receipts) == (200, 0)
        assert totals(receipts) == (0, 200)
        assert totals(publish(numbers(spark, 300, 7), embedded_url, "q", id="id")) == (100, 200)
        assert new_app(embedded_url).queue("q").main.pending() == 300

    def test_without_ids_every_action_publishes(self, spark: Any, embedded_url: str) -> None:
        receipts = publish(numbers(spark, 20), embedded_url, "q")
        assert totals(receipts) == (20, 0)
        assert totals(receipts) == (20, 0)

    @pytest.mark.parametrize("kind", ["text", "uuid", "bytes", "columns", "timestamp"])
    def test_ids_of_every_kind(self, spark: Any, embedded_url: str, kind: str) -> None:
        names = [str(uuid.UUID(int=number)) for number in range(50)]
        df = spark.createDataFrame([(name, number) for number, name in enumerate(names)], "uuid string, number int")
        id: Any = {
            "text": F.concat(F.lit("row "), F.col("number")),
            "uuid": "uuid",
            "bytes": F.unhex(F.md5("uuid")),
            "columns": ["uuid", "number"],
            "timestamp": F.timestamp_seconds("number"),
        }[kind]
        assert totals(publish(df, embedded_url, "q", id=id)) == (50, 0)
        assert totals(publish(df.repartition(5), embedded_url, "q", id=id)) == (0, 50)
        assert totals(publish(df.unionByName(df), embedded_url, "other", id=id)) == (50, 50)
        if kind == "uuid":
            assert {row._id for row in drain(spark, embedded_url, "q").df.collect()} == set(names)

    def test_whole_numbers_are_the_ids(self, spark: Any, embedded_url: str) -> None:
        numbers = [0, 1, 255, 1 << 40, (1 << 63) - 1, -1, -(1 << 63)]
        df = spark.createDataFrame([(number,) for number in numbers], "number long")
        assert totals(publish(df, embedded_url, "q", id="number")) == (7, 0)
        found = {uuid.UUID(row._id).bytes for row in drain(spark, embedded_url, "q").df.collect()}
        assert found == {(number % (1 << 64)).to_bytes(16, "big") for number in numbers}
        small = df.where("number between 0 and 255").select(F.col("number").cast("short").alias("n"))
        assert totals(publish(small, embedded_url, "q", id="n")) == (0, 3)

    def test_text_goes_through_as_it_is(self, spark: Any, embedded_url: str) -> None:
        texts = ["", "ü", '\U0001f600 \\ "', "x" * 70_000]
        df = spark.createDataFrame([(text, text[:9]) for text in texts], "value string, key string")
        assert totals(publish(df, embedded_url, "q", value="value", key="key")) == (4, 0)
        rows = drain(spark, embedded_url, "q").df.collect()
        assert {(bytes(row.body), row._key and bytes(row._key)) for row in rows} == {
            (text.encode(), text[:9].encode() or None) for text in texts
        }
        assert {row._meta for row in rows} == {None}

    def test_a_row_without_an_id_fails_the_action(self, spark: Any, embedded_url: str) -> None:
        df = spark.createDataFrame([("a",), (None,)], "text string")
        with pytest.raises(Exception, match="id is null"):
            publish(df, embedded_url, "q", id="text").collect()


class TestDrain:
    def test_body_and_envelope(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        queue = new_app(embedded_url).queue("q", str)
        where = queue.publish("hello", key="k", headers={"trace": 7})
        drained = drain(spark, embedded_url, "q")
        (row,) = drained.df.collect()
        assert (bytes(row.body), bytes(row._key)) == (b"hello", b"k")
        assert row._id == where.id
        assert (row._shard, row._pointer, row._failures, row._crashes) == (where.shard, where.pointer, 0, 0)
        assert b"trace" in bytes(row._meta)
        assert drained.claimed == 1
        assert drained.commit() == Committed(1, 0)

    def test_parsed_columns(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        new_app(embedded_url).queue("q", codec="raw", type=str).publish_many(
            ['{"id": 1, "name": "a"}', "{", '{"id": "x"}']
        )
        schema = "id long, name string, _corrupt_record string"
        rows = drain(spark, embedded_url, "q", schema=schema).df.orderBy("_pointer", "_shard").collect()
        found = Counter((row.id, row.name, row._corrupt_record) for row in rows)
        assert found == Counter([(1, "a", None), (None, None, "{"), (None, None, '{"id": "x"}')])
        assert rows[0].asDict().keys() >= {"_id", "_key", "_enqueued_at", "_shard"}
        assert "body" not in rows[0].asDict()

    def test_every_action_sees_the_same(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        publish(numbers(spark, 500), embedded_url, "q").collect()
        drained = drain(spark, embedded_url, "q", partition_rows=60)
        first = bodies(drained.df)
        publish(numbers(spark, 10), embedded_url, "q").collect()
        assert drained.df.count() == 500
        assert bodies(drained.df) == first
        assert drained.df.rdd.getNumPartitions() == 9
        assert drained.commit() == drained.commit() == Committed(500, 0)
        assert new_app(embedded_url).queue("q").main.pending() == 10

    def test_limit(self, spark: Any, embedded_url: str) -> None:
        publish(numbers(spark, 50), embedded_url, "q").collect()
        drained = drain(spark, embedded_url, "q", limit=20)
        assert drained.claimed == drained.df.count() == 20
        drained.commit()
        assert drain(spark, embedded_url, "q").claimed == 30

    def test_what_is_claimed_is_nobody_elses(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        publish(numbers(spark, 50), embedded_url, "q").collect()
        queue = new_app(embedded_url).queue("q")
        others = queue.main.fire(10)
        drained = drain(spark, embedded_url, "q")
        assert drained.claimed == 40
        assert queue.main.fire(10) == []
        assert {one.message["id"] for one in others}.isdisjoint(json.loads(body)["id"] for body in bodies(drained.df))

    def test_leaving_without_a_commit_gives_back(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        publish(numbers(spark, 30), embedded_url, "q").collect()
        queue = new_app(embedded_url).queue("q")
        with drain(spark, embedded_url, "q") as drained:
            assert queue.main.pending() == 0
        assert queue.main.pending() == 30
        assert drained.abandon() == 0
        with pytest.raises(ClosedError, match="given back"):
            drained.commit()
        with drain(spark, embedded_url, "q") as drained:
            drained.commit()
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)
        with pytest.raises(ClosedError, match="committed"):
            drained.abandon()

    def test_resume_goes_on(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        publish(numbers(spark, 40), embedded_url, "q").collect()
        first = drain(spark, embedded_url, "q", limit=25, job="nightly")
        first.close()
        second = resume(spark, embedded_url, "q", "nightly")
        assert second.claimed == 25
        assert bodies(second.df) == bodies(first.df)
        # Under the same name: what is claimed already counts towards the limit.
        third = drain(spark, embedded_url, "q", limit=30, job="nightly")
        assert third.claimed == 30
        assert third.commit() == Committed(30, 0)
        assert second.commit() == Committed(0, 25), "another has committed them"
        assert resume(spark, embedded_url, "q", "nightly").claimed == 0
        assert new_app(embedded_url).queue("q").main.pending() == 10

    def test_a_queue_that_was_made_anew_keeps_its_messages(
        self, spark: Any, embedded_url: str, new_app: MakeApp
    ) -> None:
        app = new_app(embedded_url)
        app.queue("q", str, shards=1).publish_many(["a"] * 10)
        held, given = drain(spark, embedded_url, "q", limit=5), drain(spark, embedded_url, "q")
        app.store.magazines.drop("q")
        app.store.magazines.declare("q", 1)
        app.store.magazines.load_records("q", 0, [encode_record(b"b")] * 10)
        for call in (held.commit, given.abandon):
            with pytest.raises(QueueMismatchError, match=r"made anew.*Nothing was deleted"):
                call()
        assert sum(state.pending for state in app.store.magazines.metadata("q")) == 10

    def test_the_sweeper_leaves_a_job_its_time(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        publish(numbers(spark, 8), embedded_url, "q").collect()
        drained = drain(spark, embedded_url, "q")
        drained.close()
        now = [time.time()]
        app = new_app(embedded_url, clock=lambda: now[0])
        assert app.sweeper().run_once().swept == 0, "the driver may be dead: another may go on with the job"
        now[0] += app.queue("q").settings.stuck_after_s + 1
        assert app.sweeper().run_once().swept == 8
        assert {message.reason for message in sidelined(app.queue("q"))} == {"abandoned"}
        assert drained.df.count() == 0
        with pytest.raises(ClosedError):
            drained.commit()
        assert resume(spark, embedded_url, "q", drained.job).claimed == 0

    def test_a_damaged_message_is_put_aside(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        app = new_app(embedded_url)
        app.queue("q", str, shards=1).publish_many([f"m{number}" for number in range(10)])
        app.close()
        path = Path(embedded_url.removeprefix("embedded://"))
        segment = newest_segment(path / "sync")
        content = bytearray(segment.read_bytes())
        content[content.rindex(b"m9")] ^= 0x10
        segment.write_bytes(content)
        with drain(spark, embedded_url, "q") as drained:
            assert bodies(drained.df) == [f"m{number}" for number in range(9)]
            assert drained.df.count() == 9, "another action finds it gone"
            assert drained.commit() == Committed(9, 1)
        queue = new_app(embedded_url).queue("q", str)
        assert [message.reason for message in sidelined(queue)] == ["corrupt"]
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)

    def test_an_empty_queue(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        new_app(embedded_url).queue("q").open()
        with drain(spark, embedded_url, "q", schema="id long") as drained:
            assert drained.df.collect() == []
            assert drained.df.columns[0] == "id"
            assert drained.commit() == Committed(0, 0)

    def test_large_and_small_messages(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        queue = new_app(embedded_url).queue("q", bytes)
        sent = [bytes([number % 251]) * (number * 37 % 60_000) for number in range(400)]
        queue.publish_many(sent)
        drained = drain(spark, embedded_url, "q", read_bytes=65_536)
        assert sorted(bytes(row.body) for row in drained.df.select("body").collect()) == sorted(sent)

    def test_refusals(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        new_app(embedded_url).queue("q").open()
        with pytest.raises(QueueNotFoundError, match="missing"):
            drain(spark, embedded_url, "missing")
        with pytest.raises(ConfigError, match="limit"):
            drain(spark, embedded_url, "q", limit=0)
        with pytest.raises(ConfigError, match="shards"):
            drain(spark, embedded_url, "q", shards=3)
        with pytest.raises(InvalidNameError, match="job"):
            drain(spark, embedded_url, "q", job="a b")


@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize("most", [7, 100, 10_000])
def test_cut_runs(parts: int, most: int) -> None:
    runs = [Run(0, 1, 100, 100), Run(0, 200, 300, 40), Run(3, 5, 5, 1), Run(7, 1, 1_000, 999)]
    cut = cut_runs(runs, most, parts)
    assert len(cut) >= parts
    covered = [(run.shard, pointer) for part in cut for run in part for pointer in range(run.first, run.last + 1)]
    assert len(covered) == len(set(covered))
    assert set(covered) == {(run.shard, pointer) for run in runs for pointer in range(run.first, run.last + 1)}
    assert max(sum(run.messages for run in part) for part in cut) <= max(most, 1)
    assert cut_runs([], most, parts) == []


@pytest.mark.parametrize("size", [1, 7, 30, 1_000])
def test_pieces(size: int) -> None:
    runs = [Run(0, 1, 10, 10), Run(0, 21, 25, 5), Run(3, 5, 5, 1), Run(4, 1, 60, 60)]
    cut = list(pieces(runs, size))
    assert all(sum(map(len, piece.values())) <= size for piece in cut)
    assert [(shard, pointer) for piece in cut for shard, part in piece.items() for pointer in part] == [
        (run.shard, pointer) for run in runs for pointer in range(run.first, run.last + 1)
    ]
    if size == 1_000:  # a transaction each, and two for what one shard has in two runs
        assert [sorted(piece) for piece in cut] == [[0], [0, 3, 4]]
    assert list(pieces([], size)) == []
