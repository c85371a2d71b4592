"""The scheduler: a tick is one message, whoever leads, wherever a leader stops, and whatever the clock does."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.config import SchedulesSettings
from ignis.control.scheduler import Scheduler
from ignis.errors import LockHeldError, StaleEpochError, StoreFullError
from ignis.leader import SoleLeader
from ignis.schedules.fire import TICK_HEADER
from ignis.schedules.stored import SCHEDULES
from ignis.storage.base import Store
from ignis.testing import ManualClock
from tests.support import eventually

MakeApp = Callable[..., ignis.Ignis]
NOON_S = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc).timestamp()


class Clock:
    """Stands where the test puts it."""

    def __init__(self) -> None:
        self.now_s = NOON_S

    def __call__(self) -> float:
        return self.now_s


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app(store_url: str, new_app: MakeApp, clock: Clock) -> ignis.Ignis:
    return new_app(store_url, clock=clock)


def candidate(store: Store, clock: Callable[[], float], **settings: Any) -> Scheduler:
    """One that believes that it leads: each takes office under an epoch of its own, and nothing but the store stops it."""
    return Scheduler(store, SoleLeader(store, "schedules"), SchedulesSettings(**settings), clock)


def ticks(app: ignis.Ignis, queue: str = "jobs") -> Counter[str]:
    found = app.queue(queue).main.peek(100_000)
    return Counter(one.envelope.headers[TICK_HEADER] for one in found)


def die(store: Store, monkeypatch: pytest.MonkeyPatch, call: str, *, after: bool) -> None:
    """The next such call ends the process, before or after it is carried out."""
    facet: Any = store.magazines if call == "load_once" else store.queues
    real = getattr(facet, call)

    def last(*given: Any, **named: Any) -> Any:
        if after:
            real(*given, **named)
        raise Killed

    monkeypatch.setattr(facet, call, last)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["load_once", "update"])
def test_a_leader_that_dies_at_a_step(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
    app.schedules.add("t", queue="jobs", message=2, every="90s", missed="all")
    clock.now_s += 180
    first = candidate(app.store, clock)
    with monkeypatch.context() as patched:
        die(app.store, patched, call, after=after)
        with pytest.raises(Killed):
            first.run_once()
    candidate(app.store, clock).run_once()
    assert ticks(app) == {"2026-03-01T12:01:00Z": 1, "2026-03-01T12:01:30Z": 1, "2026-03-01T12:02:00Z": 1,
                          "2026-03-01T12:03:00Z": 2}  # fmt: skip
    assert (app.schedules.get("s").fired, app.schedules.get("t").fired) == (3, 2)


def test_two_leaders_at_once(app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stops between its look at the epoch and its load, while another leads."""
    app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
    first, second = candidate(app.store, clock), candidate(app.store, clock)
    real = app.store.magazines.load_once
    inside: list[int] = []

    def slow(*given: Any) -> Any:
        if not inside:
            inside.append(1)
            clock.now_s += 60  # one more is due for the second
            second.run_once()
        return real(*given)

    monkeypatch.setattr(app.store.magazines, "load_once", slow)
    clock.now_s += 120
    with pytest.raises(StaleEpochError):
        first.run_once()
    assert first.stats()["refused_writes"] == 1
    assert not first.stats()["leader"]["leading"]
    assert sorted(ticks(app).values()) == [1, 1, 1]
    assert app.schedules.get("s").fired == 3, "counted once"


