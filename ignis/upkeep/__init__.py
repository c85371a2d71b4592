"""Threads and timers that everything in the process shares, so that what is idle costs neither."""

from ignis.upkeep.lasting import outlast
from ignis.upkeep.pool import WorkThreads, in_thread
from ignis.upkeep.threads import SharedThreads, shared_threads
from ignis.upkeep.timers import Timer, Timers, interpreter_wait_s, run_soon, timers_of, upkeep_stalled
from ignis.upkeep.turns import Turn, Turns

__all__ = [
    "SharedThreads",
    "Timer",
    "Timers",
    "Turn",
    "Turns",
    "WorkThreads",
    "in_thread",
    "interpreter_wait_s",
    "outlast",
    "run_soon",
    "shared_threads",
    "timers_of",
    "upkeep_stalled",
]
