"""The shovel: from the sideline back to the main magazine."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

import ignis
from ignis import shovel as shovel_module
from ignis.errors import StoreBusyError, StoreFailedError, StoreFullError
from ignis.message import corrupt_record, encode_meta, failed_record
from ignis.native import CODEC_JSON, encode_record
from ignis.shovel import ShovelResult
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually, idle, sidelined, wait_idle


def fill(queue: ignis.Queue[Any], count: int, reason: str = "exception", shards: int = 1, first: int = 0) -> None:
    """Puts failed messages into the sideline."""
    records: dict[int, list[bytes]] = {}
    for n in range(first, first + count):
        record = encode_record(b"%d" % n, flags=CODEC_JSON, key=b"k", meta=encode_meta({"h": n}))
        records.setdefault(n % shards, []).append(failed_record(record, reason, f"error {n}"))
    for shard, some in records.items():
        queue.sideline.store.load_records(queue.sideline.name, shard, some)


def test_messages_come_back_as_they_were(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    fill(queue, 3)
    before = sidelined(queue)
    assert queue.shovel.run_once() == ShovelResult(moved=3)
    fired = queue.main.fire(10)
    assert [one.message for one in fired] == [0, 1, 2]
    for one, was in zip(fired, before, strict=True):
        now = one.envelope
        for name in ("id", "key", "body", "headers", "enqueued_at_us", "attempts", "reason", "error"):
            assert getattr(now, name) == getattr(was, name)
    assert (queue.sideline.pending(), queue.sideline.in_flight()) == (0, 0)


def test_to_and_fro_counts_the_attempts(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    told = threading.Event()

    @queue.handler
    def handle(message: int, ctx: ignis.Context) -> bool:
        return told.is_set()

    queue.publish(1)
    app.start()
    for attempts in (1, 2):
        wait_idle(queue)
        assert [message.attempts for message in sidelined(queue)] == [attempts]
        queue.shovel.run_once()
    wait_idle(queue)
    told.set()
    assert queue.shovel.run_once().moved == 1
    wait_idle(queue)
    assert sidelined(queue) == []


def test_limit(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    fill(queue, 10, shards=2)
    assert queue.shovel.run_once(limit=4).moved == 4
    assert (queue.main.pending(), queue.sideline.pending()) == (4, 6)
    assert queue.shovel.run_once(limit=0).moved == 0
    assert queue.shovel.run_once().moved == 6
    assert queue.shovel.total.moved == 10


def test_where(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    fill(queue, 6, "timeout")
    fill(queue, 4, "crash", first=6)
    looked: list[int] = []
    result = queue.shovel.run_once(where=lambda message: message.reason == "crash", progress=looked.append)
    assert result == ShovelResult(moved=4, kept=6)
    assert sum(looked) == 10
    assert Counter(message.reason for message in sidelined(queue)) == {"timeout": 6}
    assert idle(queue) is False
    assert sorted(one.message for one in queue.main.fire(10)) == [6, 7, 8, 9]


def test_a_pass_looks_at_each_message_once(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept goes back only at the end: it must not take the place of what was not looked at."""
    monkeypatch.setattr(shovel_module, "BATCH", 3)
    queue = app.queue("jobs", int, shards=4, shovel_concurrency=1)
    fill(queue, 40, shards=4)
    seen: list[bytes] = []

    def where(message: ignis.Message) -> bool:
        seen.append(message.body)
        return False

    assert queue.shovel.run_once(where=where) == ShovelResult(kept=40)
    assert len(seen) == len(set(seen)) == 40
    assert (queue.sideline.pending(), queue.sideline.in_flight()) == (40, 0)


def test_several_workers(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shovel_module, "BATCH", 10)
    queue = app.queue("jobs", int, shards=4, shovel_concurrency=4)
    fill(queue, 200, shards=4)
    assert queue.shovel.run_once().moved == 200
    assert sorted(one.message for one in queue.main.fire(1_000)) == list(range(200))


def test_what_arrives_meanwhile_waits_for_the_next_pass(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 2)
    result = queue.shovel.run_once(progress=lambda count: fill(queue, 1, first=10))
    assert result.moved == 2
    assert queue.sideline.pending() == 1


def test_a_corrupt_one_stays(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [corrupt_record("jobs", 0, 1)])
    fill(queue, 1)
    assert queue.shovel.run_once() == ShovelResult(moved=1, kept=1)
    assert [message.reason for message in sidelined(queue)] == ["corrupt"]


def test_an_unreadable_envelope_comes_back_unless_it_is_chosen_by(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [b"\x09garbage"])
    assert queue.shovel.run_once(where=lambda message: True) == ShovelResult(kept=1)
    assert queue.shovel.run_once() == ShovelResult(moved=1)


def test_what_the_main_magazine_refuses_stays(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 3)

    def refuse(*args: Any, **kwargs: Any) -> int:
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(queue.main.store, "transfer", refuse)
        assert queue.shovel.run_once() == ShovelResult(kept=3, refused=3)
    assert (queue.sideline.pending(), queue.sideline.in_flight(), queue.main.pending()) == (3, 0, 0)
    assert queue.shovel.run_once().moved == 3


def test_a_where_that_fails_gives_everything_back(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 3)
    with pytest.raises(ZeroDivisionError):
        queue.shovel.run_once(where=lambda message: 1 // 0 == 1)
    assert (queue.sideline.pending(), queue.sideline.in_flight()) == (3, 0)


def test_the_one_shot_tries_again(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shovel_module.ONE_SHOT_RETRY_S == 10
    monkeypatch.setattr(shovel_module, "ONE_SHOT_RETRY_S", 0.01)
    queue = memory_app.queue("jobs", int, shards=1)
    fill(queue, 2)
    fire, left = queue.sideline.store.fire, [2]

    def busy(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StoreBusyError("held")
        return fire(*args, **kwargs)

    monkeypatch.setattr(queue.sideline.store, "fire", busy)
    assert queue.shovel.run_until_done(WAIT_S).moved == 2
    left[0] = 10**9
    fill(queue, 1)
    with pytest.raises(StoreBusyError):
        queue.shovel.run_until_done(0.05)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise StoreFailedError("EIO")

    monkeypatch.setattr(queue.sideline.store, "fire", broken)
    with pytest.raises(StoreFailedError):
        queue.shovel.run_until_done(WAIT_S)


def test_the_schedule(memory_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(memory_url)
    queue = app.queue("jobs", int, shards=1, shovel_interval=0.01)
    fill(queue, 3)
    queue.shovel.start()
    eventually(lambda: queue.main.pending() == 3)
    queue.shovel.stop()
    fill(queue, 1)
    assert queue.sideline.pending() == 1
    assert queue.shovel.run_once().moved == 1, "by hand after the schedule's end"


def test_the_schedule_survives_a_failure(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = memory_app.queue("jobs", int, shards=1, shovel_interval=0.01)
    fill(queue, 1)
    with monkeypatch.context() as patched:
        failed = threading.Event()

        def broken(*args: Any, **kwargs: Any) -> Any:
            failed.set()
            raise StoreBusyError("held")

        patched.setattr(queue.sideline.store, "fire", broken)
        queue.shovel.start()
        assert failed.wait(WAIT_S)
    eventually(lambda: queue.main.pending() == 1)
    queue.shovel.stop()


def test_no_schedule_when_the_interval_is_zero(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shovel_interval=0)
    queue.shovel.start()
    assert not [thread for thread in threading.enumerate() if thread.name == "ignis-shovel-jobs"]
    queue.shovel.stop()
