"""Which ticks of a schedule are to be fired now, and which were missed. No I/O.

A tick is *missed* when nobody fired it within the grace time. What becomes of missed ticks is the schedule's policy:

* ``skip``: they are left out;
* ``once``: of all ticks that are due, the newest is fired in place of all of them;
* ``all``: each is fired, the oldest first; those that are too old to be made up are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from ignis.schedules.timing import Timing

__all__ = ["MISSED", "MOST_MADE_UP", "MOST_TICKS", "Plan", "plan"]

MISSED = ("skip", "once", "all")
MOST_MADE_UP = 100_000
"""So many missed ticks of one schedule are made up at most, where the settings name no other number."""
MOST_TICKS = 100
"""So many ticks are fired in one turn of a queue at most; the other queues have theirs before the next."""


class Plan(NamedTuple):
    """What one turn does with one schedule: the ticks to fire, oldest first, how many are left out, and up to where that
    accounts for all ticks. Later ones may be due as well: they are for another turn."""

    ticks: list[int]
    missed: int
    done_ms: int


def plan(
    timing: Timing,
    done_ms: int,
    now_ms: int,
    grace_ms: int,
    missed: str,
    most: int = MOST_TICKS,
    made_up: int = MOST_MADE_UP,
) -> Plan | None:
    """None when nothing is due.

    Args:
        timing: of the schedule.
        done_ms: up to where ticks are accounted for. The clock may stand before it: then nothing is due.
        now_ms: the time.
        grace_ms: how late a tick is in time.
        missed: one of `MISSED`.
        most: so many ticks are fired at most.
        made_up: so many missed ticks ``all`` makes up at most: see `Timing.reach_ms`.
    """
    left_out = 0
    late_ms = now_ms - grace_ms - 1
    oldest_ms = min(late_ms, now_ms - timing.reach_ms(made_up))
    if missed == "all":
        late_ms = oldest_ms
    if done_ms < late_ms:
        late = timing.count(done_ms, late_ms)
        if late.more:
            # What a record says may be decades ago: to count all of that takes minutes.
            return Plan([], late.total, max(late.newest_ms, oldest_ms))
        if late.total:
            if missed == "once":
                fresh = timing.count(late.newest_ms, now_ms)
                newest_ms = fresh.newest_ms if fresh.total else late.newest_ms
                return Plan([newest_ms], late.total + fresh.total - 1, newest_ms)
            left_out, done_ms = late.total, late.newest_ms
    ticks = timing.ticks(done_ms, now_ms, most)
    if not ticks:
        return Plan([], left_out, done_ms) if left_out else None
    return Plan(ticks, left_out, ticks[-1])
