"""Finds out who a client is, and takes its requests to where they are carried out.

Everything here runs on the event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from ignis.broker.auth.peer_certificate import common_name, keep_alive
from ignis.broker.auth.principal import Anyone, Credentials, Principal
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.machine import Request, ids_of
from ignis.broker.protocol.payloads import Connect, Connected
from ignis.broker.protocol.table import FINISHING
from ignis.broker.server import permission_check
from ignis.broker.server.admission import Visitor
from ignis.broker.server.application import Application
from ignis.broker.server.broker_commands import BROKER_ACTIONS, Reports
from ignis.broker.server.claimants import claimant
from ignis.broker.server.connection import Connection
from ignis.broker.server.consumer_commands import ConsumerCommands
from ignis.broker.server.context import ApplicationContext, BrokerContext
from ignis.broker.server.held_claims import HeldClaims
from ignis.broker.server.lone_acks import LoneAcks
from ignis.broker.server.long_work import Work
from ignis.broker.server.publish_commands import PublishCommands
from ignis.broker.server.request_queue import RequestQueue
from ignis.errors import (
    BrokerError,
    ConfigError,
    DrainingError,
    IgnisError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from ignis.log_format import event_text
from ignis.storage.base import Owner, Process

__all__ = ["Session"]

log = logging.getLogger("ignis.broker")

_STRANGERS_BYTES = 65_536
"""Unread bytes at which a connection is read no more while nobody knows who it is: it is sent answers to PING alone."""


class Host(Reports, Protocol):
    """What a connection asks of its broker when it begins and ends, and about the broker itself. None of it is asked for each
    message."""

    def admit(self, session: Session) -> None:
        """A connection was made. Raises DrainingError."""

    def leave(self, session: Session) -> None:
        """A connection is gone."""

    def say_broken(self, text: str, *arguments: object) -> None:
        """A connection broke the protocol."""

    def displaced(self, session: Session) -> IgnisError:
        """A connection's place is another's now; returns what it is told."""

    def authenticate(
        self,
        credentials: Credentials,
        head: Connect,
        admitted: Callable[[tuple[Principal, Application]], None],
        refused: Callable[[BaseException], None],
        gone: Callable[[], bool],
    ) -> None:
        """Finds out who a client is, and opens its application, off the event loop."""

    def known(self, session: Session, principal: Principal) -> None:
        """A client has said who it is. Raises TooManyRequestsError."""

    def left(self, application: Application, principal: Principal, peer: str) -> None:
        """Counts one user of the application less."""

    def take_up(self, session: Session) -> int:
        """A client came back: what its last connection held is this one's. Returns how many messages."""

    def said(self, session: Session, magazine: str) -> None:
        """A client has said what it holds of a magazine."""


