"""The client for coroutines: any number of requests under way on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_connection import AsyncConnection, Stream
from ignis.broker.client.async_subscription import AsyncSubscription
from ignis.broker.client.client_base import ClientBase, chosen_timeout_s
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.commands import ForCoroutines
from ignis.broker.client.reconnect import Attempts, explained, retry_rules, speaks_tls, still_connecting, time_tried
from ignis.broker.protocol.machine import State
from ignis.broker.protocol.table import FINISHING
from ignis.config import ClientSettings
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    DrainingError,
    IgnisError,
    StoreTimeoutError,
    StoreUnreachableError,
)
from ignis.storage.base import FireResult, Pointers
from ignis.upkeep import in_thread

__all__ = ["AsyncClient"]

T = TypeVar("T")

_GRACE_S = 0.25


class AsyncClient(ForCoroutines, ClientBase[AsyncSubscription, AsyncConnection]):
    """A connection to a broker. Belongs to one event loop; connects when it is first used, and again when the
    connection was lost. In a child after ``fork`` every call raises ForkedHandleError.

    Args:
        address: where the broker is, and who wants in.
        settings: of ``[client]`` in ``docs/settings.md``.
    """

    def __init__(self, address: BrokerAddress, settings: ClientSettings | Mapping[str, Any] | None = None) -> None:
        super().__init__(address, settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._attempts = Attempts()
        """Those of the task that is connecting, or was."""

    # -- requests

    async def ask(self, request: ClientRequest[T], timeout: float | None = None) -> T:
        """Sends the request and waits for its answer. May be cancelled: the answer, when it comes, reaches nobody.

        Args:
            request: one of `ignis.broker.client.requests`.
            timeout: seconds; None = ``client.timeout_s``. What the broker may wait by itself comes on top.

        Raises:
            what the broker answers; StoreTimeoutError, ConnectionLostError (``sent`` says whether it may have been
            carried out), StoreUnreachableError, ClosedError, ForkedHandleError. A request that is repeatable, or
            that did not leave this process, is sent again on a new connection before the time is up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + chosen_timeout_s(self.settings, timeout)
        while True:
            connection = await self._connection_for(request, max(0.001, deadline - loop.time()))
            try:
                left_s = max(0.001, deadline - loop.time()) + request.extra_s
                return request.parse(await connection.exchange(request, left_s))
            except ConnectionLostError as exc:
                if self._closed:
                    raise ClosedError("the client is closed") from None
                if (exc.sent and not request.repeatable) or loop.time() >= deadline:
                    raise
            except DrainingError:
                # Nothing was done. Another broker may be there at once, or this one again in a moment. The connection stays:
                # over it is acknowledged what is held.
                connection.give_notice()
                if loop.time() + self.settings.retry_wait_s >= deadline:
                    raise
                await asyncio.sleep(self.settings.retry_wait_s)

    async def _connection_for(self, request: ClientRequest[T], timeout_s: float) -> AsyncConnection:
        """What was begun on a connection to a broker that is shutting down is ended there, and nowhere else."""
        self.check()
        self._adopt(asyncio.get_running_loop())
        connection = self.connection
        if connection is not None and connection.lost_because is None and request.command in FINISHING:
            return connection
        return await self.connect(timeout_s)

    async def _claim(self, queue: str, request: ClientRequest[FireResult]) -> FireResult:
        return await self.ask(request)

    async def _account(self, queue: str, pointers: Pointers, request: ClientRequest[int]) -> int:
        return await self.ask(request)

    async def _tell(self, queue: str, pointers: Pointers, request: ClientRequest[int]) -> None:
        timeout_s = self.settings.timeout_s
        await (await self._connection_for(request, timeout_s)).tell(request, timeout_s)

    async def _wait_acks(self, timeout: float | None) -> int:
        self.check()
        connection = self.connection
        return 0 if connection is None else await connection.wait_acks(chosen_timeout_s(self.settings, timeout))

    async def _subscribe(self, queue: str, request: ClientRequest[int]) -> AsyncSubscription:
        connection = await self.connect()
        stream, timeout_s = Stream(), self.settings.timeout_s
        request_id = await connection.begin(request, stream, timeout_s)
        try:
            answer = await stream.next(timeout_s)
            if answer is None:
                raise StoreTimeoutError("SUBSCRIBE", int(timeout_s * 1000), "client.timeout_s")
            if answer.error is not None:
                raise answer.error
        except BaseException:
            # Given up: what it delivers all the same goes back, and it ends when its answer comes.
            connection.cancel(request_id, request, stream.answers)
            raise
        return AsyncSubscription(self.settings, connection, stream, request_id, queue, request)

    # -- the connection

    async def connect(self, timeout_s: float | None = None) -> AsyncConnection:
        """The connection; a new one when there is none, tried again with growing waits until ``connect_timeout_s``
        is over. Tasks that ask at the same time wait for the same attempt; one that is cancelled leaves it to the others.

        Raises StoreUnreachableError, UnauthenticatedError, ProtocolError, ClosedError.
        """
        loop = asyncio.get_running_loop()
        longest_s = self.settings.connect_timeout_s
        limit_s = longest_s if timeout_s is None else min(longest_s, timeout_s)
        deadline = loop.time() + limit_s
        mine = False
        while True:
            self.check()
            self._adopt(loop)
            connection = self.connection
            if connection is not None and connection.usable:
                return connection
            left_s = deadline - loop.time()
            if self._connecting is None and left_s > 0:
                mine = True
                self._connecting = loop.create_task(self._connect_anew(left_s))
                self._connecting.add_done_callback(self._connected)
            attempt = self._connecting
            # The attempt ends by itself, and then says why; a little later than this may be.
            if attempt is None or not (await asyncio.wait({attempt}, timeout=max(0.0, left_s) + _GRACE_S))[0]:
                what = f"still connecting after {limit_s:g} s (client.connect_timeout_s)"
                raise still_connecting(what, self.address, self._attempts)
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
        self._loop, self.connection, self._connecting = loop, None, None

    def _connected(self, attempt: asyncio.Task[None]) -> None:
        if self._connecting is attempt:
            self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # everybody who waited for it may be gone

    async def _connect_anew(self, limit_s: float) -> None:
        self._replace_connection(await self._open(limit_s))

    async def _open(self, limit_s: float) -> AsyncConnection:
        deadline = asyncio.get_running_loop().time() + limit_s
        attempts = self._attempts = Attempts()
        retrying = tenacity.AsyncRetrying(**retry_rules(self.settings, limit_s, attempts))
        try:
            return await retrying(self._open_once, deadline)
        except (OSError, IgnisError) as exc:
            raise explained(exc, self.address, attempts, time_tried(self.settings, limit_s)) from exc

    async def _open_once(self, deadline: float) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        left_s = max(0.01, deadline - loop.time())
        address = self.address
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: AsyncConnection(self.settings),
                    address.host,
                    address.port,
                    ssl=address.tls,
                    server_hostname=address.host if address.tls else None,
                ),
                left_s,
            )
        except asyncio.TimeoutError:
            raise ConnectionLostError(f"not connected within {left_s:g} s", sent=False) from None
        try:
            await connection.greet(address.hello(self.instance), max(0.01, deadline - loop.time()))
        except BaseException as exc:
            connection.lose("not let in")
            cut_off = isinstance(exc, ConnectionLostError) and address.tls is None
            if cut_off and await in_thread(speaks_tls, address):
                raise ssl.SSLError("cut off by a side that speaks TLS") from exc
            raise
        return connection

    async def close(self, timeout: float = 5.0, *, give_back: bool = True) -> None:
        """Ends the connection in order. Idempotent; nothing in a child after ``fork``.

        Args:
            timeout: bound, in seconds.
            give_back: what this client holds is pending again at once; False = it stays claimed until the sweeper
                comes.

        Raises what an `ack_nowait` was refused for, if nobody was told before; the client is closed then too.
        """
        if self._closed or self.forked:
            return
        self._closed = True
        if self._loop is not asyncio.get_running_loop():
            return  # never used, or its loop has ended and the connection with it
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting}, timeout=timeout)
        connection, self.connection = self.connection, None
        if connection is None:
            return
        refused: IgnisError | None = None
        try:
            await connection.wait_acks(timeout)
        except IgnisError as exc:
            refused = exc
        if connection.machine.state is State.READY:
            with contextlib.suppress(IgnisError):
                await connection.exchange(requests.disconnect(give_back), timeout)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.close(), timeout)
        self._leave(connection, "the client was closed")
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
