"""Says who asks, and refuses what a page of another site could have asked for. No I/O but that of the users file.

Three ways to be somebody. A program shows a token with each request (``Authorization: Bearer ign_…``). A person logs in and has
a session: its cookie, and its token in a header of each request, reading or changing. Whatever changes something then needs an
``Origin`` that is the console's own as well. Where there is no users file everybody is ``anyone``, who reads without more, and
needs a session to change things.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ignis.broker.auth.authenticator import UsersFile
from ignis.broker.auth.passwords import split_token
from ignis.broker.auth.principal import Credentials, Principal
from ignis.broker.auth.users_file import User
from ignis.config import shown
from ignis.console.refusals import RefusedError
from ignis.console.roles import NOBODY, NONE, READ, ROLES, Reader, may, roles_of
from ignis.console.sessions import Session, Sessions
from ignis.errors import ConfigError, PermissionDeniedError, UnauthenticatedError
from ignis.http_endpoint import names_this_machine
from ignis.places import network_of

__all__ = ["COOKIE", "CSRF_HEADER", "Access", "Asked", "Visitor", "cookie_in", "cookie_name"]

COOKIE = "ignis_console"
"""How the name of the cookie begins; behind it is the port."""
CSRF_HEADER = "x-csrf-token"
_BEARER = "bearer "
_AUTHENTICATE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class Asked:
    """What of a request says who asks. Header names are in small letters."""

    headers: Mapping[str, str]
    cookie: str
    scheme: str
    address: tuple[str, int] | None

    @property
    def network(self) -> str:
        """What failed logins are counted under."""
        return network_of(self.address)

    @property
    def csrf(self) -> str:
        """The token of the session."""
        return self.headers.get(CSRF_HEADER, "")


@dataclass(frozen=True)
class Visitor:
    """Who asks. ``via``: ``token``, ``session``, ``anyone`` (no users file, no session) or ``nobody``."""

    principal: Principal
    via: str
    session: Session | None = None

    @property
    def name(self) -> str:
        """The user's; ``anyone`` where there is no users file, and empty for nobody."""
        return self.principal.name

    @property
    def known(self) -> bool:
        """Whether it has a name: by a token, or by a session of a user."""
        return self.via in ("token", "session")

    def require(self, needs: str, queue: str | None) -> None:
        """Raises UnauthenticatedError for nobody, PermissionDeniedError for somebody who may not."""
        if needs == NONE:
            return
        if self.via == "nobody":
            text = (
                f"log in, or send a token; a session also needs the header {CSRF_HEADER} with what its login answered"
            )
            raise RefusedError("unauthenticated", text, _AUTHENTICATE)
        if not may(self.principal, needs, queue):
            raise PermissionDeniedError(needs, queue or "")

    def may(self, needs: str, queue: str | None) -> bool:
        """Whether it is allowed."""
        return self.via != "nobody" and may(self.principal, needs, queue)

    def roles(self, queue: str | None) -> list[str]:
        """Its roles for a queue; None: for any at all."""
        return [] if self.via == "nobody" else roles_of(self.principal, queue)


