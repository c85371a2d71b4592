"""The fleet's pause of a queue, as it is stored with the queue's record."""

from __future__ import annotations

import time

from ignis.storage.base import QueueRecord, QueueStore

__all__ = ["PAUSED", "store_pause"]

PAUSED = "paused"
"""Where the record's ``extra`` keeps since when the queue's consumers are paused, in ms. On Aerospike that is a bin of ours."""


def store_pause(queues: QueueStore, name: str, paused: bool) -> QueueRecord:
    """Pauses or resumes the queue for the fleet; durable on return. Nothing else in the record changes. Idempotent: a second
    pause keeps the time of the first. Raises QueueNotFoundError, StoreUnreachableError."""

    def change(record: QueueRecord) -> None:
        if paused:
            record.extra.setdefault(PAUSED, time.time_ns() // 1_000_000)
        else:
            record.extra.pop(PAUSED, None)

    return queues.update(name, change)
