"""A store in memory, with the embedded store's semantics: for tests, and for work that may be forgotten."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import SplitResult, parse_qsl

from ignis.clock import Clock
from ignis.config import shown
from ignis.errors import ConfigError
from ignis.storage.base import Store
from ignis.storage.checks import check_application
from ignis.storage.clock import StoreClock, process_clock
from ignis.storage.memory.control import MemoryArrays, MemoryLocks, MemoryQueues
from ignis.storage.memory.magazines import MemoryMagazines
from ignis.storage.memory.state import Content, StoreContext

__all__ = ["MemoryStore", "open_store"]


def open_store(parts: SplitResult, client_id: str, farm_id: str, options: dict[str, Any]) -> MemoryStore:
    """Opens ``memory://name``. Options: ``create``, which changes nothing, and ``clock``, not in the URL."""
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    merged.pop("create", None)
    clock = options.get("clock")
    if clock is not None:
        if not isinstance(clock, Clock):
            raise ConfigError(f"clock = {shown(clock)} is no clock, such as an ignis.testing.ManualClock")
        del merged["clock"]
    if merged:
        raise ConfigError(f"a memory store has no option {shown(min(merged))}; it has none in its URL")
    return MemoryStore(parts.netloc + parts.path, client_id=client_id, farm_id=farm_id, clock=clock)


class MemoryStore(Store):
    """Keeps everything in this process, as long as it lives. Thread-safe; not usable in a child after ``fork``.

    Args:
        name: stores of the same name share their content as long as the process lives; empty = private to this one.
        client_id, farm_id: scope of all names.
        clock: by which everything ends and ages here; None = a clock of the machine that nobody can set.
    """

    in_process = True

    def __init__(
        self, name: str = "", *, client_id: str = "ignis", farm_id: str = "local", clock: Clock | None = None
    ) -> None:
        check_application(client_id, farm_id)
        self.url = f"memory://{name}"
        self.client_id = client_id
        self.farm_id = farm_id
        store_clock = process_clock()
        if clock is not None:
            self.lock_clock = clock
            store_clock = StoreClock(
                round((clock() - clock.monotonic_s()) * 1000),
                rising_ms=lambda: round(clock.monotonic_s() * 1000),
                wall_ms=lambda: round(clock() * 1000),
            )
        self._context = context = StoreContext(name, f"{farm_id}/{client_id}", store_clock)
        self._owner = f"memory:{os.getpid()}"
        self.magazines = MemoryMagazines(context)
        self.queues = MemoryQueues(context)
        self.locks = MemoryLocks(context)
        self.arrays = MemoryArrays(context)

    @property
    def content(self) -> Content:
        """What is stored, of all stores of this name."""
        return self._context.content

    @property
    def owner(self) -> str:
        return self._owner

    def now_s(self) -> float:
        return self._context.clock.now_s()

    @property
    def of_boottime_ms(self) -> int | None:
        return self._context.clock.of_boottime_ms

    @property
    def local_dir(self) -> str | None:
        return None

    def stats(self) -> dict[str, int | float | str]:
        with self._context.open_content() as content:
            shards = [shard for magazine in content.magazines.values() for shard in magazine.shards]
            held = [one.data for shard in shards for one in shard.records.values()]
            figures: dict[str, int | float | str] = {
                "store": "memory",
                "records": len(held),
                "used_bytes": sum(map(len, held)),
            }
            return {**figures, **self._context.calls}

    def process_stats(self) -> dict[str, int | float]:
        return {**self._context.calls}

    def close(self, timeout: float = 30.0) -> None:
        self._context.close(timeout)
