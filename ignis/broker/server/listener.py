"""Accepts the connections of a broker, on any event loop.

The event loop's own servers take every connection that comes and show it when its TLS handshake is over. Here each is
counted when it is accepted, and closed at once when there is no place for it; only then the handshake begins, which has a
time of its own. When there are no files or no memory for another one, the listener rests for a moment and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from ignis.broker.server.admission import Admission, Visitor
from ignis.broker.server.descriptors import check_descriptor
from ignis.errors import AddressInUseError, ConfigError, IgnisError, TooManyRequestsError
from ignis.log_format import event_text
from ignis.places import network_of_connection
from ignis.tls_server import TlsDoor

__all__ = ["Listener"]

log = logging.getLogger("ignis.broker")

_BACKLOG = 1_024
_AT_ONCE = 64
"""Accepted in one turn of the event loop, which has others to serve."""
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_SAY_AGAIN_S = 10.0
_GRACE_S = 1.0
_PASSES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Nothing can be accepted now; the connections wait in the kernel."""


class Listener:
    """The listening sockets of one broker. Belongs to its event loop.

    Args:
        admission: counts the connections.
        make: a protocol for a visitor.
        refusal: the bytes that say why a connection is closed, where it can be told.
        tls: context, or None.
        handshake_s: time for the TLS handshake.
        reserved: descriptors that connections never get, ``broker.reserved_files``.
    """

    def __init__(
        self,
        admission: Admission,
        make: Callable[[Visitor], asyncio.BufferedProtocol],
        refusal: Callable[[IgnisError], bytes],
        tls: ssl.SSLContext | None,
        handshake_s: float,
        reserved: int,
    ) -> None:
        self.pauses = 0
        """How often it rested, for want of files or memory."""
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        self._make = make
        self._refusal = refusal
        self._tls = tls
        self._handshake_s = handshake_s
        self._reserved = reserved
        self._sockets: list[socket.socket] = []
        self._pause_s = _PAUSE_S
        self._resting: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._said_s = float("-inf")
        self._unsaid = 0

    async def open(self, host: str, port: int) -> int:
        """Listens on all addresses of the host; returns the port of the first.

        Raises AddressInUseError, ConfigError for an address that this machine or user cannot have.
        """
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_listening(family, kind, protocol, address))
        except BaseException as exc:
            self.close()
            if not isinstance(exc, OSError):
                raise
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if exc.errno == errno.EADDRINUSE:
                raise AddressInUseError(where, "--bind") from exc
            if exc.errno not in _NO_SUCH_ADDRESS and not isinstance(exc, socket.gaierror):
                raise
            raise ConfigError(f"bind = {where!r}: cannot listen there: {exc.strerror or exc}") from exc
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accepts nothing more; handshakes under way are given up. Idempotent."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())
                sock.close()
        self._sockets.clear()
        for task in self._opening:
            task.cancel()

    # -- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if listening.fileno() < 0:
                    return
                self._rest(exc)
                return
            except MemoryError as exc:
                self._rest(exc)
                return
            self._pause_s = _PAUSE_S
            try:
                self._take(sock, address)
            except Exception:
                log.exception(event_text("connection_not_taken", "a connection of %s could not be taken"), address)
                sock.close()

    def _take(self, sock: socket.socket, address: object) -> None:
        sock.setblocking(False)
        try:
            check_descriptor(sock.fileno(), self._reserved)
            visitor = self._admission.enter(network_of_connection(sock, address), sock.close)
        except TooManyRequestsError as exc:
            self._refuse(sock, exc)
            return
        task = self._loop.create_task(self._begin(sock, visitor))
        # Until the transport has it, closing it is ending the task.
        visitor.close = task.cancel
        self._opening.add(task)
        task.add_done_callback(lambda task: self._opened(task, sock, visitor))

    def _opened(self, task: asyncio.Task[None], sock: socket.socket, visitor: Visitor) -> None:
        self._opening.discard(task)
        if task.cancelled():  # before it began: it has ended nothing
            self._end(sock, visitor)

    def _refuse(self, sock: socket.socket, exc: TooManyRequestsError) -> None:
        self._unsaid += 1
        now_s = self._loop.time()
        if now_s - self._said_s >= _SAY_AGAIN_S:
            log.warning(
                event_text("connections_refused", "%d connection(s) refused, the last because: %s"), self._unsaid, exc
            )
            self._said_s, self._unsaid = now_s, 0
        with contextlib.suppress(OSError):
            if self._tls is None:
                sock.send(self._refusal(exc))
                sock.shutdown(socket.SHUT_WR)
                # What came and was not read would make the close an abort, and the reason be lost.
                sock.recv(65_536)
        sock.close()

    async def _begin(self, sock: socket.socket, visitor: Visitor) -> None:
        door: TlsDoor | None = None
        try:
            protocol = self._make(visitor)
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: protocol, sock)
                return
            door = TlsDoor(protocol, self._tls, self._handshake_s)
            await self._loop.connect_accepted_socket(lambda: door, sock)
            # The event loop's own limit ends the handshake; this one holds if it does not.
            await asyncio.wait_for(door.opened, self._handshake_s + _GRACE_S)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError, MemoryError) as exc:
            log.debug(
                event_text("connection_not_made", "a connection of %s did not come about: %s"), visitor.network, exc
            )
            self._end(sock, visitor, door)
        except Exception:
            log.exception(event_text("connection_broken", "a connection of %s did not come about"), visitor.network)
            self._end(sock, visitor, door)

    def _end(self, sock: socket.socket, visitor: Visitor, door: TlsDoor | None = None) -> None:
        if door is None or not door.abort():
            sock.close()
        self._admission.leave(visitor)

    # -- resting

    def _rest(self, exc: BaseException) -> None:
        """Nothing can be accepted now: the same again after a pause, which grows up to a second."""
        if self._resting is not None:
            return
        self.pauses += 1
        passes = isinstance(exc, MemoryError) or (isinstance(exc, OSError) and exc.errno in _PASSES)
        now_s = self._loop.time()
        if not passes or now_s - self._said_s >= _SAY_AGAIN_S:
            self._said_s = now_s
            log.warning(
                event_text("accept_failed", "no connection can be accepted now, trying again in %g s: %s"),
                self._pause_s,
                exc,
            )
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
        self._resting = self._loop.call_later(self._pause_s, self._go_on)
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def _go_on(self) -> None:
        self._resting = None
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)


_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM)


def _listening(family: int, kind: int, protocol: int, address: object) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
