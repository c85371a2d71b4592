"""The demo's report: what happened, how fast, and whether the answer is the file's own."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ignis.demo.data import CarrierStats, FlightData
from ignis.demo.results import read_entries
from ignis.demo.settings import BUSY_CARRIER, BUSY_FAILURES

__all__ = ["Latency", "Report", "show"]


class Latency(msgspec.Struct):
    """From publish to handled, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Carrier(msgspec.Struct):
    """One carrier's answer, as the workers computed it, and whether the file says the same. Delays in minutes."""

    carrier: str
    name: str
    flights: int
    cancelled: int
    mean_dep_delay: float | None
    mean_arr_delay: float | None
    equal: bool


def latency_of(values_us: list[int]) -> Latency | None:
    """None without values."""
    if not values_us:
        return None
    ordered = sorted(values_us)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1000

    return Latency(len(ordered), at(0.5), at(0.99), at(0.999), ordered[-1] / 1000)


@dataclass
class Report:
    """Everything that is shown. ``count`` fills in what the workers' results say."""

    published: int
    steady: int
    rate: int
    workers: int
    url: str
    sidelined: dict[str, int]
    shovelled: int
    swept: int
    killed_pid: int
    killed_held: int
    publish_s: float
    publisher_memory_bytes: int | None
    worker_memory_bytes: int | None
    seconds: float
    busy_failures: int = BUSY_FAILURES
    """So often the handler failed for each flight of one carrier; 0 where the store keeps nothing for another attempt."""
    handled: int = 0
    lost: int = 0
    invented: int = 0
    duplicates: int = 0
    retried: int = 0
    not_retried: int = 0
    handle_s: float = 0.0
    handled_in_time: int = 0
    steady_latency: Latency | None = None
    backlog_latency: Latency | None = None
    carriers: list[Carrier] = field(default_factory=list)

    def count(self, directory: Path, data: FlightData) -> None:
        """Reads what the workers noted, counts every flight once, and compares each carrier with the file."""
        seen: set[int] = set()
        computed: dict[str, CarrierStats] = {}
        steady_us: list[int] = []
        backlog_us: list[int] = []
        first_us = last_us = 0
        for entry in read_entries(directory):
            if entry.row in seen:
                self.duplicates += 1
                continue
            seen.add(entry.row)
            expected_attempt = self.busy_failures + 1 if entry.carrier == BUSY_CARRIER else 1
            self.retried += entry.attempt == expected_attempt > 1
            self.not_retried += entry.attempt != expected_attempt
            computed.setdefault(entry.carrier, CarrierStats()).add(entry.dep_delay, entry.arr_delay)
            if entry.attempts:
                continue  # it waited in the sideline or for its next attempt, which says nothing about speed
            waited_us = entry.handled_at_us - entry.published_at_us
            if entry.row < self.steady:
                steady_us.append(waited_us)
                continue
            backlog_us.append(waited_us)
            first_us = min(first_us or entry.handled_at_us, entry.handled_at_us)
            last_us = max(last_us, entry.handled_at_us)
        rows = {flight.row for flight in data.flights}
        self.handled = len(seen)
        self.lost = len(rows - seen)
        self.invented = len(seen - rows)
        self.handled_in_time, self.handle_s = len(backlog_us), (last_us - first_us) / 1e6
        self.steady_latency, self.backlog_latency = latency_of(steady_us), latency_of(backlog_us)
        self.carriers = [
            _carrier(code, data, computed.get(code, CarrierStats()))
            for code in sorted(data.expected.keys() | computed.keys())
        ]

    @property
    def answer_equal(self) -> bool:
        """Whether every carrier's figures are those of the file, exactly."""
        return all(one.equal for one in self.carriers)

    @property
    def ok(self) -> bool:
        return not self.lost and not self.invented and not self.not_retried and self.answer_equal

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        out = {
            name: value for name, value in vars(self).items() if name not in ("carriers", "handle_s", "handled_in_time")
        }
        full_speed = self.published - self.steady
        out["publish_per_s"] = round(full_speed / self.publish_s) if self.publish_s else None
        out["handle_per_s"] = round(self.handled_in_time / self.handle_s) if self.handle_s else None
        out["carriers"] = self.carriers
        out["answer_equal"], out["ok"] = self.answer_equal, self.ok
        return out


def _carrier(code: str, data: FlightData, computed: CarrierStats) -> Carrier:
    return Carrier(
        code,
        data.names.get(code, code),
        computed.flights,
        computed.cancelled,
        computed.mean_dep_delay,
        computed.mean_arr_delay,
        computed == data.expected.get(code),
    )


