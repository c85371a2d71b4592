"""How the embedded store's figures change as a store grows: one curve for each thing that grows.

Every point is a store of its own in an empty directory. One process loads the messages in batches, a second one opens what
the first has left, claims everything and deletes it; both go through the store's own interface, so that no handler is in the
figures. Beside each rate of loading stands a plain append of as many bytes with the same batches to one file, taken right
after it: where the disk or the page cache bends, both bend.

``python -m bench.growth backlog --most 1e8``; ``--help`` shows the curves.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.table import Table

from bench.measure import Options, Recorder, Result
from bench.memory import Watch
from bench.processes import BenchError, Gate, Task, run_together
from bench.tables import console, duration, rate, show_environment

_BATCH_BYTES = 1 << 20
_LARGEST_BATCH = 10_000
_CLAIM = 1_000
_LIMIT_S = 3_600.0
_IDS = "growth"


@dataclass(frozen=True)
class Point:
    """One store: ``count`` messages of ``size_bytes`` over ``queues`` magazines of ``shards`` shards."""

    count: int
    size_bytes: int = 100
    shards: int = 32
    queues: int = 1
    durability: str = "none"
    alone: bool = False

    @property
    def batch(self) -> int:
        """Messages loaded by one call: bounded in number and in bytes, or one."""
        if self.alone:
            return 1
        return max(1, min(_LARGEST_BATCH, self.count // self.queues, _BATCH_BYTES // self.size_bytes))

    @property
    def names(self) -> list[str]:
        return [f"{_IDS}{number}" for number in range(self.queues)]


@dataclass
class Figures:
    """What was seen at a point; times in seconds, memory and room in bytes."""

    load_per_s: float = 0.0
    append_per_s: float = 0.0
    drain_per_s: float = 0.0
    open_s: float = 0.0
    load_anonymous_bytes: int = 0
    drain_anonymous_bytes: int = 0
    room_bytes: int = 0
    living_bytes: int = 0

    @property
    def times_append(self) -> float:
        return self.load_per_s / self.append_per_s if self.append_per_s else float("nan")


# -- in the measured processes -----------------------------------------------------------------------------------------


def load(gate: Gate, directory: str, point: Point) -> tuple[int, float]:
    """Messages, and seconds until the last of them is flushed by the class's own rule."""
    from ignis.native import CODEC_RAW, PackedBatch
    from ignis.storage import open_store

    store = open_store(f"embedded://{directory}")
    for name in point.names:
        store.magazines.declare(name, point.shards, point.durability)
    bodies = [b"x" * point.size_bytes] * point.batch
    gate()
    began, done, turn = time.perf_counter(), 0, 0
    while done < point.count:
        for name in point.names:
            part = bodies if point.count - done >= point.batch else bodies[: point.count - done]
            if not part:
                break
            batches, _ = PackedBatch.pack_bodies(
                part, flags=CODEC_RAW, keys=None, shards=point.shards, any_shard=turn % point.shards
            )
            store.magazines.load(name, batches, None)
            done += len(part)
            turn += 1
    elapsed = time.perf_counter() - began
    store.close()
    return done, elapsed


def append(gate: Gate, directory: str, point: Point) -> tuple[int, float]:
    """The same bytes to one file, a call for each batch."""
    entry = b"x" * (point.size_bytes * point.batch)
    gate()
    began, done = time.perf_counter(), 0
    with open(Path(directory) / "plain", "wb", buffering=0) as file:
        while done < point.count:
            file.write(entry)
            if point.durability == "sync":
                os.fdatasync(file.fileno())
            done += point.batch
    elapsed = time.perf_counter() - began
    return done, elapsed


def drain(gate: Gate, directory: str, point: Point) -> tuple[int, float, float]:
    """Messages deleted, seconds for that, and seconds from the open to the first claim."""
    from ignis.storage import open_store

    gate()
    opened = time.perf_counter()
    store = open_store(f"embedded://{directory}")
    for name in point.names:
        store.magazines.declare(name, point.shards, point.durability)
    began, done, open_s = time.perf_counter(), 0, 0.0
    for name in point.names:
        while True:
            fired = store.magazines.fire(name, _CLAIM, store.owner)
            open_s = open_s or time.perf_counter() - opened
            if fired.total() == 0:
                break
            for claim in fired.claims:
                done += store.magazines.delete(name, {claim.shard: list(claim.pointers)})
    elapsed = time.perf_counter() - began
    store.close()
    return done, elapsed, open_s


# -- one point ---------------------------------------------------------------------------------------------------------


@contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bench-growth-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _room(path: Path) -> int:
    """Bytes that the directory takes on its disk: what is laid out counts, holes do not."""
    return sum(entry.stat().st_blocks * 512 for entry in path.rglob("*") if entry.is_file())


