"""What one process knows of a magazine and of its shards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ignis.storage.aerospike import layout
from ignis.storage.aerospike.layout import Keys
from ignis.storage.aerospike.ranges import Ranges

__all__ = ["Magazine", "ShardPointers", "ShardView"]


class ShardPointers(NamedTuple):
    """One shard's pointers record. ``voids`` of the unfired pointers are deleted ones. ``born`` is drawn when the record
    is made: data records of an earlier life of the magazine carry another. ``ours`` of its pointers were reserved by
    ignis."""

    load: int
    fire: int
    voids: int
    born: int
    ours: int
    leaving: int = 0
    due_ms: int = layout.NO_DUE
    due_changes: int = 0

    @classmethod
    def of(cls, bins: dict[str, Any]) -> ShardPointers:
        due_ms = bins.get(layout.NEXT_DUE)
        return cls(
            bins.get(layout.LOAD_POINTER) or 0, bins.get(layout.FIRE_POINTER) or 0,
            bins.get(layout.VOIDS) or 0, bins.get(layout.BORN) or 0, bins.get(layout.OURS) or 0,
            bins.get(layout.LEAVING) or 0, layout.NO_DUE if due_ms is None else due_ms,
            bins.get(layout.DUE_CHANGES) or 0,
        )  # fmt: skip

    @property
    def claimed(self) -> int:
        """The last pointer that was claimed and reserved. Two Java consumers can move the fire pointer beyond the load
        pointer; what is loaded there later was claimed by nobody."""
        return min(self.fire, self.load)

    @property
    def unfired(self) -> int:
        """Never below 0, whatever the order in which others' changes are seen."""
        return max(0, self.load - self.fire - self.voids)


class ShardView:
    """What this process knows of one shard. Guarded by the magazine's lock."""

    __slots__ = (
        "backlog",
        "born",
        "checked_below",
        "due_changes",
        "due_ms",
        "fire",
        "fire_seen",
        "gone",
        "holes",
        "leaving",
        "low",
        "open",
        "seen_at",
        "seen_fire",
        "settled",
        "shared",
        "uncounted",
        "uncounted_since",
    )

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing is known any more: the magazine was dropped and made again, and all of it was of its earlier life."""
        self.low = 0
        self.due_ms = layout.NO_DUE
        self.due_changes = 0
        self.fire = 0
        self.fire_seen = 0
        self.backlog = 0
        self.born = 0
        self.gone = Ranges()
        self.uncounted = Ranges()
        self.uncounted_since = 0.0
        self.holes: dict[int, tuple[float, float]] = {}
        self.open: frozenset[int] = frozenset()
        self.shared = False
        self.leaving = 0
        self.settled = 0
        self.seen_fire = 0
        self.seen_at = 0.0
        self.checked_below = False

    def saw(self, pointers: ShardPointers, settle_s: float) -> None:
        """Takes note of the pointers. What was claimed ``settle_s`` ago and has no record will never have one that
        its producer did not check."""
        self.fire = pointers.fire
        self.fire_seen = max(self.fire_seen, pointers.claimed)
        self.backlog = pointers.unfired
        self.born = pointers.born
        # Never back: an answer that is older than another may come after it.
        self.shared = self.shared or pointers.ours != pointers.load
        self.leaving = max(self.leaving, pointers.leaving)
        self.due_ms, self.due_changes = pointers.due_ms, pointers.due_changes
        now = time.monotonic()
        if not self.seen_at:
            self.seen_fire, self.seen_at = pointers.claimed, now
        elif now - self.seen_at >= settle_s:
            self.settled, self.seen_fire, self.seen_at = self.seen_fire, pointers.claimed, now

    def raise_low(self, low: int) -> None:
        if low > self.low:
            self.low = low
            self.gone.drop_to(low)


@dataclass
class TrickleState:
    """What `trickle` knows of one magazine. Guarded by the magazine's lock."""

    on_until: float = 0.0
    looked_at: float = 0.0
    depth: float = 1.0
    unstamped: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    young: dict[tuple[int, int], float] = field(default_factory=dict)
    fired: Counter[int] = field(default_factory=Counter)
    rides: list[Any] = field(default_factory=list)

    @property
    def loaded(self) -> bool:
        """Whether something waits to travel."""
        return bool(self.unstamped or self.young or self.fired or self.rides)


@dataclass
class LaterState:
    """What this process knows of the messages of one magazine that wait for their time. The due times are in the views.

    Attributes:
        made: whether any ever waited, as the magazine's record says.
        seen: whether any shard has shown a due time; while none has, nobody looks at those in the views.
        moving: held by who moves what is due.
        not_before: ``time.monotonic()`` before which it is no use to look again, because others are at what is due.
        pause_s: how long that was last.
        ready: what is due, found by the last look and not moved yet: (due time, shard, pointer, mark).
        record_bytes: what a message had in the last batch that was moved; 0 = not known.
        count, counted_until: how many waited, and how long that is good enough.
    """

    made: bool = False
    seen: bool = False
    moving: threading.Lock = field(default_factory=threading.Lock)
    not_before: float = 0.0
    pause_s: float = 0.0
    ready: list[Any] = field(default_factory=list)
    record_bytes: int = 0
    count: int = 0
    counted_until: float = 0.0


@dataclass
class Magazine:
    """One declared magazine as this process sees it. ``lock`` guards what changes."""

    name: str
    shards: int
    most_shards: int
    durability: str
    keys: Keys
    views: list[ShardView]
    lock: threading.Lock
    born: dict[int, int] = field(default_factory=dict)
    checked_at: float = 0.0
    kept_at: float = 0.0
    next_shard: int = 0
    record_bytes: float = 0.0
    holes: int = 0
    trickle: TrickleState = field(default_factory=TrickleState)
    later: LaterState = field(default_factory=LaterState)
