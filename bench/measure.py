"""What every bench needs: options, repetition, percentiles, the machine's description and JSON lines.

A figure is never a single run: :class:`Sample` keeps the value of each run and shows the median with minimum and
maximum. Percentiles come from sorted arrays of every single observation, so nothing is lost in buckets.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ignis.bench_report import distribution
from ignis.bench_report.distribution import quantile

REPOSITORY = Path(__file__).resolve().parent.parent
# File systems that keep nothing through a power cut: a "durable" figure taken there would be a lie.
VOLATILE_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


@dataclass(frozen=True)
class Options:
    """What the command line decided.

    ``seconds`` bounds one timed run, ``runs`` says how many there are of each. ``directory`` is where stores and
    servers keep their files. ``only`` holds the peers asked for (empty = all).
    """

    runs: int = 5
    seconds: float = 1.0
    size_bytes: int = 100
    quick: bool = False
    pin: bool = True
    directory: Path = Path("/tmp")
    only: frozenset[str] = frozenset()
    json_path: Path | None = None
    met: set[str] = field(default_factory=set, compare=False)
    """Of `only`: what some peer's name had."""

    def wants(self, name: str) -> bool:
        meant = [part for part in self.only if part in name]
        self.met.update(meant)
        return not self.only or bool(meant)

    @property
    def cores(self) -> tuple[int | None, int | None]:
        """The cores of the producer and of the consumer, or (None, None) when they are not pinned."""
        if not self.pin or not hasattr(os, "sched_getaffinity"):
            return (None, None)
        free = sorted(os.sched_getaffinity(0))
        return (free[0], free[1]) if len(free) > 1 else (None, None)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p99, p99.9 and max of the values."""
    ordered = sorted(values)
    return {name: quantile(ordered, q) for name, q in QUANTILES}


@dataclass
class Sample:
    """One quantity over several runs."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return statistics.median(self.values) if self.values else math.nan

    @property
    def low(self) -> float:
        return min(self.values, default=math.nan)

    @property
    def high(self) -> float:
        return max(self.values, default=math.nan)

    def as_json(self) -> dict[str, float | list[float]]:
        return {"median": self.median, "min": self.low, "max": self.high, "runs": list(self.values)}


@dataclass
class Result:
    """Everything measured about one peer in one setting, over all runs.

    ``throughput`` is in messages a second, ``latency_ns`` maps p50, p99, p99.9 and max to nanoseconds,
    ``latency_counts_us`` has the distribution of each run as counts (`ignis.bench_report.distribution`). ``problem`` is
    set when there is nothing to show: the peer is missing or failed.
    """

    peer: str
    durability: str = ""
    note: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    n: int = 0
    throughput: Sample = field(default_factory=Sample)
    latency_ns: dict[str, Sample] = field(default_factory=dict)
    latency_counts_us: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_ignis(self) -> bool:
        return self.peer.startswith("ignis")

    def add_latencies(self, values_ns: Iterable[float]) -> None:
        """Takes the observations of one run."""
        values_ns = list(values_ns)
        for name, value in quantiles(values_ns).items():
            self.latency_ns.setdefault(name, Sample()).add(value)
        if len(values_ns) > 1:  # a single one, such as a mean over a run, is no distribution
            self.latency_counts_us.append(distribution.text(distribution.buckets(one / 1e3 for one in values_ns)))

    def latency(self, name: str) -> float:
        sample = self.latency_ns.get(name)
        return sample.median if sample else math.nan


@functools.cache
def environment() -> dict[str, Any]:
    """The machine, the commit and the interpreter: what a figure means nothing without."""
    return {
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def file_system(path: Path) -> str:
    """The type of the file system that holds ``path`` ("unknown" where /proc/mounts is not there)."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    resolved = path.resolve()
    best, kind = -1, "unknown"
    for line in mounts:
        _, mount_point, mount_kind, *_ = line.split(" ")
        point = Path(mount_point.replace("\\040", " "))
        # >= : of two mounts on one point the later one is what a path sees.
        if (resolved == point or point in resolved.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), mount_kind
    return kind


class Recorder:
    """Writes one JSON line for each result, to standard output and, when asked, to the end of a file."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.problems = 0

    def write_all(self, bench: str, results: Iterable[Result]) -> None:
        """Records the results of one table."""
        for result in results:
            self.write(bench, result)
        sys.stdout.write("\n")

    def write(self, bench: str, result: Result) -> None:
        """Records one result. A failed peer is recorded too: silence would read as success."""
        line: dict[str, Any] = {"bench": bench, "peer": result.peer}
        if result.durability:
            line["durability"] = result.durability
        if result.problem:
            self.problems += 1
            line["problem"] = result.problem
        else:
            line["n"] = result.n
            if result.throughput.values:
                line["throughput_per_s"] = result.throughput.as_json()
            for name, sample in result.latency_ns.items():
                line[f"{name}_ns"] = sample.as_json()
            if result.latency_counts_us:
                line["latency_counts_us"] = result.latency_counts_us
        line.update(result.extra)
        line["parameters"] = {"size_bytes": self.options.size_bytes, **result.parameters}
        line["pinned_cores"] = [core for core in self.options.cores if core is not None]
        line.update(environment())
        text = json.dumps(line, sort_keys=False, allow_nan=False, default=str)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if self.options.json_path is not None:
            with self.options.json_path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
