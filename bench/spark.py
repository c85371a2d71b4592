"""A DataFrame into a queue and a queue into Parquet, beside what Spark does with files of JSON lines.

One session of two cores, as much data for everybody, taking turns: each of the runs does all of them once. The DataFrame
comes from Parquet, as data do, so that reading it costs both sides the same. The store is one for all runs, as a store
is: what a run has drained is room for the next. The row-by-row publisher is what one writes without the stages; it gets
fewer rows, because its time is per row. Memory is that of the Python workers alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Options, Recorder, Result, Sample
from bench.memory import anonymous_bytes, family
from bench.peers.base import MissingError, require_module
from bench.tables import Goal, console, rate, throughput_table

ROWS = 1_000_000
SINGLE_ROWS = 4_000
SCHEMA = "id long, customer string, note string"
FILES_RATIO, SINGLE_RATIO = 0.5, 10.0
GROWTH_BYTES = 32 << 20
RATIOS = (
    ("ingest", "write_files", FILES_RATIO),
    ("ingest_with_ids", "write_files", 0),
    ("ingest_in_pandas", "ingest", 0),
    ("ingest", "ingest_singly", SINGLE_RATIO),
    ("drain", "read_files", FILES_RATIO),
    ("drain_with_envelope", "read_files", FILES_RATIO),
    ("drain_in_pandas", "drain_with_envelope", 0),
)
"""(step, beside which one, the goal if there is one). Compared turn by turn: what else the machine does in a turn is done to
both."""
_EVERY_S = 0.05


class Peak:
    """The largest Python worker while something runs, watched from outside: Spark's daemon has one process per task."""

    def __init__(self, root: int) -> None:
        self.peak_bytes = 0
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            for pid in family(self._root):
                if pid != self._root and _is_python(pid):
                    self.peak_bytes = max(self.peak_bytes, anonymous_bytes(pid))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(10)


def _is_python(pid: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False


class Bench:
    """The session, the data, and what is measured over them."""

    def __init__(self, directory: Path, rows: int) -> None:
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        self.directory = directory
        self.rows = rows
        self.turn = 0
        self.spark: Any = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("ERROR")
        self.jvm: int = self.spark.sparkContext._gateway.proc.pid
        self.df = self.data(rows)

    @property
    def url(self) -> str:
        return f"embedded://{self.directory}/store"

    @property
    def with_ids(self) -> str:
        """A queue for each turn: it remembers the ids of the one before."""
        return f"with-ids-{self.turn}"

    def data(self, rows: int) -> Any:
        """About 100 bytes of JSON a row, in four Parquet files."""
        from pyspark.sql import functions as F  # noqa: N812

        path = str(self.directory / f"data-{rows}")
        if not Path(path).exists():
            made = self.spark.range(0, rows, 1, 4).select(
                "id",
                F.concat(F.lit("customer-"), F.col("id") % 1_000).alias("customer"),
                F.substring(F.sha2(F.col("id").cast("string"), 256), 1, 45).alias("note"),
            )
            made.write.parquet(path)
        return self.spark.read.parquet(path)

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}-{self.turn}")

    # -- what is timed

    def write_files(self) -> int:
        self.df.write.json(self.path("json"))
        return self.rows

    def ingest(self, id: str | None = None, queue: str = "q", df: Any = None) -> int:
        from ignis.spark import publish

        receipts = publish(self.df if df is None else df, self.url, queue, id=id).collect()
        return sum(int(receipt["count"]) for receipt in receipts)

    def ingest_with_ids(self) -> int:
        return self.ingest("id", self.with_ids)

    def ingest_in_pandas(self) -> int:
        """``mapInPandas``; JSON is made in the JVM, as `publish` does it."""
        from pyspark.sql import functions as F  # noqa: N812

        from ignis.spark import publish_in_pandas

        stage = publish_in_pandas(self.url, "pandas", codec="json")
        bodies = self.df.select(F.to_json(F.struct("*")).alias("body"))
        return sum(int(receipt["count"]) for receipt in bodies.mapInPandas(stage, stage.schema).collect())

    def ingest_singly(self) -> int:
        """``foreachPartition``, a publish per row, each durable by itself."""
        url, rows = self.url, min(SINGLE_ROWS, self.rows)

        def publish_each(part: Any) -> None:
            from ignis import Ignis

            app = Ignis(url)
            queue = app.queue("singly")
            for row in part:
                queue.publish(row.asDict())
            app.close()

        self.df.limit(rows).repartition(4).foreachPartition(publish_each)
        return rows

    def read_files(self) -> int:
        self.spark.read.schema(SCHEMA).json(self.path("json")).write.parquet(self.path("from-files"))
        return self.rows

    def drain(self, queue: str = "q") -> int:
        from ignis.spark import drain

        with drain(self.spark, self.url, queue, schema=SCHEMA, envelope=False) as drained:
            drained.df.write.parquet(self.path(f"from-{queue}"))
            return drained.commit().retired

    def drain_with_envelope(self) -> int:
        from ignis.spark import drain

        with drain(self.spark, self.url, self.with_ids, schema=SCHEMA) as drained:
            drained.df.write.parquet(self.path("with-envelope"))
            return drained.commit().retired

    def drain_in_pandas(self) -> int:
        from ignis.spark import drain, parse_in_pandas, read_in_pandas

        with drain(self.spark, self.url, "pandas") as drained:
            read, parse = read_in_pandas(drained), parse_in_pandas(SCHEMA)
            bodies = drained.parts.mapInPandas(read, read.schema).select("body")
            bodies.mapInPandas(parse, parse.schema).write.parquet(self.path("from-pandas"))
            return drained.commit().retired

    # -- the course of it

    def check(self) -> None:
        """What came out is what went in: as many different rows, and the same ones."""
        expected = self.df.select("id", "customer", "note")
        for name in ("from-files", "from-q", "from-pandas"):
            found = self.spark.read.parquet(self.path(name)).select("id", "customer", "note")
            if found.count() != self.rows or found.exceptAll(expected).limit(1).count():
                raise AssertionError(f"{name}: not the rows that were written")

    def forget(self) -> None:
        """Removes the files that a turn has made."""
        for path in self.directory.glob(f"*-{self.turn}"):
            shutil.rmtree(path, ignore_errors=True)
        self.turn += 1

    def memory(self, rows: int) -> tuple[int, int]:
        """The largest Python worker while so many rows go in, and while they come out."""
        df = self.data(rows)
        with Peak(self.jvm) as into:
            self.ingest(queue="memory", df=df)
        with Peak(self.jvm) as out:
            self.drain("memory")
        return into.peak_bytes, out.peak_bytes


