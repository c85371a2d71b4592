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

from ignis.bench_report import distribution, table
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
    assert text.count("<svg") == 2, "of percentiles alone there is no distribution"
    assert "Only percentiles are known of ignis, redis &lt;lists&gt;" in text
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
            peer, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}", "median of 3 rounds",
            f"{100 / statistics.median(rates):.2f}", f"{p50:,.1f}", f"{p99:,.1f}",
        ] in shown  # fmt: skip
    facts = parsed(page(stored(path, rows()), [], path.name)).find(".//dl")
    said = ["".join(one.itertext()) for one in facts]
    for name, value in (("kernel", "Linux 6.1"), ("cores", "2"), ("file system", "ext4")):
        assert said[said.index(name) + 1] == value


def test_what_says_nothing_is_left_out(tmp_path: Path) -> None:
    alone = stored(tmp_path / "run-1.csv", rows({"ignis": (100.0, 110.0, 90.0)}))
    text = page(alone, [], "run-1.csv")
    assert ["peer", "per s", "slowest to fastest per s", "figures are", "p50 µs", "p99 µs"] in cells(parsed(text))
    assert "100</b> messages per second, 90 to 110 in 3 rounds" in text
    assert text.count("<svg") == 1, "no bar without one beside it"
    assert "This run is short" not in text
    failed = [*rows(), {**rows()[0], "peer": "nats", "throughput_per_s": "", "problem": "not there"}]
    heads = cells(parsed(page(stored(tmp_path / "run-2.csv", failed), [], "run-2.csv")))
    assert any(row[0] == "peer" and {"ignis / peer", "problem"} <= set(row) for row in heads)


@pytest.mark.parametrize(
    ("rates", "seconds", "said"),
    [
        ((100.0,), 2.0, "of one round"),
        ((100.0, 90.0), 2.0, "of 2 rounds"),
        ((100.0, 90.0, 80.0), 0.1, "A round took less than 0.5 s of: publish."),
    ],
)
def test_a_short_run_is_said_to_be_short(rates: tuple[float, ...], seconds: float, said: str, tmp_path: Path) -> None:
    given = [{**one, "duration_s": seconds} for one in rows({"ignis": rates})]
    tree = parsed(page(stored(tmp_path / "run-1.csv", given), [], "run-1.csv"))
    (warning,) = (one for one in tree.iter() if one.get("class") == "warn")
    assert said in "".join(warning.itertext())


def timed(peer: str, number: int, *calls_us: float) -> dict[str, object]:
    counts = distribution.text(distribution.buckets(calls_us))
    return {**rows({peer: (100.0,)})[0], "round": number, "latency_counts_us": counts}


