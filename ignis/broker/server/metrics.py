"""Figures of a broker, by the names that monitoring uses."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from ignis.broker.protocol.in_flight import InFlight
from ignis.broker.server.application import Application
from ignis.broker.server.receive_limits import ReceiveLimits
from ignis.broker.server.state import BrokerState

__all__ = ["SAYS", "BrokerMetrics", "Figure"]

Figure = tuple[str, dict[str, str], float]
"""(name, labels, value)."""

SAYS = {
    "ignis_conn_count": "Connections.",
    "ignis_inflight_count": "Requests that wait for their answer.",
    "ignis_unacked_count": "Messages delivered and not accounted for.",
    "ignis_timeout_count": "Connections closed because they were silent, slow or stuck; only rises.",
    "ignis_bytes_total": "Bytes of the wire.",
    "ignis_published_total": "Messages stored for clients.",
    "ignis_delivered_total": "Messages delivered.",
    "ignis_redelivered_total": "Messages given back because their connection was lost.",
    "ignis_sidelined_total": "Messages put aside because their clients died over and over.",
    "ignis_drain_rate": "Messages stored a second since the last look.",
    "ignis_ring_depth": "Requests that wait for the store.",
    "ignis_direct_used_bytes": "Bytes of these.",
    "ignis_receive_bytes": "Memory of frames that are still arriving.",
    "ignis_outbound_bytes": "Bytes that clients have not read.",
    "ignis_connections_refused_total": "Connections refused.",
    "ignis_requests_refused_total": "Requests over the limit of their connection.",
    "ignis_errors_total": "Errors answered, frames that broke the protocol, permissions denied.",
}
"""What each figure means."""


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
        self._drained_at = (time.monotonic(), 0)

    def figures(self) -> list[Figure]:
        """What METRICS answers. Counters rise from the broker's start; the rate is since the last call."""
        broker, state = self._broker, self._broker.state
        inboxes = [inbox for application in broker.applications for inbox in application.inboxes]
        pumps = [pump for application in broker.applications for pump in application.pumps]
        at_s, before = self._drained_at
        now_s = time.monotonic()
        self._drained_at = now_s, state.messages_in
        rate = (state.messages_in - before) / max(now_s - at_s, 1e-9)
        return [
            ("ignis_conn_count", {}, len(broker.sessions)),
            ("ignis_inflight_count", {}, sum(one.pending for one in broker.sessions)),
            ("ignis_unacked_count", {}, sum(one.held.count for one in broker.sessions)),
            ("ignis_timeout_count", {}, state.timeouts),
            ("ignis_bytes_total", {"direction": "in"}, state.bytes_in),
            ("ignis_bytes_total", {"direction": "out"}, state.bytes_out),
            ("ignis_published_total", {}, state.messages_in),
            ("ignis_delivered_total", {}, state.delivered + sum(one.delivered for one in pumps)),
            ("ignis_redelivered_total", {}, state.redelivered),
            ("ignis_sidelined_total", {"reason": "crash"}, state.sidelined),
            ("ignis_drain_rate", {}, rate),
            ("ignis_ring_depth", {}, sum(one.waiting for one in inboxes)),
            ("ignis_direct_used_bytes", {}, sum(one.bytes for one in inboxes)),
            ("ignis_receive_bytes", {}, broker.receiving.held_bytes),
            ("ignis_outbound_bytes", {}, sum(one.outbound_bytes for one in broker.sessions)),
            ("ignis_connections_refused_total", {}, broker.connections_refused),
            ("ignis_requests_refused_total", {}, state.refused + sum(one.refused for one in broker.sessions)),
            ("ignis_errors_total", {"kind": "answered"}, state.errors),
            ("ignis_errors_total", {"kind": "protocol"}, state.protocol_errors),
            ("ignis_errors_total", {"kind": "denied"}, state.denied),
        ]