def paired(result: Result, base: Result) -> Sample:
    """The ratio of each turn."""
    return Sample([one / other for one, other in zip(result.throughput.values, base.throughput.values, strict=False)])


def run(options: Options, recorder: Recorder) -> None:
    """Two tables, one of memory, and the goals."""
    steps: dict[str, tuple[str, str]] = {
        "write_files": ("Spark: JSON lines", "the DataFrame into files"),
        "ingest": ("ignis: publish", "durability sync, without ids"),
        "ingest_with_ids": ("ignis: publish with ids", "each id looked up and remembered"),
        "ingest_in_pandas": ("ignis: publish_in_pandas", "the same with mapInPandas"),
        "ingest_singly": ("row by row", "foreachPartition, a durable publish each"),
        "read_files": ("Spark: from JSON lines", "the files into Parquet"),
        "drain": ("ignis: drain", "claim, parse, Parquet, commit"),
        "drain_with_envelope": ("ignis: drain with envelope", "eight columns more"),
        "drain_in_pandas": ("ignis: read and parse in pandas", "two mapInPandas, with the envelope in between"),
    }
    results = {name: Result(label, note=note) for name, (label, note) in steps.items()}
    peaks: dict[int, tuple[int, int]] = {}
    rows = ROWS // 20 if options.quick else ROWS
    directory = Path(tempfile.mkdtemp(prefix="ignis-bench-", dir=options.directory))
    bench: Bench | None = None
    try:
        require_module("pyspark", "ignis-mq[spark]")
        bench = Bench(directory, rows)
        for turn in range(options.runs + 1):
            for name, result in results.items():
                step: Callable[[], int] = getattr(bench, name)
                os.sync()  # no step pays for what another has left unwritten
                began = time.perf_counter()
                count = step()
                seconds = time.perf_counter() - began
                if count != min(rows, SINGLE_ROWS if name == "ingest_singly" else rows):
                    raise AssertionError(f"{name}: {count} of {rows} rows")
                if turn:  # the first warms the compiler up
                    result.n += count
                    result.throughput.add(count / seconds)
                    result.parameters = {"rows": count}
            bench.check()
            bench.forget()
        for count in (rows, 4 * rows):
            peaks[count] = bench.memory(count)
            bench.forget()
    except (MissingError, AssertionError, OSError) as exc:
        for result in results.values():
            result.problem = str(exc)
    finally:
        try:
            if bench is not None:
                bench.spark.stop()
        finally:  # an interrupted session cannot always be stopped
            shutil.rmtree(directory, ignore_errors=True)
    _show(results, peaks, rows)
    recorder.write_all("spark", results.values())


def _show(results: dict[str, Result], peaks: dict[int, tuple[int, int]], rows: int) -> None:
    into = [results[name] for name in ("write_files", "ingest", "ingest_with_ids", "ingest_in_pandas", "ingest_singly")]
    out = [results[name] for name in ("read_files", "drain", "drain_with_envelope", "drain_in_pandas")]
    throughput_table(f"{rows:,} rows of 100 bytes from Spark, local[2]", into)
    throughput_table(f"{rows:,} rows into Parquet, local[2]", out)
    for name, base, target in RATIOS:
        ratio = paired(results[name], results[base])
        results[name].extra[f"times_{base}"] = ratio.as_json()
        what = f"{results[name].peer} / {results[base].peer}"
        if target:
            Goal(what, ratio.median, target).show()
        console.print(f"  {what}, turn by turn: {ratio.median:.3g} ({ratio.low:.3g}..{ratio.high:.3g})")
    for count, (writing, reading) in peaks.items():
        console.print(
            f"  largest Python worker, {rate(count)} rows: "
            f"{writing / 2**20:.0f} MiB publishing, {reading / 2**20:.0f} MiB draining"
        )
    if len(peaks) == 2:
        (few_in, few_out), (many_in, many_out) = peaks.values()
        growth = max(many_in - few_in, many_out - few_out) / 2**20
        Goal(
            "growth of a worker with four times the rows", growth, GROWTH_BYTES / 2**20, at_most=True, unit=" MiB"
        ).show()
        results["ingest"].extra["worker_peak_bytes"] = {str(count): pair[0] for count, pair in peaks.items()}
        results["drain"].extra["worker_peak_bytes"] = {str(count): pair[1] for count, pair in peaks.items()}
