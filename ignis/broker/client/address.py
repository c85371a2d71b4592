"""Where a broker is, and who wants in."""

from __future__ import annotations

import socket
import ssl
from typing import NamedTuple

from ignis._version import __version__
from ignis.broker.protocol.commands import DEFAULT_PORT
from ignis.broker.protocol.payloads import Connect
from ignis.errors import UnauthenticatedError
from ignis.storage.process_identity import this_process

__all__ = ["BrokerAddress", "refusal_of"]


def refusal_of(head: Connect, error: Exception) -> Exception:
    """The error of a CONNECT. A broker says the same to everybody whom it does not know; who gave nothing is told that here."""
    if isinstance(error, UnauthenticatedError) and not (head.token or head.user or head.password):
        return UnauthenticatedError(
            "the broker asks for a user, and no token, user or password was given (ignis://user:password@host:port, or "
            "IGNIS_TOKEN), nor a client certificate that it knows"
        )
    return error


class BrokerAddress(NamedTuple):
    """Where a broker is, and who wants in."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    client_id: str = "ignis"
    farm_id: str = "local"
    token: str = ""
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        """What the texts of errors call it."""
        return f"broker {self.host}:{self.port}"

    def hello(self, instance: str) -> Connect:
        """CONNECT for it."""
        return Connect(
            self.client_id,
            self.farm_id,
            instance,
            self.token,
            self.user,
            self.password,
            f"ignis-python/{__version__}",
            (socket.gethostname(), *this_process()),
        )

    def __repr__(self) -> str:
        return f"<BrokerAddress {self.host}:{self.port} {self.farm_id}/{self.client_id} user={self.user!r}>"
