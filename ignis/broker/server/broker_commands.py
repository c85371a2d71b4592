"""Requests about the broker itself. They need no store, and run on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Request
from ignis.broker.server.caller import Caller
from ignis.broker.server.metrics import Figure

__all__ = ["BROKER_ACTIONS", "Reports"]


class Reports(Protocol):
    """What a broker says of itself."""

    def status(self) -> dict[str, Any]:
        """What NODE_STATUS answers."""

    def figures(self) -> list[Figure]:
        """What METRICS answers."""

    def members(self) -> list[dict[str, Any]]:
        """What CLUSTER_STATUS answers: the brokers of the store. In a thread."""


def _node_status(caller: Caller, broker: Reports, request: Request) -> None:
    caller.result(request.request_id, broker.status())


def _metrics(caller: Caller, broker: Reports, request: Request) -> None:
    caller.result(request.request_id, broker.figures())


def _cluster_status(caller: Caller, broker: Reports, request: Request) -> None:
    """In the threads of those who look, and by turns: it reads up to 64 seats, or asks ZooKeeper."""
    caller.context.threads.call(
        lambda _: [] if caller.closed else broker.members(),
        lambda found: caller.result(request.request_id, found),
        None,
        lambda exc: caller.refuse(request.request_id, exc),
        looks=True,
        line=caller.shares_with,
    )


BROKER_ACTIONS: dict[int, Callable[[Caller, Reports, Request], None]] = {
    Command.NODE_STATUS: _node_status,
    Command.METRICS: _metrics,
    Command.CLUSTER_STATUS: _cluster_status,
}
