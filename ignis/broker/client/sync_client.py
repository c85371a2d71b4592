"""The client for threads: connects when it is first used, and again when the connection was lost."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.claim_tracker import ClaimTracker
from ignis.broker.client.reconnect import Telling, explained, retry_rules, speaks_tls
from ignis.broker.client.requests import ClientRequest
from ignis.broker.client.slot import Slot
from ignis.broker.client.sync_connection import SyncConnection
from ignis.broker.protocol.table import FINISHING
from ignis.config import ClientSettings, check_timeout, resolve
from ignis.errors import (
    ClosedError,
    ConnectionLostError,
    DrainingError,
    ForkedHandleError,
    IgnisError,
    StoreTimeoutError,
    StoreUnreachableError,
)
from ignis.native.wire import Outgoing
from ignis.process_hooks import FORKS
from ignis.storage.base import FireResult, Pointers

__all__ = ["Subscription", "SyncClient"]

T = TypeVar("T")


class SyncClient:
    """A connection to a broker. Thread-safe: any number of threads may have requests under way. In a child after
    ``fork`` every call raises ForkedHandleError.

    Args:
        endpoint: where.
        settings: of ``[client]`` in ``docs/settings.md``.
    """

    def __init__(self, endpoint: BrokerAddress, settings: ClientSettings | Mapping[str, Any] | None = None) -> None:
        self.endpoint = endpoint
        self.settings = settings if isinstance(settings, ClientSettings) else resolve(ClientSettings, settings or {})
        self.instance = secrets.token_hex(16)
        self.connects = 0
        self.late_answers = 0
        self._tracking = ClaimTracker(self, keeps=False)
        self._forks = FORKS[0]
        self._connecting = threading.Lock()
        self._link: SyncConnection | None = None
        self._closed = False

    # -- requests

    def ask(self, ask: ClientRequest[T], timeout: float | None = None) -> T:
        """Sends the request and waits for its answer.

        Args:
            ask: one of `ignis.broker.client.requests`.
            timeout: seconds; None = ``client.timeout_s``. What the broker may wait by itself comes on top.

        Raises:
            what the broker answers; StoreTimeoutError, ConnectionLostError (``sent`` says whether it may have been
            carried out), StoreUnreachableError, ClosedError, ForkedHandleError. A request that is repeatable, or
            that did not leave this process, is sent again on a new connection before the time is up.
        """
        return ask.parse(self.exchange(ask, timeout))

    def exchange(self, ask: ClientRequest[T], timeout: float | None = None) -> bytes:
        """`ask`, without reading the answer."""
        timeout_s = self.settings.timeout_s if timeout is None else check_timeout(timeout)
        deadline = time.monotonic() + timeout_s
        while True:
            link = self._link_for(ask, max(0.001, deadline - time.monotonic()))
            try:
                left = max(0.001, deadline - time.monotonic()) + ask.extra_s
                return link.exchange(ask.command, ask.payload, left, ask.undo)
            except ConnectionLostError as exc:
                if self._closed:
                    raise ClosedError("the client is closed") from None
                if (exc.sent and not ask.repeatable) or time.monotonic() >= deadline:
                    raise
            except DrainingError:
                # Nothing was done. Another broker may be there at once, or this one again in a moment.
                link.lose("the broker is shutting down")
                if time.monotonic() + self.settings.retry_wait_s >= deadline:
                    raise
                time.sleep(self.settings.retry_wait_s)

    def exchange_alone(self, outgoing: Outgoing) -> bytes | None:
        """`exchange` of a request that may not be repeated, on a connection that stands and on which nobody else waits. None
        when there is none, and when nothing was done: `exchange` says why, or does it."""
        link = self._link
        if link is None or not link.usable or self._forks != FORKS[0]:
            return None
        try:
            return link.exchange_alone(outgoing, self.settings.timeout_s)
        except ConnectionLostError as exc:
            if self._closed:
                raise ClosedError("the client is closed") from None
            if exc.sent:
                raise
        except DrainingError:
            link.lose("the broker is shutting down")
        return None

    def _link_for(self, ask: ClientRequest[T], timeout_s: float) -> SyncConnection:
        """What was begun on a connection to a broker that is shutting down is ended there, and nowhere else."""
        link = self._link
        if link is not None and link.alive and (link.usable or ask.command in FINISHING):
            self.check()
            return link
        return self.connect(timeout_s)

    def ping(self, timeout: float | None = None) -> float:
        """Seconds there and back."""
        began_s = time.monotonic()
        self.ask(requests.ping(), timeout)
        return time.monotonic() - began_s

    # -- consuming

    def consume(self, queue: str, limit: int = 1, wait_s: float = 0, *, max_bytes: int = 8 << 20) -> FireResult:
        """Claims up to ``limit`` messages of a queue, waiting up to ``wait_s`` seconds for the first. What is not
        acknowledged when this client ends, or has no connection for ``broker.redeliver_after_s``, is delivered again."""
        with self._tracking.claiming(queue) as claims:
            found = self.ask(requests.consume(queue, limit, wait_s, max_bytes))
            claims.extend(found.claims)
        return found

    def ack(self, queue: str, pointers: Pointers) -> int:
        """Retires messages; returns how many of them this client held."""
        count = self.ask(requests.ack(queue, pointers))
        self._tracking.accounted(queue, pointers)
        return count

    def nack(self, queue: str, pointers: Pointers, **how: Any) -> int:
        """Gives messages back, or moves them to the sideline: see `ignis.broker.client.requests.nack`."""
        count = self.ask(requests.nack(queue, pointers, **how))
        self._tracking.accounted(queue, pointers)
        return count

    def renew(self, queue: str, pointers: Pointers) -> int:
        """Starts the stuck time of messages anew; returns how many of them this client does not hold (any more). Needed only
        for what came over a connection that was lost since: the broker renews what it delivered over the present one."""
        return self.ask(requests.renew_own(queue, pointers))

    def ack_soon(self, queue: str, pointers: Pointers) -> None:
        """`ack` that does not wait for the answer: the next request follows at once, in this order.

        The messages are retired when the broker has done it, a moment later; those of a connection that is lost before
        come again. `settle` and `close` wait for the answers. Waits itself only when 64 have none yet.

        Raises what an earlier one was refused for (then these are not acknowledged), and what `ask` raises.
        """
        self._tracking.accounted(queue, pointers)
        ask = requests.ack(queue, pointers)
        self._link_for(ask, self.settings.timeout_s).tell(ask.command, ask.payload, self.settings.timeout_s)

    def settle(self, timeout: float | None = None) -> int:
        """Waits until every `ack_soon` is answered; returns how many messages they retired since the last call: fewer
        than were named means that some had been given back before.

        Raises the first refusal since then, ConnectionLostError when it is not known what became of some, StoreTimeoutError.
        """
        self.check()
        return (
            0
            if self._link is None
            else self._link.settle(self.settings.timeout_s if timeout is None else check_timeout(timeout))
        )

    def subscribe(self, queue: str, credit: int = 256, *, max_bytes: int = 1 << 20) -> Subscription:
        """Messages of a queue as they come, at most ``credit`` of them unacknowledged.

        The subscription ends with the connection: ConnectionLostError. Subscribe again; what was not acknowledged
            comes again.
        """
        self._tracking.leave(queue)
        link = self.connect(self.settings.timeout_s)
        slot = Slot()
        ask = requests.subscribe(queue, credit, max_bytes)
        request_id = link.begin(
            ask.command, ask.payload, slot, time.monotonic() + self.settings.timeout_s, streams=True
        )
        try:
            answer = link.next_answer(slot, self.settings.timeout_s)
            if answer is None:
                raise StoreTimeoutError("SUBSCRIBE", int(self.settings.timeout_s * 1000), "client.timeout_s")
            if answer.error is not None:
                raise answer.error
        except BaseException:
            # Given up: what it delivers all the same goes back, and it ends when its answer comes.
            link.cancel(request_id, slot, ask.undo)
            raise
        return Subscription(self, link, slot, request_id, queue, ask)

    # -- the connection

    @property
    def link(self) -> SyncConnection | None:
        """The present connection."""
        return self._link

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the client."""
        return self._forks != FORKS[0]

    def check(self) -> None:
        """Raises ForkedHandleError, ClosedError."""
        if self._forks != FORKS[0]:
            raise ForkedHandleError("this client was made before fork(); make another in the child")
        if self._closed:
            raise ClosedError("the client is closed")

    def connect(self, timeout_s: float | None = None) -> SyncConnection:
        """The connection; a new one when there is none, tried again with growing waits until ``connect_timeout_s``
        is over.

        Raises StoreUnreachableError, UnauthenticatedError, ProtocolError.
        """
        self.check()
        link = self._link
        if link is not None and link.usable:
            return link
        limit_s = min(self.settings.connect_timeout_s, self.settings.timeout_s if timeout_s is None else timeout_s)
        if not self._connecting.acquire(timeout=limit_s):
            raise StoreUnreachableError(f"{self._where()}: another thread is still connecting after {limit_s:g} s")
        try:
            link = self._link
            if link is None or not link.usable:
                fresh = self._dial(limit_s)
                if link is not None:
                    self.late_answers += link.machine.late_answers
                    link.lose("another connection took its place")
                    fresh.unwaited.inherit(link.unwaited)
                link = self._link = fresh
                self.connects += 1
                if self._closed:  # meanwhile, by another thread, which did not see this one
                    self._link = None
                    fresh.lose("the client was closed")
                    raise ClosedError("the client is closed")
            return link
        finally:
            self._connecting.release()

    def _where(self) -> str:
        return f"broker {self.endpoint.host}:{self.endpoint.port}"

    def _dial(self, limit_s: float) -> SyncConnection:
        deadline = time.monotonic() + limit_s
        telling = Telling()
        retrying = tenacity.Retrying(sleep=self._nap, **retry_rules(self.settings, limit_s, telling))
        try:
            return retrying(self._dial_once, deadline)
        except (OSError, IgnisError) as exc:
            raise explained(exc, self.endpoint, telling) from exc

    def _nap(self, seconds: float) -> None:
        time.sleep(seconds)
        self.check()

    def _dial_once(self, deadline: float) -> SyncConnection:
        left_s = max(0.01, deadline - time.monotonic())
        sock = socket.create_connection((self.endpoint.host, self.endpoint.port), timeout=left_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.endpoint.tls is not None:
                sock = self.endpoint.tls.wrap_socket(sock, server_hostname=self.endpoint.host)
            link = SyncConnection(sock, self.settings.max_frame_bytes, self.settings.max_pending)
        except BaseException:
            sock.close()
            raise
        try:
            link.greet(self.endpoint.hello(self.instance), max(0.01, deadline - time.monotonic()))
        except ConnectionLostError as exc:
            if self.endpoint.tls is None and speaks_tls(self.endpoint):
                raise ssl.SSLError("cut off by a side that speaks TLS") from exc
            raise
        except BaseException:
            link.lose("not let in")
            raise
        return link

    def close(self, timeout: float = 5.0, *, give_back: bool = True) -> None:
        """Ends the connection in order. Idempotent; nothing in a child after ``fork``.

        Args:
            timeout: bound, in seconds.
            give_back: what this client holds is pending again at once; False = it stays claimed until the sweeper
                comes.

        Raises what an `ack_soon` was refused for, if nobody was told before; the client is closed then too.
        """
        if self._closed or self.forked:
            return
        self._closed = True
        link, self._link = self._link, None
        if link is None:
            return
        refused: IgnisError | None = None
        deadline = time.monotonic() + timeout
        try:
            link.settle(timeout)
        except IgnisError as exc:
            refused = exc
        ask = requests.disconnect(give_back)
        with contextlib.suppress(IgnisError):
            link.exchange(ask.command, ask.payload, max(0.01, deadline - time.monotonic()))
        self.late_answers += link.machine.late_answers
        link.lose("the client was closed")
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

    def __repr__(self) -> str:
        return f"<SyncClient {self.endpoint.host}:{self.endpoint.port}>"


class Subscription:
    """Deliveries of one queue. For one thread; acknowledge from any, with the client's `ack`."""

    def __init__(
        self,
        client: SyncClient,
        link: SyncConnection,
        slot: Slot,
        subscription: int,
        queue: str,
        ask: ClientRequest[int],
    ) -> None:
        self._ask = ask
        self.queue = queue
        self.number = subscription
        self._client = client
        self._link = link
        self._slot = slot

    def receive(self, timeout: float | None = None) -> FireResult | None:
        """The next delivery, or None when none came within ``timeout`` seconds (None = ``client.timeout_s``).

        Raises ConnectionLostError, ClosedError after `close`, or why the broker ended the subscription.
        """
        answer = self._link.next_answer(
            self._slot, self._client.settings.timeout_s if timeout is None else check_timeout(timeout)
        )
        if answer is None:
            return None
        if answer.error is not None:
            raise answer.error
        return requests.delivered(answer.payload)

    def ack(self, pointers: Pointers) -> int:
        """Retires messages of this subscription, which makes room for others."""
        return self._on_link(requests.ack(self.queue, pointers))

    def ack_soon(self, pointers: Pointers) -> None:
        """`ack` that does not wait for the answer, see `SyncClient.ack_soon`: the next `receive` follows at once."""
        ask = requests.ack(self.queue, pointers)
        self._link.tell(ask.command, ask.payload, self._client.settings.timeout_s)

    def settle(self, timeout: float | None = None) -> int:
        """See `SyncClient.settle`."""
        return self._link.settle(self._client.settings.timeout_s if timeout is None else check_timeout(timeout))

    def nack(self, pointers: Pointers, **how: Any) -> int:
        """See `ignis.broker.client.requests.nack`."""
        return self._on_link(requests.nack(self.queue, pointers, **how))

    def set_credit(self, credit: int) -> None:
        """At most so many unacknowledged from now on; 0 pauses."""
        self._on_link(requests.credit(self.number, credit))

    def close(self) -> None:
        """Nothing more is delivered. What was received and is not acknowledged stays with the connection; what was
        delivered and not received goes back. The client's `settle` and `close` still report on `ack_soon`."""
        try:
            with contextlib.suppress(ConnectionLostError):
                self._on_link(requests.unsubscribe(self.number))
        finally:
            self._link.cancel(self.number, self._slot, self._ask.undo)
            self._link.end_stream(self.number, self._slot)

    def _on_link(self, ask: ClientRequest[T]) -> T:
        """On the connection of the subscription and no other: a later one does not hold its messages."""
        return ask.parse(self._link.exchange(ask.command, ask.payload, self._client.settings.timeout_s))

    def __iter__(self) -> Iterator[FireResult]:
        while True:
            try:
                found = self.receive()
            except ClosedError:
                return
            if found is not None:
                yield found

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
