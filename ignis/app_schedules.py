"""The schedules of an application and what fires them, from its start to its stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from ignis.clock import Clock
from ignis.config import SchedulesSettings, check_name, check_queue_name
from ignis.control.scheduler import Scheduler
from ignis.errors import InvalidMessageError, PermissionDeniedError, QueueNotFoundError
from ignis.hooks import Hooks
from ignis.leader import Leadership
from ignis.message import BodyCodec
from ignis.near_names import meant
from ignis.queue import Queue
from ignis.queue_table import QueueTable
from ignis.schedules.book import Schedules, encoded_message
from ignis.storage.base import Store

__all__ = ["AppSchedules"]


class AppSchedules:
    """Stores what the code declares, and runs the scheduler. Thread-safe.

    Args:
        table: the application's queues.
        store: opens the store on first use.
        leader: the application's candidate for a scope.
        running: whether the application runs.
        settings: see ``ignis.config``.
        clock: gives the time by which the application acts.
        hooks: told of what was published.
        lock: the application's, held while it is started or closed.
    """

    def __init__(
        self,
        table: QueueTable,
        store: Callable[[], Store],
        leader: Callable[[str], Leadership],
        running: Callable[[], bool],
        settings: SchedulesSettings,
        clock: Callable[[], Clock],
        hooks: Hooks,
        lock: threading.RLock,
    ) -> None:
        self._table = table
        self._store = store
        self._leader = leader
        self._running = running
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._lock = lock
        self._scheduler: Scheduler | None = None
        self.stored = Schedules(store, self._opened_codec, clock, self._changed, self._check_queue)

    def _opened_codec(self, name: str) -> BodyCodec[Any]:
        queue: Queue[Any] = self._table.get(name, None, {})
        queue.open()
        return queue.codec

    def _check_queue(self, schedule: str, queue: str) -> None:
        """Raises QueueNotFoundError for a queue that is neither declared in this application nor in the store. Its messages would
        wait there for a handler that nobody wrote."""
        if self._table.find(queue) is not None or any(one.fits_name(queue) for one in self._table.templates):
            return
        store = self._store()
        if store.queues.get(queue) is not None or store.queues_unknown:
            return
        known = {one.name for one in self._table.all()}
        with contextlib.suppress(PermissionDeniedError):  # who may not list them is told of the declared ones
            known.update(one.name for one in store.queues.list())
        raise QueueNotFoundError(
            f"schedule {schedule!r} publishes to queue {queue!r}, which is neither declared here nor in the store: "
            f"{meant(queue, known)}there is {', '.join(sorted(known)[:10]) or 'none'}; app.queue({queue!r}) declares it"
        )

    def _changed(self) -> None:
        if (scheduler := self._scheduler) is not None:
            scheduler.wake()

    def _published(self, queue: str, count: int) -> None:
        if self._hooks.after_publish:
            self._hooks.published(queue, count)

    def declare(self, name: str, *, queue: Queue[Any] | str, **asked: Any) -> None:
        """See ``app.schedule``."""
        made = queue if isinstance(queue, Queue) else self._table.find(check_queue_name(queue))
        if made is not None and made.type is not None:
            _check_message(check_name(name, "schedule"), made, asked["message"])
        running = self._running()
        if running and made is None:
            self._check_queue(check_name(name, "schedule"), str(queue))
        self.stored.declare(name, queue=queue.name if isinstance(queue, Queue) else queue, **asked)
        if running:
            self.stored.store_declared()

    def scheduler(self) -> Scheduler:
        """See ``app.scheduler``."""
        with self._lock:
            if self._scheduler is None:
                self._scheduler = Scheduler(
                    self._store(), self._leader("schedules"), self._settings, self._clock(), self._published
                )
            return self._scheduler

    @property
    def made(self) -> Scheduler | None:
        """The scheduler, where it was made."""
        return self._scheduler

    def start(self) -> None:
        """Stores what was declared, and begins to fire. Raises what `Schedules.add` raises."""
        self.stored.store_declared()
        self.scheduler().start()

    def stop(self, timeout: float) -> None:
        """Ends the firing. Idempotent."""
        if (scheduler := self._scheduler) is not None:
            scheduler.stop(timeout)

    def forget(self) -> None:
        """After the store was closed: the next use makes another scheduler."""
        self._scheduler = None


def _check_message(schedule: str, queue: Queue[Any], message: Any) -> None:
    """Raises what `encoded_message` raises. Of a queue that is not open it is not known with which codec it is stored: what any
    of them takes is left to the start."""
    try:
        encoded_message(schedule, queue.codec, message)
    except InvalidMessageError:
        if queue.opened or queue.codec.name != "json" or queue.settings.codec != "auto":
            raise
        encoded_message(schedule, BodyCodec(queue.type, "msgpack", queue.settings.strict), message)
