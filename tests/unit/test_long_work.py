"""Long work: progress, and cancelling what runs, in every kind of worker."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from typing import Any

import pytest

import ignis
from ignis.cancellation import CANCEL, requests_of
from ignis.cli import exit_codes, main
from ignis.config import ConsumerSettings
from ignis.consumer import long_work as long_work_module
from ignis.consumer import work
from ignis.consumer.in_hand import InHand
from ignis.consumer.long_work import LongWork
from ignis.errors import ConfigError, InvalidMessageError
from ignis.message import failed_record
from ignis.metrics import Collector, Exposition
from ignis.native import encode_record
from ignis.storage.base import QueueRecord, Transfer
from ignis.testing import drain, make_context
from ignis.told_calls import CALLS, calls_of, put_calls
from ignis.told_progress import PROGRESS, progress_of, put_progress
from tests.apps import long_work
from tests.conftest import MakeApp
from tests.support import WAIT_S, Journal, eventually, one_store


def reason_of(queue: ignis.Queue[Any]) -> tuple[str, str | None]:
    (aside,) = eventually(queue.sideline.peek)
    return aside.envelope.id, aside.envelope.reason


class Polite:
    """A thread's handler that ends when it is told, or when the test does."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        self.calls = 0

    def __call__(self, body: str, ctx: ignis.Context) -> None:
        self.calls += 1
        self.begun.set()
        while not ctx.cancelled and not self.over.wait(0.005):
            pass


@pytest.mark.parametrize("options", [{}, {"attempts": 1, "timeout_s": 60}], ids=["direct", "with a time-out"])
def test_a_thread_is_told_and_breaks_off(app: ignis.Ignis, options: dict[str, Any]) -> None:
    queue = app.queue("jobs", str, shovel_interval=0)
    handler = Polite()
    queue.handler(**options)(handler)
    published = queue.publish("a")
    app.start()
    try:
        assert handler.begun.wait(WAIT_S)
        assert queue.cancel(published.id) == "running"
        assert reason_of(queue) == (published.id, "cancelled")
        stats = eventually(lambda: (found := queue.stats()["consumer"]).get("sidelined_cancelled") == 1 and found)
        assert (stats["handled"], handler.calls) == (0, 1)
        eventually(lambda: CANCEL not in app.store.queues.get("jobs").extra)  # type: ignore[union-attr]
        assert queue.shovel.run_scheduled().waiting == 1, "it does not come back by itself"
        assert not work._asked and not work._seen
    finally:
        handler.over.set()


@pytest.mark.parametrize("options", [{}, {"attempts": 1, "timeout_s": 60}], ids=["direct", "with a time-out"])
def test_a_cancelled_message_that_is_brought_back_at_once_begins_anew(
    app: ignis.Ignis, options: dict[str, Any]
) -> None:
    """Its handler was told a second time, though nobody had asked again, and what it answered then counted: it was gone."""
    queue = app.queue("jobs", str, shovel_interval=0)
    told: list[bool] = []
    begun = threading.Event()

    @queue.handler(**options)
    def handle(body: str, ctx: ignis.Context) -> None:
        begun.set()
        until_s = time.monotonic() + WAIT_S
        while not told and not ctx.cancelled and time.monotonic() < until_s:
            time.sleep(0.002)
        told.append(ctx.cancelled)

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    assert queue.cancel(published.id) == "running"
    assert reason_of(queue) == (published.id, "cancelled")
    assert queue.shovel.run_once().moved == 1
    stats = eventually(lambda: (found := queue.stats()["consumer"])["handled"] == 1 and found)
    assert (told, stats["sidelined_cancelled"], queue.sideline.pending()) == ([True, False], 1, 0)


def test_what_a_handler_knew_counts_whoever_had_asked(app: ignis.Ignis) -> None:
    """A request may be read before its message comes back, and be told after that: it is put aside again, and not lost."""
    queue = app.queue("jobs", str, shovel_interval=0)
    handler = Polite()
    queue.handler(handler)
    published = queue.publish("a")
    app.start()
    assert handler.begun.wait(WAIT_S)
    work.ask("jobs", uuid.UUID(published.id).bytes)
    assert reason_of(queue) == (published.id, "cancelled")
    assert not work._asked and not work._seen


