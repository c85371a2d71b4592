"""The shovel: brings the sideline back to the main magazine."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ignis.config import check_number, check_timeout, check_whole, shown
from ignis.context import QueueContext
from ignis.errors import ConfigError, IgnisError, UnreadableMessageError
from ignis.hooks import log_safely
from ignis.last_run import due_in_s
from ignis.log_limit import LimitedLog
from ignis.message import REASON_CORRUPT, STAYS, Message, returned_record
from ignis.near_names import meant
from ignis.shovel_rounds import Rounds, policy_in, shovel_retry_of
from ignis.stacks import roomy_stacks, start_thread
from ignis.storage.base import MOST_FRUITLESS, Claim, QueueRecord, Transfer
from ignis.storage.parts import in_parts
from ignis.storage.records import group_pointers
from ignis.tracing.returning import returning
from ignis.upkeep import Timer, timers_of

__all__ = ["Shovel", "ShovelResult", "waits"]

log = logging.getLogger("ignis.shovel")

Where = Callable[[Message], bool]
Progress = Callable[[int], None]

BATCH = 1_000
ONE_SHOT_RETRY_S = 10.0
SHOVELLED = "shovelled_at_ms"
"""The stored queue keeps here when the schedule of any process last made a pass, or began."""
_NOTES_PER_PASS = 4
_ONCE_OPTIONS = ("dry_run", "limit", "progress", "rate", "where")
_PACED_BATCH_S = 0.1
"""With a rate, a batch has what may move in this time, so that few messages are claimed while the shovel waits."""


def _check_options(limit: Any, where: Any, rate: Any, progress: Any) -> None:
    """Raises ConfigError."""
    if limit is not None:
        check_whole(limit, "limit", 0)
    if rate is not None:
        check_number(rate, "rate", above=True)
    for name, fn in (("where", where), ("progress", progress)):
        if fn is not None and not callable(fn):
            raise ConfigError(f"{name} is not callable: {shown(fn)}")


@dataclass
class ShovelResult:
    """The counts of one pass.

    ``moved``: to the main magazine; in a dry run, those that would move. ``kept``: stayed in the sideline. Of these,
    ``refused`` were not taken by the store, and ``waiting`` are brought back only by a person.
    """

    moved: int = 0
    kept: int = 0
    refused: int = 0
    waiting: int = 0

    def add(self, other: ShovelResult) -> None:
        """Adds the counts of another result to these."""
        self.moved += other.moved
        self.kept += other.kept
        self.refused += other.refused
        self.waiting += other.waiting


class Shovel:
    """Moves one queue's sideline, its dead-letter queue, back to its main magazine. Others call a shovel redrive. Thread-safe.

    Every message keeps its id, its failures, the reason of its last failure and the rest of its time to live. A message that
    the main magazine does not accept stays in the sideline. A corrupt one has no body to handle and always stays.

    The schedule brings a message back ``max_returns`` times and counts each return in its envelope; then it waits for a
    person. So does a message whose envelope cannot hold the count, and one that its handler's ``retry`` has given up. With a
    ``shovel_retry`` the schedule goes by that policy, see `ignis.shovel_rounds`.
    `run_once`, `run_until_done` and `start_once` are for a person: they bring back every message that fits and begin the
    count anew.

    Args:
        name: of the queue.
        queue: gives the queue as it is now; opens it where it is not.
    """

    def __init__(self, name: str, queue: Callable[[], QueueContext[Any]]) -> None:
        self._name = name
        self._queue = queue
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # a pass of the schedule
        self._timer: Timer | None = None
        self._once: threading.Thread | None = None
        self._owed: list[tuple[int, int]] = []
        self._running = False
        self._passing = False
        self._said = LimitedLog(log)
        self.total = ShovelResult()
        self.returned = 0
        """Messages that the schedule moved; `total` has those moved by hand too."""
        self.waiting = 0
        """Messages that only a person brings back, as of the schedule's last pass in this process."""
        self.given_up = 0
        """Of these: messages for which the queue's ``shovel_retry`` has no round left."""
        self._rounds: Rounds | None = None

    def stats(self) -> dict[str, int]:
        """Figures since the start of this process; ``waiting`` as of the schedule's last pass here."""
        total = self.total
        return {
            "moved": total.moved, "returned": self.returned, "kept": total.kept, "refused": total.refused,
            "waiting": self.waiting, "given_up": self.given_up,
        }  # fmt: skip

    def run_once(
        self,
        *,
        limit: int | None = None,
        where: Where | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ShovelResult:
        """Makes one pass over the messages that are in the sideline now. Returns the counts.

        It also moves messages that have come back ``max_returns`` times, and begins the count of all that it moves anew.
        Messages that arrive meanwhile wait for the next pass.

        Args:
            limit: look at no more than this many messages.
            where: move only messages for which this is true; the others go back to the sideline's tail.
            rate: move at most so many messages a second, so that the handlers can keep up.
            dry_run: only count the messages that would move; nothing is claimed or changed.
            progress: called with the number of messages looked at since the last call.

        Raises ConfigError, and the store's error when a claim fails.
        """
        _check_options(limit, where, rate, progress)
        if not self._running and self._once is None:
            self._stop.clear()  # an earlier stop ended the schedule, not passes by hand
        if dry_run:
            return self._count(limit, where, progress)
        return self._pass(limit, where, rate, progress, None)

    def run_scheduled(self) -> ShovelResult:
        """Makes a pass of the schedule, over messages that have not come back ``max_returns`` times. If there are none, it claims
        nothing. With a ``shovel_retry``: a pass over those whose round has come."""
        text = self._queue().settings.shovel_retry
        if text:
            return self._run_rounds(text)
        self._rounds, self.given_up = None, 0
        limit = self._queue().settings.max_returns
        waiting = self._all_waiting(limit)
        if waiting is None:
            result = self._pass(None, None, None, None, limit)
            self.returned += result.moved
        else:
            result = ShovelResult(kept=waiting)
            result.waiting = waiting
        if result.waiting > self.waiting:
            log.warning(
                "%d message(s) in the sideline of %s do not come back by themselves any more (max_returns = %d): they wait "
                "for a person, see 'ignis sideline'", result.waiting, self._name, limit,
            )  # fmt: skip
        self.waiting = result.waiting
        return result

    def _run_rounds(self, text: str) -> ShovelResult:
        if self._rounds is None or self._rounds.text != text:
            self._rounds = Rounds(text)
        queue, rounds, result = self._queue(), self._rounds, ShovelResult()
        self._give_back()
        now_s, every_s = queue.clock(), queue.settings.shovel_interval_s

        def shards() -> int:
            queue.main.follow_shards()  # as for `_pass`
            return queue.main.shards

        for found in rounds.look(queue.sideline, shards, now_s, every_s):
            result.kept += found.others
            if found.due:
                result.kept += len(self._transfer(found.due, result))
            if self._stop.is_set():
                break
        if result.refused:
            rounds.refused(now_s)
        result.waiting = rounds.waiting
        if rounds.given_up > self.given_up:
            log.warning(
                "%d message(s) in the sideline of %s have come back %d time(s), as its shovel_retry says: they wait for a "
                "person, see 'ignis sideline'", rounds.given_up, self._name, rounds.rounds,
            )  # fmt: skip
        self.given_up, self.waiting = rounds.given_up, rounds.waiting
        self.returned += result.moved
        with self._lock:
            self.total.add(result)
        return result

    def _all_waiting(self, limit: int) -> int | None:
        """Returns the number of messages in the sideline when the schedule may bring none of them back; None when it may.

        Claims nothing. It counts what it has read: a message that fails meanwhile belongs to the next pass."""
        if limit <= 0:
            return self._queue().sideline.pending()
        seen = 0
        for _, _, record in self._pending():
            if _coming_back(record, None, limit) is not None:
                return None
            seen += 1
        return seen

    def _pass(
        self,
        limit: int | None,
        where: Where | None,
        rate: float | None,
        progress: Progress | None,
        max_returns: int | None,
    ) -> ShovelResult:
        """Makes a pass. ``max_returns``: the bound of the schedule; None = a pass by hand."""
        self._give_back()
        self._queue().main.follow_shards()  # another process may have given it more shards: messages go back to their own
        pending = self._queue().sideline.pending()
        budget = _Budget(pending if limit is None else min(limit, pending))
        pace = None if rate is None else _Pace(rate, self._stop)
        workers = (
            1 if rate is not None else min(self._queue().settings.shovel_concurrency, max(1, budget.left // BATCH))
        )
        try:
            if workers <= 1:
                results = [self._work(budget, where, pace, progress, max_returns)]
            else:
                with ThreadPoolExecutor(workers, thread_name_prefix=f"ignis-shovel-{self._name}") as pool:
                    with roomy_stacks():
                        futures = [
                            pool.submit(self._work, budget, where, pace, progress, max_returns) for _ in range(workers)
                        ]
                    results = [future.result() for future in futures]
        finally:
            # Only when all workers are done. Else one of them would claim again what another has put back, instead of
            # messages that none has seen.
            self._give_back()
        result = ShovelResult()
        for one in results:
            result.add(one)
        with self._lock:
            self.total.add(result)
        return result

    def run_until_done(self, timeout: float, **options: Any) -> ShovelResult:
        """Makes a pass by hand, and another one 10 s after each that fails or that has refused messages, for ``timeout`` seconds.

        Returns ``moved`` of all passes, ``kept`` and ``refused`` of the last. ``options``: those of `run_once`. Raises the last
        error; one that is not retryable at once."""
        deadline = time.monotonic() + check_timeout(timeout)
        result = ShovelResult()
        while True:
            try:
                one = self.run_once(**options)
                result = ShovelResult(result.moved + one.moved, one.kept, one.refused)
                if not one.refused or time.monotonic() + ONE_SHOT_RETRY_S > deadline:
                    return result
                log.warning(
                    "%d message(s) of %s were refused, trying again in %g s",
                    one.refused, self._name, ONE_SHOT_RETRY_S,
                )  # fmt: skip
            except IgnisError as exc:
                if not exc.retryable or time.monotonic() + ONE_SHOT_RETRY_S > deadline:
                    raise
                log.warning("shovel of %s failed, trying again in %g s: %s", self._name, ONE_SHOT_RETRY_S, exc)
            if self._stop.wait(ONE_SHOT_RETRY_S):
                return result

    def start_once(self, timeout: float = 86_400.0, **options: Any) -> threading.Thread:
        """Calls `run_until_done` in a thread of its own, beside any schedule; returns the thread. While such a thread runs, that
        one is returned and none is started. Its error is logged. Raises ConfigError."""
        check_timeout(timeout)
        for name in options:
            if name not in _ONCE_OPTIONS:
                raise ConfigError(
                    f"unknown option {name!r} of a shovel; {meant(name, _ONCE_OPTIONS)}known: {', '.join(_ONCE_OPTIONS)}"
                )
        given = {name: options.get(name) for name in ("limit", "where", "rate", "progress")}
        _check_options(**given)  # so that the caller gets the error, not the thread's log
        with self._lock:
            if self._once is not None and self._once.is_alive():
                return self._once
            if not self._running:
                self._stop.clear()
            self._once = threading.Thread(
                target=self._run_once_logged, args=(timeout, options), name=f"ignis-shovel-once-{self._name}",
                daemon=True,
            )  # fmt: skip
            start_thread(self._once)
            return self._once

    def _run_once_logged(self, timeout: float, options: dict[str, Any]) -> None:
        try:
            result = self.run_until_done(timeout, **options)
            log.info("one-shot shovel of %s moved %d message(s)", self._name, result.moved)
        except Exception as exc:
            log.error("one-shot shovel of %s gave up: %s", self._name, exc, exc_info=exc)

    # -- the schedule

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

    @property
    def started(self) -> bool:
        """Whether it passes at its interval."""
        return self._running

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule and the one-shot; a pass in progress ends after its batch. Idempotent."""
        with self._lock:
            self._running = False
            once, self._once = self._once, None
            self._stop.set()
            self._unplan()
            self._ended.wait_for(lambda: not self._passing, timeout)
        if once is not None:
            once.join(timeout)

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
            log.debug("when %s was shovelled last is not known: %s", self._name, exc)
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
            result = self.run_scheduled()
            if result.moved:
                log.info("shovelled %d message(s) of %s", result.moved, self._name)
            if not self._queue().settings.shovel_retry:
                self._note_pass(self._queue().settings.shovel_interval_s)
        except Exception as exc:
            log_safely(log, logging.ERROR, "shovel pass of %s failed", self._name, exc_info=exc)
        finally:
            with self._lock:
                self._passing = False
                self._ended.notify_all()
                if self._running:
                    self._plan()

    # -- one pass

    def _count(self, limit: int | None, where: Where | None, progress: Progress | None) -> ShovelResult:
        sideline, result = self._queue().sideline, ShovelResult()
        for _, _, record in itertools.islice(self._pending(), limit):
            wanted = record is not None and _wanted(record, where)
            result.moved += wanted
            result.kept += not wanted
            if progress is not None:
                progress(1)
        log.debug("dry run over %s", sideline.name)
        return result

    def _pending(self) -> Iterator[tuple[int, int, bytes | None]]:
        sideline = self._queue().sideline
        after: dict[int, int] = {}
        while page := sideline.store.scan(sideline.name, after=after, limit=BATCH, pending_only=True):
            yield from page
            after.update({shard: pointer for shard, pointer, _ in page})

    def _work(
        self,
        budget: _Budget,
        where: Where | None,
        pace: _Pace | None,
        progress: Progress | None,
        max_returns: int | None,
    ) -> ShovelResult:
        queue, result = self._queue(), ShovelResult()
        sideline, owner = queue.sideline, queue.store.owner
        staying: list[tuple[int, int]] = []
        most = BATCH if pace is None else pace.batch
        fruitless = 0
        try:
            while not self._stop.is_set():
                size = budget.take(most)
                if not size:
                    break
                fired = sideline.store.fire(sideline.name, size, owner)
                if not fired.claims:
                    fruitless += 1
                    if not fired.more or fruitless > MOST_FRUITLESS:
                        break
                    budget.give_back(size)
                    continue
                fruitless = 0
                claimed = [(claim.shard, pointer) for claim in fired.claims for pointer in claim.pointers]
                before = result.moved
                try:
                    moved = [self._move(claim, where, result, max_returns) for claim in fired.claims]
                except BaseException:
                    staying += claimed  # those that moved already are not in the sideline any more, and are skipped
                    raise
                staying += [one for some in moved for one in some]
                if progress is not None:
                    progress(len(claimed))
                budget.give_back(size - len(claimed))
                if pace is not None:
                    pace.wait_after(result.moved - before)
        finally:
            if staying:
                result.kept += len(staying)
                with self._lock:
                    self._owed += staying
        return result

    def _give_back(self) -> None:
        """Puts the messages that stay back at the sideline's tail. If the store refuses that, they stay claimed by this process
        until the next pass; when this process ends, the sweeper takes them."""
        with self._lock:
            owed, self._owed = self._owed, []
        if not owed:
            return
        sideline = self._queue().sideline
        try:
            sideline.store.reload(sideline.name, group_pointers(owed))
        except BaseException as exc:
            with self._lock:
                self._owed += owed
            if not isinstance(exc, IgnisError):
                raise
            self._said.warning(
                "%d message(s) of %s stay claimed until the next pass: %s", len(owed), sideline.name, exc
            )

    def _move(
        self, claim: Claim, where: Where | None, result: ShovelResult, max_returns: int | None
    ) -> list[tuple[int, int]]:
        """Moves the messages that may come back; returns (shard, pointer) of those that stay."""
        main = self._queue().main
        moving: list[Transfer] = []
        staying: list[tuple[int, int]] = []
        for pointer, record in zip(claim.pointers, claim.records, strict=True):
            fresh = _coming_back(record, where, max_returns)
            if fresh is None:
                staying.append((claim.shard, pointer))
                result.waiting += max_returns is not None
            else:
                moving.append(Transfer(claim.shard, pointer, fresh, claim.shard % main.shards))
        if not moving:
            return staying
        tracing = self._queue().tracing
        if tracing is None:
            return [*staying, *self._transfer(moving, result)]
        with returning(tracing, self._name, moving) as traced:
            return [*staying, *self._transfer(traced, result)]

    def _transfer(self, moving: Sequence[Transfer], result: ShovelResult) -> Collection[tuple[int, int]]:
        """Moves them to the main magazine and counts them; returns (shard, pointer) of those that it refuses."""
        queue = self._queue()
        main, sideline = queue.main, queue.sideline
        left = {(item.shard, item.pointer): None for item in moving}
        try:
            for part, moved in in_parts(moving, lambda some: main.store.transfer(sideline.name, main.name, some)):
                result.moved += moved
                for item in part:
                    left.pop((item.shard, item.pointer), None)
        except IgnisError as exc:
            self._said.warning("%d message(s) of %s stay in the sideline: %s", len(left), self._name, exc)
            result.refused += len(left)
        return left


def waits(record: bytes | None, queue: QueueRecord) -> bool:
    """Whether only a person brings this message of the queue's sideline back."""
    policy = policy_in(shovel_retry_of(queue))
    most = queue.max_returns if policy is None else policy.attempts - 1
    return not queue.shovel_interval_s or _coming_back(record, None, most) is None


def _coming_back(record: bytes | None, where: Where | None, max_returns: int | None) -> bytes | None:
    """Returns the record as it comes back; None for one that stays. ``max_returns``: the schedule's bound; None = by hand."""
    if record is None:
        return None
    if max_returns is None:
        if not _wanted(record, where):
            return None
        try:
            return returned_record(record, counted=False)
        except UnreadableMessageError:
            return record
    try:
        message = Message.from_bytes(record)
        if message.reason in STAYS or message.given_up or message.returns >= max_returns:
            return None
        return returned_record(record, counted=True)
    except UnreadableMessageError:
        return None  # without a count it would come back for ever


def _wanted(record: bytes, where: Where | None) -> bool:
    try:
        message = Message.from_bytes(record)
        return message.reason != REASON_CORRUPT and (where is None or bool(where(message)))
    except UnreadableMessageError:
        return where is None


class _Budget:
    """How many messages a pass may still claim, shared by its workers."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._lock = threading.Lock()

    def take(self, most: int) -> int:
        with self._lock:
            taken = min(most, self.left)
            self.left -= taken
            return taken

    def give_back(self, count: int) -> None:
        with self._lock:
            self.left += count


class _Pace:
    """Holds one worker to a number of messages a second. Unused time is not made up for later."""

    def __init__(self, rate: float, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._free_at = time.monotonic()
        self.batch = max(1, min(BATCH, int(rate * _PACED_BATCH_S)))

    def wait_after(self, moved: int) -> None:
        """Waits until the next messages may move, or the shovel is stopped."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + moved / self._rate
        self._stop.wait(max(0.0, self._free_at - now))
