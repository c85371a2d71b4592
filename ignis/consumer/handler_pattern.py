"""A handler for queues that are not known when it is registered: they are found in the store, by name or handler type."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ignis.consumer.handler import Middleware, make_spec
from ignis.consumer.handler_form import check_handler
from ignis.consumer.middleware import check_layers, is_coroutine_function
from ignis.storage.base import QueueRecord

if TYPE_CHECKING:
    from ignis.app import Ignis
    from ignis.queue import Queue

__all__ = ["HandlerTemplate"]


class HandlerTemplate:
    """Made by ``app.handler(...)``. Thread-safe.

    Args:
        app: whose queues it makes.
        fn: the handler.
        pattern: of queue names, as in a shell (``orders.*``); empty = none.
        handler_type: also takes queues whose stored handler type is this; empty = the function's name.
        type: of the messages, see ``app.queue``.
        options: see ``queue.handler``; without ``concurrency`` the stored one counts.
    """

    def __init__(
        self, app: Ignis, fn: Callable[..., Any], *, pattern: str, handler_type: str, type: Any, options: dict[str, Any]
    ) -> None:
        check_handler(fn, f"handler of queues {pattern!r}")
        # Said here, and not by the first queue that is found.
        make_spec(fn, pattern or "*", type, options, app.consumer_settings.max_consumers)
        self._app = app
        self.fn = fn
        self.pattern = pattern
        self.handler_type = handler_type or getattr(fn, "__qualname__", "")
        self.type = type
        self._options = options
        self.check_middleware(app.layers)
        if options.get("pool") == "process":
            vars(fn).setdefault("__ignis_templates__", []).append(self)

    def check_middleware(self, layers: Sequence[Middleware]) -> None:
        """Raises ConfigError where the handler would not run within these layers."""
        check_layers(layers, f"{self.handler_type} of queues {self.pattern!r}", is_coroutine_function(self.fn))

    def fits(self, record: QueueRecord) -> bool:
        """Whether the queue is one of this handler's."""
        by_name = bool(self.pattern) and fnmatch.fnmatchcase(record.name, self.pattern)
        return by_name or (bool(record.handler_type) and record.handler_type == self.handler_type)

    def adopt(self, name: str, record: QueueRecord | None = None) -> Queue[Any]:
        """The queue of that name with this handler on it. Raises QueueMismatchError, ConfigError, ConsumerLimitError."""
        queue = self._app.queue(name, self.type)
        options = dict(self._options)
        if "concurrency" not in options and record is not None:
            options["concurrency"] = min(record.concurrency, self._app.consumer_settings.max_consumers)
        queue.template = self
        try:
            # Without a concurrency the code asks for none: what is stored stays.
            queue.add_handler(self.fn, options, declares="concurrency" in self._options)
        except BaseException:
            queue.template = None
            raise
        return queue
