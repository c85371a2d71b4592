"""Deadlines count from the call, however long a broker takes to answer what it is asked for."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import ignis


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


def test_a_time_before_1970_is_due_at_once_and_counts_as_1970(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.publish(1, at=datetime(1, 1, 1, tzinfo=timezone.utc))
    queue.publish(2, at=datetime(2000, 1, 1, tzinfo=timezone.utc))
    first, second = queue.later.list()
    assert first.due == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert abs(second.due - datetime(2000, 1, 1, tzinfo=timezone.utc)) < timedelta(seconds=1)
    assert [one.message for one in queue.main.fire(10)] == [1, 2]
