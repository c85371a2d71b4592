"""The data pipeline on a real Spark: what is read, what is put aside, what is published, what lands in Parquet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis, Message, Queue
from ignis.cli import main
from ignis.errors import ConfigError, LockHeldError, QueueMismatchError, QueueNotFoundError, TooManyRejectedError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.spark.pipeline import Description, Progress, Step, Target, export, ingest, parse_description
from ignis.spark.pipeline.runs import Run, Runs

pytestmark = pytest.mark.integration

SCHEMA: dict[str, Any] = {
    "order": {"required": True, "pattern": "o[0-9]+"},
    "total": {"type": "decimal", "precision": 12, "scale": 2, "min": 0},
    "n": {"type": "integer", "min": 1, "max": 10},
    "when": {"type": "timestamp", "min": "2020-01-01"},
    "day": {"type": "date", "format": "dd.MM.yyyy"},
    "kind": {"values": ["a", "b"]},
    "extra": {"type": "json"},
}
LINES = [
    '{"order":"o1","total":1.10,"n":3,"when":"2024-01-01T10:00:00Z","day":"03.02.2024","kind":"a","extra":{"x":[1,null]}}',
    '{"order":"o1","total":12345678.25,"n":3,"when":"2024-01-02T10:00:00.123456Z","day":"03.02.2024","kind":"a"}',
    '{"order":"o2","total":"abc","n":30}',
    '{"order":"x2"}',
    '{"n":1}',
    '{"order":"o3"}{"order":"o4"}',
    '{"order":"o4","order":"o5"}',
    "[1]",
    "",
    '{"order":"o5","when":"2019-01-01"}',
    '{"order":"o7","kind":"c"}',
    '{"order":"o6","unknown":1}',
]


class Place:
    """A pipeline in a directory of its own."""

    def __init__(self, spark: Any, directory: Path, url: str, new_app: Callable[..., Ignis]) -> None:
        self.spark = spark
        self.directory = directory
        self.target = Target(url, "", "")
        self._new_app = new_app
        (directory / "in").mkdir()

    def write(self, name: str, *lines: str) -> None:
        (self.directory / "in" / name).write_text("".join(f"{line}\n" for line in lines))

    def describe(self, *, schema: dict[str, Any] | None = None, **parts: dict[str, Any]) -> Description:
        """``ingest`` and ``export`` are filled up with what a test does not care for."""
        data: dict[str, Any] = {"name": "orders", "queue": {"name": "orders", "settings": {"shards": 4}}}
        data["schema"] = SCHEMA if schema is None else schema
        data |= {name: part for name, part in parts.items() if name not in ("ingest", "export")}
        if "ingest" in parts:
            data["ingest"] = {"paths": ["in/*"], "format": "jsonl", **parts["ingest"]}
        if "export" in parts:
            data["export"] = {"path": "out", **parts["export"]}
        return parse_description(data, self.directory)

    def ingest(self, description: Description, **options: Any) -> Any:
        return ingest(self.spark, description, target=self.target, **options)

    def export(self, description: Description, **options: Any) -> Any:
        return export(self.spark, description, target=self.target, **options)

    def queue(self) -> Queue[Any]:
        return self._new_app(self.target.url).queue("orders")

    def messages(self) -> list[Message]:
        """What is pending."""
        app = self._new_app(self.target.url)
        try:
            return [one.envelope for one in app.queue("orders").main.peek(1_000_000)]
        finally:
            app.close()

    def bodies(self) -> list[Any]:
        return [json.loads(message.body) for message in self.messages()]

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """What is in the Parquet files."""
        found = self.spark.read.parquet(str(self.directory / "out"))
        return sorted((tuple(row) for row in found.select(*columns).collect()), key=str)

    def rejects(self, summary: Any) -> list[tuple[str, list[str], str]]:
        """(reason, problems, row) in the quarantine of a run."""
        found = self.spark.read.json(summary.quarantine)
        return sorted((row["reason"], list(row["problems"]), row["raw"]) for row in found.collect())


@pytest.fixture
def place(spark: Any, tmp_path: Path, embedded_url: str, new_app: Callable[..., Ignis]) -> Place:
    return Place(spark, tmp_path, embedded_url, new_app)


class CrashError(BaseException):
    """Nobody catches it, so what was going on is left as a death would leave it."""


class CrashAt(Progress):
    """Ends the run when a step begins, or when it has ended."""

    def __init__(self, step: str, when: str) -> None:
        self.step = step
        self.when = when

    def begin(self, step: Step) -> None:
        if (step.name, "begin") == (self.step, self.when):
            raise CrashError

    def end(self, step: Step) -> None:
        if (step.name, "end") == (self.step, self.when):
            raise CrashError


def numbered(count: int, start: int = 0) -> list[str]:
    return [json.dumps({"order": f"o{number}", "n": 1 + number % 10}) for number in range(start, start + count)]


# -- ingest


def test_rows_are_checked_put_aside_and_published(place: Place) -> None:
    place.write("a.jsonl", *LINES)
    description = place.describe(ingest={"key": ["kind"], "dedup": ["order"], "prefer": "when"})
    summary = place.ingest(description)
    assert summary.rejected == {"malformed": 3, "missing": 1, "type": 1, "range": 1, "pattern": 1, "value": 1}
    assert (summary.read, summary.accepted, summary.published, summary.duplicates, summary.known) == (11, 3, 2, 1, 0)
    assert (summary.files, summary.bytes) == (1, (place.directory / "in" / "a.jsonl").stat().st_size)
    assert place.rejects(summary) == [
        ("malformed", ["the row cannot be taken apart"], LINES[7]),
        ("malformed", ["the row cannot be taken apart"], LINES[5]),
        ("malformed", ["the row cannot be taken apart"], LINES[6]),
        ("missing", ["order: is missing"], LINES[4]),
        ("pattern", ["order: x2 does not match o[0-9]+"], LINES[3]),
        ("range", ["when: 2019-01-01 is below 2020-01-01"], LINES[9]),
        (
            "type",
            ["total: abc is not a decimal of 12 digits, 2 of them behind the point", "n: 30 is above 10"],
            LINES[2],
        ),
        ("value", ["kind: c is not one of a, b"], LINES[10]),
    ]
    found = {message.key: json.loads(message.body) for message in place.messages()}
    assert found == {
        "a": {
            "order": "o1",
            "total": 12345678.25,
            "n": 3,
            "when": "2024-01-02T10:00:00.123456Z",
            "day": "2024-02-03",
            "kind": "a",
            "extra": None,
        },
        None: dict.fromkeys(SCHEMA) | {"order": "o6"},
    }


def test_csv(place: Place) -> None:
    place.write("a.csv", "id;when;note", 'o1;01/02/2024;"a;""b"""', "o2;NA;", "o3;01/02/2024", "o4;soon;x", '"o5";;y')
    place.write("b.csv", "id;when;note", "o6;03/02/2024;z")
    schema = {
        "order": {"source": "id", "pattern": "o[0-9]"},
        "when": {"type": "date", "format": "dd/MM/yyyy"},
        "note": {"max_length": 5},
    }
    csv = {"delimiter": ";", "nulls": ["NA"]}
    summary = place.ingest(place.describe(schema=schema, ingest={"format": "csv", "csv": csv}))
    assert sorted(place.bodies(), key=str) == [
        {"order": "o1", "when": "2024-02-01", "note": 'a;"b"'},
        {"order": "o2", "when": None, "note": None},
        {"order": "o5", "when": None, "note": "y"},
        {"order": "o6", "when": "2024-02-03", "note": "z"},
    ]
    assert place.rejects(summary) == [
        ("malformed", ["the row cannot be taken apart"], "o3;01/02/2024"),
        ("type", ["when: soon is not a date like dd/MM/yyyy"], "o4;soon;x"),
    ]


