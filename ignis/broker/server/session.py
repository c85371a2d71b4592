"""One connection of the broker. Everything here runs on the event loop and never blocks it."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from ignis.broker.auth.peer_certificate import common_name, keep_alive
from ignis.broker.auth.principal import Anyone, Credentials, Principal
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import BrokerMachine, Request, State, ids_of
from ignis.broker.protocol.payloads import Connect, Connected, pack, unpack
from ignis.broker.protocol.table import FINISHING
from ignis.broker.server import permission_check
from ignis.broker.server.admission import Visitor
from ignis.broker.server.application import Application
from ignis.broker.server.broker_commands import BROKER_ACTIONS, Reports
from ignis.broker.server.claimants import claimant
from ignis.broker.server.consumer_commands import ConsumerCommands
from ignis.broker.server.context import ApplicationContext, BrokerContext
from ignis.broker.server.held_claims import HeldClaims
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
from ignis.native.lone import ACK_FRAME_BYTES, LoneRequest
from ignis.native.wire import FrameReader
from ignis.storage.base import Owner, Process

__all__ = ["Session"]

log = logging.getLogger("ignis.broker")

_JOINED_BYTES = 65_536
"""What is sent in one piece; more is not copied for that."""
_MOST_PIECES = 512
"""Of one call of the system."""


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
        """One user of the application less."""

    def take_up(self, session: Session) -> int:
        """A client came back: what its last connection held is this one's. Returns how many messages."""

    def said(self, session: Session, magazine: str) -> None:
        """A client has said what it holds of a magazine."""


