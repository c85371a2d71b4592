"""The commands of a client and of a subscription, spelled once for threads and for coroutines.

A command builds a request and hands it to the client's own way to ask: `SyncClient` sends it and waits, `AsyncClient` gives a
coroutine that does. So the command returns the result there and an awaitable of it here. `both` says so to the type checker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from ignis.broker.client import later_requests, requests
from ignis.broker.client.client_request import Batches, ClientRequest, Ttl
from ignis.broker.client.mortal import Lasting, mortal, mortal_batches
from ignis.native import ANY_SHARD
from ignis.storage.base import FireResult, Pointers
from ignis.storage.later import Delayed

__all__ = ["ClientCommands", "ForCoroutines", "ForThreads", "SubscriptionCommands"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class ForThreads:
    """A shell whose commands return their results."""


class ForCoroutines:
    """A shell whose commands return coroutines of their results."""


class _Command(Protocol[P, T_co]):
    """A command as the type checker sees it."""

    @overload
    def __get__(self, shell: None, owner: Any) -> Callable[..., Any]: ...
    @overload
    def __get__(self, shell: ForThreads, owner: Any) -> Callable[P, T_co]: ...
    @overload
    def __get__(self, shell: ForCoroutines, owner: Any) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


def both(method: Callable[Concatenate[Any, P], T]) -> _Command[P, T]:
    """Declares a method of both shells, written as it is for threads. Nothing happens to it at run time."""
    return cast("_Command[P, T]", method)


class _Client(Protocol[S_co]):
    """What the commands need of a client, as the one for threads has it."""

    def ask(self, request: ClientRequest[T], timeout: float | None = None) -> T: ...
    def _claim(self, queue: str, request: ClientRequest[FireResult]) -> FireResult: ...
    def _account(self, queue: str, pointers: Pointers, request: ClientRequest[int]) -> int: ...
    def _tell(self, queue: str, pointers: Pointers, request: ClientRequest[int]) -> None: ...
    def _wait_acks(self, timeout: float | None) -> int: ...
    def _subscribe(self, queue: str, request: ClientRequest[int]) -> S_co: ...


class ClientCommands(Generic[S]):
    """What is asked of a broker by name; anything else is asked with `ask`. Each raises what `ask` raises."""

    @both
    def ping(self: _Client[S], timeout: float | None = None) -> float:
        """Measures the seconds to the broker and back."""
        began_s, ping = time.monotonic(), requests.ping()
        request = ClientRequest(ping.command, ping.payload, lambda pong: time.monotonic() - began_s, ping.repeatable)
        return self.ask(request, timeout)

    @both
    def send(
        self: _Client[S], queue: str, record: bytes, *, shard: int = ANY_SHARD, ttl_s: Ttl = "queue",
        expires_in: Lasting = None, expires_at: datetime | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Stores one record (see `ignis.native.encode_record`); durable as the queue is. Returns (shard, pointer).

        ``ttl_s`` is for the store, which drops the record then. ``expires_in`` or ``expires_at`` is a deadline in its envelope,
        by this machine's wall clock: no handler begins with the message after it, and it goes where the queue's ``on_expiry``
        says."""
        return self.ask(requests.send(queue, mortal(record, expires_in, expires_at), shard=shard, ttl_s=ttl_s))

    @both
    def send_batch(
        self: _Client[S], queue: str, batches: Batches, *, ttl_s: Ttl = "queue",
        expires_in: Lasting = None, expires_at: datetime | None = None,
    ) -> list[tuple[int, int, int]]:  # fmt: skip
        """Stores packed batches; durable as the queue is. Returns (shard, first pointer, count) for each. Deadlines are as
        for `send`; with one the batches are packed anew."""
        if expires_in is not None or expires_at is not None:
            batches = mortal_batches(batches, expires_in, expires_at)
        return self.ask(requests.send_batch(queue, batches, ttl_s=ttl_s))

    @both
    def send_later(
        self: _Client[S], queue: str, record: bytes, delay_s: float, *, shard: int = ANY_SHARD, ttl_s: Ttl = "queue",
        expires_in: Lasting = None, expires_at: datetime | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Stores one record that nobody gets for so many seconds, by the store's clock; durable as the queue is. Returns where it
        waits until then: (shard, pointer), as `list_later` tells them. Deadlines are as for `send`, from now on."""
        record = mortal(record, expires_in, expires_at)
        return self.ask(later_requests.send_later(queue, record, delay_s, shard=shard, ttl_s=ttl_s))

    @both
    def list_later(
        self: _Client[S], queue: str, limit: int = 100, *, after: tuple[int, int, int] | None = None
    ) -> list[Delayed]:
        """Looks at what waits for its time, the next one first, beginning behind (due time, shard, pointer). Returns fewer than
        ``limit`` where the answer would be too large: go on behind the last, until nothing comes."""
        return self.ask(later_requests.list_later(queue, limit, after))

    @both
    def cancel_later(self: _Client[S], queue: str, pointers: Pointers) -> int:
        """Removes messages that wait for their time; returns how many were still there."""
        return self.ask(later_requests.cancel_named(queue, pointers))

    @both
    def run_now(self: _Client[S], queue: str, pointers: Pointers) -> int:
        """Puts messages that wait for their time to the queue's tail; returns how many were still there."""
        return self.ask(later_requests.run_named(queue, pointers))

    @both
    def consume(
        self: _Client[S], queue: str, limit: int = 1, wait_s: float = 0, *, max_bytes: int = 8 << 20
    ) -> FireResult:
        """Claims up to ``limit`` messages, and waits up to ``wait_s`` seconds for the first.

        What is not acknowledged is delivered again when this client ends, or has no connection for
        ``broker.redeliver_after_s``.
        """
        return self._claim(queue, requests.consume(queue, limit, wait_s, max_bytes))

    @both
    def ack(self: _Client[S], queue: str, pointers: Pointers) -> int:
        """Retires messages; returns how many of them this client held."""
        return self._account(queue, pointers, requests.ack(queue, pointers))

    @both
    def nack(
        self: _Client[S],
        queue: str,
        pointers: Pointers,
        *,
        delay_s: float = 0,
        sideline: bool = False,
        reason: str = "rejected",
        error: str = "",
    ) -> int:
        """Gives messages back, after ``delay_s`` if that is above 0, or moves them to the sideline with a reason and an error's
        text. Returns how many of them this client held."""
        request = requests.nack(queue, pointers, delay_s=delay_s, sideline=sideline, reason=reason, error=error)
        return self._account(queue, pointers, request)

    @both
    def renew(self: _Client[S], queue: str, pointers: Pointers) -> int:
        """Starts the stuck time of messages anew; returns how many of them this client does not hold (any more).

        Only what came over a connection that was lost since needs it: the broker itself renews what it delivered over the
        present one.
        """
        return self.ask(requests.renew_own(queue, pointers))

    @both
    def ack_nowait(self: _Client[S], queue: str, pointers: Pointers) -> None:
        """Sends an `ack` and does not wait for the answer: the next request follows at once, in this order.

        The messages are retired when the broker has done it, a moment later; those of a connection that is lost before
        come again. `wait_acks` and `close` wait for the answers. This call itself waits only when 64 have none yet.

        Raises what an earlier one was refused for (then these are not acknowledged), and what `ask` raises.
        """
        return self._tell(queue, pointers, requests.ack(queue, pointers))

    @both
    def wait_acks(self: _Client[S], timeout: float | None = None) -> int:
        """Waits until every `ack_nowait` is answered. Returns how many messages they retired since the last call: fewer
        than were named means that some had been given back before.

        Raises the first refusal since then, ConnectionLostError when it is not known what became of some, StoreTimeoutError.
        """
        return self._wait_acks(timeout)

    @both
    def subscribe(self: _Client[S], queue: str, credit: int = 256, *, max_bytes: int = 1 << 20) -> S:
        """Delivers messages of a queue as they come, at most ``credit`` (prefetch) of them unacknowledged.

        The subscription ends with the connection: ConnectionLostError. Subscribe again; what was not acknowledged comes
        again.
        """
        return self._subscribe(queue, requests.subscribe(queue, credit, max_bytes))


class _Subscription(Protocol):
    """What the commands need of a subscription, as the one for threads has it."""

    queue: str
    number: int

    def _ask(self, request: ClientRequest[T]) -> T: ...
    def _tell(self, request: ClientRequest[int]) -> None: ...
    def _wait_acks(self, timeout: float | None) -> int: ...
    def _receive(self, timeout: float | None) -> FireResult | None: ...
    def _close(self) -> None: ...


class SubscriptionCommands:
    """What is done with the deliveries of one queue, over the connection that they come by and no other.

    Attributes:
        queue: its name.
        number: of the subscription on its connection.
    """

    queue: str
    number: int

    @both
    def receive(self: _Subscription, timeout: float | None = None) -> FireResult | None:
        """Waits for the next delivery; None when none came within ``timeout`` seconds (None = ``client.timeout_s``).

        Raises ClosedError after `close`; ConnectionLostError, or why the broker ended the subscription, then and at each later
        call: subscribe again.
        """
        return self._receive(timeout)

    @both
    def ack(self: _Subscription, pointers: Pointers) -> int:
        """Retires messages of this subscription, which makes room for others."""
        return self._ask(requests.ack(self.queue, pointers))

    @both
    def nack(
        self: _Subscription,
        pointers: Pointers,
        *,
        delay_s: float = 0,
        sideline: bool = False,
        reason: str = "rejected",
        error: str = "",
    ) -> int:
        """Gives messages back, or moves them to the sideline, see `ClientCommands.nack`."""
        return self._ask(
            requests.nack(self.queue, pointers, delay_s=delay_s, sideline=sideline, reason=reason, error=error)
        )

    @both
    def ack_nowait(self: _Subscription, pointers: Pointers) -> None:
        """Sends an `ack` and does not wait for the answer, see `ClientCommands.ack_nowait`: `receive` may follow at once."""
        return self._tell(requests.ack(self.queue, pointers))

    @both
    def wait_acks(self: _Subscription, timeout: float | None = None) -> int:
        """Waits until every `ack_nowait` of the connection is answered, see `ClientCommands.wait_acks`."""
        return self._wait_acks(timeout)

    @both
    def set_credit(self: _Subscription, credit: int) -> None:
        """Delivers at most so many unacknowledged from now on; 0 pauses."""
        return self._ask(requests.credit(self.number, credit))

    @both
    def close(self: _Subscription) -> None:
        """Ends the deliveries. What was received and is not acknowledged stays with the connection; what was delivered and
        not received goes back. The client's `wait_acks` and `close` still report on `ack_nowait`."""
        return self._close()
