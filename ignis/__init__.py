"""ignis: a durable message queue. A library that needs no server."""

from ignis.loading import end_if_command

try:
    from ignis._version import __version__
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
except KeyboardInterrupt:
    end_if_command()
    raise

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
