"""A subscription of the client for threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TypeVar

from ignis.broker.client import requests
from ignis.broker.client.client_base import chosen_timeout_s
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.commands import ForThreads, SubscriptionCommands
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.client.sync_transport import SLICE_S
from ignis.config import ClientSettings
from ignis.errors import ClosedError, ConnectionLostError, IgnisError
from ignis.storage.base import FireResult

__all__ = ["SyncSubscription"]

T = TypeVar("T")


class SyncSubscription(ForThreads, SubscriptionCommands):
    """Deliveries of one queue; an iterator of `FireResult`. For one thread; acknowledge from any, with the client's `ack`.
    Made by `SyncClient.subscribe`."""

    def __init__(
        self,
        settings: ClientSettings,
        connection: SyncConnection,
        slot: Slot,
        number: int,
        queue: str,
        request: ClientRequest[int],
    ) -> None:
        self.queue = queue
        self.number = number
        self._settings = settings
        self._connection = connection
        self._slot = slot
        self._request = request
        self._ended_by: IgnisError | None = None

    def _ask(self, request: ClientRequest[T]) -> T:
        return request.parse(self._connection.exchange(request.command, request.payload, self._settings.timeout_s))

    def _tell(self, request: ClientRequest[int]) -> None:
        self._connection.tell(request.command, request.payload, self._settings.timeout_s)

    def _wait_acks(self, timeout: float | None) -> int:
        return self._connection.wait_acks(chosen_timeout_s(self._settings, timeout))

    def _receive(self, timeout: float | None) -> FireResult | None:
        if self._ended_by is not None:
            raise self._ended_by
        timeout_s = chosen_timeout_s(self._settings, timeout)
        deadline = time.monotonic() + timeout_s
        if timeout_s >= SLICE_S:
            payload = self._connection.delivery_alone(self._slot, self.number, deadline)
            if payload is not None:
                return requests.delivered(payload)
            timeout_s = max(0.0, deadline - time.monotonic())
        answer = self._connection.next_answer(self._slot, timeout_s)
        if answer is None:
            return None
        if answer.error is not None:
            self._ended_by = answer.error
            raise answer.error
        return requests.delivered(answer.payload)

    def _close(self) -> None:
        try:
            with contextlib.suppress(ConnectionLostError):
                self._ask(requests.unsubscribe(self.number))
        finally:
            self._ended_by = None
            self._connection.cancel(self.number, self._slot, self._request.undo)
            self._connection.end_stream(self.number, self._slot)

    def __iter__(self) -> Iterator[FireResult]:
        while True:
            try:
                found = self.receive()
            except ClosedError:
                return
            if found is not None:
                yield found

    def __enter__(self) -> SyncSubscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