def test_the_distribution_is_that_of_all_calls_of_the_run_of_the_peers_and_of_the_run_before(tmp_path: Path) -> None:
    now = [timed("ignis", 1, 2, 3, 90, 90), timed("ignis", 2, 5, 8, 80, 2_000), timed("<redis>", 1, 99.9, 100, 100.1)]
    before = stored(tmp_path / "run-1.csv", [timed("ignis", 1, *[20.0] * 9_999, 70_000.0), timed("gone", 1, 1, 1)])
    text = page(stored(tmp_path / "run-2.csv", now), before, "run-2.csv", "run-1.csv")
    tree = parsed(text)
    shown = cells(tree)
    assert ["peer", "calls", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms"] in shown
    assert ["ignis", "8", "50.00%", "87.50%", "87.50%", "100%", "100%"] in shown
    assert ["<redis>", "3", "0%", "66.67%", "100%", "100%", "100%"] in shown
    # What is not quite all is not called all.
    assert ["ignis, the run before", "10,000", "0%", "99.99%", "99.99%", "99.99%", "100%"] in shown
    assert not any(row[0].startswith("gone") for row in shown)
    (chart,) = (one for one in tree.iter() if "distribution" in one.get("aria-label", ""))
    assert "ignis: half within 8.91, 99 % within 2,240" in chart.get("aria-label")
    drawn = ["".join(one.itertext()).strip() for one in chart.iter() if str(one.tag).endswith("text")]
    assert {"ignis", "<redis>", "ignis, the run before"} <= set(drawn)
    assert any("logarithmic" in one for one in drawn)


def test_the_buckets_hold_what_they_say() -> None:
    for value in (0.001, 0.5, 1.0, 9.99, 10.0, 10.01, 123.4, 1_000.0, 7e7):
        ((bucket, count),) = distribution.buckets([value]).items()
        assert count == 1
        assert distribution.bound_us(bucket - 1) < value * (1 + 1e-9)
        assert value <= distribution.bound_us(bucket) * (1 + 1e-9)
    some = distribution.buckets([0.0, 1, 1, 2, 30_000])
    assert distribution.counted(distribution.text(some)) == some
    assert distribution.counted("") == {}
    for wrong in ("12", "a:1", "1:x", "-1:2"):
        with pytest.raises(ValueError, match=r"invalid literal|could not convert|math domain|positive"):
            distribution.counted(wrong)
    assert distribution.shares(distribution.buckets([1, 1, 10, 10]))[1] == [0.0, 0.5, 1.0]


def test_a_run_of_the_first_columns_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "run-1.csv"
    table.write(path, rows())
    old = [line.rsplit(",", 2)[0] for line in path.read_text().splitlines()]
    assert old[0].endswith(",problem")
    path.write_text("\n".join(old) + "\n")
    assert table.series(table.read(path))[0].rates == RATES["ignis"]
    table.write(path, [{**rows()[0], "latency_counts_us": "12"}])
    with pytest.raises(ConfigError, match="cannot be read"):
        table.read(path)


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        (1, "one round"),
        pytest.param(2, "mean of 2 rounds", marks=pytest.mark.long),
        pytest.param(3, "median of 3 rounds", marks=pytest.mark.long),
        (4, "median of 4 rounds, the mean of the two in the middle"),
    ],
)
def test_the_terminal_and_the_page_show_the_same_figure_and_say_which(
    rounds: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    call = ["bench", "--messages", "300", "--durability", "none", "--dir", str(tmp_path), "--report", str(out)]
    assert main([*call, "--runs", str(rounds)]) == 0
    terminal = capsys.readouterr()
    assert said in terminal.err
    shown = cells(parsed((out / "index.html").read_text("utf-8")))
    rates = re.findall(r"([\d,]+)/s", terminal.out)
    assert len(rates) == 5
    assert rates == [row[1] for row in shown if row[0] == "ignis" and said in row[2:4]]


def test_fewer_and_more_messages_than_asked_for_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    call = ["bench", "--durability", "none", "--dir", str(tmp_path), "--report", str(out), "--runs", "1"]
    assert main([*call, "--messages", "300"]) == 0
    err = capsys.readouterr().err
    more = "more than the 300 that were asked for"
    assert f"drain, published in bulk: {more}" in err
    assert more in (out / "index.html").read_text("utf-8")


@pytest.mark.long
def test_fewer_messages_than_asked_for_are_said_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["bench", "--durability", "none", "--dir", str(tmp_path), "--report", str(tmp_path / "out"), "--runs", "1"]
    assert main([*call, "--messages", "20001", "--json"]) == 0
    for one in json.loads(capsys.readouterr().out)["results"]:
        fewer, bulk = one["messages"] < 20_001, one["messages"] > 20_001
        assert ("fewer than the 20,001" in one["note"]) == fewer == ("one at a time" in one["what"])
        assert ("more than the 20,001" in one["note"]) == bulk == ("bulk" in one["what"])


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
        "peer", "round", "messages", "problem", "note",
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
    calls = Result("nats", "sync")
    calls.add_latencies([1_000.0, 20_000.0, 20_000.0])
    recorder.write("latency", calls)
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
    nats = next(one for one in found.values() if one.peer == "nats")
    assert nats.counts == distribution.buckets([1.0, 20.0, 20.0])
    with first.open() as file:
        alone = [int(row["messages"]) for row in csv.DictReader(file) if row["measurement"] == "publish, one at a time"]
    assert sum(found["publish, one at a time", "ignis"].counts.values()) == sum(alone)
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
