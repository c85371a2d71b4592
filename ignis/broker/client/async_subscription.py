"""A subscription of the client for coroutines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

from ignis.broker.client import requests
from ignis.broker.client.async_connection import AsyncConnection, Stream
from ignis.broker.client.client_base import chosen_timeout_s
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.commands import ForCoroutines, SubscriptionCommands
from ignis.config import ClientSettings
from ignis.errors import ClosedError, ConnectionLostError, IgnisError
from ignis.storage.base import FireResult

__all__ = ["AsyncSubscription"]

T = TypeVar("T")


class AsyncSubscription(ForCoroutines, SubscriptionCommands):
    """Deliveries of one queue; an async iterator of `FireResult`. For one task. Made by `AsyncClient.subscribe`."""

    def __init__(
        self,
        settings: ClientSettings,
        connection: AsyncConnection,
        stream: Stream,
        number: int,
        queue: str,
        request: ClientRequest[int],
    ) -> None:
        self.queue = queue
        self.number = number
        self._settings = settings
        self._connection = connection
        self._stream = stream
        self._request = request
        self._ended_by: IgnisError | None = None

    async def _ask(self, request: ClientRequest[T]) -> T:
        return request.parse(await self._connection.exchange(request, self._settings.timeout_s))

    async def _tell(self, request: ClientRequest[int]) -> None:
        await self._connection.tell(request, self._settings.timeout_s)

    async def _wait_acks(self, timeout: float | None) -> int:
        return await self._connection.wait_acks(chosen_timeout_s(self._settings, timeout))

    async def _receive(self, timeout: float | None) -> FireResult | None:
        if self._ended_by is not None:
            raise self._ended_by
        answer = await self._stream.next(chosen_timeout_s(self._settings, timeout))
        if answer is None:
            return None
        if answer.error is not None:
            self._ended_by = answer.error
            raise answer.error
        return requests.delivered(answer.payload)

    async def _close(self) -> None:
        try:
            with contextlib.suppress(ConnectionLostError):
                await self._ask(requests.unsubscribe(self.number))
        finally:
            self._ended_by = None
            self._connection.cancel(self.number, self._request, self._stream.answers)
            self._connection.end_stream(self.number, self._stream)

    async def __aiter__(self) -> AsyncIterator[FireResult]:
        while True:
            try:
                found = await self.receive()
            except ClosedError:
                return
            if found is not None:
                yield found

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
