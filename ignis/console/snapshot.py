"""What the overview shows: one look at all queues, shared by everybody who asks, with rates and a short past for charts.

The store is looked at only when somebody asks, by one thread at a time, and at most once in `REFRESH_S` seconds or ten times as
long as the last look took, whichever is longer. So however many pages are open, looking takes at most a tenth of one thread's
time of the store: for each queue its figures, those of its sideline, the age of its oldest message and its delayed ones.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ignis.console.refusals import document_of
from ignis.console.residence import Residence
from ignis.control.inspection import queue_settings
from ignis.control.queue_depths import shard_states
from ignis.errors import IgnisError
from ignis.figures import depths
from ignis.magazine import SIDELINE_SUFFIX
from ignis.pausing import PAUSED
from ignis.storage.base import QueueRecord, ShardState, Store

__all__ = ["COLUMNS", "FIGURES", "HISTORY", "REFRESH_S", "SLOW_S", "Overview", "Snapshot", "Trouble"]

REFRESH_S = 2.0
_SHARE = 10.0
"""A look that took a second is followed by ten without one."""
SLOW_S = 5.0
"""A look that takes longer is said to be without an answer."""
HISTORY = 150
"""Points of a chart: five minutes, where somebody looks all the time."""
_GAP_S = 60.0
"""No rate is reckoned over a longer gap: it would say nothing about now."""
COLUMNS = (
    "at_s", "pending", "in_flight", "sideline", "published_rate", "finished_rate", "oldest_age_s", "latency_s",
)  # fmt: skip
"""Of a point of a chart. ``at_s`` in seconds since 1970, the others as in `FIGURES`."""


class Overview(NamedTuple):
    """One look. ``queues``: by name, what is shown of each; ``history``: points of `COLUMNS`, the oldest first."""

    at_s: float
    took_s: float
    queues: dict[str, dict[str, Any]]
    history: dict[str, list[list[float | None]]]


class Trouble(NamedTuple):
    """Why the last look is an old one. ``since_s``: when it was made, in seconds since 1970; ``message``: what failed since."""

    since_s: float
    message: str


class _Counted(NamedTuple):
    """The counters of a queue's main magazine, which only rise; ``incarnations`` tell one that was made anew."""

    published: int
    finished: int
    incarnations: tuple[int, ...]


