"""Where a broker may listen."""

from __future__ import annotations

import ipaddress
import ssl

from ignis.broker.auth.principal import Authenticator
from ignis.config import shown
from ignis.errors import ConfigError

__all__ = ["address_of", "check_bind", "is_loopback"]


def address_of(bind: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, or ``:PORT`` for loopback. Raises ConfigError for anything else."""
    host, separator, port = bind.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"bind = {shown(bind)} is not HOST:PORT with a port of 0 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_bind(host: str, authenticator: Authenticator, tls: ssl.SSLContext | None) -> None:
    """Raises ConfigError for an address that others than this machine can reach, unless users and TLS protect it."""
    if is_loopback(host):
        return
    missing = [
        what for what, there in (("authentication", not authenticator.open), ("TLS", tls is not None)) if not there
    ]
    if missing:
        raise ConfigError(
            f"bind = {shown(host)} can be reached from elsewhere, and there is no {' and no '.join(missing)}; "
            "give users (--users) and a certificate (--tls-cert, --tls-key), bind to 127.0.0.1, or allow it (--open)"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
