"""A handler for queues that are not known when it is registered: they are found in the store, by name or handler type."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ignis.config import ConsumerSettings
from ignis.consumer.handler import Middleware, make_spec
from ignis.consumer.handler_form import check_handler, check_kind
from ignis.consumer.middleware import check_layers, is_coroutine_function
from ignis.storage.base import QueueRecord

__all__ = ["HandlerTemplate"]


class HandlerTemplate:
    """A handler and the queues that it fits. Made by ``app.handler(...)``. Thread-safe.

    Args:
        fn: the handler.
        pattern: of queue names, as in a shell (``orders.*``); empty = none.
        handler_type: also takes queues whose stored handler type is this; empty = the function's name.
        type: of the messages, see ``app.queue``.
        options: see ``queue.handler``; without ``concurrency`` the stored one counts.
        most: says how many workers of a queue there may be.
        file: the parsed settings file.

    Raises ConfigError, ConsumerLimitError: here, and not by the first queue that is found.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        pattern: str,
        handler_type: str,
        type: Any,
        options: Mapping[str, Any],
        most: ConsumerSettings,
        file: Mapping[str, Any],
    ) -> None:
        check_handler(fn, f"handler of queues {pattern!r}")
        spec = make_spec(fn, pattern or "*", type, options, most, file)
        self.pool = spec.pool
        self.fn = fn
        self.pattern = pattern
        self.handler_type = handler_type or getattr(fn, "__qualname__", "")
        self.type = type
        self.declares = "concurrency" in options
        """Whether the code asks for a number of workers; else what is stored stays."""
        self._options = options
        self._limit, _ = spec.limit

    def check_middleware(self, layers: Sequence[Middleware]) -> None:
        """Raises ConfigError where the handler would not run within these layers, or takes other messages and there are none."""
        if not layers and self._options.get("batch_size") is None:
            check_kind(self.fn, f"handler of queues {self.pattern!r}", self.type)
        check_layers(layers, f"{self.handler_type} of queues {self.pattern!r}", is_coroutine_function(self.fn))

    def fits(self, record: QueueRecord) -> bool:
        """Whether the queue is one of this handler's."""
        return self.fits_queue(record.name, record.handler_type)

    def fits_queue(self, name: str, handler_type: str) -> bool:
        """`fits`, for a queue of that name and handler type."""
        return (bool(handler_type) and handler_type == self.handler_type) or self.fits_name(name)

    def fits_name(self, name: str) -> bool:
        """Whether a queue of that name is, whatever handler type it has."""
        return bool(self.pattern) and fnmatch.fnmatchcase(name, self.pattern)

    @property
    def shown(self) -> str:
        """What it waits for, for people: its pattern, or its handler type."""
        return self.pattern or f"with the handler type {self.handler_type}"

    def options_for(self, record: QueueRecord | None) -> dict[str, Any]:
        """The handler's options for a stored queue; None stands for one of which only the name is known."""
        options = dict(self._options)
        if not self.declares and record is not None:
            options["concurrency"] = min(record.concurrency, self._limit)
        return options
