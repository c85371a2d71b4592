"""``ignis bench --report``: the CSV of a run, and the page about it."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ignis.bench_report.table import earlier, peer_rows, read, write
from ignis.errors import ConfigError

__all__ = ["check_report", "write_report"]


def check_report(directory: Path) -> None:
    """Raises ConfigError where matplotlib is missing or the directory cannot be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--report: matplotlib is missing: pip install 'ignis-mq[report]'")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"--report: {directory}: {exc.strerror}") from exc
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"--report: {directory} cannot be written")


def write_report(
    directory: Path, environment: Mapping[str, Any], rounds: Sequence[Sequence[Mapping[str, Any]]], peers: Path | None
) -> Path:
    """Writes ``run-TIME.csv`` and ``index.html``, and returns the page's path. The page compares with the run before."""
    from ignis.bench_report.page import page
    from ignis.bench_report.page import write as write_page

    now = time.time()
    machine = {
        "started_at_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "ignis_version": environment["version"],
        "python": environment["python"],
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu": _processor(),
        "cores": environment["cores"],
        "file_system": environment["file_system"],
    }
    rows = [
        {
            **machine,
            "measurement": one["what"],
            "durability": environment["durability"],
            "size_bytes": environment["size_bytes"],
            "workers": environment["workers"],
            "peer": "ignis",
            "round": number,
            "messages": one["messages"],
            "duration_s": one["seconds"],
            "throughput_per_s": one["per_s"],
            **{f"latency_{name}_us": value * 1e6 for name, value in one.get("quantiles_s", {}).items()},
            "note": one.get("note", ""),
            "latency_counts_us": one.get("counts_us", ""),
        }
        for number, results in enumerate(rounds, 1)
        for one in results
    ]
    rows += [] if peers is None else peer_rows(peers, machine)
    # To the microsecond, so that the names of two runs differ and sort by time.
    path = directory / f"run-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}.{int(now % 1 * 1e6):06}Z.csv"
    before = earlier(directory, path)
    stored = [] if before is None else read(before)
    write(path, rows)
    shown = directory / "index.html"
    write_page(shown, page(read(path), stored, path.name, before.name if before else ""))
    return shown


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
