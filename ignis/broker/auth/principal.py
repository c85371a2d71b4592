"""Says who may do what: the interface between a broker's connections and whatever knows the users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["AllowAll", "Anyone", "Authenticator", "Credentials", "Principal"]


@dataclass(frozen=True)
class Credentials:
    """What a client said in CONNECT, and what its connection shows. Never logged: `repr` hides the secrets.

    ``certificate`` is the subject's common name of a verified client certificate; empty without mutual TLS. ``peer``: address and
    port, for logs. ``network``: what the connection is counted under, see `ignis.places`; empty = by the peer's address.
    """

    token: str = ""
    user: str = ""
    password: str = ""
    certificate: str = ""
    peer: str = ""
    network: str = ""

    @property
    def by_password(self) -> bool:
        """Whether a password is what has to be checked: a token goes before it."""
        return not self.token and bool(self.user or self.password)

    def __repr__(self) -> str:
        return f"<Credentials user={self.user!r} certificate={self.certificate!r} peer={self.peer!r}>"


class Principal(Protocol):
    """Somebody whose name is known. Thread-safe."""

    @property
    def name(self) -> str: ...

    def allows(self, command: str, queue: str) -> bool:
        """Whether ``command`` (its name on the wire, e.g. ``SEND``) is allowed on ``queue``; ``""`` = on no queue in
        particular. A sideline counts as its queue. Called for every request: quick, and never blocks."""
        ...

    def allows_some(self, command: str) -> bool:
        """Whether ``command`` is allowed on any queue at all, or on none in particular. Quick, and never blocks."""
        ...


class Authenticator(Protocol):
    """Finds out who a client is. Thread-safe; `authenticate` may block, for it runs off the event loop."""

    @property
    def open(self) -> bool:
        """True when it lets everybody in: a broker with such a one binds only to loopback addresses."""
        ...

    def authenticate(self, credentials: Credentials) -> Principal:
        """Returns who the client is. Raises UnauthenticatedError, always with the same text: it does not say what was wrong."""
        ...


class Anyone:
    """Everybody, with every permission."""

    name = "anyone"

    def allows(self, command: str, queue: str) -> bool:
        return True

    def allows_some(self, command: str) -> bool:
        return True


class AllowAll:
    """Lets everybody in, and everybody may do everything: for loopback."""

    open = True

    def authenticate(self, credentials: Credentials) -> Principal:
        return Anyone()
