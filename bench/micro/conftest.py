"""Each step's time as a ratio to a reference of the same run, beside the ratio that is kept in ``ratios.json``.

A machine that is slower, or busy, makes the step and the reference slower alike, so that ratios can be compared where times
cannot. Nothing fails by a time: the table is to be read. ``--update-ratios`` keeps the new ratios.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis

_KEPT = Path(__file__).with_name("ratios.json")
_REFERENCE = "reference"
_DOCUMENT = json.dumps([{"id": number, "name": f"row {number}", "values": [number / 7] * 4} for number in range(100)])
_medians_s: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-ratios", action="store_true", help="keep this run's ratios in bench/micro/ratios.json")


@pytest.fixture(autouse=True)
def _noted(request: pytest.FixtureRequest, benchmark: Any) -> Iterator[None]:
    yield
    if benchmark.stats is not None:
        per_call = benchmark.extra_info.get("steps", 1)
        _medians_s[request.node.name.removeprefix("test_")] = benchmark.stats.stats.median / per_call


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
    if _REFERENCE not in _medians_s:
        return
    kept: dict[str, float] = json.loads(_KEPT.read_text("utf-8")) if _KEPT.exists() else {}
    unit_s = _medians_s[_REFERENCE]
    terminalreporter.section(f"steps beside the reference ({unit_s * 1e6:.1f} us)")
    terminalreporter.write_line(f"{'step':<32}{'us':>10}{'ratio':>10}{'kept':>10}{'change':>9}")
    ratios = {name: median_s / unit_s for name, median_s in _medians_s.items() if name != _REFERENCE}
    for name, ratio in ratios.items():
        before = kept.get(name)
        change = "" if before is None else f"{ratio / before - 1:+.0%}"
        shown = "" if before is None else f"{before:.4f}"
        terminalreporter.write_line(f"{name:<32}{ratio * unit_s * 1e6:>10.2f}{ratio:>10.4f}{shown:>10}{change:>9}")
    if config.getoption("--update-ratios"):
        rounded = {name: float(f"{ratio:.3g}") for name, ratio in sorted({**kept, **ratios}.items())}
        _KEPT.write_text(json.dumps(rounded, indent=2) + "\n", "utf-8")
