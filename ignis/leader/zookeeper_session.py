"""One session with ZooKeeper: the only file that imports the driver.

Connects in the background and goes on trying for ever. Every call has a bound; what cannot be done now raises
CoordinatorUnreachableError, what is refused CoordinatorError. All nodes made here end with the session, except those on
the way to them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.security import ANYONE_ID_UNSAFE, Permissions, make_digest_acl

from ignis.config import LeaderSettings, check_file
from ignis.errors import CoordinatorError, CoordinatorUnreachableError
from ignis.hooks import call_user_code
from ignis.leader.address import Address
from ignis.log_format import event_text
from ignis.stacks import start_thread

__all__ = ["Node", "Session"]

log = logging.getLogger("ignis.leader")

Poke = Callable[..., None]

_AWAY = (
    ConnectionClosedError, ConnectionLoss, KazooTimeoutError, OperationTimeoutError, SessionExpiredError,
    SessionMovedError,
)  # fmt: skip
_LONGEST_PAUSE_S = 1.0
_MOST_REMADE = 3
"""How often the nodes above one are made again, while somebody deletes them."""
_CLOSE_S = 5.0
_CLOSE_AWAY_S = 1.0


class Node(NamedTuple):
    """A node: what it holds, the transaction that made it, when that was, and whether this session did; ``lasting``:
    it ends with no session."""

    data: bytes
    czxid: int
    created_at_ms: int
    mine: bool
    lasting: bool


class Session:
    """Thread-safe. Not usable in a child after ``fork``.

    Args:
        settings: where, as whom, and how long a silence may last.
    """

    def __init__(self, settings: LeaderSettings) -> None:
        self.address = Address.of(settings)
        self.timeout_s = settings.session_timeout_s
        self._ids = {ANYONE_ID_UNSAFE}
        if self.address.user:
            mine = make_digest_acl(self.address.user, self.address.password).id
            # The second is what a server shows of the digest to who may not change permissions.
            self._ids |= {mine, mine._replace(id=f"{self.address.user}:x")}
        self._lock = threading.Lock()
        self._listeners: list[Callable[[bool], None]] = []
        self._pid = os.getpid()
        self._started = False
        self._closed = False
        self._log = _Quiet(logging.getLogger("ignis.leader.zookeeper"), {})
        self._client = _client(settings, self.address, self._log)
        self._client.add_listener(self._on_state)
        self.since_s = time.time()
        """When the session was last lost or found, in seconds since 1970."""

    # -- life

    def start(self) -> None:
        """Begins to connect. Returns at once. Idempotent."""
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True
            self._client.start_async()

    def close(self) -> None:
        """Ends the session, and with it its nodes. Bounded: a server that does not answer lets it run out. In a child after
        ``fork`` nothing happens: the session is the parent's."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            started = self._started
        if started:
            # The driver waits for its threads, for as long as an address takes to refuse.
            ending = threading.Thread(target=self._end, name="ignis-zookeeper-end", daemon=True)
            start_thread(ending)
            ending.join(_CLOSE_S if self._client.connected else _CLOSE_AWAY_S)

    def _end(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError) as exc:
            log.debug(event_text("zookeeper_session_closing", "closing the session with %r: %s"), self.address, exc)

    @property
    def connected(self) -> bool:
        """Whether a server answers and the session lives, as far as is known here."""
        return bool(self._client.connected) and not self._closed

    def absence(self) -> str:
        """Why it is not connected, for a message."""
        why = f" ({self._log.why})" if self._log.why else ""
        return f"{self.address!r} cannot be reached{why}"

    def wait_connected(self, timeout_s: float) -> bool:
        """`start`, then waits for a server."""
        self.start()
        deadline = time.monotonic() + timeout_s
        while not self.connected and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.connected

    def listen(self, call: Callable[[bool], None]) -> None:
        """``call(connected)`` at every change, from the driver's thread: it must return at once. The first False after a
        True means that the session may end."""
        with self._lock:
            self._listeners.append(call)

    def unlisten(self, call: Callable[[bool], None]) -> None:
        with self._lock:
            if call in self._listeners:
                self._listeners.remove(call)

    def _on_state(self, state: str) -> None:
        self.since_s = time.time()
        for call in list(self._listeners):
            call_user_code(
                log,
                event_text("zookeeper_listener_failed", "a listener of the ZooKeeper session failed"),
                call,
                state == KazooState.CONNECTED,
            )

    # -- nodes

    def get(self, path: str, watch: Poke | None = None) -> Node | None:
        """The node, or None when there is none; without data where we may not read it. ``watch`` is called once when it
        changes or ends."""
        try:
            found = self._ask(path, lambda client: client.get_async(self._full(path), watch=watch), NoNodeError)
        except CoordinatorError as exc:
            if isinstance(exc.__cause__, NoAuthError):
                return self.exists(path, watch)
            raise
        return None if found is None else self._node(*found)

    def exists(self, path: str, watch: Poke | None = None) -> Node | None:
        """As `get`, without the data; ``watch`` also when it comes into being."""
        stat = self._ask(path, lambda client: client.exists_async(self._full(path), watch=watch), NoNodeError)
        return None if stat is None else self._node(b"", stat)

    def children(self, path: str, watch: Poke | None = None) -> list[str]:
        """Names directly below a node; none when it is not there. ``watch`` only where it is."""
        found = self._ask(path, lambda client: client.get_children_async(self._full(path), watch=watch), NoNodeError)
        return list(found or ())

    def create(self, path: str, data: bytes, *, sequence: bool = False) -> bool:
        """Makes a node that ends with the session, and those above it; False when there is one of that name. ``sequence``
        appends a number that rises."""

        def make(client: Any) -> Any:
            return client.create_async(self._full(path), data, ephemeral=True, sequence=sequence, makepath=True)

        for _ in range(_MOST_REMADE):
            try:
                return self._ask(path, make, NodeExistsError) is not None
            except CoordinatorError as exc:
                # A node above was deleted again before the next one was there.
                if not isinstance(exc.__cause__, NoNodeError):
                    raise
        return self._ask(path, make, NodeExistsError) is not None

    def ensure(self, path: str) -> None:
        """Makes a node that stays, and those above it. Idempotent."""
        self._ask(path, lambda client: client.ensure_path_async(self._full(path)), NodeExistsError)

    def may_create_below(self, path: str) -> bool:
        """Whether this user may make nodes below the path, or below the nearest one above it that is there. True where the
        permissions do not say it of a user: they go by the address, by a certificate, or may not be read."""
        while True:
            try:
                permissions = self._permissions(path)
            except CoordinatorError as exc:
                if isinstance(exc.__cause__, NoAuthError):
                    return True
                raise
            if permissions is not None:
                return any(
                    one.perms & Permissions.CREATE and (one.id.scheme not in ("world", "digest") or one.id in self._ids)
                    for one in permissions
                )
            if not path:
                return True
            path = path.rpartition("/")[0]

    def _permissions(self, path: str) -> list[Any] | None:
        found = self._ask(path, lambda client: client.get_acls_async(self._full(path) or "/"), NoNodeError)
        return None if found is None else found[0]

    def set(self, path: str, data: bytes) -> bool:
        """Replaces a node's data; False when there is none."""
        return self._ask(path, lambda client: client.set_async(self._full(path), data), NoNodeError) is not None

    def delete(self, path: str) -> bool:
        """Removes a node; False when there is none, or when it has children, which are not ours."""
        done = self._ask(path, lambda client: client.delete_async(self._full(path)), NoNodeError, NotEmptyError)
        return done is not None

    def _full(self, path: str) -> str:
        return self.address.root + path

    def _node(self, data: bytes | None, stat: Any) -> Node:
        client_id = self._client.client_id
        mine = client_id is not None and stat.ephemeralOwner == client_id[0]
        # A node may have no data at all, which is not the same as none of any length.
        return Node(data or b"", stat.czxid, stat.ctime, mine, lasting=not stat.ephemeralOwner)

    def _ask(self, path: str, call: Callable[[Any], Any], *absent: type[Exception]) -> Any:
        """The answer; None for ``absent``. Raises CoordinatorUnreachableError, CoordinatorError."""
        if not self.connected:
            raise CoordinatorUnreachableError(self.absence())
        try:
            return call(self._client).get(timeout=self.timeout_s)
        except absent:
            return None
        except _AWAY as exc:
            raise CoordinatorUnreachableError(f"{self.address!r} does not answer: {type(exc).__name__}") from exc
        except AuthFailedError as exc:
            raise CoordinatorError(f"{self.address!r} does not accept the user of leader.user") from exc
        except KazooException as exc:
            raise CoordinatorError(f"{self.address!r} refuses {self._full(path)}: {type(exc).__name__}") from exc
        except Exception as exc:  # the driver cannot make sense of a path or an answer
            raise CoordinatorError(f"{self._full(path)} cannot be used: {type(exc).__name__}: {exc}") from exc


