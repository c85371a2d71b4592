"""``ignis bench``: what this machine gives, in a minute and without installing anything."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ignis._version import __version__
from ignis.app import Ignis
from ignis.bench_report import distribution
from ignis.bench_report.table import QUANTILES, median_of
from ignis.cli import exit_codes, output
from ignis.cli.bench_report import check_report, write_report
from ignis.cli.state import State, common_options, pass_state
from ignis.errors import ConfigError, IgnisError
from ignis.private_files import make_temporary
from ignis.queue import Queue

__all__ = ["bench"]

_ONE_BY_ONE_S = 1.0
_MOST_ONE_BY_ONE = 20_000
_DRAIN_TIMEOUT_S = 600.0
VOLATILE_FILE_SYSTEMS = frozenset(("tmpfs", "ramfs", "devtmpfs"))


@click.command(short_help="Measures publishing and draining on this machine.")
@click.option(
    "--messages",
    default=100_000,
    show_default=True,
    type=click.IntRange(100, 50_000_000),
    help="How many; of some measurements fewer or more, which is said.",
)
@click.option("--size", default=100, show_default=True, type=click.IntRange(1, 1 << 20), help="Bytes of a message.")
@click.option(
    "--durability",
    default="sync",
    show_default=True,
    type=click.Choice(["sync", "interval", "none"]),
    help="Of the queue.",
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Threads that drain.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the store is made and removed again.  [default: the system's temporary directory]",
)
@click.option("--runs", type=click.IntRange(1, 100), help="Rounds of everything.  [default: 1; with --report: 3]")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a CSV of this run, and a page about it beside the run before, into this directory.",
)
@click.option(
    "--peers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --report: JSON lines of the repository's bench (python -m bench --json FILE), to stand beside.",
)
@common_options
@pass_state
def bench(
    state: State, messages: int, size: int, durability: str, workers: int, directory: Path | None,
    runs: int | None, report: Path | None, peers: Path | None,
) -> int:  # fmt: skip
    """Measures publishing and draining on this machine, in a store of its own.

    Every figure counts until the messages are durable; draining counts until the acknowledgements are. The repository's
    own benches (make bench) measure more, beside other systems.
    """
    if state.url is not None:
        raise ConfigError("--url: the bench makes a store of its own and removes it; name a directory with --dir")
    if peers is not None and report is None:
        raise ConfigError("--peers: it stands in the report; name a directory with --report")
    if report is not None:
        check_report(report)  # before minutes of measuring
    state.log_to_stderr("error")
    place = Path(make_temporary("ignis-bench-", directory))
    try:
        file_system = _file_system(place)
        if durability != "none" and file_system in VOLATILE_FILE_SYSTEMS:
            output.warning(
                f"{place.parent} is {file_system}: nothing there survives a power cut; name a disk with --dir"
            )
        count = runs or (3 if report is not None else 1)
        rounds = [_measure(place / str(number), messages, size, durability, workers) for number in range(count)]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    results = _medians(rounds)
    environment: dict[str, Any] = {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "file_system": file_system,
        "durability": durability,
        "size_bytes": size,
        "messages": messages,
        "workers": workers,
        "runs": len(rounds),
        "figures": median_of(len(rounds)),
    }
    if report is not None:
        environment["report"] = str(write_report(report, environment, rounds, peers))
    if state.json:
        output.document({**environment, "results": results})
        return exit_codes.OK
    rows = [
        [
            one["what"],
            output.number(one["messages"]),
            output.age(one["seconds"]),
            output.NONE if one["per_s"] is None else f"{one['per_s']:,.0f}/s",
            _call(one),
        ]
        for one in results
    ]
    if report is not None:
        click.echo(f"the page: {environment['report']}")
    title = f"{size} bytes a message, durability {durability}, {file_system}, Python {environment['python']}"
    columns = ["what", "messages", "time", "rate", "one call p50 / p99"]
    output.table(columns, rows, title=title, right=columns[1:])
    output.remark(f"every figure is {'of' if len(rounds) == 1 else 'the'} {environment['figures']}, as in a report")
    for one in results:
        if one["note"]:
            output.remark(f"{one['what']}: {one['note']}")
    return exit_codes.OK


def _medians(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each figure of each measurement the median of the rounds: what the report shows, too."""
    return [_median(same) for same in zip(*rounds, strict=True)]


