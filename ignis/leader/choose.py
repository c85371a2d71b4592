"""Which decider fits: by the settings, else by the store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ignis.config import LeaderSettings, check_name
from ignis.errors import ConfigError
from ignis.leader.base import Leadership, SoleLeader
from ignis.leader.file import FileLeader
from ignis.leader.lease import LeaseLeader
from ignis.storage.base import Store

if TYPE_CHECKING:
    from ignis.leader.zookeeper_session import Session

__all__ = ["Deciders", "make_leader"]


class Deciders:
    """The candidates of one application, one per scope; with ZooKeeper they share a session. Thread-safe."""

    def __init__(self, store: Store, settings: LeaderSettings | None = None) -> None:
        self._store = store
        self._settings = settings or LeaderSettings()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._leaders: dict[str, Leadership] = {}

    def of(self, scope: str) -> Leadership:
        """The candidate for a scope; the same object for the same scope. Raises ConfigError."""
        with self._lock:
            known = self._leaders.get(scope)
            if known is None:
                known = self._leaders[scope] = self.make(scope)
            return known

    def known(self) -> dict[str, Leadership]:
        """Those asked for so far, by scope."""
        with self._lock:
            return dict(self._leaders)

    def close(self) -> None:
        """Gives everything up. Idempotent; bounded."""
        with self._lock:
            leaders, self._leaders = list(self._leaders.values()), {}
            session, self._session = self._session, None
        for one in leaders:
            one.close()
        if session is not None:
            session.close()

    def make(self, scope: str, *, alone: bool = False) -> Leadership:
        """A candidate that nobody else gets. ``alone``: closing it closes the session too. Raises ConfigError,
        InvalidNameError."""
        check_name(scope, "scope")
        store, settings = self._store, self._settings
        kind = kind_for(store, settings)
        if kind == "zookeeper":
            return self._by_zookeeper(scope, alone)
        if kind == "file":
            if store.local_dir is None:
                raise ConfigError(f"leader.kind = 'file': the users of {store.url} share no directory; use lease")
            return FileLeader(store, scope, store.local_dir, settings.refresh_s)
        if kind == "sole":
            return SoleLeader(store, scope, settings.refresh_s)
        return LeaseLeader(store, scope, settings.lease_s, settings.refresh_s)

    def _by_zookeeper(self, scope: str, alone: bool) -> Leadership:
        if not self._settings.zookeeper:
            raise ConfigError("leader.kind = 'zookeeper', and leader.zookeeper names no hosts")
        try:
            from ignis.leader.zookeeper import ZooKeeperLeader
            from ignis.leader.zookeeper_session import Session
        except ModuleNotFoundError as exc:
            raise ConfigError(
                f"ZooKeeper needs a driver ({exc.name} is missing): pip install 'ignis-mq[zookeeper]'"
            ) from exc
        if self._session is None:
            self._session = Session(self._settings)
        return ZooKeeperLeader(self._store, scope, self._session, self._settings, own_session=alone)


def kind_for(store: Store, settings: LeaderSettings) -> str:
    """The decider's kind: that of the settings, else ZooKeeper where it is named, a file lock where all users share a
    directory, this process alone where nobody else can see the store, a lease otherwise."""
    if settings.kind != "auto":
        return settings.kind
    if settings.zookeeper:
        return "zookeeper"
    if store.local_dir is not None:
        return "file"
    return "sole" if store.in_process else "lease"


def make_leader(store: Store, scope: str, settings: LeaderSettings | None = None) -> Leadership:
    """One candidate by itself; `Leadership.close` frees what it holds. Raises ConfigError."""
    return Deciders(store, settings).make(scope, alone=True)
