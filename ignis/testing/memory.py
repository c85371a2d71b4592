"""An application that exists already, on a fresh store in memory for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ignis.app import Ignis
from ignis.clock import Clock
from ignis.config import LeaderSettings, shown
from ignis.errors import ConfigError
from ignis.testing.clock import ManualClock

__all__ = ["use_memory_store"]

_CLOSE_S = 10.0


@contextmanager
def use_memory_store(app: Ignis, clock: Clock | None = None) -> Iterator[ManualClock]:
    """Moves an application, with its queues, handlers and middleware, onto an empty memory store, and back at the end of the
    block. For applications that a module makes when it is imported.

    Args:
        app: not running and not yet used, or closed.
        clock: None = a new `ManualClock`.

    Gives the clock. What the application holds at the end is closed. Raises ConfigError: it is in use.
    """
    if app.running or app.opened:
        raise ConfigError(f"{app!r} is in use; close it before its store is replaced")
    if clock is not None and not isinstance(clock, ManualClock):
        raise ConfigError(f"clock = {shown(clock)} is not a ManualClock")
    before = app.url, app.store_options, app.leader_settings, app.clock
    manual = clock or ManualClock()
    app.url, app.store_options, app.leader_settings, app.clock = "memory://", {}, LeaderSettings(), manual
    try:
        yield manual
    finally:
        try:
            app.close(_CLOSE_S)
        finally:
            app.url, app.store_options, app.leader_settings, app.clock = before
