"""The queues of one application in one process: those that its code names, and those that were found in the store."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from ignis.config import QueueSettings, check_name, given_names, shown
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.consumer.registered import note_pattern
from ignis.context import AppContext
from ignis.errors import QueueMismatchError
from ignis.queue import Queue
from ignis.storage.base import QueueRecord

__all__ = ["QueueTable"]


class QueueTable:
    """One `Queue` for each name. Thread-safe."""

    def __init__(self, app: AppContext) -> None:
        self._app = app
        self._lock = threading.RLock()
        self._queues: dict[str, Queue[Any]] = {}
        self.templates: list[HandlerTemplate] = []
        """Handlers of queues that are found in the store, in the order in which they were registered."""

    def get(self, name: str, type: Any, settings: dict[str, Any]) -> Queue[Any]:
        """The queue of that name, made where there is none. Raises as ``app.queue``."""
        name = check_name(name)
        with self._lock:
            known = self._queues.get(name)
            if known is None:
                known = self._queues[name] = Queue(self._app, name, type, settings)
            elif (type is not None and type is not known.type) or settings:
                fresh: Queue[Any] = Queue(self._app, name, type if type is not None else known.type, settings)
                if known.opened and "message_expiry_s" not in given_names(
                    QueueSettings, settings, self._app.file, name=name
                ):
                    # Where nobody says, the store does, once the queue is open.
                    fresh.take_expiry_of(known)
                # Once it is open `settings` has what the store says where nobody else does: who asks for the same as before may.
                same = fresh.settings == known.settings or fresh.asked == known.asked
                if fresh.type is not known.type or (settings and not same):
                    if known.unused:
                        known.reset(fresh)
                        return known
                    raise QueueMismatchError(
                        f"queue {name!r} was made before with {_differences(known, fresh, bool(settings))}"
                    )
            return known

    def all(self) -> list[Queue[Any]]:
        """Every queue made in this process."""
        return list(self._queues.values())

    def find(self, name: str) -> Queue[Any] | None:
        """The queue of that name; None when none was made."""
        return self._queues.get(name)

    def discard(self, queue: Queue[Any]) -> None:
        """Forgets a queue, unless another has its name by now."""
        with self._lock:
            if self._queues.get(queue.name) is queue:
                del self._queues[queue.name]

    def reset(self) -> None:
        """After the application was closed: what was found in the store is forgotten, the rest is as it was made."""
        with self._lock:
            self._queues = {name: queue for name, queue in self._queues.items() if not queue.found}
            for queue in self._queues.values():
                queue.reset()

    # -- handlers of queues that are found

    def add_template(self, template: HandlerTemplate) -> None:
        """Registers a handler of queues that are found from now on. Raises ConfigError where the application's middleware
        does not fit round it."""
        template.check_middleware(self._app.layers)
        if template.pool == "process":
            note_pattern(template.fn, lambda name: self.adopt(template, name))
        self.templates.append(template)

    def adopt(self, template: HandlerTemplate, name: str, record: QueueRecord | None = None) -> Queue[Any]:
        """The queue of that name with this handler on it. Raises QueueMismatchError, ConfigError, ConsumerLimitError."""
        known = self.find(name)
        queue = self.get(name, template.type, {})
        queue.template, queue.found = template, known is None or known.found
        try:
            # Without a concurrency the code asks for none: what is stored stays.
            queue.add_handler(template.fn, template.options_for(record), declares=template.declares)
        except BaseException:
            queue.template = None
            raise
        return queue

    def adopt_declared(self, may_run: Callable[[str], bool]) -> list[Queue[Any]]:
        """Those queues that the code names without a handler, and that one of a pattern fits: with that handler on them. A queue
        of another type than the handler's is left out: it is published to, for somebody else. Opens the store.

        Args:
            may_run: whether the queue of that name is wanted.

        Raises as `adopt`, and what the store raises.
        """
        adopted = []
        for queue in self.all() if self.templates else ():
            if queue.spec is not None or not may_run(queue.name):
                continue
            for template in self.templates:
                same_type = queue.type is None or template.type is None or queue.type is template.type
                if same_type and template.fits_queue(queue.name, queue.settings.handler_type):
                    record = self._app.store().queues.get(queue.name)
                    adopted.append(self.adopt(template, queue.name, record))
                    break
        return adopted


def _differences(known: Queue[Any], fresh: Queue[Any], of_settings: bool) -> str:
    """What the first has and the second asks for, where they are not the same."""
    found = [("type", known.type, fresh.type)] if fresh.type is not known.type else []
    for spec in dataclasses.fields(fresh.settings) if of_settings else ():
        old, new = getattr(known.settings, spec.name), getattr(fresh.settings, spec.name)
        if old != new:
            found.append((spec.name, old, new))
    return ", ".join(f"{name} = {_said(old)}, now asked for with {_said(new)}" for name, old, new in found)


def _said(value: Any) -> str:
    return value.__qualname__ if isinstance(value, type) else shown(value)