def test_csv_whose_headers_differ_is_refused(place: Place) -> None:
    place.write("a.csv", "order,n", "o1,1")
    place.write("b.csv", "n,order", "2,o2")
    schema = {"order": {}, "n": {}}
    with pytest.raises(Exception, match=r"(?i)header"):
        place.ingest(place.describe(schema=schema, ingest={"format": "csv"}))
    assert place.messages() == []


def test_parquet_with_folders_as_columns(place: Place) -> None:
    rows = [("o1", 1, 2.5, "x"), ("o2", 99, 0.5, "x"), ("o3", 3, float("inf"), "y")]
    frame = place.spark.createDataFrame(rows, "order string, n int, weight double, region string")
    frame.write.partitionBy("region").parquet(str(place.directory / "in" / "p"))
    schema = {"order": {}, "n": {"type": "integer", "max": 10}, "weight": {"type": "number"}, "region": {}}
    summary = place.ingest(place.describe(schema=schema, ingest={"format": "parquet", "paths": ["in/p"]}))
    assert place.bodies() == [{"order": "o1", "n": 1, "weight": 2.5, "region": "x"}]
    assert summary.rejected == {"type": 1, "range": 1}
    raw = {json.loads(row)["order"]: json.loads(row)["n"] for _, _, row in place.rejects(summary)}
    assert raw == {"o2": 99, "o3": 3}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_the_files_lack(place: Place, kind: str) -> None:
    frame = place.spark.createDataFrame([("o1",)], "order string")
    getattr(frame.write.option("header", True), kind)(str(place.directory / "in" / "d"))
    with pytest.raises(ConfigError, match="no column 'n'; it has order"):
        place.ingest(place.describe(schema={"order": {}, "n": {}}, ingest={"format": kind}))