def _drop_caches() -> None:
    """Makes the next reads come from the disk. Raises BenchError where that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n", "ascii")
    except OSError as exc:
        raise BenchError(f"cannot drop the page cache: {exc}; needs root") from exc


def measure(point: Point, options: Options, *, cold: bool = False) -> Figures:
    """Raises BenchError when what comes out is not what went in."""
    figures = Figures(living_bytes=point.count * point.size_bytes)
    with _directory(options.directory) as path:
        store = str(path / "store")
        watch = Watch()
        done, elapsed = run_together([Task(load, (store, point))], _LIMIT_S, watch.begin)[0]
        watch.end()
        figures.load_per_s, figures.load_anonymous_bytes = done / elapsed, watch.peak
        figures.room_bytes = _room(path)
        if cold:
            _drop_caches()
        watch = Watch()
        got, elapsed, figures.open_s = run_together([Task(drain, (store, point))], _LIMIT_S, watch.begin)[0]
        watch.end()
        figures.drain_per_s, figures.drain_anonymous_bytes = got / elapsed, watch.peak
        if got != done:
            raise BenchError(f"{done:,} messages loaded, {got:,} deleted")
    with _directory(options.directory) as path:
        done, elapsed = run_together([Task(append, (str(path), point))], _LIMIT_S)[0]
        figures.append_per_s = done / elapsed
    return figures


# -- the curves --------------------------------------------------------------------------------------------------------


def _powers(first: int, last: int, step: int) -> Iterator[int]:
    value = first
    while value <= last:
        yield value
        value *= step


def curve_points(curve: str, most: int, durability: str, per_point: int) -> list[tuple[str, Point]]:
    """The points of a curve, each with what it is called in the table."""
    match curve:
        case "backlog":
            return [(f"{n:,} messages", Point(n, durability=durability)) for n in _powers(1_000, most, 10)]
        case "alone":
            return [
                (f"{n:,} messages", Point(n, durability=durability, alone=True)) for n in _powers(100_000, most, 10)
            ]
        case "shards":
            return [
                (f"{n} shards", Point(per_point, shards=n, durability=durability))
                for n in _powers(1, min(most, 512), 4)
            ] + ([("512 shards", Point(per_point, shards=512, durability=durability))] if most >= 512 else [])
        case "queues":
            return [
                (f"{n:,} queues", Point(per_point, queues=n, shards=1, durability=durability))
                for n in _powers(1, min(most, 1_000), 10)
            ]
        case "size":
            return [
                (f"{n:,} B", Point(max(1_000, min(per_point, (1 << 30) // n)), size_bytes=n, durability=durability))
                for n in _powers(16, min(most, 1 << 20), 8)
            ] + [("1 MiB", Point(1_000, size_bytes=1 << 20, durability=durability))]
        case _:
            return [(f"{most:,} B", Point(most // 10_000, size_bytes=10_000, durability=durability))]


_MOST = {
    "backlog": 10_000_000,
    "alone": 10_000_000,
    "shards": 512,
    "queues": 1_000,
    "size": 1 << 20,
    "cold": 50_000_000_000,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("curves", nargs=-1, type=click.Choice(sorted(_MOST)))
@click.option(
    "--most", type=float, help="Where a curve ends [default: 1e7 messages, 512 shards, 1,000 queues, 1 MiB, 50 GB]."
)
@click.option("--durability", default="none", show_default=True, type=click.Choice(["sync", "interval", "none"]))
@click.option("--messages", default=500_000, show_default=True, help="Messages of a point, where not they grow.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 20))
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False, exists=True), default=tempfile.gettempdir()
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def main(
    curves: tuple[str, ...], most: float | None, durability: str, messages: int, runs: int, directory: Path,
    json_path: Path | None,
) -> None:  # fmt: skip
    """Curves: backlog, alone (loaded one at a time), shards, queues, size, cold (a store larger than memory, its pages dropped;
    needs root)."""
    options = Options(runs=runs, directory=directory.resolve(), json_path=json_path)
    recorder = Recorder(options)
    show_environment(options)
    for curve in curves or ("backlog", "shards", "queues", "size"):
        _show(curve, curve_points(curve, int(most or _MOST[curve]), durability, messages), options, recorder)
    if recorder.problems:
        raise SystemExit(1)


def _show(curve: str, points: list[tuple[str, Point]], options: Options, recorder: Recorder) -> None:
    table = Table(title=f"growth: {curve} [{points[0][1].durability}], medians of {options.runs}")
    for head in ("", "load/s", "x append", "open", "claim + delete/s", "anonymous MiB", "room / living"):
        table.add_column(head, justify="right")
    for name, point in points:
        result = Result("ignis", point.durability, parameters={"curve": curve, **asdict(point)})
        try:
            runs = [measure(point, options, cold=curve == "cold") for _ in range(options.runs)]
        except (BenchError, OSError) as exc:
            result.problem = str(exc)
            console.print(f"{curve}, {name}: {exc}", style="bold red", markup=False)
            recorder.write("growth", result)
            continue
        result.n = point.count * len(runs)
        for one in runs:
            result.throughput.add(one.load_per_s)
        result.extra = {"runs": [asdict(one) for one in runs]}
        table.add_row(name, *_cells(runs))
        recorder.write("growth", result)
    console.print(table)


def _cells(runs: list[Figures]) -> list[str]:
    def median(name: str) -> float:
        return statistics.median(getattr(one, name) for one in runs)

    return [
        rate(median("load_per_s")),
        f"{median('times_append'):.2f}",
        duration(median("open_s") * 1e9),
        rate(median("drain_per_s")),
        f"{median('load_anonymous_bytes') / 2**20:.0f} / {median('drain_anonymous_bytes') / 2**20:.0f}",
        f"{median('room_bytes') / max(1, median('living_bytes')):.2f}",
    ]


if __name__ == "__main__":
    main()
