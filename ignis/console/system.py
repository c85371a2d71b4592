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
from ignis.storage.records import LockRecord

__all__ = ["LockQuery", "LocksQuery", "broker", "leaders", "lock", "locks", "store_figures"]

_SCOPES = ("sweeper", "schedules")


class LocksQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Whose locks. Whoever holds one was told the same names."""

    client_id: Annotated[str, Meta(max_length=128, description="The application; empty = the console's.")] = ""
    farm_id: Annotated[str, Meta(max_length=128, description="The deployment; empty = the console's.")] = ""
    suffix: Annotated[str, Meta(max_length=32, description="The table of locks.")] = "distributed_lock"


class LockQuery(LocksQuery, forbid_unknown_fields=True, kw_only=True):
    """Which lock. Whoever holds one was told the same names."""

    id: Annotated[str, Meta(min_length=1, max_length=512, description="The lock.")]
    level: Annotated[Literal["dc", "xdc"], Meta(description="Of one deployment, or of all.")] = "dc"


def leaders(call: Call) -> dict[str, Any]:
    """Who leads each scope, as this process can tell. The console takes no part in the contest."""
    app = call.services.app
    return {"leaders": [asdict(app.leader(scope).status()) for scope in _SCOPES], "scope": "fleet"}


def lock(call: Call) -> dict[str, Any]:
    """Who holds a distributed lock, by its name: see `locks`. For who may look at everything."""
    asked: LockQuery = call.query
    with closing(_manager(call)) as manager:
        found = manager.holder(asked.id, LockLevel[asked.level.upper()])
    return {"lock": asked.id, "level": asked.level, "held": None if found is None else _held(found), "scope": "fleet"}


def locks(call: Call) -> dict[str, Any]:
    """Every distributed lock of an application that somebody holds; null where the store keeps no list of them, as Aerospike and
    a broker: ask for one by its name. For who may look at everything."""
    found: list[dict[str, Any]] = []
    with closing(_manager(call)) as manager:
        for level in LockLevel:
            some = manager.held(level)
            if some is None:
                return {"locks": None, "scope": "fleet"}
            found += ({"lock": one.name, "level": level.name.lower(), **_held(one)} for one in some)
    return {"locks": found, "scope": "fleet"}


def _manager(call: Call) -> LockManager:
    # A lock is no queue's, and the names of other applications' locks are theirs.
    call.visitor.require(READ, "*")
    asked: LocksQuery = call.query
    app = call.services.app
    return LockManager(asked.client_id or app.client_id, asked.farm_id or app.farm_id, call.store, suffix=asked.suffix)


def _held(found: LockRecord) -> dict[str, Any]:
    return {
        "owner": found.owner, "token": found.token, "acquired_at_ms": found.acquired_at_ms,
        "expires_at_ms": found.expires_at_ms,
    }  # fmt: skip


def broker(call: Call) -> dict[str, Any]:
    """The broker behind the URL with its connections, and the brokers of its store. All null where the URL is no broker's. For
    who may look at everything: to others `refused` says why there is nothing."""
    store = call.store
    if not store.url.startswith("ignis"):
        return {"broker": None, "brokers": None, "refused": None, "scope": "fleet"}
    from ignis.broker.client import requests  # an extra
    from ignis.broker.client.store import BrokerStore

    assert isinstance(store, BrokerStore)
    found: dict[str, Any] = {"broker": None, "brokers": None, "refused": None, "scope": "fleet"}
    try:
        call.visitor.require(READ, "*")  # as at the broker, whose addresses and connections are no queue's
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
