"""Whether a queue is still in the store, as its users know it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ignis.errors import QueueNotFoundError, QueueRemovedError, StoreBusyError, StoreUnreachableError
from ignis.registration import Registration


def test_a_store_that_does_not_tell_is_asked_by_the_next_load() -> None:
    """What a load said holds until the next look: somebody may have opened the queue anew meanwhile."""
    queues: Any = SimpleNamespace(tells_removed=False)
    registration = Registration(lambda: queues, "q", 3_600.0)
    registration.opened()
    registration.explain(QueueNotFoundError("q"))
    with pytest.raises(QueueRemovedError):
        registration.check()
    registration.due_s = 0.0
    registration.check()


def test_a_store_that_is_away_is_waited_for_once() -> None:
    """The load behind it would wait as long again. What else is wrong with the store the load says."""
    trouble: list[Exception] = [StoreUnreachableError("away"), StoreBusyError("busy")]

    def get(name: str) -> None:
        raise trouble[0]

    queues: Any = SimpleNamespace(tells_removed=True, look=get)
    registration = Registration(lambda: queues, "q", 3_600.0)
    registration.opened()
    registration.due_s = 0.0
    with pytest.raises(StoreUnreachableError, match="away"):
        registration.check()
    del trouble[0]
    registration.due_s = 0.0
    registration.check()
