"""Who waits for loads, so that a close can wake them."""

from __future__ import annotations

from contextlib import suppress

from ignis.errors import ClosedError
from ignis.native.store import Log

__all__ = ["Waits"]


class Waits:
    """The magazines that threads of this store have waited on. Thread-safe."""

    def __init__(self) -> None:
        self._places: set[tuple[Log, int]] = set()

    def note(self, log: Log, number: int) -> None:
        """Somebody is about to wait on that magazine. It stays noted: a lone message must not pay for more than a look."""
        place = log, number
        if place not in self._places:
            self._places.add(place)

    def wake(self) -> None:
        for log, number in list(self._places):
            with suppress(ClosedError):  # it was closed before
                log.wake(number)
