"""Reading with ``format("ignis")``: batches that look, batches that claim, and streams."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import ConfigError, QueueMismatchError
from ignis.native import encode_record
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # noqa: E402

from ignis.spark import IgnisDataSource, finish, resume  # noqa: E402
from ignis.spark.offsets import new_offset  # noqa: E402
from ignis.spark.source import IgnisStreamReader  # noqa: E402
from ignis.storage import open_store  # noqa: E402
from tests.support.embedded import power_cut  # noqa: E402


@pytest.fixture(autouse=True)
def _registered(spark: Any) -> None:
    spark.dataSource.register(IgnisDataSource)


def fill(app: Any, count: int, first: int = 0, queue: str = "q") -> Any:
    made = app.queue(queue, str, shards=4)
    made.publish_many([f"m{number}" for number in range(first, first + count)], keys=[str(n) for n in range(count)])
    return made


def read(spark: Any, url: str, **options: Any) -> Any:
    return spark.read.format("ignis").options(url=url, queue="q", **options).load()


def texts(df: Any) -> list[str]:
    return sorted(bytes(row.body).decode() for row in df.select("body").collect())


class TestBatch:
    def test_a_look_changes_nothing(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        queue = fill(new_app(embedded_url), 100)
        df = read(spark, embedded_url)
        assert texts(df) == sorted(f"m{number}" for number in range(100))
        assert df.columns == [
            "body", "_id", "_key", "_enqueued_at", "_failures", "_crashes", "_meta", "_shard", "_pointer",
        ]  # fmt: skip
        assert (queue.main.pending(), queue.main.in_flight()) == (100, 0)

    def test_only_what_is_pending(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        queue = fill(new_app(embedded_url), 30)
        gone = {one.message for one in queue.main.fire(10)}
        assert set(texts(read(spark, embedded_url))) == {f"m{number}" for number in range(30)} - gone
        assert read(spark, embedded_url, limit=7).count() == 7

    def test_an_empty_queue(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        fill(new_app(embedded_url), 0)
        assert read(spark, embedded_url).collect() == []

    def test_a_job_claims_and_is_resumed(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        queue = fill(new_app(embedded_url), 50)
        df = read(spark, embedded_url, job="nightly", limit=20)
        first = texts(df)
        assert len(first) == 20
        assert texts(df.filter("true")) == first, "planned again"
        assert (queue.main.pending(), queue.main.in_flight()) == (30, 20)
        assert resume(spark, embedded_url, "q", "nightly").commit() == (20, 0, 0)
        assert (queue.main.pending(), queue.main.in_flight()) == (30, 0)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"queue": "missing"}, "missing"),
            pytest.param({"limit": "none"}, "limit", marks=pytest.mark.long),
            ({"unknown": "1"}, "unknown option"),
            pytest.param({"url": "memory://x"}, "other processes", marks=pytest.mark.long),
            pytest.param({"job": "a b"}, "job", marks=pytest.mark.long),
        ],
    )
    def test_refusals(
        self, spark: Any, embedded_url: str, new_app: MakeApp, options: dict[str, str], words: str
    ) -> None:
        fill(new_app(embedded_url), 1)
        with pytest.raises(Exception, match=words):
            spark.read.format("ignis").options(**{"url": embedded_url, "queue": "q", **options}).load().collect()

    def test_another_schema_is_refused(self, spark: Any, embedded_url: str, new_app: MakeApp) -> None:
        fill(new_app(embedded_url), 1)
        with pytest.raises(Exception, match="leave schema"):
            spark.read.format("ignis").options(url=embedded_url, queue="q").schema("id long").load().collect()


class Sink:
    """What a query's batches held: ``foreachBatch`` writes it down, and may fail or hold."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[str]]] = []
        self.fails_at: int | None = None
        self.entered = threading.Event()

    def __call__(self, df: Any, number: int) -> None:
        self.batches.append((number, texts(df)))
        self.entered.set()
        if number == self.fails_at:
            raise RuntimeError("planted")

    def all(self) -> list[str]:
        return sorted(text for _, batch in self.batches for text in batch)


