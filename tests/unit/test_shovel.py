"""The shovel: from the sideline back to the main magazine."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import ignis
from ignis import shovel as shovel_module
from ignis import shovel_owed, shovel_pass
from ignis.control.redelivery import recover_owner
from ignis.errors import StoreBusyError, StoreFormatError, StoreFullError
from ignis.message import corrupt_record, encode_meta, failed_record, returned_record
from ignis.message_filter import AtMost, Filter
from ignis.native import CODEC_JSON, encode_record
from ignis.shovel import ShovelResult
from ignis.storage.base import Transfer
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
        for name in ("id", "key", "body", "headers", "enqueued_at_us", "failures", "reason", "error"):
            assert getattr(now, name) == getattr(was, name)
    assert (queue.sideline.pending(), queue.sideline.in_flight()) == (0, 0)


def test_what_is_left_is_said_truly(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 10)

    def left(**options: Any) -> tuple[int, int | None]:
        result = queue.shovel.run_once(**options)
        return result.moved, result.left

    assert left(limit=3, dry_run=True) == (3, 7)
    assert left(limit=3) == (3, 7)
    where = AtMost(Filter(older_than=0.0), 2)
    assert left(where=where, dry_run=True) == (2, 5)
    assert left(where=AtMost(Filter(older_than=0.0), 2)) == (2, 5)
    queue.sideline.fire(1)
    assert queue.shovel.run_until_done(0, limit=1).left == 4, "what somebody else has claimed stays too"
    assert left(where=lambda message: message.body == b"8") == (1, 3), "from between others"
    assert left(dry_run=True) == (2, 1)
    assert left() == (2, 1)


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
        assert [message.failures for message in sidelined(queue)] == [attempts]
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


def test_what_is_not_chosen_is_not_claimed_and_keeps_its_place(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    fill(queue, 200, shards=2)
    before = [(one.shard, one.pointer) for one in queue.sideline.peek(1_000)]
    claims: list[int] = []
    chosen = queue.sideline.peek(1_000)[7].envelope.id
    looked: list[int] = []

    class Where:
        spent = False

        def __call__(self, message: ignis.Message) -> bool:
            claims.append(queue.sideline.in_flight())
            self.spent = message.id == chosen
            return self.spent

    assert queue.shovel.run_once(where=Where(), progress=looked.append) == ShovelResult(moved=1, kept=7)
    assert (set(claims), sum(looked)) == ({0}, 8), "when it was found the others were not looked at"
    after = [(one.shard, one.pointer) for one in queue.sideline.peek(1_000)]
    assert after == [*before[:7], *before[8:]]


def test_a_pass_looks_at_each_message_once(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept goes back only at the end: it must not take the place of what was not looked at."""
    monkeypatch.setattr(shovel_pass, "BATCH", 3)
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
    monkeypatch.setattr(shovel_pass, "BATCH", 10)
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
        raise StoreFormatError("another format")

    monkeypatch.setattr(queue.sideline.store, "fire", broken)
    with pytest.raises(StoreFormatError):
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


def failing(app: ignis.Ignis, **settings: Any) -> tuple[ignis.Queue[int], list[int]]:
    """A queue whose handler fails for every message, and what it was called with."""
    queue = app.queue("jobs", int, shards=2, **settings)
    called: list[int] = []

    @queue.handler
    def fail(message: int) -> bool:
        called.append(message)
        return False

    return queue, called


