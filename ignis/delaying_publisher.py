"""The buffered publisher of a store that may keep delayed messages: these, and those that the store is to retire at a deadline,
gather in a ring of their own, with their times."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ignis.config import PublisherSettings
from ignis.deadlines import LEAST_TTL_S, Deadline
from ignis.errors import DelayNotSupportedError, ForkedHandleError, PublishError
from ignis.later import due_time_ms
from ignis.magazine import Magazine, route_with_dues
from ignis.message import encode_key
from ignis.native import ANY_SHARD, Outbox, PackedBatch, Receipt, shard_for_key
from ignis.native.histogram import Histogram
from ignis.process_hooks import FORKS
from ignis.publisher import OnPlaced, Publisher, forget_publisher
from ignis.storage.base import Store
from ignis.two_rings import TwoRingPublisher

__all__ = ["DelayingPublisher"]

M = TypeVar("M")

_NOISE_MS = 50
"""Two reckonings of one due time that differ by less are the same."""
_MOST_TIMES = 1_000
"""Due times that are remembered."""
_STEP_MS = 100
"""Messages whose deadlines lie within so much go to the store together, and are retired there at the end of it."""


class DelayingPublisher(TwoRingPublisher[M]):
    """A `Publisher` whose `send` takes ``delay`` and ``at``, and tells the store the deadlines.

    The first message with such a time makes a second ring and a second flusher, and starts them: who has none pays nothing.
    `flush`, `close` and the counts are about both. Receipts are done when the message is durable, not when it is due.
    """

    _second: _TimedRing[M] | None = None

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
        self._forks = FORKS[0]
        super().__init__(magazine, settings, on_stored=on_stored, on_placed=on_placed, times=times)

    def _send_timed(
        self,
        message: M,
        key: str | bytes | None,
        headers: dict[str, Any] | None,
        timeout: float,
        later: tuple[Any, Any] | None,
        deadline: Deadline | None,
    ) -> Receipt:
        if later is None and (deadline is None or deadline.ttl_s is None):  # the store need not know
            return super()._send_timed(message, key, headers, timeout, later, deadline)
        ring = self._second
        if ring is None or self._closing or self._ended is not None or self._forks != FORKS[0] or not ring.delays:
            ring = self._ring(later is not None)
        return ring.send_timed(message, key, headers, timeout, later, deadline)

    def _ring(self, delayed: bool) -> _TimedRing[M]:
        """The ring of those with a time. Raises DelayNotSupportedError, ClosedError, ForkedHandleError."""
        if self._forks != FORKS[0]:
            raise ForkedHandleError("this publisher was made before fork(); make another in the child")
        with self._making:
            if self._closing or self._ended is not None:
                self._refuse()
            if delayed and not self._magazine.store.keeps_later:
                raise DelayNotSupportedError(type(self._magazine.store).__name__)
            if self._second is None:
                self._second = _TimedRing(self._magazine, self._settings, self._store, self._on_stored, self._times)
                if self._second.delays and self._store.of_boottime_ms is not None:
                    self._put_after = self._second.putter
            return self._second

    def close(self, timeout: float | None = None) -> None:
        of_s = self.timeout_s(timeout)
        until_s, refused = time.monotonic() + of_s, None
        self._put_after = None
        if self._second is not None:
            self._second._press()
        try:
            super().close(of_s)
        except PublishError as exc:
            refused = exc
        with self._making:  # from now on nobody makes one
            timed = self._second
        try:
            if timed is not None:
                timed.close_within(max(0.0, until_s - time.monotonic()), of_s)
        except PublishError as exc:
            refused = refused or exc
        if refused is not None:
            raise PublishError(self.failed, refused.why) from refused.__cause__

    def end(self) -> bool:
        with self._making:
            self._put_after = None
            ends, timed = super().end(), self._second
        if timed is None:
            return ends
        timed.end()
        return ends and not timed.is_flusher(threading.current_thread())

    def give_up(self) -> None:
        self._put_after = None
        super().give_up()
        if self._second is not None:
            self._second.give_up()


class _NearClock:
    """This process's own clock in place of one that has to be asked for; what is reckoned by it is moved over in the flusher."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def wall_s(self) -> float:
        return self._store.wall_s()

    def now_s(self) -> float:
        return time.monotonic()


