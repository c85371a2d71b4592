"""Names and settings that the demo's processes agree on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Any

from ignis.app import Ignis
from ignis.stacks import start_thread

__all__ = [
    "BUSY_CARRIER",
    "BUSY_FAILURES",
    "COUNT_CANCELLED",
    "DIRECTORY_VARIABLE",
    "PARENT_VARIABLE",
    "QUEUE",
    "QUEUE_SETTINGS",
    "WorkerApp",
]

DIRECTORY_VARIABLE = "IGNIS_DEMO_DIR"
"""Environment variable: the directory in which workers note their results and look for `COUNT_CANCELLED`."""
PARENT_VARIABLE = "IGNIS_DEMO_PARENT"
"""Environment variable: the process whose death ends the workers."""
QUEUE = "flights"
QUEUE_SETTINGS: dict[str, Any] = {"shards": 32, "durability": "sync", "shovel_interval_s": 0}
"""The sideline goes back only when the demo says so."""
COUNT_CANCELLED = "count-cancelled"
"""While this file is missing from the directory, cancelled flights fail."""

BUSY_CARRIER = "HA"
BUSY_FAILURES = 2
"""So often the handler fails for each flight of that carrier before it works."""


class WorkerApp(Ignis):
    """An application that drains and ends when the process that `PARENT_VARIABLE` names is no longer its parent."""

    def start(self, queues: Iterable[str] | None = None) -> None:
        """As `Ignis.start`."""
        parent_pid = os.environ.get(PARENT_VARIABLE, "")
        if parent_pid.isdigit():
            start_thread(threading.Thread(target=_watch_parent, args=(self, int(parent_pid)), daemon=True))
        super().start(queues)


def _watch_parent(app: Ignis, parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    app.request_stop()
