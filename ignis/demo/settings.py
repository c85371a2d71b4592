"""Names and settings that the demo's processes agree on."""

from __future__ import annotations

from typing import Any

__all__ = ["COUNT_CANCELLED", "DIRECTORY_VARIABLE", "PARENT_VARIABLE", "QUEUE", "QUEUE_SETTINGS"]

DIRECTORY_VARIABLE = "IGNIS_DEMO_DIR"
"""Environment variable: the directory in which workers note their results and look for `COUNT_CANCELLED`."""
PARENT_VARIABLE = "IGNIS_DEMO_PARENT"
"""Environment variable: the process whose death ends the workers."""
QUEUE = "flights"
QUEUE_SETTINGS: dict[str, Any] = {"shards": 32, "durability": "sync", "shovel_interval_s": 0}
"""The sideline goes back only when the demo says so."""
COUNT_CANCELLED = "count-cancelled"
"""While this file is missing from the directory, cancelled flights fail."""
