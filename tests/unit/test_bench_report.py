"""``ignis bench --report``: the CSV, the page about it, and what it says of the run before."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

import html5lib
import pytest

pytest.importorskip("matplotlib", reason="no matplotlib: the extra report has it")

from ignis.bench_report import table
from ignis.bench_report.page import LOOKED_FOR, page
from ignis.cli import main
from ignis.errors import ConfigError

MACHINE = {
    "started_at_utc": "2026-03-01T10:00:00Z", "ignis_version": "1.0", "python": "3.12.1", "kernel": "Linux 6.1",
    "cpu": "A <processor> & more", "cores": 2, "file_system": "ext4",
}  # fmt: skip
RATES = {"ignis": (110.0, 90.0, 100.0), "redis <lists>": (55.0, 45.0, 50.0)}


def rows(rates: dict[str, tuple[float, ...]] = RATES, **machine: Any) -> list[dict[str, object]]:
    return [
        {
            **MACHINE, **machine, "measurement": "publish", "durability": "sync", "size_bytes": 100, "workers": 1, "peer": peer,
            "round": number, "messages": 1_000, "duration_s": 1_000 / rate, "throughput_per_s": rate,
            **{f"latency_{name}_us": 1e6 / rate * (1 + q) for name, q in table.QUANTILES.items()},
        }
        for peer, values in rates.items()
        for number, rate in enumerate(values, 1)
    ]  # fmt: skip


def stored(path: Path, given: list[dict[str, object]]) -> list[dict[str, str]]:
    table.write(path, given)
    return table.read(path)


def parsed(text: str) -> Any:
    """Raises for anything that is not valid HTML."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def cells(tree: Any) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_the_page_is_valid_and_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    given = stored(
        tmp_path / "run-2.csv", [*rows(), {**rows()[0], "peer": "nats", "throughput_per_s": "", "problem": "not there"}]
    )
    text = page(given, stored(tmp_path / "run-1.csv", rows()), "run-2.csv", "run-1.csv")
    tree = parsed(text)
    assert not re.search(r"https?:|//|@import|<script|<link|<img|\bsrc=", text)
    for reference in re.findall(r'href="([^"]*)"|url\(([^)]*)\)', text):
        assert "".join(reference).startswith("#"), reference
    ids = [one.get("id") for one in tree.iter() if one.get("id")]
    assert len(set(ids)) == len(ids)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert {"".join(one) for one in used} <= set(ids)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert text.count("<svg") == 2
    said = "".join(tree.itertext())
    assert "A <processor> & more" in said
    assert "nats: not there" in said


def test_every_figure_of_the_page_is_that_of_the_csv(tmp_path: Path) -> None:
    path = tmp_path / "run-1.csv"
    shown = cells(parsed(page(stored(path, rows()), [], path.name)))
    with path.open() as file:
        read = list(csv.DictReader(file))
    for peer in RATES:
        mine = [row for row in read if row["peer"] == peer]
        rates = [float(row["throughput_per_s"]) for row in mine]
        p50, p99 = (statistics.median(float(row[f"latency_{name}_us"]) for row in mine) for name in ("p50", "p99"))
        assert [
            peer, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}", "3",
            f"{100 / statistics.median(rates):.2f}", f"{p50:,.1f}", f"{p99:,.1f}", "",
        ] in shown  # fmt: skip
    for name, value in (("kernel", "Linux 6.1"), ("cores", "2"), ("file system", "ext4")):
        assert [name, value] in shown


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ((50.0, 45.0, 55.0), "slower"),
        ((200.0, 190.0, 210.0), "faster"),
        ((95.0, 99.0, 93.0), "within the spread"),
        ((60.0, 70.0, 95.0), "within the spread"),  # one of its rounds was as fast as one before
    ],
)
def test_a_change_is_told_from_the_spread(now: tuple[float, ...], verdict: str, tmp_path: Path) -> None:
    before = stored(tmp_path / "run-1.csv", rows({"ignis": RATES["ignis"]}))
    text = page(stored(tmp_path / "run-2.csv", rows({"ignis": now})), before, "run-2.csv", "run-1.csv")
    median = statistics.median(now)
    assert ["publish (ignis)", "100", f"{median:.0f}", f"{median / 100:.2f}", verdict] in cells(parsed(text))
    assert ('class="slower"' in text) == (verdict == "slower")
    assert "Not the same machine" not in text


def test_another_machine_is_said(tmp_path: Path) -> None:
    before = stored(tmp_path / "run-1.csv", rows(kernel="Linux 5.4"))
    text = page(stored(tmp_path / "run-2.csv", rows()), before, "run-2.csv", "run-1.csv")
    assert "Not the same machine: kernel differ" in text


def test_what_is_no_run_of_this_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run-1.csv"
    for text in ("", "a,b\n1,2\n", ",".join(table.COLUMNS) + "\n2" + "," * (len(table.COLUMNS) - 1) + "\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="no run of the bench of schema 1"):
            table.read(path)


def test_units_stand_in_the_names_of_the_columns() -> None:
    unitless = {
        "schema", "ignis_version", "python", "kernel", "cpu", "cores", "file_system", "measurement", "durability", "workers",
        "peer", "round", "messages", "problem",
    }  # fmt: skip
    assert all(one.endswith(("_utc", "_bytes", "_s", "_per_s", "_us")) for one in set(table.COLUMNS) - unitless)


def test_the_command_measures_writes_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure = pytest.importorskip("bench.measure", reason="no repository around the tests")
    Options, Recorder, Result, Sample = (getattr(measure, one) for one in ("Options", "Recorder", "Result", "Sample"))  # noqa: N806
    peers = tmp_path / "peers.jsonl"
    recorder = Recorder(Options(json_path=peers))
    recorder.write(
        "store", Result("redis", "sync", n=10, throughput=Sample([7.0, 9.0]), latency_ns={"p99.9": Sample([5e3, 6e3])})
    )
    recorder.write("store", Result("rabbitmq", "sync", problem="a traceback\nno server found"))
    capsys.readouterr()
    out = tmp_path / "out"
    call = ["bench", "--messages", "200", "--dir", str(tmp_path), "--report", str(out), "--json"]
    assert main([*call, "--runs", "2", "--peers", str(peers)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["runs"] == 2
    assert document["report"] == str(out / "index.html")
    (first,) = out.glob("run-*.csv")
    found = {(one.measurement, one.peer): one for one in table.series(table.read(first))}
    assert len(found["publish_many", "ignis"].rates) == 2
    assert found["publish, one at a time", "ignis"].latency_us("p99") > 0
    redis = next(one for one in found.values() if one.peer == "redis")
    assert redis.rates == (7.0, 9.0)
    assert redis.latencies_us == {"p99_9": (5.0, 6.0)}
    text = (out / "index.html").read_text("utf-8")
    parsed(text)
    assert "rabbitmq: no server found" in text
    assert "There is no run before this one" in text

    assert main([*call, "--runs", "1"]) == 0
    capsys.readouterr()
    text = (out / "index.html").read_text("utf-8")
    assert f"Beside {first.name}" in text
    assert all(one in text for one in LOOKED_FOR), "peers that were not measured are named"
    assert main(["bench", "--peers", str(peers)]) == 2
    assert "--report" in capsys.readouterr().err
