"""The console's HTTP server: uvicorn, with connections that cost little before anybody has said who they are. The only file
that knows uvicorn.

A request is parsed when its head is complete, fits the bounds of `ignis.console.request_head`, and its turn has come. Its body
has a length that it says beforehand. What comes behind a request before its answer, and what is left of a body when the answer
ends, is thrown away unparsed, and the connection closed: no client has to send requests behind each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from socket import socket
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from ignis.console.refusals import RefusedError, document_of
from ignis.console.request_head import HeadReader, Unfit
from ignis.console.turns import Turns
from ignis.places import Places, network_of, network_of_connection
from ignis.tls_server import TlsDoor

__all__ = ["Connection", "Server"]

_KEEP_ALIVE_S = 30
_STOP_S = 30
_BACKLOG = 128
_ACCEPTED = 32
"""Connections in one turn of the event loop."""
_READ_BYTES = 64 << 10
"""Of one connection in one turn of the event loop."""
MOST_CONNECTIONS = 512
_MOST_REFUSED = 64
"""Connections beyond these that are told so before they are closed."""
_HEAD_S = 10.0
"""From a request's first byte, or the connection's begin, to the end of its head."""
_HANDSHAKE_S = 10.0
"""Of TLS."""
_UNREAD_S = 30.0
"""In which a client reads some of what is sent to it."""
_LINGER_S = 2.0
_LINGER_BYTES = 128 << 10
_LINGER_BODY_BYTES = 16 << 20
"""So long, and for so much, an answered connection is read on, and all of it thrown away: who sends everything before reading
finds the answer, and no broken connection."""
_MOST_BEHIND = 64 << 10
"""Of what is read behind a request while it is being answered."""
_UNREADABLE = Unfit(400, "bad_request", "this is no request of HTTP/1.1")
_NO_PLACE = Unfit(
    503, "too_many_connections", f"{MOST_CONNECTIONS} connections are open, which is the limit: ask again later"
)


class _Shared:
    """What the connections of one server share."""

    def __init__(self) -> None:
        self.turns = Turns(lambda work: asyncio.get_running_loop().call_soon(work))
        self.places: Places[Connection] = Places(MOST_CONNECTIONS, "connections", MOST_CONNECTIONS, "connections")
        self.refused = 0
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """What was read last, of whichever connection: it is copied at once."""


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection. What it has not asked for in its turn is not parsed."""

    def __init__(self, shared: _Shared, **options: Any) -> None:
        super().__init__(**options)
        self.app = self._ending(self.app)
        self._shared = shared
        self._network = ""
        self._head = HeadReader()
        self._body_left = 0
        self._behind = 0
        """Bytes that came behind a request that is being answered. They were thrown away."""
        self._dropping = 0
        """So many bytes more are read to be thrown away; 0: none are, they are a request's."""
        self._begun = False
        """Whether any request was."""
        self._waits = False
        """Whether a head waits for its turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        """Runs while more is to be sent than a client is given at once, and nothing of it is read."""
        self._ended: Callable[[], object] | None = None
        """Called once when nothing more is to be thrown away."""

    # -- of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shared, sock = self._shared, transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        self._network = network_of(peer) if sock is None else network_of_connection(sock, peer)
        if shared.places.full:
            oldest = shared.places.displace(self._network)
            if oldest is None:
                self._no_place()
                return
            oldest.transport.abort()
        shared.places.enter(self._network, self)
        self._limit(_HEAD_S, self.transport.close)

    def _no_place(self) -> None:
        shared = self._shared
        if shared.refused >= _MOST_REFUSED:
            self.transport.abort()
            return
        shared.refused += 1

        def ended() -> None:
            shared.refused -= 1
            self.transport.close()

        self._refuse(_NO_PLACE, ended)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(_UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # closed, it would wait for a client that does not read
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._shared.places.leave(self._network, self)
        self._unlimit()
        self._linger_no_more()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._shared.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._dropping:
            self._dropping = max(0, self._dropping - len(data))
            if not self._dropping:
                self._linger_no_more()
            return
        if self._body_left:
            data = self._take_body(data)
        if not data:
            return
        if self._answering:
            self._behind += len(data)
            if self._behind > _MOST_BEHIND:
                self.flow.pause_reading()
            return
        if self._timer is None:
            self._limit(_HEAD_S, self.transport.close)
        if self._head.add(data) and not self._waits:
            self._waits = True
            self.flow.pause_reading()
            self._shared.turns.enter(self._network, self._begin)

    def shutdown(self) -> None:
        if self._dropping or self._ended:
            self._linger_no_more()
            self.transport.close()
        else:
            super().shutdown()

    # -- a request

    @property
    def _answering(self) -> bool:
        return self._begun and not self.cycle.response_complete

    def _begin(self) -> None:
        """Parses the head that has waited for its turn, and hands the request to the application."""
        self._waits = False
        if self.transport.is_closing():  # whoever has left meanwhile is not answered
            return
        self._unlimit()
        self.flow.resume_reading()
        taken = self._head.take()
        if isinstance(taken, Unfit):
            self._refuse(taken)
            return
        head, rest = taken
        before = self.cycle
        self.conn.receive_data(head)
        self.handle_events()
        if self.cycle is before:  # it was refused
            return
        self._begun = True
        if self.cycle.more_body:
            self._body_left = next(int(said) for name, said in self.headers if name == b"content-length")
        if rest:
            self.data_received(rest)

    def _take_body(self, data: bytes) -> bytes:
        """Hands on what is the body's; returns what is behind it."""
        part, rest = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(part)
        self.conn.receive_data(part)
        self.handle_events()
        return rest

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses."""
        self._refuse(_UNREADABLE)

    def _should_upgrade(self) -> bool:
        return False  # and not a word in the log for each who asks

    def _refuse(self, why: Unfit, ended: Callable[[], None] | None = None) -> None:
        """Answers what is not parsed, or cannot be, and ends the connection."""
        self.transport.write(_answer(why))
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # whoever has left
                self.transport.write_eof()
        self._linger(_LINGER_BYTES, ended or self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._behind and not self.transport.is_closing():
            self.transport.close()

    def _ending(self, app: Any) -> Any:
        """The application, with answers that end the connection where something is left that was not read."""

        async def called(scope: Any, receive: Any, send: Any) -> None:
            ends = expected = False

            async def send_on(message: Any) -> None:
                nonlocal ends, expected
                if message["type"] == "http.response.start":
                    expected = self.cycle.waiting_for_100_continue
                    ends = bool(self._body_left or self._behind)
                    headers = list(message.get("headers", ()))
                    if ends and CLOSE_HEADER not in headers:
                        message = {**message, "headers": [*headers, CLOSE_HEADER]}
                elif ends and not expected and not message.get("more_body", False):
                    await send({**message, "more_body": True})
                    await self._read_on()
                    message = {"type": "http.response.body", "body": b"", "more_body": False}
                await send(message)

            cycle = self.cycle
            await app(scope, receive, send_on)
            if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
                # Its client did not read it in time. Closed, the connection would wait for that with what is left to be sent.
                cycle.disconnected = True
                self.transport.abort()

        return called

    # -- what is thrown away

    async def _read_on(self) -> None:
        if self.transport.is_closing():
            return
        done = asyncio.Event()
        self._linger(min(self._body_left, _LINGER_BODY_BYTES) or _LINGER_BYTES, done.set)
        await done.wait()

    def _linger(self, most: int, ended: Callable[[], object]) -> None:
        self._dropping = most
        self._ended = ended
        self._body_left = 0
        self.flow.resume_reading()
        self._limit(_LINGER_S, self._linger_no_more)

    def _linger_no_more(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            self._unlimit()
            ended()

    def _limit(self, seconds: float, then: Callable[[], None]) -> None:
        self._unlimit()
        self._timer = self.loop.call_later(seconds, then)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _answer(why: Unfit) -> bytes:
    body = msgspec.json.encode(document_of(RefusedError(why.code, why.text))) + b"\n"
    head = (
        f"HTTP/1.1 {why.status} {HTTPStatus(why.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class Server(uvicorn.Server):
    """Says when it serves, and leaves signals to the loop: the process ends with a code of ours.

    Args:
        app: the application.
        tls: None = plain HTTP.
        started: called when requests are answered.
    """

    def __init__(self, app: Any, tls: ssl.SSLContext | None, started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",  # the application is closed by who made it, also when the start fails
            log_config=None,
            log_level="error",  # a line for each request that is no HTTP would be anybody's to cause
            access_log=False,
            proxy_headers=False,  # whoever asks could name any address
            server_header=False,
            ws="none",
            backlog=_ACCEPTED,  # asyncio accepts so many at a time
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        config.load()
        connection = partial(Connection, _Shared())
        made: Any = connection
        if tls is not None:
            made = lambda **options: TlsDoor(connection(**options), tls, _HANDSHAKE_S)  # noqa: E731
        config.http_protocol_class = made
        super().__init__(config)
        self._on_start = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(_BACKLOG)
        if self.started:
            self._on_start()