def show(report: Report, *, as_json: bool, kept: Path | None) -> bool:
    """Prints the report; returns whether all is well."""
    if as_json:
        out = report.as_dict()
        if kept is not None:
            out["directory"] = str(kept)
        sys.stdout.write(msgspec.json.encode(out).decode() + "\n")
        return report.ok
    if sys.stdout.isatty():
        _print(report, kept, Console(file=sys.stdout, highlight=False))
        return report.ok
    # A pipe has no width of its own: wide enough that no line is folded, and without the padding of the last column.
    text = io.StringIO()
    _print(report, kept, Console(file=text, highlight=False, width=200, color_system=None))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))
    return report.ok


def _print(report: Report, kept: Path | None, console: Console) -> None:
    console.print()
    console.print(_carrier_table(report))
    console.print(_figures_table(report))
    if kept is not None:
        console.print(f"Kept in {escape(str(kept))}", soft_wrap=True)
    if report.ok:
        console.print(
            f"[bold green]lost: 0[/] of {report.published:,}; all {len(report.carriers)} carriers equal what the file "
            f"says. {report.seconds:.1f} s in all.",
            soft_wrap=True,
        )
    else:
        console.print(f"[bold red]{_what_is_wrong(report)}[/]", soft_wrap=True)


def _what_is_wrong(report: Report) -> str:
    differing = [one.carrier for one in report.carriers if not one.equal]
    parts = [f"lost: {report.lost:,} of {report.published:,}"]
    if report.invented:
        parts.append(f"never published but handled: {report.invented:,}")
    if report.not_retried:
        parts.append(f"handled at another attempt than the one that succeeds: {report.not_retried:,}")
    if differing:
        parts.append(f"figures differ from the file's for {', '.join(differing)}")
    return "; ".join(parts)


def _carrier_table(report: Report) -> Table:
    table = Table(
        title="Delays of the flights that left New York in 2013, in minutes",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
    )
    table.add_column("carrier", no_wrap=True)
    for name in ("flights", "cancelled", "mean departure delay", "mean arrival delay", "as in the file"):
        table.add_column(name, justify="right")
    for one in report.carriers:
        equal = "[green]yes[/]" if one.equal else "[bold red]NO[/]"
        cells = [f"{one.flights:,}", f"{one.cancelled:,}", _decimal(one.mean_dep_delay), _decimal(one.mean_arr_delay)]
        table.add_row(f"{one.carrier}  {one.name}", *cells, equal)
    return table


def _figures_table(report: Report) -> Table:
    table = Table(title="The run", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("figure", justify="right", style="bold", no_wrap=True)
    table.add_column("remark", style="dim")
    for row in _figures(report):
        table.add_row(*row)
    lost = f"[bold {'red' if report.lost else 'green'}]{report.lost:,}[/]"
    table.add_row("lost", lost, "published and never handled")
    return table


def _figures(report: Report) -> list[tuple[str, str, str]]:
    full_speed = report.published - report.steady
    rows = [
        (
            "published",
            f"{report.published:,}",
            f"{report.steady:,} at {report.rate:,}/s, then {full_speed:,} at full speed",
        ),
        ("handled", f"{report.handled:,}", f"by {report.workers} worker processes, each flight counted once"),
        (
            "handled twice",
            f"{report.duplicates:,}",
            "done by the killed worker, but not acknowledged; counted once",
        ),
    ]
    meaning = {
        "exception": "cancelled flights, refused by the handler at first",
        "abandoned": f"held by worker {report.killed_pid} when it was killed with -9",
    }
    rows += [
        (f"sidelined: {reason}", f"{count:,}", meaning.get(reason, "")) for reason, count in report.sidelined.items()
    ]
    rows += [
        ("swept", f"{report.swept:,}", "taken from the killed worker by the sweeper"),
        ("shovelled", f"{report.shovelled:,}", "brought back from the sideline, then handled"),
        ("publish rate", _rate(full_speed, report.publish_s), "one publisher, keyed, until the last was durable"),
        (
            "handling rate",
            _rate(report.handled_in_time, report.handle_s),
            "all workers, while publishing went on and after",
        ),
    ]
    if report.busy_failures:
        remark = f"flights of {BUSY_CARRIER}, each failing {report.busy_failures} times: called again 50 and 100 ms later at most"
        rows.append(("tried again", f"{report.retried:,}", remark))
    for name, latency, remark in (
        (
            "steady",
            report.steady_latency,
            f"publish to handled at {report.rate:,}/s: workers keep up",
        ),
        (
            "backlog",
            report.backlog_latency,
            "publish to handled at full speed: the wait in the backlog",
        ),
    ):
        if latency is not None:
            rows.append((f"{name} p50 / p99 / p99.9", _triple(latency), remark))
    rows.append(
        (
            "peak memory",
            f"{_mebibytes(report.publisher_memory_bytes)} / {_mebibytes(report.worker_memory_bytes)}",
            "publisher, holding all flights / largest worker; mapped pages apart",
        )
    )
    return rows


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


def _triple(latency: Latency) -> str:
    values = (latency.p50_ms, latency.p99_ms, latency.p999_ms)
    return " / ".join(f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in values) + " ms"


def _mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / (1 << 20):,.0f} MiB"
