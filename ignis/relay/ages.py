"""How long messages have lain in their channels: what a queue gives them to live counts from when they were sent."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ignis.deadlines import LEAST_TTL_S, Deadline
from ignis.native import PackedBatch, Record

__all__ = ["rest_to_live"]


def rest_to_live(batches: Sequence[tuple[int, PackedBatch]], ttl_s: float | None) -> Deadline | None:
    """What is left of the time to live of the youngest of these messages, which share a load and so one time; None = for ever.

    Producers and relay share the wall clock. One that was put back makes no message live longer than its queue says.
    """
    if ttl_s is None:
        return None
    youngest_us = max((Record(one).enqueued_at_us for _, batch in batches for one in batch.records()), default=0)
    now_s = time.time()
    left_s = max(LEAST_TTL_S, min(ttl_s, ttl_s + youngest_us / 1e6 - now_s))
    return Deadline(int((now_s + left_s) * 1000), left_s)
