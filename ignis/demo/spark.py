"""The Spark demo: Parquet -> queue -> handlers in worker processes -> another queue -> Parquet, compared with Spark alone.

The two pipelines are the files ``flights.toml`` and ``results.toml`` beside this one, copied into the demo's directory and
run from there; what remains with ``--keep`` can be run again by hand.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from ignis.app import Ignis
from ignis.demo.data import data_directory
from ignis.demo.processes import WorkerProcess
from ignis.demo.spark_app import QUEUE, RESULTS
from ignis.errors import IgnisError
from ignis.private_files import make_temporary, remove_temporary
from ignis.progress import Progress, make_progress
from ignis.queue import Queue
from ignis.spark.pipeline import (
    Description,
    ExportSummary,
    IngestSummary,
    Target,
    export,
    ingest,
    load_description,
    session,
    sideline_report,
    write_page,
)
from ignis.spark.pipeline.progress import Shown

__all__ = ["Options", "run_spark_demo"]

_CLIENT_ID = "ignis-demo"
_FARM_ID = "local"
_POLL_S = 0.05
_STALL_S = 120.0
_TYPES = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)


@dataclass
class Options:
    """What to run. ``flights`` None = all."""

    flights: int | None = None
    workers: int = 2
    master: str = "local[2]"
    keep: bool = False
    json: bool = False


class Totals(msgspec.Struct, frozen=True):
    """What is computed for one carrier, in whole numbers: two computations must agree exactly. Minutes and miles."""

    departed: int
    dep_delay: int
    arrived: int
    arr_delay: int
    made_up: int
    distance: int


class Outcome(msgspec.Struct, kw_only=True):
    """Everything that is shown. ``expected`` is Spark's own answer from the input, ``found`` that of the way through."""

    ingest: IngestSummary
    export: ExportSummary
    handle_s: float
    cancelled: int
    sidelined: int
    expected: dict[str, Totals]
    found: dict[str, Totals]
    seconds: float
    page: str = ""

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing twice, every figure the same."""
        return (
            self.expected == self.found
            and self.cancelled == self.sidelined
            and not self.ingest.rejected
            and not self.export.rejected
            and self.ingest.published == self.export.written + self.sidelined
        )


def run_spark_demo(options: Options) -> bool:
    """Runs the demo and shows what came of it; True when every total is that of a plain Spark aggregation.

    Raises ConfigError (data, PySpark or Java missing), IgnisError when a worker does not start or work stalls.
    """
    directory = Path(make_temporary("ignis-demo-spark-"))
    try:
        with make_progress(quiet=options.json) as progress:
            outcome = _Demo(options, directory, progress).run()
        _show(outcome, as_json=options.json, kept=directory if options.keep else None)
        return outcome.ok
    finally:
        if not options.keep:
            remove_temporary(directory)


@dataclass
class _Demo:
    options: Options
    directory: Path
    progress: Progress
    workers: list[WorkerProcess] = field(default_factory=list)

    def run(self) -> Outcome:
        began = time.monotonic()
        described = {name: self._description(name) for name in (QUEUE, RESULTS)}
        target = Target(f"embedded://{self.directory / 'store'}", _CLIENT_ID, _FARM_ID)
        shown = Shown(self.progress)
        with contextlib.ExitStack() as stack:
            with self.progress.phase("starting Spark"):
                part = described[QUEUE].spark
                spark = stack.enter_context(session(part, app_name="ignis demo", master=self.options.master))
            with self.progress.phase("writing the flights as Parquet"):
                flights = self._write_parquet(spark)
            with self.progress.phase("computing the totals with Spark alone"):
                departed = flights.where("dep_delay IS NOT NULL")
                expected = _totals(departed.selectExpr("*", "dep_delay - arr_delay AS made_up"))
                cancelled = flights.where("dep_delay IS NULL").count()
            published = ingest(spark, described[QUEUE], target=target, progress=shown)
            with target.app() as app:
                handle_s = self._handle(app, target, published.published)
                report = sideline_report(app.store, QUEUE)
            exported = export(spark, described[RESULTS], target=target, progress=shown)
            with self.progress.phase("comparing"):
                found = _totals(spark.read.parquet(str(self.directory / "results.parquet")))
        page = self.directory / "sideline.html"
        write_page(report, page)
        return Outcome(
            ingest=published,
            export=exported,
            handle_s=handle_s,
            cancelled=cancelled,
            sidelined=report.total,
            expected=expected,
            found=found,
            seconds=time.monotonic() - began,
            page=str(page),
        )

    def _description(self, name: str) -> Description:
        file = self.directory / f"{name}.toml"
        shutil.copyfile(Path(__file__).with_name(file.name), file)
        return load_description(file)

    def _write_parquet(self, spark: Any) -> Any:
        """The flights as a DataFrame on Parquet files, which is what the pipeline reads."""
        with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
            archive.extract("flights.csv", self.directory)
        rows = spark.read.csv(str(self.directory / "flights.csv"), schema=_TYPES, header=True, nullValue="NA")
        if self.options.flights is not None:
            rows = rows.limit(self.options.flights)
        rows.write.parquet(str(self.directory / "flights.parquet"))
        return spark.read.parquet(str(self.directory / "flights.parquet"))

    def _handle(self, app: Ignis, target: Target, total: int) -> float:
        """Lets worker processes handle all messages; returns how long that took, in seconds."""
        queue: Queue[Any] = app.queue(QUEUE)
        app.queue(RESULTS, **self._description(RESULTS).queue.settings).open()
        with self._running_workers(target), self.progress.phase("handling", total) as phase:
            began = moved_at = time.monotonic()
            last = -1
            while left := queue.main.pending() + queue.main.in_flight():
                for worker in self.workers:
                    worker.check()
                phase.done(total - left)
                if left != last:
                    last, moved_at = left, time.monotonic()
                if time.monotonic() - moved_at > _STALL_S:
                    raise IgnisError(f"{left:,} messages are left and nothing moves; --keep keeps the workers' logs")
                time.sleep(_POLL_S)
            phase.done(total)
            return time.monotonic() - began

    def _worker(self, number: int, target: Target) -> WorkerProcess:
        where = (target.url, target.client_id, target.farm_id)
        return WorkerProcess(number, *where, self.directory, "ignis.demo.spark_app:app")

    @contextlib.contextmanager
    def _running_workers(self, target: Target) -> Iterator[None]:
        try:
            with self.progress.phase(f"starting {self.options.workers} worker processes"):
                for number in range(1, self.options.workers + 1):
                    self.workers.append(self._worker(number, target))
                for worker in self.workers:
                    worker.wait_ready()
            yield
            for worker in self.workers:
                worker.ask_to_stop()
            codes = [worker.wait_stopped() for worker in self.workers]
            self.workers = []
            if any(codes):
                raise IgnisError(f"workers ended with exit codes {codes}; --keep keeps their logs")
        finally:
            for worker in self.workers:
                worker.kill()


def _totals(rows: Any) -> dict[str, Totals]:
    found = rows.groupBy("carrier").agg({"dep_delay": "count", "arr_delay": "count"})
    sums = rows.groupBy("carrier").sum("dep_delay", "arr_delay", "made_up", "distance")
    joined = found.join(sums, "carrier").orderBy("carrier").collect()
    return {
        row["carrier"]: Totals(
            departed=row["count(dep_delay)"],
            dep_delay=row["sum(dep_delay)"],
            arrived=row["count(arr_delay)"],
            arr_delay=row["sum(arr_delay)"] or 0,
            made_up=row["sum(made_up)"] or 0,
            distance=row["sum(distance)"],
        )
        for row in joined
    }


def _show(outcome: Outcome, *, as_json: bool, kept: Path | None) -> None:
    if as_json:
        document = {**msgspec.to_builtins(outcome), "ok": outcome.ok, "kept": str(kept) if kept else None}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        return
    console = Console(file=sys.stdout)
    console.print(_carriers(outcome))
    console.print(_run(outcome))
    words = "every total is Spark's own" if outcome.ok else "THE TOTALS DIFFER, or messages are missing"
    console.print(f"[{'green' if outcome.ok else 'bold red'}]{words}[/]", highlight=False)
    if kept is not None:
        console.print(f"kept: {kept} (the sideline's page: {outcome.page})", highlight=False, soft_wrap=True)


def _carriers(outcome: Outcome) -> Table:
    table = Table(title="By carrier, through the queues", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    columns = ("carrier", "departed", "late (min)", "late there (min)", "made up (min)", "miles", "as Spark says")
    for name in columns:
        table.add_column(name, justify="left" if name == "carrier" else "right", no_wrap=True)
    for carrier in sorted({*outcome.expected, *outcome.found}):
        one = outcome.found.get(carrier)
        cells = ["-"] * 5
        if one is not None:
            cells = [f"{value:,}" for value in (one.departed, one.dep_delay, one.arr_delay, one.made_up, one.distance)]
        table.add_row(carrier, *cells, "yes" if one == outcome.expected.get(carrier) else "NO")
    return table


def _run(outcome: Outcome) -> Table:
    table = Table(title="The run", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    read, written = outcome.ingest, outcome.export
    rows = [
        ("rows read, accepted, published", f"{read.read:,}, {read.accepted:,}, {read.published:,}"),
        ("ingest", f"{read.seconds:.1f} s, {read.rows_per_s:,.0f} rows/s"),
        ("handled by worker processes", f"{outcome.handle_s:.1f} s, {_rate(read.published, outcome.handle_s)}"),
        ("in the sideline: cancelled flights", f"{outcome.sidelined:,} of {outcome.cancelled:,}"),
        (
            "results in Parquet",
            f"{written.written:,} rows, {written.files} files, {written.bytes / (1 << 20):,.1f} MiB",
        ),
        ("export", f"{written.seconds:.1f} s, {written.rows_per_s:,.0f} rows/s"),
        ("in all", f"{outcome.seconds:.1f} s"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"
