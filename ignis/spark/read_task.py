"""What a draining task does: peeks the runs it was given, batch by batch. Reading changes nothing, so a task may run
again, or twice at the same time, and gives the same rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ignis.log_format import event_text
from ignis.message import corrupt_record
from ignis.spark.columns import message_batch
from ignis.spark.parse_body import UNPARSED
from ignis.spark.queue_path import Place
from ignis.spark.unparsed import Suspects
from ignis.storage.base import Run, Transfer
from ignis.storage.columns import RecordColumns

__all__ = ["Reading", "cut_runs", "read_runs"]

log = logging.getLogger("ignis.spark")

_FIRST_ROWS = 256
_MOST_ROWS = 65_536


@dataclass(frozen=True)
class Reading:
    """The function of a ``mapInArrow`` over a column of part numbers: the messages of those parts. ``fields`` and
    ``envelope``: see `message_batch`."""

    place: Place
    parts: tuple[tuple[Run, ...], ...]
    fields: pa.Schema | None = None
    envelope: bool = True
    suspects: Suspects | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                left: list[tuple[int, int]] = []
                yield from read_runs(self.place, self.parts[number], self.fields, envelope=self.envelope, left=left)
                if self.suspects is not None:
                    self.suspects.read_to_the_end(number, left)


def read_runs(
    place: Place,
    runs: Sequence[Run],
    fields: pa.Schema | None = None,
    *,
    envelope: bool = True,
    left: list[tuple[int, int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of the runs that are still there. At most about ``read_bytes`` of them are held at a time.

    ``left`` is filled with the (shard, pointer) of those that are not parsed into the ``fields``.

    A record that does not match its checksum is no row: it is moved to the sideline with the reason ``corrupt``, as a
    consumer does.
    """
    magazines = place.open().magazines
    rows = _FIRST_ROWS
    for run in runs:
        start = run.first
        while start <= run.last:
            stop = min(run.last + 1, start + rows)
            found = magazines.peek_columns(place.queue, run.shard, range(start, stop), lines=fields is not None)
            start = stop
            if found.damaged:
                _put_aside(place, run.shard, found.damaged)
            if found.rows:
                batch = message_batch(run.shard, found, fields, envelope=envelope)
                if left is not None and fields is not None:
                    left += ((run.shard, pointer) for pointer in _unparsed(batch, found))
                yield batch
                # By the size that these had: the next ones fit, if they are alike.
                rows = max(1, min(_MOST_ROWS, place.settings.read_bytes * batch.num_rows // max(1, batch.nbytes)))


def _unparsed(batch: pa.RecordBatch, found: RecordColumns) -> list[int]:
    column = batch.column(UNPARSED)
    if column.null_count == len(column):
        return []
    pointers: list[int] = np.frombuffer(found.pointers, np.int64)[
        column.is_valid().to_numpy(zero_copy_only=False)
    ].tolist()
    return pointers


def _put_aside(place: Place, shard: int, pointers: list[int]) -> None:
    """Whoever else reads the same runs finds them gone, or moves nothing."""
    items = [Transfer(shard, pointer, corrupt_record(place.queue, shard, pointer), shard) for pointer in pointers]
    moved = place.open().magazines.transfer(place.queue, place.sideline, items)
    log.error(
        event_text("spark_damaged_sidelined", "%d damaged message(s) of %s were moved to the sideline"),
        moved,
        place.queue,
    )


def cut_runs(runs: Sequence[Run], max_messages: int, parts: int) -> list[tuple[Run, ...]]:
    """The runs, cut into at least ``parts`` lists of about the same length where there are enough messages for it, none
    with more than ``max_messages``."""
    total = sum(run.messages for run in runs)
    if not total:
        return []
    wanted = max(min(parts, total), -(-total // max_messages))
    room = -(-total // wanted)
    lists: list[list[Run]] = [[]]
    left = room
    for run in runs:
        first, messages = run.first, run.messages
        while messages:
            if not left:
                lists.append([])
                left = room
            # A run with gaps has fewer messages than pointers: what is cut off in front has no more of them than it says,
            # and the last piece takes all the pointers that are left.
            taken = min(left, messages)
            last = run.last if taken == messages else first + taken - 1
            lists[-1].append(Run(run.shard, first, last, taken))
            first = last + 1
            messages -= taken
            left -= taken
    return [tuple(one) for one in lists]
