"""Who waits for loads, so that a close can wake them."""

from __future__ import annotations

import threading

__all__ = ["Waits"]


class Waits:
    """The events that threads wait on, so that a close can wake them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[int, int] = {}

    def on(self, event: int) -> _Waiting:
        return _Waiting(self, event)

    def change(self, event: int, by: int) -> None:
        with self._lock:
            count = self._events.get(event, 0) + by
            if count:
                self._events[event] = count
            else:
                del self._events[event]

    def events(self) -> list[int]:
        with self._lock:
            return list(self._events)


class _Waiting:
    __slots__ = ("_event", "_waits")

    def __init__(self, waits: Waits, event: int) -> None:
        self._waits = waits
        self._event = event

    def __enter__(self) -> None:
        self._waits.change(self._event, 1)

    def __exit__(self, *exc: object) -> None:
        self._waits.change(self._event, -1)
