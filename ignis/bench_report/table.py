"""The CSV of a run of the bench: one schema with a version, one row for each round of each measurement."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ignis.bench_report import distribution
from ignis.errors import ConfigError

__all__ = [
    "COLUMNS",
    "QUANTILES",
    "SCHEMA",
    "Change",
    "Series",
    "compare",
    "earlier",
    "median_of",
    "peer_rows",
    "read",
    "series",
    "write",
]

SCHEMA = 1
"""Raised when a column changes its meaning or goes away. A report compares with runs of its own schema only."""
QUANTILES = {
    "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999, "max": 1.0,
}  # fmt: skip
MACHINE = ("started_at_utc", "ignis_version", "python", "kernel", "cpu", "cores", "file_system")
SETTING = ("measurement", "durability", "size_bytes", "workers")
COLUMNS = (
    "schema", *MACHINE, *SETTING, "peer", "round", "messages", "duration_s", "throughput_per_s",
    *(f"latency_{name}_us" for name in QUANTILES), "problem", "note", "latency_counts_us",
)  # fmt: skip
_ADDED = ("note", "latency_counts_us")
"""Columns that the first runs of this schema have not; empty there."""
Row = Mapping[str, str]
_APART = 0.1
"""Medians that differ by less are never called a change."""


class Series(NamedTuple):
    """One measurement of one peer: what each of its rounds gave."""

    measurement: str
    durability: str
    size_bytes: str
    workers: str
    peer: str
    rates: tuple[float, ...]
    latencies_us: Mapping[str, tuple[float, ...]]
    problem: str
    notes: tuple[str, ...] = ()
    counts: Mapping[int, int] = {}
    """The times of the calls of all rounds, see `distribution`; empty where only percentiles are known."""
    shortest_s: float = math.inf
    """How long the shortest round took; infinity where that is not known."""

    @property
    def key(self) -> tuple[str, ...]:
        return self[:5]

    @property
    def setting(self) -> tuple[str, ...]:
        return self[:4]

    @property
    def is_ignis(self) -> bool:
        return self.peer.startswith("ignis")

    @property
    def median(self) -> float:
        return statistics.median(self.rates) if self.rates else math.nan

    def latency_us(self, name: str) -> float:
        values = self.latencies_us.get(name, ())
        return statistics.median(values) if values else math.nan

    @property
    def rounds(self) -> int:
        return len(self.rates) or max(map(len, self.latencies_us.values()), default=0)


def median_of(rounds: int) -> str:
    """What the median of so many rounds is called, so that nobody has to guess."""
    if rounds <= 1:
        return "one round"
    if rounds == 2:
        return "mean of 2 rounds"
    return f"median of {rounds} rounds" + ("" if rounds % 2 else ", the mean of the two in the middle")


class Change(NamedTuple):
    """A measurement of this run beside the same of the run before."""

    now: Series
    before: Series

    @property
    def ratio(self) -> float:
        return self.now.median / self.before.median

    @property
    def verdict(self) -> str:
        """ "slower" or "faster" only where no round of one run was as slow, or as fast, as one of the other."""
        if self.ratio < 1 - _APART and max(self.now.rates) < min(self.before.rates):
            return "slower"
        if self.ratio > 1 + _APART and min(self.now.rates) > max(self.before.rates):
            return "faster"
        return "within the spread"


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Writes a run. A column that a row has not is empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows({"schema": SCHEMA, **row} for row in rows)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a run. Raises ConfigError for a file that is none, or of another schema."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            columns = tuple(reader.fieldnames or ())
            if columns == tuple(one for one in COLUMNS if one not in _ADDED):
                columns, rows = COLUMNS, [{**row, **dict.fromkeys(_ADDED, "")} for row in rows]
            for row in rows:
                distribution.counted(row.get("latency_counts_us") or "")
    except (OSError, ValueError, csv.Error) as exc:
        raise ConfigError(f"{path} cannot be read as a run of the bench: {exc}") from exc
    if columns != COLUMNS or any(row["schema"] != str(SCHEMA) or None in row.values() for row in rows):
        raise ConfigError(f"{path} is no run of the bench of schema {SCHEMA}; move it elsewhere")
    return rows


def series(rows: Sequence[Row]) -> list[Series]:
    """The rounds of each measurement of each peer together, in the order of the rows."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((*(row[name] for name in SETTING), row["peer"]), []).append(row)
    made = []
    for (measurement, durability, size_bytes, workers, peer), group in found.items():
        latencies = {
            name: values
            for name in QUANTILES
            if (values := tuple(float(row[f"latency_{name}_us"]) for row in group if row[f"latency_{name}_us"]))
        }
        rates = tuple(float(row["throughput_per_s"]) for row in group if row["throughput_per_s"])
        problem = next((row["problem"] for row in group if row["problem"]), "")
        notes = tuple(dict.fromkeys(row["note"] for row in group if row["note"]))
        counts: Counter[int] = Counter()
        for row in group:
            counts += distribution.counted(row["latency_counts_us"])
        shortest_s = min((float(row["duration_s"]) for row in group if row["duration_s"]), default=math.inf)
        made.append(
            Series(
                measurement, durability, size_bytes, workers, peer, rates, latencies, problem, notes, counts, shortest_s
            )
        )
    return made


