"""The broker: one port in front of a store. Life cycle, connections, threads; what a connection does is in
``session.py``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from ignis._version import __version__
from ignis.app import Ignis
from ignis.broker.auth.authenticator import UsersFile
from ignis.broker.auth.logins import Logins
from ignis.broker.auth.principal import AllowAll, Authenticator, Credentials, Principal
from ignis.broker.protocol.machine import BrokerMachine
from ignis.broker.protocol.payloads import Connect
from ignis.broker.repeated_log import RepeatedLog
from ignis.broker.server.admission import Admission
from ignis.broker.server.application import Application
from ignis.broker.server.application_table import ApplicationTable, Scope
from ignis.broker.server.bind import check_bind, is_loopback
from ignis.broker.server.claimants import OWNER_PREFIX, broker_owner
from ignis.broker.server.cluster import Cluster, make_cluster
from ignis.broker.server.context import BrokerContext
from ignis.broker.server.descriptors import room_for_connections
from ignis.broker.server.farewell import LOOK_S, Farewell
from ignis.broker.server.flush_plan import FlushPlan
from ignis.broker.server.listener import Listener
from ignis.broker.server.load_notifier import LoadNotifier
from ignis.broker.server.long_work import Steps
from ignis.broker.server.loop_descriptor import loop_descriptor
from ignis.broker.server.metrics import BrokerMetrics, Figure
from ignis.broker.server.permission_check import may_something
from ignis.broker.server.presence import Presence
from ignis.broker.server.receive_limits import ReceiveLimits
from ignis.broker.server.request_turns import RequestTurns
from ignis.broker.server.send_limits import SendLimits
from ignis.broker.server.session import Session
from ignis.broker.server.state import BrokerState
from ignis.broker.server.threads import BrokerThreads
from ignis.broker.server.ticker import Ticker
from ignis.broker.server.waiting_limit import WaitingLimit
from ignis.config import NAME_PATTERN, BrokerSettings, LeaderSettings, load_file, resolve
from ignis.errors import ClosedError, ConfigError, DrainingError, IgnisError, InvalidNameError, TooManyRequestsError
from ignis.log_format import event_text
from ignis.native.lone import LoneAck, LoneRequest, LoopSpin
from ignis.native.wire import ReadArea
from ignis.places import network_of
from ignis.storage import DEFAULT_CLIENT_ID, DEFAULT_FARM_ID
from ignis.upkeep import in_thread
from ignis.urls import redacted

__all__ = ["Broker"]

log = logging.getLogger("ignis.broker")

_THREADS_S = 10.0
_LAST_LOOKS = 10
"""At connections whose time to drain is up."""
_SAY_DRAINING_S = 5.0
"""So often a drain says what it waits for."""


class Broker:
    """Serves a store on one port. Belongs to the event loop that runs `start`; nothing is thread-safe but `request_stop`.

    Args:
        url: of the store; any that `ignis.storage.open_store` takes.
        host, port: where to listen; port 0 = one that is free, see `port` after `start`.
        settings: of ``[broker]`` in ``docs/settings.md``.
        authenticator: who is let in; None = everybody, which is for loopback addresses only.
        tls: context for TLS; None = none.
        allow_open: listen on other addresses than loopback without authentication and TLS. Anybody who reaches the
            port can then read, add and remove messages.
        store: options of the store.
        config: settings file, as for `ignis.Ignis`.

    Raises:
        ConfigError: a bind that is refused, see ``allow_open``.
    """

    OWNER_PREFIX = OWNER_PREFIX

    def __init__(
        self,
        url: str,
        host: str = "127.0.0.1",
        port: int = 9710,
        *,
        settings: Mapping[str, Any] | BrokerSettings | None = None,
        authenticator: Authenticator | None = None,
        tls: ssl.SSLContext | None = None,
        allow_open: bool = False,
        store: Mapping[str, Any] | None = None,
        config: str | os.PathLike[str] | None = None,
        client_id: str = DEFAULT_CLIENT_ID,
        farm_id: str = DEFAULT_FARM_ID,
    ) -> None:
        self.url = url
        self.host = host
        self.port = port
        self.settings = settings if isinstance(settings, BrokerSettings) else resolve(BrokerSettings, settings or {})
        self.authenticator: Authenticator = authenticator or AllowAll()
        self.tls = tls
        if not allow_open:
            check_bind(host, self.authenticator, tls)
        self.id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.owner = broker_owner(self.id)
        self.state = BrokerState()
        self.started_at_s = time.time()
        self.say_broken, self._say_displaced = RepeatedLog(log, logging.INFO), RepeatedLog(log, logging.INFO)
        self.sessions: set[Session] = set()
        self.loop: asyncio.AbstractEventLoop
        self.context: BrokerContext
        """What its parts have in common; made by `start`."""
        self._metrics = BrokerMetrics(self)
        self.cluster: Cluster
        self._store_options = dict(store or {})
        self._config = config
        self._scope = (client_id, farm_id)
        self._table: ApplicationTable
        self._presence: Presence
        self.admission = Admission(self.settings)
        self._listener: Listener | None = None
        self._logins: Logins
        self._stop_asked: asyncio.Event
        self._ticker: Ticker | None = None

    # -- life

    async def start(self) -> None:
        """Opens the store, then listens. Raises what opening the store raises, AddressInUseError, and ConfigError for an
        address that cannot be had."""
        self.loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        self.context = context = self._made_context()
        self._presence = Presence(context, self.members)
        self._table = ApplicationTable(context, self._scope, self._opened, self._presence.owes)
        self._logins = Logins(self.loop.call_later)
        try:
            own = await in_thread(self._table.open, self._scope)
            self.cluster = make_cluster(self.id, own.store, resolve(LeaderSettings, {}, load_file(self._config)))
            # Behind the store, whose files are open by now.
            room = room_for_connections(self.settings.max_connections, self.settings.reserved_files)
            self.admission = Admission(self.settings, room)
            self._listener = Listener(
                self.admission,
                lambda visitor: Session(self.context, self, visitor),
                lambda exc: BrokerMachine.error_frame(0, exc, fatal=True),
                self.tls,
                self.settings.handshake_timeout_s,
                self.settings.reserved_files,
            )
            self.port = await self._listener.open(self.host, self.port)
            await in_thread(self.cluster.join, f"{self.host}:{self.port}")
        except BaseException:
            await self._close()
            raise
        self._ticker = Ticker(context, self.sessions, self._table)
        self._ticker.start()
        if isinstance(self.authenticator, UsersFile):
            self.authenticator.certificates_checked(self.tls is not None and self.tls.verify_mode is not ssl.CERT_NONE)
        log.info(
            event_text("broker_started", "broker %s on %s:%d in front of %s"),
            self.id,
            self.host,
            self.port,
            redacted(self.url),
        )

    def _made_context(self) -> BrokerContext:
        settings, area = self.settings, ReadArea()
        threads = BrokerThreads(self.loop, settings.store_threads)
        receiving = ReceiveLimits(area, settings.max_receive_bytes, settings.frame_timeout_s)
        return BrokerContext(
            id=self.id,
            owner=self.owner,
            settings=settings,
            loop=self.loop,
            state=self.state,
            threads=threads,
            flushes=FlushPlan(self.loop),
            steps=Steps(self.loop, threads),
            watchers=LoadNotifier(settings.watch_threads),
            area=area,
            lone=LoneRequest(area),
            lone_ack=LoneAck(area),
            spin=LoopSpin(loop_descriptor(self.loop), settings.spin_us),
            receiving=receiving,
            turns=RequestTurns(self.loop, receiving),
            unread=SendLimits(settings, self.loop, self.state, self.sessions),
            waiting=WaitingLimit(settings.max_waiting_per_user),
        )

    def _opened(self, scope: Scope) -> Application:
        client_id, farm_id = scope
        app = Ignis(self.url, client_id=client_id, farm_id=farm_id, store=self._store_options, config=self._config)
        return Application(self.context, app, self._presence)

    def request_stop(self) -> None:
        """Makes `run` drain and return. From any thread or signal handler."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop_asked.set)

    async def run(self) -> None:
        """`start` must have been called; returns after `request_stop` and a drain."""
        await self._stop_asked.wait()
        await self.stop()

    async def stop(self, timeout: float | None = None) -> bool:
        """Drains: no new connections or work; what is under way is answered, what comes is refused; clients may still
        acknowledge what they hold. Then closes. Returns True when nothing was left over; what was goes back to the queues.

        Args:
            timeout: seconds; None = ``drain_timeout_s``.
        """
        timeout = self.settings.drain_timeout_s if timeout is None else timeout
        deadline = self.loop.time() + timeout
        self.state.draining = True
        if self._listener is not None:
            self._listener.close()
        for session in list(self.sessions):
            session.consuming.stop_pulls()
            session.notice()
        farewell = Farewell(self.sessions)
        say_at = self.loop.time()
        while (now := self.loop.time()) < deadline:
            if farewell.look() and self._idle:
                break
            if now >= say_at:
                self._say_draining(deadline - now)
                say_at = now + _SAY_DRAINING_S
            await asyncio.sleep(LOOK_S)
        clean = not any(one.pending or one.held for one in self.sessions)
        farewell.part_all(None if clean else DrainingError("the broker is shutting down"))
        for _ in range(_LAST_LOOKS):
            if farewell.look():
                break
            await asyncio.sleep(LOOK_S)
        await self._close()
        log.info(
            event_text("broker_stopped", "stopped; %s"), "nothing was left" if clean else "what clients held goes back"
        )
        return clean

    def _say_draining(self, left_s: float) -> None:
        """What the drain waits for, to whoever wonders why it takes so long."""
        log.info(
            event_text(
                "broker_draining",
                "told to stop: %d message(s) are held by %d connection(s), and %d request(s) are under way; up to %.0f s are "
                "left for them (broker.drain_timeout_s)"),
            sum(one.held.count for one in self.sessions), sum(bool(one.held) for one in self.sessions),
            sum(one.pending for one in self.sessions), left_s,
        )  # fmt: skip

    async def _close(self) -> None:
        if self._ticker is not None:
            await self._ticker.stop()
        if self._listener is not None:
            self._listener.close()
        if self._ticker is not None:
            await self._ticker.ended(_THREADS_S)
        self.state.draining = True
        for _ in range(100):
            if not self.sessions:
                break
            await asyncio.sleep(0.01)
        for session in list(self.sessions):
            session.abort()
        await asyncio.sleep(0)
        self._presence.redeliver_all()
        for application in self.applications:
            application.redelivery.give_back_delayed()
        deadline = self.loop.time() + 10
        while not self._idle and self.loop.time() < deadline:  # noqa: ASYNC110 - once, at the end of a process
            await asyncio.sleep(0.01)
        await in_thread(self._close_stores)

    @property
    def _idle(self) -> bool:
        """Nothing is at the store, or on its way there."""
        return (
            self.context.threads.idle and self.context.steps.idle and all(one.turns.idle for one in self.applications)
        )

    def _close_stores(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.leave()
        self._table.close()
        if not self.context.threads.close(_THREADS_S):
            log.warning(
                event_text("broker_threads_busy", "threads of the broker are still at work after %g s"), _THREADS_S
            )

    # -- connections

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return self.loop.time()

    def admit(self, session: Session) -> None:
        """A connection was made. Raises DrainingError."""
        self.state.connections_seen += 1
        self.sessions.add(session)
        if self.state.draining:
            raise DrainingError("the broker is shutting down")

    @property
    def connections_refused(self) -> int:
        """Connections that were refused for want of a place, or lost theirs."""
        return self.admission.refused + self.admission.displaced

    def authenticate(
        self,
        credentials: Credentials,
        head: Connect,
        admitted: Callable[[tuple[Principal, Application]], None],
        refused: Callable[[BaseException], None],
        gone: Callable[[], bool],
    ) -> None:
        """Asks the authenticator, and opens the application's store, off the event loop. Passwords stand in a line, from which
        those that are ``gone`` are left out."""

        def work(_: None) -> tuple[Principal, Application]:
            for field, name in (("client_id", head.client_id), ("farm_id", head.farm_id)):
                if NAME_PATTERN.match(name) is None:  # `check_name` would show a password that stands in its place
                    raise InvalidNameError(f"the {field} in CONNECT does not match [A-Za-z0-9._-]{{1,128}}")
            if not 1 <= len(head.instance) <= 128:
                raise ConfigError("instance must be a text of 1 to 128 characters")
            principal = self.authenticator.authenticate(credentials)
            scope = (head.client_id, head.farm_id) if may_something(principal) else self._scope
            return principal, self._table.enter(scope, self.holder(principal, credentials.peer))

        if self.authenticator.open or not credentials.by_password:
            self.context.threads.auth_call(work, admitted, refused)
            return

        def ended(call: Callable[[Any], None]) -> Callable[[Any], None]:
            def end(value: Any) -> None:
                try:
                    call(value)
                finally:
                    self._logins.left()

            return end

        def begin() -> None:
            self.context.threads.auth_call(work, ended(admitted), ended(refused), password=True)

        self._logins.enter(begin, refused, gone, credentials.network, credentials.user)

    def holder(self, principal: Principal, peer: str) -> str:
        """Returns under what a connection and the applications that it uses are counted: its user, or without users its address.
        This machine's own connections to an open broker are not counted."""
        if not self.authenticator.open:
            return f"user {principal.name}"
        host = peer.rpartition(":")[0]
        return "" if not host or is_loopback(host) else f"address {network_of((host,))}"

    def left(self, application: Application, principal: Principal, peer: str) -> None:
        """Counts one user of the application less."""
        self._table.leave(application, self.holder(principal, peer))

    def known(self, session: Session, principal: Principal) -> None:
        """A client has said who it is. Raises TooManyRequestsError."""
        self.admission.known(session.visitor, self.holder(principal, session.peer))

    def displaced(self, session: Session) -> IgnisError:
        """A connection's place is another's now; returns what it is told."""
        self._say_displaced(
            event_text("connection_displaced", "%s has not said who it is, and others want its place"), session.peer
        )
        limit = self.settings.max_unauthenticated
        return TooManyRequestsError(limit + 1, limit, "broker.max_unauthenticated")

    def leave(self, session: Session) -> None:
        """A connection is gone."""
        self.context.receiving.left(session)
        self.sessions.discard(session)
        self.admission.leave(session.visitor)
        self.state.refused += session.refused
        application = session.application
        if application is None:
            return
        self._presence.leave(session, application)
        self.left(application, session.principal, session.peer)

    def take_up(self, session: Session) -> int:
        """A client came back: what its last connection held is this one's. Returns how many messages."""
        return self._presence.take_up(session)

    def said(self, session: Session, magazine: str) -> None:
        """A client has said what it holds of a magazine."""
        self._presence.said(session, magazine)

    # -- looking

    @property
    def receiving(self) -> ReceiveLimits:
        """Frames that are still arriving."""
        return self.context.receiving

    def members(self) -> list[dict[str, Any]]:
        """What CLUSTER_STATUS answers. In a thread."""
        return self.cluster.members()

    def figures(self) -> list[Figure]:
        """What METRICS answers. Counters rise from the broker's start; the rate is since the last call."""
        return self._metrics.figures()

    def store_stats(self) -> dict[str, int | float | str]:
        """Figures of the store. From any thread but the loop's: it asks the store. Raises what the store raises."""
        applications = self._table.all
        if not applications:
            raise ClosedError(f"broker {self.id} has no store open")
        return applications[0].store.stats()

    @property
    def applications(self) -> list[Application]:
        return self._table.all

    def status(self) -> dict[str, Any]:
        """What NODE_STATUS answers."""
        return {
            "broker": self.id,
            "version": __version__,
            "pid": os.getpid(),
            "address": f"{self.host}:{self.port}",
            "store": redacted(self.url),
            "started_at_s": self.started_at_s,
            "draining": self.state.draining,
            "tls": self.tls is not None,
            "connections": len(self.sessions),
            "applications": self._table.count,
            "loop": type(self.loop).__module__.partition(".")[0],
        }
