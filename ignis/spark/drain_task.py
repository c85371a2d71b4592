"""A drain in progress: what the driver has claimed, until it is committed or given back."""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

from ignis.config import check_name
from ignis.errors import ClosedError, ConfigError, IgnisError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.spark._pyspark import DataFrame, SparkSession, StructType, functions
from ignis.spark.columns import ENVELOPE_SCHEMA, MESSAGE_SCHEMA
from ignis.spark.offsets import Incarnations, check_incarnations, incarnations
from ignis.spark.parse_body import UNPARSED, fields_of
from ignis.spark.queue_path import Place
from ignis.spark.read_task import Reading, cut_runs
from ignis.spark.unparsed import CORRUPT, Suspects, parsed_with_spark, put_aside
from ignis.stacks import start_thread
from ignis.storage.base import MagazineStore, Run
from ignis.storage.records import joined_runs
from ignis.upkeep import outlast

__all__ = [
    "COMMIT_AT_ONCE",
    "Committed",
    "Drained",
    "claim_all",
    "keep_renewing",
    "new_job",
    "owner_of",
    "pieces",
    "retire",
    "struct_of",
]

log = logging.getLogger("ignis.spark")

_CLAIM_AT_ONCE = 1_000_000
"""Messages claimed in one call: bounds what other claimers wait for."""
COMMIT_AT_ONCE = 262_144
"""Pointers retired in one transaction, for the same reason."""
_RENEWALS = 4
"""Claims are renewed so often within the stuck time."""


_handles: weakref.WeakValueDictionary[tuple[str, str, str, str, str], Drained] = weakref.WeakValueDictionary()
"""The last handle of each job in this process."""


def new_job() -> str:
    """A name that nobody else has."""
    return uuid.uuid4().hex


def owner_of(job: str) -> str:
    """The name that a job's claims have in the store."""
    return f"spark:{check_name(job, 'job')}"


def claim_all(magazines: MagazineStore, queue: str, owner: str, limit: int | None) -> list[Run]:
    """Claims up to ``limit`` pending messages, all of them when None: what is loaded meanwhile may be among them."""
    runs: list[Run] = []
    left = sum(state.pending for state in magazines.metadata(queue)) if limit is None else limit
    while left > 0:
        found = magazines.claim(queue, min(left, _CLAIM_AT_ONCE), owner)
        if not found:
            break
        runs += found
        left -= sum(run.messages for run in found)
    return joined_runs(runs)


def pieces(runs: Sequence[Run], size: int) -> Iterator[dict[int, range]]:
    """The pointers of the runs, at most so many at a time, as the store takes them: of as many shards as there is room
    for, since each time is a transaction."""
    taken: dict[int, range] = {}
    room = size
    for run in runs:
        start = run.first
        while start <= run.last:
            if not room or run.shard in taken:
                yield taken
                taken, room = {}, size
            taken[run.shard] = range(start, min(run.last + 1, start + room))
            room -= len(taken[run.shard])
            start = taken[run.shard].stop
    if taken:
        yield taken


def retire(magazines: MagazineStore, queue: str, runs: Sequence[Run]) -> int:
    """Deletes what is left of the runs; returns how many messages that were."""
    return sum(magazines.delete(queue, pointers) for pointers in pieces(runs, COMMIT_AT_ONCE))


class Committed(NamedTuple):
    """``retired`` messages left the store by this commit; ``late`` ones were claimed, and gone before it: the sweeper had
    taken them because the claim was too old, or they were damaged. They are in the sideline and come again. ``unreadable`` ones
    did not parse as the drain's schema says: they were in no row, and were moved to the sideline."""

    retired: int
    late: int
    unreadable: int = 0


