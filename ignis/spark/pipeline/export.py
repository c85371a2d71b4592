"""A queue into partitioned Parquet: claim, read, write beside the place, move there, and only then delete.

A run becomes one folder, ``run=<id>``, which appears in one step with everything in it. The messages leave the store after
that. Whatever dies in between, running again finds the claims by the run's id and goes on where that one stopped, so that
a message is neither lost nor in two folders.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Optional

import msgspec

from ignis.errors import ConfigError, IgnisError
from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, SparkSession, functions
from ignis.spark.drain_task import Drained, retire
from ignis.spark.offsets import check_incarnations, incarnations
from ignis.spark.pipeline.checks import (
    PROBLEMS,
    REASON_ENCODING,
    REASONS,
    check_rows,
    first_reason,
    problem_texts,
)
from ignis.spark.pipeline.description import ENVELOPE, Column, Description, Export
from ignis.spark.pipeline.files import Files
from ignis.spark.pipeline.folders import Folders, no_folder
from ignis.spark.pipeline.progress import Progress, watched
from ignis.spark.pipeline.reading import MALFORMED, RAW, RAW_BYTES, take_apart
from ignis.spark.pipeline.runs import Run, Runs
from ignis.spark.pipeline.session import SETTINGS, settings
from ignis.spark.pipeline.target import Target, resolve_target
from ignis.spark.stages import drain, resume
from ignis.storage.base import Run as ClaimedRun

__all__ = ["ExportSummary", "export"]

_BODY = "body"
_PROBLEMS_TYPE = "array<struct<reason: string, column: string, why: string>>"


class ExportSummary(msgspec.Struct, kw_only=True):
    """The figures of an export. ``read = written + rejected``.

    Attributes:
        run: its id; empty when nothing was pending.
        resumed: whether an earlier process had begun it.
        repeated: whether it had been done before, and nothing was done now: the figures are those of then.
        read: messages taken from the queue.
        written: rows in the Parquet files, counted there.
        rejected: messages by reason, in the quarantine.
        taken_back: messages that are in the files and were not this run's any more when it was committed, because the
            sweeper had taken them after the stuck time: they will come again. None when an earlier process had committed.
        files, bytes: written.
        path, quarantine: the folders; empty when nothing is in them.
    """

    pipeline: str
    queue: str
    run: str = ""
    resumed: bool = False
    repeated: bool = False
    read: int = 0
    written: int = 0
    rejected: dict[str, int] = {}
    taken_back: Optional[int] = None  # noqa: UP045 - msgspec reads annotations at run time
    files: int = 0
    bytes: int = 0
    path: str = ""
    quarantine: str = ""
    seconds: float = 0.0
    rows_per_s: float = 0.0


def export(
    spark: SparkSession,
    description: Description,
    *,
    target: Target | None = None,
    run_id: str | None = None,
    progress: Progress | None = None,
) -> ExportSummary:
    """Moves what is pending in the queue into Parquet files; on return they are in place and the messages are gone.

    A run that was begun and not finished is taken up first.

    Args:
        description: with an ``[export]``.
        target: the store, where the description's is not meant.
        run_id: of a new run, or of one to take up; one that is done already is not done again.
        progress: told about each step.

    Returns:
        The figures.

    Raises:
        ConfigError: the description. LockHeldError: another process runs this pipeline. IgnisError: the files do not hold
            what was read; nothing was deleted. And what `ignis.spark.stages.drain` raises. The run stays unfinished.
    """
    part: Export = description.wanted("export")
    where = resolve_target(description, target)
    summary = ExportSummary(pipeline=description.name, queue=description.queue.name)
    runs = Runs(description.folder, description.name)
    with runs.locked():
        run = runs.get("export", run_id) if run_id is not None else runs.unfinished("export")
        summary.resumed = run is not None
        run = run or runs.begin("export", run_id)
        if run.done:
            return msgspec.convert({**run.summary, "repeated": True}, ExportSummary)
        summary.run = run.id
        began = time.monotonic()
        with settings(spark, SETTINGS):
            _Export(spark, description, part, where, runs, run, summary, progress or Progress()).carry_out()
        summary.seconds = round(time.monotonic() - began, 3)
        summary.rows_per_s = round(summary.read / max(summary.seconds, 0.001), 1)
        if summary.read:
            runs.finish(run, msgspec.to_builtins(summary))
        else:
            runs.forget(run)
            summary.run = ""
    return summary


class _Export:
    """One run of an export."""

    def __init__(
        self, spark: SparkSession, description: Description, part: Export, where: Target, runs: Runs, run: Run,
        summary: ExportSummary, progress: Progress,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._description = description
        self._part = part
        self._where = where
        self._runs = runs
        self._run = run
        self._summary = summary
        self._progress = progress
        self._files = Files(spark)
        self._place = f"{part.path}/run={run.id}"
        self._job = _job(description.name, run.id)
        self._aside = f"{part.quarantine}/export/run={run.id}"

    def carry_out(self) -> None:
        if self._files.exists(self._place):
            if not self._run.pointers:
                raise ConfigError(f"{self._place} is there already, and not of this run: choose another --run-id")
            self._finish_earlier()
            return
        with watched(self._progress, self._spark, "claim", "claiming messages") as step:
            drained = self._drain()
            step.count = drained.claimed
        try:
            if not drained.claimed:
                return
            self._write(drained)
            with watched(self._progress, self._spark, "commit", "deleting the messages") as step:
                step.count = drained.commit().retired
            self._summary.taken_back = self._summary.read - step.count
        finally:
            # Not given back when something failed: whether the files are in place is for the next attempt to see.
            drained.close()

    def _finish_earlier(self) -> None:
        """The files are in place since an earlier process: what they hold is to leave the queue, if it has not yet."""
        earlier = msgspec.convert(self._run.summary, ExportSummary)
        for name in ("read", "written", "rejected", "files", "bytes", "path", "quarantine"):
            setattr(self._summary, name, getattr(earlier, name))
        # By pointer, not by claim: a power cut ends claims, and what was claimed is pending again where it was.
        runs = [ClaimedRun(shard, first, last, 0) for shard, first, last in self._run.pointers]
        with watched(self._progress, self._spark, "commit", "deleting the messages"), self._where.app() as app:
            check_incarnations(
                incarnations(app.store.magazines, self._description.queue.name),
                self._description.queue.name,
                {str(shard): self._run.incarnations.get(str(shard), 0) for shard, _, _ in self._run.pointers},
                f"export run {self._run.id}, whose files are in place in {self._place},",
                f"its files are whole. If the store was made anew on purpose, remove {self._runs.path(self._run)}",
            )
            retire(app.store.magazines, self._description.queue.name, runs)

    def _drain(self) -> Drained:
        """What this run's earlier process had claimed, and what is pending now."""
        return drain(
            self._spark,
            self._where.url,
            self._description.queue.name,
            limit=self._part.limit or None,
            job=self._job,
            **self._where.stage_options(),
        )

    def _resume(self) -> Drained:
        """What this run has claimed and is still its own."""
        where = self._where
        return resume(
            self._spark,
            where.url,
            self._description.queue.name,
            self._job,
            **self._where.stage_options(),
        )

    def _write(self, drained: Drained) -> None:
        staged = self._files.stage(self._part.path, self._run.id)
        rows = _parsed(drained, self._description.schema, self._part, self._files.name_encoding())
        bad = first_reason().isNotNull()
        with watched(self._progress, self._spark, "write", "writing Parquet") as step:
            kept = [f"_{name}" for name in self._part.envelope]
            columns = [functions.col(name) for name in self._description.schema]
            good = rows.where(~bad).select(*(columns or [functions.col(_BODY)]), *kept)
            folders = Folders(self._files, self._description.schema, self._part.partition_by)
            self._write_parquet(folders.marked(good), staged)
            folders.rename(staged)
            # What the files say. With the schema, because there may be no file.
            step.count = self._summary.written = self._spark.read.schema(good.schema).parquet(staged).count()
        self._files.remove(self._aside)  # of an earlier attempt
        if self._summary.written < drained.claimed:
            self._put_aside(rows.where(bad))
        summary = self._summary
        summary.read = summary.written + sum(summary.rejected.values())
        if summary.read != drained.claimed:
            self._must_hold_all(summary.read)
        sizes = self._files.sizes(staged)
        summary.files, summary.bytes, summary.path = len(sizes), sum(sizes), self._place
        self._run.pointers = [(one.shard, one.first, one.last) for one in drained.runs]
        self._run.incarnations = drained.incarnations
        self._run.summary = msgspec.to_builtins(summary)
        self._runs.save(self._run)
        with watched(self._progress, self._spark, "place", "putting the files in place"):
            self._files.put_in_place(staged, self._place)

    def _must_hold_all(self, written: int) -> None:
        """Fewer than were claimed is right when some were taken from this run meanwhile: damaged ones, or by the sweeper."""
        still = self._resume()
        still.close()
        if written < still.claimed:
            raise IgnisError(
                f"{still.claimed:,} messages are claimed, {written:,} are in the files: nothing was deleted"
            )

    def _write_parquet(self, rows: DataFrame, staged: str) -> None:
        part = self._part
        # Rebalancing makes files of about one size: small partitions share a task, large ones are split over several.
        # As columns: names in a hint are parsed as SQL, and some are none.
        rows = rows.hint("rebalance", *(functions.col(f"`{name}`") for name in part.partition_by))
        writer = rows.write.mode("overwrite").option("compression", part.compression)
        if part.rows_per_file:
            writer = writer.option("maxRecordsPerFile", part.rows_per_file)
        if part.partition_by:
            writer = writer.partitionBy(*part.partition_by)
        sizes = {
            "spark.sql.adaptive.enabled": "true",
            "spark.sql.adaptive.advisoryPartitionSizeInBytes": f"{part.target_file_mb}m",
            "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        }
        with settings(self._spark, sizes):
            writer.parquet(staged)

    def _put_aside(self, rejected: DataFrame) -> None:
        """Messages whose body does not fit the schema, into ``<quarantine>/export/run=<id>/reason=<reason>``."""
        staged = self._files.stage(f"{self._part.quarantine}/export", self._run.id)
        with watched(self._progress, self._spark, "quarantine", "putting rejects aside") as step:
            rows = rejected.select(
                first_reason().alias("reason"),
                problem_texts().alias("problems"),
                *(functions.col(f"_{name}").alias(name) for name in ENVELOPE),
                functions.col(RAW).alias("raw"),
                functions.base64(RAW_BYTES).alias("raw_base64"),
            )
            rows.hint("rebalance", "reason").write.mode("overwrite").partitionBy("reason").json(staged)
            # With the schema, because there may be no file: what is missing had been taken from this run.
            found = self._spark.read.schema(rows.schema).json(staged).groupBy("reason").count().collect()
            counts = {row["reason"]: row["count"] for row in found}
            self._summary.rejected = {reason: counts[reason] for reason in REASONS if reason in counts}
            if counts:
                self._files.put_in_place(staged, self._aside)
                self._summary.quarantine = self._aside
            else:
                self._files.remove(staged)
            step.count = sum(counts.values())


def _job(pipeline: str, run_id: str) -> str:
    """The name under which a run holds its claims: of this pipeline alone, and no longer than a name may be."""
    name = f"{pipeline}.{run_id}"
    return name if len(name) <= 128 else hashlib.sha256(name.encode()).hexdigest()


def _parsed(drained: Drained, schema: Mapping[str, Column], part: Export, encoding: str) -> DataFrame:
    """Messages as rows of the schema, with the envelope, the body as text, and what is wrong with it.

    Without a schema there is nothing to be wrong, and the body is a column: text where the queue's codec is JSON.

    Raises ConfigError: bodies of this queue are not JSON.
    """
    codec = drained.place.codec
    if schema and codec == "msgpack":
        raise ConfigError(f"queue {drained.place.queue!r} has codec msgpack: a [schema] is for bodies of JSON")
    text = functions.col("body").cast("string")
    envelope = [_ENVELOPE[name]().alias(f"_{name}") for name in ENVELOPE]
    if not schema:
        body = (text if codec == "json" else functions.col("body")).alias(_BODY)
        nothing = [
            functions.lit(None).cast("string").alias(RAW),
            functions.lit(None).cast("binary").alias(RAW_BYTES),
        ]
        fine = functions.from_json(functions.lit("[]"), _PROBLEMS_TYPE).alias(PROBLEMS)
        return drained.df.select(body, *envelope, *nothing, fine)
    # What stands in a message has the schema's names and ISO 8601: `source` and `format` are those of the files.
    schema = {name: msgspec.structs.replace(column, source="", format="") for name, column in schema.items()}
    valid = functions.is_valid_utf8(text)
    bodies = drained.df.select(
        functions.make_valid_utf8(text).alias(RAW),
        functions.when(~valid, functions.col("body")).alias(RAW_BYTES),
        *envelope,
    )
    why = functions.when(functions.col(RAW_BYTES).isNotNull(), functions.lit(REASON_ENCODING))
    rows = take_apart(bodies, RAW, schema).withColumn(MALFORMED, why.otherwise(functions.col(MALFORMED)))
    checked = check_rows(rows, schema, RAW, RAW_BYTES, *(f"_{name}" for name in ENVELOPE))
    wrong = [one for name in part.partition_by if (one := no_folder(name, schema[name], part, encoding)) is not None]
    if not wrong:
        return checked
    found = functions.array_compact(functions.array(*wrong))
    return checked.withColumn(
        PROBLEMS, functions.when(functions.size(PROBLEMS) == 0, found).otherwise(functions.col(PROBLEMS))
    )


def _key() -> Expression:
    return functions.when(functions.length("_key") > 0, functions.col("_key").cast("string"))


_ENVELOPE: dict[str, Callable[[], Expression]] = {
    **{name: functools.partial(functions.col, f"_{name}") for name in ENVELOPE},
    "key": _key,
}