class _SameTimes:
    """One answer for one question: what was reckoned for a time holds for it again, so that messages for the same time keep their
    order. Each reckoning is off by what passes between two looks at the clocks. One that is off by more follows a clock that was
    set."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def settled_ms(self, asked: Any, reckoned_ms: int) -> int:
        known_ms = self._known.get(asked)
        if known_ms is not None and abs(known_ms - reckoned_ms) <= _NOISE_MS:
            return known_ms
        if len(self._known) >= _MOST_TIMES:
            self._known.clear()
        self._known[asked] = reckoned_ms
        return reckoned_ms


class _TimedRing(Publisher[M]):
    """The messages of one publisher that have a time. Its flusher stores what has gathered: with a due time for each, and
    together only what the store retires at the same time, since a load has one time to live."""

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
        self._asked, self._moved = _SameTimes(), _SameTimes()  # by `at`, and by the due time of `_clock`
        self._settling = threading.Lock()
        self.delays = magazine.store.keeps_later
        """Whether it takes delayed messages."""
        self._dues_ms: Sequence[Sequence[int]] | None = None
        """Of what the flusher has drained, by `_clock`; None = it does not wait."""
        self._until: int | None = None
        """When the store retires that, in steps of `_STEP_MS` since 1970; None = it is told nothing."""
        super().__init__(magazine, settings, on_stored=on_stored, times=times)
        forget_publisher(self)  # whoever flushes and closes all has the other one, which does it

    def _open_outbox(self) -> Outbox:
        return Outbox(
            capacity=self._settings.capacity, max_message_bytes=self._magazine.max_message_bytes, timed=True,
            of_boottime_ms=self._store.of_boottime_ms,
        )  # fmt: skip

    def _sender(self) -> Callable[..., Receipt]:
        return self.putter

    @property
    def putter(self) -> Callable[..., Receipt]:
        """Puts an encoded message into the ring, with its times."""
        return self._drained.send_timed

    def send_timed(
        self,
        message: M,
        key: str | bytes | None,
        headers: dict[str, Any] | None,
        timeout: float,
        later: tuple[Any, Any] | None,
        deadline: Deadline | None,
    ) -> Receipt:
        due_ms = None if later is None else due_time_ms(self._clock, *later)
        if due_ms is not None and later is not None and later[1] is not None:
            with self._settling:
                due_ms = self._asked.settled_ms(later[1], due_ms)
        if key is None and headers is None and deadline is None:
            return self._put(self._encode(message), ANY_SHARD, self._flags, b"", b"", timeout, due_ms)
        until = None if deadline is None or deadline.ttl_s is None else math.ceil(deadline.at_ms / _STEP_MS)
        raw_key = encode_key(key)
        shard = shard_for_key(raw_key, self._magazine.shards) if raw_key else ANY_SHARD
        meta = b"" if headers is None and deadline is None else self._meta(headers, deadline)
        return self._put(self._encode(message), shard, self._flags, raw_key, meta, timeout, due_ms, until)

    def _drain(
        self, most: int, most_bytes: int, any_shard: int, shards: int, timeout_s: float
    ) -> tuple[int, Sequence[tuple[int, PackedBatch]]]:
        count, batches, self._dues_ms, self._until = self._drained.drain_timed(
            most, most_bytes, any_shard, shards, timeout_s
        )
        return count, batches

    def _routed(self, batches: Sequence[tuple[int, PackedBatch]]) -> Sequence[tuple[int, PackedBatch]]:
        if self._dues_ms is None:
            return super()._routed(batches)
        batches, self._dues_ms = route_with_dues(batches, self._dues_ms, self._magazine.shards)
        return batches

    def is_flusher(self, thread: threading.Thread) -> bool:
        """Whether it would wait for itself."""
        return thread is self._flusher

    def _load(self, count: int, batches: Sequence[tuple[int, PackedBatch]], shards: int, under_way: deque[Any]) -> None:
        """One load at a time: where a message waits for its time nobody counts on its place."""
        began_s = 0.0
        try:
            began_s = time.monotonic()
            dues_ms = self._dues_ms
            if dues_ms is not None and (ahead_ms := self._ahead_ms()):
                settled_ms = self._moved.settled_ms
                dues_ms = [[max(0, settled_ms(due_ms, due_ms + ahead_ms)) for due_ms in some] for some in dues_ms]
            batches, firsts = self._magazine.load_batches(batches, shards, dues_ms, self._deadline_of(self._until))
        except BaseException as exc:
            self._taken = 0
            self._refused(count, exc)
        else:
            self._taken = 0
            self._settle(count, batches, firsts, began_s)

    def _deadline_of(self, until: int | None) -> Deadline | None:
        """For the store; each message has its own in its envelope."""
        if until is None:
            return None
        at_ms = until * _STEP_MS
        return Deadline(at_ms, max(at_ms / 1000 - self._store.wall_s(), LEAST_TTL_S))

    def _ahead_ms(self) -> int:
        """How far the store's clock is ahead of `_clock`; at most as much too far as it takes to ask, and never too little."""
        if self._clock is self._store:
            return 0
        asked_s = time.monotonic()
        return math.ceil((self._store.now_s() - asked_s) * 1000)
