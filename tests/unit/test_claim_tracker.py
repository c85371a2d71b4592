"""The thread of a client that says to a new broker what is held."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ignis.broker.client.claim_tracker import ClaimTracker
from ignis.config import ClientSettings
from ignis.storage.base import Claim
from tests.support import eventually


class Standing:
    """A client whose connection stands."""

    settings = ClientSettings()
    connects = 1
    closed = False

    class connection:  # noqa: N801
        @staticmethod
        def look() -> bool:
            return True


class Counting(threading.Condition):
    told = 0

    def notify(self, n: int = 1) -> None:
        self.told += 1
        super().notify(n)


@pytest.fixture
def tracker() -> Any:
    made: Any = ClaimTracker(Standing(), keeps=True)  # type: ignore[arg-type]
    made._wanted = Counting(made._changed._lock)
    yield made
    made.close()
    if made._thread is not None:
        made._thread.join(10)
        assert not made._thread.is_alive()


def claim(tracker: Any, pointer: int) -> None:
    with tracker.claiming("q") as found:
        found.append(Claim(0, [pointer], [b""]))


def test_a_claim_does_not_wake_a_thread_that_is_at_it_already(tracker: Any) -> None:
    for pointer in range(200):
        claim(tracker, pointer)
        tracker.accounted("q", {0: [pointer]})
    assert tracker._wanted.told < 100


def test_the_first_claim_behind_a_time_with_none_wakes_it(tracker: Any) -> None:
    claim(tracker, 1)
    tracker.accounted("q", {0: [1]})
    eventually(lambda: tracker._idles)
    claim(tracker, 2)
    assert not tracker._idles
    tracker.accounted("q", {0: [2]})
    eventually(lambda: tracker._idles)
