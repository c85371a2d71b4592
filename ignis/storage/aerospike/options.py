"""Settings of the Aerospike store: how it is reached, how long to wait, how often to try."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ignis.config import check_text, number_text, parse_number, shown
from ignis.errors import ConfigError
from ignis.storage.aerospike.wake_words import AUTO
from ignis.storage.checks import checked_options
from ignis.urls import is_host, shown_host

__all__ = ["AerospikeOptions", "parse_hosts"]

DEFAULT_PORT = 3000

_RANGES: dict[str, tuple[float, float]] = {
    "retries": (1, 100),
    "sleep_between_retries_ms": (0, 60_000),
    "socket_timeout_ms": (1, 600_000),
    "total_timeout_ms": (1, 600_000),
    "max_connections_per_node": (1, 10_000),
    "thread_pool_size": (0, 1_024),
    "hole_grace_s": (0, 3_600),
    "settle_s": (1, 300),
    "batch_records": (1, 100_000),
}
_CHOICES: dict[str, tuple[str, ...]] = {"scope": ("local", "global"), "tls": ("auto", "on", "off")}


@dataclass(frozen=True)
class AerospikeOptions:
    """Options of one opened Aerospike store.

    Attributes:
        retries: attempts of one call, the first included, before its error is raised.
        sleep_between_retries_ms: fixed wait between two attempts.
        socket_timeout_ms: longest silence of a connection within one attempt.
        total_timeout_ms: longest time of one attempt.
        max_connections_per_node: connections that the client keeps to one node; one is in use by each call in flight.
        thread_pool_size: threads of the client for calls that reach several nodes; 0 = four for each core.
        user, password: of a server with security; the password is never shown.
        tls: ``auto`` uses TLS when a user or one of the files below is given.
        tls_name: the name in the server's certificate.
        tls_cafile, tls_certfile, tls_keyfile: PEM files: whom to trust, and who we are.
        scope: ``local`` gives each farm its own data sets, as Magazine 1.0 does; ``global`` shares them between the farms of
            a client, which Magazine 1.0 refuses.
        hole_grace_s: how long a claimed pointer without a record is looked at again before it is sealed, seconds; where Java
            loads nothing is sealed, and it is looked at less often from then on.
        settle_s: a producer that took longer than half of this between reserving a pointer and writing its record looks
            whether the pointer still counts; the low-water mark passes missing records only after all of it, seconds.
        batch_records: most records in one client call.
        wake_dir: absolute path of a directory in which the processes of one user on one machine share words that wake a
            consumer after a load; ``auto`` is ``/dev/shm/ignis-wake-<user id>``, empty is off.
    """

    retries: int = 3
    sleep_between_retries_ms: int = 100
    socket_timeout_ms: int = 3_000
    total_timeout_ms: int = 5_000
    max_connections_per_node: int = 100
    thread_pool_size: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: str = "auto"
    tls_name: str = ""
    tls_cafile: str = ""
    tls_certfile: str = ""
    tls_keyfile: str = ""
    scope: str = "local"
    hole_grace_s: float = 5.0
    settle_s: float = 60.0
    batch_records: int = 5_000
    wake_dir: str = AUTO

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> AerospikeOptions:
        """Checked options from names and values (text allowed). Raises ConfigError naming the option."""
        made = cls(**checked_options(cls, given, _parsed))
        if made.socket_timeout_ms > made.total_timeout_ms:
            raise ConfigError(
                f"store option socket_timeout_ms = {made.socket_timeout_ms} is above total_timeout_ms = {made.total_timeout_ms}"
            )
        if bool(made.user) != bool(made.password):
            raise ConfigError("store options user and password belong together; one of them is missing")
        if made.wake_dir not in ("", AUTO) and not os.path.isabs(made.wake_dir):
            raise ConfigError(
                f"store option wake_dir = {shown(made.wake_dir)} is neither an absolute path nor auto; empty is off"
            )
        return made

    @property
    def uses_tls(self) -> bool:
        """Credentials alone turn TLS on, as in the Java client of these queues."""
        if self.tls != "auto":
            return self.tls == "on"
        return bool(self.user or self.tls_name or self.tls_cafile or self.tls_certfile or self.tls_keyfile)

    @property
    def threads(self) -> int:
        return self.thread_pool_size or 4 * (os.cpu_count() or 1)


def _parsed(name: str, value: Any, kind: type) -> Any:
    if kind is str:
        text = check_text(value, f"store option {name}", secret=True)
        if name in _CHOICES and text not in _CHOICES[name]:
            raise ConfigError(f"store option {name} = {shown(text)} is not one of {', '.join(_CHOICES[name])}")
        return text
    parsed = parse_number(value, f"store option {name}", kind)
    low, high = _RANGES[name]
    if not low <= parsed <= high:
        raise ConfigError(f"store option {name} = {shown(value)} is outside {number_text(low)} to {number_text(high)}")
    return parsed


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """``"a:3000,b,[::1]:3100"`` as addresses; the port may be left out. Raises ConfigError."""
    hosts = []
    for one in text.split(","):
        host, port = one, str(DEFAULT_PORT)
        if one.startswith("["):
            host, _, rest = one[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif ":" in one:
            host, _, port = one.rpartition(":")
        if not is_host(host) or not port.isdecimal() or not 1 <= int(port) <= 65_535:
            # Not all of it: where the host was forgotten a password stands there.
            raise ConfigError(f"host {shown_host(one)!r} is not host:port with a port of 1 to 65535")
        hosts.append((host, int(port)))
    return hosts
