"""What a user with few rights does to the broker, and to what others have there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from ignis import errors
from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.server import load_notifier
from ignis.native.wire import pack_pointers
from ignis.storage.base import QueueRecord
from tests.support.broker import RunningBroker, running
from tests.support.permitted import Tokens, app, ask, client, make

MINE, THEIRS = "mine", "theirs"
TOP = (1 << 63) - 1


@pytest.fixture
def broker(memory_url: str) -> Iterator[RunningBroker]:
    with running(memory_url, authenticator=Tokens()) as one:
        yield one


def reload(queue: str, scope: str, epoch: int) -> tuple[Command, payloads.Reload, bytes]:
    return Command.RELOAD, payloads.Reload(queue, (scope, epoch)), pack_pointers({0: [1]})


@pytest.mark.parametrize("scope", ["sweeper@two", "billing@eu", "s" * 65])
def test_a_fence_is_of_an_epoch_that_its_user_may_raise(broker: RunningBroker, scope: str) -> None:
    """It leaves its number in the store, where the writes of others are compared with it."""
    make(broker, MINE, THEIRS)
    with client(broker, "one", f"work:{MINE}") as one, client(broker, "boss", "all:*") as boss:
        epoch = ask(boss, Command.EPOCH_NEXT, payloads.EpochRequest(scope))
        for number in (0, epoch, TOP):
            with pytest.raises(errors.PermissionDeniedError):
                ask(one, *reload(MINE, scope, number))
        assert ask(boss, *reload(THEIRS, scope, epoch)) == 0


def test_no_fence_is_the_last_there_can_be(broker: RunningBroker) -> None:
    make(broker, MINE, durability="interval")
    with client(broker, "one", f"work:{MINE}") as one:
        with pytest.raises(errors.ConfigError, match="epoch"):
            ask(one, *reload(MINE, "sweeper", TOP))
        epoch = ask(one, Command.EPOCH_NEXT, payloads.EpochRequest("sweeper"))
        assert ask(one, *reload(MINE, "sweeper", epoch)) == 0


@pytest.mark.parametrize(
    "change", [{"fired": "x"}, {"done_ms": -1}, {"last_lag_ms": None}, {"epoch": []}, {"fired": 0.0}, {"fired": False}]
)
def test_a_worker_makes_no_schedule_vanish(broker: RunningBroker, change: dict[str, Any]) -> None:
    make(broker, MINE, codec="json")
    with app(broker, "boss", "all:*") as boss, client(broker, "one", f"work:{MINE}") as one:
        boss.schedules.add("nightly", queue=MINE, message={"n": 1}, every="1h")
        known = ask(one, Command.QUEUE_GET, payloads.Named(MINE))
        known["extra"]["schedules"]["nightly"]["fired"] = 0  # as it is where it was fired before
        boss.store.queues.put(QueueRecord(**known))
        known = ask(one, Command.QUEUE_GET, payloads.Named(MINE))
        fresh = copy.deepcopy(known)
        fresh["extra"]["schedules"]["nightly"].update(change)
        with pytest.raises(errors.ConfigError, match="nightly"):
            ask(one, Command.QUEUE_REPLACE, [known, fresh])
        assert [found.name for found in boss.schedules.list()] == ["nightly"]


def test_a_record_is_not_put_with_a_schedule_that_nobody_could_fire(broker: RunningBroker) -> None:
    make(broker, MINE)
    with client(broker, "ops", f"manage:{MINE}") as ops, client(broker, "boss", "all:*") as boss:
        record = ask(boss, Command.QUEUE_GET, payloads.Named(MINE))
        for schedules in ({"nightly": {"cron": "* * * * *"}}, {"nightly": 7}, [1]):
            record["extra"]["schedules"] = schedules
            with pytest.raises(errors.ConfigError, match="schedule"):
                ask(ops, Command.QUEUE_PUT, record)


def test_an_array_queue_has_no_sideline(broker: RunningBroker) -> None:
    with client(broker, "one", "arrays:box") as one, client(broker, "boss", "all:*") as boss:
        name = "box_SIDELINE"
        ask(boss, Command.ARRAY_ENQUEUE, payloads.ArrayRequest(name, "Q", ["another one's"], 1))
        with pytest.raises(errors.PermissionDeniedError):
            ask(one, Command.ARRAY_DEQUEUE, payloads.ArrayRequest(name, "Q", [], 1))
    with client(broker, "two", "arrays:box_SIDELINE") as two:
        assert ask(two, Command.ARRAY_DEQUEUE, payloads.ArrayRequest(name, "Q", [], 1)) == ["another one's"]


def test_who_waits_for_much_keeps_nobody_else_from_waiting(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_notifier, "_MOST_WATCHES", 8)
    monkeypatch.setattr(load_notifier, "_SHARE", 2)
    queues = [f"many{number}" for number in range(3)]
    make(broker, MINE, *queues)
    with client(broker, "many", "consume:many*") as many, client(broker, "one", f"consume:{MINE}") as one:
        for queue in queues[:2]:
            ask(many, Command.SUBSCRIBE, payloads.Subscribe(queue, 1))
        with pytest.raises(errors.TooManyRequestsError, match="watched for one user"):
            ask(many, Command.CONSUME, payloads.Consume(queues[2], 1, 1_000))
        ask(one, Command.CONSUME, payloads.Consume(MINE, 1, 10))
