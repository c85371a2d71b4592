"""Opens ``ignis://``: a broker as the store of an application. Every call of the storage contract is a request to it."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

from ignis.broker.auth.principal import Anyone
from ignis.broker.auth.tls import client_context
from ignis.broker.client import later_requests, requests, store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.store_calls import StoreCalls
from ignis.broker.client.store_control import BrokerArrays, BrokerLocks, BrokerQueues
from ignis.broker.client.store_magazines import BrokerMagazines
from ignis.broker.protocol.commands import DEFAULT_PORT
from ignis.config import ClientSettings, resolve
from ignis.errors import ConfigError, PermissionDeniedError
from ignis.log_format import event_text
from ignis.storage.base import Store
from ignis.storage.checks import check_option_name, check_queue
from ignis.urls import is_host, redacted

__all__ = ["BrokerStore", "open_store"]

log = logging.getLogger("ignis.broker")

_SETTINGS = frozenset(one.name for one in dataclasses.fields(ClientSettings))
_OPTIONS = _SETTINGS | {"ca", "cert", "key", "token", "user", "password"}


def open_store(parts: SplitResult, client_id: str, farm_id: str, options: Mapping[str, Any]) -> BrokerStore:
    """Opens ``ignis://host:port`` or ``ignis+tls://host:port``; options: those of ``[client]``, ``token``, ``user``,
    ``password``, and for TLS ``ca``, ``cert`` and ``key`` (paths of PEM files). A user and password may stand in the
    URL.

    Raises ConfigError, StoreUnreachableError, UnauthenticatedError.
    """
    given: dict[str, Any] = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    given.pop("create", None)
    for name in given:
        check_option_name(name, _OPTIONS if f"{name}_s" not in _SETTINGS else {name})
    files: dict[str, str] = {name: str(given.pop(name)) for name in ("ca", "cert", "key") if name in given}
    try:
        host, port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORT
    except ValueError:  # which would show what stands there
        raise ConfigError(
            f"broker URL {redacted(parts.geturl())!r}: its port is no number of 1 to 65535; write ignis://user:password@host:port"
        ) from None
    if not is_host(host):
        raise ConfigError(
            f"broker URL {redacted(parts.geturl())!r}: its host is neither a name nor an address; write ignis://host:port?name=value"
        )
    address = BrokerAddress(
        host,
        port,
        client_id,
        farm_id,
        str(given.pop("token", "")) or os.environ.get("IGNIS_TOKEN", ""),
        str(given.pop("user", unquote(parts.username or ""))),
        str(given.pop("password", unquote(parts.password or ""))),
        client_context(files.get("ca"), certificate=files.get("cert"), key=files.get("key"))
        if parts.scheme.endswith("+tls")
        else None,
    )
    if parts.path.strip("/"):
        # Not the path itself: where the URL is misspelt, a password may be part of it.
        raise ConfigError(f"broker URL {redacted(parts.geturl())!r} has a path; write ignis://host:port")
    if files and address.tls is None:
        raise ConfigError(f"option {min(files)} is for TLS: write ignis+tls://host:port, or leave it out")
    return BrokerStore(address, resolve(ClientSettings, given))


class BrokerStore(Store):
    """A store over one connection to a broker. Thread-safe; not usable in a child after ``fork``.

    What this store claimed stays its own over a new connection, and over a new broker, as long as it is back soon (see
    ``broker.redeliver_after_s``); if not, it is delivered to others. `close` leaves it claimed, as other stores do.

    Args:
        address: where the broker is, and who wants in.
        settings: of ``[client]``.

    Raises:
        StoreUnreachableError, UnauthenticatedError.
    """

    def __init__(self, address: BrokerAddress, settings: ClientSettings) -> None:
        self.url = f"ignis{'+tls' if address.tls else ''}://{address.host}:{address.port}"
        self.client_id = address.client_id
        self.farm_id = address.farm_id
        self.calls = StoreCalls(address, settings, f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")
        self.client = self.calls.client
        self.magazines = BrokerMagazines(self.calls)
        self.queues = BrokerQueues(self.calls)
        self.locks = BrokerLocks(self.calls)
        self.arrays = BrokerArrays(self.calls)
        broker = self.client.connect(settings.connect_timeout_s).machine.broker
        if broker is not None and broker.owner:
            self.calls.owner = broker.owner  # the same at every broker: it is made of who this client is
        if broker is not None and broker.principal == Anyone.name and (address.user or address.token):
            log.warning(
                event_text("credentials_ignored", "%s has no users: it let this client in without a look at its %s"),
                address.name, "token" if address.token else "user and password",
            )  # fmt: skip

    @property
    def message_expiry_s(self) -> int:  # type: ignore[override]
        """What the store behind the broker has; the broker says it when the connection is made."""
        broker = self.calls.broker
        return 0 if broker is None else broker.message_expiry_s

    asks_clock = True

    def now_s(self) -> float:
        """By the clock of the store behind the broker, which is asked: at some moment between this call and its return. A store
        that keeps no delayed messages is not: there it is this machine's wall clock."""
        return self.calls.ask(later_requests.clock()) / 1e6 if self.magazines.keeps_later else super().now_s()

    @property
    def owner(self) -> str:
        return self.calls.owner

    @property
    def local_dir(self) -> str | None:
        return None

    def remove_queue(self, name: str, *, force: bool = False) -> bool:
        """Removes the queue in one request: the broker does it."""
        return self.calls.ask(requests.delete_queue(check_queue(name), force))

    def stats(self) -> dict[str, int | float | str]:
        """Figures of the broker's store, for this application, and of this connection: of that alone for users who may not
        see the store's, such as workers with ``work:orders``, whose metrics need the rest."""
        try:
            figures = self.calls.ask(store_requests.stats())
        except PermissionDeniedError:
            figures = {}
        return {**figures, "broker": self.url, **self.process_stats()}

    def process_stats(self) -> dict[str, int | float]:
        client = self.client
        return {
            "broker_connects": client.connects,
            "broker_pending": client.pending,
            "broker_late_answers": client.late_answers,
        }

    def wait_no_longer(self, within_s: float | None) -> None:
        self.client.until_s = math.inf if within_s is None else time.monotonic() + within_s

    def close(self, timeout: float = 30.0) -> None:
        if not self.client.forked:  # else it is the parent's
            self.calls.close(timeout)
