"""What the calls that run here say of themselves, and what is asked of them.

A call that asks nothing and tells nothing leaves no trace: its `Work` is made with the first look at ``ctx.cancelled`` or the
first ``ctx.progress``, and goes with the context.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = [
    "Outlet", "Work", "add_outlet", "any_seen", "ask", "is_asked", "is_stopping", "note_seen", "note_stopping", "open_work",
    "told", "was_seen", "withdraw",
]  # fmt: skip

_Key = tuple[str, bytes]


class Outlet(Protocol):
    """In a worker process: what stands between its calls and the parent."""

    def tell(self, work: Work) -> None:
        """It has told something."""

    def is_asked(self) -> bool:
        """Whether the call in progress is to end."""

    def saw(self, work: Work) -> None:
        """Its handler knows that."""

    def is_stopping(self) -> bool:
        """Whether this process is to end."""


class Work:
    """One call of a handler. Written by its own thread, but for ``asked``.

    Attributes:
        queue, id: of its message, or of the first of a batch.
        fraction, text: its progress; a fraction of None = it has told nothing.
        asked: whether it is to end.
        seen: whether its handler knows that.
        stopping: whether a test says that the process stops.
    """

    __slots__ = ("__weakref__", "asked", "fraction", "id", "queue", "seen", "stopping", "text")

    def __init__(self, queue: str, id: bytes) -> None:
        self.queue = queue
        self.id = id
        self.fraction: float | None = None
        self.text = ""
        self.asked = False
        self.seen = False
        self.stopping = False

    def tell(self, fraction: float, text: str) -> None:
        """Its progress is this from now on."""
        self.fraction, self.text = fraction, text
        for outlet in _outlets:
            outlet.tell(self)

    def look(self) -> bool:
        """Whether it is to end; from then on its handler knows."""
        if not self.asked:
            self.asked = any(outlet.is_asked() for outlet in _outlets)
        if self.asked and not self.seen:
            self.seen = True
            _seen.add((self.queue, self.id))
            for outlet in _outlets:
                outlet.saw(self)
        return self.asked


_works: weakref.WeakValueDictionary[_Key, Work] = weakref.WeakValueDictionary()
_asked: set[_Key] = set()
_seen: set[_Key] = set()
_outlets: list[Outlet] = []
"""That of a worker process; elsewhere there is none."""
_stopping: set[tuple[str, int]] = set()
"""Queue and application, which is told by its resources: its consumer here stops, or has stopped."""


def note_stopping(queue: str, resources: Mapping[str, Any], stopping: bool) -> None:
    """The queue's consumer here begins to stop; or it starts."""
    if stopping:
        _stopping.add((queue, id(resources)))
    else:
        _stopping.discard((queue, id(resources)))


def is_stopping(queue: str, resources: Mapping[str, Any]) -> bool:
    """Whether it stops, or this is a worker process that is to end."""
    return (queue, id(resources)) in _stopping or any(outlet.is_stopping() for outlet in _outlets)


def open_work(queue: str, id: bytes) -> Work:
    """That of a call that begins to tell or to look; as long as somebody holds it."""
    work = Work(queue, id)
    # In this order: who asks at the same time finds the work, or the work finds that it is asked.
    _works[queue, id] = work
    work.asked = (queue, id) in _asked
    return work


def told(queue: str) -> list[Work]:
    """Calls for the queue's messages that have told their progress."""
    works = (ref() for ref in _works.valuerefs())  # a list of this moment: others come and go meanwhile
    return [work for work in works if work is not None and work.queue == queue and work.fraction is not None]


def ask(queue: str, id: bytes) -> None:
    """The call for that message is to end, also when it has not begun yet."""
    _asked.add((queue, id))
    work = _works.get((queue, id))
    if work is not None:
        work.asked = True


def is_asked(queue: str, id: bytes) -> bool:
    """Whether the call for that message is to end."""
    return (queue, id) in _asked


def was_seen(queue: str, id: bytes) -> bool:
    """Whether a handler knows that the call for that message is to end."""
    return (queue, id) in _seen


def any_seen() -> bool:
    """Whether any handler of this process knows that it is to end."""
    return bool(_seen)


def note_seen(queue: str, id: bytes) -> None:
    """A handler in a worker process knows it."""
    _seen.add((queue, id))


def withdraw(queue: str, id: bytes) -> None:
    """The message is accounted for."""
    _asked.discard((queue, id))
    _seen.discard((queue, id))


def add_outlet(outlet: Outlet) -> None:
    """This process is a worker process."""
    _outlets.append(outlet)
