"""Proves who connects, by a file of users with passwords, tokens or client certificates.

Every refusal is the same error with the same text, and an unknown user costs the same work as a wrong password, so that
neither tells which names exist. Nothing here logs a secret.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable

from ignis.broker.auth.passwords import hash_password, split_token, token_matches, verify_password
from ignis.broker.auth.permissions import Permissions
from ignis.broker.auth.principal import Credentials
from ignis.broker.auth.throttle import Throttle
from ignis.broker.auth.users_file import User, Users, load_users
from ignis.broker.repeated_log import RepeatedLog
from ignis.errors import ConfigError, TooManyRequestsError, UnauthenticatedError
from ignis.log_format import event_text
from ignis.places import network_of

__all__ = ["KnownUser", "UsersFile"]

log = logging.getLogger("ignis.broker")

_LOOK_AGAIN_S = 1.0
_FREE_FAILURES = 10
_FREE_WHEN_SUSPECT = 1
_SUSPECT_FAILURES = 50
_NAMES_SHOWN = 5
_NAME_SHOWN = 64
"""Characters of a name in the log."""
_MOST_NAME = 129
"""The longest name that is remembered for its failures; no user's is as long."""
_REFUSED = "unknown user, or wrong password, token or certificate"
_NO_DIGEST = "0" * 64


class KnownUser:
    """Says what a user may do who proved who they are: one for all connections of the user.

    A change of the users file counts from the next connection on."""

    def __init__(self, user: User) -> None:
        self.name = user.name
        self.entry = user
        self._permissions = Permissions(user.allow)

    def allows(self, command: str, queue: str) -> bool:
        """Whether a rule of the user allows the command on the queue."""
        return self._permissions.allows(command, queue)

    def allows_some(self, command: str) -> bool:
        """Whether a rule of the user allows the command on any queue at all, or on none in particular."""
        return self._permissions.allows_some(command)

    def __repr__(self) -> str:
        return f"<KnownUser {self.name}>"


