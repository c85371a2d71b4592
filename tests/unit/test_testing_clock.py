"""A clock that is moved by hand: what has an end, or is due, goes by it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

import ignis
from ignis.errors import ConfigError
from ignis.testing import Drained, ManualClock, drain
from tests.conftest import MakeApp
from tests.support import eventually, reasons

START_S = 1_900_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock, new_app: MakeApp) -> ignis.Ignis:
    """An application that goes by the clock."""
    return new_app("memory://", clock=clock)


@pytest.fixture
def locks(timed: ignis.Ignis) -> Iterator[ignis.LockManager]:
    with ignis.LockManager("shop", "local", timed.store) as manager:
        yield manager


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(START_S)
    assert (clock(), clock.monotonic_s()) == (START_S, 0)
    assert clock.advance(1.5) == START_S + 1.5
    assert clock.advance(dt.timedelta(days=1)) == START_S + 86_401.5
    assert clock.monotonic_s() == 86_401.5
    assert clock.advance("1h") == clock.advance("500ms") - 0.5 == START_S + 90_001.5
    assert ManualClock(dt.datetime.fromtimestamp(START_S, dt.timezone.utc))() == START_S
    assert repr(clock) == "<ManualClock 2030-03-18 18:46:42 UTC, 90002 s after its start>"


def test_what_it_refuses(embedded_url: str) -> None:
    with pytest.raises(ConfigError, match="seconds = -1"):
        ManualClock().advance(-1)
    with pytest.raises(ConfigError, match="seconds = '1 hour' is not a duration"):
        ManualClock().advance("1 hour")
    with pytest.raises(ConfigError, match="no time zone"):
        ManualClock(dt.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ConfigError, match="start = 'x'"):
        ManualClock("x")  # type: ignore[arg-type]
    app = ignis.Ignis(embedded_url, clock=ManualClock())
    with pytest.raises(ConfigError, match="a clock by hand goes with memory://, not with embedded://"):
        app.queue("jobs").publish(1)
    for url, options in (("memory://?clock=1", {}), ("memory://", {"clock": 3})):
        with pytest.raises(ConfigError, match="clock"):
            _ = ignis.Ignis(url, store=options).store


def test_messages_expire_by_it(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue = timed.queue("jobs", int, message_expiry="1h")
    queue.publish(1)
    clock.advance(3_599)
    queue.publish(2)
    clock.advance(2)
    assert [one.message for one in queue.main.fire(10)] == [2]


def test_claims_age_by_it(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue = timed.queue("jobs", int, stuck_after="20m")
    queue.publish(1)
    queue.main.fire()
    clock.advance(20 * 60 - 1)
    assert queue.sweep().swept == 0
    clock.advance(2)
    result = queue.sweep()
    assert (result.swept, result.untimed_queues) == (1, 0)  # the clock was moved, not set
    assert reasons(queue) == {"abandoned": 1}


def test_drain_does_what_is_due(timed: ignis.Ignis, clock: ManualClock) -> None:
    """The sweeper's first pass is due after ten minutes, and the shovel's every ten."""
    queue, seen = timed.queue("jobs", int, shovel_interval="10m", stuck_after="5m"), []
    queue.handler(seen.append)
    queue.publish(1)
    queue.main.fire()
    assert drain(queue) == Drained()
    clock.advance(599)
    assert drain(timed) == Drained()
    assert queue.main.in_flight() == 1
    clock.advance(1)
    assert drain(timed) == Drained(done=1)  # swept into the sideline, and from there back
    assert seen == [1]


def test_a_failure_comes_back_after_the_shovels_time(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue = timed.queue("jobs", int, shovel_interval="5m")
    queue.handler(lambda message: message > 0)
    queue.publish(0)
    assert drain(queue) == Drained(sidelined=1)
    for _ in range(3):
        clock.advance(299)
        assert drain(queue) == Drained()
        clock.advance(1)
        assert drain(queue) == Drained(sidelined=1)


def test_a_message_comes_back_so_often_and_no_more(timed: ignis.Ignis, clock: ManualClock) -> None:
    """As with the schedule of a started application, and not as by hand."""
    queue = timed.queue("jobs", int, shovel_interval="5m", max_returns=2)
    queue.handler(lambda message: False)
    queue.publish(0)
    found = [drain(queue)]
    for _ in range(4):
        clock.advance(300)
        found.append(drain(queue))
    assert found == [Drained(sidelined=1)] * 3 + [Drained()] * 2
    assert queue.sideline.pending() == 1


def test_a_queue_without_a_schedule_is_not_shovelled(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue = timed.queue("jobs", int, shovel_interval_s=0)
    queue.handler(lambda message: False)
    queue.publish(0)
    assert drain(queue) == Drained(sidelined=1)
    clock.advance(86_400)
    assert drain(queue) == Drained()


def test_threads_of_a_started_application_follow_it(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue, seen = timed.queue("jobs", int, shovel_interval="10m", stuck_after="5m"), []

    @queue.handler
    def handle(message: int) -> bool:
        seen.append(message)
        return len(seen) > 1

    queue.publish(1)
    timed.start()
    eventually(lambda: queue.sideline.pending() == 1)
    clock.advance(600)
    eventually(lambda: seen == [1, 1])
    sweeper = timed.sweeper()
    passes = sweeper.passes
    clock.advance(15 * 60)
    eventually(lambda: sweeper.passes > passes)


def test_queues_expire_by_it(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue = timed.queue("jobs", int, queue_expiry="2d", message_expiry="1d")
    queue.open()
    timed.refresh()
    clock.advance(2 * 86_400 + 1)
    assert timed.refresh().expired == ["jobs"]


def test_locks_end_by_it(locks: ignis.LockManager, clock: ManualClock) -> None:
    ours, theirs = locks.lock("report"), locks.lock("report")
    assert ours.try_acquire(ttl_s=90)
    clock.advance(89)
    assert ours.held
    assert not theirs.try_acquire()
    assert ours.renew(90)
    clock.advance(89)
    assert ours.held
    clock.advance(2)
    assert not ours.held
    assert theirs.try_acquire()
    assert not ours.release()
    assert theirs.held


def test_locks_are_renewed_by_it(locks: ignis.LockManager, clock: ManualClock) -> None:
    lock = locks.lock("report", renew=True, max_hold_s=1_000)
    assert lock.try_acquire(ttl_s=90)
    for _ in range(5):
        before = locks.holder("report")
        assert before is not None
        clock.advance(40)
        eventually(lambda before=before: (locks.holder("report") or before).expires_at_ms > before.expires_at_ms)  # type: ignore[misc]
    assert lock.held
    clock.advance(1_000)
    eventually(lock.lost.is_set)
    assert not lock.held


def test_waiting_for_a_lock_has_an_end_all_the_same(locks: ignis.LockManager) -> None:
    assert locks.lock("report").try_acquire()
    with pytest.raises(ignis.IgnisError, match="report"):
        locks.lock("report").acquire(timeout=0.01)


def test_ages_are_told_by_it(timed: ignis.Ignis, clock: ManualClock) -> None:
    queue = timed.queue("jobs", int)
    queue.publish(1)
    clock.advance(1_000)
    assert 990 <= queue.stats()["oldest_age_s"] <= 1_000 + 60
    record = timed.store.queues.get("jobs")
    assert record is not None
    assert abs(record.created_at_ms / 1000 + 1_000 - clock()) < 1


def test_the_first_pass_over_another_applications_queues_is_its_own(clock: ManualClock, new_app: MakeApp) -> None:
    """What was due in one application is not taken for done in the next on the same clock."""
    clock.advance(600)
    for _ in range(2):
        app = new_app("memory://", clock=clock)
        queue = app.queue("jobs", int, shovel_interval="10m")
        queue.handler(lambda message: False)
        queue.publish(1)
        assert drain(queue) == Drained(sidelined=1)
