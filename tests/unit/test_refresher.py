"""The refresher: what others change in the store happens here too."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import ignis
from ignis.control.refresher import INACTIVE, NO_HANDLER, PUBLISH_ONLY, REMOVED, RUNNING
from ignis.errors import ConfigError, ConsumerLimitError, QueueRemovedError, StoreBusyError
from ignis.storage.base import QueueRecord
from tests.apps import templates
from tests.conftest import MakeApp
from tests.support import WAIT_S, Journal, NewThreads, eventually, wait_idle

OFTEN = {"interval_s": 0.02, "initial_delay_s": 0, "watch_s": 0}
BY_HAND = {"initial_delay_s": 86_400, "watch_s": 0}


class Clock:
    """Seconds since the epoch that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def handled_by(app: ignis.Ignis, pattern: str, **options: Any) -> list[Any]:
    seen: list[Any] = []

    @app.handler(pattern, dict, **options)
    def handle(message: dict[str, Any], ctx: ignis.Context) -> None:
        seen.append((ctx.queue, message["n"]))

    return seen


def stored(app: ignis.Ignis, name: str) -> QueueRecord:
    record = app.store.queues.get(name)
    assert record is not None
    return record


def put(app: ignis.Ignis, name: str, **changes: Any) -> None:
    def change(record: QueueRecord) -> None:
        for key, value in changes.items():
            setattr(record, key, value)

    app.store.queues.update(name, change)


# -- discovery


def test_a_queue_made_elsewhere_is_handled_without_a_restart(store_url: str, new_app: MakeApp) -> None:
    here, elsewhere = new_app(store_url, refresher=OFTEN), new_app(store_url)
    seen = handled_by(here, "orders.*")
    here.start()
    assert here.queues() == []
    for name in ("orders.eu", "orders.us", "mails"):
        elsewhere.queue(name, dict, shards=3).publish({"n": name})
    eventually(lambda: len(seen) == 2)
    assert sorted(seen) == [("orders.eu", "orders.eu"), ("orders.us", "orders.us")]
    assert sorted(queue.name for queue in here.queues()) == ["orders.eu", "orders.us"]
    assert here.queue("orders.eu").main.shards == 3
    eventually(lambda: here.stats()["refresher"]["states"].get("mails") == NO_HANDLER)
    assert here.refresher.states["orders.eu"] == RUNNING
    assert here.stop()


def test_queues_that_are_there_at_the_start_do_not_wait_for_a_pass(store_url: str, new_app: MakeApp) -> None:
    new_app(store_url).queue("orders.eu", dict).publish({"n": 1})
    app = new_app(store_url, refresher=BY_HAND)
    seen = handled_by(app, "orders.*")
    app.start()
    eventually(lambda: seen == [("orders.eu", 1)])


def test_queues_that_the_code_names_run_from_the_start(store_url: str, new_app: MakeApp) -> None:
    """The store did not know them yet, and the first pass comes after a minute, the next after five."""
    app = new_app(store_url, refresher=BY_HAND)
    urgent = app.queue("mails.urgent", dict, shards=3)
    by_type = app.queue("letters", dict, handler_type="mail")
    own, other = app.queue("mails.own", dict), app.queue("news", dict)
    of_others = app.queue("mails.raw", bytes)
    seen: list[Any] = []
    owns: list[Any] = []

    @app.handler("mails.*", dict, handler_type="mail")
    def handle(message: dict[str, Any], ctx: ignis.Context) -> None:
        seen.append((ctx.queue, message["n"]))

    own.handler(owns.append)
    app.start()
    assert {queue.name for queue in app.queues() if queue.consumer is not None} == {
        "mails.urgent",
        "letters",
        "mails.own",
    }
    assert (app.refresher.states["mails.urgent"], urgent.main.shards) == (RUNNING, 3)
    for number, queue in enumerate((urgent, by_type, own, other)):
        queue.publish({"n": number})
    of_others.publish(b"for somebody else")
    eventually(lambda: len(seen) == 2 and owns)
    assert sorted(seen) == [("letters", 1), ("mails.urgent", 0)]


