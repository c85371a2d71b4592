"""TLS for connections that were accepted, with the bounds that the event loop's own does not have.

A protocol behind it sees one transport, as without TLS: what it writes and nobody has read is counted, and gathers unencrypted;
what arrives is taken a few records at a time. Who sends records that carry nothing (KeyUpdate, empty ones) is cut off: each
costs a derivation of keys, and thousands of them fit into one read.

    raw transport <-> TlsDoor <-> the event loop's TLS <-> _Inside <-> the protocol, which writes to TlsTransport
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from typing import Any, cast

__all__ = ["TlsDoor", "TlsTransport"]

_READ_BYTES = 64 << 10
"""Of what is read at a time."""
_AT_ONCE = 64
"""Records that TLS is given at a time; then it is looked at what was in them."""
_HEADER_BYTES = 5
_MOST_EMPTY = 64
"""Records more than the data in them pays for. A handshake takes a dozen."""
_PAYS_BYTES = 8
"""So much data pays for a record."""
_PIECE_BYTES = 64 << 10
"""Encrypted at a time: what nobody reads waits as it was written, not a second time as records."""
_HIGH_BYTES, _LOW_BYTES = 64 << 10, 16 << 10
_FAREWELL_S = 1.0
"""So long the other side has to answer the end of the connection."""


class _Buffers(threading.local):
    """What was read last by any connection of an event loop, and what was inside: both are copied at once."""

    def __init__(self) -> None:
        self.arriving = memoryview(bytearray(_READ_BYTES))
        self.inside = memoryview(bytearray(_READ_BYTES))


_buffers = _Buffers()


class TlsTransport(asyncio.Transport):
    """What a protocol behind TLS reads from and writes to. Belongs to the event loop. Made by `TlsDoor`."""

    def __init__(self, door: TlsDoor, inner: asyncio.Transport, raw: asyncio.Transport) -> None:
        super().__init__()
        self._door, self._inner, self._raw = door, inner, raw
        raw.set_write_buffer_limits(high=0)  # it says when nothing is left: then more is encrypted
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._high_bytes, self._low_bytes = _HIGH_BYTES, _LOW_BYTES
        self._paused = False
        self._closing = self._gone = False
        self._farewell: asyncio.TimerHandle | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing() or not data:
            return
        if self._backlog or len(data) > _PIECE_BYTES or not self._takes_more:
            self._backlog.append(memoryview(data).cast("B"))
            self._backlog_bytes += len(data)
            self.pump()
        else:
            self._inner.write(data)
        if not self._paused and self.get_write_buffer_size() > self._high_bytes:
            self._paused = True
            self._door.protocol.pause_writing()

    def pump(self) -> None:
        """Encrypts as much as the other side is about to read; tells the protocol when it may write again."""
        while self._backlog and self._takes_more:
            data = self._backlog.popleft()
            if len(data) > _PIECE_BYTES:
                self._backlog.appendleft(data[_PIECE_BYTES:])
                data = data[:_PIECE_BYTES]
            self._backlog_bytes -= len(data)
            self._inner.write(data)
        if self._paused and self.get_write_buffer_size() <= self._low_bytes:
            self._paused = False
            self._door.protocol.resume_writing()
        if self._closing and not self._backlog:
            self._part()

    @property
    def _takes_more(self) -> bool:
        return not (self._raw.get_write_buffer_size() or self._inner.get_write_buffer_size())

    def get_write_buffer_size(self) -> int:
        if self._gone:
            return 0
        return self._backlog_bytes + self._inner.get_write_buffer_size() + self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high if high is not None else 4 * low if low is not None else _HIGH_BYTES
        self._low_bytes = low if low is not None else self._high_bytes // 4

    def can_write_eof(self) -> bool:
        return False  # TLS knows no halves

    def is_closing(self) -> bool:
        return self._closing or self._gone or self._inner.is_closing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._backlog:
                self._part()

    def _part(self) -> None:
        """Everything was handed on: what ends TLS goes out behind it, and who does not answer that is not waited for."""
        if self._farewell is None and not self._gone:
            self._inner.close()
            self._farewell = self._door.loop.call_later(_FAREWELL_S, self._hang_up)

    def _hang_up(self) -> None:
        # What is still to be read keeps it: who wrote it says for how long.
        if self._raw.get_write_buffer_size():
            self._farewell = self._door.loop.call_later(_FAREWELL_S, self._hang_up)
        else:
            self.abort()

    def abort(self) -> None:
        self._closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._raw.abort()

    def ended(self) -> None:
        """The connection is gone."""
        self._closing = self._gone = True
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._farewell is not None:
            self._farewell.cancel()

    def pause_reading(self) -> None:
        if not self._gone:
            self._inner.pause_reading()
            self._door.hold()  # else the event loop's TLS would gather, and take it all at once later

    def resume_reading(self) -> None:
        if not self._gone:
            self._inner.resume_reading()
            self._door.go_on()

    def is_reading(self) -> bool:
        return not self._gone and self._inner.is_reading()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._door.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)


class _Inside(asyncio.BufferedProtocol):
    """Takes what was decrypted, and gives it to the protocol. Some may come with the end of the handshake, before that has its
    transport. In another buffer than the protocol's: an event loop's TLS may ask for one while it still has the last."""

    def __init__(self, door: TlsDoor) -> None:
        self._door = door
        self.early = b""

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffers.inside

    def buffer_updated(self, nbytes: int) -> None:
        self._door.paid_bytes += nbytes
        data = bytes(_buffers.inside[:nbytes])
        if self._door.transport is None:
            self.early += data
        else:
            self.feed(data, self._door.transport)

    def feed(self, data: bytes, transport: TlsTransport) -> None:
        protocol: Any = self._door.protocol
        while data and not transport.is_closing():
            buffer = protocol.get_buffer(len(data))
            part = buffer[: len(data)]
            size = len(part)
            part[:] = data[:size]
            del part, buffer  # the protocol may have it back
            data = data[size:]
            protocol.buffer_updated(size)

    def eof_received(self) -> bool | None:
        return None if self._door.transport is None else self._door.protocol.eof_received()

    def pause_writing(self) -> None:
        return  # the transport looks by itself

    def resume_writing(self) -> None:
        if self._door.transport is not None:
            self._door.transport.pump()


class TlsDoor(asyncio.BufferedProtocol):
    """The protocol of a socket that was accepted and is to speak TLS: the handshake begins once it is connected, and what the
    given protocol then gets is what was inside. Belongs to the event loop.

    Args:
        protocol: a `BufferedProtocol`; ``connection_made`` comes with a `TlsTransport`, after the handshake.
        context: of the server.
        handshake_s: time for the handshake.

    Attributes:
        opened: done when the protocol has its transport. Its exception says why it never will.
    """

    def __init__(self, protocol: asyncio.BufferedProtocol, context: ssl.SSLContext, handshake_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.protocol = protocol
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.transport: TlsTransport | None = None
        self.paid_bytes = 0
        """Of the protocol's data, not set against records yet."""
        self._context = context
        self._handshake_s = handshake_s
        self._raw: asyncio.Transport | None = None
        self._tls: Any = None
        self._task: asyncio.Task[None] | None = None
        self._kept: deque[tuple[bytes, int]] = deque()
        """What was read and TLS is not given yet: pieces, and the records in each."""
        self._held = False
        self._gone = False
        self._empty = 0
        self._skip = 0
        self._header = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._raw is not None:
            return
        self._raw = cast(asyncio.Transport, transport)
        self._raw.pause_reading()
        self._task = self.loop.create_task(self._open(self._raw))
        self._task.add_done_callback(self._tell)

    async def _open(self, raw: asyncio.Transport) -> None:
        inside = _Inside(self)
        begun = self.loop.create_task(
            self.loop.start_tls(raw, inside, self._context, server_side=True, ssl_handshake_timeout=self._handshake_s)
        )
        # The first step of it gives the raw transport its protocol, and the second, which reads, comes behind this.
        await asyncio.sleep(0)
        if begun.done():
            begun.result()
        self._tls = raw.get_protocol()
        raw.set_protocol(self)
        if self._kept:
            self.loop.call_soon(self._give_kept)
        inner = await begun
        if inner is None or self._gone:
            raise ConnectionResetError("gone with the end of the handshake")
        self.transport = transport = TlsTransport(self, inner, raw)
        self.protocol.connection_made(transport)
        inside.feed(inside.early, transport)
        inside.early = b""

    def _tell(self, task: asyncio.Task[None]) -> None:
        exc = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._task = None
        if isinstance(exc, RuntimeError) and self._gone:  # so says uvloop
            exc = ConnectionResetError("gone before the end of the handshake")
        of_the_network = isinstance(exc, (OSError, EOFError))
        if exc is not None:
            if of_the_network:
                # It would keep the frames that it passed, and they the connection with its buffers, until garbage is looked for.
                exc.__traceback__ = exc.__context__ = exc.__cause__ = None
            self.abort()
        if self.opened.done():
            return
        if exc is None:
            self.opened.set_result(None)
        elif isinstance(exc, asyncio.CancelledError):
            self.opened.cancel()
        else:
            self.opened.set_exception(exc)
            if of_the_network:
                self.opened.exception()  # whoever waits is told; nobody has to

    def abort(self) -> bool:
        """Closes the connection now, also while the handshake goes on. False where there is none: the socket is the caller's."""
        if self._raw is None:
            return False
        self._raw.abort()
        return True

    # -- what the raw transport calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffers.arriving

    def buffer_updated(self, nbytes: int) -> None:
        for piece, records in self._pieces(_buffers.arriving[:nbytes]):
            if self._gone:
                return
            # Some event loops read what came with the connection, paused or not.
            if self._tls is None or self._held or self._kept:
                self._kept.append((bytes(piece), records))
            else:
                self._give(piece, records)

    def _give(self, piece: bytes | memoryview, records: int) -> None:
        tls, nbytes = self._tls, len(piece)
        if hasattr(tls, "get_buffer"):
            memoryview(tls.get_buffer(nbytes))[:nbytes] = piece
            tls.buffer_updated(nbytes)
        else:  # Python 3.10
            tls.data_received(bytes(piece))
        self._empty = max(0, self._empty + records - self.paid_bytes // _PAYS_BYTES)
        self.paid_bytes = 0
        if self._empty > _MOST_EMPTY and self._raw is not None:
            self._gone = True  # what is left of this read is nobody's
            self._kept.clear()
            self._raw.abort()

    def _give_kept(self) -> None:
        while self._kept and self._tls is not None and not (self._held or self._gone):
            self._give(*self._kept.popleft())
        if self._raw is not None and not (self._kept or self._held or self._gone):
            self._raw.resume_reading()

    def hold(self) -> None:
        """Nothing more is read."""
        self._held = True
        if self._raw is not None:
            self._raw.pause_reading()

    def go_on(self) -> None:
        """After `hold`."""
        self._held = False
        self.loop.call_soon(self._give_kept)

    def _pieces(self, data: memoryview) -> list[tuple[memoryview, int]]:
        """Cuts what was read where so many records have begun. RFC 8446, 5.1: a type, a version and, in two bytes, a length
        before each."""
        pieces: list[tuple[memoryview, int]] = []
        begin, at, count, end = 0, self._skip, 0, len(data)
        header = self._header
        while at < end:
            if count == _AT_ONCE:
                pieces.append((data[begin:at], count))
                begin, count = at, 0
            if header or end - at < _HEADER_BYTES:
                part = bytes(data[at : at + _HEADER_BYTES - len(header)])
                header += part
                at += len(part)
                if len(header) < _HEADER_BYTES:
                    break
                at += header[3] << 8 | header[4]
                header = b""
            else:
                at += _HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            count += 1
        self._header = header
        self._skip = max(0, at - end)
        pieces.append((data[begin:], count))
        return pieces

    def eof_received(self) -> bool | None:
        return None if self._tls is None else cast("bool | None", self._tls.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        if self._tls is not None:
            self._tls.connection_lost(exc)
            self._tls = None  # they refer to each other by way of this, and it has large buffers
        elif self._task is not None:
            self._task.cancel()
        if self.transport is not None:
            self.loop.call_soon(self._end, self.transport, exc)

    def _end(self, transport: TlsTransport, exc: Exception | None) -> None:
        transport.ended()
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()
        if self.transport is not None:
            self.transport.pump()
