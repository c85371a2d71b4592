"""Figures of a broker, by the names that monitoring uses. What they mean stands in `ignis.metric_catalogue`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ignis.broker.protocol.in_flight import InFlight
from ignis.broker.server.application import Application
from ignis.broker.server.receive_limits import ReceiveLimits
from ignis.broker.server.state import BrokerState

__all__ = ["BrokerMetrics", "Figure"]

Figure = tuple[str, dict[str, str], float]
"""(name, labels, value)."""


class _Connection(Protocol):
    @property
    def pending(self) -> int: ...
    @property
    def held(self) -> InFlight: ...
    @property
    def outbound_bytes(self) -> int: ...
    @property
    def refused(self) -> int: ...


class Measured(Protocol):
    """A broker, as far as it is measured."""

    @property
    def state(self) -> BrokerState: ...
    @property
    def receiving(self) -> ReceiveLimits: ...
    @property
    def sessions(self) -> Collection[_Connection]: ...
    @property
    def applications(self) -> Sequence[Application]: ...
    @property
    def connections_refused(self) -> int: ...


class BrokerMetrics:
    """Reads the figures of one broker. Belongs to its event loop."""

    def __init__(self, broker: Measured) -> None:
        self._broker = broker

    def figures(self) -> list[Figure]:
        """What METRICS answers. Counters rise from the broker's start."""
        broker, state = self._broker, self._broker.state
        inboxes = [inbox for application in broker.applications for inbox in application.inboxes]
        pumps = [pump for application in broker.applications for pump in application.pumps]
        return [
            ("ignis_broker_connections", {}, len(broker.sessions)),
            ("ignis_broker_requests", {}, sum(one.pending for one in broker.sessions)),
            ("ignis_broker_unacked_messages", {}, sum(one.held.count for one in broker.sessions)),
            ("ignis_broker_connection_timeouts_total", {}, state.timeouts),
            ("ignis_broker_bytes_total", {"direction": "in"}, state.bytes_in),
            ("ignis_broker_bytes_total", {"direction": "out"}, state.bytes_out),
            ("ignis_broker_published_total", {}, state.messages_in),
            ("ignis_broker_delivered_total", {}, state.delivered + sum(one.delivered for one in pumps)),
            ("ignis_broker_redelivered_total", {}, state.redelivered),
            *(
                ("ignis_broker_sidelined_total", {"reason": reason}, count)
                for reason, count in state.sidelined.counts().items()
            ),
            ("ignis_broker_ring_depth", {}, sum(one.waiting for one in inboxes)),
            ("ignis_broker_ring_bytes", {}, sum(one.bytes for one in inboxes)),
            ("ignis_broker_receive_bytes", {}, broker.receiving.held_bytes),
            ("ignis_broker_outbound_bytes", {}, sum(one.outbound_bytes for one in broker.sessions)),
            ("ignis_broker_connections_refused_total", {}, broker.connections_refused),
            ("ignis_broker_requests_refused_total", {}, state.refused + sum(one.refused for one in broker.sessions)),
            ("ignis_broker_errors_total", {"kind": "answered"}, state.errors),
            ("ignis_broker_errors_total", {"kind": "protocol"}, state.protocol_errors),
            ("ignis_broker_errors_total", {"kind": "denied"}, state.denied),
        ]