def test_a_file_is_read_once(place: Place) -> None:
    description = place.describe(ingest={"dedup": ["order"]})
    place.write("a.jsonl", *numbered(20))
    assert place.ingest(description).published == 20
    again = place.ingest(description)
    assert (again.run, again.read) == ("", 0)
    place.write("b [1]*{x}%41.jsonl", *numbered(10, 15))  # a name that is a pattern as well
    later = place.ingest(description)
    assert (later.files, later.read, later.published, later.known) == (1, 10, 5, 5)
    assert len(place.messages()) == 25


@pytest.mark.long
def test_files_are_read_again_where_that_is_asked_for(place: Place) -> None:
    description = place.describe(ingest={"dedup": ["order"]})
    place.write("a.jsonl", *numbered(20))
    assert place.ingest(description).published == 20
    place.write("b.jsonl", *numbered(10, 15))
    assert place.ingest(description).published == 5
    everything = place.ingest(description, everything=True)
    assert (everything.files, everything.read, everything.duplicates) == (2, 30, 5)
    assert (everything.published, everything.known) == (0, 25)
    assert len(place.messages()) == 25


def test_rows_that_are_the_same_are_all_published(place: Place) -> None:
    """Without dedup a row is a message, and running again still adds none of this run."""
    place.write("a.jsonl", *numbered(5), *numbered(5), *numbered(3))
    description = place.describe(ingest={})
    with pytest.raises(CrashError):
        place.ingest(description, progress=CrashAt("publish", "end"))
    assert len(place.messages()) == 13
    summary = place.ingest(description)
    assert (summary.resumed, summary.published, summary.known, summary.duplicates) == (True, 0, 13, 0)
    assert len(place.messages()) == len({message.id for message in place.messages()}) == 13
    # The same rows in another file are other messages.
    place.write("b.jsonl", *numbered(5))
    assert place.ingest(description).published == 5


def test_dedup_within_a_run_only(place: Place) -> None:
    description = place.describe(ingest={"dedup": ["order"], "scope": "run"})
    place.write("a.jsonl", *numbered(5), *numbered(5))
    assert place.ingest(description).published == 5
    place.write("b.jsonl", *numbered(5))
    assert place.ingest(description).published == 5


