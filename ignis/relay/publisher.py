"""The buffered publisher of a relay's producer: a message is encoded straight into the channel's file, and that is all."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any, Protocol, TypeVar

from ignis.config import PublisherSettings, RelaySettings
from ignis.deadlines import Deadline
from ignis.errors import ClosedError, ForkedHandleError, NativeError, PublishError, WaitTimeoutError
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.magazine import Magazine
from ignis.message import encode_key
from ignis.native import ANY_SHARD, MappedOutbox, Receipt, shard_for_key
from ignis.process_hooks import on_fork
from ignis.publisher import forget_publisher, why_of
from ignis.relay.due_times import with_due
from ignis.relay.lost_channel import give_up
from ignis.stacks import start_thread
from ignis.two_rings import TwoRingPublisher

__all__ = ["Channels", "ReceiptWatcher", "RelayPublisher"]

M = TypeVar("M")
log = logging.getLogger("ignis.relay")

_WATCH_S = 0.25

_all: weakref.WeakSet[RelayPublisher[Any]] = weakref.WeakSet()


class Channels(Protocol):
    """What a publisher needs of the producer's side of a relay."""

    settings: RelaySettings
    opening: threading.RLock
    """Held while a channel is made."""

    def new_outbox(self, queue: str, max_message_bytes: int, capacity: int, *, delayed: bool = False) -> MappedOutbox:
        """A channel for messages of this queue by this process: a file of its own. ``delayed``: each has a due time."""

    def check_delays(self) -> None:
        """Raises DelayNotSupportedError where the relay, or its store, takes no delayed messages."""

    def due_ms(self, delay: Any, at: Any) -> int:
        """When a message is due, by the wall clock. Raises ConfigError."""

    def timed_out(self, what: str, sent: bool = False, channel: Any = None) -> WaitTimeoutError:
        """The error for a wait that took too long: RelayAbsentError where no relay runs. ``sent``: it is in the channel, whose
        path is ``channel``."""


class RelayPublisher(TwoRingPublisher[M]):
    """Writes messages into the channel of a relay, which stores them.

    It has the calls of `ignis.Publisher`, with these differences.

    * What `send` put into the channel survives the end of this process, ``kill -9`` included. It does not survive the
      machine: durable is what the receipt says.
    * There is no flusher thread. A thread that completes receipts exists only while somebody awaits one.
    * Usable after ``fork``: the child makes a channel of its own with its first message.
    * Delayed messages have a channel of their own, which the first of them makes.
    * A channel that is removed or moved, with its directory perhaps, is replaced by the next message. The receipts of what was in
      it and not taken raise StoreUnreachableError.
    """

    tells_stored = False
    _second: _DelayedPublisher[M] | None = None
    _delays = False
    """Whether its channel is that of delayed messages."""
    _sent_before = 0
    """Messages in channels that were lost, all accounted for; and how many of them failed, and why the first did."""
    _failed_before = 0
    _error_before: BaseException | None = None

    def __init__(self, magazine: Magazine[M], settings: PublisherSettings, channels: Channels) -> None:
        self._channels = channels
        self.receipt_timeout_s = channels.settings.timeout_s
        super().__init__(magazine, settings)
        # After the store's own, whose locks the first message in the child needs: the store was there first.
        on_fork(in_child=_in_child)
        _all.add(self)

    def _open_outbox(self) -> MappedOutbox:
        outbox = self._channels.new_outbox(
            self._magazine.name, self._magazine.max_message_bytes, self._settings.capacity, delayed=self._delays
        )
        ReceiptWatcher(outbox)
        anew = weakref.WeakMethod(self._send_anew)

        def send_late(*arguments: Any) -> Receipt:
            send = anew()
            if send is None:
                raise ClosedError("the publisher is gone")
            return send(*arguments)

        outbox.on_late_send = send_late
        return outbox

    def _start_flusher(self) -> None:
        return None

    def _send_timed(
        self,
        message: M,
        key: str | bytes | None,
        headers: dict[str, Any] | None,
        timeout: float,
        later: tuple[Any, Any] | None,
        deadline: Deadline | None,
    ) -> Receipt:
        if later is None:  # the relay tells the store no deadline: it travels in the envelope alone
            return super()._send_timed(message, key, headers, timeout, later, deadline)
        due_ms = self._channels.due_ms(*later)
        delayed = self._second
        if delayed is None:
            self._channels.check_delays()
            with self._channels.opening:
                if self._closing:
                    self._refuse()
                delayed = self._second = self._second or _DelayedPublisher(
                    self._magazine, self._settings, self._channels
                )
        return delayed.send_due(message, key, headers, timeout, due_ms, deadline)

    def _still_full(self) -> WaitTimeoutError:
        text = (
            f"what waits for the relay left no room for {self._timeout_s:g} s (publisher.send_timeout_s; relay.capacity says "
            "how much may wait)"
        )
        return self._channels.timed_out(text)

    def timed_out(self, receipt: Receipt) -> WaitTimeoutError:
        """Says whether a relay was there to wait for: see RelayAbsentError."""
        text = f"message {receipt.id} is not durable within {self.receipt_timeout_s:g} s"
        return self._channels.timed_out(text, sent=True, channel=self._channel.path)

    @property
    def _channel(self) -> MappedOutbox:
        """The outbox that it has at this moment."""
        assert isinstance(self._outbox, MappedOutbox)
        return self._outbox

    @property
    def sent(self) -> int:
        return super().sent + self._sent_before

    @property
    def failed(self) -> int:
        return super().failed + self._failed_before

    def close(self, timeout: float | None = None) -> None:
        """Waits until everything is stored, then gives the channel up. Idempotent.

        The channel is given up in any case: what is still in it the relay stores later, and the file goes then.

        Raises:
            PublishError: the relay refused the channel, or one was removed with messages in it.
            WaitTimeoutError: not everything was stored in time; RelayAbsentError: because no relay runs.
        """
        if self._closing:
            return
        timeout_s = self.timeout_s(timeout)
        self.close_within(timeout_s, timeout_s)

    def close_within(self, left_s: float, of_s: float) -> None:
        if self._closing:
            return
        until_s = time.monotonic() + left_s
        own = self._put != self._open_and_put  # in a forked child that has sent nothing it is the parent's
        self._closing = True
        self._put = self._refuse
        with self._channels.opening:  # from now on nobody makes one
            delayed = self._second
        try:
            if own:
                self._close_own(left_s, of_s)
            else:
                self._outbox.close()
        finally:
            if delayed is not None:
                delayed.close_within(max(0.0, until_s - time.monotonic()), of_s)

    def _close_own(self, left_s: float, of_s: float) -> None:
        outbox = self._outbox
        try:
            outbox.wait_settled(outbox.sent, left_s, of_s)
        except ForkedHandleError:
            return  # the parent's channel, which is not ours to close
        finally:
            failed, first = outbox.failed + self._failed_before, self._error_before or outbox.first_error
            outbox.close()
        if failed:
            raise PublishError(failed, why_of(first)) from first

    def begin_in_child(self) -> None:
        """After ``fork``: the channel is the parent's. The first message of the child opens another."""
        self._sent_before = self._failed_before = 0
        self._error_before = None
        if not self._closing:
            self._put = self._open_and_put

    def _open_and_put(self, *args: Any) -> Receipt:
        with self._channels.opening:
            if self._put == self._open_and_put:
                self._outbox = self._open_outbox()
                self._put = self._outbox.send
        return self._put(*args)

    def _send_anew(self, *args: Any) -> Receipt:
        """`send` that finds its channel lost: through a new one."""
        found = self._channel  # perhaps another thread's new one already
        if found.lost:
            found.wait_settled(found.sent, 0)  # its receipts fail: callbacks run here, and not under the lock
        with self._channels.opening:
            lost = self._channel
            if self._closing:
                self._refuse()
            if lost.lost:
                self._outbox = outbox = self._open_outbox()
                self._put = outbox.send
                self._sent_before += lost.sent
                self._failed_before += lost.failed
                self._error_before = self._error_before or lost.first_error
        if lost is not self._outbox:
            give_up(lost)
        return self._put(*args)


