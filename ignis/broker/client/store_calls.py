"""The calls of an ``ignis://`` store: each goes through its client, and closing the store waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import tenacity

from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.claim_tracker import ClaimTracker
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.payloads import Connected
from ignis.config import ClientSettings
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    FrameTooLargeError,
    IgnisError,
    StoreTimeoutError,
    StoreUnreachableError,
    TooManyRequestsError,
    WaitTimeoutError,
)
from ignis.native import FRAME_HEADER_BYTES
from ignis.storage import transactions
from ignis.storage.in_flight import Gate

__all__ = ["LOOK_S", "StoreCalls"]

T = TypeVar("T")

_PAUSE_S = 0.25
_SHORT_PAUSE_S = 0.002
LOOK_S = 1.0
"""So often a queue is looked at for which nobody can wait."""
_WAKE_S = 2.0
"""So long a broker has to end what it holds back."""
_WAITING_SHARE = 0.75
"""Of the requests that a connection may have open: so many may be held back by the broker. The rest is for all others."""
_FRAME_ROOM_BYTES = 4_096
"""Of a frame for what is not records: its header, the magazine, where each batch goes."""


def _found_no_room(exc: BaseException) -> bool:
    """Whether the connection had as many requests open as it may have."""
    return isinstance(exc, TooManyRequestsError) and exc.setting in ("client.max_pending", "broker.max_pending")


def _most_waiting(connection: SyncConnection) -> int:
    return max(1, int(connection.machine.max_pending * _WAITING_SHARE))


class StoreCalls:
    """Runs the calls of one store. Thread-safe.

    Attributes:
        owner: in whose name this store claims.
        tracking: what it claimed and has not accounted for.
        gate: who is inside a call.
    """

    def __init__(self, address: BrokerAddress, settings: ClientSettings, owner: str) -> None:
        self.client = SyncClient(address, settings, resumes=True)
        self.tracking = ClaimTracker(self.client, keeps=True)
        self.gate = Gate("store", settings.timeout_s)
        self.owner = owner
        self._closing = False
        self._waits: dict[Slot, SyncConnection] = {}
        self._waits_lock = threading.Lock()
        self._deaf: tuple[SyncConnection, float] | None = None
        """The connection over which a `wake` had no answer, and when anything was heard over it last."""

    @property
    def broker(self) -> Connected | None:
        """What the broker said when the present connection was made."""
        connection = self.client.connection
        return None if connection is None else connection.machine.broker

    @property
    def most_load_bytes(self) -> int:
        """What the records of one request may take: what a frame does, once the broker has said it, and no more than a
        transaction of the store behind the broker."""
        broker = self.broker
        most = transactions.MOST_BYTES if broker is None else min(broker.max_frame_bytes, transactions.MOST_BYTES)
        return max(1, most - _FRAME_ROOM_BYTES)

    def check_size(self, payload_bytes: int) -> None:
        """Raises FrameTooLargeError before anything is sent: the broker would close the connection."""
        broker = self.broker
        if broker is not None and payload_bytes + FRAME_HEADER_BYTES > broker.max_frame_bytes:
            raise FrameTooLargeError(payload_bytes + FRAME_HEADER_BYTES, broker.max_frame_bytes)

    @contextmanager
    def call(self) -> Iterator[SyncClient]:
        """A call that `close` waits for. Raises ForkedHandleError, ClosedError."""
        if self.client.forked:
            self.client.check()
        self.gate.enter()
        try:
            yield self.client
        finally:
            self.gate.leave()

    def ask(self, request: ClientRequest[T]) -> T:
        """Asks once. Raises what the broker answers, and what `SyncClient.ask` raises.

        Where a thousand threads ask at once, those wait for whom the connection has no room. Such a request was not carried out.
        """
        if self.client.forked:
            self.client.check()
        self.gate.enter()
        try:
            try:
                return self.client.ask(request)
            except TooManyRequestsError as exc:
                if not _found_no_room(exc):
                    raise
            return self._ask_again(request)
        finally:
            self.gate.leave()

    def _ask_again(self, request: ClientRequest[T]) -> T:
        in_time = tenacity.stop_after_delay(self.client.settings.timeout_s)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_found_no_room),
            wait=tenacity.wait_random_exponential(multiplier=_SHORT_PAUSE_S, max=_PAUSE_S),
            stop=lambda state: self._closing or in_time(state),
            reraise=True,
        )
        answer: T = retrying(self.client.ask, request)
        return answer

    @property
    def may_wait(self) -> bool:
        """Whether there is room on the connection for one more request that is held back, as far as can be told."""
        connection = self.client.connection
        return connection is None or len(self._waits) < _most_waiting(connection)

    def wait(self, request: ClientRequest[int], seen: int) -> int:
        """`held_back`, which returns ``seen`` early when the connection is lost, or too many wait already."""
        try:
            return self.held_back(request) if request.extra_s else self.ask(request)
        except TooManyRequestsError:
            self.pause(request.extra_s, wanted_s=LOOK_S)
            return seen
        except (ConnectionLostError, StoreUnreachableError, StoreTimeoutError):
            self.pause(request.extra_s)
            return seen

    def pause(self, most_s: float = _PAUSE_S, *, wanted_s: float = _PAUSE_S) -> None:
        """The connection was lost, or too many wait: there is a moment before the next try. Raises ClosedError."""
        if self._closing:
            raise ClosedError("store is closed") from None
        time.sleep(min(wanted_s, max(0.0, most_s)))

    def held_back(
        self,
        request: ClientRequest[T],
        sent: Callable[[SyncConnection, float], None] | None = None,
        *,
        claims: bool = False,
    ) -> T:
        """Asks what the broker holds back for long; `close` ends it. Raises as `SyncClient.ask`, which it never repeats, and
        TooManyRequestsError when so many wait already that others would find no room on the connection.

        Args:
            sent: called behind the sending, with the connection, and until when more may be sent on it.
            claims: it may claim. On a new connection what is held is said first, and that waits for every claim that is under
                way: then ConnectionLostError, and nothing was sent.
        """
        with self.call() as client:
            slot = Slot()
            connection = client.connect()
            if claims and not self.tracking.in_step:
                raise ConnectionLostError("what is held is not said yet on a new connection", sent=False)
            deadline = time.monotonic() + client.settings.timeout_s + request.extra_s
            most = _most_waiting(connection)
            with self._waits_lock:
                if len(self._waits) >= most:
                    raise TooManyRequestsError(len(self._waits) + 1, most, "client.max_pending")
                self._waits[slot] = connection
            request_id = -1
            try:
                request_id = connection.begin(request.command, request.payload, slot, deadline)
                if sent is not None:
                    sent(connection, deadline)
                answer = connection.next_answer(slot, deadline - time.monotonic())
            finally:
                with self._waits_lock:
                    del self._waits[slot]
                if request_id >= 0 and (not slot.over or slot.answers):
                    connection.cancel(request_id, slot, request.undo)
            if answer is None:
                name = Command(request.command).name
                raise StoreTimeoutError(name, int(1000 * client.settings.timeout_s), "client.timeout_s")
            if answer.error is not None:
                connection.cancel(request_id, slot, request.undo)
                raise answer.error
            return request.parse(answer.payload)

    def wake(self, request: ClientRequest[None]) -> None:
        """Ends what the broker holds back of a magazine. Nothing to do without a connection: then nobody waits there. Of a broker
        that does not answer, or has no room for the request, it ends here whatever waits: a stop would wait for each of them, and
        for each queue."""
        with self.call() as client:
            connection = client.connection
            if connection is None or not connection.alive:
                return
            if self._deaf != (connection, connection.heard_s):
                try:
                    client.ask(request, _WAKE_S)
                    return
                except StoreTimeoutError:
                    self._deaf = connection, connection.heard_s
                except TooManyRequestsError as exc:
                    if not _found_no_room(exc):
                        raise
            self._interrupt(ConnectionLostError("the broker does not answer", sent=True), connection)

    def _interrupt(self, exc: IgnisError, only: SyncConnection | None = None) -> None:
        with self._waits_lock:
            waits = list(self._waits.items())
        for slot, connection in waits:
            if only in (None, connection):
                connection.interrupt(slot, exc)

    def close(self, timeout_s: float) -> None:
        """Ends the calls that wait, waits for the others, and closes the client. Raises WaitTimeoutError."""
        self._closing = True
        self.tracking.close()
        self.gate.close()
        deadline = time.monotonic() + timeout_s
        while True:
            self._interrupt(ClosedError("store is closed"))
            try:
                self.gate.wait_empty(min(0.05, max(0.0, deadline - time.monotonic())))
                break
            except WaitTimeoutError:
                if time.monotonic() >= deadline:
                    raise
        self.client.close(max(0.1, deadline - time.monotonic()), give_back=False)
