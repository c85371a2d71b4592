"""How much is in a queue, asked of the store: what ``ignis stats`` and the metrics show."""

from __future__ import annotations

import time
from typing import Any

from ignis.errors import QueueNotFoundError
from ignis.figures import depths
from ignis.magazine import SIDELINE_SUFFIX
from ignis.pausing import PAUSED
from ignis.storage.base import QueueRecord, ShardState, Store

__all__ = ["queue_depths", "shard_states"]


def shard_states(store: Store, magazine: str) -> list[ShardState]:
    """The shards of a magazine; none when it was never declared."""
    try:
        return store.magazines.metadata(magazine)
    except QueueNotFoundError:
        return []


def queue_depths(store: Store, record: QueueRecord) -> dict[str, Any]:
    """Messages pending and in flight in both magazines, how many were swept and expired, the age of the oldest pending one
    in seconds (None = none); and whether its consumers are paused."""
    main, sideline = shard_states(store, record.name), shard_states(store, record.name + SIDELINE_SUFFIX)
    delayed = store.magazines.delayed(record.name) if main else 0
    expired_later = store.magazines.expired_later(record.name) if main else 0
    oldest = store.magazines.oldest_enqueued_at_us(record.name) if main else None
    return {
        "queue": record.name,
        **depths(main, sideline, delayed, expired_later),
        "swept": record.swept_count,
        "paused": PAUSED in record.extra,
        "oldest_age_s": None if oldest is None else round(max(0.0, time.time() - oldest / 1e6), 3),
    }
