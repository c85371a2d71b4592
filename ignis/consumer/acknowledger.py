"""The acknowledger of one consumer: what has gathered becomes one delete and one transfer to the sideline per round, and one
into the later magazine for what is tried again.

Nothing is lost whatever fails: what could not be acknowledged stays queued here, and claimed in the store. On a full store
the deletes, which free room, go first, and the transfer is made in parts.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ignis.config import ConsumerSettings
from ignis.consumer.ack_slots import AckSlots, ack_slots
from ignis.consumer.handler import Failure
from ignis.consumer.in_hand import InHand
from ignis.consumer.pools import Chunk
from ignis.consumer.retrying import Moment, Retrying
from ignis.consumer.sideline_items import corrupt_item, failed_item
from ignis.consumer.taking import NO_MEMORY_S, add_one, put_back, taken_of, wait_for_memory
from ignis.consumer.traced import FailureSpans
from ignis.context import QueueContext
from ignis.errors import ClosedError, ForkedHandleError, IgnisError, StoreFullError
from ignis.figures import ConsumerFigures
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.message import REASON_CORRUPT
from ignis.native import ThreadBell
from ignis.retries import RetryRules
from ignis.storage.base import Transfer, renewal_period_s
from ignis.storage.parts import in_parts
from ignis.storage.runs import by_shard
from ignis.upkeep import Timer, run_soon, timers_of

__all__ = ["Acknowledger"]

log = logging.getLogger("ignis.consumer")

_FULL_ENOUGH = 64
"""Runs of outcomes that are worth a transaction without waiting for more."""

_STAY_S = 0.5
"""So long the thread that stores outcomes waits for more before it is free for others."""

_SHORT_LINGER_S = 0.01
"""Others wait for one that gathers for so long at most."""

_FIRST_LOOK_S = 0.5
"""So soon after the first message it is looked for the first time what is in hand."""


_Failed = tuple[Chunk, int, Failure]
"""A failed message: its chunk, its place there, and why."""


class _Move(enum.Enum):
    """Where failed messages go."""

    LATER = enum.auto()
    ASIDE = enum.auto()


class Acknowledger:
    """Thread-safe: any worker adds outcomes, one thread at a time stores them.

    Args:
        queue: whose messages they are.
        handler: the handler's name, for the failures.
        settings: see ``ignis.config``.
        counts: where it counts.
        on_room: called when less is unacknowledged than before.
        in_hand: what is being worked on; what of it is held for long is asked a few times within the stuck time.
        rules: the handler's ``retry``.
    """

    def __init__(
        self,
        queue: QueueContext[Any],
        handler: str,
        settings: ConsumerSettings,
        counts: ConsumerFigures,
        on_room: Callable[[], None],
        in_hand: InHand,
        rules: RetryRules | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._settings = settings
        self._counts = counts
        self._on_room = on_room
        self._in_hand = in_hand
        self._retrying = Retrying(queue, rules)
        self._renew_at = 0.0
        self.renew_timer: Timer | None = None
        self._failing = False
        self._said = LimitedLog(log)
        self._magazines = queue.main.store
        self._slots: AckSlots | None = None
        self._done: deque[tuple[int, Sequence[int]]] = deque()
        self._dropped: set[tuple[int, int]] = set()
        """Of `_done`: those that no handler had, since their deadline had passed."""
        self._failures: deque[_Failed] = deque()
        self._corrupt: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()  # over unacked
        self._settling = False
        self._until = 0.0
        self._work = ThreadBell()
        self._ending = ThreadBell()  # rung with `finishing`
        self._turn = threading.Lock()  # over who works it off
        self._begun = self._at_work = False
        self._at_end: Callable[[], None] = lambda: None
        self._on_error: Callable[[BaseException], None] = lambda exc: None
        self._retry_at = 0.0
        self._refused: Counter[_Move] = Counter()  # transfers that were not made for want of room, in a row
        self.unacked = 0
        """Messages handled, or failed, and not retired yet: would be handled again if this process died now."""
        self.finishing = False
        self.over = threading.Event()
        """After `finish`: everything is stored, or is not going to be."""

    @property
    def waiting(self) -> bool:
        """Whether any outcome is not stored yet. An outcome passes through what is looked at here in this order, so that
        none is missed on its way from one to the next."""
        return bool(self._done or self._failures or self._corrupt or self.unacked) or self._settling

    @property
    def left(self) -> bool:
        """Whether outcomes are queued."""
        return bool(self._done or self._failures or self._corrupt)

    def add_done(self, chunk: Chunk, start: int, count: int) -> None:
        while True:
            try:
                places, unacked = chunk.places(start, start + count), 0
                with self._lock:
                    unacked = self.unacked + count
                    self._done.extend(places)
                    self.unacked = unacked
                break
            except MemoryError:
                wait_for_memory()
        self._wake()

    def add_dropped(self, chunk: Chunk, index: int) -> None:
        """A message whose deadline had passed: removed, and not counted as handled."""
        self._dropped.add(chunk.place(index))
        self.add_done(chunk, index, 1)

    def add_failed(self, chunk: Chunk, index: int, failure: Failure) -> None:
        add_one(self._failures, (chunk, index, failure))
        with self._lock:
            self.unacked += 1
        self._wake()

    def add_corrupt(self, shard: int, pointer: int) -> None:
        self._corrupt.append((shard, pointer))
        self._wake()

    def settle(self) -> None:
        """Stores what was added so far, in the caller's thread: where it was not begun. Raises the store's error; what
        was not stored stays queued."""
        self._round()

    # -- a shared thread, while there is anything to do

    def begin(self, at_end: Callable[[], None], on_error: Callable[[BaseException], None]) -> None:
        """From now on a shared thread stores what is added. ``at_end``: called there at the end, before `over` is set.
        ``on_error``: called with what cannot be tried again; then nothing more is stored.
        """
        self._at_end, self._on_error = at_end, on_error
        quick = self._magazines.quick and self._queue.settings.durability != "sync"
        self._slots = ack_slots(self._queue.store) if quick else None
        self._begun = True

    def keep(self) -> None:
        """Something is in hand: from now on it is looked for what is to be renewed. Nothing to do where `renew_timer` is set."""
        if self.renew_timer is None and self._begun:
            self._plan_renewal(_FIRST_LOOK_S)

    def _nothing_held(self) -> bool:
        """When a renewal is due: whether there is nothing to renew. The next that is in hand asks for one."""
        self.renew_timer = None  # before it is looked: whoever adds something sees this, or is seen here
        return not (self._in_hand or self.waiting)

    def renew_left(self, goes_on: Callable[[], bool]) -> None:
        """After the end: what is left in hand is renewed as long as ``goes_on`` says that somebody is at it, and the store is
        open. From a shared thread."""

        def renew() -> None:
            if goes_on() and self._renew():
                plan()

        def plan() -> None:
            self.renew_timer = timers_of(None).after(
                max(0.0, self._renew_at - time.monotonic()), lambda: run_soon(renew)
            )

        self._renew_at = time.monotonic() + _FIRST_LOOK_S
        plan()

    def finish(self, until: float) -> None:
        """Ends it once everything is stored. ``until``: monotonic time up to which what fails is tried again."""
        self._until = until
        self.finishing = True
        self._ending.ring()
        self._wake()

    def _wake(self) -> None:
        self._work.ring()
        if not self._at_work and self._begun and self._take_turn():
            try:
                (run_soon if self._slots is None else self._slots.run)(self._attend)
            except (
                RuntimeError,
                MemoryError,
            ):  # no thread, nor one of the timers: what comes next, or the renewal, tries again
                self._at_work = False

    def _take_turn(self) -> bool:
        with self._turn:
            if self._at_work or self.over.is_set():
                return False
            self._at_work = True
            return True

    def _attend(self) -> None:
        while True:
            try:
                self._work_off()
                return
            except MemoryError as exc:
                self._without_memory(exc)
            except BaseException as exc:
                self._end()
                self._on_error(exc)
                return

    def _without_memory(self, exc: MemoryError) -> None:
        """For a moment. What could not be stored is queued again, and stays claimed."""
        with contextlib.suppress(MemoryError):
            self._counts.ack_errors += 1
            self._failing = True
            self._said.warning(
                event_text("acknowledgement_failed", "acknowledgement on %s failed, trying again: %s"),
                self._queue.name,
                repr(exc),
            )
        self._work.ring()
        time.sleep(NO_MEMORY_S)

    def _end(self) -> None:
        if self.renew_timer is not None:
            self.renew_timer.cancel()
        self.over.set()

    def _leave(self) -> bool:
        """Nothing was added for a while: the thread is free for others."""
        self._at_work = False
        # Whoever adds rings `_work` and then looks whether somebody is at work; here it is the other way round.
        return not (self._work.rung and self._take_turn())

    def _work_off(self) -> None:
        """Until there is nothing to do. Raises what cannot be tried again."""
        while True:
            last = self.finishing
            if not last:
                if not self._await_work() and self._leave():
                    return
                if self._settings.ack_linger_s and len(self._done) < _FULL_ENOUGH:
                    self._linger(self._settings.ack_linger_s)
            self._work.silence()
            if time.monotonic() >= self._retry_at or last:
                try:
                    self._round()
                    self._failing = False
                except (ClosedError, ForkedHandleError):
                    raise
                except IgnisError as exc:
                    self._counts.ack_errors += 1
                    self._failing = True
                    self._said.warning(
                        event_text("acknowledgement_failed", "acknowledgement on %s failed, trying again: %s"),
                        self._queue.name,
                        exc,
                    )
                    self._retry_at = time.monotonic() + self._settings.ack_retry_s
                    self._work.ring()
                    if not last:
                        if not self.finishing:  # which may have rung already
                            self._sleep(self._ending.wait)
                    elif exc.retryable and self._retry_at < self._until:
                        self._sleep(time.sleep)
                        continue
            if last:
                self._at_end()
                self._end()
                return
            if self._slots is not None and self._work.rung and self._slots.give_way(self._attend):
                return  # a queue that always has something to store would keep its slot for ever

    def _await_work(self) -> bool:
        """Whether anything was added, within the time that this thread stays."""
        slots = self._slots
        if self._work.rung or slots is None:
            return self._work.wait(_STAY_S)
        if not slots.stay():
            return self._work.wait(0)
        try:
            return self._work.wait(_STAY_S)
        finally:
            slots.back()

    def _linger(self, linger_s: float) -> None:
        """More may gather. Not while others wait for this thread: more gathers for them, too."""
        slots = self._slots
        if slots is None or (linger_s <= _SHORT_LINGER_S and not slots.wanted):
            self._ending.wait(linger_s)
        elif linger_s > _SHORT_LINGER_S:
            with self._without_slot():
                self._ending.wait(linger_s)

    def _sleep(self, sleep: Callable[[float], object]) -> None:
        """Before what was refused is tried again."""
        with self._without_slot():
            sleep(self._settings.ack_retry_s)

    def _without_slot(self) -> contextlib.AbstractContextManager[None]:
        """For what may take long: others store their outcomes meanwhile."""
        return contextlib.nullcontext() if self._slots is None else self._slots.without()

    def _plan_renewal(self, delay_s: float) -> None:
        timer, self.renew_timer = self.renew_timer, None
        if timer is not None:
            timer.cancel()
        self.renew_timer = timers_of(None).after(delay_s, self._renew_in_time, self._nothing_held)

    def _renew_in_time(self) -> None:
        """In a thread of its own: a store that is away for a moment holds up no outcome. A broker that drains takes outcomes, and
        answers nothing else."""
        if self.waiting:
            self._wake()  # no thread could be had for them before
        try:
            if self._renew() and not self.over.is_set():
                self._plan_renewal(max(0.0, self._renew_at - time.monotonic()))
        except MemoryError:  # for a moment
            self._counts.renew_errors += 1
            self._plan_renewal(NO_MEMORY_S)
        except BaseException as exc:
            self._end()
            self._on_error(exc)

    def _renew(self) -> bool:
        """Starts the stuck time anew of what this process has been working on since the last look, or could not acknowledge
        since: a living owner is not swept. What it has lost track of is not renewed. False where the store is closed."""
        queue = self._queue
        try:
            record = queue.store.queues.get(queue.name)  # it may have been changed by others
            stuck_after_s = queue.settings.stuck_after_s if record is None else record.stuck_after_s
            period_s = renewal_period_s(stuck_after_s)
            pointers = by_shard(self._in_hand.long_held() + (self._unstored() if self._failing else []))
            if pointers:
                self._magazines.renew_claims(queue.main.name, pointers, queue.store.owner)
                self._counts.renewals += 1
        except ClosedError:  # whoever opens the store next has consumers of his own, and the sweeper takes what is held
            return False
        except IgnisError as exc:
            self._counts.renew_errors += 1
            self._said.warning(
                event_text("claim_renewal_failed", "claims on %s could not be renewed, trying again: %s"),
                queue.name,
                exc,
            )
            period_s = self._settings.ack_retry_s
        self._renew_at = time.monotonic() + period_s
        return True

    def _unstored(self) -> list[tuple[int, Sequence[int]]]:
        """Outcomes that are queued here. Some may be stored by now: renewed, they are passed over."""
        failed = [chunk.place(index) for chunk, index, _ in list(self._failures)]
        return list(self._done) + [(shard, [pointer]) for shard, pointer in failed + list(self._corrupt)]

    def _round(self) -> None:
        """One delete, and a transfer of each kind, for everything that has gathered. A store that refuses the one may take the
        other."""
        self._settling = True
        try:
            try:
                self._settle_done()
            finally:
                self._settle_failed()
        finally:
            self._settling = False

    def _settle_done(self) -> None:
        taken = taken_of(self._done)
        at, size = 0, len(taken)
        try:
            while at < len(taken):
                part = taken[at : at + size]
                try:
                    self._delete(part)
                except StoreFullError:
                    if len(part) == 1:
                        raise
                    size = len(part) // 2
                else:
                    at += len(part)
        finally:
            put_back(self._done, taken, at)

    def _delete(self, taken: Sequence[tuple[int, Sequence[int]]]) -> None:
        asked = sum(len(some) for _, some in taken)
        gone = self._magazines.delete(self._queue.main.name, by_shard(taken))
        with self._lock:
            self.unacked -= asked
        self._on_room()
        dropped = self._forget_dropped(taken)
        self._counts.overdue += dropped
        self._counts.handled += asked - dropped
        self._counts.late_acks += asked - gone
        if asked > dropped:
            self._call_hooks(max(0, gone - dropped), 0)

    def _forget_dropped(self, taken: Sequence[tuple[int, Sequence[int]]]) -> int:
        if not self._dropped:
            return 0
        found = self._dropped.intersection((shard, pointer) for shard, some in taken for pointer in some)
        self._dropped -= found
        return len(found)

    def _settle_failed(self) -> None:
        failures = taken_of(self._failures)
        corrupt = taken_of(self._corrupt)
        if not failures and not corrupt:
            return
        again: list[_Failed] = []
        dues_ms: dict[tuple[int, int], int] = {}
        aside: list[_Failed] = []
        items: list[Transfer] = []
        items_aside: list[Transfer] = []
        now = Moment(self._queue.store)
        tracing = self._queue.tracing
        spans = None if tracing is None else FailureSpans(tracing, self._queue.name)
        try:
            decisions = [self._retrying.decide(why, chunk.records[index], now) for chunk, index, why in failures]
        except BaseException:
            put_back(self._failures, failures)
            put_back(self._corrupt, corrupt)
            raise
        for failed, decision in zip(failures, decisions, strict=True):
            chunk, index, failure = failed
            item = failed_item(self._handler, chunk, index, failure, decision, self._queue.clock)
            if spans is not None:
                item = spans.begin(item, failure, decision)
            if decision.due_ms is None:
                aside.append(failed)
                items_aside.append(item)
            else:
                again.append(failed)
                items.append(item)
                dues_ms[item.shard, item.pointer] = decision.due_ms
        try:
            self._move(_Move.LATER, again, [], items, lambda some: self._defer(some, dues_ms))
        finally:
            items_aside += [corrupt_item(self._queue.main.name, shard, pointer) for shard, pointer in corrupt]
            try:
                self._move(_Move.ASIDE, aside, corrupt, items_aside, self._transfer)
            finally:
                if spans is not None:
                    spans.end({chunk.place(index) for chunk, index, _ in list(self._failures)})

    def _move(
        self,
        move: _Move,
        failures: Sequence[_Failed],
        corrupt: Sequence[tuple[int, int]],
        items: Sequence[Transfer],
        transfer: Callable[[Sequence[Transfer]], int],
    ) -> None:
        """Transfers what there is of one kind; what was not moved is queued again. ``items``: failures, then corrupt."""
        if not items:
            return
        origin = {(item.shard, item.pointer): number for number, item in enumerate(items)}
        moved_total = 0
        try:
            for part, moved in in_parts(items, transfer, self._refused[move]):
                for item in part:
                    origin.pop((item.shard, item.pointer), None)  # a message that was claimed twice is here twice
                moved_total += moved
                if origin:
                    self._settle_done()  # meanwhile gathered, and it frees room for the rest
            self._refused[move] = 0
        except StoreFullError:
            self._refused[move] += 1
            raise
        finally:
            left = sorted(origin.values())
            self._failures.extendleft(failures[number] for number in reversed(left) if number < len(failures))
            self._corrupt.extendleft(
                corrupt[number - len(failures)] for number in reversed(left) if number >= len(failures)
            )
            self._count_moved(move, failures, corrupt, set(left), moved_total)

    def _transfer(self, items: Sequence[Transfer]) -> int:
        queue = self._queue
        return self._magazines.transfer(queue.main.name, queue.sideline.name, items)

    def _defer(self, items: Sequence[Transfer], dues_ms: Mapping[tuple[int, int], int]) -> int:
        """Acknowledges and puts into the later magazine, in one transaction."""
        return self._magazines.defer(
            self._queue.main.name, items, [dues_ms[item.shard, item.pointer] for item in items]
        )

    def _count_moved(
        self,
        move: _Move,
        failures: Sequence[_Failed],
        corrupt: Sequence[tuple[int, int]],
        left: set[int],
        moved: int,
    ) -> None:
        """``left``: the numbers of those that were not transferred, failures first."""
        settled = [failure for number, (_, _, failure) in enumerate(failures) if number not in left]
        aside = sum(number + len(failures) not in left for number in range(len(corrupt)))
        late = len(settled) + aside - moved
        if move is _Move.LATER:
            self._counts.retried += moved
        else:
            reasons = Counter(failure.reason for failure in settled)
            reasons[REASON_CORRUPT] += aside
            # The store says how many others had taken away, and not which: they are put down to the most frequent reasons.
            for reason, count in reasons.most_common():
                taken = min(count, late)
                late -= taken
                if count > taken:
                    self._counts.sidelined_by[reason] += count - taken
            self._counts.sidelined += moved
        self._counts.late_acks += len(settled) + aside - moved
        with self._lock:
            self.unacked -= len(settled)
        self._on_room()
        if move is _Move.ASIDE and settled:
            self._call_hooks(0, moved)

    def _call_hooks(self, handled: int, sidelined: int) -> None:
        if self._queue.hooks.after_handling:
            with self._without_slot():  # they are the user's
                self._queue.hooks.handled(self._queue.name, handled, sidelined)