class _DelayedPublisher(RelayPublisher[M]):
    """The delayed messages of one publisher, in a channel of their own: the due time of each is in its envelope."""

    _delays = True

    def __init__(self, magazine: Magazine[M], settings: PublisherSettings, channels: Channels) -> None:
        super().__init__(magazine, settings, channels)
        forget_publisher(self)  # whoever flushes and closes all has the other one, which does it

    def send_due(
        self,
        message: M,
        key: str | bytes | None,
        headers: dict[str, Any] | None,
        timeout: float,
        due_ms: int,
        deadline: Deadline | None,
    ) -> Receipt:
        raw_key = encode_key(key)
        shard = shard_for_key(raw_key, self._magazine.shards) if raw_key else ANY_SHARD
        meta = with_due(self._meta(headers, deadline), due_ms)
        return self._put(self._encode(message), shard, self._flags, raw_key, meta, timeout)


class ReceiptWatcher:
    """Completes the receipts of a mapped outbox that somebody awaits: one thread, and only while there are some."""

    def __init__(self, outbox: MappedOutbox) -> None:
        self._outbox = weakref.ref(outbox)
        self._lock = threading.Lock()
        self._running = False
        outbox.on_waiter = self.start

    def start(self) -> None:
        """Called by the outbox, from any thread, whenever somebody registers for a receipt."""
        with self._lock:
            if self._running:
                return
            self._running = True
        try:
            start_thread(threading.Thread(target=self._run, name="ignis-relay-receipts", daemon=True))
        except BaseException:
            with self._lock:
                self._running = False
            raise

    def _run(self) -> None:
        while True:
            outbox = self._outbox()
            try:
                waiting = outbox is not None and outbox.watch(_WATCH_S)
            except (ClosedError, ForkedHandleError):
                return
            except NativeError as exc:
                log_safely(
                    log, logging.ERROR, event_text("channel_damaged", "the channel's file is damaged: %s"), exc
                )  # its receipts have failed
                return
            except BaseException:
                with self._lock:
                    self._running = False  # whoever registers next starts another
                raise
            if waiting:
                continue
            with self._lock:
                # Whoever registered before this found us running, and is seen by one more look.
                if outbox is None or not outbox.watch(0):
                    self._running = False
                    return


def _in_child() -> None:
    for publisher in list(_all):
        publisher.begin_in_child()
