"""The client for coroutines: any number of requests under way on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import tenacity

from ignis.broker import asks
from ignis.broker.asks import Ask, Ttl
from ignis.broker.commands import FINISHING
from ignis.broker.endpoint import Endpoint
from ignis.broker.protocol import Answer, ClientMachine, State
from ignis.config import ClientSettings, resolve
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    DrainingError,
    IgnisError,
    MalformedFrameError,
    StoreTimeoutError,
    StoreUnreachableError,
    TooManyRequestsError,
)
from ignis.native import ANY_SHARD, PackedBatch
from ignis.native.wire import ReadArea
from ignis.storage.base import FireResult, Pointers

__all__ = ["AsyncClient", "AsyncSubscription"]

T = TypeVar("T")

_AREA_BYTES = 256 * 1024


class _Stream:
    """Where the answers of a subscription gather."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.changed = asyncio.Event()
        self.over = False

    def put(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.over = self.over or answer.last
        self.changed.set()


class _Connection(asyncio.BufferedProtocol):
    """One connection: the machine, and the transport's calls."""

    def __init__(self, settings: ClientSettings) -> None:
        self.machine = ClientMachine(ReadArea(_AREA_BYTES), settings.max_frame_bytes, settings.max_pending)
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost_because: str | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flush_planned = False

    @property
    def usable(self) -> bool:
        return self.lost_because is None and not self.machine.draining

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.machine.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._give(self.machine.received(nbytes))
            if self.machine.failure is not None:
                self.lose(str(self.machine.failure), self.machine.failure)
        except (MalformedFrameError, IgnisError) as exc:
            self.lose(str(exc), exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lose(f"the connection broke: {exc}" if exc else "the broker closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    def write(self, frame: bytes) -> None:
        """Everything written in one turn of the loop goes out in one call."""
        self._out.append(frame)
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._out and self._transport is not None and self.lost_because is None:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def _give(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            token = answer.token
            if isinstance(token, _Stream):
                token.put(answer)
            elif token is not None and not token.done():
                token.set_result(answer)

    def lose(self, why: str, exc: IgnisError | None = None) -> None:
        """The connection is gone: everybody who waits is told. Idempotent."""
        if self.lost_because is not None:
            return
        self.lost_because = why
        turned_away = exc is not None and self.machine.broker is None
        answers = self.machine.lost(why)
        self._give([one._replace(error=exc) for one in answers] if turned_away else answers)
        self.writable.set()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Closes after what was written has left; bounded by the caller."""
        self._flush()
        self.lost_because = self.lost_because or "the client was closed"
        if self._transport is not None:
            self._transport.close()
            await self.ended


class AsyncClient:
    """A connection to a broker. Belongs to one event loop; connects when it is first used, and again when the
    connection was lost.

    Args:
        endpoint: where.
        settings: of ``[client]`` in ``docs/settings.md``.
    """

    def __init__(self, endpoint: Endpoint, settings: ClientSettings | Mapping[str, Any] | None = None) -> None:
        self.endpoint = endpoint
        self.settings = settings if isinstance(settings, ClientSettings) else resolve(ClientSettings, settings or {})
        self.instance = secrets.token_hex(16)
        self.connects = 0
        self._late_answers = 0
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    # -- requests

    async def ask(self, ask: Ask[T], timeout: float | None = None) -> T:
        """Sends the request and waits for its answer. May be cancelled: the answer, when it comes, reaches nobody.

        Args:
            ask: one of `ignis.broker.asks`.
            timeout: seconds; None = ``client.timeout_s``. What the broker may wait by itself comes on top.

        Raises:
            what the broker answers; StoreTimeoutError, ConnectionLostError (``sent`` says whether it may have been
            carried out), StoreUnreachableError, ClosedError. A request that is repeatable, or that did not leave this
            process, is sent again on a new connection before the time is up.
        """
        loop = asyncio.get_running_loop()
        timeout_s = self.settings.timeout_s if timeout is None else timeout
        deadline = loop.time() + timeout_s
        while True:
            connection = await self._connection_for(ask, max(0.001, deadline - loop.time()))
            try:
                left_s = max(0.001, deadline - loop.time()) + ask.extra_s
                return ask.parse((await self._exchange(connection, ask, left_s)).payload)
            except ConnectionLostError as exc:
                if self._closed:
                    raise ClosedError("the client is closed") from None
                if (exc.sent and not ask.repeatable) or loop.time() >= deadline:
                    raise
            except DrainingError:
                connection.lose("the broker is shutting down")
                if loop.time() + self.settings.retry_wait_s >= deadline:
                    raise
                await asyncio.sleep(self.settings.retry_wait_s)

    async def _connection_for(self, ask: Ask[T], timeout_s: float) -> _Connection:
        """What was begun on a connection to a broker that is shutting down is ended there, and nowhere else."""
        connection = self._connection
        if connection is not None and connection.lost_because is None and ask.command in FINISHING and not self._closed:
            return connection
        return await self.connect(timeout_s)

    async def _exchange(self, connection: _Connection, ask: Ask[T], timeout_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if not connection.writable.is_set():
            # Nothing of it was sent yet, and nothing will be: the broker does not read.
            try:
                await asyncio.wait_for(connection.writable.wait(), timeout_s)
            except asyncio.TimeoutError:
                raise ConnectionLostError("the broker does not read", sent=False) from None
        future: asyncio.Future[Answer] = loop.create_future()
        request_id, frame = connection.machine.request(ask.command, ask.payload, future)
        connection.write(frame)
        connection.machine.sent(request_id)
        timer = loop.call_later(max(0.0, timeout_s - (loop.time() - began_s)), _time_out, future)
        try:
            answer = await future
        except asyncio.CancelledError:
            connection.machine.cancel(request_id)
            raise
        finally:
            timer.cancel()
        if answer is _TIMED_OUT:
            connection.machine.cancel(request_id)
            raise StoreTimeoutError(f"{ask.command.name} to the broker", int(timeout_s * 1000), "client.timeout_s")
        if answer.error is not None:
            raise answer.error
        return answer

    # -- what is asked most

    async def send(self, queue: str, record: bytes, *, shard: int = ANY_SHARD, ttl_s: Ttl = "queue") -> tuple[int, int]:
        """Stores one record (see `ignis.native.encode_record`); durable on return. Returns (shard, pointer)."""
        return await self.ask(asks.send(queue, record, shard=shard, ttl_s=ttl_s))

    async def send_batch(
        self, queue: str, batches: Sequence[tuple[int, PackedBatch]], *, ttl_s: Ttl = "queue"
    ) -> list[tuple[int, int, int]]:
        """Stores packed batches; durable on return. Returns (shard, first pointer, count) for each."""
        return await self.ask(asks.send_batch(queue, batches, ttl_s=ttl_s))

    async def consume(self, queue: str, limit: int = 1, wait_s: float = 0, *, max_bytes: int = 8 << 20) -> FireResult:
        """Claims up to ``limit`` messages, waiting up to ``wait_s`` seconds for the first."""
        return await self.ask(asks.consume(queue, limit, wait_s, max_bytes))

    async def ack(self, queue: str, pointers: Pointers) -> int:
        """Retires messages; returns how many of them this connection held."""
        return await self.ask(asks.ack(queue, pointers))

    async def nack(self, queue: str, pointers: Pointers, **how: Any) -> int:
        """Gives messages back, or moves them to the sideline: see `ignis.broker.asks.nack`."""
        return await self.ask(asks.nack(queue, pointers, **how))

    async def subscribe(self, queue: str, credit: int = 256, *, max_bytes: int = 1 << 20) -> AsyncSubscription:
        """Messages of a queue as they come, at most ``credit`` of them unacknowledged. Ends with the connection."""
        connection = await self.connect()
        stream = _Stream()
        ask = asks.subscribe(queue, credit, max_bytes)
        request_id, frame = connection.machine.request(ask.command, ask.payload, stream, streams=True)
        connection.write(frame)
        connection.machine.sent(request_id)
        subscription = AsyncSubscription(self, connection, stream, request_id, queue)
        answer = await subscription.next_answer(self.settings.timeout_s)
        if answer is None:
            connection.machine.end_stream(request_id)
            raise StoreTimeoutError("SUBSCRIBE", int(self.settings.timeout_s * 1000), "client.timeout_s")
        return subscription

    # -- the connection

    @property
    def pending(self) -> int:
        """Requests under way on the present connection, given up ones included."""
        return 0 if self._connection is None else self._connection.machine.pending

    @property
    def late_answers(self) -> int:
        """Answers that came after their caller had given up."""
        return self._late_answers + (0 if self._connection is None else self._connection.machine.late_answers)

    async def connect(self, timeout_s: float | None = None) -> _Connection:
        """The connection; a new one when there is none, tried again with growing waits until ``connect_timeout_s``.

        Raises StoreUnreachableError, UnauthenticatedError, ProtocolError, ClosedError.
        """
        connection = self._connection
        if connection is not None and connection.usable and not self._closed:
            return connection
        async with self._connecting:
            if self._closed:
                raise ClosedError("the client is closed")
            connection = self._connection
            if connection is None or not connection.usable:
                limit_s = min(self.settings.connect_timeout_s, timeout_s or self.settings.connect_timeout_s)
                fresh = await self._dial(limit_s)
                if connection is not None:
                    self._late_answers += connection.machine.late_answers
                    connection.lose("another connection took its place")
                connection = self._connection = fresh
                self.connects += 1
            return connection

    async def _dial(self, limit_s: float) -> _Connection:
        settings = self.settings
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_delay(limit_s),
            wait=tenacity.wait_random_exponential(multiplier=settings.retry_wait_s, max=settings.max_retry_wait_s),
            retry=tenacity.retry_if_exception_type(
                (OSError, ConnectionLostError, DrainingError, TooManyRequestsError, StoreTimeoutError)
            ),
            reraise=True,
        )
        deadline = asyncio.get_running_loop().time() + limit_s
        where = f"broker {self.endpoint.host}:{self.endpoint.port}"
        try:
            return await retrying(self._dial_once, deadline)
        except (OSError, ConnectionLostError, StoreTimeoutError) as exc:
            raise StoreUnreachableError(f"{where}: {exc}") from exc

    async def _dial_once(self, deadline: float) -> _Connection:
        loop = asyncio.get_running_loop()
        left_s = max(0.01, deadline - loop.time())
        endpoint = self.endpoint
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: _Connection(self.settings),
                    endpoint.host,
                    endpoint.port,
                    ssl=endpoint.tls,
                    server_hostname=endpoint.host if endpoint.tls else None,
                ),
                left_s,
            )
        except asyncio.TimeoutError:
            raise ConnectionLostError(f"not connected within {left_s:g} s", sent=False) from None
        answered: asyncio.Future[Answer] = loop.create_future()
        connection.write(connection.machine.connect(endpoint.hello(self.instance), answered))
        timer = loop.call_later(max(0.01, deadline - loop.time()), _time_out, answered)
        try:
            answer = await answered
        except asyncio.CancelledError:
            connection.lose("cancelled")
            raise
        finally:
            timer.cancel()
        if answer is _TIMED_OUT:
            connection.lose("no answer to CONNECT")
            raise StoreTimeoutError("CONNECT", int(left_s * 1000), "client.connect_timeout_s")
        if answer.error is not None:
            connection.lose("not let in")
            raise answer.error
        return connection

    async def close(self, timeout: float = 5.0, *, give_back: bool = True) -> None:
        """Ends the connection in order. Idempotent.

        Args:
            timeout: bound, in seconds.
            give_back: what this client holds is pending again at once; False = it stays claimed until the sweeper
                comes.
        """
        if self._closed:
            return
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None or connection.machine.state is not State.READY:
            return
        with contextlib.suppress(IgnisError):
            await self._exchange(connection, asks.disconnect(give_back), timeout)
        self._late_answers += connection.machine.late_answers
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(connection.close(), timeout)
        connection.lose("the client was closed")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self.endpoint.host}:{self.endpoint.port}>"


_TIMED_OUT = Answer(None, 0, b"", None)


def _time_out(future: asyncio.Future[Answer]) -> None:
    if not future.done():
        future.set_result(_TIMED_OUT)


class AsyncSubscription:
    """Deliveries of one queue; an async iterator of `FireResult`. Made by `AsyncClient.subscribe`."""

    def __init__(
        self, client: AsyncClient, connection: _Connection, stream: _Stream, subscription: int, queue: str
    ) -> None:
        self.queue = queue
        self.number = subscription
        self._client = client
        self._connection = connection
        self._stream = stream

    async def next_answer(self, timeout: float) -> Answer | None:
        """The next answer, or None when none came in time. Raises its error, or ClosedError after the last."""
        stream = self._stream
        if not stream.answers and not stream.over:
            stream.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stream.changed.wait(), timeout)
        if not stream.answers:
            if stream.over:
                raise ClosedError("the subscription has ended")
            return None
        answer = stream.answers.popleft()
        if answer.error is not None:
            raise answer.error
        return answer

    async def receive(self, timeout: float | None = None) -> FireResult | None:
        """The next delivery, or None when none came within ``timeout`` seconds (None = ``client.timeout_s``).

        Raises ConnectionLostError, ClosedError after `close`, or why the broker ended the subscription.
        """
        answer = await self.next_answer(self._client.settings.timeout_s if timeout is None else timeout)
        return None if answer is None else asks.delivered(answer.payload)

    async def ack(self, pointers: Pointers) -> int:
        """Retires messages of this subscription, which makes room for others."""
        return await self._on_connection(asks.ack(self.queue, pointers))

    async def nack(self, pointers: Pointers, **how: Any) -> int:
        """See `ignis.broker.asks.nack`."""
        return await self._on_connection(asks.nack(self.queue, pointers, **how))

    async def set_credit(self, credit: int) -> None:
        """At most so many unacknowledged from now on; 0 pauses."""
        await self._on_connection(asks.credit(self.number, credit))

    async def close(self) -> None:
        """Nothing more is delivered. What was, and is not acknowledged, stays with the connection."""
        with contextlib.suppress(ConnectionLostError):
            await self._on_connection(asks.unsubscribe(self.number))
        self._connection.machine.end_stream(self.number)
        self._stream.over = True
        self._stream.changed.set()

    async def _on_connection(self, ask: Ask[T]) -> T:
        """On the connection of the subscription and no other: a later one does not hold its messages."""
        client = self._client
        return ask.parse((await client._exchange(self._connection, ask, client.settings.timeout_s)).payload)

    async def __aiter__(self) -> AsyncIterator[FireResult]:
        while True:
            try:
                found = await self.receive()
            except ClosedError:
                return
            if found is not None:
                yield found
