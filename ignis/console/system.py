"""Answers what is no queue's: who leads, who holds a lock, the broker behind the URL, and the figures of this process."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ignis.console.call import Call
from ignis.console.refusals import document_of
from ignis.console.roles import READ
from ignis.errors import IgnisError
from ignis.locks import LockLevel, LockManager
from ignis.native import pool_classes
from ignis.publisher import pending_messages

__all__ = ["LockQuery", "broker", "leaders", "lock", "store_figures"]

_SCOPES = ("sweeper", "schedules")


class LockQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which lock. Whoever holds one was told the same names."""

    id: Annotated[str, Meta(min_length=1, max_length=512, description="The lock.")]
    level: Annotated[Literal["dc", "xdc"], Meta(description="Of one deployment, or of all.")] = "dc"
    client_id: Annotated[str, Meta(max_length=128, description="The application; empty = the console's.")] = ""
    farm_id: Annotated[str, Meta(max_length=128, description="The deployment; empty = the console's.")] = ""
    suffix: Annotated[str, Meta(max_length=32, description="The table of locks.")] = "distributed_lock"


def leaders(call: Call) -> dict[str, Any]:
    """Who leads each scope, as this process can tell. The console takes no part in the contest."""
    app = call.services.app
    return {"leaders": [asdict(app.leader(scope).status()) for scope in _SCOPES], "scope": "fleet"}


def lock(call: Call) -> dict[str, Any]:
    """Who holds a distributed lock, by its name: not every store can list them. For who may look at everything."""
    # A lock is no queue's, and the names of other applications' locks are theirs.
    call.visitor.require(READ, "*")
    asked: LockQuery = call.query
    app = call.services.app
    with closing(
        LockManager(asked.client_id or app.client_id, asked.farm_id or app.farm_id, call.store, suffix=asked.suffix)
    ) as manager:
        found = manager.holder(asked.id, LockLevel[asked.level.upper()])
    held = None
    if found is not None:
        held = {
            "owner": found.owner, "token": found.token, "acquired_at_ms": found.acquired_at_ms,
            "expires_at_ms": found.expires_at_ms,
        }  # fmt: skip
    return {"lock": asked.id, "level": asked.level, "held": held, "scope": "fleet"}


def broker(call: Call) -> dict[str, Any]:
    """The broker behind the URL with its connections, and the brokers of its store. All null where the URL is no broker's."""
    store = call.store
    if not store.url.startswith("ignis"):
        return {"broker": None, "brokers": None, "refused": None, "scope": "fleet"}
    from ignis.broker.client import requests  # an extra
    from ignis.broker.client.store import BrokerStore

    assert isinstance(store, BrokerStore)
    found: dict[str, Any] = {"broker": None, "brokers": None, "refused": None, "scope": "fleet"}
    try:
        status: dict[str, Any] = store.calls.ask(requests.node_status())
        found["broker"] = {**status, "scope": "process of the broker"}
        found["brokers"] = store.calls.ask(requests.cluster_status())
    except IgnisError as exc:  # such as a user of the URL who may not ask
        found["refused"] = document_of(exc)["error"]
    return found


def store_figures(call: Call) -> dict[str, Any]:
    """The store's figures, as the console's process sees them, and what the console itself holds."""
    services = call.services
    return {
        "scope": "process",
        "store": call.store.stats(),
        "console": {
            "looks": services.snapshot.looks, "sessions": len(services.access.sessions), "leased": len(services.leases),
        },
        "ring_depth": pending_messages(),
        "pool": pool_classes(),
    }  # fmt: skip