class Session(asyncio.BufferedProtocol):
    """Takes the requests of one client to where they are carried out, and writes their answers: a `Caller`, and so a `Peer`.

    Args:
        context: what the parts of the broker have in common.
        host: the broker.
        visitor: its place among the connections.
    """

    def __init__(self, context: BrokerContext, host: Host, visitor: Visitor) -> None:
        self.context = context
        self._host = host
        self._settings = settings = context.settings
        self._state = context.state
        self._flushes = context.flushes
        self._receiving = context.receiving
        self._unread = context.unread
        self._now = context.loop.time
        self.visitor = visitor
        self.claims = HeldClaims(self, lambda magazine: host.said(self, magazine))
        self.held = self.claims.held
        """At hand, because it is asked for with each delivery."""
        self.owner = Owner("", Process())
        """In whose name its claims are made; known once the client is, and the same from then on."""
        self.closed = False
        self.peer = ""
        self.principal: Principal = Anyone()
        self.instance = ""
        self.application: Application | None = None
        self.began_s = self.heard_s = self._now()
        self.stuck_since_s: float | None = None
        self._machine = BrokerMachine(context.area, settings.max_frame_bytes, settings.max_pending)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        """Of a connection without TLS, as long as its transport is open."""
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_planned = False
        self._paused_by: set[str] = set()
        self._paused_writing = False
        self._starved = False
        """A delivery was held back: ask again when there is room."""
        self._closing = False
        self._pieces = 0
        """Long requests that are being carried out, see `steps`."""
        self._behind: deque[Request] = deque()
        """What came behind them, which keeps its order."""
        self.consuming = ConsumerCommands(self)
        self._sending = PublishCommands(self)
        self._calling = RequestQueue(self)

    # -- what others look at

    @property
    def known(self) -> bool:
        """Whether the client said who it is."""
        return self._machine.state is State.READY

    @property
    def pending(self) -> int:
        return self._machine.pending

    @property
    def waited_for(self) -> bool:
        """Whether its silence means something: it waits for an answer or a delivery, or is at work on what it holds. That a
        machine has vanished meanwhile is then found by the keep-alive of TCP."""
        return bool(self._machine.pending or self.consuming.subscriptions or self.held)

    @property
    def arriving(self) -> FrameReader:
        """What was read and is no frame yet."""
        return self._machine.arriving

    @property
    def refused(self) -> int:
        return self._machine.refused

    @property
    def outbound_bytes(self) -> int:
        """What the client has not read yet."""
        return self._out_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def takes_deliveries(self) -> bool:
        if self.closed or self._closing:
            return False
        self._starved = self._paused_writing or self.over_outbound()
        return not self._starved

    def over_outbound(self) -> bool:
        """Whether it leaves more unread than it may: then it is given nothing more."""
        unread = self._unread
        unread.look()
        return self.outbound_bytes > unread.allowed_bytes

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are classes of their own.
        self._transport = transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("ssl_object") is None:
            self._fd = sock.fileno()
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "local")
        keep_alive(sock, self._settings.idle_timeout_s)
        transport.set_write_buffer_limits(high=self._settings.max_outbound_bytes)
        self.visitor.close = self._displaced
        try:
            self._host.admit(self)
        except IgnisError as exc:
            self.end(exc)

    def _displaced(self) -> None:
        """Its place is another's now. A TLS connection would wait for the client's answer to its end."""
        self.end(self._host.displaced(self))
        if self._fd < 0:
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._machine.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_s = self._now()
        self._state.bytes_in += nbytes
        if self._closing:
            return
        if self._takes_lone and self._sending.take_received(nbytes):
            if self._out:
                self._receiving.read(self, True, self.heard_s)
                if self.over_outbound():
                    self.pause("outbound")
            return
        try:
            requests, at_once = self._machine.received(nbytes)
        except IgnisError as exc:
            self._broken(exc)
            return
        if at_once:
            self.write(at_once)
        for request in requests:
            self._take(request)
        if (lost := self.arriving.lost) is not None:  # behind frames that were good
            self._broken(lost)
            return
        self._receiving.read(self, bool(requests or at_once), self.heard_s)
        if self.over_outbound():
            self.pause("outbound")

    def _broken(self, exc: IgnisError) -> None:
        self._state.protocol_errors += 1
        self._host.say_broken("%s: %s", self.peer, exc)
        self.end(exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused_writing = True
        self.stuck_since_s = self._now()
        self.pause("outbound")

    def resume_writing(self) -> None:
        self._paused_writing = False
        self.stuck_since_s = None
        self.relieved()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = True
        self._calling.end()
        self.consuming.end()
        self._host.leave(self)

    # -- out

    def write(self, frame: bytes | memoryview) -> None:
        """Everything written in one turn of the loop goes out in one call."""
        if self.closed or self._transport is None:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._flush_planned:
            self._flush_planned = True
            self._flushes.plan(self)

    def flush(self) -> None:
        """What was written goes out now: what follows in this turn of the loop may take a while."""
        transport = self._transport
        if not self._out or transport is None or self.closed:
            return
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if len(out) > 1 and (size <= _JOINED_BYTES or len(out) > _MOST_PIECES):
            out = [b"".join(out)]
        self._state.bytes_out += size
        sent = 0
        if self._fd >= 0 and not transport.is_closing() and not transport.get_write_buffer_size():
            # The event loop's own write waits for the end of the turn.
            try:
                sent = os.write(self._fd, out[0]) if len(out) == 1 else os.writev(self._fd, out)
            except OSError:
                sent = 0  # no room, or the connection is broken, which the transport finds out in its own way
        if sent == size:
            return
        for data in out:
            if sent < len(data):
                transport.write(memoryview(data)[sent:] if sent else data)
            sent = max(0, sent - len(data))

    def flush_planned(self) -> None:
        """The `flush` that was planned: what was held back meanwhile may go on."""
        self._flush_planned = False
        self.flush()
        self._out.clear()  # of a connection that is gone
        self._out_bytes = 0
        if self._calling.waiting or self._starved or self._paused_by:
            self.relieved()

    def await_answer(self) -> None:
        """One pending request more."""
        self._machine.pending += 1

    def acknowledge(self, lone: LoneRequest) -> None:
        """Sends the answer to a request that was never pending: at once, unless something else is to go out with it."""
        transport = self._transport
        if (
            self._fd < 0
            or self._out
            or transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            self.write(lone.ack())
            return
        rest = lone.acknowledge(self._fd)
        self._state.bytes_out += ACK_FRAME_BYTES
        if rest:
            transport.write(rest)

    def write_now(self, frames: bytes, count: int) -> None:
        """`answer_run` of what need not wait for more, unless more is being done."""
        self._machine.pending -= count
        if self._flush_planned or self._flushes.in_turn:
            self.write(frames)
        elif not self.closed:
            self._out.append(frames)
            self._out_bytes += len(frames)
            self.flush()

    def answer_run(self, count: int, frames: bytes | memoryview) -> None:
        """Ready-made frames that end so many pending requests."""
        self._machine.pending -= count
        self.write(frames)

    def answer(self, command: int, request_id: int, payload: bytes) -> None:
        """The answer to one pending request."""
        self.write(self._machine.answer(command, request_id, payload))

    def result(self, request_id: int, value: Any) -> None:
        self.answer(Command.RESULT, request_id, pack(value))

    def deliver(self, frame: memoryview) -> None:
        """Messages for a subscription: no pending request ends with them."""
        self.write(frame)

    def refuse(self, request_id: int, exc: BaseException) -> None:
        """ERROR for one pending request."""
        if not isinstance(exc, (IgnisError, ValueError, TypeError)):
            log.error("%s: request %d failed", self.peer, request_id, exc_info=exc)
        self._state.errors += 1
        self.write(self._machine.error(request_id, exc))

    def fail_stream(self, request_id: int, exc: BaseException) -> None:
        """The end of a subscription by the broker."""
        self.write(self._machine.error_frame(request_id, exc))

    def end(self, exc: BaseException | None = None) -> None:
        """Closes the connection after what was written (and, with an error, the reason) is sent; at once when the
        client does not read within ``write_timeout_s``."""
        if self._closing or self.closed:
            return
        if exc is not None:
            self.write(self._machine.fatal(exc))
        self._closing = True
        self.stuck_since_s = self._now()
        self.flush_planned()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # -- reading or not

    def pause(self, reason: str) -> None:
        """The client is not read any more, until every reason for it is gone."""
        if not self._paused_by and self._transport is not None and not self._closing:
            self._transport.pause_reading()
        self._paused_by.add(reason)

    def resume(self, reason: str) -> None:
        """One reason is gone."""
        if reason not in self._paused_by:
            return
        self._paused_by.discard(reason)
        if not self._paused_by and self._transport is not None and not (self._closing or self.closed):
            self.heard_s = self._now()  # it could not be heard meanwhile
            self._transport.resume_reading()

    @property
    def unread(self) -> bool:
        """Not read on purpose: then its silence means nothing."""
        return bool(self._paused_by)

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

    @property
    def _takes_lone(self) -> bool:
        """Whether a request that comes alone may be carried out before it is known which one it is."""
        pending = self._machine.pending
        return (
            self.application is not None
            and not self._pieces
            and not self._state.draining
            and (not pending or pending < self._settings.max_pending)
        )

    def _take(self, request: Request) -> None:
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
        """See `ConsumerCommands.magazine_of`."""
        return self.consuming.magazine_of(payload)

    def in_pieces(self, work: Work) -> None:
        """Long work for one request. What the client asks for behind it waits, and no more is read, until it is done."""
        application = self.application
        assert application is not None
        self._pieces += 1
        application.calls += 1
        self.pause("pieces")

        def done() -> None:
            self._pieces -= 1
            application.calls -= 1
            if self.closed:
                self._behind.clear()
            while self._behind and not self._pieces:
                self._take(self._behind.popleft())
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
        assert self._transport is not None
        certificate = ""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
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
        self.application = application
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
        )
        self._machine.screen = self._screen
        self.write(self._machine.welcome(request_id, welcome))
        if self._state.draining:
            self.notice()

    def _turned_away(self, exc: BaseException) -> None:
        if not isinstance(exc, IgnisError):
            log.error("%s: authentication failed to run", self.peer, exc_info=exc)
        if isinstance(exc, UnauthenticatedError):
            self._state.denied += 1
        self.end(exc if isinstance(exc, IgnisError) else BrokerError("the broker cannot tell who is who at the moment"))

    def notice(self) -> None:
        """Tells the client that the broker is going away."""
        if self.known:
            self.write(self._machine.answer(Command.DISCONNECT, 0, pack(None), count=0))
