"""What comes back from a sideline by itself: at an interval so often, or by the rounds of a retry policy."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ignis.context import QueueContext
from ignis.errors import IgnisError
from ignis.hooks import log_safely
from ignis.last_run import due_in_s
from ignis.log_format import event_text
from ignis.message import Message
from ignis.shovel_choice import coming_back, waits, why_waiting
from ignis.shovel_pass import ShovelPass, ShovelResult
from ignis.shovel_rounds import Rounds, policy_in, round_due_s, shovel_retry_of
from ignis.storage.base import QueueRecord
from ignis.upkeep import Timer, timers_of

__all__ = ["SHOVELLED", "ShovelSchedule", "next_return_ms"]

log = logging.getLogger("ignis.shovel")

SHOVELLED = "shovelled_at_ms"
"""The stored queue keeps here when the schedule of any process last made a pass, or began."""
_NOTES_PER_PASS = 4


def next_return_ms(record: bytes | None, queue: QueueRecord, now_s: float) -> int | None:
    """When the shovel brings a message of the queue's sideline back at the earliest, in milliseconds since 1970. None when only a
    person does, and while no process has begun to. ``now_s``: by the wall clock."""
    if record is None or waits(record, queue):
        return None
    policy = policy_in(shovel_retry_of(queue))
    if policy is not None:
        return int(round_due_s(policy, Message.from_bytes(record), now_s) * 1_000)
    last_ms = queue.extra.get(SHOVELLED)
    return None if type(last_ms) is not int else last_ms + queue.shovel_interval_s * 1_000


class ShovelSchedule:
    """Makes the passes that nobody asks for, by a timer. Thread-safe.

    Args:
        name: of the queue.
        queue: gives the queue as it is now; opens it where it is not.
        passes: makes the passes.
        stopped: cleared by the start, and set by whoever ends all passes.
        lock: taken for every change of what runs; the shovel takes it too.
    """

    def __init__(
        self,
        name: str,
        queue: Callable[[], QueueContext[Any]],
        passes: ShovelPass,
        stopped: threading.Event,
        lock: threading.Lock,
    ) -> None:
        self._name = name
        self._queue = queue
        self._passes = passes
        self._stop = stopped
        self._lock = lock
        self._ended = threading.Condition(lock)  # a pass of the schedule
        self._timer: Timer | None = None
        self._running = False
        self._passing = False
        self.returned = 0
        """Messages that it moved."""
        self.waiting = 0
        """Messages that only a person brings back, as of the last pass in this process."""
        self.given_up = 0
        """Of these: messages for which the queue's ``shovel_retry`` has no round left."""
        self._rounds: Rounds | None = None

    @property
    def started(self) -> bool:
        """Whether it passes at its interval."""
        return self._running

    def start(self) -> None:
        """Starts the schedule (``queue.shovel_interval_s``; 0 = none). The first pass is due when the interval has passed since
        the last one of any process. Idempotent."""
        with self._lock:
            if not self._running:
                self._running = True
                self._stop.clear()
                self._plan(first=True)

    def reschedule(self) -> None:
        """Follows a changed ``shovel_interval_s`` at once: the wait in progress begins anew."""
        with self._lock:
            if self._running and not self._passing:
                self._plan()

    def end(self, timeout: float) -> None:
        """Ends the schedule; waits so many seconds for a pass in progress. Caller holds the lock."""
        self._running = False
        self._stop.set()
        self._unplan()
        self._ended.wait_for(lambda: not self._passing, timeout)

    def run(self) -> ShovelResult:
        """Makes a pass of the schedule, over messages that have not come back ``max_returns`` times. If there are none, it claims
        nothing. With a ``shovel_retry``: a pass over those whose round has come."""
        self._passes.give_back()  # also where no pass follows: it may be all there is
        text = self._queue().settings.shovel_retry
        if text:
            return self._run_rounds(text)
        self._rounds, self.given_up = None, 0
        limit = self._queue().settings.max_returns
        causes = self._all_waiting(limit)
        if causes is None:
            result = self._passes.run(None, None, None, limit)
            self.returned += result.moved
        else:
            count = sum(causes.values())
            result = ShovelResult(kept=count, waiting=count, causes=causes)
        if result.waiting > self.waiting:
            log.warning(
                event_text(
                    "sideline_waits",
                    "%d message(s) in the sideline of %s wait for a person and do not come back by themselves, see 'ignis "
                "sideline': %s"),
                result.waiting, self._name, ", ".join(f"{count} {cause}" for cause, count in sorted(result.causes.items())),
            )  # fmt: skip
        self.waiting = result.waiting
        return result

    def _run_rounds(self, text: str) -> ShovelResult:
        if self._rounds is None or self._rounds.text != text:
            self._rounds = Rounds(text)
        queue, rounds, result = self._queue(), self._rounds, ShovelResult()
        now_s, every_s = queue.clock(), queue.settings.shovel_interval_s

        def shards() -> int:
            queue.main.follow_shards()  # as for `ShovelPass.run`
            return queue.main.shards

        for found in rounds.look(queue.sideline, shards, now_s, every_s):
            result.kept += found.others
            if found.due:
                result.kept += len(self._passes.transfer(found.due, result))
            if self._stop.is_set():
                break
        if result.refused:
            rounds.refused(now_s)
        result.waiting = rounds.waiting
        if rounds.given_up > self.given_up:
            log.warning(
                event_text(
                    "sideline_given_up",
                    "%d message(s) in the sideline of %s have come back %d time(s), as its shovel_retry says: they wait for a "
                "person, see 'ignis sideline'"), rounds.given_up, self._name, rounds.rounds,
            )  # fmt: skip
        self.given_up, self.waiting = rounds.given_up, rounds.waiting
        self.returned += result.moved
        self._passes.add(result)
        return result

    def _all_waiting(self, limit: int) -> Counter[str] | None:
        """Returns why the messages in the sideline wait when the schedule may bring none of them back; None when it may.

        Claims nothing. It counts what it has read: a message that fails meanwhile belongs to the next pass."""
        if limit <= 0:
            return Counter({"never brought back (max_returns = 0)": self._queue().sideline.pending()})
        causes: Counter[str] = Counter()
        for _, _, record in self._passes.pending():
            if coming_back(record, None, limit) is not None:
                return None
            causes[why_waiting(record, limit)] += 1
        return causes

    def _plan(self, first: bool = False) -> None:
        """Sets the timer of the next pass; none for the interval 0."""
        self._unplan()
        settings = self._queue().settings
        interval_s = settings.shovel_interval_s
        if interval_s:
            if settings.shovel_retry:
                due_s = self._next_round_s(settings.shovel_retry, interval_s)
            else:
                due_s = self._first_due_s(interval_s) if first else interval_s
            self._timer = timers_of(self._queue().clock).after(due_s, self._scheduled)

    def _next_round_s(self, text: str, interval_s: float) -> float:
        rounds = self._rounds
        if rounds is None or rounds.text != text:
            return random.uniform(
                0, Rounds(text).wait_s(0.0, interval_s)
            )  # not all that start at the same time at once
        return rounds.wait_s(self._queue().clock(), interval_s)

    def _first_due_s(self, interval_s: float) -> float:
        try:
            record = self._queue().store.queues.get(self._name)
            last_ms = None if record is None else record.extra.get(SHOVELLED)
            if last_ms is None:
                self._note_pass(interval_s)  # so that the interval counts on when this process is gone
            return due_in_s(interval_s, None if last_ms is None else last_ms / 1000, self._queue().clock())
        except IgnisError as exc:
            log.debug(event_text("shovel_time_unknown", "when %s was shovelled last is not known: %s"), self._name, exc)
            return interval_s

    def _note_pass(self, interval_s: float) -> None:
        """Stores the time of the pass for processes that start later, unless the stored time is almost as late: a fleet would
        write all the time."""
        queues, now_ms = self._queue().store.queues, int(self._queue().clock() * 1000)
        record = queues.get(self._name)
        if (
            record is not None
            and not 0 <= now_ms - record.extra.get(SHOVELLED, 0) < interval_s * 1000 / _NOTES_PER_PASS
        ):
            queues.update(self._name, lambda one: one.extra.update({SHOVELLED: now_ms}))

    def _unplan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _scheduled(self) -> None:
        with self._lock:
            if not self._running or self._passing:
                return
            self._passing = True
        try:
            result = self.run()
            if result.moved:
                log.info(event_text("shovelled", "shovelled %d message(s) of %s"), result.moved, self._name)
            if not self._queue().settings.shovel_retry:
                self._note_pass(self._queue().settings.shovel_interval_s)
        except Exception as exc:
            log_safely(
                log, logging.ERROR, event_text("shovel_broken", "shovel pass of %s failed"), self._name, exc_info=exc
            )
        finally:
            with self._lock:
                self._passing = False
                self._ended.notify_all()
                if self._running:
                    self._plan()
