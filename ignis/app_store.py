"""The store of an application: opened with its first use, and once more after the application was closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ignis.clock import Clock
from ignis.config import naming
from ignis.errors import ConfigError
from ignis.magazine import MagazineManager
from ignis.storage import open_store
from ignis.storage.base import Store
from ignis.urls import redacted

__all__ = ["AppStore", "open_app_store"]


def open_app_store(
    url: str | None, source: str, client_id: str, farm_id: str, options: Mapping[Any, Any], clock: Clock
) -> Store:
    """Opens the store that an application names.

    Args:
        url: of the store; empty or None = none was given.
        source: what names the URL where no argument does.
        client_id, farm_id: scope of all names.
        options: of the store.
        clock: by which the application acts; the memory store goes by it where it is set by hand.

    Raises StoreUnreachableError, StoreFormatError, ConfigError.
    """
    if not url:
        raise ConfigError("no store: give a URL such as embedded:///var/lib/orders, or set IGNIS_URL")
    options = dict(options)
    if clock.by_hand:
        if not url.startswith("memory:"):
            raise ConfigError(f"a clock by hand goes with memory://, not with {redacted(url)}")
        options["clock"] = clock
    with naming(source):
        return open_store(url, client_id=client_id, farm_id=farm_id, **options)


class AppStore:
    """Opens the store and keeps it. Thread-safe.

    Its lock is the last of all: a thread that opens a queue holds that queue's lock and comes here, so nothing may be waited for
    here that waits for a queue.

    Args:
        open_: opens the store.
    """

    def __init__(self, open_: Callable[[], Store]) -> None:
        self._open = open_
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._magazines: MagazineManager | None = None

    @property
    def opened(self) -> Store | None:
        """The store, where it is open."""
        return self._store

    @property
    def store(self) -> Store:
        """The opened store. Raises what opening it raises."""
        store = self._store
        if store is None:
            with self._lock:
                store = self._store = self._store or self._open()
        return store

    @property
    def magazines(self) -> MagazineManager:
        """The magazines of the store. Opens it, and raises as `store` does."""
        magazines = self._magazines
        if magazines is None:
            with self._lock:
                magazines = self._magazines = self._magazines or MagazineManager(self.store)
        return magazines

    def wait_no_longer(self, within_s: float | None) -> None:
        """See `Store.wait_no_longer`; nothing to do where none is open."""
        if self._store is not None:
            self._store.wait_no_longer(within_s)

    def take(self) -> Store | None:
        """Gives the open store to who closes it, or None; the next use opens another."""
        with self._lock:
            store, self._store, self._magazines = self._store, None, None
            return store