def test_a_request_whose_worker_died_is_not_met_by_the_next_delivery(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shovel_interval=0)
    ids = queue.publish_many(["a", "b"])
    fired = queue.main.fire(2)
    assert [queue.cancel(id) for id in ids] == ["running", "running"]
    first = next(one for one in fired if one.message == "a")
    moving = Transfer(first.shard, first.pointer, failed_record(first.record or b"", "abandoned"), 0)
    queue.main.store.transfer("jobs", "jobs_SIDELINE", [moving])
    assert queue.shovel.run_once().moved == 1
    record = app.store.queues.get("jobs")
    assert record is not None
    assert requests_of(record) == {uuid.UUID(ids[1]).bytes}, "that of the one that is still claimed"


@pytest.mark.parametrize("how", ["reloaded", "tried again"])
@one_store()
def test_a_request_that_nobody_was_told_of_waits_for_the_next_delivery(app: ignis.Ignis, how: str) -> None:
    """Who claims by hand is not told."""
    queue = app.queue("jobs", str, shards=1, shovel_interval=0)
    published = queue.publish("a")
    fired = queue.main.fire(1)
    assert queue.cancel(published.id) == "running"
    if how == "reloaded":
        assert queue.main.reload(fired) == 1
    else:
        item = Transfer(fired[0].shard, fired[0].pointer, fired[0].record or b"", 0)
        assert app.store.magazines.defer("jobs", [item], [1]) == 1
    handler = Polite()
    queue.handler(handler)
    app.start()
    try:
        assert reason_of(queue) == (published.id, "cancelled")
    finally:
        handler.over.set()


def test_a_thread_that_does_not_look_comes_to_its_end(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=1)
    begun, over = threading.Event(), threading.Event()
    seen: list[str] = []

    @queue.handler
    def handle(body: str) -> None:
        begun.set()
        assert over.wait(WAIT_S)
        seen.append(body)

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    assert queue.cancel(published.id) == "running"
    over.set()
    queue.publish("b")
    eventually(lambda: queue.stats()["consumer"]["handled"] == 2)
    assert (seen, queue.sideline.pending()) == (["a", "b"], 0)


def test_one_of_a_chunk_is_cancelled_and_the_others_are_done(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=1, shovel_interval=0)
    begun = threading.Event()
    seen: list[str] = []

    @queue.handler
    def handle(body: str, ctx: ignis.Context) -> None:
        until_s = time.monotonic() + WAIT_S
        while body == "c" and not ctx.cancelled and time.monotonic() < until_s:
            begun.set()
            time.sleep(0.005)
        seen.append(body)

    queue.publish_many([f"quick {n}" for n in range(500)])  # so that the next come as one chunk
    ids = queue.publish_many(["a", "b", "c", "d", "e"])
    app.start()
    assert begun.wait(WAIT_S)
    assert queue.cancel(ids[2]) == "running"
    assert reason_of(queue) == (ids[2], "cancelled")
    eventually(lambda: queue.stats()["consumer"]["handled"] == 504)
    assert seen[-5:] == ["a", "b", "c", "d", "e"]


def test_a_handler_that_raises_because_it_was_told(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shovel_interval=0)
    begun = threading.Event()

    @queue.handler
    def handle(body: str, ctx: ignis.Context) -> None:
        until_s = time.monotonic() + WAIT_S
        while not ctx.cancelled and time.monotonic() < until_s:
            begun.set()
            time.sleep(0.005)
        raise RuntimeError("broken off at 40 %")

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    queue.cancel(published.id)
    assert reason_of(queue) == (published.id, "cancelled")
    message = queue.sideline.peek()[0].envelope
    assert message.error == "RuntimeError: broken off at 40 %"
    assert message.history[0].trace


