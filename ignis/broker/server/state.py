"""What changes while a broker lives: whether it drains, and what it has counted."""

from __future__ import annotations

__all__ = ["BrokerState"]


class BrokerState:
    """Counters that only rise, unless said otherwise. Belongs to the event loop."""

    __slots__ = (
        "backlog_bytes", "bytes_in", "bytes_out", "connections_seen", "delivered", "denied", "draining", "errors",
        "messages_in", "protocol_errors", "redelivered", "refused", "sidelined", "timeouts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.draining = False
        """The broker takes no new work: it ends."""
        self.bytes_in = self.bytes_out = self.messages_in = 0
        self.backlog_bytes = 0
        """Bytes of requests of all connections that wait for the store or are at it, now."""
        self.connections_seen = 0
        self.errors = self.denied = self.protocol_errors = self.timeouts = self.redelivered = 0
        self.sidelined = 0
        """Messages that were held by too many connections that were lost."""
        self.delivered = self.refused = 0
        """Figures of connections and queues that are gone."""
