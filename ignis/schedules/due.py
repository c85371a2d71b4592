"""Which ticks of a schedule are to be fired now, and which were missed. No I/O.

A tick is *missed* when nobody fired it within the grace time. What becomes of missed ticks is the schedule's policy:

* ``skip``: they are left out;
* ``once``: of all ticks that are due, the newest is fired in place of all of them;
* ``all``: each is fired, the oldest first.
"""

from __future__ import annotations

from typing import NamedTuple

from ignis.schedules.timing import Timing

__all__ = ["MISSED", "MOST_TICKS", "Plan", "plan"]

MISSED = ("skip", "once", "all")
MOST_TICKS = 100
"""So many ticks are fired in one turn of a queue at most; the other queues have theirs before the next."""


class Plan(NamedTuple):
    """What one turn does with one schedule: the ticks to fire, oldest first, how many are left out, and up to where that
    accounts for all ticks. Later ones may be due as well: they are for another turn."""

    ticks: list[int]
    missed: int
    done_ms: int


def plan(timing: Timing, done_ms: int, now_ms: int, grace_ms: int, missed: str, most: int = MOST_TICKS) -> Plan | None:
    """None when nothing is due.

    Args:
        timing: of the schedule.
        done_ms: up to where ticks are accounted for. The clock may stand before it: then nothing is due.
        now_ms: the time.
        grace_ms: how late a tick is in time.
        missed: one of `MISSED`.
        most: so many ticks are fired at most.
    """
    left_out = 0
    if missed != "all":
        late = timing.count(done_ms, now_ms - grace_ms - 1)
        if late.more:
            return Plan([], late.total, late.newest_ms)
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
