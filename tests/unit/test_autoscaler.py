"""The autoscaler: how many workers a load is worth, when fewer are asked for, and that one of several acts."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from ignis.config import AutoscalerSettings
from ignis.control.autoscaler import Autoscaler, FunctionTarget, QueueLoad, queue_loads
from ignis.errors import ConfigError
from ignis.leader import SoleLeader
from tests.conftest import MakeApp
from tests.support import eventually


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Asked:
    """A target that notes what it was asked for."""

    def __init__(self, workers: int = 1) -> None:
        self.count = workers
        self.asked: list[int] = []

    def workers(self) -> int:
        return self.count

    def scale_to(self, count: int) -> None:
        self.asked.append(count)
        self.count = count


def scaler_of(app: ignis.Ignis, target: Any, clock: Clock | None = None, **settings: Any) -> Autoscaler:
    chosen = AutoscalerSettings(**{"messages_per_worker": 10, "max_age_s": 0, "cool_down_s": 60, **settings})
    return Autoscaler(app.store, target, settings=chosen, clock=clock or Clock())


@pytest.mark.parametrize(
    ("pending", "age_s", "workers", "need"),
    [
        ([], None, 1, 1),
        ([0], None, 4, 1),
        ([1], 0.1, 1, 1),
        ([10], 0.1, 1, 1),
        ([11], 0.1, 1, 2),
        ([11, 11], 0.1, 1, 4),
        ([100_000], 0.1, 1, 5),
        ([1], 31, 1, 2),
        ([1], 31, 4, 5),
        ([1], 31, 5, 5),
        ([45], 31, 1, 5),
    ],
)
def test_what_a_load_is_worth(
    memory_app: ignis.Ignis, pending: list[int], age_s: float | None, workers: int, need: int
) -> None:
    scaler = scaler_of(memory_app, Asked(), max_workers=5, max_age_s=30)
    loads = [QueueLoad(f"q{n}", count, age_s) for n, count in enumerate(pending)]
    assert scaler.need(loads, workers) == need


def test_more_at_once_fewer_after_a_while_without_need(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shards=2)
    target, clock = Asked(), Clock()
    scaler = scaler_of(memory_app, target, clock)
    queue.publish_many(range(25))
    decision = scaler.run_once()
    assert decision is not None
    assert (decision.workers, decision.wanted, target.asked) == (1, 3, [3])
    queue.main.delete(queue.main.fire(100))
    for _ in range(59):
        clock.now_s += 1
        scaler.run_once()
    assert target.asked == [3], "not yet"
    queue.publish_many(range(15))
    clock.now_s += 0.5
    scaler.run_once()
    queue.main.delete(queue.main.fire(100))
    clock.now_s += 1
    scaler.run_once()
    assert target.asked == [3, 2], "two were worth it in the last minute"
    clock.now_s += 60
    scaler.run_once()
    assert target.asked == [3, 2, 1]


def test_at_its_first_look_it_takes_nothing_away(memory_app: ignis.Ignis) -> None:
    """A new leader knows nothing of the last minute."""
    target, clock = Asked(4), Clock()
    scaler = scaler_of(memory_app, target, clock)
    scaler.run_once()
    clock.now_s += 59
    scaler.run_once()
    assert target.asked == []
    clock.now_s += 1
    scaler.run_once()
    assert target.asked == [1]


def test_too_many_are_cut_at_once(memory_app: ignis.Ignis) -> None:
    target = Asked(9)
    scaler_of(memory_app, target, max_workers=4).run_once()
    assert target.asked == [4]


def test_one_of_several_acts(embedded_url: str, new_app: MakeApp) -> None:
    apps = [new_app(embedded_url) for _ in range(2)]
    apps[0].queue("jobs", int).publish_many(range(25))
    targets = [Asked(), Asked()]
    scalers = [scaler_of(app, target) for app, target in zip(apps, targets, strict=True)]
    assert scalers[0].run_once() is not None
    assert scalers[1].run_once() is None
    assert (targets[0].asked, targets[1].asked, scalers[1].leading) == ([3], [], False)
    scalers[0].stop()
    assert scalers[1].run_once() is not None
    assert targets[1].asked == [3]
    other = scaler_of(apps[0], Asked(), scope="another")
    assert other.run_once() is not None, "another scope is another leadership"
    for one in (*scalers, other):
        one.stop()


def test_the_schedule_and_a_function_that_fails(memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    def scale(count: int) -> None:
        called.append(count)
        if len(called) < 3:
            raise OSError("orchestrator is away")

    memory_app.queue("jobs", int).publish_many(range(25))
    target = FunctionTarget(scale, workers=1)
    scaler = scaler_of(memory_app, target, interval_s=0.01)
    scaler.start()
    scaler.start()
    eventually(lambda: target.workers() == 3)
    scaler.stop()
    assert called == [3, 3, 3]
    assert scaler.errors == 2
    assert "orchestrator is away" in caplog.text
    report = scaler.report()
    assert (report["wanted"], report["workers"], report["leading"]) == (3, 3, False)
    assert [(one["queue"], one["pending"]) for one in report["queues"]] == [("jobs", 25)]


def test_loads(app: ignis.Ignis) -> None:
    app.queue("idle", int).open()
    app.queue("busy", int).publish_many(range(3))
    app.queue("off", int).publish(1)
    app.store.queues.update("off", lambda record: setattr(record, "active", False))
    loads = {one.queue: one for one in queue_loads(app.store)}
    assert set(loads) == {"idle", "busy"}
    assert (loads["idle"].pending, loads["idle"].oldest_age_s) == (0, None)
    assert loads["busy"].pending == 3
    assert loads["busy"].oldest_age_s is not None
    assert loads["busy"].oldest_age_s >= 0
    assert [one.queue for one in queue_loads(app.store, ["busy", "never.made"])] == ["busy"]


def test_a_paused_queue_needs_no_workers(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.publish_many(range(25))
    queue.pause()
    scaler = scaler_of(app, Asked(), max_workers=5, max_age_s=0.001)
    need, _, (load,) = scaler.look()
    assert (need, load.pending, load.due, load.paused) == (1, 25, 0, True)
    queue.resume()
    need, _, (load,) = scaler.look()
    assert (need > 1, load.due) == (True, 25)


def test_queues_may_be_asked_for_each_time(memory_app: ignis.Ignis) -> None:
    memory_app.queue("one", int).publish_many(range(25))
    memory_app.queue("two", int).publish_many(range(35))
    names = ["one"]
    target = Asked()
    scaler = Autoscaler(
        memory_app.store, target, queues=lambda: names, settings=AutoscalerSettings(messages_per_worker=10, max_workers=9),
        leader=SoleLeader(memory_app.store, "autoscaler"),
    )  # fmt: skip
    scaler.run_once()
    names.append("two")
    scaler.run_once()
    assert target.asked == [3, 7]


def test_limits_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"autoscaler.max_workers = 2 is below min_workers = 3"):
        AutoscalerSettings(min_workers=3, max_workers=2)


def test_who_comes_to_act_does_not_believe_what_it_knew(embedded_url: str, new_app: MakeApp) -> None:
    """Told 3 once, then another made it 9: with 3 wanted again, the target is told."""
    apps = [new_app(embedded_url) for _ in range(2)]
    queue = apps[0].queue("jobs", int)
    queue.publish_many(range(25))
    cluster: list[int] = []
    scalers = [scaler_of(app, FunctionTarget(cluster.append, workers=1), max_workers=20) for app in apps]
    scalers[0].run_once()
    assert cluster == [3]
    scalers[0].stop()
    queue.publish_many(range(65))
    scalers[1].run_once()
    assert cluster == [3, 9]
    assert scalers[0].run_once() is None
    scalers[1].stop()
    queue.main.delete(queue.main.fire(100))
    queue.publish_many(range(25))
    decision = scalers[0].run_once()
    assert decision is not None
    assert (decision.wanted, decision.workers, cluster) == (3, None, [3, 9, 3])
    scalers[0].run_once()
    assert cluster == [3, 9, 3], "once"
    scalers[0].stop()


def test_a_target_that_answers_is_believed(memory_app: ignis.Ignis) -> None:
    there, told = [4], []
    target = FunctionTarget(told.append, ask=lambda: there[0])
    clock = Clock()
    scaler = scaler_of(memory_app, target, clock)
    scaler.run_once()
    assert told == [], "fewer only after a while"
    there[0] = 0
    scaler.run_once()
    assert told == [1]
    assert scaler.report()["workers"] == 1


def test_after_a_failure_nobody_knows_the_number(memory_app: ignis.Ignis) -> None:
    told: list[int] = []

    def scale(count: int) -> None:
        told.append(count)
        if len(told) == 1:
            raise OSError("it may have been done, or not")

    queue = memory_app.queue("jobs", int)
    queue.publish_many(range(25))
    scaler = scaler_of(memory_app, FunctionTarget(scale, workers=1))
    with pytest.raises(OSError, match="may have been done"):
        scaler.run_once()
    queue.main.delete(queue.main.fire(100))
    scaler.run_once()
    assert told == [3, 3], "as many as were needed lately"


def test_a_leader_that_was_replaced_during_its_look_tells_nothing(memory_app: ignis.Ignis) -> None:
    """The store has seen a later office: of the two that believe to lead, one acts."""
    target = Asked()
    names = ["jobs"]
    memory_app.queue("jobs", int).publish_many(range(25))

    def queues() -> list[str]:
        memory_app.store.locks.next_epoch("autoscaler")
        return names

    scaler = Autoscaler(memory_app.store, target, queues=queues, settings=AutoscalerSettings(messages_per_worker=10))
    assert scaler.run_once() is None
    assert (target.asked, scaler.leading) == ([], False)
