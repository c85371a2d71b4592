"""Loads through ``ignis://`` that are on their way at the same time, on one connection and so in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.protocol.machine import Answer
from ignis.errors import ConnectionLostError, DrainingError, StoreTimeoutError
from ignis.native import PackedBatch
from ignis.storage.in_flight import Gate
from ignis.storage.pending_load import PendingLoad

__all__ = ["begin"]

Placed = list[tuple[int, int, int]]

_NONE = Answer(None, 0, b"", None)


def begin(
    client: SyncClient,
    gate: Gate,
    request: ClientRequest[Placed],
    batches: Sequence[tuple[int, PackedBatch]],
    after: PendingLoad | None,
) -> PendingLoad | None:
    """Sends the request. None, and nothing was sent, when there is no connection, or another than the one that the load
    before is on: over two of them the second could overtake the first. So it is when the connection ends, or its broker is found
    to be shutting down, before anything is sent.

    Args:
        client: whose connection.
        gate: entered until the load's `result` was asked for.

    Raises ConnectionLostError (it may have been carried out), TooManyRequestsError, ForkedHandleError, ClosedError.
    """
    client.check()
    connection = client.connection
    if connection is None or not connection.usable or (isinstance(after, _Sent) and after.connection is not connection):
        return None
    gate.enter()
    try:
        sent = _Sent(client, gate, connection, request, batches)
    except BaseException as exc:
        gate.leave()
        if isinstance(exc, ConnectionLostError) and not exc.sent:
            return None  # it was found out behind the look above
        raise
    if isinstance(after, _Sent):
        after.following = sent
    return sent


class _Sent:
    """A load that was sent and is not answered: a `PendingLoad`. Holds the store open until `result`."""

    def __init__(
        self,
        client: SyncClient,
        gate: Gate,
        connection: SyncConnection,
        request: ClientRequest[Placed],
        batches: Sequence[tuple[int, PackedBatch]],
    ) -> None:
        self.connection = connection
        self._client = client
        self._gate = gate
        self._request = request
        self._batches = batches
        self._slot = Slot()
        self._timeout_s = client.settings.timeout_s
        self._deadline = time.monotonic() + self._timeout_s
        self._answer = _NONE
        self.following: _Sent | None = None
        self._request_id = connection.begin(request.command, request.payload, self._slot, self._deadline)

    def result(self) -> list[int]:
        try:
            self.gather()
            error = self._answer.error
            if isinstance(error, DrainingError) or (isinstance(error, ConnectionLostError) and not error.sent):
                placed = self._again()
            elif error is not None:
                raise error
            else:
                placed = self._request.parse(self._answer.payload)
        finally:
            self._gate.leave()
        for (shard, batch), (_, first, _) in zip(self._batches, placed, strict=True):
            batch.seal(0, shard, first)  # so that it is not loaded again
        return [first for _, first, _ in placed]

    def gather(self) -> None:
        """Waits for the answer, or that there is none in time."""
        if self._answer is not _NONE:
            return
        found = None
        try:
            found = self.connection.next_answer(self._slot, self._deadline - time.monotonic())
        finally:
            if found is None:
                self.connection.cancel(self._request_id, self._slot)
        if found is None:
            error = StoreTimeoutError("SEND_BATCH", int(1000 * self._timeout_s), "client.timeout_s")
            self._answer = _NONE._replace(error=error)
        else:
            self._answer = found

    def _again(self) -> Placed:
        """Sends the load again, on another connection. It was not carried out, and so nothing was that was sent behind it: each
        is sent again in its turn. This connection is given up, but not before it has answered them all."""
        self.connection.give_notice()
        following = self.following
        while following is not None:
            following.gather()
            following = following.following
        return self._client.ask(self._request)
