"""The refresher: keeps what runs in this process in step with what is stored.

Others create queues, change their settings, deactivate and remove them. On every instance the refresher

* *discovers*: a stored queue that a handler of this application fits is started here, without a restart;
* *expires*: a queue that is empty and was not used for ``queue_expiry_s`` is deactivated;
* *cleans up*: of a queue that is inactive or gone, consumer and shovel are stopped; a message that comes into an expired
  queue all the same makes it active again;
* *reconciles*: consumers and shovel settings that differ from the stored ones follow them, up and down;
* *takes back*: what another process held of a queue that runs here goes to the sideline when that process is provably dead.

What goes wrong with one queue is logged, shown as its state, and does not stop the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ignis.clock import Clock
from ignis.config import RefresherSettings
from ignis.errors import IgnisError, QueueNotFoundError
from ignis.hooks import log_safely
from ignis.log_format import event_text
from ignis.magazine import SIDELINE_SUFFIX
from ignis.pausing import EXPIRED, PAUSED
from ignis.queue import Queue
from ignis.queue_table import QueueTable
from ignis.schedules.stored import has_schedules
from ignis.shovel_rounds import shovel_retry_of
from ignis.stacks import start_thread
from ignis.storage.base import QueueRecord, Store
from ignis.upkeep import outlast

__all__ = [
    "EXPIRED",
    "FAILED",
    "INACTIVE",
    "NO_HANDLER",
    "PUBLISH_ONLY",
    "REMOVED",
    "RUNNING",
    "RefreshResult",
    "Refresher",
]

log = logging.getLogger("ignis.control.refresher")

USED = "used"
"""Where the stored queue keeps ``[how often it was loaded or fired, when that was seen first, in ms]``."""
RUNNING = "running"
NOT_STARTED = "not started"
PUBLISH_ONLY = "publish only"
NO_HANDLER = "no handler"
INACTIVE = "inactive"
REMOVED = "removed"
FAILED = "failed"

_MARKS_PER_EXPIRY = 8
_SELDOM = 100


@dataclass
class RefreshResult:
    """What one pass did: names of queues."""

    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    revived: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class Refresher:
    """Keeps what runs in one process in step with the queues that are stored. Others call a refresher a reconciler.

    Thread-safe: passes never overlap.

    Args:
        queues: what it keeps in step.
        store: gives the application's store; opens it on first use.
        running: whether the application runs: else nothing is started.
        settings: see ``ignis.config``.
        look_for_dead: takes back what dead processes held of the queues of these names, and tells how many messages it set
            aside, by queue and reason; None = that is left to the sweeper.
        stop_timeout_s: for a consumer whose queue is gone.
        schedule: gives the clock by which it waits.
        clock: seconds since the epoch, None = the store's; injectable for tests.
    """

    def __init__(
        self,
        queues: QueueTable,
        store: Callable[[], Store],
        running: Callable[[], bool],
        settings: RefresherSettings,
        *,
        look_for_dead: Callable[[Sequence[str]], Mapping[tuple[str, str], int]] | None = None,
        stop_timeout_s: float,
        schedule: Callable[[], Clock],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._queues = queues
        self._store = store
        self._running = running
        self.settings = settings
        self._look_for_dead = look_for_dead
        self._stop_timeout_s = stop_timeout_s
        self._schedule = schedule
        self._clock = clock
        self._only: frozenset[str] | None = None
        self._pass = threading.Lock()
        self._stop = threading.Event()
        self._find_at_s = 0.0
        self._thread: threading.Thread | None = None
        self.states: dict[str, str] = {}
        """Queue -> one of the words above; ``failed: `` is followed by why."""
        self.passes = 0
        self.errors = 0

    def start(self, only: Iterable[str] | None = None) -> None:
        """Starts the schedule. ``only``: the queues that may run here; None = all."""
        self._only = None if only is None else frozenset(only)
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=outlast, args=(log, self._loop), name="ignis-refresher", daemon=True)
            try:
                start_thread(self._thread)
            except BaseException:
                self._thread = None
                raise

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule; a pass in progress ends after its queue. Idempotent."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            self._thread = None

    def reset(self) -> None:
        """After the application was closed: what was known of the queues of its store is forgotten."""
        self.states = {}
        self._only = None

    def stats(self) -> dict[str, Any]:
        """Passes, failures, and the state of every queue as this instance sees it."""
        return {"passes": self.passes, "errors": self.errors, "states": dict(self.states)}

    def run_once(self) -> RefreshResult:
        """One pass over all queues. Raises the store's error when it cannot be asked at all."""
        with self._pass:
            store, result = self._store(), RefreshResult()
            records = {record.name: record for record in store.queues.list()}
            for record in records.values():
                if self._stop.is_set() and self._thread is not None:
                    return result
                self._guarded(record.name, result, lambda one=record: self._look(store, one, result))  # type: ignore[misc]
            for queue in self._queues.all():
                if queue.opened and queue.name not in records:
                    # Registered since the list was made, or gone.
                    self._guarded(queue.name, result, lambda one=queue: self._missing(store, one, result))  # type: ignore[misc]
            known = {*records, *(queue.name for queue in self._queues.all())}
            self.states = {name: state for name, state in self.states.items() if name in known}
            self._take_back_from_dead()
            self.passes += 1
            return result

    def watch_once(self) -> RefreshResult:
        """Reconciles the queues that run here, and looks whether those that were declared here and had expired have
        messages again: one or two reads each. Then looks whether there are new ones that a handler of a pattern fits, and whether
        a process died that worked on any."""
        with self._pass:
            store, result = self._store(), RefreshResult()
            for queue in self._queues.all():
                if queue.consumer is None and self.states.get(queue.name) != INACTIVE:
                    continue
                record = store.queues.get(queue.name)
                if record is None:
                    self._guarded(queue.name, result, lambda one=queue: self._missing(store, one, result))  # type: ignore[misc]
                    continue
                if queue.consumer is None or _lost_its_queue(queue):
                    self._guarded(queue.name, result, lambda one=record: self._look(store, one, result))  # type: ignore[misc]
                elif record.active:
                    self._guarded(
                        queue.name,
                        result,
                        lambda one=queue, of=record: self._reconcile(one, of, result),  # type: ignore[misc]
                    )
            self._find_new(store, result)
            self._take_back_from_dead()
            return result

    def _find_new(self, store: Store, result: RefreshResult) -> None:
        """Queues that a handler of a pattern fits, made since the last pass. In a store of very many queues it looks more seldom:
        that is to take a hundredth of the time at most."""
        began_s = time.monotonic()
        if not self._queues.templates or began_s < self._find_at_s:
            return
        self._find_at_s = began_s + self.settings.interval_s  # where the store refuses
        for record in store.queues.list(active=True):
            known = self._queues.find(record.name)
            if (known is None or known.spec is None) and any(one.fits(record) for one in self._queues.templates):
                self._guarded(record.name, result, lambda one=record: self._look(store, one, result))  # type: ignore[misc]
        now_s = time.monotonic()
        self._find_at_s = now_s + _SELDOM * (now_s - began_s)

    def _take_back_from_dead(self) -> None:
        """Who died holding messages of the queues that run here need not be waited for until the sweeper's next pass."""
        if self._look_for_dead is None:
            return
        here = {queue.name: queue for queue in self._queues.all() if queue.consumer is not None}
        if not here:
            return
        for (name, reason), count in self._look_for_dead(list(here)).items():
            here[name].count_aside({reason: count})

    def _guarded(self, name: str, result: RefreshResult, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:
            self.errors += 1
            result.failed.append(name)
            state = f"{FAILED}: {exc}"
            if self.states.get(name) != state:  # every few minutes the same would bury everything else
                log.warning(
                    event_text("queue_refresh_failed", "queue %s cannot be refreshed: %s"),
                    name,
                    exc,
                    exc_info=not isinstance(exc, IgnisError),
                )
            self.states[name] = state

    # -- one queue

    def _look(self, store: Store, record: QueueRecord, result: RefreshResult) -> None:
        now_ms = int((store.now_s() if self._clock is None else self._clock()) * 1000)
        if record.active:
            record = self._mark_or_expire(store, record, now_ms, result)
        elif record.extra.get(EXPIRED):
            record = self._revive(store, record, now_ms, result)
        if not record.active:
            self._drop(record.name, INACTIVE, result)
            return
        queue = self._known(record)
        if queue is not None and _lost_its_queue(queue):
            # Removed and made again between two looks: what ran belongs to the first of the two.
            queue.stop(0)
            queue.note_removed()
        if queue is None or queue.spec is None:
            if self.may_run(record.name):
                self._note_no_handler(record)
            else:  # no template was looked for: another process runs it
                self.states[record.name] = NOT_STARTED
            return
        if self._running() and queue.consumer is None and self.may_run(record.name):
            if not self._start(queue):
                return
            # What is stored may have been changed by the start: by what the code asks for.
            record = store.queues.get(record.name) or record
            log.info(
                event_text("queue_found", "queue %s found in the store: its handler %s runs here"),
                record.name,
                queue.spec.name,
            )
            result.started.append(record.name)
        self._reconcile(queue, record, result)

    def _start(self, queue: Queue[Any]) -> bool:
        queue.start()
        if self._running():
            return True
        queue.stop(0)  # the application was stopped meanwhile
        return False

    def _known(self, record: QueueRecord) -> Queue[Any] | None:
        """The queue's object here, made when a template fits."""
        known = self._queues.find(record.name)
        if (known is None or known.spec is None) and self.may_run(record.name):
            template = next((one for one in self._queues.templates if one.fits(record)), None)
            if template is not None:
                return self._queues.adopt(template, record.name, record)
        return known

    def may_run(self, name: str) -> bool:
        """Whether the queue is among those that the application was started for."""
        return self._only is None or name in self._only

    def _note_no_handler(self, record: QueueRecord) -> None:
        if self.states.get(record.name) != NO_HANDLER:
            named = f" (its handler type is {record.handler_type!r})" if record.handler_type else ""
            log.info(
                event_text("queue_without_handler", "queue %s has no handler in this application%s"), record.name, named
            )
        self.states[record.name] = NO_HANDLER

    def _reconcile(self, queue: Queue[Any], record: QueueRecord, result: RefreshResult) -> None:
        before = _of_shovel(queue)
        queue.set_local_consumers(record.concurrency)
        queue.set_local_pause(PAUSED in record.extra)
        retry = shovel_retry_of(record)
        queue.set_shovel(record.shovel_interval_s, record.shovel_concurrency, record.max_returns, retry)
        after = _of_shovel(queue)
        if after != before:
            log.info(
                event_text("queue_changed", "queue %s: consumers %d, shovel every %g s by %d, returns %d, policy %s"),
                queue.name,
                *after,
            )
            result.changed.append(queue.name)
        here = (PAUSED if queue.paused else RUNNING) if queue.consumer is not None else NOT_STARTED
        self.states[record.name] = here if record.concurrency else PUBLISH_ONLY

    def _missing(self, store: Store, queue: Queue[Any], result: RefreshResult) -> None:
        if store.queues.get(queue.name) is None:
            self._drop(queue.name, REMOVED, result)

    def _drop(self, name: str, state: str, result: RefreshResult) -> None:
        """Stops what runs here. A queue that the code declared is kept, to be started again; a found one is not."""
        self.states[name] = state
        queue = self._queues.find(name)
        if queue is None:
            return
        if queue.consumer is not None:
            queue.stop(self._stop_timeout_s)
            log.info(event_text("queue_stopped", "queue %s is %s: it does not run here any more"), name, state)
            result.stopped.append(name)
        queue.shovel.stop()
        if state == REMOVED:
            queue.note_removed()
        if queue.found:
            self._queues.discard(queue)

    # -- use and expiry

    def _mark_or_expire(self, store: Store, record: QueueRecord, now_ms: int, result: RefreshResult) -> QueueRecord:
        mark = record.extra.get(USED)
        expiry_ms = record.queue_expiry_s * 1000
        if mark is not None and now_ms - mark[1] < expiry_ms / _MARKS_PER_EXPIRY:
            # Not at every pass: a mark that is a little old only lets the queue live a little longer.
            return record
        used, empty = self._use(store, record.name)
        if mark is None or mark[0] != used or has_schedules(record):
            # A queue that something is scheduled for is in use, however rarely that comes.
            return store.queues.update(record.name, lambda one: one.extra.update({USED: [used, now_ms]}))
        if not empty or now_ms - mark[1] < expiry_ms:
            return record

        def expire(one: QueueRecord) -> None:
            # Another instance may have seen more since.
            if one.extra.get(USED) == mark:
                one.active = False
                one.extra[EXPIRED] = now_ms

        record = store.queues.update(record.name, expire)
        if not record.active:
            log.warning(
                event_text("queue_expired", "queue %s was not used for %g s: deactivated"),
                record.name,
                record.queue_expiry_s,
            )
            result.expired.append(record.name)
        return record

    def _revive(self, store: Store, record: QueueRecord, now_ms: int, result: RefreshResult) -> QueueRecord:
        used, empty = self._use(store, record.name)
        if empty:
            return record

        def revive(one: QueueRecord) -> None:
            one.active = True
            one.extra.pop(EXPIRED, None)
            one.extra[USED] = [used, now_ms]

        log.warning(event_text("queue_revived", "queue %s had expired and has messages again: active"), record.name)
        result.revived.append(record.name)
        return store.queues.update(record.name, revive)

    @staticmethod
    def _use(store: Store, name: str) -> tuple[int, bool]:
        """(how often it was loaded and fired so far, whether it holds nothing)."""
        used, empty = 0, True
        for magazine in (name, name + SIDELINE_SUFFIX):
            try:
                states = store.magazines.metadata(magazine)
            except QueueNotFoundError:
                continue
            used += sum(one.load_pointer + one.fire_pointer for one in states)
            empty = empty and not any(one.pending or one.in_flight for one in states)
        return used, empty

    # -- the schedule

    def _loop(self) -> None:
        clock = self._schedule()
        next_pass = clock.monotonic_s() + self.settings.initial_delay_s
        watch_s = self.settings.watch_s or float("inf")
        next_watch = clock.monotonic_s() + watch_s
        while not clock.wait(self._stop, max(0.0, min(next_pass, next_watch) - clock.monotonic_s())):
            try:
                if clock.monotonic_s() >= next_pass:
                    next_pass = clock.monotonic_s() + self.settings.interval_s
                    self.run_once()
                else:
                    self.watch_once()
                next_watch = clock.monotonic_s() + watch_s
            except Exception as exc:
                self.errors += 1
                next_watch = clock.monotonic_s() + watch_s
                shown = None if isinstance(exc, IgnisError) else exc
                log_safely(
                    log,
                    logging.WARNING,
                    event_text("refresh_failed", "refresh failed, trying again: %s"),
                    exc,
                    exc_info=shown,
                )


def _of_shovel(queue: Queue[Any]) -> tuple[int, float, int, int, str]:
    settings = queue.settings
    shovel = settings.shovel_interval_s, settings.shovel_concurrency, settings.max_returns
    return queue.consumers, *shovel, settings.shovel_retry or "none"


def _lost_its_queue(queue: Queue[Any]) -> bool:
    """Whether its consumer ended because its magazine was not there any more."""
    return queue.consumer is not None and isinstance(queue.consumer.failed, QueueNotFoundError)