@pytest.mark.parametrize("most", [0, 2])
def test_the_schedule_brings_a_message_back_so_often_and_then_it_waits(
    app: ignis.Ignis, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    queue, called = failing(app, shovel_interval=0.01, max_returns=most)
    queue.publish(7)
    app.start()
    eventually(lambda: queue.shovel.waiting == 1)
    passes = queue.sideline.metadata()
    assert called == [7] * (most + 1)
    [message] = sidelined(queue)
    assert (message.returns, message.failures, len(message.history)) == (most, most + 1, most + 1)
    assert queue.stats()["shovel"] == {
        "moved": most,
        "returned": most,
        "kept": 0,
        "refused": 0,
        "waiting": 1,
        "given_up": 0,
    }
    assert [one.load_pointer for one in queue.sideline.metadata()] == [one.load_pointer for one in passes]
    said = [one for one in caplog.records if "wait for a person" in one.getMessage()]
    assert len(said) == 1, "not at every pass"
    # A person brings it back, and the count begins anew.
    queue.set_shovel(0, 4, most)
    assert queue.shovel.run_once().moved == 1
    eventually(lambda: len(called) == most + 2 and queue.sideline.pending() == 1)
    assert sidelined(queue)[0].returns == 0


def test_what_waits_does_not_hold_back_what_may_return(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1, shovel_interval=0, max_returns=1)
    fill(queue, 3)
    assert queue.shovel.run_scheduled().moved == 3
    fired = queue.main.fire(3)
    items = [Transfer(0, one.pointer, failed_record(one.record or b"", "exception"), 0) for one in fired]
    queue.main.store.transfer("jobs", "jobs_SIDELINE", items)
    fill(queue, 2, first=3)
    result = queue.shovel.run_scheduled()
    assert (result.moved, result.kept, result.waiting) == (2, 3, 3)
    assert sorted(one.message for one in queue.main.peek(9)) == [3, 4]


def test_what_fails_while_the_schedule_looks_is_not_taken_for_waiting(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = app.queue("jobs", int, shards=1, shovel_interval=0, max_returns=2)
    pending = queue.shovel._passes.pending

    def look() -> Iterator[tuple[int, int, bytes | None]]:
        yield from pending()
        fill(queue, 1)

    monkeypatch.setattr(queue.shovel._passes, "pending", look)
    assert queue.shovel.run_scheduled().waiting == 0
    monkeypatch.undo()
    assert queue.shovel.run_scheduled().moved == 1


@pytest.mark.parametrize(
    "record", [b"\x09garbage", encode_record(b"1", flags=1, meta=b"\xc1")], ids=["all", "envelope"]
)
def test_what_cannot_be_counted_waits(app: ignis.Ignis, record: bytes) -> None:
    """It would come back for ever."""
    queue = app.queue("jobs", int, shards=1, shovel_interval=0)
    queue.main.pending()
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [record])
    assert queue.shovel.run_scheduled().waiting == 1
    assert queue.shovel.run_once().moved == 1, "by hand it comes back"


@pytest.mark.parametrize("stored", [-1, "5", 1 << 62, True, None])
def test_a_count_that_others_wrote(app: ignis.Ignis, stored: Any) -> None:
    queue = app.queue("jobs", int, shards=1, shovel_interval=0)
    queue.main.pending()
    meta = msgspec.msgpack.encode({"reason": "exception", "returns": stored})
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [encode_record(b"1", flags=1, meta=meta)])
    assert queue.shovel.run_scheduled().moved == (stored != 1 << 62)


def test_another_instance_sets_how_often(memory_url: str, new_app: MakeApp) -> None:
    queue = new_app(memory_url, refresher={"watch_s": 0.01}).queue("jobs", int)
    queue.handler(lambda message: None)
    queue.app.start()

    def change(record: Any) -> None:
        record.max_returns = 1

    new_app(memory_url).store.queues.update("jobs", change)
    eventually(lambda: queue.settings.max_returns == 1)


def test_the_time_to_live_goes_on(memory_app: ignis.Ignis) -> None:
    """Through the sideline and back, swept and by hand."""
    queue, called = failing(memory_app, shovel_interval=0, message_expiry="1h")
    queue.publish(7)

    def ends() -> list[int]:
        magazines = memory_app.store.content.magazines.values()  # type: ignore[attr-defined]
        return [one.expires_at_ms for each in magazines for shard in each.shards for one in shard.records.values()]

    before = ends()
    assert len(before) == 1
    assert before[0] > 0
    memory_app.start()
    for n in range(1, 4):
        eventually(lambda: len(called) == n and queue.sideline.pending() == 1)  # noqa: B023
        assert ends() == before
        queue.shovel.run_once() if n < 3 else memory_app.stop()
    assert queue.shovel.run_once().moved == 1
    memory_app.store.magazines.fire("jobs", 1, "dead-one")
    assert recover_owner(memory_app.store, "dead-one", "killed").sidelined == 1
    assert ends() == before


