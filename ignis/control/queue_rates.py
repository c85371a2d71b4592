"""How queues move: what `queue_depths` says of each, with what came and what was claimed between two looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ignis.control.inspection import queue_state
from ignis.control.queue_depths import shard_states
from ignis.figures import depths
from ignis.magazine import SIDELINE_SUFFIX
from ignis.storage.base import QueueRecord, Store

__all__ = ["Rates"]

Counters = tuple[int, int, float]
"""Messages loaded and claimed so far, and when that was."""


class Rates:
    """Looks at every active queue, again and again. For one thread. A look asks the store for the list of queues, and six things
    of each queue that was ever used: none of them grows with the number of messages."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._before: dict[str, Counters] = {}

    def look(self) -> list[dict[str, Any]]:
        """A row a queue. ``in_per_s`` and ``out_per_s`` are None at its first look, ``next_due_in_s`` when none is delayed.
        What is put back at the tail, by the shovel or after a crash, counts as coming in once more."""
        before, self._before = self._before, {}
        return [self._row(record, before.get(record.name)) for record in self._store.queues.list(active=True)]

    def _row(self, record: QueueRecord, before: Counters | None) -> dict[str, Any]:
        magazines, name = self._store.magazines, record.name
        main, sideline = shard_states(self._store, name), shard_states(self._store, name + SIDELINE_SUFFIX)
        now = (sum(one.load_counter for one in main), sum(one.fire_counter for one in main), self._clock())
        self._before[name] = now
        passed_s = 0.0 if before is None else now[2] - before[2]
        figures = depths(main, sideline, magazines.delayed(name) if main else 0)
        oldest_us = magazines.oldest_enqueued_at_us(name) if figures["pending"] else None
        due_ms = magazines.next_due_ms(name) if figures["delayed"] else None
        return {
            "queue": name,
            "state": queue_state(record),
            **{one: figures[one] for one in ("pending", "in_flight", "delayed", "sideline")},
            "in_per_s": _rate(now[0], before[0], passed_s) if before else None,
            "out_per_s": _rate(now[1], before[1], passed_s) if before else None,
            "oldest_age_s": None if oldest_us is None else round(max(0.0, time.time() - oldest_us / 1e6), 3),
            "next_due_in_s": None if due_ms is None else round(max(0.0, due_ms / 1000 - self._store.now_s()), 3),
        }


def _rate(now: int, before: int, passed_s: float) -> float | None:
    # A claim that is taken back corrects its counter: no rate is below 0.
    return round(max(0, now - before) / passed_s, 1) if passed_s > 0 else None