def test_a_queue_that_the_code_names_stays_the_same_object(store_url: str, new_app: MakeApp) -> None:
    """It was forgotten with the queues that were found, and could not be published to after the next start."""
    app = new_app(store_url, refresher=BY_HAND)
    queue = app.queue("mails.urgent", dict)
    seen = handled_by(app, "mails.*")
    for number in range(2):
        app.start()
        queue.publish({"n": number})
        eventually(lambda: len(seen) == number + 1)  # noqa: B023
        app.close()
        assert app.queue("mails.urgent") is queue


def test_only_the_queues_that_were_asked_for_run_from_the_start(store_url: str, new_app: MakeApp) -> None:
    app = new_app(store_url, refresher=BY_HAND)
    for name in ("mails.urgent", "mails.usual"):
        app.queue(name, dict)
    handled_by(app, "mails.*")
    app.start(["mails.usual"])
    assert [queue.name for queue in app.queues() if queue.consumer is not None] == ["mails.usual"]


def test_a_pattern_that_comes_late_takes_what_the_code_names(store_url: str, new_app: MakeApp) -> None:
    app = new_app(store_url, refresher=BY_HAND)
    app.queue("first", dict).handler(lambda message: None)
    queue = app.queue("mails.urgent", dict)
    app.start()
    seen = handled_by(app, "mails.*")
    queue.publish({"n": 1})
    eventually(lambda: seen == [("mails.urgent", 1)])


