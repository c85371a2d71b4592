"""Files into a queue: read, check, put rejects aside, keep one of what is the same, publish.

Running again is safe at any point. The files of a run are fixed in its record when it begins. Rejects are written beside
their place and moved there in one step. Every message has an id made of its ``dedup`` values, or of its file, its line and
what stands there. So a store that remembers ids stores it once, however often, and by whatever run, it is published.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from ignis.config import SparkSettings, load_file, resolve
from ignis.errors import ConfigError, TooManyRejectedError
from ignis.spark._pyspark import Column as Expression
from ignis.spark._pyspark import DataFrame, SparkSession, Window, functions
from ignis.spark.pipeline.checks import (
    PROBLEMS,
    REASON_TOO_LARGE,
    REASONS,
    check_rows,
    first_reason,
    problem,
    problem_texts,
)
from ignis.spark.pipeline.csv_lines import BLANK, OPEN
from ignis.spark.pipeline.description import Column, Description, Ingest
from ignis.spark.pipeline.files import Files
from ignis.spark.pipeline.intake import (
    check_description,
    check_memory,
    choose_files,
    described,
    must_be_unchanged,
)
from ignis.spark.pipeline.progress import Progress, watched
from ignis.spark.pipeline.reading import (
    BLOCK,
    FILE,
    LINE,
    LINES,
    MALFORMED,
    ORDER,
    RAW,
    RAW_BYTES,
    UNSPLIT,
    Headers,
    Lines,
    check_headers,
    number_lines,
    read_rows,
    with_line,
)
from ignis.spark.pipeline.runs import Run, Runs
from ignis.spark.pipeline.session import SETTINGS, settings
from ignis.spark.pipeline.target import Target, declare_queue, resolve_target
from ignis.spark.stages import publish

__all__ = ["IngestSummary", "ingest"]

_BODY, _KEY, _ID, _MARK, _PREFER, _REASON, _NUMBER, _OPEN = (
    "_body", "_key", "_id", "_mark", "_prefer", "_reason", "_number", "_open",
)  # fmt: skip
_TEXT = "_text_"
"""Before the name of a column: what stood in the file, whatever it was cast to."""
_MOST_KEY_BYTES = 0xFFFF

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
    accept_changes: bool = False,
    progress: Progress | None = None,
) -> IngestSummary:
    """Publishes the rows of the files that no finished run has read; on return all are durable as the queue is.

    A run that was begun and not finished is taken up first, with the files that it had; files that came later are for
    the next call. A file that has only grown since it was read is read from where it ended; one whose content is the same
    is not read again, whatever its time says; one whose content has changed is read whole. ``progress`` is told so before.

    Args:
        description: with an ``[ingest]``.
        target: the store, where the description's is not meant.
        run_id: of a new run, or of one to take up; one that is done already is not done again.
        everything: read all files, also those that were read before.
        new_run: give up an unfinished run instead of taking it up.
        accept_changes: read rows again that an earlier run has read, or begun to read, by another description, or has published
            longer ago than the store remembers ids.
        progress: told about each step.

    Returns:
        The figures.

    Raises:
        ConfigError: the description; a file that lacks a column or has another header than the others; files that changed
            while a run was unfinished; a description that changed since rows were published by it, with what would happen; rows
            that were published longer ago than ids are remembered.
        LockHeldError: another process runs this pipeline.
        TooManyRejectedError; and what `ignis.spark.stages.publish` raises, also where it was raised in a task. IgnisError: Spark
            failed, in one line. The run stays unfinished.
    """
    part: Ingest = description.wanted("ingest")
    where = resolve_target(description, target)
    summary = IngestSummary(pipeline=description.name, queue=description.queue.name)
    runs = Runs(description.folder, description.name)
    files = Files(spark)
    told = progress or Progress()
    with runs.locked(), settings(spark, SETTINGS):
        given_up: Run | None = None
        run = runs.get("ingest", run_id) if run_id is not None else runs.unfinished("ingest")
        if run is not None and new_run and not run.done:
            given_up, run = run, None
        if run is not None and run.done:
            return msgspec.convert({**run.summary, "repeated": True}, IngestSummary)
        again = [run] if run is not None else []
        if run is not None:
            summary.resumed = True
            must_be_unchanged(run, files)
            chosen = run.files
        else:
            chosen, earlier = choose_files(runs, files, part, told, everything=everything)
            again = earlier  # the one that is given up among them
            if not chosen:
                return summary
        if not accept_changes:
            check_description(description, again)
            check_memory(again, resolve(SparkSettings, {}, load_file(where.config)).remember_ids_s)
        headers = check_headers(spark, files, part, description.schema, chosen)
        limit = declare_queue(description, where, raw=_is_text(description, part))
        if given_up is not None:
            runs.forget(given_up)
        if run is None:
            run = runs.begin("ingest", run_id, chosen, described(description))
        elif run.description != described(description):
            run.description = described(description)
            runs.save(run)
        summary.run = run.id
        began = time.monotonic()
        _Ingest(spark, description, part, where, files, runs, run, headers, limit, summary, told).carry_out()
        summary.seconds = round(time.monotonic() - began, 3)
        summary.rows_per_s = round(summary.read / max(summary.seconds, 0.001), 1)
        runs.finish(run, msgspec.to_builtins(summary))
    return summary


def _is_text(description: Description, part: Ingest) -> bool:
    return bool(part.body) and description.schema[part.body].type == "string"


class _Ingest:
    """One run of an ingest."""

    def __init__(
        self, spark: SparkSession, description: Description, part: Ingest, where: Target, files: Files, runs: Runs, run: Run,
        headers: Headers, limit: int, summary: IngestSummary, progress: Progress,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._description = description
        self._part = part
        self._where = where
        self._files = files
        self._runs = runs
        self._run = run
        self._headers = headers
        self._limit = limit
        self._summary = summary
        self._progress = progress

    def carry_out(self) -> None:
        summary = self._summary
        summary.files, summary.bytes = len(self._run.files), sum(one.size_bytes for one in self._run.files)
        with watched(self._progress, self._spark, "check", "reading and checking") as step:
            judged, rows = self._read(in_order=self._part.csv.multiline)
            try:
                counts = {one[_REASON]: one["count"] for one in rows.groupBy(_REASON).count().collect()}
            except BaseException:
                judged.unpersist()
                raise
            summary.accepted = counts.pop(None, 0)
            summary.rejected = {reason: counts[reason] for reason in REASONS if reason in counts}
            summary.read = step.count = summary.accepted + sum(counts.values())
        try:
            self._must_be_the_same()
            self._put_aside(rows)
            self._must_be_few()  # behind, so that it can be seen what is wrong with them
            if summary.accepted:
                if not self._run.publishing_since_ms:
                    self._run.publishing_since_ms = time.time_ns() // 1_000_000
                    self._runs.save(self._run)
                with watched(self._progress, self._spark, "publish", "publishing") as step:
                    stored, known = self._publish(rows)
                    step.count = summary.published = stored
                summary.known = known
                summary.duplicates = summary.accepted - stored - known
        finally:
            judged.unpersist()

    def _read(self, *, in_order: bool) -> tuple[DataFrame, DataFrame]:
        """(what is held in memory, the rows of this run); lines of one record are put together where there are any."""
        csv, parquet = self._part.format == "csv", self._part.format == "parquet"
        with settings(self._spark, UNSPLIT if in_order and csv else {}):
            rows = read_rows(self._spark, self._part, self._description.schema, self._headers, in_order=in_order)
            judged = self._judged(rows).persist()
            try:
                if csv and not in_order and judged.where(_OPEN).limit(1).count():
                    # Whose the next lines are shows only in their order.
                    judged.unpersist()
                    return self._read(in_order=True)
                blocks, totals = number_lines(judged, parquet=parquet)
                placed = with_line(self._spark, judged, blocks, self._first_lines(blocks, totals, header=csv))
            except BaseException:
                judged.unpersist()
                raise
        return judged, placed.where(functions.coalesce(_REASON, functions.lit("")) != BLANK)

    def _first_lines(self, blocks: Sequence[Lines], totals: Mapping[str, int], *, header: bool) -> dict[str, int]:
        """File -> the line from which on it is read; notes in the run how many lines each has."""
        # Spark writes what is no letter of a URL as one would there.
        names = {urllib.parse.unquote(file): file for file, _ in groupby(blocks, key=lambda one: one.file)}
        first: dict[str, int] = {}
        files = []
        for one in self._run.files:
            file = names.get(one.path, one.path)
            first[file] = max(one.first_line, int(header))
            files.append(one._replace(lines=totals.get(file, 0)))
        self._run.files = files
        return first

    def _must_be_the_same(self) -> None:
        for one in self._run.files:
            now = self._files.now(one.path)
            if now is None or now.size_bytes != one.size_bytes:
                raise ConfigError(
                    f"{one.path} changed while it was read, and nothing of it was published: "
                    "begin a new run when it is written (--new-run)"
                )

    def _must_be_few(self) -> None:
        rejected = sum(self._summary.rejected.values())
        if rejected > self._part.max_rejected * self._summary.read:
            raise TooManyRejectedError(rejected, self._summary.read, self._part.max_rejected)

    def _judged(self, rows: DataFrame) -> DataFrame:
        """One row per row of the files: what is published of a good one, what is kept of a bad one."""
        part, schema = self._part, self._description.schema
        # Two texts may be one double: which rows are the same is for the texts to say.
        texts = {name: f"{_TEXT}{name}" for name in part.dedup if schema[name].type == "number"}
        place = (FILE, BLOCK, ORDER, LINES, MALFORMED, RAW, RAW_BYTES)
        checked = check_rows(rows, schema, *place, texts=texts)
        if part.body:
            body = functions.col(part.body)
        else:
            body = json_of(part.columns or tuple(schema), schema)
        if part.dedup:
            same = functions.to_json(
                functions.struct(*(functions.col(texts.get(name, name)).alias(name) for name in part.dedup)),
                JSON_OPTIONS,
            )
        else:
            same = functions.col(RAW)
        key = key_of(part.key)
        # A message without a body has nothing to say, but it is a row: it is published as the empty text.
        whole = checked.withColumn(_BODY, functions.coalesce(body, functions.lit(""))).withColumn(_KEY, key)
        large = problem(
            REASON_TOO_LARGE,
            "",
            functions.concat(
                functions.lit("the message has "),
                functions.octet_length(_BODY).cast("string"),
                functions.lit(" bytes and a key of "),
                functions.coalesce(functions.octet_length(_KEY), functions.lit(0)).cast("string"),
                functions.lit(f"; {self._limit} (queue.max_message_bytes) and {_MOST_KEY_BYTES} are allowed"),
            ),
        )
        too_large = (functions.octet_length(_BODY) > self._limit) | (functions.octet_length(_KEY) > _MOST_KEY_BYTES)
        found = functions.when((functions.size(PROBLEMS) == 0) & too_large, functions.array(large))
        judged = whole.withColumn(PROBLEMS, found.otherwise(functions.col(PROBLEMS)))
        bad = first_reason().isNotNull()
        good: dict[str, Expression] = {
            _BODY: functions.col(_BODY),
            _KEY: functions.col(_KEY),
            _MARK: functions.sha2(same, 256),
            _PREFER: functions.col(part.prefer) if part.prefer else functions.lit(0),
        }
        blank = functions.col(MALFORMED) == BLANK
        return judged.select(
            FILE,
            BLOCK,
            ORDER,
            LINES,
            functions.coalesce(functions.col(MALFORMED) == OPEN, functions.lit(False)).alias(_OPEN),
            functions.when(blank, functions.lit(BLANK)).otherwise(first_reason()).alias(_REASON),
            functions.when(bad, problem_texts()).alias(PROBLEMS),
            functions.when(bad, functions.col(RAW)).alias(RAW),
            RAW_BYTES,
            *(functions.when(~bad, value).alias(name) for name, value in good.items()),
        )

    def _put_aside(self, rows: DataFrame) -> None:
        """Writes the rejects into ``<quarantine>/ingest/run=<id>/reason=<reason>``, as JSON lines."""
        part, run, files, summary = self._part, self._run, self._files, self._summary
        place = f"{part.quarantine}/ingest/run={run.id}"
        files.remove(place)  # of an earlier attempt, which may have read with other rules
        if not summary.rejected:
            return
        staged = files.stage(f"{part.quarantine}/ingest", run.id)
        with watched(self._progress, self._spark, "quarantine", "putting rejects aside") as step:
            rejected = rows.where(functions.col(_REASON).isNotNull()).select(
                functions.col(_REASON).alias("reason"),
                functions.col(PROBLEMS).alias("problems"),
                functions.col(FILE).alias("file"),
                (functions.col(LINE) + 1).alias("line"),
                functions.col(RAW).alias("raw"),
                functions.base64(RAW_BYTES).alias("raw_base64"),
            )
            rejected.hint("rebalance", "reason").write.mode("overwrite").partitionBy("reason").json(staged)
            files.put_in_place(staged, place)
            step.count = sum(summary.rejected.values())
        summary.quarantine = place

    def _publish(self, rows: DataFrame) -> tuple[int, int]:
        """(messages stored, messages that the store had already)."""
        part, description = self._part, self._description
        good = rows.where(functions.col(_REASON).isNull())
        if part.dedup:
            order = [functions.col(_PREFER).desc_nulls_last(), *map(functions.col, (_BODY, _KEY, FILE, LINE))]
            number = functions.row_number().over(Window.partitionBy(_MARK).orderBy(*order))
            good = good.withColumn(_NUMBER, number).where(functions.col(_NUMBER) == 1)
        messages = good.select(_BODY, _KEY, _message_id(description, part).alias(_ID))
        receipts = publish(
            messages,
            self._where.url,
            description.queue.name,
            value=_BODY,
            key=_KEY if part.key else None,
            id=_ID,
            max_message_bytes=self._limit,
            **self._where.stage_options(),
        )
        stored, known = receipts.agg(functions.sum("count"), functions.sum("duplicates")).first() or (0, 0)
        return int(stored or 0), int(known or 0)


def json_of(names: Sequence[str], schema: Mapping[str, Column]) -> Expression:
    """A JSON object of columns, in their order; those of type ``json`` as they stand."""
    if all(schema[name].type != "json" for name in names):
        return functions.to_json(functions.struct(*names), JSON_OPTIONS)
    pieces = list(_pieces(names, schema))
    return functions.concat(functions.lit("{"), *_joined(pieces), functions.lit("}"))


def _pieces(names: Sequence[str], schema: Mapping[str, Column]) -> Iterator[Expression]:
    """The fields of an object, in a few texts that commas go between."""
    for is_json, group in groupby(names, key=lambda name: schema[name].type == "json"):
        if not is_json:
            whole = functions.to_json(functions.struct(*group), JSON_OPTIONS)
            yield functions.substring(whole, functions.lit(2), functions.length(whole) - 2)
            continue
        for name in group:
            field = msgspec.json.encode(name).decode()
            yield functions.concat(
                functions.lit(f"{field}:"), functions.coalesce(functions.col(name), functions.lit("null"))
            )


def _joined(pieces: Sequence[Expression]) -> Iterator[Expression]:
    for index, piece in enumerate(pieces):
        if index:
            yield functions.lit(",")
        yield piece


def key_of(names: Sequence[str]) -> Expression:
    """The message's key: the value of one column as it stands; of several, joined by ``/`` so that no two are the same:
    ``%`` and ``/`` in a value become ``%25`` and ``%2F``, a missing one is ``%00``. Null where all are missing."""
    texts = [functions.col(name).cast("string") for name in names]
    if not texts:
        return functions.lit(None).cast("string")
    if len(texts) == 1:
        return texts[0]
    escaped = [functions.coalesce(_without_slash(text), functions.lit("%00")) for text in texts]
    return functions.when(functions.coalesce(*texts).isNotNull(), functions.concat_ws("/", *escaped))


def _without_slash(text: Expression) -> Expression:
    for sign, code in (("%", "%25"), ("/", "%2F")):
        text = functions.replace(text, functions.lit(sign), functions.lit(code))
    return text


def _message_id(description: Description, part: Ingest) -> Expression:
    """16 bytes made of the ``dedup`` values, or of the file, the line, and what stands there; the form is a UUID of
    version 8.

    So a row's id depends neither on which task reads it, nor on how often, nor on the run.
    """
    named = functions.lit(f"{description.name}/{description.queue.name}/")  # names have no slash
    where: list[Expression] = []
    if part.scope == "run" or not part.dedup:
        where = [functions.col(LINE).cast("string"), functions.lit("@"), functions.col(FILE), functions.lit("\n")]
    digits = functions.sha2(functions.concat(named, *where, functions.col(_MARK)), 256)

    def piece(start: int, length: int) -> Expression:
        return functions.substring(digits, start, length)

    return functions.unhex(
        functions.concat(piece(1, 12), functions.lit("8"), piece(13, 3), functions.lit("a"), piece(16, 15))
    )
