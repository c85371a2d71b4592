"""Files into a queue: read, check, put rejects aside, keep one of what is the same, publish.

Running again is safe at any point. The files of a run are fixed in its record when it begins; rejects are written beside
their place and moved there in one step; and every message has an id made of its row, so that a store that remembers
ids stores it once however often it is published.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from ignis.errors import ConfigError, TooManyRejectedError
from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, SparkSession, Window, functions
from ignis.spark.pipeline.checks import REASONS, check_rows, first_reason, problem_texts
from ignis.spark.pipeline.description import Column, Description, Ingest
from ignis.spark.pipeline.files import Files, literal
from ignis.spark.pipeline.progress import Progress, watched
from ignis.spark.pipeline.reading import FILE, RAW, read_rows
from ignis.spark.pipeline.runs import Run, Runs
from ignis.spark.pipeline.session import SETTINGS, settings
from ignis.spark.pipeline.target import Target, declare_queue, resolve_target
from ignis.spark.stages import publish

__all__ = ["IngestSummary", "ingest"]

_BODY, _KEY, _ID, _MARK, _PREFER, _REASON, _PROBLEMS, _NUMBER = (
    "_body", "_key", "_id", "_mark", "_prefer", "_reason", "_problems", "_number",
)  # fmt: skip

JSON_OPTIONS = {
    # A handler's type may want every field, and microseconds are what Spark's timestamps have.
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
}


class IngestSummary(msgspec.Struct, kw_only=True):
    """The figures of an ingest. ``read = accepted + rejected``; ``accepted = published + duplicates + known``.

    Attributes:
        run: its id; empty when there was nothing new to read.
        resumed: whether an earlier process had begun it.
        repeated: whether it had been done before, and nothing was done now: the figures are those of then.
        files, bytes: read.
        rejected: rows by reason, in the quarantine.
        duplicates: rows that were the same as another one of this run.
        known: messages that the store had already, by their id.
    """

    pipeline: str
    queue: str
    run: str = ""
    resumed: bool = False
    repeated: bool = False
    files: int = 0
    bytes: int = 0
    read: int = 0
    accepted: int = 0
    rejected: dict[str, int] = {}
    duplicates: int = 0
    known: int = 0
    published: int = 0
    quarantine: str = ""
    seconds: float = 0.0
    rows_per_s: float = 0.0


def ingest(
    spark: SparkSession,
    description: Description,
    *,
    target: Target | None = None,
    run_id: str | None = None,
    everything: bool = False,
    new_run: bool = False,
    progress: Progress | None = None,
) -> IngestSummary:
    """Publishes the rows of the files that no finished run has read; all are durable on return.

    A run that was begun and not finished is taken up first, with the files that it had; files that came later are for
    the next call.

    Args:
        description: with an ``[ingest]``.
        target: the store, where the description's is not meant.
        run_id: of a new run, or of one to take up; one that is done already is not done again.
        everything: read all files, also those that were read before.
        new_run: give up an unfinished run instead of taking it up.
        progress: told about each step.

    Returns:
        The figures.

    Raises:
        ConfigError: the description, or files that changed while a run was unfinished.
        LockHeldError: another process runs this pipeline.
        TooManyRejectedError; and what `ignis.spark.stages.publish` raises. The run stays unfinished.
    """
    part: Ingest = description.wanted("ingest")
    where = resolve_target(description, target)
    summary = IngestSummary(pipeline=description.name, queue=description.queue.name)
    runs = Runs(description.folder, description.name)
    with runs.locked():
        run, resumed = _take_up(runs, part, Files(spark), run_id, everything, new_run)
        if run is None:
            return summary
        if run.done:
            return msgspec.convert({**run.summary, "repeated": True}, IngestSummary)
        summary.run, summary.resumed = run.id, resumed
        began = time.monotonic()
        with settings(spark, SETTINGS):
            _carry_out(spark, description, part, where, run, summary, progress or Progress())
        summary.seconds = round(time.monotonic() - began, 3)
        summary.rows_per_s = round(summary.read / max(summary.seconds, 0.001), 1)
        runs.finish(run, msgspec.to_builtins(summary))
    return summary


def _take_up(
    runs: Runs, part: Ingest, files: Files, run_id: str | None, everything: bool, new_run: bool
) -> tuple[Run | None, bool]:
    """(the run to do, whether it was begun before); None when there is no new file."""
    known = runs.get("ingest", run_id) if run_id is not None else runs.unfinished("ingest")
    if known is not None and new_run and not known.done:
        runs.forget(known)
        known = None
    if known is not None:
        if not known.done:
            _must_be_unchanged(known, files)
        return known, True
    found = files.find(part.paths)
    if not everything:
        read = {one for run in runs.all("ingest") if run.done for one in run.files}
        found = [one for one in found if one not in read]
    return (runs.begin("ingest", run_id, found), False) if found else (None, False)


def _must_be_unchanged(run: Run, files: Files) -> None:
    for one in run.files:
        if not files.is_still(one):
            raise ConfigError(
                f"run {run.id!r} was begun with {one.path}, which is not what it was then; "
                "put it back, or begin a new run in its place (--new-run)"
            )


def _carry_out(
    spark: SparkSession,
    description: Description,
    part: Ingest,
    where: Target,
    run: Run,
    summary: IngestSummary,
    progress: Progress,
) -> None:
    declare_queue(description, where, raw=bool(part.body) and description.schema[part.body].type == "string")
    summary.files, summary.bytes = len(run.files), sum(one.size_bytes for one in run.files)
    rows = read_rows(spark, part, description.schema, [literal(one.path) for one in run.files])
    judged = _judged(rows, description.schema, part).persist()
    try:
        with watched(progress, spark, "check", "reading and checking") as step:
            counts = {row[_REASON]: row["count"] for row in judged.groupBy(_REASON).count().collect()}
            summary.accepted = counts.pop(None, 0)
            summary.rejected = {reason: counts[reason] for reason in REASONS if reason in counts}
            summary.read = step.count = summary.accepted + sum(counts.values())
        _put_aside(spark, judged, part, run, summary, progress)
        _must_be_few(part, summary)  # behind, so that it can be seen what is wrong with them
        if summary.accepted:
            with watched(progress, spark, "publish", "publishing") as step:
                stored, known = _publish(judged, description, part, where, run)
                step.count = summary.published = stored
            summary.known = known
            summary.duplicates = summary.accepted - stored - known
    finally:
        judged.unpersist()


def _must_be_few(part: Ingest, summary: IngestSummary) -> None:
    rejected = sum(summary.rejected.values())
    if rejected > part.max_rejected * summary.read:
        raise TooManyRejectedError(rejected, summary.read, part.max_rejected)


def _judged(rows: DataFrame, schema: Mapping[str, Column], part: Ingest) -> DataFrame:
    """One row per row of the files: what is published of a good one, what is kept of a bad one."""
    checked = check_rows(rows, schema, RAW, FILE)
    bad = first_reason().isNotNull()
    if part.body:
        body = functions.col(part.body)
        body = body if schema[part.body].type == "string" else functions.to_json(body)
    else:
        body = functions.to_json(functions.struct(*(part.columns or schema)), JSON_OPTIONS)
    same = functions.to_json(functions.struct(*(part.dedup or schema)), JSON_OPTIONS)
    good: dict[str, Expression] = {
        # A message without a body has nothing to say, but it is a row: it is published as the empty text.
        _BODY: functions.coalesce(body, functions.lit("")),
        _KEY: functions.concat_ws("/", *(functions.col(name).cast("string") for name in part.key)),
        _MARK: functions.sha2(same, 256),
        _PREFER: functions.col(part.prefer) if part.prefer else functions.lit(0),
    }
    return checked.select(
        first_reason().alias(_REASON),
        functions.when(bad, problem_texts()).alias(_PROBLEMS),
        functions.when(bad, functions.col(RAW)).alias(RAW),
        functions.when(bad, functions.col(FILE)).alias(FILE),
        *(functions.when(~bad, value).alias(name) for name, value in good.items()),
    )


def _put_aside(
    spark: SparkSession, judged: DataFrame, part: Ingest, run: Run, summary: IngestSummary, progress: Progress
) -> None:
    """Writes the rejects into ``<quarantine>/ingest/run=<id>/reason=<reason>``, as JSON lines."""
    files = Files(spark)
    place = f"{part.quarantine}/ingest/run={run.id}"
    files.remove(place)  # of an earlier attempt, which may have read with other rules
    if not summary.rejected:
        return
    staged = files.stage(f"{part.quarantine}/ingest", run.id)
    with watched(progress, spark, "quarantine", "putting rejects aside") as step:
        rejected = judged.where(functions.col(_REASON).isNotNull()).select(
            functions.col(_REASON).alias("reason"),
            functions.col(_PROBLEMS).alias("problems"),
            functions.col(FILE).alias("file"),
            functions.col(RAW).alias("raw"),
        )
        rejected.hint("rebalance", "reason").write.mode("overwrite").partitionBy("reason").json(staged)
        files.put_in_place(staged, place)
        step.count = sum(summary.rejected.values())
    summary.quarantine = place


def _publish(judged: DataFrame, description: Description, part: Ingest, where: Target, run: Run) -> tuple[int, int]:
    """(messages stored, messages that the store had already)."""
    order = [functions.col(_PREFER).desc_nulls_last(), functions.col(_BODY), functions.col(_KEY)]
    number = functions.row_number().over(Window.partitionBy(_MARK).orderBy(*order))
    good = judged.where(functions.col(_REASON).isNull()).withColumn(_NUMBER, number)
    if part.dedup:
        good = good.where(functions.col(_NUMBER) == 1)
    within = run.id if part.scope == "run" or not part.dedup else ""
    messages = good.select(_BODY, _KEY, _message_id(description, within).alias(_ID))
    receipts = publish(
        messages,
        where.url,
        description.queue.name,
        value=_BODY,
        key=_KEY if part.key else None,
        id=_ID,
        **where.stage_options(),
    )
    stored, known = receipts.agg(functions.sum("count"), functions.sum("duplicates")).first() or (0, 0)
    return int(stored or 0), int(known or 0)


def _message_id(description: Description, within: str) -> Expression:
    """16 bytes made of what the row says, and of which of the same rows it is; the form is a UUID of version 8.

    Rows that are the same are numbered in an order that only they decide, so a row's id does not depend on which task
    reads it, nor on how often.
    """
    named = f"{description.name}/{description.queue.name}/{within}/"  # names have no slash
    text = functions.concat(functions.lit(named), _MARK, functions.lit(":"), functions.col(_NUMBER).cast("string"))
    digits = functions.sha2(text, 256)

    def part(start: int, length: int) -> Expression:
        return functions.substring(digits, start, length)

    return functions.unhex(
        functions.concat(part(1, 12), functions.lit("8"), part(13, 3), functions.lit("a"), part(16, 15))
    )
