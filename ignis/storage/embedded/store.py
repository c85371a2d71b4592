"""The embedded store as its users hold it."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl

from ignis.errors import ClosedError, WaitTimeoutError
from ignis.process_hooks import FORKS
from ignis.storage.base import Store
from ignis.storage.checks import check_application
from ignis.storage.directories import directory_of
from ignis.storage.embedded.array_queues import EmbeddedArrays
from ignis.storage.embedded.context import StoreContext
from ignis.storage.embedded.directory import open_directory, release_directory
from ignis.storage.embedded.keys import Keys, Scope
from ignis.storage.embedded.locks import EmbeddedLocks
from ignis.storage.embedded.magazines import EmbeddedMagazines
from ignis.storage.embedded.options import StoreOptions
from ignis.storage.embedded.queues import EmbeddedQueues
from ignis.storage.embedded.room import free_bytes
from ignis.storage.records import Owner

__all__ = ["EmbeddedStore", "open_store"]


def open_store(parts: SplitResult, client_id: str, farm_id: str, options: dict[str, Any]) -> EmbeddedStore:
    """Opens ``embedded:///path``; its query and ``options`` may have any of `StoreOptions`."""
    merged: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    return EmbeddedStore(directory_of(parts), StoreOptions.of(merged), client_id=client_id, farm_id=farm_id)


class EmbeddedStore(Store):
    """One directory on a local file system, shared by any number of processes.

    Thread-safe. After ``fork`` every call in the child raises ForkedHandleError; the child opens its own store.

    Args:
        path: the directory; made (0700) when it is not there and ``options.create``.
        options: see `StoreOptions`.
        client_id, farm_id: scope of all names.

    Raises:
        StoreUnreachableError, StoreFormatError, StoreBusyError, StoreFailedError.
    """

    def __init__(
        self,
        path: str | Path,
        options: StoreOptions | None = None,
        *,
        client_id: str = "ignis",
        farm_id: str = "local",
    ) -> None:
        check_application(client_id, farm_id)
        options = options or StoreOptions()
        self.directory = open_directory(Path(path), options)
        try:
            self._life = self.directory.owners.begin()
        except BaseException:
            release_directory(self.directory, 1.0)
            raise
        self.url = f"embedded://{self.directory.path}"
        self.client_id = client_id
        self.farm_id = farm_id
        self._context = context = StoreContext(self.directory, self._life, client_id, farm_id, options.write_timeout_s)
        self._forks = FORKS[0]
        self._closing = threading.Lock()
        self._released = False
        self.directory.gates.add(context.gate)
        self.magazines = self._magazines = EmbeddedMagazines(context)
        self.queues = EmbeddedQueues(context)
        self.locks = EmbeddedLocks(context)
        self.arrays = EmbeddedArrays(context)

    @property
    def scope(self) -> Scope:
        """Of all its names."""
        return self._context.scope

    @property
    def keys(self) -> Keys:
        """What is kept beside messages."""
        return self._context.keys

    def stored_owner(self, owner: str | Owner) -> str:
        """Under what a claim in that owner's name is stored; see `ignis.storage.embedded.owners`."""
        return self._context.stored_owner(owner)

    # -- Store

    @property
    def owner(self) -> str:
        return self._context.owner

    def now_s(self) -> float:
        return self.directory.clock.now_s()

    @property
    def of_boottime_ms(self) -> int | None:
        return self.directory.clock.of_boottime_ms

    @property
    def local_dir(self) -> str | None:
        return str(self.directory.path)

    def stats(self) -> dict[str, int | float | str]:
        """Calls of this process; bytes and records of the whole directory, as far as this process has its logs open."""
        self._context.gate.enter()
        try:
            opened = {name: one.figures() for name, one in self.directory.opened().items()}
            figures: dict[str, int | float | str] = {
                "store": "embedded",
                "path": str(self.directory.path),
                "records": sum(one["living_records"] for one in opened.values()),
                "used_bytes": sum(one["living_bytes"] for one in opened.values()),
                "file_bytes": sum(one["log_bytes"] for one in opened.values()),
                "state_bytes": sum(one["state_bytes"] for one in opened.values()),
                "damaged_bytes": sum(one["damaged_bytes"] for one in opened.values()),
                "unreadable_reads": self._unreadable_reads(),
                "max_store_bytes": self.directory.options.max_store_bytes,
                **self._magazines.calls,
                **self.directory.refused_loads.figures(),
            }
            for name, one in opened.items():
                figures[f"used_bytes_{name}"] = one["living_bytes"]
                figures[f"generation_{name}"] = one["generation"]
            with contextlib.suppress(OSError):  # a figure less
                figures["free_bytes"] = free_bytes(self.directory.path)
            return figures
        finally:
            self._context.gate.leave()

    def process_stats(self) -> dict[str, int | float]:
        figures: dict[str, int | float] = {**self._magazines.calls, **self.directory.refused_loads.figures()}
        with contextlib.suppress(ClosedError):
            self._context.gate.enter()
            try:
                figures["unreadable_reads"] = self._unreadable_reads()
            finally:
                self._context.gate.leave()
        return figures

    def _unreadable_reads(self) -> int:
        return sum(one.unread() for one in self.directory.opened().values())

    def close(self, timeout: float = 30.0) -> None:
        if self._forks != FORKS[0]:
            return  # the parent's; nothing in the child belongs to it
        deadline = time.monotonic() + timeout
        if not self._closing.acquire(timeout=timeout):
            raise WaitTimeoutError(f"store: another thread is closing it for over {timeout:g} s")
        try:
            self._context.gate.close()
            self._context.waiting_gate.close()
            self._wait_for_calls(deadline, timeout)
            if not self._released:
                self.directory.gates.discard(self._context.gate)
                self.directory.owners.end(self._life)
                release_directory(self.directory, max(0.1, deadline - time.monotonic()))
                self._released = True
        finally:
            self._closing.release()

    def _wait_for_calls(self, deadline: float, timeout: float) -> None:
        while True:
            # Again and again: a thread may have been on its way to the wait when it was woken.
            self._magazines.wake_waiting()
            try:
                self._context.waiting_gate.wait_empty(0.05)
                self._context.gate.wait_empty(0.05)
                return
            except WaitTimeoutError:
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"store: calls still in flight after {timeout:g} s") from None