@pytest.mark.long
@pytest.mark.parametrize(("step", "when"), [("quarantine", "end"), ("publish", "end")])
def test_ingest_goes_on_after_a_crash(place: Place, step: str, when: str) -> None:
    place.write("a.jsonl", *numbered(50), "broken", *numbered(50))
    description = place.describe(ingest={"dedup": ["order"]})
    with pytest.raises(CrashError):
        place.ingest(description, run_id="r1", progress=CrashAt(step, when))
    place.write("b.jsonl", *numbered(10, 100))
    summary = place.ingest(description)
    assert (summary.run, summary.resumed, summary.files, summary.duplicates) == ("r1", True, 1, 50)
    assert summary.published + summary.known == 50
    assert summary.rejected == {"malformed": 1}
    assert len(place.rejects(summary)) == 1
    assert sorted(one["order"] for one in place.bodies()) == sorted(f"o{number}" for number in range(50))
    assert place.ingest(description).published == 10  # the file that came later
    repeated = place.ingest(description, run_id="r1")
    assert (repeated.repeated, repeated.published) == (True, summary.published)
    assert len(place.messages()) == 60


def test_an_unfinished_run_whose_files_changed(place: Place) -> None:
    place.write("a.jsonl", *numbered(5))
    description = place.describe(ingest={"dedup": ["order"]})
    with pytest.raises(CrashError):
        place.ingest(description, progress=CrashAt("publish", "end"))
    place.write("a.jsonl", *numbered(6))
    with pytest.raises(ConfigError, match=r"a\.jsonl.*--new-run"):
        place.ingest(description)
    summary = place.ingest(description, new_run=True)
    assert (summary.resumed, summary.published, summary.known) == (False, 1, 5)


def test_too_many_rejected(place: Place) -> None:
    place.write("a.jsonl", *numbered(8), "x", "y")
    with pytest.raises(TooManyRejectedError, match="2 of 10 rows") as caught:
        place.ingest(place.describe(ingest={"max_rejected": 0.19}))
    assert (caught.value.rejected, caught.value.rows, caught.value.limit) == (2, 10, 0.19)
    assert place.messages() == []
    assert list((place.directory / "quarantine").rglob("*.json")), "what is wrong can be looked at"


@pytest.mark.long
def test_as_many_rejected_as_are_allowed(place: Place) -> None:
    place.write("a.jsonl", *numbered(8), "x", "y")
    assert place.ingest(place.describe(ingest={"max_rejected": 0.2})).published == 8


def test_a_text_column_as_the_body(place: Place) -> None:
    place.write("a.jsonl", '{"order":"o1","text":"plain, <b>text</b>"}')
    place.ingest(place.describe(schema={"order": {}, "text": {}}, ingest={"body": "text", "key": ["order"]}))
    (message,) = place.messages()
    assert (message.key, message.body, message.codec) == ("o1", b"plain, <b>text</b>", "raw")


def test_a_queue_whose_codec_is_another(place: Place) -> None:
    place.write("a.jsonl", *numbered(1))
    with Ignis(place.target.url) as app:
        app.queue("orders", codec="msgpack").open()
    with pytest.raises(ConfigError, match="codec msgpack; the pipeline brings JSON"):
        place.ingest(place.describe(ingest={}, queue={"name": "orders"}))


def test_two_processes_at_once(place: Place) -> None:
    place.write("a.jsonl", *numbered(5))
    description = place.describe(ingest={})
    with Runs(description.folder, "orders").locked(), pytest.raises(LockHeldError):
        place.ingest(description)


def test_nothing_to_read(place: Place) -> None:
    with pytest.raises(ConfigError, match="finds no file"):
        place.ingest(place.describe(ingest={}))


# -- export


def publish(place: Place, *bodies: Any, keys: list[str | None] | None = None) -> None:
    queue = place.queue()
    queue.publish_many(list(bodies), keys=keys)
    queue.app.close()


def orders(count: int) -> list[dict[str, Any]]:
    return [{"order": f"o{number}", "n": 1 + number % 10, "kind": "ab"[number % 2]} for number in range(count)]


