"""Schedules as an application has them: declared, stored, listed, changed, paused, resumed, run, removed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import ignis
from ignis.errors import (
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    QueueNotFoundError,
    ScheduleNotFoundError,
)
from ignis.schedules.fire import SCHEDULE_HEADER, TICK_HEADER, remember_s
from ignis.schedules.stored import MAX_BYTES, SCHEDULES, definitions, read_schedules, tick_id
from ignis.storage.base import QueueRecord
from tests.support import eventually

MakeApp = Callable[..., ignis.Ignis]
NOON_S = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc).timestamp()


class Clock:
    """Stands where the test puts it."""

    def __init__(self) -> None:
        self.now_s = NOON_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app(store_url: str, new_app: MakeApp, clock: Clock) -> ignis.Ignis:
    return new_app(store_url, clock=clock)


def waiting(app: ignis.Ignis, queue: str = "jobs") -> list[Any]:
    return [one.message for one in app.queue(queue).main.peek(1_000)]


class Report(msgspec.Struct):
    kind: str


def test_a_tick_brings_the_message_and_says_what_it_is(app: ignis.Ignis, clock: Clock) -> None:
    reports = app.queue("reports", Report)
    made = app.schedules.add(
        "nightly", queue="reports", message=Report("sales"), cron="0 3 * * *", timezone="Europe/Berlin"
    )
    assert (made.next_at, made.last_at, made.fired) == (dt.datetime(2026, 3, 2, 2, tzinfo=dt.timezone.utc), None, 0)
    assert app.scheduler().run_once().fired == 0
    clock.now_s = NOON_S + 14 * 3_600 + 2
    assert app.scheduler().run_once().fired == 1
    assert app.scheduler().run_once().fired == 0
    (one,) = reports.main.peek()
    assert one.message == Report("sales")
    assert one.envelope.headers == {SCHEDULE_HEADER: "nightly", TICK_HEADER: "2026-03-02T02:00:00Z"}
    found = app.schedules.get("nightly")
    assert found.last_at == made.next_at
    assert (found.fired, found.missed_ticks, found.last_lag_s) == (1, 0, 2.0)


def test_who_fires_needs_no_class_for_the_message(store_url: str, new_app: MakeApp, clock: Clock) -> None:
    first = new_app(store_url, clock=clock)
    first.queue("reports", Report)
    first.schedules.add("r", queue="reports", message=Report("sales"), every="1h")
    other = new_app(store_url, clock=clock)
    clock.now_s += 3_600
    assert other.scheduler().run_once().fired == 1
    assert waiting(other, "reports") == [{"kind": "sales"}]


@pytest.mark.parametrize(("type", "message"), [(bytes, b"\xff\x00"), (str, "text"), (dict, {"a": [1, None]})])
def test_messages_of_every_codec(app: ignis.Ignis, clock: Clock, type: Any, message: Any) -> None:
    queue = app.queue("jobs", type)
    app.schedules.add("s", queue="jobs", message=message, every=60)
    clock.now_s += 60
    app.scheduler().run_once()
    assert [one.message for one in queue.main.peek()] == [message]


def test_they_are_listed_by_name(app: ignis.Ignis) -> None:
    app.schedules.add("b", queue="jobs", message=1, every="5m", missed="all")
    app.schedules.add("a", queue="mails", message=2, cron="*/5 * * * *")
    assert [(one.name, one.queue, one.every_s, one.cron, one.missed) for one in app.schedules.list()] == [
        ("a", "mails", None, "*/5 * * * *", "once"), ("b", "jobs", 300.0, "", "all"),
    ]  # fmt: skip
    assert app.stats()["schedules"] == [
        {"schedule": "b", "queue": "jobs", "fired": 0, "missed": 0, "lag_s": 0.0, "paused": False},
        {"schedule": "a", "queue": "mails", "fired": 0, "missed": 0, "lag_s": 0.0, "paused": False},
    ]


def test_ticks_while_it_is_paused_are_not_missed(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h", missed="all")
    assert app.schedules.pause("s").paused
    assert app.schedules.pause("s").next_at is None
    clock.now_s += 3 * 3_600
    assert app.scheduler().run_once().fired == 0
    assert not app.schedules.resume("s").paused
    assert app.scheduler().run_once().fired == 0
    clock.now_s += 3_600
    app.schedules.resume("s")  # runs already: nothing changes
    assert app.scheduler().run_once().fired == 1
    assert app.schedules.get("s").missed_ticks == 0


def test_resuming_after_a_wrong_clock_changes_no_definition(app: ignis.Ignis, clock: Clock) -> None:
    """Who may work on the queue, and not manage it, resumes its schedules through a broker."""
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    clock.now_s += 3_600
    assert app.scheduler().run_once().fired == 1
    clock.now_s -= 3_000
    before = app.store.queues.get("jobs")
    app.schedules.pause("s")
    app.schedules.resume("s")
    after = app.store.queues.get("jobs")
    assert before is not None and after is not None and definitions(before) == definitions(after)
    assert app.schedules.get("s").next_at == dt.datetime.fromtimestamp(clock.now_s + 3_000, dt.timezone.utc)


def test_a_change_of_its_times_counts_from_now(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h", missed="all")
    clock.now_s += 2.5 * 3_600  # two are due
    changed = app.schedules.add("s", queue="jobs", message=1, every="2h", missed="all")
    assert changed.next_at == dt.datetime.fromtimestamp(clock.now_s + 7_200, dt.timezone.utc)
    assert app.scheduler().run_once().fired == 0
    clock.now_s += 7_200
    assert app.scheduler().run_once().fired == 1


def test_a_change_of_the_message_leaves_what_is_due(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h", missed="all")
    clock.now_s += 2.5 * 3_600
    app.schedules.pause("s")
    assert app.schedules.add("s", queue="jobs", message=2, every="1h", missed="skip").paused, "it stays paused"
    clock.now_s += 1
    app.schedules.resume("s")
    app.schedules.add("s", queue="jobs", message=3, every="1h", missed="all")
    clock.now_s += 2 * 3_600
    assert app.scheduler().run_once().fired == 2
    assert waiting(app) == [3, 3]


def test_removed_and_made_again_it_is_another(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    record = app.store.queues.get("jobs")
    assert record is not None
    first = read_schedules(record)["s"].incarnation
    app.schedules.remove("s")
    assert app.schedules.list() == []
    for call in (app.schedules.get, app.schedules.pause, app.schedules.resume, app.schedules.remove, app.schedules.run):
        with pytest.raises(ScheduleNotFoundError, match="there is none"):
            call("s")
    clock.now_s += 3_600
    assert app.scheduler().run_once().fired == 0
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    record = app.store.queues.get("jobs")
    assert record is not None
    again = read_schedules(record)["s"].incarnation
    assert first != again
    assert tick_id("s", first, 5) != tick_id("s", again, 5)


def test_it_goes_with_its_queue(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    app.scheduler().run_once()
    app.remove_queue("jobs")
    clock.now_s += 3_600
    assert app.scheduler().run_once().failed == 0
    assert app.schedules.list() == []


def test_a_paused_queue_keeps_the_messages(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    app.queue("jobs").pause()
    clock.now_s += 3_600
    assert app.scheduler().run_once().fired == 1
    assert waiting(app) == [1]


def test_a_queue_with_a_schedule_is_in_use(app: ignis.Ignis, clock: Clock) -> None:
    for name in ("jobs", "others"):
        app.queue(name, queue_expiry="1h").open()
    app.schedules.add("monthly", queue="jobs", message=1, cron="0 0 1 * *")
    for _ in range(5):
        clock.now_s += 1_800
        app.refresher.run_once()
    assert [one.name for one in app.store.queues.list(active=True)] == ["jobs"]


def test_by_hand_it_runs_now_beside_its_ticks(app: ignis.Ignis, clock: Clock) -> None:
    app.schedules.add("s", queue="jobs", message="go", every="1h")
    app.schedules.pause("s")
    ids = [app.schedules.run("s"), app.schedules.run("s")]
    assert sorted(one.envelope.id for one in app.queue("jobs").main.peek()) == sorted(ids)
    assert app.schedules.get("s").fired == 0


def test_declared_it_is_stored_by_the_start(app: ignis.Ignis, clock: Clock) -> None:
    jobs = app.queue("jobs", str)
    jobs.handler(lambda message: None)
    app.schedule("beat", every="5m", queue=jobs, message="x")
    assert not app.opened, "declaring opens nothing"
    app.start()
    assert [one.name for one in app.schedules.list()] == ["beat"]
    app.schedule("later", every="5m", queue="jobs", message="y")
    assert [one.name for one in app.schedules.list()] == ["beat", "later"], "at once while it runs"


def test_what_an_operator_changed_stays_until_the_code_asks_for_something_else(
    store_url: str, new_app: MakeApp, clock: Clock
) -> None:
    def deploy(every: str) -> ignis.Ignis:
        app = new_app(store_url, clock=clock)
        app.queue("jobs")
        app.schedule("beat", every=every, queue="jobs", message=1)
        app.schedules.store_declared()
        return app

    app = deploy("5m")
    app.schedules.add("beat", queue="jobs", message=2, every="7m", missed="all")
    app.schedules.pause("beat")
    found = deploy("5m").schedules.get("beat")
    assert (found.every_s, found.message, found.paused) == (420.0, b"2", True)
    found = deploy("6m").schedules.get("beat")
    assert (found.every_s, found.message, found.missed, found.paused) == (360.0, b"1", "once", True)


def test_declared_twice_and_not_alike(app: ignis.Ignis) -> None:
    for _ in range(2):
        app.schedule("beat", every="5m", queue="jobs", message=1)
    with pytest.raises(ConfigError, match="declared twice"):
        app.schedule("beat", every="6m", queue="jobs", message=1)


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"every": "1h", "cron": "* * * * *"}, ConfigError, "one of cron and every"),
        ({}, ConfigError, "one of cron and every"),
        ({"every": "1h", "missed": "never"}, ConfigError, "is not one of skip, once, all"),
        ({"every": "1h", "timezone": "Europe/Berlin"}, ConfigError, "timezone goes with cron"),
        ({"every": "1h", "timezone": "UTC"}, ConfigError, "timezone goes with cron"),
        ({"cron": "@reboot"}, ConfigError, "'@reboot' is none of @hourly, @daily.*give five fields, or every='5m'"),
        ({"every": "1h", "queue": "a_SIDELINE"}, InvalidNameError, "sideline"),
        ({"every": "1h", "message": object()}, InvalidMessageError, "schedule 's': .*object"),
        ({"every": "1h", "message": "x" * (MAX_BYTES + 1)}, MessageTooLargeError, "what schedule 's' may carry"),
        ({"every": "1h", "message": "x" * (MAX_BYTES - 100)}, ConfigError, "at most 24576 are kept"),
        ({"every": "1h", "name": "a/b"}, InvalidNameError, "schedule name"),
    ],
)
def test_what_is_refused_is_not_stored(
    app: ignis.Ignis, asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        app.schedules.add(**{"name": "s", "queue": "jobs", "message": 1, **asked})
    assert app.schedules.list() == []


def test_a_declared_schedule_of_a_queue_that_nobody_knows(store_url: str, new_app: MakeApp) -> None:
    """It made the queue, and its messages gathered there without a handler."""
    new_app(store_url).queue("mails").open()
    app = new_app(store_url)
    app.queue("orders").handler(lambda message: None)
    app.schedule("good", every="5m", queue="orders", message=1)
    app.schedule("typo", every="5m", queue="odrers", message=1)
    text = r"schedule 'typo' publishes to queue 'odrers', which is .*: is orders meant\? there is mails, orders; app"
    with pytest.raises(QueueNotFoundError, match=text):
        app.start()
    assert not app.running
    assert app.store.queues.get("odrers") is None
    assert app.schedules.list() == [], "nothing is stored by halves"


def test_a_declared_schedule_may_come_before_its_queue(store_url: str, new_app: MakeApp) -> None:
    new_app(store_url).queue("mails").open()
    app = new_app(store_url)
    for queue in ("jobs", "mails", "orders.eu"):
        app.schedule(queue, every="5m", queue=queue, message=1)
    app.queue("jobs")  # declared here; the next is in the store; and the last is a pattern's
    app.handler("orders.*")(lambda message: None)
    app.start()
    assert [one.queue for one in app.schedules.list()] == ["jobs", "mails", "orders.eu"]
    with pytest.raises(QueueNotFoundError, match=r"schedule 'late' .*'jobz'"):
        app.schedule("late", every="5m", queue="jobz", message=1)
    app.schedule("late", every="5m", queue="jobs", message=1)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_message_is_checked_where_it_is_declared(memory_app: ignis.Ignis, by_name: bool) -> None:
    """It was at the start, and the error did not say which schedule it was."""
    queue = memory_app.queue("jobs", int)
    at: Any = "jobs" if by_name else queue
    with pytest.raises(InvalidMessageError, match="schedule 'nightly': a str does not fit the queue's type, int"):
        memory_app.schedule("nightly", every="1h", queue=at, message="seven")
    with pytest.raises(MessageTooLargeError, match="what schedule 'nightly' may carry"):
        memory_app.schedule("nightly", every="1h", queue=memory_app.queue("texts", str), message="x" * (MAX_BYTES + 1))
    memory_app.schedule("nightly", every="1h", queue=at, message=7)
    memory_app.schedule("odd", every="1h", queue=memory_app.queue("any"), message={"n": 1})
    memory_app.schedules.store_declared()
    assert [one.name for one in memory_app.schedules.list()] == ["nightly", "odd"]


def test_what_another_codec_takes_is_left_to_the_start(memory_app: ignis.Ignis) -> None:
    """JSON has no number for it, and which codec the stored queue has is not known before it is opened."""
    memory_app.schedule("odd", every="1h", queue=memory_app.queue("numbers", float), message=float("inf"))
    with pytest.raises(InvalidMessageError, match=r"schedule 'odd': .*JSON"):
        memory_app.schedules.store_declared()


def test_a_word_of_cron_is_stored_as_its_fields(app: ignis.Ignis, clock: Clock) -> None:
    made = app.schedules.add("s", queue="jobs", message=1, cron="@daily", timezone="Europe/Berlin")
    assert (made.cron, made.timezone) == ("0 0 * * *", "Europe/Berlin")
    same = app.schedules.add("s", queue="jobs", message=1, cron="0 0 * * *", timezone="Europe/Berlin")
    assert same == made, "it is the same wish"


def test_a_name_has_one_queue(app: ignis.Ignis) -> None:
    app.schedules.add("s", queue="jobs", message=1, every="1h")
    with pytest.raises(ConfigError, match="publishes to queue 'jobs', not 'mails': remove it first"):
        app.schedules.add("s", queue="mails", message=1, every="1h")


def test_a_damaged_schedule_does_not_stop_the_others(
    app: ignis.Ignis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        app.schedules.add(name, queue="jobs", message=name, every="1h")
    app.store.queues.update("jobs", lambda record: record.extra[SCHEDULES]["a"].update(codec="odd"))
    clock.now_s += 3_600
    assert app.scheduler().run_once().fired == 1
    assert waiting(app) == ["b"]
    assert "schedule a of queue jobs is damaged" in caplog.text
    app.store.queues.update("jobs", lambda record: record.extra.update({SCHEDULES: "nonsense"}))
    assert app.schedules.list() == []


@pytest.mark.parametrize(
    "damage",
    [
        {"codec": "odd"}, {"missed": "odd"}, {"every_ms": 1}, {"every_ms": 0}, {"cron": "* * * * *"}, {"done_ms": 1 << 70},
        {"done_ms": -1}, {"anchor_ms": 10**15}, {"body": "?"}, {"body": 7}, {"fired": 1 << 63}, {"created_at_ms": "then"},
    ],
)  # fmt: skip
def test_whatever_stands_in_the_record_the_others_are_fired(
    memory_url: str, new_app: MakeApp, clock: Clock, damage: dict[str, Any]
) -> None:
    app = new_app(memory_url, clock=clock)
    for name in ("a", "b"):
        app.schedules.add(name, queue="jobs", message=name, every="1h")

    def change(record: QueueRecord) -> None:
        record.extra[SCHEDULES]["a"].update(damage)
        record.extra[SCHEDULES]["../c"] = dict(record.extra[SCHEDULES]["b"])

    if any(isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 for value in damage.values()):
        with pytest.raises(ConfigError):
            app.store.queues.update("jobs", change)
        return
    app.store.queues.update("jobs", change)
    clock.now_s += 3_600
    assert app.scheduler().run_once().fired == 1
    assert waiting(app) == ["b"]
    assert [one.name for one in app.schedules.list()] == ["b"]
    assert [one["schedule"] for one in app.stats()["schedules"]] == ["b"]
    assert app.schedules.add("a", queue="jobs", message="a", every="1h").fired == 0, "added anew it is mended"


@pytest.mark.parametrize("damage", [{"cron": "often"}, {"cron": "0 3 * * *", "timezone": "Mars/Olympus"}])
def test_times_that_cannot_be_read_here_stop_no_other(
    memory_url: str, new_app: MakeApp, clock: Clock, damage: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(memory_url, clock=clock)
    for name in ("a", "b"):
        app.schedules.add(name, queue="jobs", message=name, every="1h")
    app.store.queues.update("jobs", lambda record: record.extra[SCHEDULES]["a"].update(every_ms=0, **damage))
    clock.now_s += 3_600
    assert app.scheduler().run_once().fired == 1
    assert "schedule a of queue jobs is not fired here" in caplog.text
    assert [(one.name, one.next_at is None) for one in app.schedules.list()] == [("a", True), ("b", False)]


def test_a_running_application_fires_by_itself(store_url: str, new_app: MakeApp) -> None:
    """By the machine's clock."""
    app = new_app(store_url)
    handled: list[ignis.Context] = []
    jobs = app.queue("jobs", str)

    @jobs.handler
    def on_job(message: str, ctx: ignis.Context) -> None:
        handled.append(ctx)

    app.schedule("beat", every="100ms", queue=jobs, message="tick", missed="all")
    app.start()
    eventually(lambda: len(handled) >= 5)
    app.schedules.pause("beat")
    app.stop()
    ticks = sorted(ctx.message.headers[TICK_HEADER] for ctx in handled)
    assert len(set(ticks)) == len(ticks)
    assert app.stats()["scheduler"]["fired"] >= 5