def test_a_thread_that_does_not_look_and_fails_is_not_tried_again(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shovel_interval=0)
    begun, goes_on = threading.Event(), threading.Event()
    calls: list[str] = []

    @queue.handler(retry=ignis.Retry(attempts=3, base="10ms", max="20ms"))
    def handle(body: str, ctx: ignis.Context) -> None:
        calls.append(body)
        begun.set()
        assert goes_on.wait(WAIT_S)
        raise RuntimeError("it failed by itself")

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    assert queue.cancel(published.id) == "running"
    eventually(lambda: work.is_asked("jobs", uuid.UUID(published.id).bytes))
    goes_on.set()
    assert reason_of(queue) == (published.id, "cancelled")
    assert calls == ["a"]


@pytest.mark.parametrize("how", ["raises", "asks", "refuses"])
def test_a_coroutine_that_ends_in_another_way_is_not_tried_again(app: ignis.Ignis, how: str) -> None:
    queue = app.queue("jobs", str, shovel_interval=0)
    begun = threading.Event()
    calls: list[str] = []

    @queue.handler(retry=ignis.Retry(attempts=3, base="10ms", max="20ms"))
    async def handle(body: str) -> bool:
        calls.append(body)
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            if how == "raises":
                raise RuntimeError("while it was cleaning up") from None
            if how == "asks":
                raise ignis.RetryLater("10ms") from None
        return False

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    assert queue.cancel(published.id) == "running"
    assert reason_of(queue) == (published.id, "cancelled")
    assert calls == ["a"]


@pytest.mark.parametrize("timeout_s", [None, 60])
def test_a_coroutine_is_cancelled(app: ignis.Ignis, timeout_s: float | None) -> None:
    queue = app.queue("jobs", str, shovel_interval=0)
    begun = threading.Event()
    cleaned: list[str] = []

    @queue.handler(timeout_s=timeout_s, attempts=3, concurrency=2)
    async def handle(body: str) -> None:
        if body == "quick":
            return
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            await asyncio.sleep(0)
            cleaned.append(body)

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    assert queue.cancel(published.id) == "running"
    assert reason_of(queue) == (published.id, "cancelled")
    assert cleaned == ["a"]
    queue.publish("quick")
    eventually(lambda: queue.stats()["consumer"]["handled"] == 1)


