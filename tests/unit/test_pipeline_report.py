"""The sideline report: the figures, and that nothing which stands in a message does anything on the page."""

from __future__ import annotations

import csv
import io
import json
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis import Ignis
from ignis.cli import main
from ignis.control import inspection
from ignis.errors import QueueNotFoundError
from ignis.message import failed_record
from ignis.native import PackedBatch, Record, encode_record
from ignis.spark.pipeline import report as reports
from ignis.spark.pipeline import sideline_report, write_csv, write_page
from ignis.spark.pipeline.page import render_page
from ignis.spark.pipeline.report import SidelineReport, age_name, cell
from ignis.storage.base import Transfer

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "]]><svg onload=alert(1)>",
    "$\\frac{1}{2}$ \\u0041 {{ 7 * 7 }} {% if %}",
    "=cmd|' /C calc'!A0",
    "\x1b[31mred\x00\u202ehidden\ud800",
    "日本語のキー",
    "'\"&<>",
    "_legend",
    "x" * 5_000,
]
NOW_S = 2_000_000_000.0


def fill(app: Ignis, name: str, failures: list[dict[str, Any]]) -> None:
    """Puts a message into the sideline for each: ``reason``, ``error``, ``handler``, ``key``, ``age_s``."""
    queue = app.queue(name)
    queue.publish_many(list(range(len(failures))), keys=[one.get("key") for one in failures])
    records = {json.loads(one.envelope.body): one for one in queue.main.fire(len(failures))}
    items = []
    for number, failure in enumerate(failures):
        fired = records[number]
        assert fired.record is not None
        record = failed_record(
            fired.record,
            failure.get("reason", "exception"),
            failure.get("error", ""),
            handler=failure.get("handler", ""),
        )
        meta = msgspec.msgpack.decode(Record(record).meta)
        meta["failed_at_ms"] = None if failure.get("age_s") is None else int((NOW_S - failure["age_s"]) * 1000)
        items.append(
            Transfer(fired.shard, fired.pointer, Record(record).replace(meta=msgspec.msgpack.encode(meta)), fired.shard)
        )
    assert queue.main.store.transfer(queue.main.name, queue.sideline.name, items, None) == len(failures)


def made(*failures: dict[str, Any]) -> SidelineReport:
    report = SidelineReport("orders", NOW_S)
    for one in failures:
        report.add(
            one.get("reason", "exception"),
            one.get("handler", "h"),
            one.get("key"),
            one.get("error", ""),
            one.get("age_s"),
        )
    return report


def test_the_figures(app: Ignis) -> None:
    failures = [
        {"reason": "exception", "handler": "shop.on_order", "error": "KeyError: 'a'", "key": "k1", "age_s": 30},
        {"reason": "exception", "handler": "shop.on_order", "error": "KeyError: 'a'", "key": "k1", "age_s": 90_000},
        {"reason": "exception", "handler": "shop.on_order", "error": "ValueError", "key": "k2", "age_s": 700},
        {"reason": "timeout", "handler": "shop.on_refund", "key": "k1", "age_s": 700},
        {"reason": "rejected", "handler": "shop.on_refund"},
    ]
    fill(app, "orders", failures)
    report = sideline_report(app.store, "orders", now_s=NOW_S)
    assert report.total == 5
    rows = {(reason, handler): one for reason, handler, one in report.rows()}
    assert [one.count for _, _, one in report.rows()] == [3, 1, 1]
    first = rows["exception", "shop.on_order"]
    assert (first.count, first.oldest_s, first.newest_s) == (3, 90_000, 30)
    assert first.commonest() == ("KeyError: 'a'", 2)
    assert report.by_reason() == {"exception": 3, "rejected": 1, "timeout": 1}
    assert {age: counts for age, counts in report.ages().items() if counts} == {
        "under 1 min": {"exception": 1},
        "10 min to 1 h": {"exception": 1, "timeout": 1},
        "1 to 2 d": {"exception": 1},
        "not known": {"rejected": 1},
    }
    assert report.top_keys(1) == [("k1", 3)]
    assert report.without_key == 1
    assert report.as_dict(keys=1)["keys"] == [{"key": "k1", "count": 3}]
    json.dumps(report.as_dict())


