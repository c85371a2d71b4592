"""Each step's time as a ratio to a reference of the same run, beside the ratio that is kept in ``ratios.json``.

A machine that is slower makes the step and the reference slower alike, so that ratios can be compared where times cannot.
One that is busy makes single rounds slower: the reference is taken before and behind each step, and of both the best round
counts. Nothing fails by a time: the table is to be read. ``--update-ratios`` keeps the new ratios.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis

_KEPT = Path(__file__).with_name("ratios.json")
_REFERENCE = "reference"
_DOCUMENT = json.dumps([{"id": number, "name": f"row {number}", "values": [number / 7] * 4} for number in range(100)])
_best_s: dict[str, float] = {}
_references_s: dict[str, float] = {}
_REFERENCE_ROUNDS = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-ratios", action="store_true", help="keep this run's ratios in bench/micro/ratios.json")


@pytest.fixture(autouse=True)
def _noted(request: pytest.FixtureRequest, benchmark: Any, reference: Callable[[], object]) -> Iterator[None]:
    before_s = _best_round_s(reference)
    yield
    if benchmark.stats is not None:
        name = request.node.name.removeprefix("test_")
        per_call = benchmark.extra_info.get("steps", 1)
        _best_s[name] = benchmark.stats.stats.min / per_call
        _references_s[name] = min(before_s, _best_round_s(reference))


def _best_round_s(step: Callable[[], object]) -> float:
    best_s = float("inf")
    for _ in range(_REFERENCE_ROUNDS):
        began_s = time.perf_counter()
        step()
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s


@pytest.fixture
def measure(benchmark: Any) -> Callable[..., None]:
    """``measure(step, steps=1)``: times a function that does ``steps`` of what the test is named after."""

    def run(step: Callable[[], object], steps: int = 1) -> None:
        benchmark.extra_info["steps"] = steps
        benchmark(step)

    return run


@pytest.fixture
def app(tmp_path: Path) -> Iterator[ignis.Ignis]:
    """On the embedded store."""
    with ignis.Ignis(f"embedded://{tmp_path}/store") as made:
        yield made


@pytest.fixture(scope="session")
def reference() -> Callable[[], object]:
    """Work of C that makes Python objects, as most of what is measured here."""
    return lambda: json.loads(_DOCUMENT)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not _best_s:
        return
    kept: dict[str, float] = json.loads(_KEPT.read_text("utf-8")) if _KEPT.exists() else {}
    terminalreporter.section(f"steps beside the reference ({min(_references_s.values()) * 1e6:.1f} us)")
    terminalreporter.write_line(f"{'step':<32}{'us':>10}{'ratio':>10}{'kept':>10}{'change':>9}")
    ratios = {name: best_s / _references_s[name] for name, best_s in _best_s.items() if name != _REFERENCE}
    for name, ratio in ratios.items():
        before = kept.get(name)
        change = "" if before is None else f"{ratio / before - 1:+.0%}"
        shown = "" if before is None else f"{before:.5f}"
        terminalreporter.write_line(f"{name:<32}{_best_s[name] * 1e6:>10.2f}{ratio:>10.5f}{shown:>10}{change:>9}")
    if config.getoption("--update-ratios"):
        rounded = {name: float(f"{ratio:.3g}") for name, ratio in sorted(ratios.items())}
        _KEPT.write_text(json.dumps(rounded, indent=2) + "\n", "utf-8")
