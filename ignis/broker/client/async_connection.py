"""Carries the requests of the client for coroutines over one connection: the machine, and the event loop's calls."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

from ignis.broker.client.address import refusal_of
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.pending_acks import MAX_PENDING, PendingAcks
from ignis.broker.client.reconnect import final_tls_error
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Answer, ClientMachine
from ignis.broker.protocol.payloads import Connect
from ignis.config import ClientSettings
from ignis.errors import ClosedError, ConnectionLostError, IgnisError, MalformedFrameError, StoreTimeoutError
from ignis.native.wire import ReadArea

__all__ = ["AsyncConnection", "Stream"]

_AREA_BYTES = 256 * 1024
_SPARE_BYTES = 16 * 1024

TIMED_OUT = Answer(None, 0, b"", None)
"""Given in place of an answer when the time is up."""
_GO_ON = Answer(None, 0, b"", None)


def set_answer(future: asyncio.Future[Answer], answer: Answer) -> None:
    """The answer, unless the one who waited is gone."""
    if not future.done():
        future.set_result(answer)


async def answer_in(future: asyncio.Future[Answer], timeout_s: float) -> Answer | None:
    """Waits; None when the time is up. Unlike ``asyncio.wait_for`` it never swallows a cancellation."""
    timer = future.get_loop().call_later(max(0.0, timeout_s), set_answer, future, TIMED_OUT)
    try:
        answer = await future
    finally:
        timer.cancel()
    return None if answer is TIMED_OUT else answer


class Stream:
    """Where the answers of a subscription gather. For one task."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.over = False
        self._waiting: asyncio.Future[Answer] | None = None

    def put(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.over = self.over or answer.last
        self.look(answer)

    def look(self, answer: Answer = TIMED_OUT) -> None:
        """Who waits finds out that something has changed."""
        if self._waiting is not None:
            set_answer(self._waiting, answer)

    async def next(self, timeout_s: float) -> Answer | None:
        """The next answer, or None when none came in time. Raises ClosedError after the last."""
        if not self.answers and not self.over:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await answer_in(self._waiting, timeout_s)
            finally:
                self._waiting = None
        if not self.answers:
            if self.over:
                raise ClosedError("the subscription has ended")
            return None
        return self.answers.popleft()


class AsyncConnection(asyncio.BufferedProtocol):
    """Carries requests and their answers over one connection. Belongs to its event loop."""

    def __init__(self, settings: ClientSettings) -> None:
        self.machine = ClientMachine(ReadArea(_AREA_BYTES), settings.max_frame_bytes, settings.max_pending)
        self._blocked: list[asyncio.Future[Answer]] | None = None
        """Who waits until the broker reads again; None while it does."""
        self.pending_acks = PendingAcks()
        self.lost_because: str | None = None
        self.tls_error: ssl.SSLError | None = None
        """Why the other side ended it, if it was about TLS."""
        self._spare: bytearray | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flush_planned = False
        self._closing = False

    @property
    def usable(self) -> bool:
        return self.lost_because is None and not self.machine.draining and not self._closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            return self.machine.receive_buffer()
        except BufferError:
            # At the end of a TLS connection asyncio reads once more while it still holds the last buffer.
            self._spare = bytearray(_SPARE_BYTES)
            return memoryview(self._spare)

    def buffer_updated(self, nbytes: int) -> None:
        spare, self._spare = self._spare, None
        try:
            self._give(self.machine.received(nbytes) if spare is None else self.machine.feed(bytes(spare[:nbytes])))
            self._undo()
            if self.machine.failure is not None:
                self.lose(str(self.machine.failure), self.machine.failure)
        except (MalformedFrameError, IgnisError) as exc:
            self.lose(str(exc), exc)

    # -- requests

    async def greet(self, head: Connect, timeout_s: float) -> None:
        """CONNECT. Raises what the broker answers, ConnectionLostError, StoreTimeoutError, SSLError."""
        answered: asyncio.Future[Answer] = self.loop.create_future()
        if self.lost_because is not None:  # turned away before it has said anything
            raise self.tls_error or self.machine.failure or ConnectionLostError(self.lost_because, sent=False)
        self.write(self.machine.connect(head, answered))
        answer = await answer_in(answered, timeout_s)
        if answer is None:
            raise StoreTimeoutError("CONNECT", int(timeout_s * 1000), "client.connect_timeout_s")
        if isinstance(answer.error, ConnectionLostError) and self.tls_error is not None:
            raise self.tls_error
        if answer.error is not None:
            raise refusal_of(head, answer.error)

    async def exchange(self, request: ClientRequest[Any], timeout_s: float) -> bytes:
        """The payload of the answer. Raises what the broker answers; ConnectionLostError, TooManyRequestsError;
        StoreTimeoutError: whether it was done is open, and the answer is dropped, and undone, when it comes. So it is when
        this is cancelled."""
        began_s = self.loop.time()
        future: asyncio.Future[Answer] = self.loop.create_future()
        request_id = await self.begin(request, future, timeout_s)
        try:
            answer = await answer_in(future, timeout_s - (self.loop.time() - began_s))
        except asyncio.CancelledError:
            # The answer may have come in the moment between.
            self.cancel(request_id, request, [future.result()] if future.done() and not future.cancelled() else ())
            raise
        if answer is None:
            self.cancel(request_id, request)
            raise StoreTimeoutError(f"{request.command.name} to the broker", int(timeout_s * 1000), "client.timeout_s")
        if answer.error is not None:
            raise answer.error
        return answer.payload

    async def begin(self, request: ClientRequest[Any], token: Any, timeout_s: float) -> int:
        """Sends a request whose answers go to the token; returns its id."""
        await self.writable(timeout_s)
        streams = request.command == Command.SUBSCRIBE
        request_id, frame = self.machine.request(request.command, request.payload, token, streams=streams, sent=True)
        self.write(frame)
        return request_id

    async def tell(self, request: ClientRequest[int], timeout_s: float) -> None:
        """Sends a request whose answer nobody waits for, see `wait_acks`; waits when too many have none yet. Raises what an
        earlier one was answered; then this one was not sent."""
        if self.pending_acks.count >= MAX_PENDING:
            await self._wait_down_to(MAX_PENDING // 2, timeout_s)
        error = self.pending_acks.take_error()
        if error is not None:
            raise error
        await self.begin(request, self.pending_acks, timeout_s)
        self.pending_acks.count += 1

    async def wait_acks(self, timeout_s: float) -> int:
        """Waits until everything that was told is answered; returns how many messages that retired since the last
        call. Raises the first refusal."""
        await self._wait_down_to(0, timeout_s)
        error = self.pending_acks.take_error()
        if error is not None:
            raise error
        return self.pending_acks.take_retired()

    async def _wait_down_to(self, most: int, timeout_s: float) -> None:
        if self.pending_acks.count <= most:
            return
        future: asyncio.Future[Answer] = self.loop.create_future()
        self.pending_acks.when_down_to(most, functools.partial(set_answer, future))
        if await answer_in(future, timeout_s) is None:
            raise StoreTimeoutError("acknowledgements", int(timeout_s * 1000), "client.timeout_s")

    def cancel(self, request_id: int, request: ClientRequest[Any], unseen: Iterable[Answer] = ()) -> None:
        """Nobody waits for the answer of this one any more; see `ClientMachine.cancel`."""
        self.machine.cancel(request_id, request.undo, unseen)
        self._undo()

    def end_stream(self, request_id: int, stream: Stream) -> None:
        """A subscription is over; what was delivered and not looked at is forgotten."""
        self.machine.end_stream(request_id)
        stream.answers.clear()
        stream.over = True
        stream.look()

    def _undo(self) -> None:
        while self.machine.owes:
            frames = self.machine.undo()
            if not frames:
                return  # as soon as there is room for more requests: with the next bytes
            self.write(frames)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked = []

    def resume_writing(self) -> None:
        blocked, self._blocked = self._blocked, None
        for future in blocked or ():
            set_answer(future, _GO_ON)

    async def writable(self, timeout_s: float) -> None:
        """Returns when the broker reads. Raises ConnectionLostError when it does not in time; nothing was sent."""
        while self._blocked is not None:
            future: asyncio.Future[Answer] = self.loop.create_future()
            self._blocked.append(future)
            if await answer_in(future, timeout_s) is None:
                raise ConnectionLostError("the broker does not read what it is sent", sent=False)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.tls_error = final_tls_error(exc)
        self.lose(f"the connection broke: {exc}" if exc else "the broker closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    def write(self, frame: bytes) -> None:
        """Everything written in one turn of the loop goes out in one call."""
        self._out.append(frame)
        if not self._flush_planned:
            self._flush_planned = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._out and self._transport is not None and self.lost_because is None:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def _give(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            token = answer.token
            if isinstance(token, asyncio.Future):
                set_answer(token, answer)
            elif token is not None:
                token.put(answer)

    def give_notice(self) -> None:
        """No new requests on this one: the broker has said, by refusing one, that it is going."""
        self.machine.draining = True

    def lose(self, why: str, exc: IgnisError | None = None) -> None:
        """The connection is gone: everybody who waits is told. Idempotent."""
        if self.lost_because is not None:
            return
        self.lost_because = why
        turned_away = exc is not None and self.machine.broker is None
        answers = self.machine.lost(why)
        self._give([one._replace(error=exc) for one in answers] if turned_away else answers)
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Closes after what was written has left; bounded by the caller. Whoever still waits is told."""
        self._flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
            await self.ended
