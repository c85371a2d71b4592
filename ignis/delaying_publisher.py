"""The buffered publisher of a store that may keep delayed messages: these gather in a ring of their own, with a due time each."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ignis.config import PublisherSettings, check_timeout
from ignis.errors import ChannelFullError, DelayNotSupportedError, ForkedHandleError, PublishError
from ignis.later import due_time_ms
from ignis.magazine import Magazine
from ignis.native import PackedBatch, Receipt, id_text
from ignis.native.histogram import Histogram
from ignis.process_hooks import FORKS
from ignis.publisher import OnPlaced, Publisher, forget_publisher
from ignis.storage.base import Store

__all__ = ["DelayingPublisher"]

M = TypeVar("M")

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01


class DelayingPublisher(Publisher[M]):
    """A `Publisher` whose `send` takes ``delay`` and ``at``.

    The first delayed message makes a second ring and a second flusher, and starts them: who delays nothing pays nothing.
    `flush`, `close` and the counts are about both. Receipts are done when the message is durable, not when it is due.
    """

    def __init__(
        self,
        magazine: Magazine[M],
        settings: PublisherSettings,
        store: Store,
        *,
        on_stored: Callable[[int], None] | None = None,
        on_placed: OnPlaced | None = None,
        times: Histogram | None = None,
    ) -> None:
        self._store = store
        self._making = threading.Lock()
        self._delayed: _DelayedRing[M] | None = None
        self._forks = FORKS[0]
        super().__init__(magazine, settings, on_stored=on_stored, on_placed=on_placed, times=times)

    def _send_later(
        self, message: M, key: str | bytes | None, headers: dict[str, Any] | None, timeout: float, delay: Any, at: Any
    ) -> Receipt:
        return self._ring().send_later(message, key, headers, timeout, delay, at)

    def _ring(self) -> _DelayedRing[M]:
        """The ring of the delayed ones. Raises DelayNotSupportedError, ClosedError, ForkedHandleError."""
        if self._forks != FORKS[0]:
            raise ForkedHandleError("this publisher was made before fork(); make another in the child")
        with self._making:
            if self._closing or self._ended is not None:
                self._refuse()
            if self._delayed is None:
                if not self._magazine.store.keeps_later:
                    raise DelayNotSupportedError(type(self._magazine.store).__name__)
                self._delayed = _DelayedRing(self._magazine, self._settings, self._store, self._on_stored, self._times)
            return self._delayed

    def flush(self, timeout: float | None = None) -> None:
        delayed, began_s = self._delayed, time.monotonic()
        if delayed is not None:
            delayed.press()
        super().flush(timeout)
        if delayed is not None:
            delayed.flush(self.left_s(began_s, timeout))

    @property
    def sent(self) -> int:
        return super().sent + (0 if self._delayed is None else self._delayed.sent)

    @property
    def pending(self) -> int:
        return super().pending + (0 if self._delayed is None else self._delayed.pending)

    @property
    def failed(self) -> int:
        return super().failed + (0 if self._delayed is None else self._delayed.failed)

    def close(self, timeout: float | None = None) -> None:
        timeout = None if timeout is None else check_timeout(timeout)
        began_s, refused = time.monotonic(), None
        if self._delayed is not None:
            self._delayed.press()
        try:
            super().close(timeout)
        except PublishError as exc:
            refused = exc
        with self._making:  # from now on nobody makes one
            delayed = self._delayed
        try:
            if delayed is not None:
                delayed.close(self.left_s(began_s, timeout))
        except PublishError as exc:
            refused = refused or exc
        if refused is not None:
            raise PublishError(self.failed, refused.why) from refused.__cause__

    def end(self) -> bool:
        with self._making:
            ends, delayed = super().end(), self._delayed
        if delayed is None:
            return ends
        delayed.end()
        return ends and not delayed.is_flusher(threading.current_thread())

    def give_up(self) -> None:
        super().give_up()
        if self._delayed is not None:
            self._delayed.give_up()


class _NearClock:
    """This process's own clock in place of one that has to be asked for; what is reckoned by it is moved over in the flusher."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def wall_s(self) -> float:
        return self._store.wall_s()

    def now_s(self) -> float:
        return time.monotonic()


class _DelayedRing(Publisher[M]):
    """The delayed messages of one publisher. Its flusher stores what has gathered, with a due time for each, by its id."""

    def __init__(
        self,
        magazine: Magazine[M],
        settings: PublisherSettings,
        store: Store,
        on_stored: Callable[[int], None] | None,
        times: Histogram | None,
    ) -> None:
        self._store = store
        self._clock = _NearClock(store) if store.asks_clock else store
        self._dues_ms: dict[str, int] = {}
        """Id -> due time by `_clock`, of what is in the ring."""
        self._putting = threading.Lock()  # a message is in the ring and in the table, or in neither
        super().__init__(magazine, settings, on_stored=on_stored, times=times)
        forget_publisher(self)  # whoever flushes and closes all has the other one, which does it

    def send_later(
        self, message: M, key: str | bytes | None, headers: dict[str, Any] | None, timeout: float, delay: Any, at: Any
    ) -> Receipt:
        due_ms = due_time_ms(self._clock, delay, at)
        until_s, pause_s = time.monotonic() + timeout, _FIRST_PAUSE_S
        while True:
            try:
                with self._putting:
                    receipt = self._send_keyed(message, key, headers, 0.0)
                    self._dues_ms[receipt.id] = due_ms
                    return receipt
            except ChannelFullError:
                # Not within the lock: the flusher takes it, and makes the room.
                if not timeout:
                    raise
                if time.monotonic() >= until_s:
                    raise self._still_full() from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def is_flusher(self, thread: threading.Thread) -> bool:
        """Whether it would wait for itself."""
        return thread is self._flusher

    def press(self) -> None:
        """Somebody waits: what is there is not kept back."""
        self._press()

    def _load(self, count: int, batches: Sequence[tuple[int, PackedBatch]], shards: int, under_way: deque[Any]) -> None:
        """One load at a time: where a message waits for its time nobody counts on its place."""
        began_s = time.monotonic()
        try:
            with self._putting:
                dues_ms = [[self._dues_ms.pop(id_text(one)) for one in batch.ids()] for _, batch in batches]
            ahead_ms = self._ahead_ms()
            if ahead_ms:
                dues_ms = [[max(0, due_ms + ahead_ms) for due_ms in dues] for dues in dues_ms]
            batches, firsts = self._magazine.load_batches(batches, shards, dues_ms)
        except BaseException as exc:
            self._refused(count, exc)
        else:
            self._settle(count, batches, firsts, began_s)

    def _ahead_ms(self) -> int:
        """How far the store's clock is ahead of `_clock`; at most as much too far as it takes to ask, and never too little."""
        if self._clock is self._store:
            return 0
        asked_s = time.monotonic()
        return math.ceil((self._store.now_s() - asked_s) * 1000)