def test_a_coroutine_that_refuses_is_done(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str)
    begun = threading.Event()

    @queue.handler
    async def handle(body: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            return

    published = queue.publish("a")
    app.start()
    assert begun.wait(WAIT_S)
    queue.cancel(published.id)
    eventually(lambda: queue.stats()["consumer"]["handled"] == 1)
    assert queue.sideline.pending() == 0


def processes(new_app: MakeApp, url: str, grace_s: float) -> tuple[ignis.Ignis, ignis.Queue[str]]:
    app = new_app(url, consumer={"cancel_grace_s": grace_s})
    queue = app.queue("long", str, shards=1, shovel_interval=0)
    queue.handler(pool="process")(long_work.work)
    return app, queue


def test_a_worker_process_is_told(embedded_url: str, journal: Journal, new_app: MakeApp) -> None:
    app, queue = processes(new_app, embedded_url, WAIT_S)
    published = queue.publish("polite")
    app.start()
    told = eventually(lambda: queue.consumer and queue.consumer.in_hand()["progress"])
    assert told == [{"id": published.id, "fraction": 0.25, "text": "on its way"}]
    assert queue.cancel(published.id) == "running"
    assert reason_of(queue) == (published.id, "cancelled")
    queue.publish("quick")
    eventually(lambda: "ended quick" in journal.lines())
    stats = queue.stats()["consumer"]
    assert (stats["worker_deaths"], stats["progress_told"]) == (0, 0)
    assert "ended polite" not in journal.lines()


def test_a_worker_process_that_does_not_look_is_killed(embedded_url: str, journal: Journal, new_app: MakeApp) -> None:
    app, queue = processes(new_app, embedded_url, 0.1)
    ids = queue.publish_many(["deaf", "quick"])
    app.start()
    eventually(lambda: "begun deaf" in journal.lines())
    assert queue.cancel(ids[0]) == "running"
    assert reason_of(queue) == (ids[0], "cancelled")
    eventually(lambda: "ended quick" in journal.lines())
    assert "ended deaf" not in journal.lines()
    assert queue.sideline.pending() == 1


def test_progress_is_shown(app: ignis.Ignis, capsys: pytest.CaptureFixture[str]) -> None:
    queue = app.queue("jobs", str)
    begun, over = threading.Event(), threading.Event()

    @queue.handler(concurrency=2)
    def handle(body: str, ctx: ignis.Context) -> None:
        ctx.progress(0.25 if body == "a" else 0.5, body)
        begun.set()
        over.wait(WAIT_S)

    queue.publish_many(["a", "b"])
    app.start()
    try:
        consumer = queue.consumer
        assert consumer is not None
        eventually(lambda: len(consumer.in_hand()["progress"]) == 2)
        text = Exposition(Collector(app.stats)).text().decode()
        assert 'ignis_progress_told{queue="jobs"} 2.0' in text
        assert 'ignis_progress{queue="jobs"} 0.75' in text
    finally:
        over.set()
    eventually(lambda: queue.stats()["consumer"]["handled"] == 2)
    assert queue.stats()["consumer"]["progress_told"] == 0


def test_the_command_line(embedded_url: str, new_app: MakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    app = new_app(embedded_url)
    queue = app.queue("jobs", str, shards=1, shovel_interval=0)
    handler = Polite()

    @queue.handler
    def handle(body: str, ctx: ignis.Context) -> None:
        ctx.progress(0.4, "rows read")
        handler(body, ctx)

    running = queue.publish("a")
    app.start()
    try:
        assert handler.begun.wait(WAIT_S)
        waiting = queue.publish("b").id

        def shown() -> Any:
            capsys.readouterr()
            assert main(["--url", embedded_url, "workers", "jobs", "--json"]) == exit_codes.OK
            return json.loads(capsys.readouterr().out)["progress"]

        (one,) = eventually(shown)
        assert (one["id"], one["fraction"], one["text"]) == (running.id, 0.4, "rows read")
        assert main(["--url", embedded_url, "workers", "jobs", "--json"]) == exit_codes.OK
        ((call,),) = [one["long_calls"] for one in json.loads(capsys.readouterr().out)["workers"]]
        assert call["id"] == running.id, "how long it has run is known as soon as its progress is"
        assert main(["--url", embedded_url, "workers"]) == exit_codes.OK
        assert "40%" in capsys.readouterr().out
        nobody = str(uuid.uuid4())
        cancel = ["--url", embedded_url, "queue", "cancel", "jobs"]
        assert main([*cancel, running.id, waiting, nobody, "--json"]) == exit_codes.OK
        found = json.loads(capsys.readouterr().out)["messages"]
        assert found == {running.id: "running", waiting: "waiting", nobody: None}
        assert reason_of(queue) == (running.id, "cancelled")
        assert main([*cancel, nobody]) == exit_codes.NOTHING
    finally:
        handler.over.set()


@pytest.mark.parametrize(
    "pool",
    [
        "thread",
        pytest.param("thread with a time-out", marks=pytest.mark.long),
        pytest.param("async", marks=pytest.mark.long),
        "process",
        pytest.param("batch", marks=pytest.mark.long),
    ],
)
def test_how_long_a_call_has_run_is_shown_whatever_was_renewed(
    pool: str, embedded_url: str, new_app: MakeApp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    journal: Journal,
) -> None:  # fmt: skip
    for name in ("LONG_S", "_STORE_S", "_STORE_CALLS_S"):
        monkeypatch.setattr(long_work_module, name, 0.5)
    app = new_app(embedded_url)
    queue = app.queue("long", str, shards=1, shovel_interval=0)
    over = threading.Event()

    def wait(body: Any) -> None:
        assert over.wait(WAIT_S)

    async def wait_async(body: str) -> None:
        await asyncio.to_thread(over.wait, WAIT_S)

    if pool == "process":
        queue.handler(pool="process")(long_work.work)
    elif pool == "async":
        queue.handler(wait_async)
    elif pool == "batch":
        queue.handler(batch_size=2)(wait)
    else:
        queue.handler(**({"timeout_s": 60, "attempts": 1} if "time-out" in pool else {}))(wait)
    bodies = ["polite", "quick"] if pool == "batch" else ["polite"]
    ids = queue.publish_many(bodies)

    def shown() -> Any:
        capsys.readouterr()
        assert main(["--url", embedded_url, "workers", "long", "--json"]) == exit_codes.OK
        (one,) = json.loads(capsys.readouterr().out)["workers"] or [{"long_calls": []}]
        return one["long_calls"] and one

    app.start()
    try:
        (call,) = eventually(shown)["long_calls"]
        assert (call["id"], call["messages"]) == (ids[0], len(bodies))
        app.store.magazines.renew_claims("long", {0: list(range(1, len(bodies) + 1))}, app.store.owner)
        one = shown()
        assert one["oldest_claim_s"] >= one["long_calls"][0]["running_s"] >= call["running_s"] >= 0.5
        assert main(["--url", embedded_url, "workers"]) == exit_codes.OK
        assert ids[0] in capsys.readouterr().out
        if pool in ("async", "process"):
            assert main(["--url", embedded_url, "queue", "cancel", "long", ids[0]]) == exit_codes.OK
    finally:
        over.set()
    eventually(lambda: CALLS not in app.store.queues.get("long").extra)  # type: ignore[union-attr]


def test_in_a_batch_nothing_is_cancelled(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str)
    begun, over = threading.Event(), threading.Event()
    looked: list[bool] = []

    @queue.handler(batch_size=2)
    def handle(bodies: list[str], ctx: ignis.Context) -> None:
        begun.set()
        assert over.wait(WAIT_S)
        looked.append(ctx.cancelled)

    ids = queue.publish_many(["a", "b"])
    app.start()
    assert begun.wait(WAIT_S)
    queue.cancel(ids[0])
    over.set()
    eventually(lambda: queue.stats()["consumer"]["handled"] == 2)
    assert looked == [False]


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True])
def test_wrong_progress(fraction: Any) -> None:
    with pytest.raises(ConfigError, match="fraction"):
        make_context("a").progress(fraction)


