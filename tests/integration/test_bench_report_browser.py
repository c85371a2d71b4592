"""The page of ``ignis bench --report`` in a real browser: light and dark, on a phone, without any request."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="no matplotlib: the extra report has it")
pytest.importorskip("playwright.sync_api", reason="no playwright: the extra dev has it")

from playwright.sync_api import sync_playwright

from ignis.bench_report import table
from ignis.bench_report.page import page, write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/system-packages test installs it"),
]


def rows(factor: float) -> list[dict[str, object]]:
    return [
        {
            **dict.fromkeys(table.MACHINE, "something long that has to be shown on a narrow screen too"), "measurement": what,
            "durability": "sync", "size_bytes": 100, "workers": 1, "peer": peer, "round": number, "messages": 10,
            "throughput_per_s": factor * (1_000_000 + number),
            **{f"latency_{name}_us": 1 + q for name, q in table.QUANTILES.items()},
            "latency_counts_us": "1.122:90 1.259:9 1000:1",
        }
        for what in ("publish", "drain")
        for peer in ("ignis", "redis lists")
        for number in (1, 2, 3)
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_axe_finds_nothing_and_it_fits_a_phone(scheme: str, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: the extra dev has it").Axe()
    runs = []
    for name, factor in (("run-1.csv", 1.0), ("run-2.csv", 0.5)):
        table.write(tmp_path / name, rows(factor))
        runs.append(table.read(tmp_path / name))
    write(tmp_path / "index.html", page(runs[1], runs[0], "run-2.csv", "run-1.csv"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            context = browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 740})
            shown = context.new_page()
            asked: list[str] = []
            errors: list[str] = []
            shown.on("request", lambda one: asked.append(one.url))
            shown.on("console", lambda one: errors.append(one.text))
            shown.goto((tmp_path / "index.html").as_uri())
            assert shown.locator("svg").count() == 6
            assert shown.locator("td.slower").count() == 4
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360
            clipped = (
                "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
            )
            assert shown.evaluate(clipped) == 0, "no table goes beyond the screen"
            first = shown.locator("td:not(:first-child)").first
            assert first.evaluate("one => getComputedStyle(one, '::before').content") == '"before, per s"'
            ink = shown.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
            assert ink == shown.evaluate("getComputedStyle(document.body).color"), (
                "the charts' text has the page's colour"
            )
            wrong = axe.run(shown).response["violations"]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in wrong] == []
            assert asked == [(tmp_path / "index.html").as_uri()]
            assert errors == []
        finally:
            browser.close()
