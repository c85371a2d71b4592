"""The autoscaler: watches what waits in the queues and tells a target how many workers that is worth.

Anything with ``workers()`` and ``scale_to(count)`` is a target: `ignis.supervisor.LocalProcesses`, a function
(`FunctionTarget`), an orchestrator's client. More workers are asked for at once, fewer only after a while without need
of them. Who is removed is the target's to do without harm: worker processes are locked from claiming first, end when they
have nothing in hand, and are unlocked when work comes meanwhile. A target that only remembers what it was told may have
``forget()``: it is called when this autoscaler acts again after another one may have acted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ignis.config import AutoscalerSettings, check_name
from ignis.errors import IgnisError, QueueNotFoundError
from ignis.hooks import log_safely
from ignis.leader import Leadership, make_leader
from ignis.log_format import event_text
from ignis.pausing import PAUSED
from ignis.stacks import start_thread
from ignis.storage.base import Fence, QueueRecord, Store
from ignis.upkeep import outlast

__all__ = ["Autoscaler", "Decision", "FunctionTarget", "QueueLoad", "Target", "queue_loads"]

log = logging.getLogger("ignis.control.autoscaler")


class Target(Protocol):
    """What can be scaled. Both calls return soon."""

    def workers(self) -> int | None:
        """How many there are or are being made; those on their way out do not count. None = not known: then it is told what
        the load is worth."""

    def scale_to(self, count: int) -> None:
        """Makes it so many, in its own time."""


class FunctionTarget:
    """A function as a target: called with the number of workers whenever another one is wanted, and once by every
    autoscaler that comes to act without knowing how many there are. Used by one autoscaler.

    Args:
        fn: what it raises is logged, and the call repeated at the next look. After that, and after another autoscaler has
            acted, the number counts as unknown: ``fn`` must be one that may be called twice with the same number.
        workers: how many there are at first; None = not known.
        ask: returns how many there are; asked at every look in place of what is remembered.
    """

    def __init__(
        self, fn: Callable[[int], object], workers: int | None = None, *, ask: Callable[[], int] | None = None
    ) -> None:
        self._fn = fn
        self._ask = ask
        self.known = workers
        """The number as it was told or answered last. Asks nobody."""

    def workers(self) -> int | None:
        if self._ask is not None:
            self.known = self._ask()
        return self.known

    def scale_to(self, count: int) -> None:
        self.known = None  # if this fails, nobody knows how far it came
        self._fn(count)
        self.known = count

    def forget(self) -> None:
        """Another may have changed the number."""
        self.known = None


@dataclass(frozen=True)
class QueueLoad:
    """What waits in one queue. ``oldest_age_s`` None = nothing waits."""

    queue: str
    pending: int
    oldest_age_s: float | None
    paused: bool = False

    @property
    def due(self) -> int:
        """Messages that workers could take now: of a paused queue none."""
        return 0 if self.paused else self.pending


@dataclass(frozen=True)
class Decision:
    """What one look came to: ``wanted`` workers where there were ``workers``; None = not known."""

    wanted: int
    workers: int | None
    loads: tuple[QueueLoad, ...]


def queue_loads(store: Store, queues: Iterable[str] | None = None) -> list[QueueLoad]:
    """What waits in the queues named, or in all active ones. Queues that do not exist are left out."""
    records: dict[str, QueueRecord | None]
    if queues is None:
        records = {one.name: one for one in store.queues.list(active=True)}
    else:
        records = {name: store.queues.get(name) for name in sorted(queues)}
    found = []
    for name, record in records.items():
        try:
            pending = sum(one.pending for one in store.magazines.metadata(name))
            oldest_us = store.magazines.oldest_enqueued_at_us(name) if pending else None
        except QueueNotFoundError:
            continue
        age_s = None if oldest_us is None else max(0.0, time.time() - oldest_us / 1e6)
        found.append(QueueLoad(name, pending, age_s, record is not None and PAUSED in record.extra))
    return found


class Autoscaler:
    """Scales one target by the load of some queues. Thread-safe. Of several with the same ``scope`` on a store one acts.

    Args:
        store: the store.
        target: see `Target`.
        queues: names, or what returns them; None = all active ones.
        settings: see ``ignis.config``.
        leader: decides whether this one acts; default: by ``settings.scope``.
        clock: monotonic seconds, for the cool-down; injectable for tests.
    """

    def __init__(
        self,
        store: Store,
        target: Target,
        *,
        queues: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        settings: AutoscalerSettings | None = None,
        leader: Leadership | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._target = target
        self._queues = queues if queues is None or callable(queues) else tuple(queues)
        self._settings = settings or AutoscalerSettings()
        self._leader = leader or make_leader(store, check_name(self._settings.scope, "autoscaler.scope"))
        self._clock = clock
        self._needs: deque[tuple[float, int]] = deque()
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._under: Fence | None = None
        self._replaced = False
        self.leading = False
        self.errors = 0
        self.last: Decision | None = None

    def start(self) -> None:
        """Starts the schedule. Idempotent."""
        if self._thread is None:
            self._stop.clear()
            self._leader.start()
            self._thread = threading.Thread(
                target=outlast, args=(log, self._loop), name="ignis-autoscaler", daemon=True
            )
            try:
                start_thread(self._thread)
            except BaseException:
                self._thread = None
                raise

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the schedule and gives the leadership up; the target stays as it is. Idempotent; `start` works again."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        self._leader.relinquish()
        self.leading = False

    def close(self, timeout: float = 30.0) -> None:
        """`stop`, and frees what the leadership holds. Idempotent."""
        self.stop(timeout)
        self._leader.close()

    def run_once(self) -> Decision | None:
        """One look, and what follows from it; None when another one acts. Raises the store's and the target's errors."""
        with self._looking:
            fence = self._office()
            if fence is None:
                return None
            _, workers, loads = self.look()
            wanted = self._wanted(loads, workers)
            if wanted == workers:
                self.last = Decision(wanted, workers, loads)
                return self.last
            # The look took its time, and the target checks no epoch as the store does.
            if not self._leader.confirm(fence):
                self._lost()
                return None
            self.last = Decision(wanted, workers, loads)
            waiting, before = sum(one.due for one in loads), "an unknown number" if workers is None else workers
            log.info(
                event_text("scaled", "%d worker(s) wanted instead of %s: %d message(s) wait"), wanted, before, waiting
            )
            self._target.scale_to(wanted)
            return self.last

    def _office(self) -> Fence | None:
        """The authority to act; None when another has it. After another had it nothing counts that was known before."""
        fence = self._leader.try_lead()
        if fence is None or not self._leader.confirm(fence):
            self._lost()
            return None
        if self._replaced or (self._under is not None and fence != self._under):
            self._needs.clear()
            forget = getattr(self._target, "forget", None)
            if forget is not None:
                forget()
        self.leading, self._under, self._replaced = True, fence, False
        return fence

    def _lost(self) -> None:
        if self.leading or not self._replaced:
            log.info(
                event_text("autoscaler_stands_by", "stands by: this is not the autoscaler that acts for scope %s"),
                self._settings.scope,
            )
        self.leading, self._replaced = False, True
        self._needs.clear()

    def look(self) -> tuple[int, int | None, tuple[QueueLoad, ...]]:
        """(workers that the load of this moment is worth, workers that there are, loads). Changes nothing."""
        queues = self._queues() if callable(self._queues) else self._queues
        loads = tuple(queue_loads(self._store, queues))
        workers = self._target.workers()
        return self.need(loads, workers), workers, loads

    def need(self, loads: Iterable[QueueLoad], workers: int | None) -> int:
        """How many workers the load is worth, within the limits, whatever was before."""
        settings = self._settings
        need = sum(math.ceil(one.due / settings.messages_per_worker) for one in loads)
        if settings.max_age_s and any(one.due and (one.oldest_age_s or 0) > settings.max_age_s for one in loads):
            need = max(need, (workers or 0) + 1)
        return min(max(need, settings.min_workers), settings.max_workers)

    def _wanted(self, loads: Iterable[QueueLoad], workers: int | None) -> int:
        now, need = self._clock(), self.need(loads, workers)
        if not self._needs and workers is not None:
            # It begins as if all that there are had been needed until now.
            self._needs.append((now, workers))
        self._needs.append((now, need))
        while len(self._needs) > 1 and self._needs[0][0] <= now - self._settings.cool_down_s:
            self._needs.popleft()
        # Fewer only when nothing in all that time was worth more.
        lately = max(one for _, one in self._needs)
        if workers is None:
            wanted = lately
        else:
            wanted = need if need >= workers else min(workers, max(need, lately))
        return min(max(wanted, self._settings.min_workers), self._settings.max_workers)

    def report(self) -> dict[str, Any]:
        """The last decision, for an endpoint."""
        last = self.last
        return {
            "leading": self.leading,
            "wanted": None if last is None else last.wanted,
            "workers": self._target.known if isinstance(self._target, FunctionTarget) else self._target.workers(),
            "errors": self.errors,
            "queues": [] if last is None else [asdict(one) for one in last.loads],
        }

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except BaseException as exc:  # the target is the user's: whatever it raises, the next look may go better
                self.errors += 1
                log_safely(
                    log, logging.WARNING, event_text("autoscaler_failed", "autoscaler failed, trying again: %s"), exc,
                    exc_info=None if isinstance(exc, IgnisError) else exc,
                )  # fmt: skip
            self._stop.wait(self._settings.interval_s)
