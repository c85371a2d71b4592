"""Values of ``partition_by``: what is found in the folders is what was exported, for readers of ours and others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis
from ignis.errors import ConfigError
from tests.integration.pipeline.test_pipeline_rows import Bench

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

import pyarrow as pa
import pyarrow.dataset as pads

from ignis.spark.pipeline import parse_description, read_exported
from ignis.spark.pipeline.files import Files

pytestmark = pytest.mark.integration

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
VALUES = ["", NULL_FOLDER, None, "ok", "a/b", "..", " x ", "é", "%41", "%00", "01", "1", "a=b:c", "x\ty", "{*}"]
SCHEMA: dict[str, Any] = {"id": {"required": True}, "outer": {}, "v": {}}


@pytest.fixture
def bench(spark: Any, tmp_path: Path, embedded_url: str, new_app: Callable[..., Ignis]) -> Bench:
    return Bench(spark, tmp_path, embedded_url, new_app)


def fill(bench: Bench, schema: dict[str, Any], rows: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    """Ingests the rows as JSON lines; returns the parts for the export."""
    bench.write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    whole: dict[str, Any] = {"ingest": {"format": "jsonl"}, **parts}
    assert bench.ingest(schema, **whole).published == len(rows)
    return whole


def test_values_like_null_come_back_as_what_they_were(bench: Bench) -> None:
    rows = [{"id": str(n), "outer": VALUES[n % 3], "v": value} for n, value in enumerate(VALUES)]
    parts = fill(bench, SCHEMA, rows, export={"partition_by": ["outer", "v"], "envelope": ["key"]})
    summary = bench.export(SCHEMA, **parts)
    assert (summary.written, summary.rejected) == (len(rows), {})
    description = bench.describe(SCHEMA, **parts)
    found = read_exported(bench.spark, description)
    assert found.columns == ["id", "outer", "v", "_key", "run"]
    assert {row["id"]: (row["outer"], row["v"]) for row in found.collect()} == {
        row["id"]: (row["outer"], row["v"]) for row in rows
    }
    assert found.where("v = ''").count() == 1
    assert read_exported(bench.spark, description, run_id=summary.run).count() == len(rows)
    # Whoever knows nothing of this finds all but the empty text, which is one NUL.
    plain = bench.spark.read.option("basePath", str(bench.directory / "out")).parquet(summary.path).collect()
    assert {row["id"]: (row["outer"], row["v"]) for row in plain} == {
        row["id"]: tuple("\0" if value == "" else value for value in (row["outer"], row["v"])) for row in rows
    }
    sql = bench.spark.read.parquet(summary.path).selectExpr("id", "replace(v, chr(0), '') as v").collect()
    assert {row["id"]: row["v"] for row in sql} == {row["id"]: row["v"] for row in rows}
    # One that undoes %5F before it looks for null: docs/spark.md says so.
    hive = pads.partitioning(pa.schema([("outer", pa.string()), ("v", pa.string())]), flavor="hive")
    arrow = pads.dataset(summary.path, partitioning=hive).to_table().to_pylist()
    nulls = {row["id"] for row in rows if row["v"] in (None, NULL_FOLDER)}
    assert {row["id"] for row in arrow if row["v"] is None} == nulls
    seen = {row["id"]: row["v"] for row in arrow if row["id"] not in nulls}
    assert seen == {row["id"]: row["v"] or "\0" for row in rows if row["id"] not in nulls}
    assert bench.messages() == []


@pytest.mark.long
def test_an_ingest_reads_what_an_export_has_written(bench: Bench) -> None:
    rows = [{"id": str(n), "outer": VALUES[n % 3], "v": value} for n, value in enumerate(VALUES)]
    parts = fill(bench, SCHEMA, rows, export={"partition_by": ["outer", "v"], "envelope": ["key"]})
    assert bench.export(SCHEMA, **parts).written == len(rows)
    again = {"format": "parquet", "paths": ["out"], "scope": "run", "dedup": ["id"]}
    assert bench.ingest(SCHEMA, ingest=again, settings={}, name="back").published == len(rows)
    bodies = [json.loads(text) for text in bench.texts()]
    assert {row["id"]: row for row in bodies} == {row["id"]: row for row in rows}


def test_values_like_null_are_put_aside_where_that_is_asked_for(bench: Bench) -> None:
    rows = [{"id": str(n), "v": value} for n, value in enumerate(VALUES)]
    parts = fill(bench, SCHEMA, rows, export={"partition_by": ["v"], "null_like": "put_aside"})
    summary = bench.export(SCHEMA, **parts)
    assert (summary.written, summary.rejected) == (len(rows) - 2, {"partition": 2})
    assert {json.loads(row["raw"])["v"] for row in bench.rejects(summary)} == {"", NULL_FOLDER}


def test_values_of_other_types_come_back(bench: Bench) -> None:
    schema: dict[str, Any] = {
        "id": {"required": True},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "d": {"type": "decimal", "precision": 20, "scale": 2},
        "day": {"type": "date"},
        "at": {"type": "timestamp"},
        "yes": {"type": "boolean"},
        "odd name/": {},
    }
    by = [name for name in schema if name != "id"]
    rows = [
        {"id": "0", **dict.fromkeys(by)},
        {"id": "1", "n": 1, "x": 0.1, "d": 1.1, "day": "2024-01-05", "at": "2024-07-01T00:30:00.123456Z", "yes": True,
         "odd name/": ""},
        {"id": "2", "n": -(2**63), "x": 1e300, "d": -12, "day": "0001-01-01", "at": "1999-12-31T23:59:59Z", "yes": False,
         "odd name/": "é"},
    ]  # fmt: skip
    parts = fill(bench, schema, rows, export={"partition_by": by, "envelope": []})
    assert bench.export(schema, **parts).written == 3
    bench.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = read_exported(bench.spark, bench.describe(schema, **parts))
        found = found.withColumns({name: found[f"`{name}`"].cast("string") for name in ("d", "day")})
        found = found.selectExpr("*", "unix_micros(at) as us").drop("at", "run")
        got = {row["id"]: row.asDict() for row in found.collect()}
    finally:
        bench.spark.conf.unset("spark.sql.session.timeZone")
    assert got == {
        "0": {"id": "0", **dict.fromkeys(name for name in by if name != "at"), "us": None},
        "1": {"id": "1", "n": 1, "x": 0.1, "d": "1.10", "day": "2024-01-05", "yes": True, "odd name/": "",
              "us": 1719793800123456},
        "2": {"id": "2", "n": -(2**63), "x": 1e300, "d": "-12.00", "day": "0001-01-01", "yes": False, "odd name/": "é",
              "us": 946684799000000},
    }  # fmt: skip


def test_a_column_with_too_long_a_name_is_refused(bench: Bench) -> None:
    schema = {"id": {"required": True}, "c" * 230: {}}
    parts = fill(bench, schema, [{"id": "1"}], export={"partition_by": ["c" * 230]})
    with pytest.raises(ConfigError, match="too long for the name of a folder"):
        bench.export(schema, **parts)
    assert len(bench.messages()) + bench_in_flight(bench) == 1


def bench_in_flight(bench: Bench) -> int:
    app = bench._new_app(bench.url)
    return sum(state.in_flight for state in app.store.magazines.metadata("q"))


def test_files_are_read_with_a_schema(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="no \\[schema\\]"):
        read_exported(bench.spark, parse_description({"name": "p", "queue": {"name": "q"}, "export": {"path": "out"}},
                                                     bench.directory))  # fmt: skip


@pytest.mark.long
def test_a_session_in_a_plain_locale(tmp_path: Path) -> None:
    """As cron starts it: Java would name no file ``é``."""
    code = (
        "import os\n"
        "from ignis.spark.pipeline import session\n"
        "from ignis.spark.pipeline.description import SparkPart\n"
        "from ignis.spark.pipeline.files import Files\n"
        "with session(SparkPart(master='local[1]'), app_name='t') as spark:\n"
        "    print(Files(spark).name_encoding(), os.environ['LC_ALL'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LC_ALL": "C"}, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("UTF-8 C\n"), "and the process's own locale is as it was"


@pytest.mark.long
def test_a_session_of_another_encoding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its JVM cannot name is put aside, where it would end the export."""
    monkeypatch.setattr(Files, "name_encoding", lambda self: "ANSI_X3.4-1968")
    rows = [{"id": "1", "v": "é"}, {"id": "2", "v": "e"}, {"id": "3", "v": None}]
    parts = fill(bench, SCHEMA, rows, export={"partition_by": ["v"]})
    summary = bench.export(SCHEMA, **parts)
    assert (summary.written, summary.rejected) == (2, {"partition": 1})
    (reject,) = bench.rejects(summary)
    assert "start with LC_ALL=C.UTF-8" in reject["problems"][0]
