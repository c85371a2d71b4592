"""Schedules are stored and fired alike on every store."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

import ignis
from ignis.config import SchedulesSettings
from ignis.control.scheduler import Scheduler
from ignis.errors import ScheduleNotFoundError, StaleEpochError
from ignis.leader import SoleLeader
from ignis.schedules.fire import TICK_HEADER
from ignis.storage.base import Store
from tests.contract.support import Kind


class Clock:
    """Ahead of the machine's by as much as the test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def application(kind: Kind, clock: Clock) -> ignis.Ignis:
    return ignis.Ignis(kind.url, clock=clock)


def candidate(store: Store, clock: Clock) -> Scheduler:
    return Scheduler(store, SoleLeader(store, "schedules"), SchedulesSettings(), clock)


def ticks(app: ignis.Ignis) -> Counter[str]:
    return Counter(one.envelope.headers[TICK_HEADER] for one in app.queue("jobs", dict).main.peek(1_000))


def test_they_are_stored_changed_and_removed(kind: Kind, clock: Clock) -> None:
    with application(kind, clock) as one, application(kind, clock) as two:
        one.queue("jobs", dict).open()
        made = one.schedules.add("s", queue="jobs", message={"a": "x" * 10_000}, cron="*/5 * * * *", missed="all")
        assert two.schedules.get("s") == made
        assert two.schedules.pause("s").paused
        assert one.schedules.get("s").paused
        assert not one.schedules.resume("s").paused
        assert one.schedules.add("s", queue="jobs", message={}, every="1h").every_s == 3_600
        assert [found.name for found in two.schedules.list()] == ["s"]
        two.schedules.remove("s")
        with pytest.raises(ScheduleNotFoundError):
            one.schedules.get("s")


def test_each_tick_is_one_message(kind: Kind, clock: Clock) -> None:
    with application(kind, clock) as app, application(kind, clock) as other:
        app.queue("jobs", dict, shards=3).open()
        app.schedules.add("s", queue="jobs", message={"n": 1}, every="1m", missed="all")
        for step in range(3):
            clock.ahead_s += 120
            assert candidate((app, other)[step % 2].store, clock).run_once().fired == 2
        assert set(ticks(app).values()) == {1}
        assert len(ticks(app)) == 6
        assert other.schedules.get("s").fired == 6
        assert [one.message for one in app.queue("jobs", dict).main.fire(1)] == [{"n": 1}]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_leader_that_was_replaced_at_work(
    kind: Kind, clock: Clock, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    """Before its load or right behind it, another leads and fires the same tick. Where the store tells repeats the tick is one
    message; elsewhere it is two, and no more."""
    with application(kind, clock) as app, application(kind, clock) as other:
        app.queue("jobs", dict).open()
        app.schedules.add("s", queue="jobs", message={}, every="1m", missed="all")
        name = "load_once" if app.store.magazines.tells_repeats else "load"
        magazines: Any = app.store.magazines
        real = getattr(magazines, name)

        def slow(*given: Any, **named: Any) -> Any:
            done = real(*given, **named) if loaded else None
            candidate(other.store, clock).run_once()
            return done if loaded else real(*given, **named)

        monkeypatch.setattr(magazines, name, slow)
        clock.ahead_s += 60
        with pytest.raises(StaleEpochError):
            candidate(app.store, clock).run_once()
        assert list(ticks(other).values()) == [1 if name == "load_once" else 2]
        assert other.schedules.get("s").fired == 1