class TestStream:
    def run(self, spark: Any, url: str, checkpoint: Path, sink: Sink, **options: Any) -> Any:
        """Reads what there is, and stops."""
        place = {"url": url, "queue": "q", "job": "stream", **options}
        stream = spark.readStream.format("ignis").options(**place).load()
        query = (
            stream.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(2 * WAIT_S)
        finally:
            query.stop()
        return query

    def test_all_rows_in_admitted_pieces(self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path) -> None:
        queue, sink = fill(new_app(embedded_url), 100), Sink()
        self.run(spark, embedded_url, tmp_path / "checkpoint", sink, max_rows=40)
        assert sink.all() == sorted(f"m{number}" for number in range(100))
        assert [len(batch) for _, batch in sink.batches] == [40, 40, 20]
        # The last batch as well: a stream that ends leaves nothing for the sweeper to bring back.
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)

    @pytest.mark.long
    def test_a_stream_goes_on_from_its_checkpoint(
        self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path
    ) -> None:
        queue, sink = fill(new_app(embedded_url), 10), Sink()
        self.run(spark, embedded_url, tmp_path / "checkpoint", sink)
        fill(new_app(embedded_url), 5, first=200)
        self.run(spark, embedded_url, tmp_path / "checkpoint", sink)
        assert len(sink.all()) == 15
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)

    def test_the_checkpoint_of_another_queue_is_refused(
        self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path
    ) -> None:
        fill(new_app(embedded_url), 60)
        other = fill(new_app(embedded_url), 60, first=100, queue="other")
        self.run(spark, embedded_url, tmp_path / "checkpoint", Sink())
        sink = Sink()
        with pytest.raises(Exception, match=r"checkpoint is of queue 'q'.*new checkpointLocation"):
            self.run(spark, embedded_url, tmp_path / "checkpoint", sink, queue="other")
        assert sink.batches == []
        assert other.main.pending() + other.main.in_flight() == 60, "nothing that nobody has read was deleted"

    @pytest.mark.long
    def test_a_checkpoint_that_outlives_the_store_is_refused(
        self, spark: Any, tmp_path: Path, new_app: MakeApp
    ) -> None:
        old, new = f"embedded://{tmp_path}/old", f"embedded://{tmp_path}/new"
        fill(new_app(old), 60)
        self.run(spark, old, tmp_path / "checkpoint", Sink())
        queue, sink = fill(new_app(new), 30), Sink()
        with pytest.raises(Exception, match=r"made anew.*Nothing was deleted.*new checkpointLocation"):
            self.run(spark, new, tmp_path / "checkpoint", sink)
        assert sink.batches == []
        assert queue.main.pending() + queue.main.in_flight() == 30

    @pytest.mark.long
    def test_a_batch_that_failed_is_read_again(
        self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path
    ) -> None:
        queue, sink = fill(new_app(embedded_url), 60), Sink()
        sink.fails_at = 1
        with pytest.raises(Exception, match="planted"):
            self.run(spark, embedded_url, tmp_path / "checkpoint", sink, max_rows=25)
        fill(new_app(embedded_url), 10, first=100)
        sink.fails_at = None
        self.run(spark, embedded_url, tmp_path / "checkpoint", sink, max_rows=25)
        again = [batch for number, batch in sink.batches if number == 1]
        assert len(again) == 2
        assert again[0] == again[1]
        assert set(sink.all()) == {f"m{number}" for number in [*range(60), *range(100, 110)]}
        assert len(sink.all()) == 70 + 25
        assert queue.main.pending() == 0


