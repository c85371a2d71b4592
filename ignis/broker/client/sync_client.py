"""The client for threads: connects when it is first used, and again when the connection was lost."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.claim_tracker import ClaimTracker
from ignis.broker.client.client_base import ClientBase, chosen_timeout_s
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.commands import ForThreads
from ignis.broker.client.reconnect import Attempts, explained, retry_rules, speaks_tls, still_connecting, time_tried
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.client.sync_subscription import SyncSubscription
from ignis.broker.protocol.commands import Command
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
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.native.wire import Outgoing
from ignis.storage.base import FireResult, Pointers

__all__ = ["SyncClient", "exchange_alone"]

T = TypeVar("T")

log = logging.getLogger("ignis.broker")

_PUBLISHING = frozenset({Command.SEND, Command.SEND_BATCH, Command.LOAD_ONCE, Command.LOAD_LATER})
_LEAST_S = 0.001
"""With less left no attempt is made."""
_LET_GO_S = 1.0
"""So long the next broker may be there while the last one drains."""
_TAKE_ALONG_S = 2.0
_LAST_ANSWER_S = 1.0
"""So long an answer may take once nobody waits for a connection any more."""
_GLANCE_S = 0.1
"""So long a connection takes where nobody waits for one any more."""
_AWAY_S = 2.0
"""A broker that is there again before that, such as after a restart, is nothing to speak of."""
_SAY_AGAIN_S = 30.0


class SyncClient(ForThreads, ClientBase[SyncSubscription, SyncConnection]):
    """A connection to a broker. Thread-safe: any number of threads may have requests under way. In a child after
    ``fork`` every call raises ForkedHandleError.

    Args:
        address: where the broker is, and who wants in.
        settings: of ``[client]`` in ``docs/settings.md``.
        resumes: what it holds is said to the next broker at once, by its user (see `ClaimTracker`). So it stays claimed when
            that one is there before the last one has drained.
    """

    def __init__(
        self,
        address: BrokerAddress,
        settings: ClientSettings | Mapping[str, Any] | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        super().__init__(address, settings)
        self._resumes = resumes
        self._tracking = ClaimTracker(self, keeps=False)
        self._connecting = threading.Lock()
        self._lets_go = False
        """Whether somebody would publish, and needs the next broker for it."""
        self._attempts = Attempts()
        """Those of the thread that is connecting, or was."""
        self.until_s = math.inf
        """No connection is waited for after that moment of ``time.monotonic``, also by who waits already; nor an answer, by who
        asks from now on."""
        self._away_since_s: float | None = None
        self._said = LimitedLog(log, _SAY_AGAIN_S)
        self._drains: SyncConnection | None = None
        """The connection of which it was said that its broker shuts down."""

    # -- requests

    def ask(self, request: ClientRequest[T], timeout: float | None = None) -> T:
        """Sends the request and waits for its answer.

        Args:
            request: one of `ignis.broker.client.requests`.
            timeout: seconds; None = ``client.timeout_s``. What the broker may wait by itself comes on top.

        Raises:
            what the broker answers; StoreTimeoutError, ConnectionLostError (``sent`` says whether it may have been
            carried out), StoreUnreachableError, ClosedError, ForkedHandleError. A request that is repeatable, or
            that did not leave this process, is sent again on a new connection before the time is up.
        """
        timeout_s = chosen_timeout_s(self.settings, timeout)
        if self.until_s != math.inf:
            timeout_s = min(timeout_s, max(_LAST_ANSWER_S, self.until_s - time.monotonic()))
        deadline = time.monotonic() + timeout_s
        while True:
            connection = self._connection_for(request, max(0.001, deadline - time.monotonic()))
            try:
                left_s = max(0.001, deadline - time.monotonic()) + request.extra_s
                return request.parse(connection.exchange(request.command, request.payload, left_s, request.undo))
            except ConnectionLostError as exc:
                if self._closed:
                    raise ClosedError("the client is closed") from None
                if (exc.sent and not request.repeatable) or time.monotonic() >= deadline:
                    raise
            except DrainingError:
                # Nothing was done. Another broker may be there at once, or this one again in a moment. The connection stays:
                # over it is acknowledged what is held.
                connection.give_notice()
                if time.monotonic() + self.settings.retry_wait_s >= deadline:
                    raise
                time.sleep(self.settings.retry_wait_s)

    def _connection_for(self, request: ClientRequest[T], timeout_s: float) -> SyncConnection:
        """What was begun on a connection to a broker that is shutting down is ended there, and nowhere else."""
        connection = self.connection
        if connection is not None and connection.alive:
            if connection.usable or request.command in FINISHING:
                self.check()
                return connection
            self._lets_go = self._lets_go or request.command in _PUBLISHING
        return self.connect(timeout_s)

    def _claim(self, queue: str, request: ClientRequest[FireResult]) -> FireResult:
        with self._tracking.claiming(queue) as claims:
            found = self.ask(request)
            claims.extend(found.claims)
        return found

    def _account(self, queue: str, pointers: Pointers, request: ClientRequest[int]) -> int:
        count = self.ask(request)
        self._tracking.accounted(queue, pointers)
        return count

    def _tell(self, queue: str, pointers: Pointers, request: ClientRequest[int]) -> None:
        self._tracking.accounted(queue, pointers)
        timeout_s = self.settings.timeout_s
        self._connection_for(request, timeout_s).tell(request.command, request.payload, timeout_s)

    def _wait_acks(self, timeout: float | None) -> int:
        self.check()
        connection = self.connection
        return 0 if connection is None else connection.wait_acks(chosen_timeout_s(self.settings, timeout))

    def _subscribe(self, queue: str, request: ClientRequest[int]) -> SyncSubscription:
        self._tracking.leave(queue)
        timeout_s = self.settings.timeout_s
        connection = self.connect(timeout_s)
        slot = Slot()
        deadline = time.monotonic() + timeout_s
        with connection.calling:
            request_id = connection.begin(request.command, request.payload, slot, deadline, streams=True)
        try:
            answer = connection.next_answer(slot, timeout_s)
            if answer is None:
                raise StoreTimeoutError("SUBSCRIBE", int(timeout_s * 1000), "client.timeout_s")
            if answer.error is not None:
                raise answer.error
        except BaseException:
            # Given up: what it delivers all the same goes back, and it ends when its answer comes.
            connection.cancel(request_id, slot, request.undo)
            raise
        return SyncSubscription(self.settings, connection, slot, request_id, queue, request)

    # -- the connection

    def connect(self, timeout_s: float | None = None) -> SyncConnection:
        """The connection; a new one when there is none, tried again with growing waits until ``connect_timeout_s``
        is over.

        Raises StoreUnreachableError, UnauthenticatedError, ProtocolError, ClosedError.
        """
        self.check()
        connection = self.connection
        if connection is not None and connection.usable:
            return connection
        limit_s = min(self.settings.connect_timeout_s, self.settings.timeout_s if timeout_s is None else timeout_s)
        limit_s = min(limit_s, max(_GLANCE_S, self.until_s - time.monotonic()))
        deadline = time.monotonic() + limit_s
        if not self._connecting.acquire(timeout=limit_s):
            raise self._still_connecting(limit_s)
        try:
            connection = self.connection
            if connection is None or not connection.usable:
                if time.monotonic() > deadline - _LEAST_S:
                    raise self._still_connecting(limit_s)  # another's attempt ended with this one's time
                if connection is not None and connection.alive:
                    self._say_draining(connection)
                old, connection = connection, self._open(limit_s, deadline)
                if old is not None and old.alive and self._resumes:
                    self._take_along(old)
                self._replace_connection(connection)
                if self._closed:  # meanwhile, by another thread, which did not see this one
                    self.connection = None
                    connection.lose("the client was closed")
                    raise ClosedError("the client is closed")
            return connection
        finally:
            self._connecting.release()

    def _take_along(self, old: SyncConnection) -> None:
        """What is held stays claimed: a broker that drains would give it back with the end of the connection, at once."""
        request = requests.disconnect(False)
        with contextlib.suppress(IgnisError):
            old.exchange(request.command, request.payload, _TAKE_ALONG_S)

    def _still_connecting(self, limit_s: float) -> StoreUnreachableError:
        what = f"another thread is still connecting after {limit_s:g} s (client.connect_timeout_s)"
        return still_connecting(what, self.address, self._attempts)

    def _open(self, limit_s: float, deadline: float) -> SyncConnection:
        # Who has never connected gets the error at once; who lost a connection may be many threads that wait for the next one.
        attempts = self._attempts = Attempts(self._stay_away if self._resumes and self.connects else None)
        began_s = time.monotonic()
        rules = retry_rules(self.settings, max(0.0, deadline - began_s), attempts)
        in_time = rules.pop("stop")
        retrying = tenacity.Retrying(
            sleep=self._nap, stop=lambda state: in_time(state) or time.monotonic() >= self.until_s, **rules
        )
        try:
            connection: SyncConnection = retrying(self._open_once, deadline)
        except (OSError, IgnisError) as exc:
            tried_s = limit_s if self.until_s == math.inf else time.monotonic() - began_s
            raise explained(exc, self.address, attempts, time_tried(self.settings, tried_s)) from exc
        self._say_back()
        return connection

    def _stay_away(self, why: BaseException) -> None:
        """After an attempt that failed: says so, and lets go of a broker that drains where somebody would publish. That broker
        waits for what is held over the connection, and a handler that publishes waits for the next one."""
        now_s = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now_s
        old = self.connection
        if self._lets_go and old is not None and old.alive and now_s - self._away_since_s >= _LET_GO_S:
            self._take_along(old)
            old.lose("the broker is shutting down")
        if (away_s := now_s - self._away_since_s) >= _AWAY_S:
            self._said.warning(
                event_text("broker_away", "no connection to %s for %.0f s, trying again: %s"),
                self.address.name, away_s, str(why) or repr(why),
            )  # fmt: skip

    def _say_draining(self, old: SyncConnection) -> None:
        """Once, to whoever would take what follows for a crash."""
        if self._resumes and old is not self._drains:
            self._drains = old
            log.info(
                event_text(
                    "broker_drains",
                    "%s is shutting down: what is held is finished there, and the next one is looked for",
                ),
                self.address.name,
            )

    def _say_back(self) -> None:
        since_s, self._away_since_s = self._away_since_s, None
        self._lets_go = False
        if since_s is not None and (away_s := time.monotonic() - since_s) >= _AWAY_S:
            log.info(event_text("broker_back", "connected to %s again after %.0f s"), self.address.name, away_s)

    def _nap(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := min(end_s, self.until_s) - time.monotonic()) > 0:
            time.sleep(min(left_s, _GLANCE_S))
            self.check()

    def _open_once(self, deadline: float) -> SyncConnection:
        address = self.address
        left_s = max(0.01, deadline - time.monotonic())
        sock = socket.create_connection((address.host, address.port), timeout=left_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                sock = address.tls.wrap_socket(sock, server_hostname=address.host)
            connection = SyncConnection(sock, self.settings.max_frame_bytes, self.settings.max_pending)
        except BaseException:
            sock.close()
            raise
        try:
            connection.greet(address.hello(self.instance), max(0.01, deadline - time.monotonic()))
        except ConnectionLostError as exc:
            if address.tls is None and speaks_tls(address):
                raise ssl.SSLError("cut off by a side that speaks TLS") from exc
            raise
        except BaseException:
            connection.lose("not let in")
            raise
        return connection

    def close(self, timeout: float = 5.0, *, give_back: bool = True) -> None:
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
        connection, self.connection = self.connection, None
        if connection is None:
            return
        refused: IgnisError | None = None
        deadline = time.monotonic() + timeout
        try:
            connection.wait_acks(timeout)
        except IgnisError as exc:
            refused = exc
        request = requests.disconnect(give_back)
        with contextlib.suppress(IgnisError):
            connection.exchange(request.command, request.payload, max(0.01, deadline - time.monotonic()))
        self._leave(connection, "the client was closed")
        if refused is not None:
            raise refused

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except IgnisError:
            if exc is None:
                raise


def exchange_alone(client: SyncClient, outgoing: Outgoing) -> bytes | None:
    """The payload of the answer to a request that may not be repeated, on a connection that stands and on which nobody else
    waits. None when there is none, and when nothing was done: `SyncClient.ask` says why, or does it."""
    connection = client.connection
    if connection is None or client.forked:
        return None
    try:
        return connection.exchange_alone(outgoing, client.settings.timeout_s)
    except ConnectionLostError as exc:
        if client.closed:
            raise ClosedError("the client is closed") from None
        if exc.sent:
            raise
    except DrainingError:
        connection.give_notice()  # it stays: over it is acknowledged what is held
    return None