class Snapshot:
    """Looks at the store when what it has is too old. Thread-safe.

    Args:
        store: gives the store; opens it on first use.
        clock, now_s: seconds that only rise, and since 1970; injectable for tests.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._clock = clock
        self._now_s = now_s
        self._lock = threading.Lock()
        self._found: Overview | None = None
        self._next_s = 0.0
        self._failure: str | None = None
        self._looking_since: float | None = None
        self._before: dict[str, tuple[float, _Counted]] = {}
        self._residence: dict[str, Residence] = {}
        self._history: dict[str, deque[list[float | None]]] = {}
        self.looks = 0
        """How often the store was looked at."""

    def get(self) -> Overview:
        """The last look, or a new one where that is due. Whoever comes while another thread looks gets the last one, or waits
        where there is none yet. Raises StoreError."""
        found = self._found
        if found is not None and self._clock() < self._next_s:
            return found
        if not self._lock.acquire(blocking=found is None):
            assert found is not None
            return found
        try:
            if self._found is None or self._clock() >= self._next_s:
                self._look()
            assert self._found is not None
            return self._found
        finally:
            self._lock.release()

    def trouble(self) -> Trouble | None:
        """Why the figures are old: the last look failed, or has been under way for `SLOW_S`. None where they are not."""
        found, failure, since = self._found, self._failure, self._looking_since
        if found is None:
            return None
        if since is not None and failure is None and (waited := self._clock() - since) >= SLOW_S:
            failure = f"the store has not answered for {waited:.0f} s"
        return None if failure is None else Trouble(found.at_s, failure)

    def _look(self) -> None:
        self.looks += 1
        self._looking_since = self._clock()
        try:
            self._look_now()
        finally:
            self._looking_since = None

    def _look_now(self) -> None:
        try:
            store = self._store()
            began_s, at_s = self._clock(), self._now_s()  # opening it is no part of a look
            records = store.queues.list()
            queues = {record.name: self._row(store, record, at_s) for record in records}
        except IgnisError as exc:
            # Not asked again at once: a store that fails is not to be asked by every page.
            self._next_s = self._clock() + REFRESH_S
            self._failure = document_of(exc)["error"]["message"]
            if self._found is None:
                raise
            return
        for gone in [name for name in self._history if name not in queues]:
            del self._history[gone], self._before[gone], self._residence[gone]
        took_s = self._clock() - began_s
        history = {name: list(points) for name, points in self._history.items()}
        self._found, self._failure = Overview(at_s, took_s, queues, history), None
        self._next_s = self._clock() + max(REFRESH_S, _SHARE * took_s)

    def _row(self, store: Store, record: QueueRecord, at_s: float) -> dict[str, Any]:
        name = record.name
        main, sideline = shard_states(store, name), shard_states(store, name + SIDELINE_SUFFIX)
        oldest_us = store.magazines.oldest_enqueued_at_us(name) if main else None
        found = depths(main, sideline, store.magazines.delayed(name) if main else 0)
        now = _counted(main)
        published_rate, finished_rate = self._rates(name, at_s, now)
        figures = {
            **found,
            "oldest_age_s": None if oldest_us is None else round(max(0.0, at_s - oldest_us / 1e6), 3),
            "published_rate": published_rate,
            "finished_rate": finished_rate,
            "latency_s": self._latency_s(name, at_s, now),
        }
        points = self._history.setdefault(name, deque(maxlen=HISTORY))
        points.append([round(at_s, 3), *(figures[column] for column in COLUMNS[1:])])
        return {
            "queue": name,
            **figures,
            "paused": PAUSED in record.extra,
            "swept": record.swept_count,
            "settings": queue_settings(record),
        }

    def _rates(self, name: str, at_s: float, now: _Counted) -> tuple[float | None, float | None]:
        """Messages a second since the last look: published, and finished in any way."""
        before = self._before.get(name)
        self._before[name] = at_s, now
        if before is None or before[1].incarnations != now.incarnations or not 0 < at_s - before[0] <= _GAP_S:
            return None, None
        span_s = at_s - before[0]
        return (
            round(max(0, now.published - before[1].published) / span_s, 3),
            round(max(0, now.finished - before[1].finished) / span_s, 3),
        )

    def _latency_s(self, name: str, at_s: float, now: _Counted) -> float | None:
        found = self._residence.setdefault(name, Residence(_GAP_S))
        found.look(at_s, now.published - now.finished, now.finished, now.incarnations)
        mean_s = found.mean_s()
        return None if mean_s is None else round(mean_s, 3)


def _counted(states: list[ShardState]) -> _Counted:
    published = sum(one.load_counter for one in states)
    left = sum(one.pending + one.in_flight for one in states)
    return _Counted(published, published - left, tuple(one.incarnation for one in states))


FIGURES: Mapping[str, Mapping[str, str]] = {
    "pending": {"scope": "fleet", "unit": "messages", "says": "wait in the queue"},
    "in_flight": {"scope": "fleet", "unit": "messages", "says": "are claimed and not finished, by anybody"},
    "delayed": {"scope": "fleet", "unit": "messages", "says": "wait for their time"},
    "sideline": {"scope": "fleet", "unit": "messages", "says": "failed, and wait in the sideline"},
    "sideline_in_flight": {
        "scope": "fleet",
        "unit": "messages",
        "says": "of the sideline are claimed, by a shovel or a sweeper",
    },
    "expired": {"scope": "fleet", "unit": "messages", "says": "ran out of time in the queue, since it was made"},
    "sideline_expired": {
        "scope": "fleet",
        "unit": "messages",
        "says": "ran out of time in the sideline, since it was made",
    },
    "swept": {"scope": "fleet", "unit": "messages", "says": "were abandoned and recovered by any sweeper"},
    "oldest_age_s": {"scope": "fleet", "unit": "seconds", "says": "since the oldest waiting message was published"},
    "published_rate": {"scope": "fleet", "unit": "messages a second", "says": "came in between the last two looks"},
    "finished_rate": {
        "scope": "fleet",
        "unit": "messages a second",
        "says": "left the queue between the last two looks",
    },
    "latency_s": {
        "scope": "fleet",
        "unit": "seconds",
        "says": "a message was in the queue, waiting or claimed, on average over the last half minute, by Little's law: "
        "how many were there on average, over how many left a second; none where none left",
    },
    "store": {
        "scope": "process",
        "unit": "as each says",
        "says": "figures of the store as the console's process sees it",
    },
}
"""What each figure means, and whose it is: the fleet's, or this process's."""