def test_no_schedule_when_the_interval_is_zero(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shovel_interval=0)
    queue.shovel.start()
    assert queue.shovel._schedule._timer is None
    queue.set_shovel(1, 1, 5)
    assert queue.shovel._schedule._timer is not None
    queue.set_shovel(0, 1, 5)
    assert queue.shovel._schedule._timer is None
    queue.shovel.stop()


# -- a part of it, slowly, or only looked at


def test_a_dry_run_counts_and_changes_nothing(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shovel_pass, "BATCH", 3)
    queue = app.queue("jobs", int, shards=2)
    fill(queue, 7, "timeout", shards=2)
    fill(queue, 4, "crash", shards=2, first=7)
    queue.sideline.store.load_records("jobs_SIDELINE", 0, [corrupt_record("jobs", 0, 1)])
    before = [(one.shard, one.pointer, one.record) for one in queue.sideline.peek(100)]
    looked: list[int] = []
    crashed = queue.shovel.run_once(dry_run=True, where=lambda one: one.reason == "crash", progress=looked.append)
    assert (crashed, sum(looked)) == (ShovelResult(moved=4, kept=8), 12)
    assert queue.shovel.run_once(dry_run=True) == ShovelResult(moved=11, kept=1)
    assert queue.shovel.run_once(dry_run=True, limit=5) == ShovelResult(moved=5)
    assert [(one.shard, one.pointer, one.record) for one in queue.sideline.peek(100)] == before
    assert (queue.main.pending(), queue.sideline.in_flight(), queue.shovel.total) == (0, 0, ShovelResult())
    assert queue.shovel.run_once(where=lambda one: one.reason == "crash") == crashed, "it told the truth"


