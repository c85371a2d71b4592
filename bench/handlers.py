"""What a message costs by the kind of its handler: one at a time, in batches, as a coroutine.

Each drains a backlog of an embedded store, durability ``none``, with a handler that does nothing. They take turns. The processor
time is that of the whole process: claims, handler, acknowledgements.

``python -m bench.handlers``.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

import ignis
from bench.measure import Options
from bench.tables import console, show_environment


class Row(msgspec.Struct):
    """A small message that has to be decoded."""

    id: int
    name: str
    price: float


def plain(message: Any) -> None:
    """Gets one message, or a list of them."""


async def coroutine(message: Any) -> None:
    """Waits for nothing."""


async def waits(message: Any) -> None:
    """Waits for one turn of its loop."""
    await asyncio.sleep(0)


KINDS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "one at a time": (plain, {}),
    "batch_size=10": (plain, {"batch_size": 10}),
    "batch_size=100": (plain, {"batch_size": 100}),
    "batch_size=500": (plain, {"batch_size": 500}),
    "batch_size=10_000": (plain, {"batch_size": 10_000}),
    "coroutine": (coroutine, {}),
    "coroutine, concurrency=50": (coroutine, {"concurrency": 50}),
    "coroutine, concurrency=50, timeout_s=30": (coroutine, {"concurrency": 50, "timeout_s": 30}),
    "coroutine that waits, concurrency=50": (waits, {"concurrency": 50}),
    "coroutine that waits, concurrency=50, timeout_s=30": (waits, {"concurrency": 50, "timeout_s": 30}),
}
_BODIES: dict[str, tuple[Any, Any]] = {"bytes": (bytes, b"x" * 50), "a Struct": (Row, Row(1, "row", 0.5))}


def drain_s(directory: str, kind: str, body: str, count: int) -> tuple[float, float]:
    """(seconds, seconds of processor time) a message of such a handler."""
    (fn, options), (type_, message) = KINDS[kind], _BODIES[body]
    with ignis.Ignis(f"embedded://{directory}/{time.monotonic_ns()}") as app:
        queue = app.queue("jobs", type_, durability="none")
        queue.handler(**options)(fn)
        queue.publish_many([message] * count)
        began, used = time.monotonic(), time.process_time()
        app.start()
        while queue.main.pending() or queue.main.in_flight():
            time.sleep(0.002)
        return (time.monotonic() - began) / count, (time.process_time() - used) / count


@click.command()
@click.option("--messages", default=100_000, show_default=True, type=click.IntRange(1_000), help="Of each run.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 100), help="Turns.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(tempfile.gettempdir()),
    show_default=True,
    help="Where the stores are.",
)
def main(messages: int, runs: int, directory: Path) -> None:
    """What a message costs by the kind of its handler."""
    show_environment(Options(runs=runs, directory=directory.resolve()))
    for body in _BODIES:
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for _ in range(runs):
            for kind, one in found.items():
                with tempfile.TemporaryDirectory(dir=directory) as place:
                    one.append(drain_s(place, kind, body, messages))
        table = Table(title=f"{body}, {messages:,} messages, medians of {runs}")
        for column in ("handler", "messages/s", "processor time a message", "beside one at a time"):
            table.add_column(column, justify="left" if column == "handler" else "right")
        least = statistics.median(used for _, used in found["one at a time"])
        for kind, one in found.items():
            wall = statistics.median(s for s, _ in one)
            used = statistics.median(used for _, used in one)
            table.add_row(kind, f"{1 / wall:,.0f}", f"{used * 1e6:.2f} µs", f"{used / least:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