def _median(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rates = [one["per_s"] for one in same if one["per_s"] is not None]
    found: dict[str, Any] = {
        "what": same[0]["what"],
        "messages": round(statistics.median(one["messages"] for one in same)),
        "seconds": statistics.median(one["seconds"] for one in same),
        "per_s": statistics.median(rates) if rates else None,
        "per_s_of_rounds": rates,
        "note": next((one["note"] for one in same if one["note"]), ""),
    }
    timed = [one["quantiles_s"] for one in same if "quantiles_s" in one]
    if timed:
        found["quantiles_s"] = {name: statistics.median(one[name] for one in timed) for name in QUANTILES}
        found["p50_s"], found["p99_s"] = found["quantiles_s"]["p50"], found["quantiles_s"]["p99"]
    return found


def _measure(place: Path, messages: int, size: int, durability: str, workers: int) -> list[dict[str, Any]]:
    body = os.urandom(size)
    url = f"embedded://{place / 'store'}"
    settings = {"durability": durability, "shovel_interval_s": 0, "max_message_bytes": max(size, 1 << 10)}
    with Ignis(url) as app:
        # Two queues: a message published alone is stored alone, and draining such ones is another figure.
        single, bulk = app.queue("single", bytes, **settings), app.queue("bulk", bytes, **settings)
        handled = _Counter()
        for queue in (single, bulk):
            queue.handler(concurrency=workers)(handled)
            queue.open()
        alone = _one_by_one(single, body, messages)
        results = [alone, _many(bulk, body, messages), _buffered(bulk, body, messages)]
        drained = _drain(app, single, handled, alone["messages"], "drain, published one at a time")
        note = f"fewer than the {messages:,} that were asked for: those that were published one at a time"
        results.append({**drained, "note": note if alone["messages"] < messages else ""})
        note = f"more than the {messages:,} that were asked for: so many of publish_many, and so many of the publisher"
        results.append({**_drain(app, bulk, handled, 2 * messages, "drain, published in bulk"), "note": note})
        return results


class _Counter:
    """A handler that does nothing but count; several threads call it, and adding to a list is one step for them."""

    def __init__(self) -> None:
        self.calls: list[None] = []
        self.__qualname__ = "count"

    def __call__(self, body: bytes) -> None:
        self.calls.append(None)


def _one_by_one(queue: Queue[bytes], body: bytes, messages: int) -> dict[str, Any]:
    calls: list[float] = []
    clock = time.perf_counter
    most = min(messages, _MOST_ONE_BY_ONE)
    began = clock()
    while len(calls) < most and clock() - began < _ONE_BY_ONE_S:
        start = clock()
        queue.publish(body)
        calls.append(clock() - start)
    result = _result("publish, one at a time", len(calls), clock() - began, calls)
    if len(calls) < messages:
        bound = f"{_MOST_ONE_BY_ONE:,} of these" if len(calls) == most else f"{_ONE_BY_ONE_S:g} s of these"
        result["note"] = f"fewer than the {messages:,} that were asked for: {bound} are enough"
    return result


def _many(queue: Queue[bytes], body: bytes, messages: int) -> dict[str, Any]:
    began = time.perf_counter()
    queue.publish_many([body] * messages)
    return _result("publish_many", messages, time.perf_counter() - began)


def _buffered(queue: Queue[bytes], body: bytes, messages: int) -> dict[str, Any]:
    calls: list[float] = []
    clock = time.perf_counter
    began = clock()
    with queue.publisher() as publisher:
        send = publisher.send
        for index in range(messages):
            if index & 15:
                send(body)
            else:  # looking at the clock costs as much as sending: one in 16 is timed
                start = clock()
                send(body)
                calls.append(clock() - start)
        publisher.flush()
        seconds = clock() - began
    return _result("publisher (buffered)", messages, seconds, calls)


def _drain(app: Ignis, queue: Queue[bytes], handled: _Counter, messages: int, what: str) -> dict[str, Any]:
    handled.calls.clear()
    began = time.perf_counter()
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    app.start([queue.name])
    try:
        # Asking the store takes time from it: not before the handler has seen everything.
        while len(handled.calls) < messages or queue.main.pending() or queue.main.in_flight():
            if not app.running or time.monotonic() > deadline:
                raise IgnisError(f"draining stalled with {queue.main.pending():,} messages left")
            time.sleep(0.005)
        seconds = time.perf_counter() - began
    finally:
        app.stop()
    if len(handled.calls) != messages:
        raise IgnisError(f"{len(handled.calls):,} messages were handled, {messages:,} were published")
    return _result(what, messages, seconds)


def _result(what: str, messages: int, seconds: float, calls: list[float] | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "what": what,
        "messages": messages,
        "seconds": seconds,
        "per_s": messages / seconds if seconds else None,
        "note": "",
    }
    if calls and len(calls) > 1:
        ordered = sorted(calls)
        out["quantiles_s"] = {name: distribution.quantile(ordered, q) for name, q in QUANTILES.items()}
        out["counts_us"] = distribution.text(distribution.buckets(one * 1e6 for one in calls))
    return out


def _call(one: dict[str, Any]) -> str:
    return f"{_span(one['p50_s'])} / {_span(one['p99_s'])}" if "p50_s" in one else "-"


def _span(seconds: float) -> str:
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _file_system(path: Path) -> str:
    """The type of the file system that holds ``path``; "unknown" where the system does not say."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    best, found = "", "unknown"
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split(" ")[4]
        inside = str(path.resolve()) == mount or str(path.resolve()).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, right.split(" ")[0]
    return found
