"""The end of a stream: what its checkpoint has as processed leaves the queue, without the query that has written it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from ignis.errors import ConfigError, QueueMismatchError
from ignis.spark._pyspark import AnalysisException, SparkSession
from ignis.spark.drain_task import owner_of
from ignis.spark.offsets import Offset, incarnations
from ignis.spark.queue_path import find_place
from ignis.spark.source import retire_batch
from ignis.storage import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID

__all__ = ["Finished", "finish"]


class Finished(NamedTuple):
    """``retired`` messages, of the last batch that the query committed, left the store. ``held`` ones the job has claimed
    beyond that: of a batch that was planned and not committed."""

    retired: int
    held: int


def finish(
    spark: SparkSession,
    url: str,
    queue: str,
    job: str,
    checkpoint: str,
    *,
    client_id: str = DEFAULT_CLIENT_ID,
    farm_id: str = DEFAULT_FARM_ID,
    config: str | os.PathLike[str] | None = None,
) -> Finished:
    """Commits the last batch of a stream that has ended: by ``stop()``, or because its driver died.

    A query deletes a batch when it plans the next one. One that ends leaves its last batch claimed; it deletes it when it
    starts again. For one that does not, this does: otherwise the sweeper brings that batch back after ``stuck_after``, and it
    is processed twice. Nothing is deleted that the checkpoint does not have as committed. Idempotent; from any process; also
    while the query runs, and before it starts again.

    Args:
        spark: a session, which reads the checkpoint.
        url, queue, job, client_id, farm_id, config: the options of the stream.
        checkpoint: its ``checkpointLocation``.

    Returns:
        What was deleted, durably as the queue's setting promises, and what the job still holds. Those messages are read when
        the query starts again. If it never will, ``resume(spark, url, queue, job).abandon()`` gives them back.

    Raises:
        ConfigError: there is no checkpoint. QueueMismatchError: it is of another queue or job, or the queue or its store was
        made anew; nothing was deleted. QueueNotFoundError, StoreFailedError, StoreBusyError, StoreUnreachableError: call it
        again.
    """
    place = find_place(url, queue, {}, client_id=client_id, farm_id=farm_id, config=config)
    owner = owner_of(job)
    magazines = place.open().magazines
    end = _committed(spark, checkpoint, queue, job)
    retired = 0 if end is None else retire_batch(place, job, end, incarnations(magazines, queue))
    return Finished(retired, sum(run.messages for run in magazines.held(queue, owner)))


def _committed(spark: SparkSession, checkpoint: str, queue: str, job: str) -> Offset | None:
    """The offset at which the last committed batch ends; None when none was committed."""
    top = _literal(checkpoint)
    try:
        files = spark.read.format("binaryFile").load([f"{top}/metadata", f"{top}/commits"]).select("path").collect()
    except AnalysisException as exc:  # the one error of a path that is not there
        raise ConfigError(
            f"checkpoint = {checkpoint!r} is not the checkpointLocation of a query: {str(exc).splitlines()[0]}"
        ) from exc
    names = (row["path"].rsplit("/", 2) for row in files)
    batches = [int(name) for _, folder, name in names if folder == "commits" and name.isdecimal()]
    if not batches:
        return None
    path = f"{top}/offsets/{max(batches)}"
    (content,) = spark.read.format("binaryFile").load(path).select("content").first() or (b"",)
    found = list(_offsets(bytes(content).decode()))
    for offset in found:
        if (offset["queue"], offset["job"]) == (queue, job):
            return offset
    others = (
        ", ".join(f"job {offset['job']!r} of queue {offset['queue']!r}" for offset in found) or "nothing of this format"
    )
    raise QueueMismatchError(
        f"the checkpoint {checkpoint} is of {others}, not of job {job!r} of queue {queue!r}; nothing was deleted"
    )


def _offsets(text: str) -> Iterator[Offset]:
    """The offsets of this data source among those of a batch: of each source one, as JSON, in a line of its own."""
    for line in text.splitlines():
        try:
            value: Any = json.loads(line)
        except ValueError:
            continue  # the version, and sources that write no JSON
        if isinstance(value, dict) and {"queue", "job", "batch", "incarnations"} <= value.keys():
            yield value


def _literal(path: str) -> str:
    """A path as a pattern that finds it and nothing else."""
    return "".join(f"\\{one}" if one in "\\*?{}[]" else one for one in path)