def test_messages_become_partitioned_files(place: Place) -> None:
    publish(place, *orders(1_000), keys=[f"k{number % 7}" for number in range(1_000)])
    sent = {message.id for message in place.messages()}
    summary = place.export(place.describe(export={"partition_by": ["kind"], "envelope": ["id", "key", "failures"]}))
    assert (summary.read, summary.written, summary.rejected, summary.taken_back) == (1_000, 1_000, {}, 0)
    files = list(Path(summary.path).rglob("*.parquet"))
    assert (summary.files, summary.bytes) == (len(files), sum(file.stat().st_size for file in files))
    assert len(files) == 2, "compacted: a file per folder"
    assert place.rows("order", "n", "kind") == sorted(
        ((one["order"], one["n"], one["kind"]) for one in orders(1_000)), key=str
    )
    rows = place.rows("_id", "_key", "_failures")
    assert {row[0] for row in rows} == sent
    assert {row[1:] for row in rows} == {(f"k{number}", 0) for number in range(7)}
    stats = place.queue().stats()
    assert (stats["pending"], stats["in_flight"]) == (0, 0)
    assert place.export(place.describe(export={})).run == ""


def test_what_does_not_fit_the_schema_is_put_aside(place: Place) -> None:
    app = place.queue().app
    app.magazine("orders", bytes, codec="raw", shards=4)
    publish(
        place, {"order": "o1", "extra": {"a": 1}, "day": "2024-02-03"}, {"order": "x"}, 5, {"order": "o2", "n": "many"}
    )
    summary = place.export(place.describe(export={}))
    assert (summary.read, summary.written) == (4, 1)
    assert summary.rejected == {"malformed": 1, "type": 1, "pattern": 1}
    assert [row[2] for row in place.rejects(summary)] == ["5", '{"order":"x"}', '{"order":"o2","n":"many"}']
    assert [(row[0], row[1], str(row[2])) for row in place.rows("order", "extra", "day")] == [
        ("o1", '{"a":1}', "2024-02-03")
    ]
    assert place.messages() == []


@pytest.mark.long
def test_nothing_fits_the_schema(place: Place) -> None:
    publish(place, {"n": 1, "kind": "a"})
    summary = place.export(place.describe(export={"partition_by": ["kind"]}))
    assert (summary.read, summary.written, summary.rejected) == (1, 0, {"missing": 1})
    assert place.messages() == []


