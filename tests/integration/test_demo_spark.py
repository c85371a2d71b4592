"""The Spark demo, run whole on the first part of the data, and that its comparison can fail."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ignis.cli import main
from ignis.demo.data import load_flights
from ignis.errors import ConfigError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.demo.spark import Outcome, Totals
from ignis.spark.pipeline import ExportSummary, IngestSummary

pytestmark = pytest.mark.integration

try:
    load_flights(1)
except ConfigError as exc:
    pytest.skip(str(exc), allow_module_level=True)


def test_every_total_is_sparks_own(
    spark: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # A store named by the environment is somebody's own: the demo must not touch it.
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("IGNIS_URL", f"embedded://{elsewhere}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["pipeline", "demo", "--flights", "5000", "--workers", "1", "--json"]) == 0
    out = json.loads(capfd.readouterr().out)
    flights = load_flights(5_000).flights
    assert out["ok"]
    assert out["found"] == out["expected"]
    assert out["ingest"]["published"] == 5_000
    assert sum(one["departed"] for one in out["found"].values()) + out["cancelled"] == 5_000
    assert 0 < out["cancelled"] == out["sidelined"] < 5_000 == len(flights)
    assert sum(one["distance"] for one in out["found"].values()) > 1_000_000
    assert not elsewhere.exists()
    assert not list(tmp_path.glob("ignis-demo-spark-*")), "the demo removes what it made"


TOTALS = Totals(departed=3, dep_delay=5, arrived=3, arr_delay=1, made_up=4, distance=100)


def outcome(**changes: Any) -> Outcome:
    right = Outcome(
        ingest=IngestSummary(pipeline="flights", queue="flights", published=4),
        export=ExportSummary(pipeline="results", queue="results", written=3),
        handle_s=1,
        cancelled=1,
        sidelined=1,
        expected={"UA": TOTALS},
        found={"UA": TOTALS},
        seconds=1,
    )
    return msgspec.structs.replace(right, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"found": {"UA": msgspec.structs.replace(TOTALS, arr_delay=2)}},
        {"found": {}},
        {"found": {"UA": TOTALS, "AA": TOTALS}},
        {"sidelined": 0},
        {"export": ExportSummary(pipeline="results", queue="results", written=4)},
        {"export": ExportSummary(pipeline="results", queue="results", written=3, rejected={"type": 1})},
        {"ingest": IngestSummary(pipeline="flights", queue="flights", published=5)},
    ],
)
def test_the_comparison_can_fail(changes: dict[str, Any]) -> None:
    assert outcome().ok
    assert not outcome(**changes).ok
