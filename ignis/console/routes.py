"""The HTTP API, one row a route: from it follow dispatch, permissions, the OpenAPI document and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ignis.console import account, browsing, changing, gateway, managing, reading, resending, system
from ignis.console.call import Call
from ignis.console.roles import ADMIN, CONSUME, LOGIN, NONE, OPERATE, PUBLISH, READ

__all__ = ["PREFIX", "ROUTES", "ApiRoute"]

PREFIX = "/ignis/v1"


@dataclass(frozen=True)
class ApiRoute:
    """One call of the API.

    Attributes:
        method, path: below `PREFIX`; names in braces are parts of the path.
        handler: answers it, in a thread.
        needs: the role that it takes, see `ignis.console.roles`.
        group: under which it stands in the document.
        query, body: what may be given, and how; None = nothing.
        waits: whether it may wait for seconds, in a thread of those that may.
        reads: whether it reads messages, which may be large: of these only some are worked on at a time.
        asks_first: whether a session is begun by it, so that there is no token to show yet.
    """

    method: str
    path: str
    handler: Callable[[Call], Any]
    needs: str
    group: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    waits: bool = False
    reads: bool = False
    asks_first: bool = False

    @property
    def mutating(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET"

    @property
    def summary(self) -> str:
        """Its first line in the document."""
        return " ".join((self.handler.__doc__ or "").split())


_Q = "/queues/{queue}"
_S = "/schedules/{schedule}"

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/health", reading.health, NONE, "console"),
    ApiRoute("GET", "/session", account.whoami, NONE, "session"),
    ApiRoute("POST", "/session", account.log_in, NONE, "session", body=account.Login, asks_first=True),
    ApiRoute("DELETE", "/session", account.log_out, LOGIN, "session"),
    ApiRoute("GET", "/overview", reading.overview, READ, "console"),
    ApiRoute("GET", "/store", system.store_figures, READ, "console"),
    ApiRoute("GET", "/leaders", system.leaders, READ, "console"),
    ApiRoute("GET", "/lock", system.lock, READ, "console", query=system.LockQuery),
    ApiRoute("GET", "/locks", system.locks, READ, "console", query=system.LocksQuery),
    ApiRoute("GET", "/broker", system.broker, READ, "console"),
    ApiRoute("GET", "/jobs", changing.jobs, READ, "jobs"),
    ApiRoute("GET", "/jobs/{job}", changing.job, READ, "jobs"),
    ApiRoute("DELETE", "/jobs/{job}", changing.stop_job, OPERATE, "jobs"),
    ApiRoute("GET", "/leases", gateway.leased, ADMIN, "jobs"),
    ApiRoute("GET", "/schedules", reading.schedules, READ, "schedules"),
    ApiRoute("PUT", _S, managing.put_schedule, ADMIN, "schedules", body=managing.PutSchedule),
    ApiRoute("DELETE", _S, managing.remove_schedule, ADMIN, "schedules", query=reading.OfQueue),
    ApiRoute("POST", f"{_S}/run", changing.run_schedule, OPERATE, "schedules", body=reading.OfQueue),
    ApiRoute("POST", f"{_S}/pause", changing.pause_schedule, OPERATE, "schedules", body=reading.OfQueue),
    ApiRoute("POST", f"{_S}/resume", changing.resume_schedule, OPERATE, "schedules", body=reading.OfQueue),
    ApiRoute("GET", _Q, reading.queue, READ, "queues"),
    ApiRoute("GET", f"{_Q}/shards", reading.shards, READ, "queues"),
    ApiRoute("GET", f"{_Q}/workers", reading.workers, READ, "queues", reads=True),
    ApiRoute("GET", f"{_Q}/messages", browsing.messages, READ, "queues", query=browsing.MessagesQuery, reads=True),
    ApiRoute("GET", f"{_Q}/messages/{{shard}}/{{pointer}}", browsing.message, READ, "queues", reads=True),
    ApiRoute("GET", f"{_Q}/delayed", browsing.delayed, READ, "queues", query=browsing.DelayedQuery, reads=True),
    ApiRoute("GET", f"{_Q}/sideline", browsing.sideline, READ, "sideline", query=browsing.SidelineQuery, reads=True),
    ApiRoute("GET", f"{_Q}/sideline/reasons", browsing.reasons, READ, "sideline", query=browsing.ReasonsQuery, reads=True),
    ApiRoute("GET", f"{_Q}/sideline/{{shard}}/{{pointer}}", browsing.sideline_message, READ, "sideline", reads=True),
    ApiRoute(
        "POST", f"{_Q}/sideline/{{shard}}/{{pointer}}/resend", resending.resend, OPERATE, "sideline", body=resending.Resend,
        reads=True,
    ),
    ApiRoute("POST", f"{_Q}/sideline/redrive", changing.redrive, OPERATE, "sideline", body=changing.RedriveBody, waits=True),
    ApiRoute("POST", f"{_Q}/sideline/drop", changing.drop, OPERATE, "sideline", body=changing.DropIds, waits=True),
    ApiRoute("POST", f"{_Q}/sideline/drop-all", changing.drop_all, ADMIN, "sideline", body=changing.DropBody, waits=True),
    ApiRoute("POST", f"{_Q}/pause", changing.pause, OPERATE, "queues", body=changing.Nothing),
    ApiRoute("POST", f"{_Q}/resume", changing.resume, OPERATE, "queues", body=changing.Nothing),
    ApiRoute("POST", f"{_Q}/scale", managing.scale, ADMIN, "queues", body=managing.Scale),
    ApiRoute("POST", f"{_Q}/purge", changing.purge, ADMIN, "queues", body=changing.PurgeBody, waits=True),
    ApiRoute("POST", f"{_Q}/cancel", changing.cancel, OPERATE, "queues", body=changing.CancelBody, reads=True),
    ApiRoute("POST", f"{_Q}/delayed/cancel", changing.cancel_delayed, OPERATE, "queues", body=changing.Ids, reads=True),
    ApiRoute("POST", f"{_Q}/delayed/run", changing.run_delayed, OPERATE, "queues", body=changing.Ids, reads=True),
    ApiRoute("POST", f"{_Q}/leases/end", gateway.end_leases, ADMIN, "queues", body=gateway.EndLeases),
    ApiRoute("POST", f"{_Q}/publish", gateway.publish, PUBLISH, "gateway", body=gateway.Publish),
    ApiRoute("POST", f"{_Q}/pull", gateway.pull, CONSUME, "gateway", body=gateway.Pull, waits=True, reads=True),
    ApiRoute("POST", f"{_Q}/acknowledge", gateway.acknowledge, CONSUME, "gateway", body=gateway.Receipts),
    ApiRoute("POST", f"{_Q}/extend", gateway.extend, CONSUME, "gateway", body=gateway.Extend),
    ApiRoute("POST", f"{_Q}/release", gateway.release, CONSUME, "gateway", body=gateway.Release, reads=True),
)  # fmt: skip
