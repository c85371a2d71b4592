"""The bytes of one connection: what is read is cut into requests, what is written gathers and goes out.

Everything here runs on the event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.machine import BrokerMachine, Request, State
from ignis.broker.protocol.payloads import Delivery
from ignis.broker.protocol.table import LARGE
from ignis.broker.server.context import BrokerContext
from ignis.errors import IgnisError
from ignis.log_format import event_text
from ignis.native.lone import LoneAck, LoneRequest, transport_of
from ignis.native.wire import ClaimsFrame, FrameReader

__all__ = ["Connection"]

log = logging.getLogger("ignis.broker")

_JOINED_BYTES = 65_536
"""What is sent in one piece; more is not copied for that."""
_MOST_PIECES = 512
"""Pieces in one call of the system."""
_LARGE_BYTES = 4_096
"""A read that may be a waste of time."""
_ALL = pack(Delivery())
"""The head of a DELIVER when nothing expired and no more is known to be there."""


class Connection(asyncio.BufferedProtocol):
    """Reads the requests of one client and writes their answers; `Session` says what is done with them.

    Args:
        context: what the parts of the broker have in common.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.context = context
        self._settings = settings = context.settings
        self._state = context.state
        self._flushes = context.flushes
        self._receiving = context.receiving
        self._turns = context.turns
        self._unread = context.unread
        self._now = context.loop.time
        self.closed = False
        self.peer = ""
        self.began_s = self.heard_s = self.spoke_s = self._now()
        self.stuck_since_s: float | None = None
        self._machine = BrokerMachine(context.area, settings.max_frame_bytes, settings.max_pending)
        # Not by two calls of Python: the event loop asks before each read.
        self.get_buffer = self._machine.arriving.get_buffer  # type: ignore[method-assign]
        self.transport: asyncio.Transport | None = None
        self.fd = -1
        """The socket's number on a connection without TLS, as long as its transport is open and takes anything."""
        self.out: list[bytes | memoryview] = []
        """What goes out next."""
        self._out_bytes = 0
        self.flush_is_planned = False
        self._paused_by: set[str] = set()
        self._paused_writing = False
        self._closing = False
        self._parted = False
        self._refused_before = 0
        """Requests refused until the last large read."""

    # -- what `Session` does

    def _take_received(self, size: int) -> bool:
        """Carries out what was just read, if that can be done before it is taken apart. False when nothing was done."""
        raise NotImplementedError

    @property
    def shares_with(self) -> str:
        """See `TakesTurns`."""
        raise NotImplementedError

    def carry_out(self, request: Request) -> None:
        """A request was read, and it is its turn."""
        raise NotImplementedError

    def _say_broken(self, exc: IgnisError) -> None:
        """The client broke the protocol."""
        raise NotImplementedError

    def relieved(self) -> None:
        """What was held back because too much was unread goes on, if that is over."""
        raise NotImplementedError

    def flush_planned(self) -> None:
        """The `flush` that was planned."""
        raise NotImplementedError

    # -- what others look at

    @property
    def known(self) -> bool:
        """Whether the client said who it is."""
        return self._machine.state is State.READY

    @property
    def pending(self) -> int:
        return self._machine.pending

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
        return self._out_bytes + (0 if self.transport is None else self.transport.get_write_buffer_size())

    def over_outbound(self) -> bool:
        """Whether it leaves more unread than it may: then it is given nothing more."""
        unread = self._unread
        unread.look()
        return self.outbound_bytes > unread.allowed_bytes

    # -- in

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_s = self._now()
        self._state.bytes_in += nbytes
        if self._closing:
            return
        if self._take_received(nbytes):
            if self.out:
                self._look_at_outbound()
            return
        if self._turns.defers(self):
            self._turns.defer(self, self._machine.arrived(nbytes))
            return
        self._read(nbytes, lambda: self._machine.received(nbytes))

    def read_deferred(self, data: bytes) -> None:
        """See `TakesTurns`."""
        if not (self._closing or self.closed):
            self._read(len(data), lambda: self._machine.feed(data))

    def _read(self, nbytes: int, take_apart: Callable[[], tuple[list[Request], bytes]]) -> None:
        began_s = time.perf_counter()
        try:
            requests, at_once = take_apart()
        except IgnisError as exc:
            self._broken(exc)
            return
        if at_once:
            self.write(at_once)
        if (lost := self.arriving.lost) is not None:  # behind frames that were good
            self._turns.take(self, requests, len(at_once), began_s, partial(self._broken, lost))
            return
        self._turns.take(self, requests, len(at_once), began_s)
        if nbytes >= _LARGE_BYTES and (wasted := self._wasted_bytes(nbytes, requests)) and not self.closed:
            self._turns.charge(self, wasted)
        self._receiving.read(self, bool(requests or at_once), self.heard_s)
        self._look_at_outbound()

    def _wasted_bytes(self, nbytes: int, requests: Sequence[Request]) -> int:
        """What a read brought that is no message: what is dropped of refused frames, and heads that are large for nothing."""
        refused, before = self._machine.refused, self._refused_before
        self._refused_before = refused
        if refused != before or self.arriving.skipping_bytes:
            return nbytes
        return sum(
            len(one.payload)
            for one in requests
            if one.command not in LARGE and type(one.payload) is bytes and len(one.payload) > _LARGE_BYTES
        )

    def _look_at_outbound(self) -> None:
        if self.over_outbound():
            self.pause("outbound")

    def _broken(self, exc: IgnisError) -> None:
        self._state.protocol_errors += 1
        self._say_broken(exc)
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

    # -- out

    def write(self, frame: bytes | memoryview) -> None:
        """Everything written in one turn of the loop goes out in one call."""
        if self.closed or self.transport is None:
            return
        self.out.append(frame)
        self._out_bytes += len(frame)
        if not self.flush_is_planned:
            self.flush_is_planned = True
            self._flushes.plan(self)

    def flush(self) -> None:
        """What was written goes out now: what follows in this turn of the loop may take a while."""
        transport = self.transport
        if not self.out or transport is None or self.closed or self._parted:
            return
        out, size = self.out, self._out_bytes
        self.out, self._out_bytes = [], 0
        self.spoke_s = self._now()
        if len(out) > 1 and (size <= _JOINED_BYTES or len(out) > _MOST_PIECES):
            out = [b"".join(out)]
        self._state.bytes_out += size
        sent = 0
        if self.fd >= 0 and not transport.is_closing() and not transport.get_write_buffer_size():
            # The event loop's own write waits for the end of the turn.
            try:
                sent = os.write(self.fd, out[0]) if len(out) == 1 else os.writev(self.fd, out)
            except OSError:
                sent = 0  # no room, or the connection is broken, which the transport finds out in its own way
        if sent == size:
            return
        for data in out:
            if sent < len(data):
                transport.write(memoryview(data)[sent:] if sent else data)
            sent = max(0, sent - len(data))

    def end_pending(self, count: int) -> None:
        """So many pending requests less: their answers are being sent."""
        self._machine.pending -= count

    def await_answer(self) -> None:
        """One pending request more: one that was taken before it was known to be one."""
        self._machine.pending += 1

    def acknowledge(self, lone: LoneRequest | LoneAck) -> None:
        """Sends the answer to a request that was never pending: at once, unless something else is to go out with it."""
        transport = transport_of(self)
        if transport is None:
            self.write(lone.answer())
            return
        size, rest = lone.acknowledge(self.fd)
        self._state.bytes_out += size
        if rest:
            transport.write(rest)

    def deliver_lone(self, lone: LoneRequest, request_id: int, count: int) -> None:
        """Sends the messages of a request that was received alone, from where they lie: for a subscription, or as what ends so
        many pending requests."""
        self._machine.pending -= count
        transport = transport_of(self)
        if transport is None:
            claims = ClaimsFrame()
            lone.put_into(claims)
            self.write(claims.frame(Command.DELIVER, request_id, _ALL))
            self.flush()
            return
        size, rest = lone.deliver(self.fd, request_id)
        self._state.bytes_out += size
        if rest:
            transport.write(rest)

    def write_now(self, frames: bytes, count: int) -> None:
        """`answer_run` of what need not wait for more, unless more is being done."""
        self._machine.pending -= count
        if self.flush_is_planned or self._flushes.in_turn:
            self.write(frames)
        elif not self.closed:
            self.out.append(frames)
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
            log.error(event_text("request_failed", "%s: request %d failed"), self.peer, request_id, exc_info=exc)
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
        self._write_last(exc)
        if self.transport is not None:
            self.transport.close()

    def _write_last(self, exc: BaseException | None) -> None:
        if exc is not None:
            self.write(self._machine.fatal(exc))
        self._closing = True
        self.stuck_since_s = self._now()
        self.flush_planned()

    def part(self, exc: BaseException | None = None) -> None:
        """Ends one half of the connection: behind what was written (and, with an error, the reason) the client finds the end.
        What it still sends is read and forgotten, because closing over it would cut off the rest of what was written. `hang_up`
        closes it. TLS knows no halves: there it is closed."""
        transport = self.transport
        if self._closing or self.closed or transport is None:
            return
        if not transport.can_write_eof():
            self.end(exc)
            return
        self._write_last(exc)
        self._parted = True
        self.fd = -1  # nothing more is given to the system
        if not transport.is_closing():
            transport.write_eof()
            if self._paused_by:
                transport.resume_reading()

    def hang_up(self) -> None:
        """Closes the connection that was parted, after what was written is sent. Idempotent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Closes the connection now."""
        if self.transport is not None:
            self.transport.abort()

    # -- reading or not

    def pause(self, reason: str) -> None:
        """Stops reading the client, until every reason for it is gone."""
        if not self._paused_by and self.transport is not None and not self._closing:
            self.transport.pause_reading()
        self._paused_by.add(reason)

    def resume(self, reason: str) -> None:
        """Reads the client again when this was the last reason not to."""
        if reason not in self._paused_by:
            return
        self._paused_by.discard(reason)
        if not self._paused_by and self.transport is not None and not (self._closing or self.closed):
            self.heard_s = self._now()  # it could not be heard meanwhile
            self.transport.resume_reading()

    @property
    def unread(self) -> bool:
        """Not read on purpose: then its silence means nothing."""
        return bool(self._paused_by)
