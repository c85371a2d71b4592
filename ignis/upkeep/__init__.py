"""Threads and timers that everything in the process shares, so that what is idle costs neither."""

from ignis.upkeep.threads import SharedThreads, run_soon, shared_threads
from ignis.upkeep.timers import Timer, Timers, timers_of

__all__ = ["SharedThreads", "Timer", "Timers", "run_soon", "shared_threads", "timers_of"]