def test_the_watch_finds_new_queues_of_a_pattern(
    store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_app(store_url, refresher={"initial_delay_s": 86_400, "watch_s": 0.01})
    elsewhere = new_app(store_url)
    seen = handled_by(here, "orders.*")
    here.start()
    elsewhere.queue("orders.eu", dict).publish({"n": 1})
    elsewhere.queue("mails", dict).publish({"n": 2})
    eventually(lambda: seen == [("orders.eu", 1)])
    here.refresher.stop()
    # Where the store refuses, it is asked again after a whole interval.
    monkeypatch.setattr(here.refresher, "_find_at_s", 0.0)
    asked: list[bool] = []

    def refuse(active: bool | None = None) -> list[QueueRecord]:
        asked.append(True)
        raise StoreBusyError("held")

    monkeypatch.setattr(here.store.queues, "list", refuse)
    with pytest.raises(StoreBusyError):
        here.refresher.watch_once()
    here.refresher.watch_once()
    assert asked == [True]


def test_a_queue_is_taken_by_its_handler_type(app: ignis.Ignis) -> None:
    app.store.queues.put(QueueRecord("made.by.java", shards=2, handler_type="order", concurrency=3))
    app.store.queues.put(QueueRecord("other", shards=2, handler_type="mail"))

    @app.handler(handler_type="order")
    def handle(message: Any) -> None: ...

    app.start()
    [queue] = app.queues()
    assert (queue.name, queue.consumers, queue.consumer is not None) == ("made.by.java", 3, True)
    record = stored(app, "made.by.java")
    assert (record.handler_type, record.concurrency) == ("order", 3)
    assert app.refresher.states == {"made.by.java": RUNNING, "other": NO_HANDLER}


def test_a_producer_names_the_handler_type(store_url: str, new_app: MakeApp) -> None:
    producer, worker = new_app(store_url), new_app(store_url)
    producer.queue("q", dict, handler_type="order").publish({"n": 1})
    assert stored(producer, "q").handler_type == "order"
    seen: list[Any] = []
    worker.handler(type=dict, handler_type="order")(seen.append)
    worker.start()
    eventually(lambda: seen == [{"n": 1}])
    assert stored(worker, "q").handler_type == "order", "the stored name stays, for the next one that looks"


def test_a_queue_with_a_handler_of_its_own_keeps_it(app: ignis.Ignis) -> None:
    own: list[Any] = []
    queue = app.queue("orders.eu", dict)
    queue.handler(own.append)
    others = handled_by(app, "orders.*")
    queue.publish({"n": 1})
    app.start()
    wait_idle(queue)
    assert (own, others) == ([{"n": 1}], [])


def test_a_handler_registered_while_running(app: ignis.Ignis) -> None:
    app.queue("first", dict).handler(lambda message: None)
    app.start()
    late = app.queue("late", dict)
    late.publish({"n": 1})
    assert app.refresh().started == []
    assert app.refresher.states["late"] == NO_HANDLER
    seen: list[Any] = []
    late.handler(seen.append)
    assert app.refresh().started == [], "it runs already"
    assert app.refresher.states["late"] == RUNNING
    eventually(lambda: seen == [{"n": 1}])


def test_of_a_queue_that_was_left_out_nothing_is_said(
    store_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker for some of the queues said of each other one that it has no handler."""
    caplog.set_level(logging.INFO, "ignis.control.refresher")
    with ignis.Ignis(store_url) as other:
        other.queue("mails", str).open()
        app = new_app(store_url)
        app.queue("orders", str).handler(lambda message: None)
        app.start(["orders"])
        app.refresh()
        assert app.stats()["refresher"]["states"] == {"mails": "not started", "orders": "running"}
        app.stop()
        assert not [one for one in caplog.records if "has no handler" in one.message]
        app.start()
        app.refresh()
        assert app.stats()["refresher"]["states"]["mails"] == "no handler"
        assert len([one for one in caplog.records if "has no handler" in one.message]) == 1


def test_only_the_named_queues_run(store_url: str, new_app: MakeApp) -> None:
    app = new_app(store_url)
    for name in ("orders.eu", "orders.us"):
        app.store.queues.put(QueueRecord(name, shards=1))
    handled_by(app, "orders.*")
    app.start(["orders.us"])
    assert [queue.name for queue in app.queues()] == ["orders.us"]


def test_a_queue_that_cannot_be_opened_stops_nobody(app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    app.store.queues.put(QueueRecord("orders.bytes", shards=1, codec="raw"))
    app.store.queues.put(QueueRecord("orders.good", shards=1, codec="json"))
    handled_by(app, "orders.*")
    app.start()
    for _ in range(2):
        assert app.refresh().failed == ["orders.bytes"]
    assert app.refresher.states["orders.bytes"].startswith("failed: queue 'orders.bytes' is stored with codec 'raw'")
    assert app.refresher.states["orders.good"] == RUNNING
    assert app.refresher.errors == 3
    assert len([one for one in caplog.records if "cannot be refreshed" in one.message]) == 1, "said once"
    put(app, "orders.bytes", codec="json")
    assert app.refresh().started == ["orders.bytes"], "mended elsewhere"


# -- consumers and shovel


def test_more_and_fewer_consumers_reach_every_instance(store_url: str, new_app: MakeApp) -> None:
    apps = [new_app(store_url, refresher=BY_HAND) for _ in range(2)]
    one, other = (app.queue("jobs", dict) for app in apps)
    for queue in (one, other):
        queue.handler(lambda message: None)
    for app in apps:
        app.start()
    assert one.increase_consumers(4) == 5
    assert (one.consumer.concurrency, stored(apps[0], "jobs").concurrency) == (5, 5)  # type: ignore[union-attr]
    assert other.consumer.concurrency == 1  # type: ignore[union-attr]
    assert apps[1].refresh().changed == ["jobs"]
    assert (other.consumer.concurrency, other.consumers) == (5, 5)  # type: ignore[union-attr]
    assert other.decrease_consumers(3) == 2
    assert apps[0].refresher.watch_once().changed == ["jobs"]
    assert one.consumer.concurrency == 2  # type: ignore[union-attr]
    assert apps[0].refresh().changed == [], "nothing more to do"


def test_the_watch_follows_between_passes(store_url: str, new_app: MakeApp) -> None:
    here = new_app(store_url, refresher={"initial_delay_s": 86_400, "watch_s": 0.01})
    queue = here.queue("jobs", dict)
    queue.handler(lambda message: None)
    here.start()
    elsewhere = new_app(store_url)
    put(elsewhere, "jobs", concurrency=3, shovel_interval_s=7)
    eventually(lambda: queue.consumer is not None and queue.consumer.concurrency == 3)
    eventually(lambda: queue.settings.shovel_interval_s == 7)


def test_what_was_set_by_hand_survives_a_restart_until_the_code_says_otherwise(
    store_url: str, new_app: MakeApp
) -> None:
    keeper = new_app(store_url)
    keeper.queue("other", dict).open()  # a store in memory lives as long as somebody has it

    def start(concurrency: int) -> ignis.Queue[Any]:
        app = new_app(store_url)
        queue = app.queue("jobs", dict)
        queue.handler(lambda message: None, concurrency=concurrency)
        app.start()
        return queue

    first = start(1)
    first.increase_consumers(6)
    first.app.close()
    again = start(1)
    assert again.consumer.concurrency == 7  # type: ignore[union-attr]
    again.app.close()
    assert start(2).consumer.concurrency == 2  # type: ignore[union-attr]
    assert stored(keeper, "jobs").concurrency == 2


def test_the_limit_is_held_against_what_is_stored(store_url: str, new_app: MakeApp) -> None:
    apps = [new_app(store_url, refresher=BY_HAND) for _ in range(2)]
    queues = [app.queue("jobs", dict) for app in apps]
    for queue in queues:
        queue.handler(lambda message: None, concurrency=0)
        queue.open()
    queues[0].increase_consumers(60)
    with pytest.raises(
        ConsumerLimitError, match=r"101 consumers asked for, the limit is 100 \(consumer.max_consumers\)"
    ):
        queues[1].increase_consumers(41)
    assert stored(apps[0], "jobs").concurrency == 60
    with pytest.raises(ConfigError, match="-1 is below 0"):
        queues[1].decrease_consumers(61)
    assert queues[1].increase_consumers(40) == 100


def test_a_stored_number_over_the_limit_here_is_cut(
    store_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(store_url, consumer={"max_consumers": 2}, refresher=BY_HAND)
    queue = app.queue("jobs", dict)
    queue.handler(lambda message: None)
    app.start()
    put(app, "jobs", concurrency=9)
    app.refresh()
    assert queue.consumer.concurrency == 2  # type: ignore[union-attr]
    assert "here are at most 2 (consumer.max_consumers)" in caplog.text
    assert stored(app, "jobs").concurrency == 9


def test_no_consumers_is_publish_only(app: ignis.Ignis) -> None:
    seen: list[Any] = []
    queue = app.queue("jobs", dict)
    queue.handler(seen.append, concurrency=0)
    app.start()
    queue.publish({"n": 1})
    app.refresh()
    assert app.refresher.states["jobs"] == PUBLISH_ONLY
    assert (queue.main.pending(), seen) == (1, [])
    queue.increase_consumers()
    eventually(lambda: seen == [{"n": 1}])
    app.refresh()
    assert app.refresher.states["jobs"] == RUNNING


def test_the_shovel_follows_its_stored_settings(store_url: str, new_app: MakeApp) -> None:
    app = new_app(store_url, refresher=BY_HAND)
    queue = app.queue("jobs", dict, shovel_interval=0, shards=1)
    failing = [True]
    queue.handler(lambda message: not failing[0])
    app.start()
    queue.publish({"n": 1})
    eventually(lambda: queue.sideline.pending() == 1)
    failing[0] = False
    put(app, "jobs", shovel_interval_s=1, shovel_concurrency=2)
    assert app.refresh().changed == ["jobs"]
    eventually(lambda: queue.shovel.total.moved == 1)
    wait_idle(queue)
    assert queue.settings.shovel_concurrency == 2
    put(app, "jobs", shovel_interval_s=86_400)
    app.refresh()
    failing[0] = True
    queue.publish({"n": 2})
    eventually(lambda: queue.sideline.pending() == 1)
    assert queue.shovel.total.moved == 1


# -- inactive, expired, removed


def test_an_inactive_queue_stops_and_a_reactivated_one_starts(store_url: str, new_app: MakeApp) -> None:
    app, threads = new_app(store_url, refresher=BY_HAND), NewThreads()
    seen: list[Any] = []
    queue = app.queue("jobs", dict, shovel_interval=0.01)
    queue.handler(seen.append)
    app.start()
    put(app, "jobs", active=False)
    assert app.refresh().stopped == ["jobs"]
    assert (app.refresher.states["jobs"], queue.consumer) == (INACTIVE, None)
    assert queue.shovel._schedule._timer is None
    assert not threads.named("ignis-jobs-")
    queue.publish({"n": 1})
    assert app.stats()["queues"][0]["pending"] == 1, "looking at it does not wake it"
    assert app.refresh().started == [], "deactivated by hand it stays so"
    assert stored(app, "jobs").active is False
    put(app, "jobs", active=True)
    assert app.refresh().started == ["jobs"]
    eventually(lambda: seen == [{"n": 1}])


def test_a_found_queue_that_is_inactive_is_forgotten(app: ignis.Ignis) -> None:
    app.store.queues.put(QueueRecord("orders.eu", shards=1))
    handled_by(app, "orders.*")
    app.start()
    [queue] = app.queues()
    put(app, "orders.eu", active=False)
    assert app.refresh().stopped == ["orders.eu"]
    assert app.queues() == []
    put(app, "orders.eu", active=True)
    assert app.refresh().started == ["orders.eu"]
    assert app.queues()[0] is not queue


def test_an_unused_queue_expires_and_a_message_revives_it(store_url: str, new_app: MakeApp, clock: Clock) -> None:
    app = new_app(store_url, refresher=BY_HAND, clock=clock)
    seen: list[Any] = []
    queue = app.queue("jobs", dict, message_expiry=1_000, queue_expiry=1_000)
    queue.handler(seen.append)
    app.start()
    app.refresh()
    clock.now_s += 900
    queue.publish({"n": 1})
    wait_idle(queue)
    app.refresh()  # used: counts from here
    clock.now_s += 999
    assert app.refresh().expired == []
    clock.now_s += 1
    result = app.refresh()
    assert (result.expired, result.stopped) == (["jobs"], ["jobs"])
    assert stored(app, "jobs").active is False
    assert app.refresh().revived == [], "nothing has come"
    queue.publish({"n": 2})
    assert app.refresher.watch_once().revived == ["jobs"]
    eventually(lambda: seen == [{"n": 1}, {"n": 2}])
    assert stored(app, "jobs").active is True


def test_a_queue_that_holds_messages_does_not_expire(store_url: str, new_app: MakeApp, clock: Clock) -> None:
    app = new_app(store_url, clock=clock)
    queue = app.queue("jobs", dict, message_expiry=1_000, queue_expiry=1_000)
    queue.publish({"n": 1})
    app.refresh()
    clock.now_s += 10_000
    assert app.refresh().expired == []
    [fired] = queue.main.fire()
    app.refresh()
    clock.now_s += 10_000
    assert app.refresh().expired == [], "in flight counts too"
    queue.main.delete([fired])
    assert app.refresh().expired == ["jobs"]


def test_two_instances_do_not_expire_what_one_has_seen_used(
    store_url: str, new_app: MakeApp, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write of one, another notes that the queue was used."""
    one, other = (new_app(store_url, clock=clock) for _ in range(2))
    queue = one.queue("jobs", dict, message_expiry=1_000, queue_expiry=1_000)
    queue.open()
    one.refresh()
    clock.now_s += 1_000
    update = one.store.queues.update

    def late(*args: Any, **kwargs: Any) -> Any:
        queue.publish({"n": 1})
        other.refresh()
        return update(*args, **kwargs)

    monkeypatch.setattr(one.store.queues, "update", late)
    assert one.refresh().expired == []
    assert stored(other, "jobs").active is True


def test_a_removed_queue_stops_and_is_registered_anew_when_opened(app: ignis.Ignis) -> None:
    seen: list[Any] = []
    queue = app.queue("jobs", dict)
    queue.handler(seen.append)
    app.start()
    app.store.queues.remove("jobs")
    assert app.refresh().stopped == ["jobs"]
    assert app.refresher.states["jobs"] == REMOVED
    assert app.stats()["queues"] == []
    assert app.store.queues.get("jobs") is None, "looking does not bring it back"
    with pytest.raises(QueueRemovedError):
        queue.publish({"n": 0})
    assert app.store.queues.get("jobs") is None, "nor does publishing"
    queue.open()
    queue.publish({"n": 1})
    assert app.refresh().started == ["jobs"]
    eventually(lambda: seen == [{"n": 1}])


def test_a_queue_whose_messages_were_removed_under_its_consumer(app: ignis.Ignis) -> None:
    """Magazines and all: its consumer ends, the application does not."""
    seen: list[Any] = []
    app.queue("other", dict).handler(seen.append)
    queue = app.queue("jobs", dict)
    queue.handler(lambda message: None)
    app.start()
    app.store.queues.remove("jobs")
    for name in ("jobs", "jobs_SIDELINE"):
        app.store.magazines.drop(name)
    eventually(lambda: queue.consumer is not None and queue.consumer.failed is not None)
    app.refresh()
    assert (app.refresher.states["jobs"], queue.consumer) == (REMOVED, None)
    app.queue("other").publish({"n": 1})
    eventually(lambda: seen == [{"n": 1}])
    assert app.running
    queue.open()
    queue.publish({"n": 2})
    assert app.refresh().started == ["jobs"]


# -- the schedule


def test_the_schedule_survives_a_store_that_refuses(
    memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(memory_url, refresher=OFTEN)
    seen = handled_by(app, "orders.*")
    app.start()
    failed = threading.Event()
    with monkeypatch.context() as patched:

        def broken(*args: Any, **kwargs: Any) -> Any:
            failed.set()
            raise StoreBusyError("held")

        patched.setattr(app.store.queues, "list", broken)
        assert failed.wait(WAIT_S)
    app.queue("orders.eu", dict).publish({"n": 1})
    eventually(lambda: seen == [("orders.eu", 1)])
    assert app.refresher.errors >= 1


def test_stopping_ends_it(memory_url: str, new_app: MakeApp) -> None:
    app, threads = new_app(memory_url, refresher=OFTEN), NewThreads()
    handled_by(app, "orders.*")
    app.start()
    app.stop()
    app.queue("orders.eu", dict).open()
    result = app.refresh()
    assert (result.started, [queue.consumer for queue in app.queues()]) == ([], [None])
    assert not threads.named("ignis-refresher")


@pytest.mark.integration
def test_worker_processes_handle_a_found_queue(embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    """They import the handler and learn the queue's name from their parent: it was not known when it was registered."""
    app = new_app(embedded_url, refresher=OFTEN)
    templates.register(app)
    app.start()
    new_app(embedded_url).queue("orders.late", dict).publish({"n": 7})
    eventually(lambda: len(journal.lines()) == 1)
    name, number, pid = journal.lines()[0].split()
    assert (name, number) == ("orders.late", "7")
    [queue] = app.queues()
    consumer = eventually(lambda: queue.consumer, "the message may be handled before the start is over")
    assert int(pid) in consumer.worker_pids