if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # Python 3.10 cannot be told of what


class _Quiet(_Adapter):
    """The driver warns of every attempt to connect, once a second while a server is away; the leader says once that it is,
    and why."""

    why = ""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if level == logging.WARNING and args:
            self.why = str(args[-1])
        # It shows every request as it is, that with the user and password too.
        args = tuple(type(one).__name__ if hasattr(one, "auth") else one for one in args)
        super().log(logging.DEBUG if level <= logging.WARNING else level, msg, *args, **kwargs)


def _client(settings: LeaderSettings, address: Address, logger: Any) -> Any:
    options: dict[str, Any] = {}
    if address.user:
        options["auth_data"] = [("digest", f"{address.user}:{address.password}")]
        options["default_acl"] = [make_digest_acl(address.user, address.password, all=True)]
    if settings.tls:
        options["use_ssl"] = True
        options["check_hostname"] = settings.tls_check_hostname
        files = {"ca": settings.tls_cafile, "certfile": settings.tls_certfile, "keyfile": settings.tls_keyfile}
        given = {name: value for name, value in files.items() if value}
        for value in given.values():
            check_file(value, "TLS file of the leader")
        options.update(given)
    pause = min(_LONGEST_PAUSE_S, settings.session_timeout_s / 4)
    return KazooClient(
        address.hosts,
        timeout=settings.session_timeout_s,
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": pause},
        command_retry={"max_tries": 1},
        logger=logger,
        **options,
    )
