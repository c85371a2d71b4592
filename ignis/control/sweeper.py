"""The sweeper: recovers what was claimed and never finished, because its worker died or hangs.

Runs on the leader only; every write carries the leader's epoch. From the main magazine an abandoned message goes to
the sideline with the reason ``abandoned``. In the sideline itself an abandoned claim is a shovel's: it goes back to the
sideline's tail, and only after ``min(now - stuck_after, now - 2 x shovel interval)``.

What is abandoned is told by the age of a claim, or by the proof that its owner is dead. Where the age cannot be known,
because the clock was set, time is not used: what a dead process held is recovered all the same, the rest waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ignis.clock import Clock
from ignis.config import SweeperSettings
from ignis.control.redelivery import Aside, count_aside, set_aside
from ignis.control.sweep_clock import ClockGuard
from ignis.errors import ConfigError, IgnisError, LockHeldError, QueueNotFoundError, StaleEpochError, StoreFullError
from ignis.hooks import log_safely
from ignis.last_run import due_in_s
from ignis.leader import Leadership
from ignis.log_format import event_text
from ignis.magazine import SIDELINE_SUFFIX
from ignis.stacks import start_thread
from ignis.storage import transactions
from ignis.storage.base import Abandoned, Fence, QueueRecord, Store
from ignis.storage.records import group_pointers
from ignis.sweep_result import SweepResult
from ignis.upkeep import WorkThreads, outlast

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SweepResult", "Sweeper", "counts_from_s"]

log = logging.getLogger("ignis.control.sweeper")

LAST_SWEEP = "sweep"
"""Where the stored queue keeps when it was last swept, and under which epoch."""
_MOST_MOVES = 1_000
"""Transactions of delayed messages that one pass moves in one queue; the rest is for the next."""


@dataclass
class _Queue:
    """One queue in one pass: from which age on a claim is abandoned, in milliseconds, None = time says nothing; up to where each
    shard was swept."""

    record: QueueRecord
    fence: Fence
    stuck_ms: int | None
    sideline_stuck_ms: int | None
    result: SweepResult = field(default_factory=SweepResult)
    pointers: dict[int, int] = field(default_factory=dict)
    sideline_pointers: dict[int, int] = field(default_factory=dict)

    @property
    def main(self) -> str:
        return self.record.name

    @property
    def sideline(self) -> str:
        return self.record.name + SIDELINE_SUFFIX


def counts_from_s(records: Sequence[QueueRecord]) -> float:
    """From when the initial delay of processes that begin counts, in seconds since 1970: the last pass of any process, or else
    the making of the oldest queue. Until it is over nobody leads. ``records``: the stored queues, at least one."""
    last_ms = max(one.extra.get(LAST_SWEEP, {}).get("at_ms", 0) for one in records)
    return (last_ms or min(one.created_at_ms for one in records)) / 1000


class Sweeper:
    """Recovers what abandoned claims hold, in all queues of one store. Thread-safe.

    The sweeper is what others call a reaper of expired leases. Each of its writes carries the epoch of its leader, elsewhere a
    term or fencing token, and the store checks it.

    Args:
        store: the store.
        leader: decides whether this instance may sweep.
        settings: see ``ignis.config``.
        clock: seconds since the epoch; injectable for tests.
        guard: notices when the machine's clock is set.
    """

    def __init__(
        self,
        store: Store,
        leader: Leadership,
        settings: SweeperSettings,
        clock: Callable[[], float] = time.time,
        guard: ClockGuard | None = None,
    ) -> None:
        self._store = store
        self._leader = leader
        self._settings = settings
        self._clock = clock if isinstance(clock, Clock) else Clock(clock)
        self._guard = guard or self._own_guard()
        self._said_jumps = 0
        self._saying = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.total = SweepResult()
        self.aside: Aside = Aside()
        self.passes = 0
        self.failed_passes = 0
        self.refused = 0
        self._last_at_s: float | None = None
        self._last_took_s = 0.0
        leader.on_change(self._wake.set)

    def _own_guard(self) -> ClockGuard:
        """Where the store's clock cannot be set, a step of the wall clock does not suspend the ages, which go by it: what is
        looked for is the time that the machine slept, and its workers with it."""
        if self._clock.by_hand:
            return ClockGuard(self._clock, self._clock.monotonic_s)
        if self._store.of_boottime_ms is not None:
            return ClockGuard(self._store.now_s)
        return ClockGuard()

    # -- life

    def start(self) -> None:
        """Starts the schedule, and enters the contest for the lead."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=outlast, args=(log, self._loop), name="ignis-sweeper", daemon=True)
            try:
                start_thread(self._thread)
            except BaseException:
                self._thread = None
                raise

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule and gives the leadership up; a pass in progress ends after its batch."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        self._leader.relinquish()

    def stats(self) -> dict[str, Any]:
        """Figures since the start of this process; ``leader`` as in `Leadership.stats`."""
        total = self.total
        return {
            "running": self._thread is not None,
            "passes": self.passes,
            "failed_passes": self.failed_passes,
            "refused_writes": self.refused,
            "swept": total.swept,
            "sideline_swept": total.sideline_swept,
            "expired": total.expired,
            "failed_queues": total.failed_queues,
            "untimed_queues": total.untimed_queues,
            "last_pass_at_s": self._last_at_s,
            "last_pass_took_s": round(self._last_took_s, 3),
            "leader": self._leader.stats(),
        }

    def _loop(self) -> None:
        """A pass every ``interval_s``, and one at once on taking office: nobody knows when the last one was."""
        begin_s = due_s = self._clock.monotonic_s() + self._first_due_s()
        ask_s = min(self._leader.refresh_s, self._settings.interval_s)
        under: Fence | None = None
        self._attempt(self._leader.start)
        while True:
            fence = None
            now_s = self._clock.monotonic_s()
            if now_s >= begin_s:
                fence = self._attempt(self._leader.try_lead)
                if fence is not None and (fence != under or now_s >= due_s):
                    under = fence
                    done = self._attempt(self._scheduled)
                    due_s = self._clock.monotonic_s() + (self._settings.interval_s if done else ask_s)
            # Before the first pass a change of leaders is nothing to wake up for.
            rest_s = begin_s - now_s if now_s < begin_s else ask_s
            if fence is not None:
                rest_s = min(ask_s, max(0.0, due_s - self._clock.monotonic_s()))
            self._clock.wait(self._wake, rest_s)
            self._wake.clear()
            if self._stop.is_set():
                return

    def _first_due_s(self) -> float:
        """Where processes live for less than the initial delay, nobody would ever sweep if it counted from their start."""
        delay_s = self._settings.initial_delay_s
        if not delay_s:
            return 0.0
        records = self._attempt(self._store.queues.list)
        if not records:
            return delay_s
        return due_in_s(delay_s, counts_from_s(records), self._clock())

    def _scheduled(self) -> bool:
        try:
            self.run_once()
        except LockHeldError:
            return False
        except StaleEpochError as exc:
            log.warning(event_text("sweep_refused", "sweep refused: %s"), exc)
            return False
        return True

    def _attempt(self, call: Callable[[], Any]) -> Any:
        """The schedule goes on whatever happens."""
        try:
            return call()
        except IgnisError as exc:
            self.failed_passes += 1
            log_safely(log, logging.WARNING, event_text("sweep_failed", "nothing is swept for now: %s"), exc)
        except Exception as exc:
            self.failed_passes += 1
            log_safely(log, logging.ERROR, event_text("sweep_broken", "sweep pass failed"), exc_info=exc)
        return None

    # -- passes

    def run_once(self, queues: Iterable[str] | None = None) -> SweepResult:
        """One pass over all active queues, or over those named.

        Raises:
            LockHeldError: another instance leads.
            CoordinatorUnreachableError: nobody can tell who leads.
            StaleEpochError: another has taken over meanwhile; what was moved before is moved.
        """
        if self._thread is None:
            self._stop.clear()  # an earlier stop ended the schedule, not what is asked for by hand
        fence = self._leader.lead()
        began_s = time.monotonic()
        self._last_at_s = time.time()
        wanted = None if queues is None else set(queues)
        records = [one for one in self._store.queues.list(active=True) if wanted is None or one.name in wanted]
        self._guard.look()
        result = SweepResult(queues=len(records))
        workers = max(1, min(self._settings.parallel_queues, len(records)))
        replaced: StaleEpochError | None = None
        with WorkThreads(workers, "ignis-sweep") as pool:
            begun = [(one, pool.submit_or_run(self._sweep, one, fence)) for one in records]
            for record, future in begun:
                try:
                    result.add(future.result())
                except StaleEpochError as exc:
                    # Somebody else leads now: nothing of this pass may be written any more.
                    replaced = exc
                except Exception:
                    # One queue's failure never stops the others.
                    log.exception(event_text("queue_sweep_broken", "sweep of %s failed"), record.name)
                    result.failed_queues += 1
        self.passes += 1
        self._last_took_s = time.monotonic() - began_s
        self.total.queues = result.queues
        self.total.add(result)
        if replaced is not None:
            self._replaced()
            raise replaced
        return result

    def sweep_queue(self, name: str) -> SweepResult:
        """Sweeps one queue now, active or not. Raises as `run_once`, QueueNotFoundError, and what the store raises."""
        if self._thread is None:
            self._stop.clear()
        fence = self._leader.lead()
        record = self._store.queues.get(name)
        if record is None:
            raise QueueNotFoundError(f"queue {name!r} is not registered in this store")
        self._guard.look()
        try:
            result = self._sweep(record, fence)
        except StaleEpochError:
            self._replaced()
            raise
        self.total.add(result)
        result.queues = 1
        return result

    def _replaced(self) -> None:
        """Somebody else leads by now. What this instance believed is given up, so that the next call asks anew."""
        self.refused += 1
        self._leader.relinquish()

    def _sweep(self, record: QueueRecord, fence: Fence) -> SweepResult:
        """One queue, its shards in turn."""
        one = self._thresholds(record, fence)
        refused: StoreFullError | None = None
        try:
            for shard in range(record.shards):
                while self._sweep_batch(one, shard, main=True):
                    pass
                while self._sweep_batch(one, shard, main=False):
                    pass
            self._check(fence)
            self._move_due(one, fence)
        except StoreFullError as exc:
            refused = exc  # what has run out of time gives room
        self._check(fence)
        one.result.expired += self._store.magazines.expire(one.main) + self._store.magazines.expire(one.sideline)
        if refused is not None:
            raise refused
        if one.result.swept or one.result.sideline_swept:
            self._note(one)
            log.warning(
                event_text("swept", "swept %d abandoned message(s) of %s into the sideline, %d within it"),
                one.result.swept, record.name, one.result.sideline_swept,
            )  # fmt: skip
        return one.result

    def _move_due(self, one: _Queue, fence: Fence) -> None:
        """Delayed messages whose time has come go to the queue. Its consumers do that themselves; this is for one without."""
        for _ in range(_MOST_MOVES):
            moved = self._store.magazines.move_due(one.main, fence=fence)
            one.result.expired += moved.expired
            if self._stop.is_set() or moved.moved + moved.expired == 0:
                return
            self._check(fence)

    def _thresholds(self, record: QueueRecord, fence: Fence) -> _Queue:
        """Raises ConfigError for a queue whose claims would all be taken for abandoned."""
        if not record.stuck_after_s > 0:
            raise ConfigError(
                f"queue {record.name!r} is stored with stuck_after_s = {record.stuck_after_s!r}: what is abandoned cannot "
                "be told from what is being worked on"
            )
        if not self._guard.trusted(record.stuck_after_s):
            self._say_jump()
            return _Queue(record, fence, None, None, SweepResult(untimed_queues=1))
        stuck_ms = int(record.stuck_after_s * 1000)
        return _Queue(record, fence, stuck_ms, max(stuck_ms, int(2 * record.shovel_interval_s * 1000)))

    def _say_jump(self) -> None:
        """Once for each, and not for each queue and pass."""
        with self._saying:
            said, self._said_jumps = self._said_jumps, self._guard.jumps
        if said == self._said_jumps:
            return
        log.error(
            event_text(
                "clock_set",
                "the clock was set by %+.0f s, or the machine slept: for a queue's `stuck_after` its claims are not swept "
                "by their age, only what dead processes held is recovered",
            ),
            self._guard.jumped_s,
        )

    def _sweep_batch(self, one: _Queue, shard: int, *, main: bool) -> bool:
        """One step; whether there may be more."""
        if self._stop.is_set():
            return False
        if self._leader.fence != one.fence:
            raise StaleEpochError(
                f"{one.fence.scope}: this instance does not lead under epoch {one.fence.epoch} any more"
            )
        age_ms = one.stuck_ms if main else one.sideline_stuck_ms
        # Of this moment: the store reads the same clock again, and it may be set between two batches.
        before_ms = 0 if age_ms is None else int(self._clock() * 1000) - age_ms
        found = self._store.magazines.abandoned(
            one.main if main else one.sideline,
            shard,
            before_ms,
            self._settings.batch,
            dead_owners=self._settings.dead_owners,
            max_bytes=transactions.MOST_BYTES,
        )
        if not found:
            return False
        if main:
            moved = self._sideline(one, found)
            one.result.swept += moved
        else:
            pointers = group_pointers((each.shard, each.pointer) for each in found)
            moved = self._store.magazines.reload(one.sideline, pointers, one.fence)
            one.result.sideline_swept += moved
        if moved:
            (one.pointers if main else one.sideline_pointers)[shard] = found[-1].pointer
        # Fewer than a batch may be all that one transaction takes. Where nothing moved, others are at it: looking again at once
        # would show the same.
        return moved > 0

    def _accounted(self, magazine: str, shards: int, reached: dict[int, int], stored: dict[int, int]) -> dict[int, int]:
        """How far each shard's sweep pointer, below which nobody need look again, may be moved: not behind a record that is
        still there. It may be a living owner's, renewed, among older claims; or somebody else is moving it."""
        passed: dict[int, int] = {}
        for shard, pointer in reached.items():
            before = stored.get(shard, 0)
            after = dict.fromkeys(range(shards), 1 << 62) | {shard: before}
            rows = self._store.magazines.scan(magazine, after=after, limit=1)
            passed[shard] = min(pointer, rows[0][1] - 1) if rows else pointer
        return {shard: pointer for shard, pointer in passed.items() if pointer > stored.get(shard, 0)}

    def _check(self, fence: Fence) -> None:
        """Raises StaleEpochError when another leads by now. For what needs no authority of itself: retiring what ran out
        of time is what any consumer does on its way."""
        epoch = self._store.locks.epoch(fence.scope)
        if epoch > fence.epoch:
            raise StaleEpochError(f"{fence.scope}: epoch {fence.epoch} was replaced by {epoch}")

    def _sideline(self, one: _Queue, found: list[Abandoned]) -> int:
        def why(each: Abandoned) -> str:
            return (
                "its worker's process is dead"
                if each.owner_dead
                else f"not finished after {one.record.stuck_after_s:g} s"
            )

        moved = set_aside(self._store, one.record, found, why, one.fence)
        count_aside(self.aside, one.main, found, moved)
        return moved

    def _note(self, one: _Queue) -> None:
        """In the queue's record: how far the pass came, what it moved, and under which epoch."""
        at_ms = int(self._clock() * 1000)
        known = one.record
        passed = self._accounted(one.main, known.shards, one.pointers, known.sweep_pointers)
        sideline_passed = self._accounted(
            one.sideline, known.shards, one.sideline_pointers, known.sideline_sweep_pointers
        )

        def change(record: QueueRecord) -> None:
            # Never back: the store may have moved them on by itself.
            for stored, reached in (
                (record.sweep_pointers, passed),
                (record.sideline_sweep_pointers, sideline_passed),
            ):
                stored.update({shard: max(pointer, stored.get(shard, 0)) for shard, pointer in reached.items()})
            record.swept_count += one.result.swept
            record.sideline_swept_count += one.result.sideline_swept
            record.extra[LAST_SWEEP] = {"epoch": one.fence.epoch, "at_ms": at_ms}

        self._store.queues.update(one.main, change, one.fence)
