"""ignis: a durable message queue. A library that needs no server."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ignis._version import __version__

if TYPE_CHECKING:
    from ignis.app import Ignis
    from ignis.array_queue import ArrayQueue
    from ignis.consumer.handler import DROPPED, Context, Failure
    from ignis.errors import IgnisError
    from ignis.history import Attempt
    from ignis.locks import Lock, LockLevel, LockManager
    from ignis.magazine import Fired, Magazine, MessageIds, Published
    from ignis.message import Message
    from ignis.native import Receipt
    from ignis.publisher import Publisher
    from ignis.queue import Queue
    from ignis.retries import Retry, RetryLater

__all__ = [
    "DROPPED",
    "ArrayQueue",
    "Attempt",
    "Context",
    "Failure",
    "Fired",
    "Ignis",
    "IgnisError",
    "Lock",
    "LockLevel",
    "LockManager",
    "Magazine",
    "Message",
    "MessageIds",
    "Published",
    "Publisher",
    "Queue",
    "Receipt",
    "Retry",
    "RetryLater",
    "__version__",
]

_MODULES = {
    "DROPPED": "consumer.handler", "ArrayQueue": "array_queue", "Attempt": "history", "Context": "consumer.handler",
    "Failure": "consumer.handler", "Fired": "magazine", "Ignis": "app", "IgnisError": "errors", "Lock": "locks",
    "LockLevel": "locks", "LockManager": "locks", "Magazine": "magazine", "Message": "message", "MessageIds": "magazine",
    "Published": "magazine", "Publisher": "publisher", "Queue": "queue", "Receipt": "native", "Retry": "retries",
    "RetryLater": "retries",
}  # fmt: skip
"""Public name -> the module that has it. It is imported when the name is first used: a command that only looks into a store
needs no consumer."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(f"ignis.{_MODULES[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"ignis.{name}") is not None:
        value = importlib.import_module(f"ignis.{name}")
    else:
        raise AttributeError(f"module 'ignis' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