def test_wrong_text() -> None:
    with pytest.raises(ConfigError, match="text"):
        make_context("a").progress(0.5, b"x")  # type: ignore[arg-type]


def test_a_context_that_a_test_makes() -> None:
    assert not make_context("a").cancelled
    context = make_context("a", cancelled=True)
    assert context.cancelled
    context.progress(1, "x" * 300)
    assert context._work is not None and context._work.text == "x" * 200
    work.withdraw("test", context._work.id)


@pytest.mark.parametrize("pool", ["thread", "async", "process"])
def test_a_handler_is_told_that_its_process_stops(
    embedded_url: str, new_app: MakeApp, journal: Journal, pool: str
) -> None:
    app = new_app(embedded_url)
    queue = app.queue("long", str, shards=1, shovel_interval=0)
    queue.handler(pool=pool)(long_work.work_async if pool == "async" else long_work.work)
    app.start()
    queue.publish("leaving")
    eventually(lambda: journal.lines() == ["begun leaving"])
    assert app.stop(WAIT_S)
    assert journal.lines() == ["begun leaving", "ended leaving"]
    assert (queue.main.pending(), queue.main.in_flight(), queue.sideline.pending()) == (0, 0, 0)


def test_another_application_and_the_next_start_do_not_stop(memory_app: ignis.Ignis) -> None:
    """The queue of that name of another application goes on; and so does its own, when it is started again."""
    told: list[bool] = []
    queue = memory_app.queue("jobs", int)

    @queue.handler
    def handle(number: int, ctx: ignis.Context) -> None:
        told.append(ctx.stopping)

    with ignis.Ignis("memory://") as other:
        other.queue("jobs", int).handler(lambda number: None)
        other.start()
        for number in range(2):
            memory_app.start()
            queue.publish(number)
            eventually(lambda: len(told) == number + 1)  # noqa: B023
            other.stop()
            memory_app.stop()
    assert told == [False, False]
    assert not make_context("a").stopping
    assert make_context("a", stopping=True).stopping


