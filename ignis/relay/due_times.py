"""Due times in a channel: those of messages that are delayed.

They stand in each record's envelope, in its growing part, under ``due_at_ms``: milliseconds since 1970 by the wall clock, which
producers and relay share. The relay takes them out: what it stores is what a producer on the store itself would have stored. Only
a channel whose label says so has such records, and each of its records has a due time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec

from ignis.errors import UnreadableMessageError
from ignis.message import decode_meta
from ignis.native import PackedBatch, Record
from ignis.storage.base import Store

__all__ = ["due_batches", "with_due", "without_due"]

_DUE = "due_at_ms"
_encode = msgspec.msgpack.Encoder().encode


def with_due(meta: bytes, due_ms: int) -> bytes:
    """The growing part of an envelope, with the due time in front."""
    return _encode({_DUE: due_ms, **decode_meta(meta)})


def without_due(data: bytes) -> tuple[bytes, int]:
    """A record as it is stored, and its due time. Raises UnreadableMessageError: it has none, or cannot be read."""
    record = Record(data)
    meta = decode_meta(record.meta)
    due_ms = meta.pop(_DUE, None)
    if type(due_ms) is not int:
        raise UnreadableMessageError("a message in a channel of delayed messages has no due time")
    try:
        return record.replace(meta=_encode(meta) if meta else b""), due_ms
    except Exception as exc:  # what could be read may still be nested too deeply to be written again
        raise UnreadableMessageError(f"envelope of {len(record.meta)} bytes cannot be written again: {exc}") from exc


def due_batches(
    batches: Sequence[tuple[int, PackedBatch]], store: Store
) -> tuple[list[tuple[int, PackedBatch]], list[list[int]]]:
    """Batches of a channel as they are stored, and a due time by the store's clock for each record. Raises
    UnreadableMessageError, and what the store's clock raises."""
    ahead_ms = math.ceil((store.now_s() - time.time()) * 1000)
    packed: list[tuple[int, PackedBatch]] = []
    dues_ms: list[list[int]] = []
    for shard, batch in batches:
        pairs = [without_due(bytes(record)) for record in batch.records()]
        packed.append((shard, PackedBatch.pack([record for record, _ in pairs])))
        dues_ms.append([max(0, due_ms + ahead_ms) for _, due_ms in pairs])
    return packed, dues_ms