def test_a_folder_that_is_there_already(place: Place) -> None:
    publish(place, *orders(3))
    (place.directory / "out" / "run=r1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="not of this run"):
        place.export(place.describe(export={}), run_id="r1")
    assert len(place.messages()) == 3


def test_without_a_schema_the_body_is_a_column(place: Place) -> None:
    publish(place, {"a": 1}, [2])
    assert place.export(place.describe(schema={}, export={})).written == 2
    assert place.rows("body") == [("[2]",), ('{"a":1}',)]


def test_limit_and_size_of_files(place: Place) -> None:
    publish(place, *orders(100))
    description = place.describe(export={"limit": 60, "rows_per_file": 25, "compression": "none"})
    first = place.export(description)
    assert (first.read, first.files) == (60, 3)
    second = place.export(description)
    assert second.read == 40
    assert len(place.rows("order", "run")) == 100
    assert {row[0] for row in place.rows("run")} == {first.run, second.run}


@pytest.mark.parametrize(
    ("step", "when"),
    [
        pytest.param("claim", "end", marks=pytest.mark.long),
        pytest.param("write", "end", marks=pytest.mark.long),
        pytest.param("quarantine", "end", marks=pytest.mark.long),
        ("place", "end"),
        pytest.param("commit", "end", marks=pytest.mark.long),
    ],
)
def test_export_goes_on_after_a_crash(place: Place, step: str, when: str) -> None:
    publish(place, *orders(200), {"order": "bad"})
    description = place.describe(export={"partition_by": ["kind"]})
    with pytest.raises(CrashError):
        place.export(description, run_id="r1", progress=CrashAt(step, when))
    publish(place, *orders(300)[200:])  # while nobody was at work
    first = place.export(description)
    assert (first.run, first.resumed) == ("r1", True)
    second = place.export(description)
    assert first.written + second.written == 300
    assert first.rejected == {"pattern": 1}
    assert len(place.rejects(first)) == 1
    assert [row[0] for row in place.rows("order")] == sorted(one["order"] for one in orders(300))
    repeated = place.export(description, run_id="r1")
    assert (repeated.repeated, repeated.written) == (True, first.written)
    stats = place.queue().stats()
    assert (stats["pending"], stats["in_flight"]) == (0, 0)


@pytest.mark.long
def test_a_power_cut_when_the_files_are_in_place(place: Place) -> None:
    """Whether the claims got to the disk or not: the messages leave the queue by their pointers."""
    publish(place, *orders(50))
    description = place.describe(export={})
    with pytest.raises(CrashError):
        place.export(description, progress=CrashAt("place", "end"))
    # A copy that nobody has open, as it would be found after the next start of the machine.
    store = Path(place.target.url.removeprefix("embedded://"))
    copy = store.with_name("after")
    shutil.copytree(store, copy)
    for control in copy.glob("*/control-*"):  # it is never flushed
        control.unlink()
    place.target = Target(f"embedded://{copy}", "", "")
    stats = place.queue().stats()
    assert stats["pending"] + stats["in_flight"] == 50
    assert place.export(description).written == 50
    assert place.messages() == []
    assert len(place.rows("order")) == 50


def test_files_in_place_of_a_store_that_was_made_anew(place: Place) -> None:
    """What the old store's run has in its files is at pointers that are other messages' in the new one."""
    publish(place, *orders(150))
    description = place.describe(export={})
    with pytest.raises(CrashError):
        place.export(description, run_id="r1", progress=CrashAt("place", "end"))
    place.target = Target(f"embedded://{place.directory}/anew", "", "")
    publish(place, *orders(300)[150:])
    with pytest.raises(QueueMismatchError, match=r"made anew.*Nothing was deleted.*export-r1\.json"):
        place.export(description)
    stats = place.queue().stats()
    assert stats["pending"] + stats["in_flight"] == 150
    Runs(description.folder, description.name).path(Run(id="r1", kind="export", pipeline=description.name)).unlink()
    assert place.export(description).written == 150
    assert len(place.rows("order")) == 300


def test_a_queue_that_is_not_there(place: Place) -> None:
    with Ignis(place.target.url) as app:
        app.queue("other").open()
    with pytest.raises(QueueNotFoundError):
        place.export(place.describe(export={}))


def test_settings_of_another_queue(place: Place) -> None:
    with Ignis(place.target.url) as app:
        app.queue("orders", durability="none").open()
    place.write("a.jsonl", *numbered(1))
    with pytest.raises(QueueMismatchError):
        place.ingest(place.describe(ingest={}, queue={"name": "orders", "settings": {"durability": "sync"}}))


# -- the command


def test_the_commands(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.write("a.jsonl", *numbered(20), "broken")
    file = place.directory / "p.toml"
    file.write_text(
        """
        name = "orders"
        queue = { name = "orders", settings = { shards = 4 } }
        schema = { order = { required = true }, n = { type = "integer" } }
        ingest = { paths = ["in"], format = "jsonl", dedup = ["order"] }
        export = { path = "out" }
        """
    )
    url = ["--url", place.target.url]
    assert main(["pipeline", "ingest", str(file), *url]) == 0
    out, err = capfd.readouterr()
    assert "published" in out
    assert "rejected: malformed" in out
    assert "publishing: 20 in" in err
    assert "\x1b" not in out + err
    assert main(["pipeline", "ingest", str(file), *url]) == 0
    assert "nothing new to read" in capfd.readouterr().err
    assert main(["pipeline", "export", str(file), "--run-id", "r1", *url, "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    assert (summary["run"], summary["written"], summary["path"]) == ("r1", 20, f"{place.directory}/out/run=r1")
    assert main(["pipeline", "export", str(file), "--run-id", "r1", *url]) == 0
    out, err = capfd.readouterr()
    assert "done before" in err
    assert main(["pipeline", "export", str(file), *url]) == 0
    assert "nothing is pending in orders" in capfd.readouterr().err
    assert len(place.rows("order")) == 20


def test_the_commands_refuse(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    file = place.directory / "p.toml"
    file.write_text('name = "p"\nqueue = { name = "q" }\n')
    assert main(["pipeline", "ingest", str(file), "--url", place.target.url]) == 2
    assert "no [ingest]" in capfd.readouterr().err
    assert main(["pipeline", "export", str(place.directory / "none.toml"), "--json"]) == 2
    assert json.loads(capfd.readouterr().err)["error"]["code"] == "config"