class Session(Connection):
    """Takes the requests of one client to where they are carried out, and writes their answers: a `Caller`, and so a `Peer`.

    Args:
        context: what the parts of the broker have in common.
        host: the broker.
        visitor: its place among the connections.
    """

    def __init__(self, context: BrokerContext, host: Host, visitor: Visitor) -> None:
        super().__init__(context)
        self._host = host
        self.visitor = visitor
        self.claims = HeldClaims(self, lambda magazine: host.said(self, magazine))
        self.held = self.claims.held
        """What `claims` holds, at hand because it is asked for with each delivery."""
        self.owner = Owner("", Process())
        """The name in which its claims are made; known once the client is, and the same from then on."""
        self.principal: Principal = Anyone()
        self._allows: Callable[[str, str], bool] | None = None
        """Of the principal; None = everything is allowed."""
        self.instance = ""
        self.application: Application | None = None
        self._starved = False
        """A delivery was held back: ask again when there is room."""
        self._pieces = 0
        """Long requests that are being carried out, see `steps`."""
        self._behind: deque[Request] = deque()
        """What came behind them, which keeps its order."""
        self.consuming = ConsumerCommands(self)
        self._sending = PublishCommands(self)
        self._acks = LoneAcks(self)
        self._calling = RequestQueue(self)

    # -- what others look at

    @property
    def waited_for(self) -> bool:
        """Whether its silence means something: it waits for an answer or a delivery, or is at work on what it holds. That a
        machine has vanished meanwhile is then found by the keep-alive of TCP."""
        return bool(self._machine.pending or self.consuming.subscriptions or self.held)

    @property
    def takes_deliveries(self) -> bool:
        if self.closed or self._closing:
            return False
        self._starved = self._paused_writing or self.over_outbound() or self.held_back
        return not self._starved

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are classes of their own.
        self.transport = transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("ssl_object") is None:
            self.fd = sock.fileno()
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "local")
        keep_alive(sock, self._settings.idle_timeout_s)
        transport.set_write_buffer_limits(high=min(_STRANGERS_BYTES, self._settings.max_outbound_bytes))
        self.visitor.close = self._displaced
        try:
            self._host.admit(self)
        except IgnisError as exc:
            self.end(exc)

    def _displaced(self) -> None:
        """Its place is another's now. A TLS connection would wait for the client's answer to its end."""
        self.end(self._host.displaced(self))
        if self.fd < 0 and not self._parted:
            self.abort()

    def _say_broken(self, exc: IgnisError) -> None:
        self._host.say_broken(event_text("connection_broke_protocol", "%s: %s"), self.peer, exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = True
        self._turns.left(self)
        self._calling.end()
        self.consuming.end()
        self._host.leave(self)

    def flush_planned(self) -> None:
        """The `flush` that was planned: what was held back meanwhile may go on."""
        self.flush_is_planned = False
        self.flush()
        self.out.clear()  # of a connection that is gone
        self._out_bytes = 0
        if self._calling.waiting or self._starved or self._paused_by:
            self.relieved()

    # -- what was held back

    def look(self, now: float) -> None:
        """Now and then: since when it reads nothing, and whether what was held back may go on."""
        if self.over_outbound():
            self.stuck_since_s = self.stuck_since_s or now
            self.pause("outbound")
        elif not (self._paused_writing or self._closing):
            self.stuck_since_s = None
        if self._paused_by or self._starved or self._calling.waiting:
            self.relieved()

    def relieved(self) -> None:
        """What was held back because too much was unread goes on, if that is over."""
        if self._paused_writing or self.over_outbound() or self.closed or self._closing:
            return
        self.resume("outbound")
        self._calling.run()
        if self._starved:
            self.consuming.poke()

    # -- requests

    def _take_received(self, size: int) -> bool:
        pending = self._machine.pending
        return (
            self.application is not None
            and not self._pieces
            and not self._turns.waits(self)
            and not self._state.draining
            and (not pending or pending < self._settings.max_pending)
            and (
                self.application.loads.take(self, self._sending, self._machine.arriving, size, self._allows)
                or self._sending.take_received(size)
                or self._acks.take_received(size)
            )
        )

    @property
    def shares_with(self) -> str:
        return self.visitor.holder or self.visitor.network

    @property
    def held_back(self) -> bool:
        held_back = self._unread.held_back
        return bool(held_back) and self.shares_with in held_back

    def carry_out(self, request: Request) -> None:
        command = request.command
        if self._closing:
            return
        if self._pieces:
            self._behind.append(request)
            return
        if command == Command.CONNECT:
            self._greet(request)
            return
        if isinstance(request.payload, BaseException):
            self.refuse(request.request_id, request.payload)
            return
        if self._state.draining and command not in FINISHING:
            self.refuse_all(request, DrainingError("the broker is shutting down"))
            return
        if command in (Command.SEND, Command.SEND_BATCH):
            self._sending.take(request)
            return
        try:
            permission_check.check(self, command, request.payload)
            if not self.consuming.take(request) and not self._own(request):
                self._calling.put(request)
        except Exception as exc:
            self.refuse(request.request_id, exc)

    def subscribed_to(self, payload: bytes) -> str | None:
        """Returns the magazine that an UNSUBSCRIBE or CREDIT is about, see `ConsumerCommands.magazine_of`."""
        return self.consuming.magazine_of(payload)

    def in_pieces(self, work: Work, nbytes: int = 0) -> None:
        """Long work for one request. What the client asks for behind it waits, and no more is read, until it is done.

        Args:
            nbytes: memory that the request holds until then.
        """
        application = self.application
        assert application is not None
        receiving = self.context.receiving
        receiving.count_backlog(nbytes)
        self._pieces += 1
        application.calls += 1
        self.pause("pieces")

        def done() -> None:
            receiving.count_backlog(-nbytes)
            self._pieces -= 1
            application.calls -= 1
            if self.closed:
                self._behind.clear()
            while self._behind and not self._pieces:
                self.carry_out(self._behind.popleft())
            if not self._pieces:
                self.resume("pieces")

        self.context.steps.begin(work, done)

    def refuse_all(self, request: Request, exc: BaseException) -> None:
        """ERROR for every request that one item stands for."""
        for one in ids_of(request.command, request.request_id, request.payload):
            self.refuse(one, exc)

    def _screen(self, command: int, name: str) -> BaseException | None:
        """Why a large request is not read to its end."""
        if type(self.principal) is Anyone:
            return None
        try:
            permission_check.check_queue(self.principal, self._state, Command(command).name, name)
        except IgnisError as exc:
            self._state.errors += 1
            return exc
        return None

    def _own(self, request: Request) -> bool:
        """Requests about the connection or the broker, which need no call of the store."""
        action = BROKER_ACTIONS.get(request.command)
        if action is not None:
            action(self, self._host, request)
            return True
        if request.command != Command.DISCONNECT:
            return False
        give_back = bool(unpack(request.payload, bool)[0])
        self.consuming.end()
        held = self.claims.take_all()
        if give_back and self.application is not None:
            for magazine, runs in held.items():
                self.application.give_back(magazine, runs)
        self.result(request.request_id, None)
        self.context.loop.call_soon(self.end)
        return True

    def uses(self, application: ApplicationContext) -> bool:
        """Whether its client is one of this application's."""
        return self.application is not None and self.application.context is application

    # -- the handshake

    def _greet(self, request: Request) -> None:
        head = request.payload
        assert isinstance(head, Connect)
        assert self.transport is not None
        certificate = ""
        tls: ssl.SSLObject | None = self.transport.get_extra_info("ssl_object")
        if tls is not None:
            certificate = common_name(tls.getpeercert() or {})
        credentials = Credentials(head.token, head.user, head.password, certificate, self.peer, self.visitor.network)
        self._host.authenticate(
            credentials,
            head,
            lambda found: self._admitted(request.request_id, head, *found),
            self._turned_away,
            lambda: self.closed or self._closing,
        )

    def _admitted(self, request_id: int, head: Connect, principal: Principal, application: Application) -> None:
        if self.closed or self._closing:
            self._host.left(application, principal, self.peer)
            return
        try:
            self.owner = claimant(principal.name, head)
            self._host.known(self, principal)
        except (ConfigError, TooManyRequestsError) as exc:
            self._host.left(application, principal, self.peer)
            self.end(exc)
            return
        self.principal = principal
        self._allows = None if type(principal) is Anyone else principal.allows
        self.application = application
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=self._settings.max_outbound_bytes)
        self.instance = head.instance
        resumed = self._host.take_up(self)
        settings = self._settings
        welcome = Connected(
            self.context.id,
            settings.max_frame_bytes,
            settings.max_pending,
            int(settings.idle_timeout_s * 1000),
            principal.name,
            resumed,
            application.store.magazines.tells_repeats,
            str(self.owner),
            application.store.message_expiry_s,
            application.store.magazines.keeps_later,
            True,
        )
        self._machine.screen = self._screen
        self.write(self._machine.welcome(request_id, welcome))
        if self._state.draining:
            self.notice()

    def _turned_away(self, exc: BaseException) -> None:
        if not isinstance(exc, IgnisError):
            log.error(event_text("authentication_broken", "%s: authentication failed to run"), self.peer, exc_info=exc)
        if isinstance(exc, UnauthenticatedError):
            self._state.denied += 1
        self.end(
            exc
            if isinstance(exc, IgnisError)
            else BrokerError("the broker cannot check credentials at the moment; try again later")
        )

    def notice(self) -> None:
        """Tells the client that the broker is going away."""
        if self.known:
            self.write(self._machine.answer(Command.DISCONNECT, 0, pack(None), count=0))