def test_a_rate_is_kept_in_small_steps(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the waits it asks for, not by a clock: so many messages, so many seconds."""
    queue = memory_app.queue("jobs", int, shards=2, shovel_concurrency=4)
    fill(queue, 100, shards=2)
    waits: list[float] = []
    sizes: list[int] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    class Frozen:
        @staticmethod
        def monotonic() -> float:
            return sum(waits)

    fire = queue.sideline.store.fire

    def counting(name: str, limit: int, *args: Any) -> Any:
        sizes.append(limit)
        return fire(name, limit, *args)

    monkeypatch.setattr(queue.shovel._passes, "_stop", Stop())
    monkeypatch.setattr(shovel_pass, "time", Frozen)
    monkeypatch.setattr(queue.sideline.store, "fire", counting)
    assert queue.shovel.run_once(rate=50).moved == 100
    assert sizes == [5] * 20
    assert sum(waits) == pytest.approx(2.0)
    with pytest.raises(ignis.errors.ConfigError, match="rate = 0 is not above 0"):
        queue.shovel.run_once(rate=0)


def test_what_is_kept_does_not_count_for_the_rate(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shards=1)
    fill(queue, 500, "timeout")
    # At one a second a wait for each would take minutes.
    assert queue.shovel.run_once(rate=1, where=lambda one: False) == ShovelResult(kept=500)


def test_a_paced_pass_is_stopped_at_once(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 10)
    begun = threading.Event()
    thread = queue.shovel.start_once(rate=0.0001, progress=lambda count: begun.set())
    assert begun.wait(WAIT_S)
    queue.shovel.stop(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert (queue.main.pending(), queue.sideline.pending(), queue.sideline.in_flight()) == (1, 9, 0)


def test_the_one_shot_in_the_background_ends_by_itself(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shovel_module, "ONE_SHOT_RETRY_S", 0.01)
    queue = app.queue("jobs", int, shards=1, shovel_interval=0)
    fill(queue, 5)
    transfer, left = queue.main.store.transfer, [3]

    def full(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StoreFullError("no room")
        return transfer(*args, **kwargs)

    monkeypatch.setattr(queue.main.store, "transfer", full)
    thread = queue.shovel.start_once()
    assert queue.shovel.start_once() is thread or not thread.is_alive(), "one at a time"
    eventually(lambda: queue.main.pending() == 5)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert left == [0], "what was refused was tried again"


def test_a_one_shot_that_is_refused_says_so_in_the_end(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 2)

    def full(*args: Any, **kwargs: Any) -> Any:
        raise StoreFullError("no room")

    monkeypatch.setattr(queue.main.store, "transfer", full)
    assert queue.shovel.run_until_done(0) == ShovelResult(kept=2, refused=2)
    assert queue.sideline.pending() == 2


# -- nothing is lost


def test_a_full_store_loses_nothing(embedded_url: str, new_app: MakeApp) -> None:
    """It refuses loads and keeps room for moves: the sideline can be brought back all the same."""
    app = new_app(embedded_url, store={"max_store_bytes": 3 << 20})
    queue = app.queue("jobs", bytes, shards=1, shovel_interval=0)
    failing = [b"%04d" % n + b"x" * 4_000 for n in range(350)]
    queue.publish_many(failing)
    fired = queue.main.fire(1_000)
    items = [Transfer(one.shard, one.pointer, failed_record(one.record or b"", "exception", "e"), 0) for one in fired]
    for start in range(0, 350, 50):
        assert queue.main.store.transfer("jobs", "jobs_SIDELINE", items[start : start + 50], None) == 50
    ballast = app.magazine("ballast", bytes, shards=1)
    with contextlib.suppress(StoreFullError):
        while ballast.pending() < 10_000:
            ballast.load(b"y" * 4_000)
    assert 0 < ballast.pending() < 10_000
    with pytest.raises(StoreFullError):
        queue.publish(b"y" * 4_000)
    result = queue.shovel.run_once()
    assert result.moved + result.kept == 350
    assert queue.main.pending() + queue.sideline.pending() + queue.sideline.in_flight() == 350
    while claimed := ballast.fire(1_000):
        ballast.delete(claimed)
    queue.shovel.run_once()
    assert sorted(one.message for one in queue.main.fire(1_000)) == failing


def test_what_not_even_the_sideline_takes_back_is_kept_in_hand(
    store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(store_url)
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 4)

    def full(*args: Any, **kwargs: Any) -> Any:
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(queue.main.store, "transfer", full)
        patched.setattr(queue.main.store, "reload", full)
        assert queue.shovel.run_once() == ShovelResult(kept=4, refused=4)
        assert (queue.sideline.pending(), queue.sideline.in_flight()) == (0, 4)
        # For the sweeper too, should this process end now.
        assert len(new_app(store_url).store.magazines.abandoned("jobs_SIDELINE", 0, 1 << 52, 10)) == 4
        queue.shovel.run_once()
        assert queue.sideline.in_flight() == 4
    assert queue.shovel.run_once() == ShovelResult(moved=4)
    assert sorted(one.message for one in queue.main.fire(10)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("at", "chosen"),
    [
        ("before the transfer", False),
        ("after the transfer", False),
        ("before the reload", False),
        ("before the transfer", True),
        ("after the transfer", True),
    ],
)
def test_an_end_between_two_steps_leaves_each_message_once(
    store_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch, at: str, chosen: bool
) -> None:
    """The process ends there: what the next one and the sweeper find is everything, in one place each."""

    class Killed(BaseException):
        pass

    def killed(*args: Any, **kwargs: Any) -> Any:
        raise Killed

    monkeypatch.setattr(shovel_owed, "RETRY_S", 3_600.0)  # nor later
    app = new_app(store_url)
    queue = app.queue("jobs", int, shards=1)
    fill(queue, 6)
    store = queue.main.store
    transfer, reload = store.transfer, store.reload

    def after(*args: Any, **kwargs: Any) -> Any:
        transfer(*args, **kwargs)
        monkeypatch.setattr(store, "reload", killed)
        raise Killed

    def full(source: str, target: str, items: Any, *args: Any, **kwargs: Any) -> Any:
        if len(items) > 1 or items[0].pointer % 2:
            raise StoreFullError("no room")
        return transfer(source, target, items, *args, **kwargs)

    with monkeypatch.context() as patched:
        # A process that is gone gives nothing back either.
        patched.setattr(store, "reload", killed)
        if at == "before the transfer":
            patched.setattr(store, "transfer", killed)
        elif at == "after the transfer":
            patched.setattr(store, "transfer", after)
        else:
            patched.setattr(store, "transfer", full)
        with pytest.raises(Killed):
            queue.shovel.run_once(where=(lambda message: message.headers["h"] % 2 == 0) if chosen else None)
    monkeypatch.setattr(store, "reload", reload)
    other = new_app(store_url).queue("jobs", int, shards=1)
    held = other.sideline.store.abandoned("jobs_SIDELINE", 0, 1 << 52, 100)
    other.sideline.store.reload("jobs_SIDELINE", {0: [one.pointer for one in held]})
    other.shovel.run_once()
    assert sorted(one.message for one in other.main.fire(100)) == list(range(6))
    assert (other.sideline.pending(), other.sideline.in_flight()) == (0, 0)


# -- claims that the store does not take back


def full_for_a_while(
    queue: ignis.Queue[Any], monkeypatch: pytest.MonkeyPatch, room: threading.Event
) -> tuple[threading.Event, list[int]]:
    """The store has no room for moves until ``room`` is set. Returns what tells of a refused reload, and the sizes tried."""
    store, refused, sizes = queue.main.store, threading.Event(), []
    transfer, reload = store.transfer, store.reload

    def move(*args: Any, **kwargs: Any) -> Any:
        if not room.is_set():
            raise StoreFullError("no room")
        return transfer(*args, **kwargs)

    def put_back(name: str, pointers: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(sum(map(len, pointers.values())))
        if not room.is_set():
            refused.set()
            raise StoreFullError("no room")
        return reload(name, pointers, *args, **kwargs)

    monkeypatch.setattr(store, "transfer", move)
    monkeypatch.setattr(store, "reload", put_back)
    return refused, sizes


def test_the_schedule_goes_on_with_what_it_holds_when_nothing_else_comes_back(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other message is pending that the schedule would claim: what it holds itself is not forgotten over that."""
    monkeypatch.setattr(shovel_owed, "RETRY_S", WAIT_S * 10)
    queue = app.queue("jobs", int, shards=2, shovel_interval="1h")
    fill(queue, 4, shards=2)
    room = threading.Event()
    full_for_a_while(queue, monkeypatch, room)
    queue.shovel.run_scheduled()
    fill(queue, 2, "crash", first=4)
    queue.shovel.run_scheduled()
    assert queue.sideline.in_flight() >= 4
    room.set()
    queue.shovel.run_scheduled()
    queue.shovel.run_scheduled()
    assert (queue.sideline.in_flight(), queue.main.pending()) == (0, 6)


@pytest.mark.parametrize("retry", [None, ignis.Retry(attempts=3, base="10m")])
def test_what_a_person_has_claimed_is_given_back_by_a_pass_of_any_kind(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, retry: ignis.Retry | None
) -> None:
    monkeypatch.setattr(shovel_owed, "RETRY_S", WAIT_S * 10)
    queue = app.queue("jobs", int, shards=1, shovel_interval="1h", shovel_retry=retry or "")
    fill(queue, 3)
    room = threading.Event()
    full_for_a_while(queue, monkeypatch, room)
    queue.shovel.run_once()
    assert queue.sideline.in_flight() == 3
    room.set()
    queue.shovel.run_scheduled()
    assert queue.sideline.in_flight() == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_what_is_held_goes_back_by_itself(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    """Without a schedule, between two passes that are hours apart, and after the shovel was stopped."""
    monkeypatch.setattr(shovel_owed, "RETRY_S", 0.01)
    monkeypatch.setattr(shovel_owed, "MOST_RETRY_S", 0.02)
    queue = app.queue("jobs", int, shards=2, shovel_interval=0)
    fill(queue, 10, shards=2)
    room = threading.Event()
    refused, sizes = full_for_a_while(queue, monkeypatch, room)
    assert queue.shovel.run_once() == ShovelResult(kept=10, refused=10)
    if stopped:
        queue.shovel.stop()
    refused.clear()
    assert refused.wait(WAIT_S), "it is tried again"
    assert queue.sideline.in_flight() == 10
    assert sizes[:4] == [10, 5, 2, 1], "where there is room for a few, these go back"
    room.set()
    eventually(lambda: (queue.sideline.in_flight(), queue.sideline.pending()) == (0, 10))


def test_a_pass_that_is_stopped_on_a_full_store_holds_nothing_for_long(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shovel_owed, "RETRY_S", 0.01)
    monkeypatch.setattr(shovel_pass, "BATCH", 2)
    queue = app.queue("jobs", int, shards=1, shovel_interval=0.01, shovel_concurrency=1)
    fill(queue, 6)
    room = threading.Event()
    refused, _ = full_for_a_while(queue, monkeypatch, room)
    queue.shovel.start()
    assert refused.wait(WAIT_S)
    queue.shovel.stop()
    assert queue.sideline.in_flight() > 0
    room.set()
    eventually(lambda: queue.sideline.in_flight() == 0)
    assert queue.sideline.pending() + queue.main.pending() == 6


def test_nothing_is_tried_again_at_a_closed_store(
    embedded_url: str, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shovel_owed, "RETRY_S", 0.01)
    app = new_app(embedded_url)
    queue = app.queue("jobs", int, shards=1, shovel_interval=0)
    fill(queue, 3)
    room = threading.Event()
    full_for_a_while(queue, monkeypatch, room)
    queue.shovel.run_once()
    app.close()
    room.set()
    owed = queue.shovel._passes._owed
    eventually(lambda: owed._timer is None)
    found = new_app(embedded_url).queue("jobs", int, shards=1)
    assert len(found.sideline.store.abandoned("jobs_SIDELINE", 0, 0, 10, dead_owners=True)) == 3


@pytest.mark.parametrize("some_come_back", [True, False])
def test_the_log_says_why_each_message_waits(
    app: ignis.Ignis, caplog: pytest.LogCaptureFixture, some_come_back: bool
) -> None:
    """``max_returns`` keeps only those back that came back so often."""
    queue = app.queue("jobs", int, shards=1, shovel_interval=0, max_returns=2)
    queue.open()
    fresh = encode_record(b"1", flags=CODEC_JSON, key=b"k")
    twice = failed_record(fresh, "exception")
    for _ in range(2):
        twice = failed_record(returned_record(twice, counted=True), "exception")
    given_up = failed_record(fresh, "exception", given_up=True)
    records = [twice, given_up, given_up, failed_record(fresh, "cancelled")]
    if some_come_back:
        records.append(failed_record(fresh, "exception"))
    queue.sideline.store.load_records(queue.sideline.name, 0, records)
    queue.shovel._schedule.run()
    [said] = [one.getMessage() for one in caplog.records if "wait for a person" in one.getMessage()]
    assert said.startswith("4 message(s) in the sideline of jobs wait for a person and do not come back")
    assert said.endswith(
        "1 came back 2 time(s) (max_returns), 1 failed as cancelled, 2 given up by the handler's retry"
    )
