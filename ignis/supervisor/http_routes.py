"""What a worker or supervisor shows over HTTP: ``/livez``, ``/readyz``, ``/healthz``, ``/metrics``, ``/scale`` and
``/scale/<queue>``.

``/livez`` fails where only a new process helps; ``/readyz`` while there is nobody to work, at the start and at the end;
``/healthz`` where something is wrong, with the particulars."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ignis.app import Ignis
from ignis.bounded_call import BoundedCall
from ignis.control.autoscaler import Autoscaler, queue_loads
from ignis.control.queue_depths import queue_depths
from ignis.http_endpoint import Exposition, HttpEndpoint, Reply, Route, json_reply, metrics_route, yes_or_no
from ignis.schedules.stored import schedule_figures
from ignis.storage.base import Store
from ignis.supervisor.manager import Supervisor
from ignis.supervisor.worker_main import running_queues

__all__ = ["app_endpoint", "failed_queues", "scale_endpoint", "scale_routes", "supervisor_endpoint"]

_ASK_S = 3.0
"""How long who asks for figures of the store waits."""
_FRESH_S = 1.0
"""Figures of the store are at most this old: however many ask, it is asked once."""

Stats = Mapping[str, Any]


def _metrics_route(stats: Callable[[], Stats], local: Callable[[], Stats]) -> Route:
    def make() -> Exposition:
        from ignis.metrics import FRESH_S, Collector, Exposition

        return Exposition(Collector(stats, local=local, fresh_s=FRESH_S))

    return metrics_route(make)


def scale_routes(store: Callable[[], Store], autoscaler: Callable[[], Autoscaler | None]) -> dict[str, Route]:
    """``/scale``: what waits for workers in all queues (in a paused one nothing), and what the autoscaler makes of it;
    ``/scale/<queue>``: of one queue, as KEDA's metrics-api scaler reads it (``valueLocation: pending``)."""
    loads = BoundedCall(lambda: {one.queue: one for one in queue_loads(store())}, "the store", _ASK_S, fresh_s=_FRESH_S)

    def found() -> dict[str, dict[str, Any]]:
        return {
            name: {"pending": one.due, "oldest_age_s": (one.oldest_age_s or 0.0) if one.due else 0.0}
            for name, one in loads().items()
        }

    def everything(rest: str) -> Reply:
        acting = autoscaler()
        report = {} if acting is None else acting.report()
        report.pop("queues", None)
        return json_reply(
            200, {**report, "pending": sum(one["pending"] for one in found().values()), "queues": found()}
        )

    def one_queue(rest: str) -> Reply:
        load = found().get(rest)
        return (
            json_reply(404, {"error": f"no active queue {rest!r}"})
            if load is None
            else json_reply(200, {"queue": rest, **load})
        )

    return {"/scale/": one_queue, "/scale": everything}


def failed_queues(app: Ignis) -> list[str]:
    """Names of the queues whose consumer has ended by an error, or has only threads that hang."""
    return [queue.name for queue in app.queues() if queue.consumer is not None and queue.consumer.broken]


def scale_endpoint(
    bind: str, store: Callable[[], Store], autoscaler: Autoscaler, *, public: bool = False
) -> HttpEndpoint:
    """Of an autoscaler alone."""
    return HttpEndpoint(bind, scale_routes(store, lambda: autoscaler), public=public, setting="--bind")


def app_endpoint(bind: str, app: Ignis, *, public: bool = False) -> HttpEndpoint:
    """Of an application in this process."""

    def health(rest: str) -> Reply:
        failed = failed_queues(app)
        ok = app.running and not failed
        firing = app.scheduler().stats() if app.running else {}
        return json_reply(
            200 if ok else 503,
            {
                "status": "ok" if ok else "failing", "pid": os.getpid(), "paused": app.paused,
                "queues": running_queues(app), "failed": failed,
                # Without why: the text of a store's error names files. It is in the log.
                "states": {name: state.partition(":")[0] for name, state in app.refresher.states.items()},
                "schedules": {name: firing[name] for name in ("fired", "missed", "failed") if name in firing},
            },
        )  # fmt: skip

    routes = {
        "/livez": lambda rest: yes_or_no(not failed_queues(app), "a consumer has failed, or all of its threads hang"),
        "/readyz": lambda rest: yes_or_no(app.ready and not failed_queues(app), "the consumers do not run"),
        "/healthz": health,
        "/metrics": _metrics_route(app.stats, app.local_stats),
        **scale_routes(lambda: app.store, lambda: None),
    }
    return HttpEndpoint(bind, routes, public=public)


def _added(figures: Stats, counted: Stats) -> Stats:
    """A store's figures, with what other processes counted."""
    return {**figures, **{name: figures.get(name, 0) + value for name, value in counted.items()}}


def supervisor_endpoint(
    bind: str, supervisor: Supervisor, autoscaler: Callable[[], Autoscaler | None], *, public: bool = False
) -> HttpEndpoint:
    """Of all worker processes of a supervisor."""

    def health(rest: str) -> Reply:
        ok = supervisor.healthy
        status = "ok" if ok else "failing"
        return json_reply(200 if ok else 503, {"status": status, **supervisor.describe(), "queues": supervisor.queues})

    def local() -> Stats:
        acting, parts, own = autoscaler(), supervisor.totals.parts(), supervisor.opened
        return {
            **parts,
            "store": _added({} if own is None else own.process_stats(), parts.get("store", {})),
            "pool": supervisor.totals.pool(),
            "queues": list(supervisor.totals.queues().values()),
            "supervisor": supervisor.describe(),
            "autoscaler": None if acting is None else acting.report(),
        }

    def stats() -> Stats:
        store = supervisor.store()
        records = store.queues.list(active=True)
        depths, figures = [queue_depths(store, one) for one in records], store.stats()
        here = local()
        counted = {one["queue"]: one for one in here["queues"]}
        queues = [{**counted.pop(one["queue"], {}), **one} for one in depths]
        return {
            **here,
            "store": _added(figures, supervisor.totals.parts().get("store", {})),
            "queues": [*queues, *counted.values()],
            "schedules": [of for one in records for of in schedule_figures(one)],
        }

    routes = {
        "/livez": lambda rest: yes_or_no(True, ""),  # it answers, and replaces its processes by itself
        "/readyz": lambda rest: yes_or_no(supervisor.ready, "fewer processes than wanted consume"),
        "/healthz": health,
        "/metrics": _metrics_route(stats, local),
        **scale_routes(supervisor.store, autoscaler),
    }
    return HttpEndpoint(bind, routes, public=public)