def test_who_asks_nothing_leaves_nothing() -> None:
    with ignis.Ignis("memory://") as app:
        queue = app.queue("jobs", str)
        kept: list[Any] = []

        @queue.handler
        def handle(body: str, ctx: ignis.Context) -> None:
            kept.append(ctx._work)

        queue.publish("a")
        drain(queue)
        assert kept == [None]
        assert work.told("jobs") == []


def test_requests_are_bounded(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", str, shards=1)
    ids = queue.publish_many([str(n) for n in range(150)])
    queue.main.fire(150)
    for id in ids:
        assert queue.cancel(id) == "running"
    record = memory_app.store.queues.get("jobs")
    assert record is not None
    assert requests_of(record) == {uuid.UUID(id).bytes for id in ids[50:]}


def test_ids_that_are_none(memory_app: ignis.Ignis) -> None:
    with pytest.raises(InvalidMessageError, match="UUID"):
        memory_app.queue("jobs", str).cancel("7")


def test_what_others_wrote_is_passed_over() -> None:
    record = QueueRecord(
        "jobs",
        extra={
            CANCEL: {"x": 1, 7: 8, str(uuid.uuid4()): "then"},
            PROGRESS: {"x": [1], 7: 8},
            CALLS: {7: [1, 2, "me", 4]},
        },
    )
    assert requests_of(record) == frozenset()
    assert progress_of(record) == calls_of(record, 0) == []
    assert requests_of(QueueRecord("jobs", extra={CANCEL: 7})) == frozenset()


def test_stored_progress_is_bounded_and_grows_old() -> None:
    record = QueueRecord("jobs")
    many = {uuid.uuid4().bytes: (0.5, "\N{SNOWMAN}" * 200) for _ in range(150)}
    put_progress(record, "me", many, (), 7_000)
    assert len(progress_of(record, 7_000)) == 50
    assert progress_of(record, 37_000) == []
    put_progress(record, "me", {}, many, 7_000)
    assert PROGRESS not in record.extra


def test_stored_calls_are_bounded_and_grow_old() -> None:
    record = QueueRecord("jobs")
    many = {uuid.uuid4().bytes: (n, 1) for n in range(150)}
    put_calls(record, "me", many, (), 7_000)
    assert [one.since_ms for one in calls_of(record, 7_000)] == list(range(50)), "the longest"
    assert calls_of(record, 37_000) == []
    put_calls(record, "me", {}, many, 7_000)
    assert CALLS not in record.extra


def test_the_grace_is_a_setting() -> None:
    assert ConsumerSettings().cancel_grace_s == 10


def test_quick_messages_are_not_looked_after(memory_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's record is read only where something has been in hand since the look before."""
    queue = memory_app.queue("jobs", str)
    context = queue.context()
    reads: list[str] = []
    get = context.store.queues.get
    monkeypatch.setattr(context.store.queues, "get", lambda name: reads.append(name) or get(name))
    in_hand = InHand(lambda count: None)
    looked = LongWork(context, in_hand, lambda request_id: None, list, may_cancel=True)
    try:
        for _ in range(3):
            chunk = in_hand.add([(0, [1])], [encode_record(b"a")], 1)
            looked._look_in_time()
            in_hand.forget(chunk, 1)
        assert reads == []
        in_hand.add([(0, [2])], [encode_record(b"b")], 1)
        looked._look_in_time()
        assert reads == []
        looked._look_in_time()
        assert reads == ["jobs"]
    finally:
        looked.end()
