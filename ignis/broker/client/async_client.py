"""The client for coroutines: any number of requests under way on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_connection import AsyncConnection, Stream, answer_in, settle
from ignis.broker.client.pending_acks import MOST_OPEN
from ignis.broker.client.reconnect import Telling, explained, retry_rules, speaks_tls
from ignis.broker.client.requests import ClientRequest, Ttl
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.machine import Answer, State
from ignis.broker.protocol.table import FINISHING
from ignis.config import ClientSettings, check_timeout, resolve
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    DrainingError,
    IgnisError,
    StoreTimeoutError,
    StoreUnreachableError,
)
from ignis.native import ANY_SHARD, PackedBatch
from ignis.storage.base import FireResult, Pointers

__all__ = ["AsyncClient", "AsyncSubscription"]

T = TypeVar("T")

_GRACE_S = 0.25


class AsyncClient:
    """A connection to a broker. Belongs to one event loop; connects when it is first used, and again when the
    connection was lost.

    Args:
        endpoint: where.
        settings: of ``[client]`` in ``docs/settings.md``.
    """

    def __init__(self, endpoint: BrokerAddress, settings: ClientSettings | Mapping[str, Any] | None = None) -> None:
        self.endpoint = endpoint
        self.settings = settings if isinstance(settings, ClientSettings) else resolve(ClientSettings, settings or {})
        self.instance = secrets.token_hex(16)
        self.connects = 0
        self._late_answers = 0
        self._connection: AsyncConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._closed = False

    # -- requests

    async def ask(self, ask: ClientRequest[T], timeout: float | None = None) -> T:
        """Sends the request and waits for its answer. May be cancelled: the answer, when it comes, reaches nobody.

        Args:
            ask: one of `ignis.broker.client.requests`.
            timeout: seconds; None = ``client.timeout_s``. What the broker may wait by itself comes on top.

        Raises:
            what the broker answers; StoreTimeoutError, ConnectionLostError (``sent`` says whether it may have been
            carried out), StoreUnreachableError, ClosedError. A request that is repeatable, or that did not leave this
            process, is sent again on a new connection before the time is up.
        """
        loop = asyncio.get_running_loop()
        timeout_s = self.settings.timeout_s if timeout is None else check_timeout(timeout)
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

    async def _connection_for(self, ask: ClientRequest[T], timeout_s: float) -> AsyncConnection:
        """What was begun on a connection to a broker that is shutting down is ended there, and nowhere else."""
        self._adopt(asyncio.get_running_loop())
        connection = self._connection
        if connection is not None and connection.lost_because is None and ask.command in FINISHING and not self._closed:
            return connection
        return await self.connect(timeout_s)

    async def _exchange(self, connection: AsyncConnection, ask: ClientRequest[T], timeout_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        future: asyncio.Future[Answer] = loop.create_future()
        request_id = await self._begin(connection, ask, future, timeout_s)
        try:
            answer = await answer_in(future, timeout_s - (loop.time() - began_s))
        except asyncio.CancelledError:
            # The answer may have come in the moment between.
            connection.cancel(request_id, ask, [future.result()] if future.done() and not future.cancelled() else ())
            raise
        if answer is None:
            connection.cancel(request_id, ask)
            raise StoreTimeoutError(f"{ask.command.name} to the broker", int(timeout_s * 1000), "client.timeout_s")
        if answer.error is not None:
            raise answer.error
        return answer

    async def _begin(self, connection: AsyncConnection, ask: ClientRequest[T], token: Any, timeout_s: float) -> int:
        await connection.writable(timeout_s)
        request_id, frame = connection.machine.request(
            ask.command, ask.payload, token, streams=ask.command == Command.SUBSCRIBE, sent=True
        )
        connection.write(frame)
        return request_id

    async def _tell(self, connection: AsyncConnection, ask: ClientRequest[T]) -> None:
        """Sends a request whose answer is only counted."""
        unwaited, timeout_s = connection.unwaited, self.settings.timeout_s
        if unwaited.open >= MOST_OPEN:
            await self._await_open(connection, MOST_OPEN // 2, timeout_s)
        error = unwaited.take_error()
        if error is not None:
            raise error
        await self._begin(connection, ask, unwaited, timeout_s)
        unwaited.open += 1

    async def _settled(self, connection: AsyncConnection, timeout_s: float) -> int:
        await self._await_open(connection, 0, timeout_s)
        error = connection.unwaited.take_error()
        if error is not None:
            raise error
        return connection.unwaited.take_retired()

    async def _await_open(self, connection: AsyncConnection, most: int, timeout_s: float) -> None:
        if connection.unwaited.open <= most:
            return
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        connection.unwaited.when_down_to(most, functools.partial(settle, future))
        if await answer_in(future, timeout_s) is None:
            raise StoreTimeoutError("acknowledgements", int(timeout_s * 1000), "client.timeout_s")

    # -- what is asked most

    async def send(self, queue: str, record: bytes, *, shard: int = ANY_SHARD, ttl_s: Ttl = "queue") -> tuple[int, int]:
        """Stores one record (see `ignis.native.encode_record`); durable on return. Returns (shard, pointer)."""
        return await self.ask(requests.send(queue, record, shard=shard, ttl_s=ttl_s))

    async def send_batch(
        self, queue: str, batches: Sequence[tuple[int, PackedBatch]], *, ttl_s: Ttl = "queue"
    ) -> list[tuple[int, int, int]]:
        """Stores packed batches; durable on return. Returns (shard, first pointer, count) for each."""
        return await self.ask(requests.send_batch(queue, batches, ttl_s=ttl_s))

    async def consume(self, queue: str, limit: int = 1, wait_s: float = 0, *, max_bytes: int = 8 << 20) -> FireResult:
        """Claims up to ``limit`` messages, waiting up to ``wait_s`` seconds for the first."""
        return await self.ask(requests.consume(queue, limit, wait_s, max_bytes))

    async def ack(self, queue: str, pointers: Pointers) -> int:
        """Retires messages; returns how many of them this connection held."""
        return await self.ask(requests.ack(queue, pointers))

    async def renew(self, queue: str, pointers: Pointers) -> int:
        """See `SyncClient.renew`."""
        return await self.ask(requests.renew_own(queue, pointers))

    async def ack_soon(self, queue: str, pointers: Pointers) -> None:
        """`ack` that does not wait for the answer: the next request follows at once, in this order.

        The messages are retired when the broker has done it, a moment later; those of a connection that is lost before
        come again. `settle` and `close` wait for the answers. Waits itself only when 64 have none yet.

        Raises what an earlier one was refused for (then these are not acknowledged), and what `ask` raises.
        """
        ask = requests.ack(queue, pointers)
        await self._tell(await self._connection_for(ask, self.settings.timeout_s), ask)

    async def settle(self, timeout: float | None = None) -> int:
        """Waits until every `ack_soon` is answered; returns how many messages they retired since the last call: fewer
        than were named means that some had been given back before.

        Raises the first refusal since then, ConnectionLostError when it is not known what became of some, StoreTimeoutError.
        """
        if self._connection is None:
            return 0
        return await self._settled(
            self._connection, self.settings.timeout_s if timeout is None else check_timeout(timeout)
        )

    async def nack(self, queue: str, pointers: Pointers, **how: Any) -> int:
        """Gives messages back, or moves them to the sideline: see `ignis.broker.client.requests.nack`."""
        return await self.ask(requests.nack(queue, pointers, **how))

    async def subscribe(self, queue: str, credit: int = 256, *, max_bytes: int = 1 << 20) -> AsyncSubscription:
        """Messages of a queue as they come, at most ``credit`` (prefetch) of them unacknowledged. Ends with the connection."""
        connection = await self.connect()
        stream = Stream()
        ask = requests.subscribe(queue, credit, max_bytes)
        request_id = await self._begin(connection, ask, stream, self.settings.timeout_s)
        try:
            answer = await stream.next(self.settings.timeout_s)
            if answer is None:
                raise StoreTimeoutError("SUBSCRIBE", int(self.settings.timeout_s * 1000), "client.timeout_s")
        except BaseException:
            # Given up: what it delivers all the same goes back, and it ends when its answer comes.
            connection.cancel(request_id, ask, stream.answers)
            raise
        return AsyncSubscription(self, connection, stream, request_id, queue, ask)

    # -- the connection

    @property
    def pending(self) -> int:
        """Requests under way on the present connection, given up ones included."""
        return 0 if self._connection is None else self._connection.machine.pending

    @property
    def late_answers(self) -> int:
        """Answers that came after their caller had given up."""
        return self._late_answers + (0 if self._connection is None else self._connection.machine.late_answers)

    async def connect(self, timeout_s: float | None = None) -> AsyncConnection:
        """The connection; a new one when there is none, tried again with growing waits until ``connect_timeout_s``.
        Tasks that ask at the same time wait for the same attempt; one that is cancelled leaves it to the others.

        Raises StoreUnreachableError, UnauthenticatedError, ProtocolError, ClosedError.
        """
        loop = asyncio.get_running_loop()
        longest_s = self.settings.connect_timeout_s
        limit_s = longest_s if timeout_s is None else min(longest_s, timeout_s)
        deadline = loop.time() + limit_s
        mine = False
        while True:
            if self._closed:
                raise ClosedError("the client is closed")
            self._adopt(loop)
            connection = self._connection
            if connection is not None and connection.usable:
                return connection
            left_s = deadline - loop.time()
            if self._dialling is None and left_s > 0:
                mine = True
                self._dialling = loop.create_task(self._replace(left_s))
                self._dialling.add_done_callback(self._dialled)
            attempt = self._dialling
            # The attempt ends by itself, and then says why; a little later than this may be.
            if attempt is None or not (await asyncio.wait({attempt}, timeout=max(0.0, left_s) + _GRACE_S))[0]:
                raise StoreUnreachableError(
                    f"{self._where()}: still connecting after {limit_s:g} s (client.connect_timeout_s)"
                )
            error = None if attempt.cancelled() else attempt.exception()
            # Another task's attempt may have had less time than this one has.
            if error is not None and (mine or not isinstance(error, StoreUnreachableError)):
                raise copy.copy(error) from error  # several tasks may raise it

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """What was of an event loop that has ended is of no use any more. Raises ClosedError while that one lives."""
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise ClosedError("this client belongs to another event loop, which has not ended")
        self._loop, self._connection, self._dialling = loop, None, None

    def _dialled(self, attempt: asyncio.Task[None]) -> None:
        if self._dialling is attempt:
            self._dialling = None
        if not attempt.cancelled():
            attempt.exception()  # everybody who waited for it may be gone

    async def _replace(self, limit_s: float) -> None:
        fresh = await self._dial(limit_s)
        old = self._connection
        if old is not None:
            self._late_answers += old.machine.late_answers
            old.lose("another connection took its place")
            fresh.unwaited.inherit(old.unwaited)
        self._connection = fresh
        self.connects += 1

    def _where(self) -> str:
        return f"broker {self.endpoint.host}:{self.endpoint.port}"

    async def _dial(self, limit_s: float) -> AsyncConnection:
        deadline = asyncio.get_running_loop().time() + limit_s
        telling = Telling()
        retrying = tenacity.AsyncRetrying(**retry_rules(self.settings, limit_s, telling))
        try:
            return await retrying(self._dial_once, deadline)
        except (OSError, IgnisError) as exc:
            raise explained(exc, self.endpoint, telling) from exc

    async def _dial_once(self, deadline: float) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        left_s = max(0.01, deadline - loop.time())
        endpoint = self.endpoint
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: AsyncConnection(self.settings),
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
        try:
            answer = await answer_in(answered, max(0.01, deadline - loop.time()))
        except asyncio.CancelledError:
            connection.lose("cancelled")
            raise
        if answer is None:
            connection.lose("no answer to CONNECT")
            raise StoreTimeoutError("CONNECT", int(left_s * 1000), "client.connect_timeout_s")
        if answer.error is not None:
            connection.lose("not let in")
            cut_off = isinstance(answer.error, ConnectionLostError)
            if cut_off and connection.tls_error is not None:
                raise connection.tls_error
            if cut_off and endpoint.tls is None and await asyncio.to_thread(speaks_tls, endpoint):
                raise ssl.SSLError("cut off by a side that speaks TLS")
            raise answer.error
        return connection

    async def close(self, timeout: float = 5.0, *, give_back: bool = True) -> None:
        """Ends the connection in order. Idempotent.

        Args:
            timeout: bound, in seconds.
            give_back: what this client holds is pending again at once; False = it stays claimed until the sweeper
                comes.

        Raises what an `ack_soon` was refused for, if nobody was told before; the client is closed then too.
        """
        if self._closed:
            return
        self._closed = True
        if self._loop is not asyncio.get_running_loop():
            return  # never used, or its loop has ended and the connection with it
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait({self._dialling}, timeout=timeout)
        connection, self._connection = self._connection, None
        if connection is None:
            return
        refused: IgnisError | None = None
        try:
            await self._settled(connection, timeout)
        except IgnisError as exc:
            refused = exc
        if connection.machine.state is State.READY:
            with contextlib.suppress(IgnisError):
                await self._exchange(connection, requests.disconnect(give_back), timeout)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.close(), timeout)
        self._late_answers += connection.machine.late_answers
        connection.lose("the client was closed")
        if refused is not None:
            raise refused

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except IgnisError:
            if exc is None:
                raise

    def __repr__(self) -> str:
        return f"<AsyncClient {self.endpoint.host}:{self.endpoint.port}>"


class AsyncSubscription:
    """Deliveries of one queue; an async iterator of `FireResult`. Made by `AsyncClient.subscribe`."""

    def __init__(
        self,
        client: AsyncClient,
        connection: AsyncConnection,
        stream: Stream,
        subscription: int,
        queue: str,
        ask: ClientRequest[int],
    ) -> None:
        self.queue = queue
        self.number = subscription
        self._client = client
        self._connection = connection
        self._stream = stream
        self._ask = ask

    async def receive(self, timeout: float | None = None) -> FireResult | None:
        """The next delivery, or None when none came within ``timeout`` seconds (None = ``client.timeout_s``).

        Raises ConnectionLostError, ClosedError after `close`, or why the broker ended the subscription.
        """
        answer = await self._stream.next(self._client.settings.timeout_s if timeout is None else check_timeout(timeout))
        return None if answer is None else requests.delivered(answer.payload)

    async def ack(self, pointers: Pointers) -> int:
        """Retires messages of this subscription, which makes room for others."""
        return await self._on_connection(requests.ack(self.queue, pointers))

    async def ack_soon(self, pointers: Pointers) -> None:
        """`ack` that does not wait for the answer, see `AsyncClient.ack_soon`: the next delivery may be taken at once."""
        await self._client._tell(self._connection, requests.ack(self.queue, pointers))

    async def settle(self, timeout: float | None = None) -> int:
        """See `AsyncClient.settle`."""
        settings = self._client.settings
        return await self._client._settled(
            self._connection, settings.timeout_s if timeout is None else check_timeout(timeout)
        )

    async def nack(self, pointers: Pointers, **how: Any) -> int:
        """See `ignis.broker.client.requests.nack`."""
        return await self._on_connection(requests.nack(self.queue, pointers, **how))

    async def set_credit(self, credit: int) -> None:
        """At most so many unacknowledged from now on; 0 pauses."""
        await self._on_connection(requests.credit(self.number, credit))

    async def close(self) -> None:
        """Nothing more is delivered. What was received and is not acknowledged stays with the connection; what was
        delivered and not received goes back."""
        try:
            with contextlib.suppress(ConnectionLostError):
                await self._on_connection(requests.unsubscribe(self.number))
        finally:
            self._connection.cancel(self.number, self._ask, self._stream.answers)
            self._connection.machine.end_stream(self.number)
            self._stream.answers.clear()
            self._stream.over = True
            self._stream.look()

    async def _on_connection(self, ask: ClientRequest[T]) -> T:
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
