"""What changes while a broker lives: whether it drains, and what it has counted."""

from __future__ import annotations

import threading

from ignis.message import REASONS

__all__ = ["BrokerState", "SidelinedCounts"]


class SidelinedCounts:
    """How many messages a broker has put into sidelines, by reason; each reason is there from the start. Thread-safe: they are
    moved in the store's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(REASONS, 0)

    def add(self, reason: str, count: int) -> None:
        """So many more for one of `REASONS`."""
        with self._lock:
            self._counts[reason] += count

    def counts(self) -> dict[str, int]:
        """As it is now."""
        with self._lock:
            return dict(self._counts)


class BrokerState:
    """Counters that only rise, unless said otherwise. Belongs to the event loop."""

    __slots__ = (
        "bytes_in", "bytes_out", "connections_seen", "delivered", "denied", "draining", "errors",
        "messages_in", "protocol_errors", "redelivered", "refused", "sidelined", "timeouts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.draining = False
        """The broker takes no new work: it ends."""
        self.bytes_in = self.bytes_out = self.messages_in = 0
        self.connections_seen = 0
        self.errors = self.denied = self.protocol_errors = self.timeouts = self.redelivered = 0
        self.sidelined = SidelinedCounts()
        self.delivered = self.refused = 0
        """Figures of connections and queues that are gone."""