class Drained:
    """What `drain` and `resume` give. Use it as a context manager: without a `commit` inside, leaving gives the messages
    back, so that a failed action costs nothing.

    Thread-safe. A thread renews the claims as long as the handle is neither committed, given back nor closed.

    Attributes:
        df: the messages: ``body`` (binary) or, with a schema, its columns; then ``_id`` (text), ``_key`` (binary),
            ``_enqueued_at``, ``_failures``, ``_crashes``, ``_meta`` (MessagePack), ``_shard``, ``_pointer``, unless they are
            not wanted. Every action on it reads the store anew and finds the same messages, until the commit.
        job: the name for `resume`.
        claimed: number of messages.
        runs: where they are.
        run_lists: the same, by part: what one task reads.
        parts: a DataFrame of the parts' numbers, one a task, for `ignis.spark.read_in_pandas`.
        incarnations: of the shards they are in, see `ignis.storage.records.ShardState`.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        job: str,
        *,
        schema: StructType | str | None,
        limit: int | None,
        claims: bool,
        envelope: bool = True,
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"limit = {limit} is below 1")
        self.job = job
        self.place = place
        self._owner = owner_of(job)
        self._magazines = place.open().magazines
        self.incarnations: Incarnations = incarnations(self._magazines, place.queue)
        held = self._magazines.held(place.queue, self._owner)
        if claims:
            left = None if limit is None else limit - sum(run.messages for run in held)
            if left is None or left > 0:
                held = joined_runs([*held, *claim_all(self._magazines, place.queue, self._owner, left)])
        self.runs = held
        self.claimed = sum(run.messages for run in held)
        self.run_lists = tuple(cut_runs(held, place.settings.partition_rows, _parallelism(spark)))
        self.parts = spark.range(0, len(self.run_lists), 1, max(1, len(self.run_lists))).toDF("part")
        self._spark = spark
        self._schema = None if schema is None else struct_of(schema)
        self._fields = None if self._schema is None else fields_of(self._schema)
        # Who asks for the column has those bodies as rows.
        watched = self._schema is not None and CORRUPT not in self._schema.fieldNames()
        self._suspects = Suspects(spark) if watched else None
        self.df = self._frame(spark, envelope)
        self._lock = threading.Lock()
        self._ended = ""
        self._committed: Committed | None = None
        self._to_retire = list(pieces(self.runs, COMMIT_AT_ONCE))
        self._retired = 0
        self._unreadable = 0
        self._stop = threading.Event()
        self._renewal: threading.Thread | None = None
        self._say_if_second()
        # At once, since what a resumed job holds may be old; and then every now and then, where the store can.
        if held and self._magazines.renew(place.queue, self._owner):
            self._renewal = threading.Thread(
                target=keep_renewing, args=(place, self._owner, self._stop), name=f"ignis-spark-{job}", daemon=True
            )
            weakref.finalize(self, self._stop.set)  # a handle that nobody holds holds no messages
            start_thread(self._renewal)

    def _say_if_second(self) -> None:
        place = self.place
        named = (place.url, place.client_id, place.farm_id, place.queue, self._owner)
        other = _handles.get(named)
        if other is not None and not other._ended and self.claimed:
            log.warning(
                event_text(
                    "spark_job_twice",
                    "job %s of %s has another handle in this process: both give the same messages, and what one commits or gives "
                "back is gone for the other"),
                self.job, place.queue,
            )  # fmt: skip
        _handles[named] = self

    def _frame(self, spark: SparkSession, envelope: bool) -> DataFrame:
        wanted, fields = self._schema, self._fields
        read = StructType()
        if fields is None or wanted is None:
            read.add("body", "binary")
        else:
            for field in wanted.fields:
                read.add(field.name, field.dataType)
            read.add(UNPARSED, "binary")
        around = struct_of(ENVELOPE_SCHEMA) if envelope else StructType()
        for field in around.fields:
            read.add(field)
        if self.run_lists:
            # Without fields the tasks parse nothing: then no part is known to be good.
            told = None if fields is None else self._suspects
            reading = Reading(self.place, self.run_lists, fields, envelope, told)
            df = self.parts.mapInArrow(reading, read)
        else:
            df = spark.createDataFrame([], read)
        if wanted is None:
            return df
        if fields is None:
            return self._parsed_by_spark(df, wanted, around)
        left = parsed_with_spark(functions.col(UNPARSED).cast("string"), wanted)
        is_parsed = functions.col(UNPARSED).isNull()
        columns = [
            functions.when(is_parsed, functions.col(f"`{name}`")).otherwise(left.getField(name)).alias(name)
            for name in wanted.fieldNames()
        ]
        good = is_parsed | (left.isNotNull() & left.getField(CORRUPT).isNull())
        return df.where(good).select(*columns, *around.fieldNames())

    def _parsed_by_spark(self, df: DataFrame, wanted: StructType, around: StructType) -> DataFrame:
        text = functions.col("body").cast("string")
        keeps = CORRUPT in wanted.fieldNames()
        if keeps:
            # Of a body without any value, such as an empty one, Spark makes no struct: a row of nulls would look like a good one.
            whole = [
                (text if field.name == CORRUPT else functions.lit(None)).cast(field.dataType).alias(field.name)
                for field in wanted.fields
            ]
            parsed = functions.array(functions.coalesce(functions.from_json(text, wanted), functions.struct(*whole)))
        else:
            parsed = functions.array_compact(
                functions.array(parsed_with_spark(text, wanted))
            )  # no value at all: no row
        # Not "body.*": the optimizer makes one parser per field of that, each of which reads the whole body.
        rows = df.select(functions.inline(parsed), *around.fieldNames())
        return rows if keeps else rows.where(functions.col(CORRUPT).isNull()).drop(CORRUPT)

    def _put_unreadable_aside(self) -> int:
        """What is in no row because its body does not parse, into the sideline."""
        if self._suspects is None or self._schema is None:
            return 0
        runs = self._suspects.runs(self.run_lists)
        if not runs:
            return 0
        lists = tuple(cut_runs(runs, self.place.settings.partition_rows, _parallelism(self._spark)))
        parts = self._spark.range(0, len(lists), 1, len(lists)).toDF("part")
        messages = parts.mapInArrow(Reading(self.place, lists), MESSAGE_SCHEMA)
        return put_aside(self.place, messages, self._schema)

    def commit(self) -> Committed:
        """Retires the messages, once the action's result is safe.

        With a schema it first moves those whose body does not parse to the sideline (reason ``unreadable``): they are in no
        row. Spark parses what its tasks could not decide once more for that. Idempotent. Durable on return as the queue's
        setting promises.

        Raises ClosedError after `abandon`. QueueMismatchError when the queue or its store was made anew since the claim:
        nothing was deleted. StoreFailedError, StoreBusyError, StoreUnreachableError: some may be retired and
        none is lost; call it again.
        """
        with self._lock:
            if self._committed is None:
                if self._ended:
                    raise ClosedError(f"the drain {self.job} was {self._ended}")
                self._check_incarnations()
                self._unreadable += self._put_unreadable_aside()
                while self._to_retire:
                    self._retired += self._magazines.delete(self.place.queue, self._to_retire[0])
                    del self._to_retire[0]
                late = self.claimed - self._retired - self._unreadable
                self._committed = Committed(self._retired, late, self._unreadable)
                self._end("committed")
            return self._committed

    def abandon(self) -> int:
        """Puts the messages back at their shards' tails; returns how many. Idempotent; ClosedError after `commit`."""
        with self._lock:
            if self._ended == "given back":
                return 0
            if self._ended:
                raise ClosedError(f"the drain {self.job} was {self._ended}")
            self._check_incarnations()
            count = sum(
                self._magazines.reload(self.place.queue, pointers) for pointers in pieces(self.runs, COMMIT_AT_ONCE)
            )
            self._end("given back")
            return count

    def _check_incarnations(self) -> None:
        queue = self.place.queue
        now = incarnations(self._magazines, queue)
        check_incarnations(now, queue, self.incarnations, f"the drain {self.job}", "drain what is there now")

    def close(self) -> None:
        """Lets go without a decision: the messages stay claimed, for `resume` or the sweeper. Idempotent."""
        with self._lock:
            if not self._ended:
                self._end("closed")

    def _end(self, how: str) -> None:
        self._ended = how
        self._stop.set()

    def __enter__(self) -> Drained:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.abandon()

    def __repr__(self) -> str:
        state = self._ended or "open"
        return f"<Drained {self.claimed} message(s) of {self.place.queue}, job {self.job}, {state}>"


def struct_of(schema: StructType | str) -> StructType:
    """Raises ConfigError for a text that names no columns. Needs a session."""
    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise ConfigError(f"schema = {schema!r} is not a list of columns; write 'id long, name string'")
    return found


def keep_renewing(place: Place, owner: str, stop: threading.Event) -> None:
    """The stuck time of that owner's claims begins anew every now and then until ``stop`` is set. For a thread, which so
    does not keep what started it alive."""
    outlast(log, lambda: _keep_renewing(place, owner, stop))


def _keep_renewing(place: Place, owner: str, stop: threading.Event) -> None:
    said = LimitedLog(log)
    while not stop.wait(place.stuck_after_s / _RENEWALS):
        try:
            place.open().magazines.renew(place.queue, owner)
        except IgnisError as exc:
            said.warning(
                event_text("spark_claim_renewal_failed", "the claims of %s could not be renewed: %s"), owner, exc
            )


def _parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time, as far as it can be known."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context; what it raises has changed between releases
        return 1
