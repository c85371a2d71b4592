"""``spark.read.format("ignis")`` and ``spark.readStream.format("ignis")``.

Options: ``url``, ``queue``, ``client_id``, ``farm_id``, ``config``, and the settings of ``[spark]``; for reading also
``job`` and, in batches, ``limit``; for writing see `ignis.spark.sink`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ignis.errors import ConfigError
from ignis.log_format import event_text
from ignis.spark._pyspark import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadLimit,
    ReadMaxRows,
    StructType,
    SupportsTriggerAvailableNow,
)
from ignis.spark.columns import MESSAGE_SCHEMA
from ignis.spark.drain_task import COMMIT_AT_ONCE, claim_all, keep_renewing, owner_of, pieces, retire
from ignis.spark.offsets import (
    Incarnations,
    Offset,
    batch_of,
    behind,
    both,
    check_offset,
    incarnations,
    incarnations_of,
    new_offset,
    next_offset,
    pointers_of,
    up_to,
)
from ignis.spark.queue_path import Place, find_place, split_options
from ignis.spark.read_task import cut_runs, read_runs
from ignis.spark.sink import IgnisStreamWriter, IgnisWriter
from ignis.stacks import start_thread
from ignis.storage.base import Run, ShardState
from ignis.storage.records import joined_runs

__all__ = ["IgnisDataSource", "retire_batch"]

log = logging.getLogger("ignis.spark")

_BATCH_PARTS = 8
"""Parts of a read at the least, where there are messages for them: how many tasks run at a time is not known here."""


class IgnisDataSource(DataSource):
    """``spark.dataSource.register(IgnisDataSource)`` once per session; then ``format("ignis")``."""

    @classmethod
    def name(cls) -> str:
        return "ignis"

    def schema(self) -> str:
        return MESSAGE_SCHEMA

    def reader(self, schema: StructType) -> IgnisReader:
        return IgnisReader(_checked(schema, self.options))

    def streamReader(self, schema: StructType) -> IgnisStreamReader:  # noqa: N802 - Spark's name
        return IgnisStreamReader(_checked(schema, self.options))

    def writer(self, schema: StructType, overwrite: bool) -> IgnisWriter:
        return IgnisWriter(schema, dict(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> IgnisStreamWriter:  # noqa: N802
        return IgnisStreamWriter(schema, dict(self.options), overwrite)


def _checked(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    names = [field.split()[0] for field in MESSAGE_SCHEMA.split(", ")]
    if schema.fieldNames() != names:
        raise ConfigError(f"the columns are {', '.join(names)}: leave schema() out, and parse the body with from_json")
    return dict(options)


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, place: Place, runs: Sequence[Run]) -> None:
        self.place = place
        self.runs = tuple(runs)


def _parts(place: Place, runs: Sequence[Run]) -> list[Part]:
    return [Part(place, runs) for runs in cut_runs(runs, place.settings.partition_rows, _BATCH_PARTS)]


class IgnisReader(DataSourceReader):
    """A batch. Without a ``job`` nothing is claimed: what is pending when the query is planned is looked at, and stays.
    With one, up to ``limit`` messages are claimed in its name (or those that are already): `ignis.spark.resume` commits
    or abandons them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        names, rest = split_options(options, "job", "limit")
        if any(name.lower() == "max_rows" for name in options):
            raise ConfigError("option max_rows is for streams: a batch takes limit")
        self._place = find_place(options=rest, **names)
        self._job = options.get("job")
        self._limit = _positive(options.get("limit"), "limit")

    def partitions(self) -> list[Part]:
        magazines = self._place.open().magazines
        if self._job is None:
            runs = _pending(self._place, self._limit)
        else:
            owner = owner_of(self._job)
            runs = magazines.held(self._place.queue, owner)
            left = None if self._limit is None else self._limit - sum(run.messages for run in runs)
            # Planned again, for another action: it gets the same messages.
            if not runs and (left is None or left > 0):
                runs = claim_all(magazines, self._place.queue, owner, left)
        # Spark takes an empty list for a source without partitioning.
        return _parts(self._place, runs) or [Part(self._place, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_runs(partition.place, partition.runs)


def _positive(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name} = {text!r} is not a whole number above 0")
    return int(text)


def _pending(place: Place, limit: int | None) -> list[Run]:
    """What is pending, as far as the pointers tell."""
    runs: list[Run] = []
    left = limit
    for state in place.open().magazines.metadata(place.queue):
        count = state.load_pointer - state.fire_pointer
        if left is not None:
            count = min(count, left)
            left -= count
        if count > 0:
            runs.append(Run(state.shard, state.fire_pointer + 1, state.fire_pointer + count, count))
    return runs


class IgnisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. An offset is a pointer per shard, with the incarnation of the shard that it is of, and the runs of its batch:
    one of another queue, or of a queue or a store that was made anew, is refused before anything is read or retired.

    * ``latestOffset`` retires the batch that ends where it starts: Spark asks for the next one once the checkpoint has the last.
      It claims at most the rows that Spark admits (``max_rows``), in the name of the ``job``, and answers how far that reaches.
      What an earlier life of the query had claimed and not planned comes first.
    * ``partitions`` gives the runs of a batch; tasks peek them. A query that starts again from its checkpoint reads the same
      ones.
    * ``commit`` retires what was processed.

    A ``job`` belongs to one query. The queue may have other consumers; what they have claimed is not read.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        names, rest = split_options(options, "job")
        if "job" not in options:
            raise ConfigError("option job is missing: the name in which this query claims, the same after a restart")
        self._place = find_place(options=rest, **names)
        self._job = options["job"]
        self._owner = owner_of(self._job)
        self._renewal: threading.Thread | None = None
        self._stop: threading.Event | None = None
        self._target: dict[int, int] | None = None
        self._retired: list[Run] = []

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, from here on
        place = self._place
        return new_offset(place.url, place.queue, self._job, incarnations(place.open().magazines, place.queue))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._place.settings.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        states = self._place.open().magazines.metadata(self._place.queue)
        self._target = {state.shard: state.pending for state in states}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        self._keep_claims()
        magazines, queue = self._place.open().magazines, self._place.queue
        states = magazines.metadata(queue)
        now = incarnations_of(states)
        read = check_offset(now, queue, self._job, start)
        self._retire(start, now)
        held = magazines.held(queue, self._owner)
        # Claimed in this name, and in no batch that is still to be retired.
        self._give_back(up_to(held, read))
        ahead = behind(held, read)
        room = limit.max_rows - sum(run.messages for run in ahead) if isinstance(limit, ReadMaxRows) else None
        while True:
            claimed = self._claim(room, states)
            again = up_to(claimed, read)
            self._give_back(again)
            if self._target is not None:  # it is still to come
                for run in again:
                    self._target[run.shard] += run.messages
            ahead += behind(claimed, read)
            # Where all of it was read before, there may be more behind: no batch would mean that there is nothing.
            if ahead or not again:
                return next_offset(start, joined_runs(ahead), now)

    def _retire(self, end: Offset, now: Incarnations) -> None:
        """Once for each batch: Spark asks often while nothing comes."""
        batch = batch_of(end)
        if batch != self._retired:
            retire_batch(self._place, self._job, end, now)
            self._retired = batch

    def _give_back(self, runs: list[Run]) -> None:
        """What lies before the end of what was read, and was not processed as far as the checkpoint tells: a power cut has undone
        claims, of this query or of other consumers of the queue. It comes again behind all that was read."""
        if not runs:
            return
        magazines, queue = self._place.open().magazines, self._place.queue
        count = sum(magazines.reload(queue, pointers) for pointers in pieces(runs, COMMIT_AT_ONCE))
        log.warning(
            event_text(
                "spark_messages_again",
                "%d message(s) of %s come again: a power cut has undone their claims, and they may have been processed"),
            count, queue,
        )  # fmt: skip

    def _claim(self, room: int | None, states: Sequence[ShardState]) -> list[Run]:
        magazines, queue = self._place.open().magazines, self._place.queue
        if self._target is None:
            pending = sum(state.pending for state in states)
            return claim_all(magazines, queue, self._owner, pending if room is None else room)
        runs: list[Run] = []
        for shard, left in self._target.items():
            wanted = left if room is None else min(left, room)
            if wanted > 0:
                found = magazines.claim(queue, wanted, self._owner, [shard])
                count = sum(run.messages for run in found)
                # Fewer than there were: somebody else has taken them.
                self._target[shard] = left - count if count == wanted else 0
                room = None if room is None else room - count
                runs += found
        return joined_runs(runs)

    def partitions(self, start: Offset, end: Offset) -> list[Part]:
        self._keep_claims()
        magazines, queue = self._place.open().magazines, self._place.queue
        read = pointers_of(start, queue, self._job)
        check_offset(incarnations(magazines, queue), queue, self._job, end)
        planned = behind(batch_of(end), read)
        # Nothing of it is held where it was planned before a power cut, which has undone the claims: what is still there is read.
        return _parts(self._place, both(magazines.held(queue, self._owner), planned) or planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_runs(partition.place, partition.runs)

    def commit(self, end: Offset) -> None:
        self._retire(end, incarnations(self._place.open().magazines, self._place.queue))

    def stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    # Only the reader that answers offsets claims anything; those that are pickled into tasks have neither of these.

    def _keep_claims(self) -> None:
        # At once as well: what an earlier life of the query holds may be old.
        if self._renewal is None and self._place.open().magazines.renew(self._place.queue, self._owner):
            self._stop = threading.Event()
            self._renewal = threading.Thread(
                target=keep_renewing, args=(self._place, self._owner, self._stop), name="ignis-spark", daemon=True
            )
            start_thread(self._renewal)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_renewal": None, "_stop": None}


def retire_batch(place: Place, job: str, end: Offset, now: Incarnations) -> int:
    """Deletes the batch that ends at an offset which the checkpoint has as processed; returns how many messages of it were there.
    Idempotent.

    A power cut ends claims. Where every acknowledged message survives that, the pointers are still those messages'. Elsewhere
    they may have been given to others since: then only what the job still holds is deleted.

    Args:
        now: the queue's incarnations.

    Raises:
        QueueMismatchError: the offset is of another queue, job or life of the queue; nothing was deleted.
    """
    store = place.open()
    check_offset(now, place.queue, job, end)
    batch = batch_of(end)
    record = store.queues.get(place.queue)
    if record is None or record.durability != "sync":
        batch = both(store.magazines.held(place.queue, owner_of(job)), batch)
    return retire(store.magazines, place.queue, batch)