def earlier(directory: Path, than: Path) -> Path | None:
    """The newest run in the directory before the one that is named so; their names sort by time."""
    before = [path for path in sorted(directory.glob("run-*.csv")) if path.name < than.name]
    return before[-1] if before else None


def compare(now: Sequence[Series], before: Sequence[Series]) -> list[Change]:
    """What both runs measured in the same setting."""
    known = {one.key: one for one in before if one.rates}
    return [Change(one, known[one.key]) for one in now if one.rates and one.key in known]


def peer_rows(path: Path, machine: Mapping[str, object]) -> list[dict[str, object]]:
    """Rows of the lines of JSON that ``python -m bench --json FILE`` of the repository writes: ignis beside its peers.

    A peer that was not there is a row with its problem. Raises ConfigError.
    """
    rows: list[dict[str, object]] = []
    try:
        for line in path.read_text("utf-8").splitlines():
            if line.strip():
                rows += _rows_of(json.loads(line), machine)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"--peers: {path} has not the lines that `python -m bench --json` writes: {exc}") from exc
    return rows


def _rows_of(line: Mapping[str, Any], machine: Mapping[str, object]) -> list[dict[str, object]]:
    parameters = line["parameters"]
    others = ", ".join(f"{name} {value}" for name, value in parameters.items() if name not in ("size_bytes", "workers"))
    common: dict[str, object] = {
        **machine,
        "started_at_utc": line["started_at"],
        "python": line["python"],
        "kernel": line["kernel"],
        "cpu": line["cpu"],
        "cores": line["cores"],
        "measurement": f"{line['bench']}, {others}" if others else line["bench"],
        "durability": line.get("durability", ""),
        "size_bytes": parameters["size_bytes"],
        "workers": parameters.get("workers", ""),
        "peer": line["peer"],
    }
    if line.get("problem"):
        return [{**common, "round": 1, "problem": str(line["problem"]).strip().splitlines()[-1]}]
    rates = line.get("throughput_per_s", {}).get("runs", [])
    latencies = {
        name: line[f"{key}_ns"]["runs"] for name in QUANTILES if f"{(key := name.replace('_', '.'))}_ns" in line
    }
    counts = line.get("latency_counts_us", [])
    count = max([len(rates), *map(len, latencies.values())], default=0)
    return [
        {
            **common,
            "round": index + 1,
            "messages": line.get("n", ""),
            "throughput_per_s": rates[index] if index < len(rates) else "",
            **{f"latency_{name}_us": runs[index] / 1e3 for name, runs in latencies.items() if index < len(runs)},
            "latency_counts_us": counts[index] if index < len(counts) else "",
        }
        for index in range(count)
    ]
