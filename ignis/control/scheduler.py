"""The scheduler: fires the ticks of schedules, on the leader of the scope ``schedules``.

For each queue with a tick that is due it reads the queue's record anew, and asks the store whether it still leads. It loads the
messages of the ticks. It notes in the record, under its epoch, up to where ticks are accounted for.

It goes in rounds. In each round every queue whose ticks are in time has a turn, and one of the queues that are behind. A turn is
bounded, so a queue that catches up makes no tick of another queue late.

Each step may be the last of its process. What makes one message of each tick then are two things together: the note, and the id
of the message, which follows from the tick, so that the store leaves out what another has loaded.

An instance that knows of no schedule takes no part in the contest for the lead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ignis.clock import Clock
from ignis.config import SchedulesSettings
from ignis.errors import (
    ConfigError,
    IgnisError,
    LockHeldError,
    PermissionDeniedError,
    PublishOnlyError,
    QueueNotFoundError,
    StaleEpochError,
)
from ignis.hooks import log_safely
from ignis.leader import Leadership
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.schedules.due import MOST_TICKS, Plan, plan
from ignis.schedules.fire import load_ticks, remember_s
from ignis.schedules.stored import StoredSchedule, read_schedules, write_schedule
from ignis.schedules.timing import Timing
from ignis.stacks import start_thread
from ignis.storage.base import Fence, QueueRecord, Store
from ignis.upkeep import outlast

__all__ = ["FireResult", "Scheduler"]

log = logging.getLogger("ignis.control.scheduler")

_IDLE_LOOKS = 6
"""An instance that knows of no schedule looks this many times more rarely."""
_MOST_SINGLY = 20
"""So many ticks are fired in one turn where each takes a load and a note of its own."""
_COUNTED_A_TICK = 10
"""To count so many missed ticks of a cron expression takes about as long as to fire one."""
_BEHIND_MS = 3_600_000
"""A clock that stands so far before the last tick was set back, and somebody should know."""


@dataclass
class FireResult:
    """What one look did: ticks fired, ticks left out because they were missed, queues and schedules that failed."""

    fired: int = 0
    missed: int = 0
    failed: int = 0


@dataclass
class _Due:
    """A schedule with something due: its plan, and what it follows from."""

    name: str
    stored: StoredSchedule
    timing: Timing
    plan: Plan


class Scheduler:
    """Fires what is due, of all queues of one store, while it leads. Thread-safe.

    Args:
        store: the store.
        leader: decides whether this instance may fire.
        settings: see ``ignis.config``.
        clock: seconds since 1970; injectable for tests.
        published: told of a queue and how many messages were loaded.
    """

    def __init__(
        self,
        store: Store,
        leader: Leadership,
        settings: SchedulesSettings,
        clock: Callable[[], float] = time.time,
        published: Callable[[str, int], None] | None = None,
    ) -> None:
        self._store = store
        self._leader = leader
        self._settings = settings
        self._clock = clock if isinstance(clock, Clock) else Clock(clock)
        self._published = published
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._changed = False
        self._thread: threading.Thread | None = None
        self._next: dict[str, int | None] = {}
        """Of each queue with schedules: when something is due there; None = never. Of those that are behind the first is next."""
        self._resume: dict[str, str] = {}
        """Of a queue whose last turn was too short for all of its schedules: the one to begin with."""
        self._list_at_s = 0.0
        self._under: Fence | None = None
        self._once = False
        self._said = LimitedLog(log)
        self._said_rarely = LimitedLog(log, 3_600.0)
        self.total = FireResult()
        self.looks = 0
        self.refused = 0
        leader.on_change(self._wake.set)

    # -- life

    def start(self) -> None:
        """Starts to look. Idempotent."""
        if self._thread is None:
            self._stop.clear()
            self._list_at_s = 0.0
            self._thread = threading.Thread(target=outlast, args=(log, self._loop), name="ignis-scheduler", daemon=True)
            try:
                start_thread(self._thread)
            except BaseException:
                self._thread = None
                raise

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule and gives the lead up; a look in progress ends after its queue. Idempotent."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        self._leader.relinquish()
        self._under = None

    def wake(self) -> None:
        """A schedule was changed in this process: it is looked at now."""
        self._changed = True
        self._wake.set()

    def stats(self) -> dict[str, Any]:
        """Figures since the start of this process; ``leader`` as in `Leadership.stats`."""
        total = self.total
        return {
            "running": self._thread is not None,
            "looks": self.looks,
            "fired": total.fired,
            "missed": total.missed,
            "failed": total.failed,
            "refused_writes": self.refused,
            "leader": self._leader.stats(),
        }

    def _loop(self) -> None:
        while not self._stop.is_set():
            rest_s = self._settings.look_s
            try:
                rest_s = self._look()
            except (LockHeldError, StaleEpochError) as exc:
                log.info(event_text("schedules_led_elsewhere", "schedules are fired by another instance: %s"), exc)
            except (PermissionDeniedError, PublishOnlyError) as exc:
                rest_s *= _IDLE_LOOKS
                self._said_rarely.warning(
                    event_text("schedules_not_allowed", "no schedule is fired from here: %s"), exc
                )
            except IgnisError as exc:
                self.total.failed += 1
                self._said.warning(event_text("schedules_look_failed", "no schedule is fired for now: %s"), exc)
            except Exception as exc:
                self.total.failed += 1
                log_safely(
                    log,
                    logging.ERROR,
                    event_text("schedules_look_broken", "a look at the schedules failed"),
                    exc_info=exc,
                )
            self._clock.wait(self._wake, rest_s)
            self._wake.clear()

    def _look(self) -> float:
        """What is due by now; returns for how many seconds nothing is."""
        with self._looking:
            if self._changed or self._clock.monotonic_s() >= self._list_at_s:
                self._list()
            if not self._next:
                if self._under is not None:
                    self._leader.relinquish()
                    self._under = None
                return max(0.0, self._list_at_s - self._clock.monotonic_s())
            fence = self._leader.try_lead()
            if fence is None:
                self._under = None
                return min(self._settings.look_s, self._leader.refresh_s)
            if fence != self._under:
                self._list()  # what was known may be old: others led
                self._under = fence
            # One round: in the next look a lost lead and the changes of others are seen, also where ticks are due all the time.
            self._fire_due(fence, rounds=1)
            rest_s = self._list_at_s - self._clock.monotonic_s()
            due = [at_ms for at_ms in self._next.values() if at_ms is not None]
            if due:
                rest_s = min(rest_s, min(due) / 1000 - self._clock())
            return max(0.0, rest_s)

    def _list(self) -> None:
        """Which queues have schedules, and when each is to be looked at."""
        self._changed = False
        before, self._next = self._next, {}
        listed: dict[str, int | None] = {}
        for record in self._store.queues.list():
            found = read_schedules(record, self._tell_damaged(record.name))
            if found:
                listed[record.name] = self._next_of(record.name, found)
        # In the order of their turns, or else queues at the end would have none while those before them catch up.
        self._next = {queue: listed[queue] for queue in before if queue in listed} | listed
        self._resume = {queue: name for queue, name in self._resume.items() if queue in listed}
        looks = 1 if self._next else _IDLE_LOOKS
        self._list_at_s = self._clock.monotonic_s() + looks * self._settings.look_s

    def _tell_damaged(self, queue: str) -> Callable[[str, Exception], None]:
        def tell(name: str, why: Exception) -> None:
            self._said_rarely.error(
                event_text(
                    "schedule_damaged",
                    "schedule %s of queue %s is damaged and is not fired: %s; to add it anew mends it"), name, queue, why,
                about=f"{queue}/{name}",
            )  # fmt: skip

        return tell

    def run_once(self) -> FireResult:
        """One look at all queues, by hand; as many more as it takes until nothing is due.

        Raises:
            LockHeldError: another instance leads.
            CoordinatorUnreachableError: nobody can tell who leads.
            StaleEpochError: another has taken over meanwhile; what was fired before is fired.
        """
        with self._looking:
            fence = self._leader.lead()
            self._under = fence
            self._list()
            return self._fire_due(fence)

    # -- ticks

    def _fire_due(self, fence: Fence, rounds: int | None = None) -> FireResult:
        """So many rounds, or until nothing is due."""
        self.looks += 1
        result = FireResult()
        try:
            while (rounds is None or rounds > 0) and self._round(fence, result):
                rounds = None if rounds is None else rounds - 1
        except StaleEpochError:
            # Somebody else leads: what this instance believed is given up, so that the next look asks anew.
            self.refused += 1
            self._under = None
            self._leader.relinquish()
            raise
        finally:
            self.total.fired += result.fired
            self.total.missed += result.missed
            self.total.failed += result.failed
        return result

    def _round(self, fence: Fence, result: FireResult) -> bool:
        """A turn for each queue whose ticks are in time, then for one of those that are behind. Whether there was any."""
        now_ms = int(self._clock() * 1000)
        late_ms = now_ms - int(self._settings.grace_s * 1000)
        due = {queue: at_ms for queue, at_ms in self._next.items() if at_ms is not None and at_ms <= now_ms}
        behind = next((queue for queue, at_ms in due.items() if at_ms < late_ms), None)
        turns = [queue for queue, at_ms in due.items() if at_ms >= late_ms]
        for queue in turns if behind is None else [*turns, behind]:
            if self._stop.is_set() and self._thread is not None:
                return False
            self._guarded(queue, fence, result)
        if behind in self._next:
            self._next[behind] = self._next.pop(behind)
        return bool(due)

    def _guarded(self, queue: str, fence: Fence, result: FireResult) -> None:
        """One queue. Its failure never stops the others: its ticks stay due until the next look."""
        try:
            self._fire(queue, fence, result)
        except StaleEpochError:
            raise
        except Exception as exc:
            result.failed += 1
            self._said.error(
                event_text(
                    "schedules_not_fired",
                    "the schedules of queue %s could not be fired, and are tried again: %s"), queue, exc,
                about=queue, exc_info=None if isinstance(exc, IgnisError) else exc,
            )  # fmt: skip
            self._next[queue] = int((self._clock() + self._settings.look_s) * 1000)

    def _fire(self, queue: str, fence: Fence, result: FireResult) -> None:
        """One turn of a queue."""
        # Read anew: it may have been paused, changed or removed since the look.
        record = self._store.queues.get(queue)
        known = {} if record is None else read_schedules(record)
        if record is None or not known:
            del self._next[queue]
            return
        # Where a store cannot tell what was loaded before, each tick is noted before the next one is loaded: so a change of
        # leaders repeats one message at most.
        # A store that could tell once can, though its broker may be away for a moment.
        self._once = self._once or self._store.magazines.tells_repeats
        todo = self._plans(record, known, MOST_TICKS if self._once else _MOST_SINGLY, result)
        if self._once:
            if todo:
                self._step(record, todo, fence, result)
        else:
            for one in todo:
                for part in _singly(one):
                    self._step(record, [part], fence, result)
        self._next[queue] = self._next_of(queue, known)

    def _plans(
        self, record: QueueRecord, known: dict[str, StoredSchedule], most: int, result: FireResult
    ) -> list[_Due]:
        """What to fire in one turn, of one schedule after the other, until it is so many ticks together."""
        now_ms, grace_ms = int(self._clock() * 1000), int(self._settings.grace_s * 1000)
        names = list(known)
        if (first := self._resume.pop(record.name, "")) in known:
            names = names[names.index(first) :] + names[: names.index(first)]
        found: list[_Due] = []
        spent = 0
        for name in names:
            if spent >= most:
                self._resume[record.name] = name
                break
            stored = known[name]
            if stored.paused_at_ms:
                continue
            try:
                timing = stored.timing()
                next_ms = timing.next_ms(stored.done_ms)
            except ConfigError as exc:
                result.failed += 1
                self._said_rarely.error(
                    event_text("schedule_not_fired", "schedule %s of queue %s is not fired here: %s"),
                    name,
                    record.name,
                    exc,
                    about=name,
                )
                continue
            if next_ms is None or next_ms > now_ms:
                continue
            due = plan(timing, stored.done_ms, now_ms, grace_ms, stored.missed, most, self._settings.max_made_up)
            if due is not None:
                found.append(_Due(name, stored, timing, due))
                spent += len(due.ticks) + due.missed // _COUNTED_A_TICK
        return found

    def _step(self, record: QueueRecord, todo: list[_Due], fence: Fence, result: FireResult) -> None:
        """Loads the ticks, then notes them."""
        if not self._leader.confirm(fence):
            raise StaleEpochError(f"{fence.scope}: this instance does not lead under epoch {fence.epoch} any more")
        loaded = 0
        for one in todo:
            if one.plan.ticks:
                loaded += load_ticks(
                    self._store.magazines, record, one.name, one.stored, one.plan.ticks,
                    once_for_s=remember_s(one.timing.period_s) if self._once else None,
                )  # fmt: skip
        if loaded and self._published is not None:
            self._published(record.name, loaded)
        fired = {one.name: one for one in todo}
        fired_at_ms = int(self._clock() * 1000)

        def note(record: QueueRecord) -> None:
            for name, stored in read_schedules(record).items():
                one = fired.get(name)
                if one is not None and one.stored.life == stored.life:
                    _account(stored, one.plan, fired_at_ms, fence.epoch)
                    write_schedule(record, name, stored)

        try:
            self._store.queues.update(record.name, note, fence)
        except QueueNotFoundError:
            return  # removed meanwhile, and its schedules with it
        for one in todo:
            # What is known of it here goes on from there.
            one.stored.done_ms = max(one.stored.done_ms, one.plan.done_ms)
            result.fired += len(one.plan.ticks)
            result.missed += one.plan.missed
            if one.plan.missed and one.stored.missed == "all":
                log.warning(
                    event_text(
                        "schedule_not_made_up",
                        "schedule %s of queue %s: %d tick(s) were missed and left out, since they are too old to be made up "
                        "(schedules.max_made_up = %d)"),
                    one.name, record.name, one.plan.missed, self._settings.max_made_up,
                )  # fmt: skip
            elif one.plan.missed:
                log.warning(
                    event_text("schedule_missed", "schedule %s of queue %s: %d tick(s) were missed and left out (missed = %s)"),
                    one.name, record.name, one.plan.missed, one.stored.missed,
                )  # fmt: skip

    def _next_of(self, queue: str, known: dict[str, StoredSchedule]) -> int | None:
        """When the first of a queue's schedules is due."""
        now_ms = int(self._clock() * 1000)
        found = []
        for name, stored in known.items():
            if stored.paused_at_ms:
                continue
            if stored.done_ms > now_ms + _BEHIND_MS:
                self._said_rarely.warning(
                    event_text(
                        "schedule_rests",
                        "schedule %s of queue %s rests: the clock stands %d s before its last tick. If that tick was wrong, "
                    "pause and resume the schedule"), name, queue, (stored.done_ms - now_ms) // 1000, about=name,
                )  # fmt: skip
            try:
                at_ms = stored.timing().next_ms(stored.done_ms)
            except ConfigError as exc:
                self._said_rarely.error(
                    event_text("schedule_not_fired", "schedule %s of queue %s is not fired here: %s"),
                    name,
                    queue,
                    exc,
                    about=name,
                )
                continue
            if at_ms is not None:
                found.append(at_ms)
        return min(found, default=None)


def _singly(one: _Due) -> list[_Due]:
    """The same plan in steps of one tick; what was missed goes with the first."""
    whole = one.plan
    if len(whole.ticks) < 2:
        return [one]
    parts = [Plan([tick_ms], whole.missed if number == 0 else 0, tick_ms) for number, tick_ms in enumerate(whole.ticks)]
    return [_Due(one.name, one.stored, one.timing, part) for part in parts]


def _account(stored: StoredSchedule, done: Plan, fired_at_ms: int, epoch: int) -> None:
    """Into what is stored by now: another may have fired the same ticks meanwhile, or somebody have changed the schedule."""
    fresh = [tick_ms for tick_ms in done.ticks if tick_ms > stored.done_ms]
    if done.done_ms <= stored.done_ms:
        return
    stored.done_ms = done.done_ms
    stored.fired += len(fresh)
    stored.missed_ticks += done.missed
    stored.epoch = epoch
    if fresh:
        stored.last_tick_ms = fresh[-1]
        stored.last_lag_ms = max(0, fired_at_ms - fresh[-1])
