"""Threads and timers that everything in the process shares, so that what is idle costs neither."""

from ignis.upkeep.threads import SharedThreads, shared_threads
from ignis.upkeep.timers import Timer, Timers, run_soon, timers_of

__all__ = ["SharedThreads", "Timer", "Timers", "run_soon", "shared_threads", "timers_of"]
