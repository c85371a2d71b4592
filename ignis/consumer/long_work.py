"""Looks after what takes long in one consumer: who cancelled any of it, since when it runs, and how far it says to have come.

All travel in the queue's record, see `ignis.cancellation`, `ignis.told_calls` and `ignis.told_progress`. It is read once a
second, and only while something has been in hand since the look before.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ignis.cancellation import forget_requests, requests_of
from ignis.consumer.in_hand import InHand
from ignis.consumer.outcome import Failed, Failure, attempts_of
from ignis.consumer.pools.base import INDEX_BITS, INDEX_MASK, Call
from ignis.consumer.work import Work, any_seen, ask, told, was_seen, withdraw
from ignis.context import QueueContext
from ignis.errors import IgnisError, UnreadableMessageError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.message import REASON_CANCELLED
from ignis.native import Record
from ignis.storage.base import QueueRecord
from ignis.told_calls import put_calls
from ignis.told_progress import put_progress
from ignis.upkeep import Timer, timers_of

__all__ = ["LongWork"]

log = logging.getLogger("ignis.consumer")

LOOK_S = 1.0
_STORE_S = 5.0
"""Progress is stored at most so often."""
_STORE_CALLS_S = 10.0
"""Where nobody tells progress."""
LONG_S = 5.0
"""A call that has run for so long is stored, for people who look."""
_MOST_CALLS = 20


class LongWork:
    """Tells the workers of one consumer who is to end, and stores what they say of their progress. Thread-safe.

    Args:
        queue: whose messages they are.
        in_hand: the messages that are with workers.
        cancel: called with the request id of a message that is to end, again and again while it is in hand.
        calls: gives the calls of the handler that are in progress.
        may_cancel: whether one message of a call can be cancelled: not of a batch.
    """

    def __init__(
        self,
        queue: QueueContext[Any],
        in_hand: InHand,
        cancel: Callable[[int], None],
        calls: Callable[[], list[Call]],
        *,
        may_cancel: bool,
    ) -> None:
        self._queue = queue
        self._in_hand = in_hand
        self._cancel = cancel
        self._calls = calls
        self._may_cancel = may_cancel
        self._lock = threading.Lock()  # over the timer
        self.timer: Timer | None = None
        self._ended = False
        self._newest = 0  # the number of the newest chunk, at the last look
        self._looked = False  # at the calls, with the last look
        self._marks: deque[tuple[int, int]] = deque(maxlen=3)
        """The number of the newest chunk, and when that was, in ms since 1970: when there was something to look after again, and
        at the last looks."""
        self._said = LimitedLog(log)
        self._stored: dict[bytes, tuple[float, str]] = {}  # what of this consumer's is in the store
        self._since: dict[int, tuple[int, int]] = {}  # first request id of a call -> since, in ms since 1970; messages
        self._stored_calls: dict[bytes, tuple[int, int]] = {}
        self._store_at = 0.0
        self._over: list[bytes] = []  # ids of those that were to end and have, of whose requests the store still knows
        self.asked: dict[int, bytes] = {}
        """Request id -> message id: in hand here, and to end."""

    # -- while anything is in hand

    def keep(self) -> None:
        """Something is in hand. Nothing to do where `timer` is set."""
        if self.timer is None:
            self._mark(self._in_hand.numbers()[1])
            self._plan()

    def _mark(self, newest: int) -> None:
        self._marks.append((newest, time.time_ns() // 1_000_000))

    def end(self) -> None:
        """It is looked at nothing any more, and nothing is left behind."""
        with self._lock:
            self._ended = True
            timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()
        self._forget(list(self.asked))
        self._forget_stored()
        self._since.clear()
        self._store_told([])

    def _plan(self) -> None:
        with self._lock:
            if self.timer is None and not self._ended:
                self.timer = timers_of(None).after(LOOK_S, self._look_in_time, self._nothing_left)

    def _nothing_left(self) -> bool:
        """When a look is due: whether there is nothing to look at. The next that is in hand asks for one."""
        self.timer = None  # before it is looked: whoever adds something sees this, or is seen here
        if self._in_hand or self._unsettled:
            return False
        self._newest, self._since, self._looked = 0, {}, False
        return True

    @property
    def _unsettled(self) -> bool:
        """Whether the store knows of something here that has ended."""
        return bool(self.asked or self._over or self._stored or self._stored_calls)

    def _look_in_time(self) -> None:
        with self._lock:
            self.timer = None
        before = self._newest
        oldest, self._newest = self._in_hand.numbers()
        self._mark(self._newest)
        try:
            long = 0 < oldest <= before
            looks = long or bool(told(self._queue.name))
            self._look_at_calls(self._calls() if looks else [])
            self._looked = looks
            if long:
                self.look()
            self._forget([one for one in list(self.asked) if self._in_hand.place(one) is None])
            self._forget_stored()
            if time.monotonic() >= self._store_at:
                self._store_told(self.told())
        except IgnisError as exc:
            self._said.warning(
                event_text("long_work_look_failed", "what runs long of %s could not be looked after: %s"),
                self._queue.name,
                exc,
            )
        finally:
            if oldest or self._unsettled:
                self._plan()

    def look(self) -> None:
        """Reads who is to end, and tells those that are in hand here. Raises the store's error."""
        if not self._may_cancel:
            return
        record = self._queue.store.queues.get(self._queue.name)
        wanted = frozenset() if record is None else requests_of(record)
        if not wanted:
            return
        for request_id, id in self._ids_in_hand():
            if id in wanted and self._in_hand.place(request_id) is not None:
                self.asked[request_id] = id
                ask(self._queue.name, id)
                self._cancel(request_id)

    def _ids_in_hand(self) -> Iterator[tuple[int, bytes]]:
        """(request id, message id), of readable messages; some may be accounted for already."""
        for chunk in self._in_hand.chunks():
            yield from _ids_of(chunk.records, chunk.first_id)

    def _forget(self, request_ids: list[int]) -> None:
        """These were accounted for while they were asked to end."""
        ids = {id for one in request_ids if (id := self.asked.pop(one, None)) is not None}
        for id in ids.difference(self.asked.values()):
            withdraw(self._queue.name, id)
            self._over.append(id)

    def _forget_stored(self) -> None:
        over, self._over = self._over, []
        if over:
            forget_requests(self._queue.store.queues, self._queue.name, over)

    # -- what becomes of those that were to end

    def anybody_told(self) -> bool:
        """Whether an outcome has to be looked at by the methods below."""
        return bool(self.asked) or any_seen()

    def broken_off(self, first_id: int, count: int) -> list[int]:
        """Those of these requests whose handlers knew that they were to end, ascending. What they knew counts, whenever they
        were asked."""
        name = self._queue.name
        return [request_id for request_id, id in self._ids(first_id, count) if was_seen(name, id)]

    def failure_of(self, request_id: int, failure: Failure) -> Failure:
        """As which a message fails: one that is to end has failed for that, whether its handler knew it or not. It is not tried
        again."""
        was_to_end = request_id in self.asked or bool(self.broken_off(request_id, 1))
        self.account_for(request_id, 1)
        if failure.reason == REASON_CANCELLED or not was_to_end:
            return failure
        return Failed.of(REASON_CANCELLED, failure.error, attempts_of(failure))

    def account_for(self, first_id: int, count: int) -> None:
        """The outcome of these requests is known. What was asked of them is asked of nobody who gets one of the messages again,
        which may be at once."""
        for request_id, id in self._ids(first_id, count):
            withdraw(self._queue.name, id)
            if self.asked.pop(request_id, None) is not None:
                self._over.append(id)

    def _ids(self, first_id: int, count: int) -> Iterator[tuple[int, bytes]]:
        chunk, start = self._in_hand.locate(first_id)
        return _ids_of(chunk.records[start : start + count], first_id)

    # -- how long, and how far

    def seconds(self, call: Call) -> float | None:
        """For how long that call has run, as far as anybody knows."""
        first_id, _, seconds = call
        since = self._since.get(first_id)
        if seconds is not None or since is None:
            return seconds
        return max(0.0, time.time() - since[0] / 1_000)

    def _look_at_calls(self, calls: list[Call]) -> None:
        """Notes since when these run; where nobody knows it, since when that is sure."""
        now_ms = time.time_ns() // 1_000_000
        since: dict[int, tuple[int, int]] = {}
        for first_id, messages, took_s in calls:
            known = self._since.get(first_id)
            if known is not None:
                since_ms = known[0]
            elif took_s is not None:
                since_ms = now_ms - round(took_s * 1_000)
            else:
                since_ms = now_ms if self._looked else self._claimed_by_ms(first_id, now_ms)
            since[first_id] = (since_ms, messages)
        self._since = since

    def _claimed_by_ms(self, request_id: int, now_ms: int) -> int:
        """When the call began of which no look knew whether it ran: the first message of a chunk is begun as it is claimed, but
        where its worker was given another chunk before. Of a later one it is known only that it runs now."""
        number, index = request_id >> INDEX_BITS, request_id & INDEX_MASK
        return now_ms if index else next((at_ms for newest, at_ms in self._marks if newest >= number), now_ms)

    def long_calls(self, told: Collection[bytes] = ()) -> dict[bytes, tuple[int, int]]:
        """Message id -> (since when, in ms since 1970; messages of the call): the longest of what runs for `LONG_S` or more, or
        has ``told`` its progress."""
        before_ms = time.time_ns() // 1_000_000 - LONG_S * 1_000
        long: dict[bytes, tuple[int, int]] = {}
        for since_ms, request_id, messages in sorted((since, one, many) for one, (since, many) in self._since.items()):
            if len(long) == _MOST_CALLS or (since_ms > before_ms and not told):
                break
            with contextlib.suppress(LookupError, UnreadableMessageError):  # accounted for meanwhile
                chunk, index = self._in_hand.locate(request_id)
                id = Record(chunk.records[index]).id
                if since_ms <= before_ms or id in told:
                    long[id] = (since_ms, messages)
        return long

    def told(self) -> list[Work]:
        """What runs here and has told its progress."""
        works = told(self._queue.name)
        if not works:
            return works
        here = {id for _, id in self._ids_in_hand()}  # another consumer of this process may have a queue of that name
        return [work for work in works if work.id in here]

    def _store_told(self, works: list[Work]) -> None:
        """Stores what has changed, and removes what has ended."""
        now = {work.id: (work.fraction or 0.0, work.text) for work in works}
        calls = self.long_calls(now)
        if not (now or calls or self._stored or self._stored_calls):
            return
        self._store_at = time.monotonic() + (_STORE_S if now or calls != self._stored_calls else _STORE_CALLS_S)
        owner, at_ms = self._queue.store.owner, time.time_ns() // 1_000_000

        def change(record: QueueRecord) -> None:
            put_progress(record, owner, now, self._stored.keys(), at_ms)
            put_calls(record, owner, calls, self._stored_calls.keys(), at_ms)

        with contextlib.suppress(IgnisError):  # it is for people
            self._queue.store.queues.update(self._queue.name, change)
        self._stored, self._stored_calls = now, calls


def _ids_of(records: Sequence[bytes], first_id: int) -> Iterator[tuple[int, bytes]]:
    """(request id, message id), of readable messages."""
    for request_id, data in enumerate(records, first_id):
        with contextlib.suppress(UnreadableMessageError):
            yield request_id, Record(data).id
