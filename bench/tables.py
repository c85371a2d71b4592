"""Tables for people: figures with three digits, ratios to ignis, and whether a goal was met."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.measure import QUANTILES, Options, Result, Sample, environment, file_system

# A fixed width keeps tables whole where there is no terminal (a log file, a CI run).
console = Console(width=None if Console().is_terminal else 140, highlight=False)


@dataclass(frozen=True)
class Goal:
    """A figure that ignis set out to reach: ``value`` must be at least (or, ``at_most``, at most) ``target``.

    ``partial`` says that not every peer was measured, so that "the best peer" is only the best of the others.
    """

    text: str
    value: float
    target: float
    at_most: bool = False
    unit: str = "x"
    partial: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target

    def show(self) -> None:
        sign = "<=" if self.at_most else ">="
        if math.isnan(self.value):
            console.print(f"  goal {escape(self.text)} {sign} {self.target:g}{self.unit}: not measured", style="yellow")
            return
        word, style = ("met", "green") if self.met else ("MISSED", "bold red")
        if self.partial and self.met:
            word, style = "open: not every peer was measured", "yellow"
        line = f"  goal {escape(self.text)} {sign} {self.target:g}{self.unit}: {self.value:.3g} {word}"
        console.print(line, style=style)


def rate(value: float) -> str:
    """Messages a second, three digits."""
    if math.isnan(value):
        return "-"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}" if value / limit < 1000 else f"{value / limit:,.0f}{unit}"
    return f"{value:.3g}" if value < 99.5 else f"{value:,.0f}"


def duration(ns: float) -> str:
    """A time in the unit that fits it."""
    if math.isnan(ns):
        return "-"
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= limit:
            return f"{ns / limit:.3g} {unit}"
    return f"{ns:.0f} ns"


def spread(sample: Sample, show: Callable[[float], str]) -> str:
    """The median, and minimum and maximum when there was more than one run."""
    if not sample.values:
        return "-"
    if len(sample.values) == 1:
        return show(sample.median)
    return f"{show(sample.median)} ({show(sample.low)}..{show(sample.high)})"


def times(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}x"


def best(results: Sequence[Result], *, ignis: bool) -> float:
    """The highest median throughput among ignis' rows, or among its peers'."""
    return max((r.throughput.median for r in results if r.is_ignis is ignis and r.throughput.values), default=math.nan)


def incomplete(options: Options, results: Sequence[Result]) -> bool:
    """Whether a peer was left out, is missing or failed: then nothing can be said about the best of all."""
    return bool(options.only) or any(result.problem for result in results if not result.is_ignis)


def show_environment(options: Options) -> None:
    """The heading of every report."""
    env = environment()
    first, second = options.cores
    pinned = "not pinned" if first is None else f"producer on core {first}, consumer on core {second}"
    console.print(
        f"commit {env['commit']} | {env['cpu']}, {env['cores']} cores | {env['kernel']} | Python {env['python']} | "
        f"{options.directory} on {file_system(options.directory)} | {pinned} | {options.runs} runs of "
        f"{options.seconds:g} s, median (min..max)",
        style="dim",
    )


def throughput_table(title: str, results: Sequence[Result], *, caption: str = "", with_latency: bool = False) -> None:
    """One row a peer, fastest first: throughput, how many times ignis is faster, and what the row's words mean."""
    if not results:
        return
    table = _table(title, caption)
    table.add_column("peer", no_wrap=True)
    table.add_column("messages/s", justify="right", no_wrap=True)
    table.add_column("ignis / peer", justify="right", no_wrap=True)
    if with_latency:
        for name, _ in QUANTILES:
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    ours = best(results, ignis=True)
    for result in sorted(results, key=_by_throughput):
        if result.problem:
            cells = [escape(result.peer), "-", "-", *(["-"] * len(QUANTILES) if with_latency else []), _problem(result)]
        else:
            cells = [escape(result.peer), spread(result.throughput, rate), times(ours / result.throughput.median)]
            if with_latency:
                cells += [duration(result.latency(name)) for name, _ in QUANTILES]
            cells.append(escape(result.note))
        table.add_row(*cells, style="bold" if result.is_ignis else None)
    console.print(table)


def latency_table(title: str, results: Sequence[Result], *, caption: str = "", show_rate: bool = False) -> None:
    """One row a peer, lowest median first: p50 with its spread, p99, p99.9, max, and the ratio of the medians."""
    if not results:
        return
    table = _table(title, caption)
    table.add_column("peer", no_wrap=True)
    for name, _ in QUANTILES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("p50: peer / ignis", justify="right")
    if show_rate:
        table.add_column("messages/s", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    ours = min((r.latency("p50") for r in results if r.is_ignis and r.latency_ns), default=math.nan)
    for result in sorted(results, key=_by_latency):
        if result.problem:
            cells = [escape(result.peer), *["-"] * (len(QUANTILES) + 1 + show_rate), _problem(result)]
        else:
            cells = [escape(result.peer), spread(result.latency_ns["p50"], duration)]
            cells += [duration(result.latency(name)) for name, _ in QUANTILES[1:]]
            cells.append(times(result.latency("p50") / ours))
            if show_rate:
                cells.append(rate(result.throughput.median))
            cells.append(escape(result.note))
        table.add_row(*cells, style="bold" if result.is_ignis else None)
    console.print(table)


def grid_table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Result | None]]], *, caption: str = ""
) -> None:
    """Throughput over one varied parameter: a row a peer, a column a value."""
    if not rows:
        return
    table = _table(title, caption)
    table.add_column("peer", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, cells in rows:
        shown = [_grid_cell(cell) for cell in cells]
        table.add_row(escape(name), *shown, style="bold" if name.startswith("ignis") else None)
    console.print(table)


def _grid_cell(result: Result | None) -> str:
    if result is None:
        return ""
    return "failed" if result.problem else rate(result.throughput.median)


def _table(title: str, caption: str) -> Table:
    return Table(
        title=escape(title),
        caption=escape(caption) or None,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )


def _problem(result: Result) -> str:
    # Of a traceback the last line says what went wrong; the JSON line has all of it.
    return f"[bold red]{escape(result.problem.strip().splitlines()[-1])}[/]"


def _by_throughput(result: Result) -> float:
    return math.inf if result.problem else -result.throughput.median


def _by_latency(result: Result) -> float:
    value = result.latency("p50")
    return math.inf if result.problem or math.isnan(value) else value
