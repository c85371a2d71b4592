"""The deadlines of rows, from a column like that of due times: they are written into the envelopes. Null: the row has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ignis.deadlines import LEAST_TTL_S
from ignis.errors import ConfigError
from ignis.message import mortal_record
from ignis.native import PackedBatch, Record
from ignis.storage.checks import MAX_TTL_S, MAX_TTL_SAID

__all__ = ["check_deadlines", "mortal_batches", "ttl_within"]


def check_deadlines(ends: pa.Array, wall_s: float) -> None:
    """Raises ConfigError: a row has a deadline over 100 years from now."""
    latest = pc.max(ends).as_py()
    if latest is not None and latest > (wall_s + MAX_TTL_S) * 1000:
        raise ConfigError(f"a row expires at {latest} ms since 1970, which is more than {MAX_TTL_SAID} away")


def mortal_batches(
    batches: Sequence[tuple[int, PackedBatch]], ids: Sequence[bytes], ends: pa.Array
) -> list[tuple[int, PackedBatch]]:
    """The batches with the deadline of each record that has one. They are told apart by their ids: of one that comes twice the
    first row is stored, so its deadline counts."""
    end_of: dict[bytes, Any] = {}
    for one, end_ms in zip(ids, ends.to_pylist(), strict=True):
        end_of.setdefault(one, end_ms)
    return [
        (shard, PackedBatch.pack([_mortal(record, end_of) for record in batch.records()])) for shard, batch in batches
    ]


def _mortal(record: bytes, end_of: dict[bytes, Any]) -> bytes:
    end_ms = end_of[Record(record).id]
    return record if end_ms is None else mortal_record(record, max(1, end_ms))


def ttl_within(ttl_s: float | None, ends: pa.Array, wall_s: float) -> float | None:
    """How long the store keeps rows that it stores together, where it drops what has expired: until the last of their deadlines,
    where all have one."""
    if ends.null_count or not len(ends):
        return ttl_s
    left_s = max(LEAST_TTL_S, pc.max(ends).as_py() / 1000 - wall_s)
    return left_s if ttl_s is None else min(ttl_s, left_s)