class TestFinish:
    """A stream that ends, and is never started again."""

    def start(self, spark: Any, url: str, checkpoint: Path, sink: Sink, **options: Any) -> Any:
        """One batch at once, the next one in a time that no test lasts."""
        place = {"url": url, "queue": "q", "job": "stream", **options}
        stream = spark.readStream.format("ignis").options(**place).load()
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        return writer.trigger(processingTime="10 hours").start()

    def test_every_message_once(self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path) -> None:
        queue, sink, checkpoint = fill(new_app(embedded_url), 600), Sink(), tmp_path / "check[po]int"
        for batch in range(2):
            query = self.start(spark, embedded_url, checkpoint, sink, max_rows=300)
            eventually((checkpoint / "commits" / str(batch)).exists, timeout=2 * WAIT_S)
            query.stop()
            assert queue.main.in_flight() == 300, "the batch is in the sink and in the queue"
        assert finish(spark, embedded_url, "q", "stream", str(checkpoint)) == (300, 0)
        assert finish(spark, embedded_url, "q", "stream", str(checkpoint)) == (0, 0)
        later = time.time() + 10 * queue.settings.stuck_after_s
        sweeping = new_app(embedded_url, clock=lambda: later)
        sweeping.queue("q", str, shards=4)
        assert sweeping.sweeper().run_once().swept == 0
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)
        assert Counter(sink.all()) == Counter(f"m{number}" for number in range(600))

    @pytest.mark.long
    def test_a_batch_that_was_not_committed_stays(
        self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path
    ) -> None:
        queue, sink = fill(new_app(embedded_url), 20), Sink()
        sink.fails_at = 0
        query = self.start(spark, embedded_url, tmp_path / "checkpoint", sink)
        with pytest.raises(Exception, match="planted"):
            query.awaitTermination(2 * WAIT_S)
        assert finish(spark, embedded_url, "q", "stream", str(tmp_path / "checkpoint")) == (0, 20)
        assert resume(spark, embedded_url, "q", "stream").abandon() == 20
        assert queue.main.pending() == 20

    def test_refusals(self, spark: Any, embedded_url: str, new_app: MakeApp, tmp_path: Path) -> None:
        app = new_app(embedded_url)
        queue, sink, checkpoint = fill(app, 20), Sink(), str(tmp_path / "checkpoint")
        fill(app, 5, queue="other")
        query = self.start(spark, embedded_url, tmp_path / "checkpoint", sink)
        eventually((tmp_path / "checkpoint" / "commits" / "0").exists, timeout=2 * WAIT_S)
        query.stop()
        (tmp_path / "empty").mkdir()
        with pytest.raises(ConfigError, match="not the checkpointLocation"):
            finish(spark, embedded_url, "q", "stream", str(tmp_path / "empty"))
        for name, job in (("other", "stream"), ("q", "another")):
            with pytest.raises(QueueMismatchError, match="is of job 'stream' of queue 'q'"):
                finish(spark, embedded_url, name, job, checkpoint)
        app.store.magazines.drop("q")
        app.store.magazines.declare("q", 4)
        app.store.magazines.load_records("q", 0, [encode_record(b"x")] * 20)
        with pytest.raises(QueueMismatchError, match="made anew"):
            finish(spark, embedded_url, "q", "stream", checkpoint)
        assert queue.main.pending() == 20


