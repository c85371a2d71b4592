"""What a broker shows over HTTP: ``/livez``, ``/readyz``, ``/healthz`` and ``/metrics``.

The figures are taken on the event loop, by a thread that waits for it for a bounded time: a loop that does not answer is what
``/livez`` is there to find.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

from ignis.broker.server.metrics import BrokerMetrics, Figure
from ignis.broker.server.server import Broker
from ignis.errors import WaitTimeoutError
from ignis.http_endpoint import Exposition, HttpEndpoint, Reply, json_reply, metrics_route, yes_or_no

__all__ = ["broker_endpoint", "loop_answers"]

R = TypeVar("R")

_LOOP_S = 5.0
_NOT_SHOWN = ("store",)
"""What of a broker's status is not shown: the URL names a directory, and whoever reaches the port would read it."""


def broker_endpoint(bind: str, broker: Broker, *, public: bool = False) -> HttpEndpoint:
    """Serves health and metrics of a broker that was started.

    Args:
        bind: see `ignis.http_endpoint.parse_bind`. public: whether an address that others can reach is meant.

    Raises ConfigError when the address cannot be bound, or is open to others and ``public`` was not said.
    """
    metrics = BrokerMetrics(broker)

    def figures() -> list[Figure]:
        return _on_loop(broker, metrics.figures)

    def health(rest: str) -> Reply:
        try:
            status = {name: value for name, value in _on_loop(broker, broker.status).items() if name not in _NOT_SHOWN}
        except WaitTimeoutError as exc:
            return json_reply(503, {"status": "failing", "error": str(exc)})
        if status["draining"]:
            return json_reply(503, {"status": "draining", **status})
        return json_reply(200, {"status": "ok", **status})

    def live(rest: str) -> Reply:
        return yes_or_no(loop_answers(broker), f"the event loop did not answer within {_LOOP_S:g} s")

    def ready(rest: str) -> Reply:
        """Whether clients may connect."""
        try:
            return yes_or_no(not _on_loop(broker, lambda: broker.state.draining), "it drains")
        except WaitTimeoutError as exc:
            return yes_or_no(False, str(exc))

    def exposition() -> Exposition:
        from ignis.metrics import Exposition, FigureCollector

        return Exposition(FigureCollector(figures, broker.store_stats))

    routes = {"/livez": live, "/readyz": ready, "/healthz": health, "/metrics": metrics_route(exposition)}
    return HttpEndpoint(bind, routes, public=public)


def loop_answers(broker: Broker) -> bool:
    """Whether the broker's event loop turns; asks it for at most 5 s."""
    try:
        _on_loop(broker, lambda: None)
    except WaitTimeoutError:
        return False
    return True


def _on_loop(broker: Broker, call: Callable[[], R]) -> R:
    """The result of a call in the event loop's thread. Raises WaitTimeoutError when the loop is busy for 5 s, or over."""

    async def run() -> R:
        return call()

    coroutine = run()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, broker.loop)
    except RuntimeError as exc:
        coroutine.close()
        raise WaitTimeoutError(f"the event loop of broker {broker.id} is closed") from exc
    try:
        return future.result(_LOOP_S)
    except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as exc:
        future.cancel()
        raise WaitTimeoutError(f"the event loop of broker {broker.id} did not answer within {_LOOP_S:g} s") from exc
