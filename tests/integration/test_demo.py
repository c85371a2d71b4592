"""The demo, run whole: first part of the data, its own worker processes, one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ignis.demo.data import CarrierStats, Flight, load_flights
from ignis.demo.report import Report
from ignis.demo.results import Entry, ResultsWriter, count_entries, read_entries
from ignis.demo.settings import BUSY_CARRIER, BUSY_FAILURES
from ignis.errors import ConfigError

pytestmark = pytest.mark.integration

try:
    load_flights(1)
except ConfigError as exc:
    pytest.skip(str(exc), allow_module_level=True)

TIMEOUT_S = 120


def run_demo(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ignis", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environ},
        check=False,
    )


def answer(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    out = json.loads(result.stdout)
    assert isinstance(out, dict)
    return out


def test_nothing_is_lost(tmp_path: Path) -> None:
    flights = 40_000
    # A store named by the environment is somebody's own: the demo must not touch it.
    elsewhere = tmp_path / "elsewhere"
    result = run_demo(
        "--flights",
        str(flights),
        "--steady-seconds",
        "0.3",
        "--json",
        TMPDIR=str(tmp_path),
        IGNIS_URL=f"embedded://{elsewhere}",
    )
    report = answer(result)
    cancelled = sum(flight.dep_time is None for flight in load_flights(flights).flights)
    assert (report["published"], report["handled"], report["lost"], report["invented"]) == (flights, flights, 0, 0)
    assert report["ok"] and report["answer_equal"]
    assert report["killed_pid"]
    assert report["killed_held"] > 0
    assert report["swept"] == report["killed_held"]
    assert report["sidelined"].get("abandoned") == report["swept"]
    # Cancelled flights that the killed worker held are among the abandoned ones.
    assert cancelled - report["swept"] <= report["sidelined"]["exception"] <= cancelled
    assert report["shovelled"] == sum(report["sidelined"].values())
    assert report["duplicates"] <= report["swept"]
    busy = sum(flight.carrier == BUSY_CARRIER for flight in load_flights(flights).flights)
    assert busy > 20
    assert (report["retried"], report["not_retried"]) == (busy, 0), (
        "each of that carrier's flights, at its third attempt"
    )
    assert report["steady_latency"]["count"] > 0
    assert report["backlog_latency"]["p50_ms"] <= report["backlog_latency"]["p999_ms"]
    assert sum(one["flights"] for one in report["carriers"]) == flights
    assert sum(one["cancelled"] for one in report["carriers"]) == cancelled
    assert not elsewhere.exists()
    assert list(tmp_path.iterdir()) == [], "the demo removes what it made"


def test_plain_output_and_a_store_of_ones_own(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'own'}"
    result = run_demo("--flights", "3000", "--steady-seconds", "0", "--url", url)
    assert result.returncode == 0, result.stderr
    assert "lost: 0 of 3,000" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert "kill -9" in result.stderr
    assert (tmp_path / "own").is_dir()
    again = run_demo("--flights", "3000", "--steady-seconds", "0", "--url", url, "--json")
    assert answer(again)["lost"] == 0


@pytest.mark.long
def test_a_demo_that_is_killed_leaves_nobody_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ignis", "demo", "--flights", "100000", "--rate", "100", "--steady-seconds", "60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        deadline = time.monotonic() + 60
        while not (pids := [int(path.stem) for path in tmp_path.glob("*/*.results")]):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived the demo"
        time.sleep(0.05)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_url_that_workers_cannot_share() -> None:
    result = run_demo("--url", "memory://", "--json")
    assert result.returncode == 2
    assert json.loads(result.stderr)["error"]["code"] == "config"


# -- the parts


def entry(row: int, **changes: Any) -> Entry:
    return Entry(2_000, 1_000, row, 5, -3, "UA", 0)._replace(**changes)


def test_results_survive_and_a_torn_entry_is_passed_over(tmp_path: Path) -> None:
    writer = ResultsWriter(tmp_path)
    wanted = [entry(0), entry(1, dep_delay=None, arr_delay=None), entry(2, attempts=1_000, carrier="9E", attempt=3)]
    for one in wanted:
        writer.append(one)
    assert list(read_entries(tmp_path)) == [*wanted[:2], wanted[2]._replace(attempts=255)]
    path = tmp_path / f"{os.getpid()}.results"
    path.write_bytes(path.read_bytes() + b"torn")
    assert len(list(read_entries(tmp_path))) == 3
    assert count_entries(tmp_path) == count_entries(tmp_path, os.getpid()) == 3
    assert count_entries(tmp_path, 1) == 0


def report_of(directory: Path, flights: int) -> Report:
    report = Report(
        published=flights,
        steady=0,
        rate=1,
        workers=1,
        url="",
        sidelined={},
        shovelled=0,
        swept=0,
        killed_pid=0,
        killed_held=0,
        publish_s=1,
        publisher_memory_bytes=None,
        worker_memory_bytes=None,
        seconds=1,
    )
    report.count(directory, load_flights(flights))
    return report


def note_all(directory: Path, flights: int) -> ResultsWriter:
    writer = ResultsWriter(directory)
    for one in load_flights(flights).flights:
        writer.append(noted(one))
    return writer


def noted(one: Flight, **changes: Any) -> Entry:
    """As a worker notes it, at the attempt that succeeds."""
    attempt = BUSY_FAILURES + 1 if one.carrier == BUSY_CARRIER else 1
    given = {"dep_delay": one.dep_delay, "arr_delay": one.arr_delay, "carrier": one.carrier, "attempt": attempt}
    return entry(one.row, **{**given, **changes})


def test_a_flight_handled_twice_counts_once(tmp_path: Path) -> None:
    first = load_flights(1).flights[0]
    writer = note_all(tmp_path, 500)
    writer.append(noted(first))
    report = report_of(tmp_path, 500)
    assert (report.ok, report.handled, report.duplicates, report.lost) == (True, 500, 1, 0)


@pytest.mark.parametrize("fault", ["lost", "invented", "wrong figure", "not retried"])
def test_the_checker_can_fail(tmp_path: Path, fault: str) -> None:
    """What the demo promises to notice is noticed."""
    if fault == "lost":
        note_all(tmp_path, 499)
    elif fault == "invented":
        note_all(tmp_path, 501)
    else:
        writer = ResultsWriter(tmp_path)
        for one in load_flights(500).flights:
            late = {"dep_delay": (one.dep_delay or 0) + (one.row == 7)} if fault == "wrong figure" else {}
            writer.append(noted(one, **late, **({"attempt": 2} if fault == "not retried" and one.row == 7 else {})))
    report = report_of(tmp_path, 500)
    assert not report.ok
    assert (report.lost, report.invented) == (int(fault == "lost"), int(fault == "invented"))


@pytest.mark.long
def test_the_files_own_answer() -> None:
    """Known figures of the data, so that the reading itself is checked."""
    data = load_flights()
    assert len(data.flights) == 336_776
    assert sum(flight.dep_time is None for flight in data.flights) == 8_255
    assert data.expected["UA"] == CarrierStats(58_665, 686, 57_979, 701_898, 57_782, 205_589)
    assert data.names["UA"] == "United Air Lines Inc."
