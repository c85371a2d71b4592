"""Pointers that are kept outside the store: a stream's offsets, what an export has in its files, what a drain has read.

A pointer alone means nothing once the queue was removed and made again, or the store was. So whatever keeps pointers keeps
beside them which incarnation of which queue's shards they are of, and nothing is retired before that was compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ignis.errors import QueueMismatchError
from ignis.storage.base import MagazineStore, Run, ShardState
from ignis.storage.runs import joined, overlap
from ignis.urls import redacted

__all__ = [
    "Incarnations",
    "Offset",
    "batch_of",
    "behind",
    "both",
    "check_incarnations",
    "check_offset",
    "incarnations",
    "incarnations_of",
    "new_offset",
    "next_offset",
    "pointers_of",
    "up_to",
]

Offset = dict[str, Any]
"""As JSON has it: ``store`` (its address without secrets, for people), ``queue``, ``job``, ``incarnations`` and ``pointers``,
both by shard, and ``batch``: the runs of the batch that ends here, as [shard, first, last]. The job has nothing more to read up
to the pointer; a shard that is not there stands at 0. What lies there and is in no batch was somebody else's."""

Incarnations = dict[str, int]
"""Shard, as JSON has it, -> `ShardState.incarnation`."""

_ANEW = "start with a new checkpointLocation (what is pending is read from the beginning) or restore the store it belongs to"


def incarnations(magazines: MagazineStore, queue: str) -> Incarnations:
    """Which life of each shard the queue's pointers are of at this moment."""
    return incarnations_of(magazines.metadata(queue))


def incarnations_of(states: Iterable[ShardState]) -> Incarnations:
    """The same, for whoever has asked the store already."""
    return {str(state.shard): state.incarnation for state in states}


def check_incarnations(now: Incarnations, queue: str, kept: Mapping[str, int], what: str, remedy: str) -> None:
    """Raises QueueMismatchError, which ends with ``remedy``, when ``what``, which was of ``kept``, is not of ``now``, this life
    of the queue's shards. Shards that were added since are fine."""
    for shard, incarnation in kept.items():
        found = now.get(shard)
        if found is None or found != incarnation:
            there = "is not there any more" if found is None else f"is of incarnation {found}"
            raise QueueMismatchError(
                f"{what} is of incarnation {incarnation} of shard {shard} of queue {queue!r}, which {there}: the queue or its "
                f"store was made anew, and its pointers mean other messages now. Nothing was deleted; {remedy}"
            )


def new_offset(url: str, queue: str, job: str, kept: Incarnations) -> Offset:
    """The offset in front of everything."""
    return {
        "store": redacted(url),
        "queue": queue,
        "job": job,
        "incarnations": kept,
        "pointers": {},
        "batch": [],
    }


_FIELDS = {"queue": str, "job": str, "incarnations": dict, "pointers": dict, "batch": list}


def pointers_of(offset: Offset, queue: str, job: str) -> dict[str, int]:
    """Shard -> pointer. Raises QueueMismatchError for an offset of another queue or job, or of a form that names none."""
    if not all(isinstance(offset.get(name), kind) for name, kind in _FIELDS.items()):
        raise QueueMismatchError(
            f"the checkpoint's offset {str(offset)[:200]} does not say which queue it is of: another version or another "
            f"source has written it. Nothing was deleted; {_ANEW}"
        )
    if offset["queue"] != queue:
        raise QueueMismatchError(
            f"the checkpoint is of queue {offset['queue']!r} in {offset.get('store')}, this query reads {queue!r}. Nothing was "
            f"deleted; {_ANEW}, or read the queue it belongs to"
        )
    if offset["job"] != job:
        raise QueueMismatchError(
            f"the checkpoint is of job {offset['job']!r}, this query has job {job!r}, which does not hold what that one has "
            f"claimed. Nothing was deleted; name job {offset['job']!r} again"
        )
    pointers: dict[str, int] = offset["pointers"]
    return pointers


def check_offset(now: Incarnations, queue: str, job: str, offset: Offset) -> dict[str, int]:
    """The offset's pointers, once it is known to be of this job, and of the queue's present life, ``now``. Raises
    QueueMismatchError."""
    pointers = pointers_of(offset, queue, job)
    check_incarnations(now, queue, offset["incarnations"], f"the checkpoint (of {offset.get('store')})", _ANEW)
    return pointers


def next_offset(offset: Offset, runs: Iterable[Run], now: Incarnations) -> Offset:
    """The offset behind the next batch, of those runs; the same one where there are none, and no new shards."""
    kept = {**now, **offset["incarnations"]}
    batch = [[run.shard, run.first, run.last] for run in runs]
    if not batch:
        return {**offset, "incarnations": kept}
    pointers = dict(offset["pointers"])
    for shard, _, last in batch:
        pointers[str(shard)] = max(pointers.get(str(shard), 0), last)
    return {**offset, "incarnations": kept, "pointers": pointers, "batch": batch}


def batch_of(offset: Offset) -> list[Run]:
    """The runs of the batch that ends at the offset."""
    return [Run(shard, first, last, last - first + 1) for shard, first, last in offset["batch"]]


def behind(runs: Sequence[Run], pointers: Mapping[str, int]) -> list[Run]:
    """The parts of the runs behind the pointers."""
    return [part for run in runs if (part := _part(run, max(run.first, pointers.get(str(run.shard), 0) + 1), run.last))]


def up_to(runs: Sequence[Run], pointers: Mapping[str, int]) -> list[Run]:
    """The parts of the runs up to and with the pointers."""
    return [part for run in runs if (part := _part(run, run.first, min(run.last, pointers.get(str(run.shard), 0))))]


def _part(run: Run, first: int, last: int) -> Run | None:
    if first > last:
        return None
    return Run(run.shard, first, last, min(run.messages, last - first + 1))


def both(runs: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """The parts of ``runs`` that are in ``others`` as well."""
    theirs = _by_shard(others)
    return [
        part
        for run in runs
        for start, stop in overlap(theirs.get(run.shard, []), run.first, run.last + 1)
        if (part := _part(run, start, stop - 1))
    ]


def _by_shard(runs: Iterable[Run]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for run in runs:
        found.setdefault(run.shard, []).append((run.first, run.last + 1))
    return {shard: joined(pairs) for shard, pairs in found.items()}
