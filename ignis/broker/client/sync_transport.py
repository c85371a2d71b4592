"""The socket below a client's connection: what is sent never blocks, what is received blocks for a bounded time.

In the clear one call of the system waits and reads at once, because the socket itself has the bound; with TLS, and for
waits shorter than that bound, readiness is asked for first.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading

__all__ = ["SLICE_S", "SyncTransport", "TlsTransport", "open_transport"]

SLICE_S = 0.5
"""No wait for bytes is longer, so that whoever reads looks now and then whether it is still to."""
_TLS_PIECE_BYTES = 256 * 1024
_TIMEVAL = struct.Struct("@ll")


def open_transport(sock: socket.socket) -> SyncTransport:
    """Takes over a connected socket, with or without TLS."""
    return TlsTransport(sock) if isinstance(sock, ssl.SSLSocket) else SyncTransport(sock)


class SyncTransport:
    """A connection in the clear. One thread may send while another receives; `shut` from any.

    Args:
        sock: connected; the transport owns it from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._fd = self.bare_fd = sock.fileno()
        """``bare_fd``: the number of the socket, where bytes go as they are; -1 with TLS."""
        self._prepare()

    def _prepare(self) -> None:
        self._sock.setblocking(True)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, int(SLICE_S * 1_000_000)))

    def send(self, view: memoryview) -> int:
        """Bytes that the system took, at least one. Raises BlockingIOError when it has no room, OSError."""
        return self._sock.send(view, socket.MSG_DONTWAIT)

    def receive(self, buffer: memoryview, timeout_s: float) -> int | None:
        """Bytes received; 0 at the end of the stream; None when nothing came. Waits for ``timeout_s`` seconds or
        `SLICE_S`, whichever is less. Raises OSError."""
        try:
            if timeout_s >= SLICE_S:
                return self._sock.recv_into(buffer)
            if timeout_s > 0 and not self.ready(select.POLLIN, timeout_s):
                return None
            return self._sock.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def ready(self, events: int, timeout_s: float) -> int:
        """Which of the events of ``select.poll`` came true; 0 when none did in time. Raises OSError, ValueError."""
        poller = select.poll()
        poller.register(self._fd, events)
        found = poller.poll(timeout_s * 1000)
        return found[0][1] if found else 0

    def shut(self) -> None:
        """The end. Wakes the thread that waits for bytes. Idempotent."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the socket back, behind `shut`; nobody may be inside with its number. Idempotent."""
        self._sock.close()


class TlsTransport(SyncTransport):
    """The same with TLS: one call on the socket at a time, whichever the direction."""

    def _prepare(self) -> None:
        self._sock.setblocking(False)
        self.bare_fd = -1
        self._io = threading.Lock()

    def send(self, view: memoryview) -> int:
        try:
            with self._io:
                return self._sock.send(view[:_TLS_PIECE_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    def receive(self, buffer: memoryview, timeout_s: float) -> int | None:
        # Read first: what was decrypted already is not seen by poll.
        found = self._read(buffer)
        if found is None and timeout_s > 0 and self.ready(select.POLLIN, min(timeout_s, SLICE_S)):
            found = self._read(buffer)
        return found

    def _read(self, buffer: memoryview) -> int | None:
        try:
            with self._io:
                return self._sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return None
