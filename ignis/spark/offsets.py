"""Pointers that are kept outside the store: a stream's offsets, what an export has in its files, what a drain has read.

A pointer alone means nothing once the queue was removed and made again, or the store was. So whatever keeps pointers keeps
beside them which incarnation of which queue's shards they are of, and nothing is retired before that was compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ignis.errors import QueueMismatchError
from ignis.storage.base import MagazineStore, Run
from ignis.urls import redacted

__all__ = [
    "Incarnations",
    "Offset",
    "behind",
    "check_incarnations",
    "check_offset",
    "incarnations",
    "new_offset",
    "pointers_of",
    "up_to",
    "with_pointers",
]

Offset = dict[str, Any]
"""As JSON has it: ``store`` (its address without secrets, for people), ``queue``, ``incarnations`` and ``pointers``, both by
shard. Messages up to the pointer were read; a shard that is not there stands at 0."""

Incarnations = dict[str, int]
"""Shard, as JSON has it, -> `ShardState.incarnation`."""

_ANEW = "start with a new checkpointLocation (what is pending is read from the beginning) or restore the store it belongs to"


def incarnations(magazines: MagazineStore, queue: str) -> Incarnations:
    """Which life of each shard the queue's pointers are of at this moment."""
    return {str(state.shard): state.incarnation for state in magazines.metadata(queue)}


def check_incarnations(magazines: MagazineStore, queue: str, kept: Mapping[str, int], what: str, remedy: str) -> None:
    """Raises QueueMismatchError, which ends with ``remedy``, when ``what`` is not of this life of the queue's shards. Shards
    that were added since are fine."""
    now = incarnations(magazines, queue)
    for shard, incarnation in kept.items():
        found = now.get(shard)
        if found is None or found != incarnation:
            there = "is not there any more" if found is None else f"is of incarnation {found}"
            raise QueueMismatchError(
                f"{what} is of incarnation {incarnation} of shard {shard} of queue {queue!r}, which {there}: the queue or its "
                f"store was made anew, and its pointers mean other messages now. Nothing was deleted; {remedy}"
            )


def new_offset(url: str, queue: str, kept: Incarnations) -> Offset:
    """The offset in front of everything."""
    return {
        "store": redacted(url),
        "queue": queue,
        "incarnations": kept,
        "pointers": {},
    }


def pointers_of(offset: Offset, queue: str) -> dict[str, int]:
    """Shard -> pointer. Raises QueueMismatchError for an offset of another queue, or of a form that names none."""
    pointers = offset.get("pointers")
    if not isinstance(pointers, dict) or not isinstance(offset.get("incarnations"), dict) or "queue" not in offset:
        raise QueueMismatchError(
            f"the checkpoint's offset {str(offset)[:200]} does not say which queue it is of: another version or another "
            f"source has written it. Nothing was deleted; {_ANEW}"
        )
    if offset["queue"] != queue:
        raise QueueMismatchError(
            f"the checkpoint is of queue {offset['queue']!r} in {offset.get('store')}, this query reads {queue!r}. Nothing was "
            f"deleted; {_ANEW}, or read the queue it belongs to"
        )
    return pointers


def check_offset(magazines: MagazineStore, queue: str, offset: Offset) -> dict[str, int]:
    """The offset's pointers, once it is known to be of this queue in its present life. Raises QueueMismatchError."""
    pointers = pointers_of(offset, queue)
    check_incarnations(magazines, queue, offset["incarnations"], f"the checkpoint (of {offset.get('store')})", _ANEW)
    return pointers


def with_pointers(offset: Offset, runs: Iterable[Run]) -> Offset:
    """The offset, moved on to the ends of the runs."""
    pointers = dict(offset["pointers"])
    for run in runs:
        pointers[str(run.shard)] = max(pointers.get(str(run.shard), 0), run.last)
    return {**offset, "pointers": pointers}


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
