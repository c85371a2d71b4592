"""Deadlines as users have them: publishing, every kind of worker, and what else knows of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

import ignis
from ignis.deadlines import Deadline, note_on_expiry
from ignis.errors import ConfigError
from ignis.message import Message, bare_record, encode_meta, failed_record, has_deadline, returned_record
from ignis.metrics import Collector, Exposition
from ignis.native import Record, encode_record
from ignis.relay.channel_label import Label, record_of, settings_of
from ignis.storage.base import QueueRecord
from ignis.testing import Drained, ManualClock, drain
from tests.apps import long_work
from tests.conftest import MakeApp
from tests.support import Journal, eventually

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


def ends(app: ignis.Ignis) -> list[int]:
    """Of everything in a memory store; 0 = never."""
    magazines = app.store.content.magazines.values()  # type: ignore[attr-defined]
    return [one.expires_at_ms for each in magazines for shard in each.shards for one in shard.records.values()]


def test_a_batch_that_waits_past_a_deadline_goes_without_that_message(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", str, shards=1)
    seen: list[list[str]] = []
    queue.handler(batch_size=9, batch_wait_s=1)(seen.append)
    memory_app.start()
    queue.publish("brief", expires_in=0.5)
    queue.publish("long")
    eventually(lambda: bool(seen) and queue.main.in_flight() == queue.main.pending() == 0)
    assert seen in ([["long"]], [["brief"], ["long"]], [["brief", "long"]])
    consumer = queue.stats()["consumer"]
    assert consumer["handled"] + consumer["overdue"] + queue.stats()["expired"] == 2


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("pool", ["thread", "async"])
def test_no_handler_begins_behind_middleware_that_waited_past_the_deadline(
    memory_app: ignis.Ignis, pool: str, attempts: int
) -> None:
    queue = memory_app.queue("jobs", str, shards=1)
    seen: list[str] = []

    @memory_app.middleware
    async def wait(ctx: ignis.Context, call_next: Callable[[ignis.Context], Any]) -> Any:
        if ctx.message.expires_at_ms is not None:
            await asyncio.sleep(max(0.0, ctx.message.expires_at_ms / 1000 - time.time()) + 0.01)
        return await call_next(ctx)

    async def late(body: str) -> None:
        seen.append(body)

    queue.handler(attempts=attempts)(late if pool == "async" else seen.append)
    queue.publish("brief", expires_in=0.5)
    queue.publish("long")
    memory_app.start()
    eventually(lambda: seen == ["long"] and queue.main.in_flight() == queue.main.pending() == 0)
    assert queue.stats()["consumer"]["overdue"] + queue.stats()["expired"] == 1


@pytest.mark.parametrize("given", ["1h", 3600, timedelta(hours=1)])
def test_every_form_of_a_deadline(memory_app: ignis.Ignis, given: Any) -> None:
    queue = memory_app.queue("jobs", str)
    before_ms = time.time() * 1000
    published = queue.publish("a", key="k", expires_in=given, headers={"tenant": "x"})
    assert published.pointer == 1
    (found,) = queue.main.peek()
    ends_ms = found.envelope.expires_at_ms
    assert ends_ms is not None and 3_590_000 < ends_ms - before_ms < 3_660_000
    assert found.envelope.headers == {"tenant": "x"}
    assert 3_590_000 < ends(memory_app)[0] - before_ms < 3_660_000


def test_coroutines_have_it_too(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", str, shards=1)

    async def publish() -> None:
        await queue.apublish("a", expires_in="1h")
        await queue.apublish_many(["b"], expires_at=datetime.now(timezone.utc) + timedelta(hours=1))
        await queue.apublish("c")

    asyncio.run(publish())
    dated = [one.envelope.expires_at_ms is not None for one in queue.main.peek()]
    assert dated == [True, True, False]
    assert [end > 0 for end in ends(memory_app)] == dated


def test_at_a_time_by_a_clock_of_the_tests() -> None:
    clock = ManualClock(start=1_600_000_000)
    with ignis.Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str, on_expiry="sideline")
        queue.handler(lambda body: None)
        at = datetime.fromtimestamp(1_600_000_060, timezone(timedelta(hours=5)))
        queue.publish_many(["a"], expires_at=at)
        clock.advance(59.9)
        assert drain(queue).done == 1
        queue.publish_many(["a"], expires_at=at)
        clock.advance(0.1)
        assert drain(queue) == Drained(sidelined=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"expires_at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 # that is the test
        ({"expires_at": "tomorrow"}, "not a datetime"),
        ({"expires_at": datetime(2999, 1, 1, tzinfo=timezone.utc)}, "100 years"),
        ({"expires_in": "soon"}, "duration"),
        ({"expires_in": 0}, "above 0"),
        ({"expires_in": -1}, "above 0"),
        ({"expires_in": float("nan")}, "above 0|number"),
        ({"expires_in": "40000w"}, r"expires_in = '40000w' is not above 0 and at most 36,500 days \(100 years\)"),
        ({"expires_in": 10**400}, r"expires_in = 1000.*\(401 characters\) is not above 0 and at most 36,500 days"),
        ({"expires_in": 1, "expires_at": LONG_AGO}, "not both"),
    ],
)
def test_wrong_deadlines_publish_nothing(memory_app: ignis.Ignis, options: dict[str, Any], why: str) -> None:
    queue = memory_app.queue("jobs", str)
    with pytest.raises(ConfigError, match=why):
        queue.publish("a", **options)
    with pytest.raises(ConfigError, match=why):
        queue.publish_many(["a"], **options)
    assert queue.main.pending() == 0


def test_the_shorter_of_two_times_to_live_holds() -> None:
    assert Deadline(1, 5.0).ttl_within(None) == 5.0
    assert Deadline(1, 5.0).ttl_within(3.0) == 3.0
    assert Deadline(1, 5.0).ttl_within(9.0) == 5.0
    assert Deadline(1, None).ttl_within(9.0) == 9.0


@pytest.mark.parametrize(
    "wrong", [Deadline("1", None), Deadline(True, None), Deadline(0, 1.0), Deadline(1, "1"), (1, None)]
)  # type: ignore[arg-type]
def test_what_is_no_deadline_is_refused(wrong: Any, memory_app: ignis.Ignis) -> None:
    magazine = memory_app.magazine("raw", bytes)
    for load in (lambda: magazine.load(b"x", deadline=wrong), lambda: magazine.load_many([b"x"], deadline=wrong)):
        with pytest.raises(ConfigError, match="is none: give expires_in"):
            load()
    assert magazine.pending() == 0


def test_the_limit_of_the_headers_is_about_the_headers() -> None:
    headers = {"a": "x" * 20}
    meta = encode_meta(headers, len(encode_meta(headers)), 1_600_000_000_000)
    assert msgspec.msgpack.decode(meta) == {"headers": headers, "expires_at_ms": 1_600_000_000_000}


def test_it_stays_the_first_entry_whatever_is_added() -> None:
    """Who handles messages looks there, and nowhere else."""
    record = encode_record(b"a", meta=encode_meta({"a": 1}, expires_at_ms=1_600_000_000_000))
    for _ in range(3):
        record = returned_record(failed_record(record, "exception", "E"), counted=True)
        assert has_deadline(Record(record).meta)
    assert Message.from_bytes(bare_record(record)).expires_at_ms == 1_600_000_000_000
    assert has_deadline(Record(bare_record(record)).meta)


def plain(queue: ignis.Queue[str], seen: list[Any]) -> None:
    queue.handler(seen.append)


def with_context(queue: ignis.Queue[str], seen: list[Any]) -> None:
    queue.handler(lambda body, ctx: seen.append(body))


def with_attempts(queue: ignis.Queue[str], seen: list[Any]) -> None:
    queue.handler(attempts=2)(seen.append)


def with_a_limit(queue: ignis.Queue[str], seen: list[Any]) -> None:
    queue.handler(timeout_s=30)(seen.append)


def in_batches(queue: ignis.Queue[str], seen: list[Any]) -> None:
    queue.handler(batch_size=3, batch_wait_s=1)(seen.extend)


def coroutine(queue: ignis.Queue[str], seen: list[Any]) -> None:
    async def handle(body: str) -> None:
        seen.append(body)

    queue.handler(handle)


def coroutine_in_batches(queue: ignis.Queue[str], seen: list[Any]) -> None:
    async def handle(bodies: list[str]) -> None:
        seen.extend(bodies)

    queue.handler(batch_size=3, batch_wait_s=1)(handle)


HANDLERS = [plain, with_context, with_attempts, with_a_limit, in_batches, coroutine, coroutine_in_batches]


@pytest.mark.parametrize("register", HANDLERS)
def test_no_worker_begins_with_what_expired(app: ignis.Ignis, register: Callable[..., None]) -> None:
    queue = app.queue("jobs", str, shards=1, on_expiry="sideline", shovel_interval=0)
    seen: list[Any] = []
    register(queue, seen)
    queue.publish("a")
    queue.publish("late", expires_at=LONG_AGO, headers={"h": 1})
    queue.publish("b", headers={"h": "expires_at_ms"})
    queue.publish("c", expires_in="1h")
    app.start()
    eventually(lambda: len(seen) == 3 and queue.sideline.pending() == 1)
    assert seen == ["a", "b", "c"]
    eventually(lambda: queue.stats()["consumer"].get("sidelined_expired") == 1)
    assert (
        'ignis_sidelined_total{queue="jobs",reason="expired"} 1.0' in Exposition(Collector(app.stats)).text().decode()
    )


def test_no_worker_process_begins_with_it(embedded_url: str, journal: Journal, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    queue = app.queue("jobs", str, shards=1, on_expiry="sideline", shovel_interval=0)
    queue.handler(pool="process")(long_work.note)
    queue.publish("late", expires_at=LONG_AGO)
    queue.publish("in time", expires_in="1h")
    app.start()
    eventually(lambda: queue.sideline.pending() == 1 and queue.main.in_flight() == queue.main.pending() == 0)
    assert journal.lines() == ["in time"]


def test_what_a_worker_meets_too_late_is_dropped_and_counted(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture
) -> None:
    """As it comes over a relay, which tells its store of no deadline, and where a worker was busy."""
    queue = memory_app.queue("jobs", bytes, shards=1)
    seen: list[bytes] = []
    queue.handler(seen.append)
    told: list[int] = []
    memory_app.after_handling(lambda name, handled, sidelined: told.append(handled + sidelined))
    late = encode_record(b"late", meta=encode_meta(None, expires_at_ms=1))
    memory_app.store.magazines.declare("jobs", 1)
    queue.open()
    queue.main.store.load_records("jobs", 0, [late], None)
    queue.publish(b"in time")
    memory_app.start()
    eventually(lambda: queue.stats()["consumer"]["overdue"] == 1 and seen)
    eventually(lambda: queue.main.in_flight() == 0)
    assert (seen, queue.sideline.pending()) == ([b"in time"], 0)
    eventually(lambda: queue.stats()["consumer"]["handled"] == 1)
    assert sum(told) == 1, "no handler had the other one"
    assert 'ignis_overdue_total{queue="jobs"} 1.0' in Exposition(Collector(memory_app.stats)).text().decode()
    assert any("deadline" in one.getMessage() for one in caplog.records)
    queue.stop(30)
    assert drain_of(memory_app, late) == Drained(dropped=1)


def drain_of(app: ignis.Ignis, record: bytes) -> Drained:
    app.stop()
    queue = app.queue("jobs")
    queue.main.store.load_records("jobs", 0, [record], None)
    return drain(queue)


def test_what_has_begun_is_handled_to_its_end() -> None:
    clock = ManualClock()
    with ignis.Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str, on_expiry="sideline")
        calls: list[int] = []

        @queue.handler(attempts=2)
        def handle(body: str, ctx: ignis.Context) -> None:
            calls.append(ctx.attempt)
            clock.advance(60)
            if ctx.attempt == 1:
                raise ValueError("once more")

        queue.publish("a", expires_in="1m")
        assert drain(queue) == Drained(done=1)
        assert calls == [1, 2]


def test_a_person_takes_the_deadline_off() -> None:
    with ignis.Ignis("memory://") as app:
        queue = app.queue("jobs", str, on_expiry="sideline")
        queue.handler(lambda body: None)
        queue.publish("late", expires_at=LONG_AGO)
        assert drain(queue) == Drained(sidelined=1)
        result = queue.shovel.run_scheduled()
        assert (result.moved, result.waiting) == (0, 1)
        assert queue.shovel.run_once().moved == 1
        (back,) = queue.main.peek()
        assert (back.envelope.reason, back.envelope.expires_at_ms) == ("expired", None)
        assert drain(queue) == Drained(done=1)


@pytest.mark.parametrize(
    "meta", [{"expires_at_ms": "soon"}, {"expires_at_ms": True}, {"headers": {"expires_at_ms": 1}}]
)
def test_what_is_no_deadline_ends_nothing(memory_app: ignis.Ignis, meta: dict[str, Any]) -> None:
    queue = memory_app.queue("jobs", bytes)
    seen: list[bytes] = []
    queue.handler(seen.append)
    queue.open()
    record = encode_record(b"a", meta=msgspec.msgpack.encode(meta))
    assert Record(record).meta
    unreadable = [b"\xc1\xadexpires_at_ms\x01", b"\x81\xadexpires_at_ms", b"\x81\xadexpires"]
    queue.main.store.load_records("jobs", 0, [record, *(encode_record(b"b", meta=one) for one in unreadable)], None)
    drain(queue)
    assert seen == [b"a", b"b", b"b", b"b"]


def test_wrong_settings(memory_app: ignis.Ignis) -> None:
    with pytest.raises(ConfigError, match="on_expiry"):
        memory_app.queue("jobs", str, on_expiry="forget")


def test_the_default_leaves_the_stored_queue_as_it_was(memory_app: ignis.Ignis) -> None:
    memory_app.queue("plain", str).open()
    memory_app.queue("aside", str, on_expiry="sideline").open()
    found = {record.name: record.extra for record in memory_app.store.queues.list()}
    assert "on_expiry" not in found["plain"]
    assert found["aside"]["on_expiry"] == "sideline"


@pytest.mark.parametrize("on_expiry", ["drop", "sideline"])
def test_who_publishes_through_a_relay_knows_the_setting(on_expiry: str) -> None:
    record = QueueRecord("jobs", shards=3)
    note_on_expiry(record, on_expiry)
    settings = settings_of(record)
    assert settings.get("on_expiry", "drop") == on_expiry
    assert settings_of(record, {"on_expiry"})["on_expiry"] == on_expiry
    label = Label(1, "jobs", "json", "ignis", "local", settings)
    assert Label.parse(label.encoded()).settings == settings
    assert record_of("jobs", {"queues": {"jobs": {**settings, "codec": "json"}}}) == record


@pytest.mark.parametrize("on_expiry", ["drop", "sideline"])
def test_a_retry_that_comes_too_late_is_not_made(on_expiry: str) -> None:
    clock = ManualClock()
    with ignis.Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str, on_expiry=on_expiry)
        calls: list[str] = []

        @queue.handler(retry=ignis.Retry(attempts=5, base="1m", jitter=False))
        def handle(body: str) -> None:
            calls.append(body)
            raise ValueError("not yet")

        queue.publish("a", expires_in="30s")
        drain(queue, raises=False)
        assert len(queue.later) == 1
        clock.advance(61)
        drain(queue, raises=False)
        assert (calls, len(queue.later), queue.main.pending()) == (["a"], 0, 0)
        aside = queue.sideline.peek()
        assert len(aside) == (on_expiry == "sideline")
        for one in aside:
            assert [attempt.reason for attempt in one.envelope.history] == ["exception", "expired"]