class TestOffsets:
    """The reader that Spark's driver asks, asked here."""

    def reader(self, url: str, **options: str) -> IgnisStreamReader:
        return IgnisStreamReader({"url": url, "queue": "q", "job": "stream", **options})

    def rows(self, reader: IgnisStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        found = [
            body.decode()
            for part in reader.partitions(start, end)
            for batch in reader.read(part)
            for body in batch.column("body").to_pylist()
        ]
        return sorted(found)

    def test_steps(self, embedded_url: str, new_app: MakeApp) -> None:
        queue = fill(new_app(embedded_url), 50)
        reader = self.reader(embedded_url)
        start = reader.initialOffset()
        one = reader.latestOffset(start, ReadMaxRows(30))
        first = self.rows(reader, start, one)
        assert first == self.rows(reader, start, one), "a batch that is planned again reads the same"
        assert len(first) == 30
        two = reader.latestOffset(one, ReadAllAvailable())
        assert sorted(first + self.rows(reader, one, two)) == sorted(f"m{n}" for n in range(50))
        assert queue.main.in_flight() == 20, "what lies before an offset that Spark goes on from is in the checkpoint"
        reader.commit(one)
        assert queue.main.in_flight() == 20
        assert reader.latestOffset(two, ReadMaxRows(30)) == two
        assert reader.partitions(two, two) == []
        reader.commit(two)
        reader.commit(two)
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)
        reader.stop()

    def test_what_was_claimed_and_never_planned_comes_first(self, embedded_url: str, new_app: MakeApp) -> None:
        fill(new_app(embedded_url), 50)
        first = self.reader(embedded_url)
        lost = first.latestOffset(first.initialOffset(), ReadMaxRows(20))
        again = self.reader(embedded_url)
        end = again.latestOffset(again.initialOffset(), ReadMaxRows(20))
        assert end == lost
        assert self.rows(again, again.initialOffset(), end) == self.rows(first, first.initialOffset(), lost)

    def test_what_others_have_claimed_is_not_read(self, embedded_url: str, new_app: MakeApp) -> None:
        queue = fill(new_app(embedded_url), 40)
        reader = self.reader(embedded_url)
        one = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
        others = {fired.message for fired in queue.main.fire(10)}
        mine = self.rows(reader, reader.initialOffset(), one)
        two = reader.latestOffset(one, ReadAllAvailable())
        mine += self.rows(reader, one, two)
        assert len(mine) == 30
        assert others.isdisjoint(mine)
        reader.commit(two)
        assert queue.main.in_flight() == 10, "what others have claimed is theirs to finish"

    def test_after_a_power_cut_undid_the_claims(self, embedded_url: str, new_app: MakeApp, tmp_path: Path) -> None:
        app = new_app(embedded_url + SELDOM)
        fill(app, 40)
        reader = self.reader(embedded_url + SELDOM)
        one = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
        two = reader.latestOffset(one, ReadMaxRows(10))
        planned = self.rows(reader, one, two)
        # The rows up to `one` were processed and not committed.
        url = cut_claims(app, tmp_path / "cut")
        queue = new_app(url).queue("q", str)
        again = self.reader(url)
        assert self.rows(again, one, two) == planned
        three = again.latestOffset(two, ReadMaxRows(100))
        assert len(self.rows(again, two, three)) == 10
        again.commit(three)
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)

    @pytest.mark.parametrize("durability", ["sync", "interval"])
    @pytest.mark.parametrize("killed", [False, True])
    def test_a_power_cut_does_not_make_others_messages_ours(
        self, embedded_url: str, new_app: MakeApp, tmp_path: Path, durability: str, killed: bool
    ) -> None:
        """What another consumer had claimed lies before the end of what was read, and nobody has processed it."""
        app = new_app(embedded_url + SELDOM)
        queue = app.queue("q", str, shards=1, durability=durability)
        queue.publish_many([f"m{number}" for number in range(40)])
        app.store.directory.log(durability).flush()
        reader = self.reader(embedded_url + SELDOM)
        one = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
        mine = set(self.rows(reader, reader.initialOffset(), one))
        reader.commit(one)  # flushed; no claim is from here on
        others = {fired.message for fired in queue.main.fire(10)}
        two = reader.latestOffset(one, ReadMaxRows(10))
        mine |= set(self.rows(reader, one, two))
        assert len(mine) == 20
        url = cut_claims(app, tmp_path / "cut")
        queue = new_app(url).queue("q", str)
        if killed:  # after it had claimed anew, and before it had looked at what that was
            queue.main.store.claim("q", 5, "spark:stream")
        after = self.reader(url)
        assert set(self.rows(after, one, two)) <= mine, "a batch that is planned again is that batch"
        left, at = [], two
        while (end := after.latestOffset(at, ReadMaxRows(7))) != at:
            left += self.rows(after, at, end)
            at = end
        assert others | {f"m{number}" for number in range(30, 40)} <= set(left), (
            "nothing is deleted that nobody has read"
        )
        assert len(left) == len(set(left))
        if durability == "sync":
            assert mine.isdisjoint(left)
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)

    def test_the_store_is_asked_for_its_pointers_once_a_batch(
        self, embedded_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(new_app(embedded_url), 30)
        reader = self.reader(embedded_url)
        start = reader.initialOffset()
        asked = []
        kind = type(reader._place.open().magazines)
        metadata = kind.metadata
        monkeypatch.setattr(kind, "metadata", lambda store, *args: asked.append(args) or metadata(store, *args))
        one = reader.latestOffset(start, ReadMaxRows(10))
        assert len(asked) == 1
        reader.latestOffset(one, ReadAllAvailable())
        assert len(asked) == 2

    def test_another_job_is_refused(self, embedded_url: str, new_app: MakeApp) -> None:
        """What the old name has claimed would come again from the sweeper, processed or not."""
        fill(new_app(embedded_url), 10)
        reader = self.reader(embedded_url)
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
        with pytest.raises(QueueMismatchError, match="name job 'stream' again"):
            self.reader(embedded_url, job="renamed").latestOffset(end, ReadMaxRows(5))

    def test_shards_that_are_added_are_read(self, embedded_url: str, new_app: MakeApp) -> None:
        fill(new_app(embedded_url), 20)
        reader = self.reader(embedded_url)
        one = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
        more = new_app(embedded_url)
        more.queue("q", str, shards=6).publish_many([f"n{number}" for number in range(50)])
        again = self.reader(embedded_url)
        two = again.latestOffset(one, ReadMaxRows(100))
        assert len(self.rows(again, one, two)) == 50
        assert set(two["incarnations"]) == {str(shard) for shard in range(6)}

    def test_an_offset_of_an_earlier_life_of_the_queue_retires_nothing(
        self, embedded_url: str, new_app: MakeApp
    ) -> None:
        app = new_app(embedded_url)
        fill(app, 20)
        reader = self.reader(embedded_url)
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
        app.store.magazines.drop("q")
        app.store.magazines.declare("q", 4)
        app.store.magazines.load_records("q", 0, [encode_record(b"x")] * 20)
        again = self.reader(embedded_url)
        again.latestOffset(again.initialOffset(), ReadMaxRows(20))  # claims in the same name
        for call in (
            lambda: again.commit(end),
            lambda: again.latestOffset(end, ReadMaxRows(1)),
            lambda: again.partitions(end, end),
        ):
            with pytest.raises(QueueMismatchError, match="made anew"):
                call()
        assert sum(state.pending + state.in_flight for state in app.store.magazines.metadata("q")) == 20

    @pytest.mark.parametrize("offset", [{}, {"0": 12, "1": 7}, {"pointers": {"0": 1}}])
    def test_an_offset_that_names_no_queue_is_refused(
        self, embedded_url: str, new_app: MakeApp, offset: dict[str, Any]
    ) -> None:
        fill(new_app(embedded_url), 10)
        with pytest.raises(QueueMismatchError, match="does not say which queue"):
            self.reader(embedded_url).latestOffset(offset, ReadMaxRows(1))

    def test_offsets_hold_no_secret(self) -> None:
        shown = json.dumps(new_offset("ignis://ann:secret@host:9710/?token=secret", "q", "j", {}))
        assert "host:9710" in shown
        assert "secret" not in shown

    @pytest.mark.parametrize(("durability", "again"), [("sync", 0), ("interval", 20)])
    def test_what_a_power_cut_may_have_renumbered_is_read_again(
        self, embedded_url: str, new_app: MakeApp, tmp_path: Path, durability: str, again: int
    ) -> None:
        app = new_app(embedded_url + SELDOM)
        queue = app.queue("q", str, shards=4, durability=durability)
        queue.publish_many([f"m{number}" for number in range(20)])
        app.store.directory.log(durability).flush()
        reader = self.reader(embedded_url + SELDOM)
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
        after = self.reader(cut_claims(app, tmp_path / "cut"))
        last = after.latestOffset(end, ReadMaxRows(100))
        assert len(self.rows(after, end, last)) == again

    def test_available_now_ends_where_it_began(self, embedded_url: str, new_app: MakeApp) -> None:
        app = new_app(embedded_url)
        fill(app, 30)
        reader = self.reader(embedded_url)
        reader.prepareForTriggerAvailableNow()
        fill(app, 30, first=100)
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
        rows = self.rows(reader, reader.initialOffset(), end)
        last = reader.latestOffset(end, ReadMaxRows(20))
        assert sorted(rows + self.rows(reader, end, last)) == sorted(f"m{number}" for number in range(30))
        assert reader.latestOffset(last, ReadMaxRows(20)) == last

    def test_offsets_are_json(self, embedded_url: str, new_app: MakeApp) -> None:
        fill(new_app(embedded_url), 10)
        reader = self.reader(embedded_url)
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert json.loads(json.dumps(end)) == end

    def test_a_job_is_wanted(self, embedded_url: str, new_app: MakeApp) -> None:
        fill(new_app(embedded_url), 1)
        with pytest.raises(ConfigError, match="job"):
            IgnisStreamReader({"url": embedded_url, "queue": "q"})


SELDOM = "?sync_interval_ms=3600000"
"""What is not flushed by hand goes with the power."""


def cut_claims(app: Any, path: Path) -> str:
    """The address of the store after a power cut that undid all claims of what is there, and no message."""
    url = f"embedded://{power_cut(app.store, path)}{SELDOM}"
    with open_store(url) as store:
        assert sum(one.in_flight for one in store.magazines.metadata("q")) == 0
    return url
