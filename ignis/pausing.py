"""Why a queue rests, as it is stored with its record: the fleet's pause, and the end of one that nobody used."""

from __future__ import annotations

import time

from ignis.storage.base import QueueRecord, QueueStore

__all__ = ["EXPIRED", "PAUSED", "store_pause"]

PAUSED = "paused"
"""Where the record's ``extra`` keeps since when the queue's consumers are paused, in ms. On Aerospike that is a bin of ours."""
EXPIRED = "expired"
"""Where one that was deactivated for want of use keeps when, in ms; one deactivated by hand has none."""


def store_pause(queues: QueueStore, name: str, paused: bool) -> QueueRecord:
    """Pauses or resumes the queue for the fleet; durable on return. Nothing else in the record changes. Idempotent: a second
    pause keeps the time of the first. Raises QueueNotFoundError, StoreUnreachableError."""

    def change(record: QueueRecord) -> None:
        if paused:
            record.extra.setdefault(PAUSED, time.time_ns() // 1_000_000)
        else:
            record.extra.pop(PAUSED, None)

    return queues.update(name, change)