def test_more_than_a_page(app: Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_PAGE", 7)
    fill(app, "orders", [{"age_s": 1, "key": f"k{number}"} for number in range(100)])
    report = sideline_report(app.store, "orders", now_s=NOW_S)
    assert (report.total, len(report.keys)) == (100, 100)


def test_nothing_there(app: Ignis) -> None:
    with pytest.raises(QueueNotFoundError):
        sideline_report(app.store, "orders")
    app.queue("orders").open()
    assert sideline_report(app.store, "orders").total == 0


def test_records_that_say_odd_things(app: Ignis) -> None:
    sideline = app.queue("orders").sideline
    metas = [b"\xff", msgspec.msgpack.encode({"reason": 5, "failed_at_ms": "soon"}), b""]
    records = [encode_record(b"1", meta=meta) for meta in metas]
    sideline.load_batches([(0, PackedBatch.pack(records))])
    report = sideline_report(app.store, "orders", now_s=NOW_S)
    assert report.by_reason() == {"5": 1, "unknown": 1, "unreadable": 1}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_KEYS", 10)
    monkeypatch.setattr(inspection, "MOST_ERRORS", 10)
    report = made(*({"key": f"k{number}", "error": "e" * number + "!"} for number in range(100)), {"key": "k1"})
    assert (len(report.keys), report.other_keys, report.total) == (10, 90, 101)
    assert len(report.failures["exception", "h"].errors) == 10


@pytest.mark.parametrize(
    ("age_s", "name"),
    [
        (-5, "under 1 min"),
        (0, "under 1 min"),
        (59.9, "under 1 min"),
        (60, "1 to 10 min"),
        (1e12, "over 7 d"),
        (None, "not known"),
    ],
)
def test_ages(age_s: float | None, name: str) -> None:
    assert age_name(age_s) == name


# -- csv


def test_csv_adds_up(tmp_path: Path) -> None:
    report = made(*({"key": text, "error": text, "reason": text, "handler": text, "age_s": 5} for text in HOSTILE), {})
    write_csv(report, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for what in ("age", "key"):
        assert sum(int(row["messages"]) for row in rows if row["what"] == what) == len(HOSTILE) + 1
    assert len([row for row in rows if row["what"] == "error"]) == len(HOSTILE)
    assert not [value for row in rows for value in row.values() if value.startswith(("=", "+", "-", "@"))]
    assert not [value for row in rows for value in row.values() if not value.isprintable()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a", "a"), ("=1+1", "'=1+1"), ("-1", "'-1"), ("@x", "'@x"), ("a\nb\t", "a\\nb\\t"), ("\r=1", "\\r=1")],
)
def test_cells(text: str, shown: str) -> None:
    assert cell(text) == shown


# -- the page


class Elements(HTMLParser):
    """Which elements and attributes a browser would see, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


PLAIN = [{"key": "k1", "error": "e", "reason": "exception", "handler": "h", "age_s": 5}]


def test_hostile_content_is_text(tmp_path: Path) -> None:
    for field in ("key", "error", "reason", "handler"):
        report = made(*({**PLAIN[0], "handler": f"h{number}", field: text} for number, text in enumerate(HOSTILE)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            page = render_page(report)
        found, plain = Elements(page), Elements(render_page(made(*PLAIN)))
        assert found.names <= plain.names | {"g", "use", "path"}, field
        assert not found.names & {"script", "img", "iframe", "object", "a", "image"}
        assert not [name for name in found.attributes if name.startswith("on")]
        assert not [
            value
            for value in found.values
            if "javascript:" in value or (value.startswith("http") and "//www.w3.org/" not in value)
        ]
        assert "<script>alert(1)</script>" in found.text
        assert "{{ 7 * 7 }}" in found.text
        assert "日本語のキー" in found.text
        assert "\x1b" not in page
        assert "\u202e" not in page
    assert "default-src 'none'" in page
    write_page(report, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text("utf-8") == page


def test_the_plots_show_the_figures() -> None:
    report = made(*PLAIN * 3, {"key": "other", "reason": "timeout", "age_s": 4_000})
    page = render_page(report)
    drawings = [part.split("</svg>")[0] for part in page.split("<svg")[1:]]
    assert len(drawings) == 3
    texts = [
        [one.text for one in ET.fromstring(f"<svg{drawing}</svg>").iter() if one.tag.endswith("text")]
        for drawing in drawings
    ]
    assert [text for text in texts[0] if text in ("exception", "timeout", "3", "1")] == [
        "exception",
        "timeout",
        "3",
        "1",
    ]
    assert {"under 1 min", "1 to 6 h", "messages"} <= set(texts[1])
    assert {"k1", "other", "3"} <= set(texts[2])
    assert render_page(report) == page, "the same figures make the same page"


def test_many_reasons_and_none() -> None:
    assert "other reasons" in render_page(made(*({"reason": f"r{number}", "age_s": 1} for number in range(20))))
    empty = render_page(SidelineReport("orders", NOW_S))
    assert "Nothing is in the sideline." in empty
    assert "<svg" not in empty


# -- the command


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"embedded://{tmp_path / 'store'}"
    with Ignis(url) as app:
        fill(app, "orders", [{"key": "k1\x1b", "error": "boom", "handler": "h", "age_s": 5}] * 3)
    page, table = tmp_path / "r.html", tmp_path / "r.csv"
    command = ["pipeline", "report", "orders", "--url", url]
    assert main([*command, "--html", str(page), "--csv", str(table)]) == 0
    out = capfd.readouterr().out
    assert "boom" in out
    assert "\x1b" not in out
    assert "Sideline of orders" in page.read_text("utf-8")
    assert table.read_text("utf-8").startswith("what,reason")
    assert main([*command, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["total"] == 3
    assert main(["pipeline", "report", "nothing", "--url", url]) == 5


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    "text", ["=1+1", "x;=1+1", 'x; "=1+1"', "x|@SUM(A1)", "a;b;-1", "+1", "x,=1", ";'=1", "\uff1d1", "=;="]
)
def test_no_cell_is_a_formula_wherever_a_spreadsheet_cuts(text: str, separator: str) -> None:
    out = io.StringIO()
    csv.writer(out).writerow(["what", cell(text), 1])
    for row in csv.reader(io.StringIO(out.getvalue()), delimiter=separator):
        assert not [one for one in row if one.strip(' "').startswith(tuple("=+-@\uff1d"))]
