"""The buffered publisher: a message is encoded into the native ring and the caller goes on; a flusher thread moves what
gathers there into the store, one transaction per batch, and then completes the receipts.

The batch grows by itself with the load: while one transaction is being made durable, the next batch gathers. To a store
that is far away a few transactions are on their way at a time, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, TypeVar

from ignis.config import PublisherSettings, check_timeout
from ignis.deadlines import Deadline
from ignis.errors import (
    ChannelFullError,
    ClosedError,
    ConfigError,
    DelayNotSupportedError,
    ForkedHandleError,
    PublishError,
    StoreUnreachableError,
    WaitTimeoutError,
)
from ignis.hooks import call_user_code, log_safely
from ignis.log_format import event_text
from ignis.log_limit import LogLimit
from ignis.magazine import Magazine
from ignis.message import encode_key, encode_meta
from ignis.native import ANY_SHARD, Outbox, PackedBatch, Receipt, SendRing, ThreadBell, shard_for_key
from ignis.native.histogram import Histogram
from ignis.process_hooks import at_exit
from ignis.stacks import start_thread
from ignis.storage.base import MagazineStore
from ignis.storage.checks import MAX_TTL_S
from ignis.storage.pending_load import PendingLoad
from ignis.upkeep import in_thread

__all__ = ["Publisher", "end_publishers", "flush_publishers", "forget_publisher", "pending_messages", "why_of"]

M = TypeVar("M")
log = logging.getLogger("ignis.publisher")

_NO_MEMORY_S = 0.1
"""After so long the flusher goes on that ran out of memory."""

_IDLE_S = 0.25
"""The flusher looks this often whether it should stop; a message wakes it at once."""

_open: weakref.WeakSet[Publisher[Any]] = weakref.WeakSet()

OnPlaced = Callable[[Sequence[tuple[int, PackedBatch]], Sequence[int]], None]
"""Is told the batches of a load and the first pointer of each."""
_Loading = tuple[int, Sequence[tuple[int, PackedBatch]], PendingLoad, int, float]
"""Messages, their batches, the load that is under way, the number of shards that it was routed by, and when it began."""


class Publisher(Generic[M]):
    """Publishes through a buffer: `send` takes microseconds, and a thread, the flusher, stores what has gathered.

    Made by ``queue.publisher()``. Use it as a (sync or async) context manager, or call `close`.

    >>> from ignis import Ignis
    >>> with Ignis("memory://") as app:
    ...     orders = app.queue("orders", dict)
    ...     with orders.publisher() as publisher:
    ...         receipt = publisher.send({"id": 1})
    ...     receipt.done(), orders.main.pending()
    (True, 1)

    Thread-safe: `send` from several threads is serialised by the interpreter lock. Not usable after ``fork``.

    ``on_stored`` is called by the flusher with the size of each batch that became durable; what it raises is logged.
    ``on_placed`` is called before, with packed batches and the first pointer of each. ``times`` counts how long each load took.

    What is in the ring and not yet stored dies with the process: only a receipt that is done is durable.

    Neither a store's error, nor what a callback raises, nor a moment without memory ends the flusher. Should it end all the
    same, every receipt that is pending fails, `send` raises ClosedError and `close` raises PublishError: nothing waits for a
    thread that is gone.
    """

    tells_stored = True
    """Whether ``on_stored`` is called."""
    deadline_of: Callable[[Any, Any], Deadline | None] | None = None
    """What ``expires_in`` and ``expires_at`` mean for the queue; None = it is a magazine's publisher."""
    _put_after: Callable[..., Receipt] | None = None
    """Puts a message into a ring that reckons its due time itself, from a delay in seconds; None: there is none, or no more."""
    receipt_timeout_s: float | None = None
    """How long ``queue.apublish`` waits for a receipt; None = the store bounds its own calls."""

    def __init__(
        self,
        magazine: Magazine[M],
        settings: PublisherSettings,
        *,
        on_stored: Callable[[int], None] | None = None,
        on_placed: OnPlaced | None = None,
        times: Histogram | None = None,
    ) -> None:
        self._magazine = magazine
        self._times = times
        self._on_stored = on_stored
        self._on_placed = on_placed
        self._settings = settings
        self._encode = magazine.codec.encode_checked
        self._flags = magazine.codec.flags
        self._rerouting = False
        """Whether the number of shards has changed: a message in the ring may have been given its shard before."""
        self._timeout_s = settings.send_timeout_s
        self._outbox = self._open_outbox()
        self._put = self._sender()
        self._turn = itertools.count()
        self._closing = False
        self._doubtful = False
        """Whether there was no memory in the last round of the flusher."""
        self._taken = 0
        """Messages that the flusher has taken out of the ring, and neither handed on nor accounted for."""
        self._ended: ClosedError | None = None  # why the flusher is gone before `close`
        # Not an Event: that is Python, and an interrupt in the middle of its `set` leaves its lock taken for ever.
        self._hurry = ThreadBell()
        self._refusals = LogLimit()
        self._awaited = 0  # the last message that somebody waits for: up to there no lingering
        self._flusher: threading.Thread | None = self._start_flusher()
        at_exit(_flush_at_exit)
        _open.add(self)

    def _open_outbox(self) -> SendRing:
        return Outbox(capacity=self._settings.capacity, max_message_bytes=self._magazine.max_message_bytes)

    def _sender(self) -> Callable[..., Receipt]:
        """What puts an encoded message into the ring."""
        return self._outbox.send

    @property
    def _drained(self) -> Outbox:
        """The outbox, where a flusher drains it."""
        assert isinstance(self._outbox, Outbox)
        return self._outbox

    def _start_flusher(self) -> threading.Thread | None:
        name = f"ignis-flusher-{self._magazine.name}"
        flusher = threading.Thread(target=self._flush_loop, name=name, daemon=True)
        start_thread(flusher)
        return flusher

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sent={self.sent} pending={self.pending} failed={self.failed}>"

    def send(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        timeout: float | None = None,
        delay: float | str | timedelta | None = None,
        at: datetime | None = None,
        expires_in: float | str | timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Receipt:
        """Hands one message over; returns at once. Nothing is durable yet: wait on the receipt, or `flush`.

        Args:
            message: of the queue's type.
            key: routes to one shard, keeping the order of that key.
            headers: a small map kept in the envelope.
            timeout: seconds to wait when the ring is full (default ``publisher.send_timeout_s``); 0 raises at once.
            delay: nobody gets the message before so long from now; or ``at`` that time. As for ``queue.publish``.
            expires_in: no handler begins with it after so long from now; or ``expires_at`` that time. Likewise.

        Returns:
            A `Receipt`: ``done()``, ``result(timeout)`` (the id once durable, or the store's error), ``await``,
            ``add_done_callback``.

        Raises:
            ChannelFullError (timeout 0), WaitTimeoutError, MessageTooLargeError, InvalidMessageError, ClosedError,
            ForkedHandleError. DelayNotSupportedError: the store keeps no delayed messages.
        """
        if timeout is None:
            timeout = self._timeout_s
        elif timeout.__class__ is not float or not timeout >= 0:
            timeout = check_timeout(timeout)
        if delay is not None or at is not None:
            put = self._put_after
            if (
                put is not None and delay.__class__ is float and 0.0 < delay <= MAX_TTL_S and at is None and key is None
                and headers is None and expires_in is None and expires_at is None
            ):  # fmt: skip
                return put(self._encode(message), ANY_SHARD, self._flags, b"", b"", timeout, None, None, delay)
            deadline = None if expires_in is None and expires_at is None else self._deadline(expires_in, expires_at)
            return self._send_timed(message, key, headers, timeout, (delay, at), deadline)
        if expires_in is not None or expires_at is not None:
            return self._send_timed(message, key, headers, timeout, None, self._deadline(expires_in, expires_at))
        if key is None and headers is None:
            return self._put(self._encode(message), ANY_SHARD, self._flags, b"", b"", timeout)
        return self._send_keyed(message, key, headers, timeout)

    def _deadline(self, expires_in: Any, expires_at: Any) -> Deadline | None:
        if expires_in is None and expires_at is None:
            return None
        if self.deadline_of is None:
            raise ConfigError(
                f"magazine {self._magazine.name!r} is no queue: nobody says where an expired message goes"
            )
        return self.deadline_of(expires_in, expires_at)

    def _send_keyed(
        self,
        message: M,
        key: str | bytes | None,
        headers: dict[str, Any] | None,
        timeout: float,
        deadline: Deadline | None = None,
    ) -> Receipt:
        raw_key = encode_key(key)
        shard = shard_for_key(raw_key, self._magazine.shards) if raw_key else ANY_SHARD
        meta = b"" if headers is None and deadline is None else self._meta(headers, deadline)
        return self._put(self._encode(message), shard, self._flags, raw_key, meta, timeout)

    def _meta(self, headers: dict[str, Any] | None, deadline: Deadline | None) -> bytes:
        """The growing part of the envelope."""
        return encode_meta(headers, self._magazine.max_headers_bytes, None if deadline is None else deadline.at_ms)

    def _send_timed(
        self,
        message: M,
        key: str | bytes | None,
        headers: dict[str, Any] | None,
        timeout: float,
        later: tuple[Any, Any] | None,
        deadline: Deadline | None,
    ) -> Receipt:
        """`send` of a message that waits for its time (``later`` has ``delay`` and ``at``), or has a deadline. Who stores it is
        told no deadline here: whoever is about to handle the message looks at it."""
        if later is not None:
            raise DelayNotSupportedError(type(self._magazine.store).__name__)
        return self._send_keyed(message, key, headers, timeout, deadline)

    async def asend(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        delay: float | str | timedelta | None = None,
        at: datetime | None = None,
        expires_in: float | str | timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Receipt:
        """`send` that lets the event loop run while the ring is full."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = 0.0005
        while True:
            try:
                return self.send(
                    message, key=key, headers=headers, timeout=0, delay=delay, at=at, expires_in=expires_in, expires_at=expires_at
                )  # fmt: skip
            except ChannelFullError:
                if time.monotonic() >= deadline:
                    raise self._still_full() from None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.01)

    def _still_full(self) -> WaitTimeoutError:
        return WaitTimeoutError(f"publisher's ring stayed full for {self._timeout_s:g} s (publisher.send_timeout_s)")

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything sent before is durable (or refused: see `failed`). Raises WaitTimeoutError."""
        timeout_s = self.timeout_s(timeout)
        self.flush_within(timeout_s, timeout_s)

    def flush_within(self, left_s: float, of_s: float) -> None:
        """`flush` within what is left of a time that was begun; the error names all of it."""
        self._press()
        self._outbox.wait_settled(self._outbox.sent, left_s, of_s)

    def _press(self) -> None:
        self._awaited = self._outbox.sent
        self._hurry.ring()

    async def aflush(self, timeout: float | None = None) -> None:
        """`flush` off the event loop."""
        await in_thread(self.flush, timeout)

    @property
    def magazine(self) -> Magazine[M]:
        """Where its messages go."""
        return self._magazine

    @property
    def sent(self) -> int:
        """Messages handed over."""
        return int(self._outbox.sent)

    @property
    def pending(self) -> int:
        """Messages handed over and not yet durable."""
        return int(self._outbox.pending)

    @property
    def failed(self) -> int:
        """Messages that the store refused; their receipts raise its error."""
        return int(self._outbox.failed)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then stops the flusher. Idempotent.

        Raises:
            PublishError: some messages were refused by the store (their receipts say why).
            WaitTimeoutError: not everything was durable in time; the flusher goes on trying until the process ends.
        """
        if self._closing:
            return
        timeout_s = self.timeout_s(timeout)
        self.close_within(timeout_s, timeout_s)

    def close_within(self, left_s: float, of_s: float) -> None:
        """`close` within what is left of a time that was begun; the error names all of it."""
        if self._closing:
            return
        deadline = time.monotonic() + left_s
        self._closing = True
        self._put = self._refuse
        self._press()
        try:
            self._outbox.wait_settled(self._outbox.sent, left_s, of_s)
        except WaitTimeoutError:
            self._closing = False
            if self._ended is None:
                self._put = self._sender()
            raise
        failed, first = int(self._outbox.failed), self._outbox.first_error
        self._outbox.close()  # wakes the flusher, which has nothing left to do
        if self._flusher is not None:
            self._flusher.join(max(0.0, deadline - time.monotonic()) + _IDLE_S)
        _open.discard(self)
        if failed:
            raise PublishError(failed, why_of(first)) from first

    def end(self) -> bool:
        """The application is closed before its publisher: `send` raises ClosedError, and what is pending is hurried on.
        Returns whether there is somebody to wait for, see `flush`."""
        if self._flusher is None or self._ended is not None:
            return False
        self._ended = ClosedError(f"publisher of {self._magazine.name} is closed: its application was")
        self._put = self._refuse
        self._press()
        return threading.current_thread() is not self._flusher  # a callback of its own would wait for itself

    def timeout_s(self, timeout: float | None) -> float:
        """The seconds that its `flush` and `close` take for a ``timeout`` of theirs. Raises ConfigError."""
        return self._settings.close_timeout_s if timeout is None else check_timeout(timeout)

    def give_up(self) -> None:
        """After a `close` that ran out of time: the receipts that are pending fail with ClosedError, and the flusher ends. What
        was on its way may be stored or not."""
        self._closing = True
        self._put = self._refuse
        self._outbox.close()
        _open.discard(self)

    def timed_out(self, receipt: Receipt) -> WaitTimeoutError:
        """The error of a coroutine whose receipt was not done within `receipt_timeout_s`."""
        return WaitTimeoutError(f"message {receipt.id} is not durable within {self.receipt_timeout_s:g} s")

    def _refuse(self, *args: Any) -> Receipt:
        raise self._ended or ClosedError(f"publisher of {self._magazine.name} is closed")

    def _flush_loop(self) -> None:
        under_way: deque[_Loading] = deque()
        while True:
            try:
                self._flush_until_closed(under_way)
                return
            except MemoryError as exc:
                self._out_of_memory(under_way, exc)
            except BaseException as exc:
                self._give_up(exc)
                return

    def _out_of_memory(self, under_way: deque[_Loading], exc: MemoryError) -> None:
        """For a moment: what was taken out of the ring and not handed on is told so, and the flusher goes on."""
        self._doubtful = True
        count, self._taken = self._taken, 0
        if count:
            while under_way:
                self._finish(under_way)
            self._refused(count, exc)
        time.sleep(_NO_MEMORY_S)

    def _tell_lost(self, count: int, under_way: deque[_Loading]) -> None:
        """Whether a drain that ran out of memory took messages and could not say which: they come before the ``count`` of this
        one, and fail."""
        self._taken = count
        outbox, sent, depth = self._drained, -1, 0
        try:
            while sent != outbox.sent:  # others send meanwhile
                sent, depth = outbox.sent, outbox.depth()
        except ClosedError:
            return  # all receipts have failed; the next drain ends the flusher
        lost = sent - depth - outbox.settled - sum(loading[0] for loading in under_way) - count
        if lost > 0:
            while under_way:
                self._finish(under_way)
            self._refused(lost, MemoryError())
        self._taken, self._doubtful = 0, False

    def _give_up(self, exc: BaseException) -> None:
        """The flusher ends before its time. Whoever waits for it, or comes later, hears so."""
        error = ClosedError(
            f"publisher of {self._magazine.name}: its flusher ended, {type(exc).__name__}: {exc}; what was pending may be "
            "stored or not"
        )
        error.__cause__ = exc
        self._ended = error
        self._put = self._refuse
        self._outbox.close(error)
        log_safely(log, logging.CRITICAL, event_text("publisher_broken", "%s"), error, exc_info=exc)

    def _flush_until_closed(self, under_way: deque[_Loading]) -> None:
        outbox, settings = self._drained, self._settings
        shards = self._magazine.shards
        most = 1 if settings.linger_s else settings.loads_in_flight
        while True:
            if len(under_way) >= most:
                self._finish(under_way)
            if shards != self._magazine.shards:
                shards, self._rerouting = self._magazine.shards, True
            try:
                count, batches = self._drain(
                    settings.max_batch, min(settings.max_batch_bytes, self._magazine.store.most_load_bytes),
                    next(self._turn) % shards, shards, 0 if under_way else _IDLE_S,
                )  # fmt: skip
            except ClosedError:
                while under_way:
                    self._finish(under_way)
                return
            if self._doubtful:
                self._tell_lost(count, under_way)
            if count:
                self._taken = count
                if self._rerouting:
                    batches = self._routed(batches)
                self._load(count, batches, shards, under_way)
            elif under_way:
                self._finish(under_way)
                continue
            elif self._closing and not outbox.pending:
                return
            else:
                continue
            if settings.linger_s:
                while under_way:
                    self._finish(under_way)
                self._hurry.silence()
                if outbox.settled >= self._awaited and not self._closing:
                    self._hurry.wait(settings.linger_s)

    def _drain(
        self, most: int, most_bytes: int, any_shard: int, shards: int, timeout_s: float
    ) -> tuple[int, Sequence[tuple[int, PackedBatch]]]:
        """How many of the messages that come next are stored together, and their batches."""
        return self._drained.drain(most, most_bytes, any_shard, shards, timeout_s)

    def _routed(self, batches: Sequence[tuple[int, PackedBatch]]) -> Sequence[tuple[int, PackedBatch]]:
        """By the number of shards that there is now."""
        return self._magazine.routed(batches)

    def _load(
        self, count: int, batches: Sequence[tuple[int, PackedBatch]], shards: int, under_way: deque[_Loading]
    ) -> None:
        """Begins a load behind those that are under way; where that is not possible, after they are done."""
        began_s = 0.0
        try:
            began_s = time.monotonic()
            begun = self._magazine.begin_load(batches, shards, under_way[-1][2] if under_way else None)
            if begun is not None:
                under_way.append((count, *begun, self._magazine.shards, began_s))
                self._taken = 0
                return
            while under_way:
                self._finish(under_way)
            batches, firsts = self._magazine.load_batches(batches, shards)
        except BaseException as exc:
            while under_way:
                self._finish(under_way)
            self._taken = 0
            self._refused(count, exc)
        else:
            self._taken = 0
            self._settle(count, batches, firsts, began_s)

    def _finish(self, under_way: deque[_Loading]) -> None:
        """Waits for the oldest load."""
        count, batches, loading, shards, began_s = under_way.popleft()
        try:
            try:
                firsts = loading.result()
            except ConfigError:
                if not self._magazine.follow_shards() and self._magazine.shards == shards:
                    raise
                batches, firsts = self._magazine.load_batches(batches, shards)
        except BaseException as exc:
            self._refused(count, exc)
        else:
            self._settle(count, batches, firsts, began_s)

    def _refused(self, count: int, exc: BaseException) -> None:
        error = exc
        with contextlib.suppress(MemoryError):
            error = self._error_of(count, exc)
        self._account(count, error)
        with contextlib.suppress(MemoryError):
            if told := self._refusals.due("", count):  # a store that is full refuses each batch
                log_safely(
                    log,
                    logging.ERROR,
                    event_text("publish_failed", "%d buffered message(s) for %s failed: %s"),
                    told,
                    self._magazine.name,
                    error,
                )

    def _error_of(self, count: int, exc: BaseException) -> BaseException:
        """What the receipts raise."""
        if isinstance(exc, MemoryError):
            error: BaseException = StoreUnreachableError(
                f"publisher of {self._magazine.name}: no memory is left; whether it is stored is not known"
            )
        elif isinstance(exc, Exception):
            return exc if self._magazine.registration is None else self._magazine.registration.explain(exc)
        else:
            # Raised by a receipt, it would end the program or cancel the task of whoever asks.
            error = PublishError(count, f"{type(exc).__name__}: {exc}")
        error.__cause__ = exc
        return error

    def _account(self, count: int, error: BaseException | None) -> None:
        """The next ``count`` messages are durable, or failed. Once, however often there is no memory for it meanwhile: those that
        come later would be taken for them."""
        outbox, up_to = self._drained, 0
        while True:
            try:
                up_to = up_to or outbox.settled + count
                left = up_to - outbox.settled
                if left and error is not None:
                    outbox.fail(left, error)
                else:
                    outbox.settle(left)  # 0: only those who wait are called
                return
            except MemoryError:
                time.sleep(_NO_MEMORY_S)

    def _settle(
        self, count: int, batches: Sequence[tuple[int, PackedBatch]], firsts: Sequence[int], began_s: float
    ) -> None:
        with contextlib.suppress(MemoryError):
            if self._times is not None:
                self._times.add_since(began_s)
            if self._on_placed is not None:
                self._on_placed(batches, firsts)
        self._account(count, None)
        if self._on_stored is not None:
            with contextlib.suppress(MemoryError):
                call_user_code(
                    log,
                    event_text("on_stored_failed", f"on_stored failed for {count} message(s) of {self._magazine.name}"),
                    self._on_stored,
                    count,
                )

    def __enter__(self) -> Publisher[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Publisher[M]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self.close)


def why_of(exc: BaseException | None) -> str:
    """What the first error says; of one that counts messages itself, without its count."""
    return exc.why if isinstance(exc, PublishError) else str(exc)


def pending_messages() -> int:
    """Messages in all publishers of this process that are not durable yet."""
    return sum(publisher.pending for publisher in list(_open))


def forget_publisher(publisher: Publisher[Any]) -> None:
    """It is part of another one, which answers for it."""
    _open.discard(publisher)


def flush_publishers(magazine: Magazine[Any], timeout: float | None = None) -> None:
    """Flushes every publisher of this process that is open on the magazine. Raises as `Publisher.flush`."""
    for publisher in list(_open):
        if publisher.magazine is magazine:
            publisher.flush(timeout)


def end_publishers(magazines: MagazineStore, timeout: float | None = None) -> None:
    """The store is about to be closed for good: its publishers take nothing more, and what they hold is stored. Those of a
    relay, which go on, are left.

    Args:
        magazines: of the store.
        timeout: seconds for all of them; None = each publisher's ``close_timeout_s``. What is not stored by then is logged,
            and fails with the store.
    """
    began_s = time.monotonic()
    ended = [one for one in list(_open) if one.magazine.store is magazines and one.end()]
    for publisher in ended:
        try:
            of_s = publisher.timeout_s(timeout)
            publisher.flush_within(max(0.0, began_s + of_s - time.monotonic()), of_s)
        except ForkedHandleError:
            continue  # the parent's
        except WaitTimeoutError as exc:
            log.error(
                event_text("publisher_left_messages", "%d message(s) for %s: %s"),
                publisher.pending,
                publisher.magazine.name,
                exc,
            )


def _flush_at_exit() -> None:
    """A publisher that nobody closed still gets its messages stored when the interpreter ends normally."""
    for publisher in list(_open):
        try:
            publisher.close()
        except ForkedHandleError:
            continue  # the parent's; it closes its own
        except Exception as exc:
            log.error(event_text("publisher_left_open", "publisher left open at exit: %s"), exc)
