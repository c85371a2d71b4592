"""The buffered publisher of a relay's producer: a message is encoded straight into the channel's file, and that is all."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Protocol, TypeVar

from ignis.config import PublisherSettings, RelaySettings, check_timeout
from ignis.errors import ClosedError, ForkedHandleError, NativeError, PublishError, WaitTimeoutError
from ignis.hooks import log_safely
from ignis.magazine import Magazine
from ignis.native import MappedOutbox, Receipt
from ignis.process_hooks import on_fork
from ignis.publisher import Publisher

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

    def new_outbox(self, queue: str, max_message_bytes: int, capacity: int) -> MappedOutbox:
        """A channel for messages of this queue by this process: a file of its own."""

    def timed_out(self, what: str, sent: bool = False) -> WaitTimeoutError:
        """The error for a wait that took too long: RelayAbsentError where no relay runs. ``sent``: it is in the channel."""


class RelayPublisher(Publisher[M]):
    """Writes messages into the channel of a relay, which stores them.

    It has the calls of `ignis.Publisher`, with these differences.

    * What `send` put into the channel survives the end of this process, ``kill -9`` included. It does not survive the
      machine: durable is what the receipt says.
    * There is no flusher thread. A thread that completes receipts exists only while somebody awaits one.
    * Usable after ``fork``: the child makes a channel of its own with its first message.
    """

    tells_stored = False

    def __init__(self, magazine: Magazine[M], settings: PublisherSettings, channels: Channels) -> None:
        self._channels = channels
        self.receipt_timeout_s = channels.settings.timeout_s
        super().__init__(magazine, settings)
        # After the store's own, whose locks the first message in the child needs: the store was there first.
        on_fork(in_child=_in_child)
        _all.add(self)

    def _open_outbox(self) -> MappedOutbox:
        outbox = self._channels.new_outbox(
            self._magazine.name, self._magazine.max_message_bytes, self._settings.capacity
        )
        ReceiptWatcher(outbox)
        return outbox

    def _start_flusher(self) -> None:
        return None

    def _still_full(self) -> WaitTimeoutError:
        text = (
            f"what waits for the relay left no room for {self._timeout_s:g} s (publisher.send_timeout_s; relay.capacity says "
            "how much may wait)"
        )
        return self._channels.timed_out(text)

    def timed_out(self, receipt: Receipt) -> WaitTimeoutError:
        """Says whether a relay was there to wait for: see RelayAbsentError."""
        text = f"message {receipt.id} is not durable within {self.receipt_timeout_s:g} s"
        return self._channels.timed_out(text, sent=True)

    def close(self, timeout: float | None = None) -> None:
        """Waits until everything is stored, then gives the channel up. Idempotent.

        The channel is given up in any case: what is still in it the relay stores later, and the file goes then.

        Raises:
            PublishError: the relay refused the channel.
            WaitTimeoutError: not everything was stored in time; RelayAbsentError: because no relay runs.
        """
        if self._closing:
            return
        timeout_s = self._settings.close_timeout_s if timeout is None else check_timeout(timeout)
        self._closing = True
        self._put = self._refuse
        outbox = self._outbox
        try:
            outbox.wait_settled(outbox.sent, timeout_s)
        except ForkedHandleError:
            return  # the parent's channel, which is not ours to close
        finally:
            failed, first = outbox.failed, outbox.first_error
            outbox.close()
        if failed:
            raise PublishError(failed, str(first)) from first

    def begin_in_child(self) -> None:
        """After ``fork``: the channel is the parent's. The first message of the child opens another."""
        if not self._closing:
            self._put = self._open_and_put

    def _open_and_put(self, *args: Any) -> Receipt:
        with self._channels.opening:
            if self._put == self._open_and_put:
                self._outbox = self._open_outbox()
                self._put = self._outbox.send
        return self._put(*args)


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
        threading.Thread(target=self._run, name="ignis-relay-receipts", daemon=True).start()

    def _run(self) -> None:
        while True:
            outbox = self._outbox()
            try:
                waiting = outbox is not None and outbox.watch(_WATCH_S)
            except (ClosedError, ForkedHandleError):
                return
            except NativeError as exc:
                log_safely(log, logging.ERROR, "the channel's file is damaged: %s", exc)  # its receipts have failed
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