def test_who_was_replaced_loads_nothing(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
    first, second = candidate(app.store, clock), candidate(app.store, clock)
    first.run_once()
    second.run_once()
    loads = app.store.stats().get("loads")
    clock.now_s += 60
    with pytest.raises(StaleEpochError):
        first.run_once()
    assert app.store.stats().get("loads") == loads
    assert second.run_once().fired == 1


def test_another_leads(embedded_url: str, new_app: MakeApp) -> None:
    one, two = new_app(embedded_url), new_app(embedded_url)
    one.scheduler().run_once()
    with pytest.raises(LockHeldError):
        two.scheduler().run_once()
    one.scheduler().stop()
    two.scheduler().run_once()


@pytest.mark.parametrize("back_s", [3_600, 5 * 3_600])
def test_a_clock_that_is_set_back_fires_no_tick_twice(app: ignis.Ignis, clock: Clock, back_s: int) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="10m", missed="all")
    app.schedules.add("c", queue="crons", message=1, cron="*/10 * * * *", missed="all")
    scheduler = candidate(app.store, clock)
    for _ in range(12):
        clock.now_s += 600
        scheduler.run_once()
    clock.now_s -= back_s
    fired = 0
    for _ in range(back_s // 600):
        clock.now_s += 600
        fired += scheduler.run_once().fired
    assert fired == 0
    another = candidate(app.store, clock)
    assert another.run_once().fired == 0, "nor by another leader"
    clock.now_s += 600
    assert another.run_once().fired == 2
    for queue in ("jobs", "crons"):
        assert set(ticks(app, queue).values()) == {1}
        assert len(ticks(app, queue)) == 13


@pytest.mark.parametrize(("missed", "fired", "left_out"), [("skip", 1, 17), ("once", 1, 17), ("all", 18, 0)])
def test_a_clock_that_is_set_forward_misses_ticks(
    app: ignis.Ignis, clock: Clock, missed: str, fired: int, left_out: int
) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="10m", missed=missed)
    scheduler = candidate(app.store, clock)
    clock.now_s += 3 * 3_600
    result = scheduler.run_once()
    assert (result.fired, result.missed) == (fired, left_out)
    clock.now_s -= 3 * 3_600
    for _ in range(18):
        clock.now_s += 600
        assert scheduler.run_once().fired == 0
    assert set(ticks(app).values()) == {1}
    assert app.schedules.get("s").missed_ticks == left_out


