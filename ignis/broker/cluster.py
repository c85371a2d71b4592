"""The brokers in front of one store. Each holds a numbered seat, a lock of the store that ends by itself when its
broker dies; who sits where is the list of members. So nothing but the store has to be shared, and no two brokers
have to know each other.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ignis.errors import IgnisError

if TYPE_CHECKING:
    from ignis.broker.application import Application
    from ignis.broker.server import Broker

__all__ = ["Cluster"]

log = logging.getLogger("ignis.broker")

SEATS = 64
TTL_S = 15.0
_RENEW_S = 5.0
_EMPTY_SEATS = 4


class Cluster:
    """One broker's membership. Thread-safe; `join` starts a thread that renews the seat.

    Args:
        broker: whose.
        application: in whose locks the seats are.
    """

    def __init__(self, broker: Broker, application: Application) -> None:
        self._broker = broker
        self._application = application
        self._seat: int | None = None
        self._owner = json.dumps({"broker": broker.id, "since_s": int(time.time())}, separators=(",", ":"))
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def _name(self, seat: int) -> str:
        return f"broker-seat-{seat}"

    def join(self) -> None:
        """Takes a seat. A store that has none left, or no locks, is no reason not to serve."""
        address = f"{self._broker.host}:{self._broker.port}"
        self._owner = json.dumps(
            {"broker": self._broker.id, "address": address, "since_s": int(time.time())}, separators=(",", ":")
        )
        self._sit()
        self._thread = threading.Thread(target=self._renew, name="ignis-broker-cluster", daemon=True)
        self._thread.start()

    def _sit(self) -> None:
        locks = self._application.store.locks
        try:
            for seat in range(SEATS):
                if locks.acquire(self._name(seat), self._owner, TTL_S) is not None:
                    self._seat = seat
                    return
        except IgnisError as exc:
            log.warning("broker %s cannot register in the store: %s", self._broker.id, exc)
            return
        log.warning("all %d seats for brokers of this store are taken", SEATS)

    def _renew(self) -> None:
        locks = self._application.store.locks
        while not self._ended.wait(_RENEW_S):
            try:
                if self._seat is None or locks.renew(self._name(self._seat), self._owner, TTL_S) is None:
                    self._seat = None
                    self._sit()
            except IgnisError as exc:
                log.warning("broker %s cannot renew its seat: %s", self._broker.id, exc)

    def leave(self) -> None:
        """Gives the seat up. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(10)
        if self._seat is not None:
            try:
                self._application.store.locks.release(self._name(self._seat), self._owner)
            except IgnisError as exc:
                log.info("broker %s leaves its seat to time: %s", self._broker.id, exc)
            self._seat = None

    def members(self) -> list[dict[str, Any]]:
        """The brokers that are alive, this one included, as far as the store knows: a dead one is listed for 15 s at
        most."""
        locks = self._application.store.locks
        found: list[dict[str, Any]] = []
        empty = 0
        for seat in range(SEATS):
            record = locks.get(self._name(seat))
            if record is None:
                empty += 1
                if empty >= _EMPTY_SEATS and seat > (self._seat or 0):
                    break
                continue
            empty = 0
            try:
                found.append({**json.loads(record.owner), "seat": seat})
            except ValueError:
                log.warning("seat %d is held by something that is no broker: %r", seat, record.owner)
        return found
