"""The brokers in front of one store: who is there. No two of them have to know each other.

Where ZooKeeper is set (``leader.zookeeper``) each has a node that ends with its session. Elsewhere each holds a
numbered seat, a lock of the store that ends by itself when its broker dies.
"""

from __future__ import annotations

import abc
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ignis.config import LeaderSettings
from ignis.errors import ConfigError, IgnisError
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.stacks import start_thread
from ignis.upkeep import outlast

if TYPE_CHECKING:
    from ignis.leader.zookeeper_session import Session
    from ignis.storage.base import Store

__all__ = ["Cluster", "Seats", "ZooKeeperNodes", "make_cluster"]

log = logging.getLogger("ignis.broker")

SEATS = 64
TTL_S = 15.0
_RENEW_S = 5.0
_EMPTY_SEATS = 4
_CONNECT_S = 5.0


class Cluster(abc.ABC):
    """One broker's membership. Thread-safe; `join` starts a thread that renews it. That it cannot be had is no
    reason not to serve.

    Args:
        broker: its id.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._card = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, address: str) -> None:
        """Shows this broker to the others from now on, at this address."""
        card = {"broker": self._broker, "address": address, "since_s": int(time.time())}
        self._card = json.dumps(card, separators=(",", ":"))
        self._renew_once()
        self._thread = threading.Thread(
            target=outlast, args=(log, self._renew), name="ignis-broker-cluster", daemon=True
        )
        start_thread(self._thread)

    def leave(self) -> None:
        """Nobody sees it any more. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(10)
        try:
            self._withdraw()
        except IgnisError as exc:
            log.info(event_text("broker_sign_off_failed", "broker %s could not sign off: %s"), self._broker, exc)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEW_S):
            self._renew_once()

    def _renew_once(self) -> None:
        try:
            self._keep()
        except Exception as exc:  # the next try may go better; without one the others forget this broker
            log_safely(
                log,
                logging.WARNING,
                event_text("broker_register_failed", "broker %s cannot register: %s"),
                self._broker,
                exc,
            )

    @abc.abstractmethod
    def members(self) -> list[dict[str, Any]]:
        """The brokers that are there, this one included; one that died is listed for some seconds more."""

    @abc.abstractmethod
    def _keep(self) -> None: ...

    @abc.abstractmethod
    def _withdraw(self) -> None: ...


def _read_card(card: str, **more: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(card)
    except ValueError:
        return None
    return {**found, **more} if isinstance(found, dict) else None


class Seats(Cluster):
    """Locks of the store, in the broker's own application."""

    def __init__(self, broker: str, store: Store) -> None:
        super().__init__(broker)
        self._locks = store.locks
        self._seat: int | None = None

    def _name(self, seat: int) -> str:
        return f"broker-seat-{seat}"

    def _keep(self) -> None:
        if self._seat is not None and self._locks.renew(self._name(self._seat), self._card, TTL_S) is not None:
            return
        self._seat = None
        for seat in range(SEATS):
            if self._locks.acquire(self._name(seat), self._card, TTL_S) is not None:
                self._seat = seat
                return
        log.warning(event_text("broker_seats_taken", "all %d seats for brokers of this store are taken"), SEATS)

    def _withdraw(self) -> None:
        if self._seat is not None:
            self._locks.release(self._name(self._seat), self._card)
            self._seat = None

    def members(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        empty = 0
        for seat in range(SEATS):
            record = self._locks.get(self._name(seat))
            card = None if record is None else _read_card(record.owner, seat=seat)
            if card is not None:
                found.append(card)
            empty = empty + 1 if record is None else 0
            if empty >= _EMPTY_SEATS and seat > (self._seat or 0):
                break
        return found


class ZooKeeperNodes(Cluster):
    """Nodes under ``/{client_id}-ignis-brokers/{farm_id}`` that end with their broker's session."""

    def __init__(self, broker: str, session: Session, client_id: str, farm_id: str) -> None:
        super().__init__(broker)
        self._session = session
        self._base = f"/{client_id}-ignis-brokers/{farm_id}"

    def _keep(self) -> None:
        if not self._session.connected:
            self._session.wait_connected(_CONNECT_S)
        # There already: this session's own, or that of its last life, which ends within the session timeout.
        self._session.create(f"{self._base}/{self._broker}", self._card.encode())

    def _withdraw(self) -> None:
        self._session.close()

    def members(self) -> list[dict[str, Any]]:
        found = []
        for name in sorted(self._session.children(self._base)):
            node = self._session.get(f"{self._base}/{name}")
            card = None if node is None else _read_card(node.data.decode("utf-8", "replace"))
            if card is not None:
                found.append(card)
        return found


def make_cluster(broker: str, store: Store, settings: LeaderSettings) -> Cluster:
    """Makes the membership: in ZooKeeper where it is set, else in the store. Raises ConfigError."""
    if not settings.zookeeper:
        return Seats(broker, store)
    try:
        from ignis.leader.zookeeper_session import Session
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"leader.zookeeper needs a package ({exc.name} is missing): pip install 'ignis-mq[zookeeper]'"
        ) from exc
    return ZooKeeperNodes(broker, Session(settings), store.client_id, store.farm_id)
