"""Deadlines of records that a client sends: they are written into the envelopes, by the wall clock of the client's machine."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from ignis.broker.client.client_request import Batches
from ignis.deadlines import deadline_ms
from ignis.message import mortal_record
from ignis.native import PackedBatch

__all__ = ["Lasting", "mortal", "mortal_batches"]

Lasting = float | str | timedelta | None
"""So long from now; None = no deadline."""


def mortal(record: bytes, expires_in: Lasting, expires_at: datetime | None) -> bytes:
    """The record with the deadline, or as it is without one. Raises ConfigError, UnreadableMessageError."""
    at_ms = deadline_ms(time.time(), expires_in, expires_at)
    if at_ms is None or not isinstance(record, bytes):  # what is no record is refused with the request
        return record
    return mortal_record(record, at_ms)


def mortal_batches(batches: Batches, expires_in: Lasting, expires_at: datetime | None) -> Batches:
    """The same for each record of the batches, which are packed anew."""
    at_ms = deadline_ms(time.time(), expires_in, expires_at)
    if at_ms is None:
        return batches
    return [
        (shard, PackedBatch.pack([mortal_record(bytes(record), at_ms) for record in batch.records()]))
        for shard, batch in batches
    ]
