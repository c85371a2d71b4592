"""``docs/metrics.md`` is generated: it must be what the code says, and have all that the code shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ignis import metrics
from ignis.metric_catalogue import COUNTER, HISTOGRAM
from ignis.metrics_page import SECTIONS, reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
ALL = [metric for _, _, some in SECTIONS for metric in some]
NAME = re.compile(r"\bignis_[a-z_]+\b")
NO_METRICS = re.compile(
    r"ignis_(app|mq|clock|arrays|ignis_arrays|queues|on_memory|locks|mags)\b|ignis_array_queue_v|ignis_store_?$|ignis_empty_claims"
)


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run: python -m ignis.metrics_page > docs/metrics.md"


def test_the_command_prints_the_page_and_nothing_else() -> None:
    command = [sys.executable, "-m", "ignis.metrics_page"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, reference(), "")


def test_the_page_has_what_is_shown_and_nothing_else() -> None:
    assert sorted(one.name for one in ALL) == sorted(metrics._METRICS)


def test_every_metric_says_what_it_is() -> None:
    for one in ALL:
        assert one.unit, one.name
        assert one.says.endswith("."), one.name
        assert (one.kind == COUNTER) == one.name.endswith("_total"), one.name
        assert one.kind == HISTOGRAM or not one.name.endswith(("_count", "_sum", "_bucket")), one.name


def test_no_page_names_a_metric_that_is_not_there() -> None:
    if not (ROOT / "csrc").is_dir():
        pytest.skip("no repository around the tests")
    shown = {one.name for one in ALL}
    shown |= {f"{one.name}_{part}" for one in ALL if one.kind == HISTOGRAM for part in ("bucket", "sum", "count")}
    files = {path.stem for path in (ROOT / "csrc").glob("ignis_*.?")}
    wrong = {
        f"{page.name}: {name}"
        for page in (ROOT / "docs").glob("*.md")
        for name in NAME.findall(page.read_text("utf-8"))
        if name not in shown | files and not NO_METRICS.match(name)
    }
    assert wrong == set()