def test_a_clock_far_behind_the_last_tick_is_said(
    app: ignis.Ignis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    scheduler = candidate(app.store, clock)
    clock.now_s += 5 * 365 * 86_400  # a mistake
    assert scheduler.run_once().fired == 1
    clock.now_s = NOON_S + 3_600
    scheduler.run_once()
    assert "schedule s of queue jobs rests: the clock stands" in caplog.text
    app.schedules.pause("s")
    app.schedules.resume("s")
    clock.now_s += 3_600
    assert scheduler.run_once().fired == 1


@pytest.mark.parametrize("anew", ["resume", "change"])
def test_ticks_that_a_wrong_clock_fired_come_again_when_it_counts_from_now(
    app: ignis.Ignis, clock: Clock, anew: str
) -> None:
    app.schedules.add("s", queue="jobs", message=1, cron="* * * * *")
    scheduler = candidate(app.store, clock)
    for _ in range(5):
        clock.now_s += 60
        assert scheduler.run_once().fired == 1
    clock.now_s = NOON_S + 30
    for _ in range(2):  # the second time nothing was wrong
        if anew == "resume":
            app.schedules.pause("s")
            app.schedules.resume("s")
        else:
            app.schedules.add("s", queue="jobs", message=1, cron="*/1 * * * *")
            app.schedules.add("s", queue="jobs", message=1, cron="* * * * *")
    for number in range(1, 8):
        clock.now_s = NOON_S + 60 * number
        for _ in range(2):  # leaders after each other
            candidate(app.store, clock).run_once()
        assert sum(ticks(app).values()) == app.schedules.get("s").fired == 5 + number


def test_a_leader_that_a_wrong_clock_led_notes_nothing_behind_a_new_count(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedules.add("s", queue="jobs", message=1, cron="* * * * *")
    first = candidate(app.store, clock)
    clock.now_s += 300
    assert first.run_once().fired == 1
    clock.now_s += 300
    real = app.store.magazines.load_once

    def slow(*given: Any) -> Any:
        found = real(*given)
        clock.now_s = NOON_S + 30
        app.schedules.pause("s")
        app.schedules.resume("s")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(app.store.magazines, "load_once", slow)
        first.run_once()
    assert app.schedules.get("s").next_at == dt.datetime.fromtimestamp(NOON_S + 60, dt.timezone.utc)
    clock.now_s = NOON_S + 60
    assert candidate(app.store, clock).run_once().fired == 1
    assert ticks(app) == {"2026-03-01T12:05:00Z": 1, "2026-03-01T12:10:00Z": 1, "2026-03-01T12:01:00Z": 1}


def test_a_clock_that_is_a_little_behind_that_of_the_leader_repeats_no_tick(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, cron="* * * * *")
    clock.now_s += 60
    scheduler = candidate(app.store, clock)
    assert scheduler.run_once().fired == 1
    clock.now_s -= 2
    app.schedules.pause("s")
    app.schedules.resume("s")
    clock.now_s += 2
    assert scheduler.run_once().fired == 0
    assert (sum(ticks(app).values()), app.schedules.get("s").fired) == (1, 1)


@pytest.mark.parametrize("zone_tick", ["2026-03-29T01:00:00Z"])
def test_through_the_gap_of_daylight_saving(app: ignis.Ignis, clock: Clock, zone_tick: str) -> None:
    clock.now_s = dt.datetime(2026, 3, 28, 12, tzinfo=dt.timezone.utc).timestamp()
    app.schedules.add("s", queue="jobs", message=1, cron="30 2 * * *", timezone="Europe/Berlin")
    scheduler = candidate(app.store, clock)
    for _ in range(24 * 6):
        clock.now_s += 600
        scheduler.run_once()
    assert ticks(app) == {zone_tick: 1}


def test_through_the_hour_that_comes_twice(app: ignis.Ignis, clock: Clock) -> None:
    clock.now_s = dt.datetime(2026, 10, 24, 12, tzinfo=dt.timezone.utc).timestamp()
    app.schedules.add("day", queue="jobs", message=1, cron="30 2 * * *", timezone="Europe/Berlin")
    app.schedules.add("hour", queue="hours", message=1, cron="0 * * * *", timezone="Europe/Berlin")
    for _ in range(24 * 6):
        clock.now_s += 600
        candidate(app.store, clock).run_once()  # a new leader each time
    assert ticks(app) == {"2026-10-25T00:30:00Z": 1}
    assert set(ticks(app, "hours").values()) == {1}
    assert len(ticks(app, "hours")) == 24


def test_a_full_store_is_tried_again(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedules.add("a", queue="full", message=1, every="1m")
    app.schedules.add("b", queue="jobs", message=1, every="1m")
    scheduler = candidate(app.store, clock)
    real = app.store.magazines.load_once

    def refused(magazine: str, *given: Any) -> Any:
        if magazine == "full":
            raise StoreFullError("no room")
        return real(magazine, *given)

    clock.now_s += 60
    with monkeypatch.context() as patched:
        patched.setattr(app.store.magazines, "load_once", refused)
        result = scheduler.run_once()
        assert (result.fired, result.failed) == (1, 1), "the others go on"
    assert "the schedules of queue full could not be fired, and are tried again: no room" in caplog.text
    clock.now_s += 30
    assert scheduler.run_once().fired == 1
    assert ticks(app, "full") == ticks(app, "jobs")


@pytest.mark.parametrize("change", ["pause", "remove", "again", "message"])
def test_a_change_while_a_tick_is_being_fired(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between the load and the note."""
    app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
    real = app.store.magazines.load_once

    def changed(*given: Any) -> Any:
        done = real(*given)
        patched.undo()
        if change == "pause":
            app.schedules.pause("s")
        elif change == "message":
            app.schedules.add("s", queue="jobs", message=2, every="1m", missed="all")
        else:
            app.schedules.remove("s")
            if change == "again":
                app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
        return done

    clock.now_s += 60
    patched = pytest.MonkeyPatch()
    patched.setattr(app.store.magazines, "load_once", changed)
    candidate(app.store, clock).run_once()
    assert sum(ticks(app).values()) == 1
    if change == "remove":
        assert app.schedules.list() == []
        return
    found = app.schedules.get("s")
    assert (found.paused, found.fired) == (change == "pause", 0 if change == "again" else 1)
    clock.now_s += 60
    candidate(app.store, clock).run_once()
    assert sum(ticks(app).values()) == (1 if change == "pause" else 2)


def test_a_hundred_leaders_after_each_other(app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dies at the next step; two ticks are due each time."""
    app.schedules.add("s", queue="jobs", message=1, every="30s", missed="all")
    for number in range(100):
        clock.now_s += 60
        with monkeypatch.context() as patched:
            die(app.store, patched, ("load_once", "update")[number % 2], after=number % 4 > 1)
            with pytest.raises(Killed):
                candidate(app.store, clock).run_once()
    candidate(app.store, clock).run_once()
    assert len(ticks(app)) == 200
    assert set(ticks(app).values()) == {1}
    assert app.schedules.get("s").fired == 200


def test_a_store_that_cannot_tell_repeats_one_message_a_change_of_leaders(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(app.store.magazines), "tells_repeats", False)
    app.schedules.add("s", queue="jobs", message=1, every="10s", missed="all")
    app.schedules.add("t", queue="jobs", message=1, every="15s", missed="all")
    clock.now_s += 60
    with monkeypatch.context() as patched:
        real = app.store.queues.update
        calls: list[int] = []

        def last(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise Killed
            return real(*given)

        patched.setattr(app.store.queues, "update", last)
        with pytest.raises(Killed):
            candidate(app.store, clock).run_once()
    candidate(app.store, clock).run_once()
    assert sum(ticks(app).values()) == 6 + 4 + 1


def test_who_knows_of_no_schedule_stands_for_nothing(memory_url: str, new_app: MakeApp) -> None:
    """Nor does it look often: see `schedules.look_s`."""
    clock = ManualClock()
    app = ignis.Ignis("memory://", clock=clock, schedules={"look": 10})
    with app:
        app.queue("jobs", int).handler(lambda message: None)
        app.start()
        scheduler = app.scheduler()
        eventually(lambda: scheduler._list_at_s)
        assert scheduler._list_at_s == 60
        assert app.store.locks.epoch("schedules") == 0
        app.schedules.add("s", queue="jobs", message=1, every="1h")
        eventually(lambda: app.store.locks.epoch("schedules") == 1)
        app.schedules.remove("s")
        eventually(lambda: not scheduler.stats()["leader"]["leading"])


def test_it_sleeps_until_the_next_tick_and_no_longer() -> None:
    clock = ManualClock(NOON_S)
    with ignis.Ignis("memory://", clock=clock) as app:
        handled: list[int] = []
        app.queue("jobs", int).handler(handled.append)
        app.schedule("s", queue="jobs", message=1, every="7s")
        app.start()
        for number in range(1, 4):
            clock.advance(7)
            eventually(lambda wanted=number: len(handled) == wanted)
        app.schedules.add("t", queue="jobs", message=2, every="3s")
        clock.advance(3)
        eventually(lambda: 2 in handled)


def test_a_change_by_another_process_is_seen_within_a_look(memory_url: str, new_app: MakeApp) -> None:
    """Another application on the same store stands for the other process: it wakes nobody here."""
    clock = ManualClock(NOON_S)
    here, there = new_app(memory_url, clock=clock, schedules={"look": 10}), new_app(memory_url, clock=clock)
    handled: list[int] = []
    here.queue("jobs", int).handler(handled.append)
    here.schedule("s", queue="jobs", message=1, every="1h")
    here.start()
    looks = here.scheduler().stats
    eventually(lambda: looks()["leader"]["leading"])
    there.schedules.add("s", queue="jobs", message=2, every="1s")
    before = looks()["looks"]
    clock.advance(10)
    eventually(lambda: 2 in handled)
    assert looks()["looks"] > before
    there.schedules.pause("s")
    wanted = there.schedules.get("s").fired
    clock.advance(60)
    eventually(lambda: here.scheduler()._next == {"jobs": None})
    assert there.schedules.get("s").fired == wanted
    assert len(handled) <= wanted


def test_a_tick_whose_id_is_forgotten_comes_again(
    memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the promise: a leader dies between load and note, and nobody leads until the id is forgotten."""
    clock = ManualClock(NOON_S)
    app = new_app(memory_url, clock=clock)
    for days, messages in ((5, 1), (12, 2)):
        queue = f"jobs{days}"
        app.schedules.add(queue, queue=queue, message=1, every="1d", missed="all")
        clock.advance(86_400)
        with monkeypatch.context() as patched:
            die(app.store, patched, "update", after=False)
            with pytest.raises(Killed):
                candidate(app.store, clock).run_once()
        (first,) = ticks(app, queue)
        clock.advance(days * 86_400)
        candidate(app.store, clock).run_once()
        assert ticks(app, queue)[first] == messages
        assert len(ticks(app, queue)) == days + 1
        app.schedules.remove(queue)


def loads_of(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, each: Callable[[], object] = int) -> list[str]:
    """The queues of the loads from now on, in their order; what is to happen at each."""
    real, loads = app.store.magazines.load_once, []

    def load_once(magazine: str, *given: Any) -> Any:
        loads.append(magazine)
        each()
        return real(magazine, *given)

    monkeypatch.setattr(app.store.magazines, "load_once", load_once)
    return loads


def test_a_queue_that_catches_up_makes_no_tick_of_another_late(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load takes 5 s by the clock of this test."""
    app.schedules.add("away", queue="mine", message=1, every="1m", missed="all")
    clock.now_s += 1_000 * 60
    app.schedules.add("s", queue="jobs", message=1, every="5s", missed="skip")

    def passes() -> None:
        clock.now_s += 5

    loads = loads_of(app, monkeypatch, lambda: passes() if loads[-1] == "mine" else None)
    candidate(app.store, clock).run_once()
    assert loads == ["mine", "jobs"] * 10
    assert set(ticks(app, "jobs").values()) == {1}
    assert (app.schedules.get("s").fired, app.schedules.get("s").missed_ticks) == (10, 0)
    assert app.schedules.get("s").last_lag_s == 0
    assert set(ticks(app, "mine").values()) == {1}
    assert app.schedules.get("away").fired == len(ticks(app, "mine")) == 1_000


def test_a_look_is_one_round(app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what others change is seen while a queue catches up. Queues that do have their turns one after the other."""
    for queue in ("a", "b", "c"):
        app.schedules.add(queue, queue=queue, message=1, every="1m", missed="all")
    clock.now_s += 250 * 60
    loads = loads_of(app, monkeypatch)
    scheduler = candidate(app.store, clock)
    for _ in range(5):
        scheduler.wake()  # it lists the queues anew, as it does every `schedules.look_s`
        assert scheduler._look() == 0
    assert loads == ["a", "b", "c", "a", "b"]
    assert [app.schedules.get(queue).fired for queue in ("a", "b", "c")] == [200, 200, 100]
    app.schedules.pause("c")
    scheduler.wake()
    for _ in range(3):
        rest_s = scheduler._look()
    assert rest_s > 0
    assert [app.schedules.get(queue).fired for queue in ("a", "b", "c")] == [250, 250, 100]


def test_the_schedules_of_a_queue_share_its_turns(app: ignis.Ignis, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        app.schedules.add(name, queue="jobs", message=1, every="1m", missed="all")
    clock.now_s += 1_000 * 60
    app.schedules.add("now", queue="jobs", message=1, every="1s")
    clock.now_s += 1
    scheduler = candidate(app.store, clock)
    for _ in range(4):
        scheduler._look()
    assert [app.schedules.get(name).fired for name in ("a", "b", "c", "now")] == [200, 100, 100, 1]


def test_missed_ticks_are_counted_in_turns_too(app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cron expression is counted tick by tick: see `ignis.schedules.timing.MOST_COUNTED`."""
    for queue in ("a", "b"):
        app.schedules.add(queue, queue=queue, message=1, cron="* * * * *")
    clock.now_s += 2_500 * 60
    scheduler = candidate(app.store, clock)
    for _ in range(2):
        scheduler._look()
    assert [app.schedules.get(queue).missed_ticks for queue in ("a", "b")] == [1_000, 1_000]
    scheduler.run_once()
    assert [app.schedules.get(queue).missed_ticks for queue in ("a", "b")] == [2_499, 2_499]
    assert ticks(app, "a") == ticks(app, "b") == {"2026-03-03T05:40:00Z": 1}


def test_turns_are_shorter_where_each_tick_takes_a_load_of_its_own(
    app: ignis.Ignis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(app.store.magazines), "tells_repeats", False)
    app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
    clock.now_s += 50 * 60
    scheduler = candidate(app.store, clock)
    for fired in (20, 40, 50):
        scheduler._look()
        assert app.schedules.get("s").fired == fired
    assert set(ticks(app).values()) == {1}


def test_what_a_record_of_1970_makes_up_is_bounded(
    memory_url: str, new_app: MakeApp, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may change the queue's record may have written any times there."""
    app = new_app(memory_url, clock=clock)
    app.schedules.add("s", queue="jobs", message=1, every="1m", missed="all")
    long_ago = {"done_ms": 0, "anchor_ms": 0, "created_at_ms": 0}
    app.store.queues.update("jobs", lambda record: record.extra[SCHEDULES]["s"].update(long_ago))
    result = candidate(app.store, clock, max_made_up=250).run_once()
    due = int(NOON_S) // 60
    assert (result.fired, result.missed) == (250, due - 250)
    assert (app.schedules.get("s").fired, app.schedules.get("s").missed_ticks) == (250, due - 250)
    found = ticks(app)
    assert (min(found), max(found), len(found)) == ("2026-03-01T07:51:00Z", "2026-03-01T12:00:00Z", 250)
    assert f"{due - 250} tick(s) were missed and left out" in caplog.text
    assert "(schedules.max_made_up = 250)" in caplog.text