class Access:
    """Knows the users and their sessions. Thread-safe.

    Args:
        users: None = there are none: everybody is ``anyone``.
        anyone: the role of everybody, where there are no users.
        sessions: keeps the logins.
        origins: further origins that are the console's own, such as that of a proxy before it.
        host_checked: whether requests must be for a name of this machine, because only this machine reaches the console.
    """

    def __init__(
        self,
        users: UsersFile | None,
        anyone: str,
        sessions: Sessions,
        *,
        origins: Collection[str] = (),
        host_checked: bool = True,
    ) -> None:
        if anyone not in ROLES:
            raise ConfigError(f"anyone = {anyone!r} is not one of {', '.join(ROLES)}")
        if users is not None and anyone != READ:
            raise ConfigError("anyone is for a console without users: the users file says who may do what")
        self._users = users
        self._anyone = Reader(anyone)
        self._origins = frozenset(_origin(one) for one in origins)
        self._hosts = frozenset(urlsplit(one).netloc for one in self._origins)
        self._host_checked = host_checked
        self.sessions = sessions

    @property
    def open(self) -> bool:
        """Whether everybody may read."""
        return self._users is None

    @property
    def powerful(self) -> bool:
        """Whether everybody may change everything."""
        return self._users is None and self._anyone.allows_some("CREATE_QUEUE")

    def check_host(self, asked: Asked) -> None:
        """Raises RefusedError for a request that is meant for another host: a name that leads here (DNS rebinding)."""
        host = asked.headers.get("host", "")
        if self._host_checked and host.lower() not in self._hosts and not names_this_machine(host, "localhost"):
            raise RefusedError(
                "misdirected", "the request's Host is not a name of this machine: ask for localhost, 127.0.0.1 or [::1]"
            )

    def visitor(self, asked: Asked) -> Visitor:
        """Who asks. Raises UnauthenticatedError for a wrong token, TooManyRequestsError after too many of them. An unknown or
        ended session is nobody's, and so is one whose token is not shown."""
        given = asked.headers.get("authorization")
        if given is not None:
            return Visitor(self._by_token(given, asked), "token")
        session = self.sessions.find(asked.cookie, asked.csrf) if asked.cookie else None
        if session is not None:
            principal = self._still(session)
            if principal is not None:
                return Visitor(principal, "session", session)
            self.sessions.end(asked.cookie)
        return Visitor(self._anyone, "anyone") if self._users is None else Visitor(NOBODY, "nobody")

    def _by_token(self, given: str, asked: Asked) -> Principal:
        if self._users is None or given[: len(_BEARER)].lower() != _BEARER:
            raise RefusedError("unauthenticated", "only Authorization: Bearer with a token of the users file is known")
        try:
            return self._users.authenticate(
                Credentials(token=given[len(_BEARER) :].strip() or "-", network=asked.network)
            )
        except UnauthenticatedError as exc:
            raise RefusedError("unauthenticated", str(exc), _AUTHENTICATE) from None

    def _still(self, session: Session) -> Principal | None:
        """Who a session is of, by the users file as it is now."""
        if self._users is None:
            return self._anyone
        found = self._users.find(session.user)
        return found[1] if found is not None and session.credential in _credentials(found[0]) else None

    def check_change(self, visitor: Visitor, asked: Asked) -> None:
        """Raises RefusedError for a change that the page of another site may have asked for."""
        if visitor.via == "token":
            return
        if visitor.session is None:
            text = f"to change something begin a session and show its csrf token in the header {CSRF_HEADER}, or send a token"
            raise RefusedError("unauthenticated", text, _AUTHENTICATE)
        self.check_origin(asked, missing=False)

    def check_origin(self, asked: Asked, *, missing: bool) -> None:
        """Raises RefusedError for another origin than the console's own. ``missing``: whether none at all is right."""
        given = asked.headers.get("origin")
        if given is None and missing:
            return
        own = f"{asked.scheme}://{asked.headers.get('host', '')}".lower()
        if given is None or given.lower() not in (own, *self._origins):
            raise RefusedError("origin", "the request's Origin is not that of this console")

    def log_in(self, asked: Asked, user: str, password: str, token: str) -> tuple[str, Session, Principal]:
        """Begins a session; returns its cookie. Takes some 60 ms for a password. Raises UnauthenticatedError,
        TooManyRequestsError."""
        if self._users is None:
            if user or password or token:
                raise RefusedError("unauthenticated", "this console has no users file: nobody can log in")
            return *self.sessions.begin(self._anyone.name, ""), self._anyone
        try:
            known = self._users.authenticate(
                Credentials(token=token, user=user, password=password, network=asked.network)
            )
        except UnauthenticatedError as exc:
            raise RefusedError("unauthenticated", str(exc)) from None
        found = self._users.find(known.name)
        credential = "" if found is None else _shown_credential(found[0], token)
        if not credential:  # removed at this very moment
            raise RefusedError("unauthenticated", "the user was removed")
        return *self.sessions.begin(known.name, credential), known


def cookie_name(headers: Mapping[str, str], scheme: str, secure: bool) -> str:
    """What the session's cookie is called at a request. With the port, as the browser has it: cookies know none, and another
    console of the same host must not replace this one's. By TLS with a prefix, by which no page without TLS can set it."""
    try:
        port = urlsplit(f"//{headers.get('host', '')}").port
    except ValueError:
        port = None
    return f"{'__Host-' if secure else ''}{COOKIE}_{port or (443 if scheme == 'https' else 80)}"


def cookie_in(headers: Mapping[str, str], name: str) -> str:
    """The value of a cookie; empty: there is none. Whoever asks may send thousands: they are not made into a dictionary."""
    found = re.search(rf"(?:^|;)[ \t]*{re.escape(name)}=([^;\s]*)", headers.get("cookie", ""))
    return found[1] if found else ""


def _credentials(user: User) -> list[str]:
    """What a session may have begun with that the users file still has."""
    return [*([user.password] if user.password else []), *(token.digest for token in user.tokens)]


def _shown_credential(user: User, token: str) -> str:
    if not token:
        return user.password
    parts = split_token(token)
    return next((one.digest for one in user.tokens if parts is not None and one.id == parts[0]), "")


def _origin(text: str) -> str:
    """Raises ConfigError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"origin {shown(text)} is not of the form https://host or https://host:port")
    return f"{parts.scheme}://{parts.netloc}".lower()