class UsersFile:
    """Proves who a client is by a users file, which is read again when it has changed (looked at once a second).

    Thread-safe. `authenticate` of a password may take some 60 ms of another core and 32 MiB: not for an event loop's thread,
    and not for any number of threads, see `ignis.broker.auth.logins`.

    Args:
        path: of the file made by ``ignis broker user``.
        clock: seconds, for the limits on failures; injectable for tests.

    Raises:
        ConfigError: the file cannot be read, see `load_users`. Later on such a file is logged, and the last good one holds.
    """

    open = False

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._throttled = RepeatedLog(log, logging.WARNING, clock)
        self._denied = RepeatedLog(log, logging.WARNING, clock)
        self._guesses = Throttle(_FREE_FAILURES, clock=clock)
        """Counts by address and name, so that nobody's wrong guesses keep out another user, nor the same one elsewhere."""
        self._suspect = Throttle(_SUSPECT_FAILURES, clock=clock)
        """Counts by address, and by name: of one with many failures each pair has few that are free."""
        self._nobody = hash_password("nobody has this password")
        self._users: dict[str, User] = {}
        self._known: dict[str, KnownUser] = {}
        self._by_token: dict[str, tuple[User, str]] = {}
        self._certificates: bool | None = None
        self._seen = self._stamp()
        self._take(load_users(path))
        self._next_look = clock() + _LOOK_AGAIN_S

    def authenticate(self, credentials: Credentials) -> KnownUser:
        """Returns the user whom the token, else the name and password, else the client certificate proves.

        Raises:
            UnauthenticatedError: refused. TooManyRequestsError: too many failures of this name from this address; a password
            was not checked. Tokens and certificates always are: nobody guesses them, and it costs nothing.
        """
        self._refresh()
        where = credentials.network or network_of((_host(credentials.peer),))
        name = credentials.user[:_MOST_NAME] if credentials.by_password else ""
        key, who = (where, name), _tried(credentials)
        user = None if credentials.by_password else self._proved(credentials)
        if user is None:
            wait_s = self._guesses.wait_s(key)
            if wait_s > 0:
                more_s = math.ceil(wait_s)  # never 0: it is refused now
                self._throttled("login of %s from %s refused for %d s more: too many failures", who, where, more_s)
                free = _FREE_WHEN_SUSPECT if self._is_suspect(where, name) else _FREE_FAILURES
                failures = max(self._guesses.failures(key), free + 1)  # it may be forgotten by now
                exc = TooManyRequestsError(failures, free, f"failed logins; try again in {more_s} s")
                exc.retry_after_s = more_s
                raise exc
            if credentials.by_password:
                user = self._proved(credentials)
        if user is None:
            self._failed(where, name)
            self._denied("login of %s from %s refused", who, where)
            raise UnauthenticatedError(_REFUSED)
        self._guesses.succeeded(key)
        return self._known_as(user)

    def find(self, name: str) -> tuple[User, KnownUser] | None:
        """Returns the user of that name as the file has it now; None when there is none. Proves nothing: for whoever has proved
        before who they are, and asks again whether that still holds."""
        self._refresh()
        user = self._users.get(name)
        return None if user is None else (user, self._known_as(user))

    def _known_as(self, user: User) -> KnownUser:
        known = self._known.get(user.name)
        if known is not None and known.entry is user:
            return known
        return KnownUser(user)  # the file was read again meanwhile

    def _failed(self, where: str, name: str) -> None:
        """Counts a failure. What is suspect is not forgotten at a success: who has a password of his own could guess those of
        others for ever."""
        self._guesses.failed((where, name), _FREE_WHEN_SUSPECT if self._is_suspect(where, name) else None)
        for one in _suspects(where, name):
            self._suspect.failed(one)

    def _is_suspect(self, where: str, name: str) -> bool:
        return any(self._suspect.failures(one) >= _SUSPECT_FAILURES for one in _suspects(where, name))

    def _proved(self, credentials: Credentials) -> User | None:
        if credentials.token:
            return self._by_its_token(credentials.token)
        if credentials.by_password:
            return self._by_its_password(credentials.user, credentials.password)
        user = self._users.get(credentials.certificate) if credentials.certificate else None
        return user if user is not None and user.certificate else None

    def _by_its_token(self, token: str) -> User | None:
        parts = split_token(token)
        if parts is None:
            return None
        user, digest = self._by_token.get(parts[0], (None, _NO_DIGEST))
        return user if token_matches(parts[1], digest) else None

    def _by_its_password(self, name: str, password: str) -> User | None:
        user = self._users.get(name)
        kept = user.password if user is not None and user.password else self._nobody
        right = verify_password(password, kept)
        return user if right and kept is not self._nobody else None

    # -- the file

    def certificates_checked(self, checked: bool) -> None:
        """Takes in whether the broker asks its clients for certificates. If not, users who have nothing else are warned of, now
        and when the file is read again."""
        self._certificates = checked
        self._warn()

    def _warn(self) -> None:
        names = [user.name for user in self._users.values() if user.certificate]
        if names and self._certificates is False:
            shown = ", ".join(sorted(names)[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
            log.warning(
                event_text(
                    "client_certificates_not_asked",
                    "%d user(s) may connect with a client certificate (%s), but no client is asked for one: give the broker "
                "--tls-client-ca"), len(names), shown,
            )  # fmt: skip

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0, 0)
        return found.st_ino, found.st_ctime_ns, found.st_size  # of a change of owner or mode as well

    def _take(self, users: Users) -> None:
        self._by_token = {token.id: (user, token.digest) for user in users.users for token in user.tokens}
        self._known = {user.name: KnownUser(user) for user in users.users}
        self._users = {user.name: user for user in users.users}

    def _refresh(self) -> None:
        if self._clock() < self._next_look:
            return
        with self._lock:
            if self._clock() < self._next_look:
                return
            self._next_look = self._clock() + _LOOK_AGAIN_S
            stamp = self._stamp()
            if stamp == self._seen:
                return
            self._seen = stamp
            try:
                self._take(load_users(self._path))
            except ConfigError as exc:
                log.error(event_text("users_refused", "the users as they were before stay in force: %s"), exc)
            else:
                log.info(
                    event_text("users_read", "users file %s read again: %d user(s)"),
                    os.fspath(self._path),
                    len(self._users),
                )
                self._warn()


def _suspects(where: str, name: str) -> list[tuple[str, str]]:
    return [("address", where), *([("name", name)] if name else [])]


def _tried(credentials: Credentials) -> str:
    """Says for the log as whom a client wanted in. It chose the name, so that is escaped and cut."""
    if credentials.token:
        return "a token"
    if credentials.by_password:
        return f"user {_shown(credentials.user)}"
    return f"certificate {_shown(credentials.certificate)}" if credentials.certificate else "nobody"


def _shown(name: str) -> str:
    return f"{name[:_NAME_SHOWN]!a}{'...' if len(name) > _NAME_SHOWN else ''}"


def _host(peer: str) -> str:
    """Cuts off the port, which is another one with every connection."""
    host, _, port = peer.rpartition(":")
    return host if host and port.isdigit() else peer