def test_ids_are_remembered_for_a_bounded_number_of_ticks() -> None:
    assert [remember_s(period) for period in (0.1, 1, 60, 86_400)] == [3_600, 20_000, 604_800, 604_800]


def test_a_name_at_two_queues_needs_the_queue(memory_app: ignis.Ignis) -> None:
    """Somebody who may change the record of one queue can give it a schedule of any name."""
    schedules = memory_app.schedules
    schedules.add("same", queue="one", message={}, every="1h")
    planted = memory_app.store.queues.get("one")
    assert planted is not None
    memory_app.queue("two").open()
    memory_app.store.queues.update("two", lambda record: record.extra.update(planted.extra))
    for act in (schedules.get, schedules.pause, schedules.resume, schedules.run, schedules.remove):
        with pytest.raises(ConfigError, match="'same' stands at 2 queues: one, two; name the queue as well"):
            act("same")  # type: ignore[operator]
    assert schedules.pause("same", queue="two").queue == "two"
    assert not schedules.get("same", queue="one").paused
    assert schedules.get("same", sees=lambda queue: queue == "one").queue == "one"
    schedules.run("same", queue="one")
    assert memory_app.queue("one").main.pending() == 1
    schedules.remove("same", queue="two")
    assert schedules.get("same").queue == "one"
    with pytest.raises(ScheduleNotFoundError, match="does not exist at queue 'two'; there is none"):
        schedules.get("same", queue="two")
    schedules.add("same", queue="one", message={}, every="2h")
    with pytest.raises(ConfigError, match="publishes to queue 'one', not 'two'"):
        schedules.add("same", queue="two", message={}, every="2h")
    hidden = schedules.add("same", queue="two", message={}, every="2h", sees=lambda queue: queue == "two")
    assert hidden.queue == "two"


def test_when_a_rare_expression_ticks_is_reckoned_once(
    memory_url: str, new_app: MakeApp, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find a tick that is years away takes long, and others wait: one queue may have a hundred of such schedules."""
    import cronsim

    made: list[str] = []

    class Counted(cronsim.CronSim):  # type: ignore[misc]
        def __init__(self, expression: str, start: Any) -> None:
            made.append(expression)
            super().__init__(expression, start)

    monkeypatch.setattr(cronsim, "CronSim", Counted)
    app = new_app(memory_url, clock=clock)
    app.schedules.add("rare", queue="jobs", message="a", cron="7 7 29 2 */7")
    app.schedules.add("often", queue="jobs", message="b", every="1h")
    app.schedules.add("never", queue="jobs", message="c", cron="7 8 * * *")
    app.store.queues.update("jobs", lambda record: record.extra[SCHEDULES]["never"].update(cron="* * */20 * 1L"))
    app.scheduler().run_once()
    first = len(made)
    for _ in range(5):
        clock.now_s += 3_600
        assert app.scheduler().run_once().fired == 1
        assert [one.name for one in app.schedules.list()] == ["never", "often", "rare"]
    assert len(made) == first
