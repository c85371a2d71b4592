"""Many records of one shard, taken apart into columns: for readers that want a batch and no object per record."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from ignis.native import record_columns

__all__ = ["RecordColumns", "columns_of"]


class RecordColumns(NamedTuple):
    """The buffers of columns in Arrow's layout, integers in the machine's order (see `ignis.native.record_columns`)."""

    rows: int
    damaged: list[int]
    """The pointers of records that cannot be read; they are not in the columns."""
    pointers: bytes
    ids: bytes
    enqueued_at_us: bytes
    attempts: bytes
    crashes: bytes
    key_offsets: bytes
    keys: bytes
    meta_offsets: bytes
    metas: bytes
    body_offsets: bytes
    bodies: bytes


def columns_of(records: Mapping[int, bytes | None], *, lines: bool = False) -> RecordColumns:
    """Of records that were read one by one: pointer -> record, None where it does not match its checksum."""
    pointers = list(records)
    count, bad, *buffers = record_columns(list(records.values()), lines=lines)
    damaged = [pointers[index] for index in bad]
    for index in reversed(bad):
        del pointers[index]
    return RecordColumns(count, damaged, array("q", pointers).tobytes(), *buffers)
