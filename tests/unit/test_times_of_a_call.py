"""Delays and deadlines count from the call, however long a broker takes to answer, and never from before it."""

from __future__ import annotations

import math
import random
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

import ignis
from ignis import later, queue_publishing
from ignis.broker.client import store as broker_store
from ignis.broker.client.store import BrokerStore
from tests.conftest import MakeApp


class Hour:
    """A machine's clock that only rises, moved by hand."""

    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


class Asked:
    """A broker whose store's clock is ahead of the client's, and whose answers take their time on both ways."""

    def __init__(self, clock: Hour) -> None:
        self.clock, self.ahead_s, self.there_s, self.back_s = clock, 5_000.0, 0.0, 0.0

    def ask(self, request: Any) -> float:
        self.clock.now_s += self.there_s
        told = (self.clock.now_s + self.ahead_s) * 1e6
        self.clock.now_s += self.back_s
        return told


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    clock = Hour()
    monkeypatch.setattr(broker_store, "time", clock)
    return Asked(clock)


def store_of(asked: Asked) -> Any:
    store = BrokerStore.__new__(BrokerStore)
    store.calls, store.magazines, store._ahead_s = asked, SimpleNamespace(keeps_later=True), None  # type: ignore[assignment]
    return store


def test_the_time_of_the_call_and_not_of_the_answer(asked: Asked) -> None:
    store = store_of(asked)
    assert store.now_s() == 6_000
    asked.there_s = 3.0  # a broker that is stopped for so long
    assert store.now_s() == 6_000
    asked.there_s, asked.back_s = 0.0, 3.0
    assert store.now_s() == 6_003


def test_never_before_the_call_and_never_after_the_answer(asked: Asked) -> None:
    """Also when a clock is not what it was: the client's machine slept, or another broker's is ahead."""
    store, rng = store_of(asked), random.Random(3)
    for _ in range(2_000):
        asked.there_s, asked.back_s = (rng.choice((0.0, 0.01, 3.0)) for _ in range(2))
        if rng.random() < 0.02:
            asked.ahead_s += rng.uniform(-50, 50)
            asked.there_s = asked.back_s = 0.0  # what the next answer tells at once
            store.now_s()
        began_s = asked.clock.now_s + asked.ahead_s
        told_s = store.now_s()
        assert began_s - 1e-6 <= told_s <= asked.clock.now_s + asked.ahead_s + 1e-6


@pytest.mark.parametrize("how", ["publish", "publish_many"])
def test_a_broker_that_answers_late_moves_no_deadline(
    memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The clock is asked for between the call and the load."""
    queue = memory_app.queue("jobs", int, shards=1)
    queue.open()
    store = memory_app.store
    now_s = type(store).now_s

    def late(self: Any) -> float:
        time.sleep(0.3)
        return now_s(self) - 0.3

    monkeypatch.setattr(type(store), "now_s", late)
    monkeypatch.setattr(store, "lock_clock", None)
    before_ms = time.time() * 1000
    if how == "publish":
        queue.publish(1, delay=100, expires_in=2_000)
    else:
        queue.publish_many([1], delay=100, expires_in=2_000)
    monkeypatch.undo()
    (found,) = queue.later.list()
    assert found.message is not None and found.message.expires_at_ms is not None
    assert 0 <= math.ceil(found.message.expires_at_ms + 1 - before_ms - 2_000_000) < 250


def test_opening_the_queue_counts(memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call opens the store, which may take long; both times count from the call all the same."""
    app = new_app(memory_url)
    queue = app.queue("jobs", int, shards=1)
    open_queue = queue.open

    def late() -> None:
        time.sleep(0.3)
        open_queue()

    monkeypatch.setattr(queue, "open", late)
    before_ms = time.time() * 1000
    queue.publish(1, expires_in=2_000)
    (found,) = queue.main.fire(1)
    assert found.envelope.expires_at_ms is not None
    assert 0 <= found.envelope.expires_at_ms + 1 - before_ms - 2_000_000 < 250


def test_a_delay_from_a_while_ago() -> None:
    clock: Any = SimpleNamespace(now_s=lambda: 50.0, wall_s=lambda: 0.0)
    assert later.due_time_ms(clock, 10, None, 3.0) == 57_000
    assert later.due_time_ms(clock, 10.0, None, 3.0) == 57_000
    assert later.due_time_ms(clock, 10.0, None) == 60_000


def test_by_a_clock_that_is_set_by_hand_no_time_passes() -> None:
    by_hand: Any = SimpleNamespace(lock_clock=lambda: 0.0)
    assert queue_publishing._ago_s(by_hand, time.monotonic() - 100) == 0


def test_a_time_before_1970_is_due_at_once_and_counts_as_1970(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.publish(1, at=datetime(1, 1, 1, tzinfo=timezone.utc))
    queue.publish(2, at=datetime(2000, 1, 1, tzinfo=timezone.utc))
    first, second = queue.later.list()
    assert first.due == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert abs(second.due - datetime(2000, 1, 1, tzinfo=timezone.utc)) < timedelta(seconds=1)
    assert [one.message for one in queue.main.fire(10)] == [1, 2]
