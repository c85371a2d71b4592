"""Failed messages that are tried again, on both stores: how often, when, in which order, and where they end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

import ignis
from ignis import Failure, Retry, RetryLater
from ignis.consumer.outcome import Failed
from ignis.consumer.retrying import Decision, Moment, Retrying
from ignis.errors import DelayNotSupportedError, StoreFullError
from ignis.message import failed_record
from ignis.native import encode_record
from ignis.retries import NEVER, retry_rules
from ignis.storage.base import Transfer
from ignis.storage.later import KeepsLater
from ignis.testing import Drained, ManualClock, drain
from tests.support import UNREADABLE_METAS, WAIT_S, eventually, one_store, sidelined
from tests.unit.test_consumer import publish_body

AT_ONCE = Retry(attempts=3, base=0)
ANY = {"shards": 1, "shovel_interval": 0}


def consumed(queue: ignis.Queue[Any], name: str) -> int:
    return int(queue.stats()["consumer"][name])


class Recorder:
    """A handler that fails for a message until the attempt that the message names, and notes what it was told."""

    def __init__(self, error: type[BaseException] = RuntimeError) -> None:
        self.seen: list[tuple[str, int, str | None]] = []
        self._error = error

    def __call__(self, job: str, ctx: ignis.Context) -> None:
        self.seen.append((job, ctx.attempt, ctx.last_error))
        name, _, good_at = job.partition(":")
        if ctx.attempt < int(good_at or 1):
            raise self._error(f"{name} at {ctx.attempt}")

    async def awaited(self, job: str, ctx: ignis.Context) -> None:
        await asyncio.sleep(0)
        self(job, ctx)


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("coroutine", [False, True])
def test_a_message_is_tried_again_until_it_works(app: ignis.Ignis, coroutine: bool, middleware: bool) -> None:
    queue = app.queue("jobs", str, **ANY)
    handle = Recorder()
    queue.handler(retry=AT_ONCE)(handle.awaited if coroutine else handle)
    if middleware:

        @queue.middleware
        async def around(ctx: ignis.Context, call_next: Any) -> Any:
            return await call_next(ctx)

    queue.publish("a:3", key="k", headers={"of": "mine"})
    queue.publish("b", key="k")
    app.start()
    eventually(lambda: consumed(queue, "handled") == 2)
    assert [one for one in handle.seen if one[0] == "a:3"] == [
        ("a:3", 1, None),
        ("a:3", 2, "RuntimeError: a at 1"),
        ("a:3", 3, "RuntimeError: a at 2"),
    ]
    assert [one for one in handle.seen if one[0] == "b"] == [("b", 1, None)]
    assert (consumed(queue, "retried"), consumed(queue, "sidelined")) == (2, 0)
    assert sidelined(queue) == []


@pytest.mark.parametrize("coroutine", [False, True])
@one_store()
def test_after_the_last_attempt_it_is_in_the_sideline_with_its_history(app: ignis.Ignis, coroutine: bool) -> None:
    queue = app.queue("jobs", str, **ANY)
    handle = Recorder()
    queue.handler(retry=AT_ONCE)(handle.awaited if coroutine else handle)
    queue.publish("a:9", headers={"of": "mine"})
    app.start()
    (message,) = eventually(lambda: sidelined(queue))
    assert [attempt for _, attempt, _ in handle.seen] == [1, 2, 3]
    assert (message.failures, message.reason, message.error) == (3, "exception", "RuntimeError: a at 3")
    assert [one.error for one in message.history] == [f"RuntimeError: a at {n}" for n in (1, 2, 3)]
    assert all("in __call__" in one.trace and one.worker and one.took_ms is not None for one in message.history)
    assert (message.given_up, message.headers) == (True, {"of": "mine"})
    eventually(lambda: consumed(queue, "sidelined") == 1)  # counted behind the transfer
    assert (consumed(queue, "retried"), consumed(queue, "sidelined_exception")) == (2, 1)


@pytest.mark.parametrize("coroutine", [False, True])
@one_store()
def test_of_a_batch_each_failed_message_is_tried_again(app: ignis.Ignis, coroutine: bool) -> None:
    queue = app.queue("jobs", str, **ANY)
    seen: list[list[tuple[str, int]]] = []

    def handle(jobs: list[str], ctx: ignis.Context) -> list[Any]:
        seen.append([(job, message.attempt) for job, message in zip(jobs, ctx.messages, strict=True)])
        assert ctx.attempt == ctx.messages[0].attempt
        return [
            message.attempt >= int(job.partition(":")[2] or 1) or Failure("rejected", f"{job} at {message.attempt}")
            for job, message in zip(jobs, ctx.messages, strict=True)
        ]

    async def awaited(jobs: list[str], ctx: ignis.Context) -> list[Any]:
        await asyncio.sleep(0)
        return handle(jobs, ctx)

    queue.handler(retry=AT_ONCE, batch_size=4, batch_wait_s=1)(awaited if coroutine else handle)
    queue.publish_many(["a", "b:2", "c:3", "d:9"])
    app.start()
    (message,) = eventually(lambda: sidelined(queue))
    eventually(lambda: consumed(queue, "handled") == 3)
    assert sorted(one for batch in seen for one in batch) == [
        ("a", 1), ("b:2", 1), ("b:2", 2), ("c:3", 1), ("c:3", 2), ("c:3", 3), ("d:9", 1), ("d:9", 2), ("d:9", 3),
    ]  # fmt: skip
    assert message.body == b"d:9"
    assert [(one.reason, one.error) for one in message.history] == [("rejected", f"d:9 at {n}") for n in (1, 2, 3)]


def test_a_batch_that_raises_fails_each_by_its_own_count(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, **ANY)
    seen: list[list[tuple[str, int]]] = []

    def handle(jobs: list[str], ctx: ignis.Context) -> None:
        seen.append([(job, message.attempt) for job, message in zip(jobs, ctx.messages, strict=True)])
        raise RuntimeError("whole")

    queue.handler(retry=Retry(attempts=2, base=0), batch_size=2, batch_wait_s=1)(handle)
    queue.publish_many(["a", "b"])
    app.start()
    eventually(lambda: len(sidelined(queue)) == 2)
    assert sorted(one for batch in seen for one in batch) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_a_poison_message_does_not_hold_up_the_others(app: ignis.Ignis) -> None:
    """By the order of the calls: it comes again behind all that waited when it failed."""
    queue = app.queue("jobs", str, **ANY)
    handle = Recorder()
    queue.handler(concurrency=1, retry=AT_ONCE)(handle)
    good = [f"good {n}" for n in range(100)]
    queue.publish("poison:9", key="k")
    queue.publish_many(good, keys=["k"] * 100)
    app.start()
    eventually(lambda: sidelined(queue))
    eventually(lambda: consumed(queue, "handled") == 100)
    calls = [(job, attempt) for job, attempt, _ in handle.seen]
    assert calls[:101] == [("poison:9", 1), *((job, 1) for job in good)]
    assert calls[101:] == [("poison:9", 2), ("poison:9", 3)]


# -- when


def clocked(policy: Any, handle: Any) -> tuple[ManualClock, ignis.Ignis, ignis.Queue[str]]:
    clock = ManualClock(start=1_600_000_000)
    app = ignis.Ignis("memory://", clock=clock)
    queue = app.queue("jobs", str, **ANY)
    queue.handler(retry=policy)(handle)
    return clock, app, queue


def test_each_wait_is_as_long_as_the_policy_says() -> None:
    handle = Recorder()
    clock, app, queue = clocked(Retry(attempts=4, base="10s", factor=3, max="50s", jitter=False), handle)
    with app:
        queue.publish("a:9")
        assert drain(queue) == Drained(retried=1)
        for wait_s in (10, 30, 50):
            assert drain(queue) == Drained()
            due = queue.later.next_due()
            assert due is not None and due.timestamp() == clock() + wait_s
            clock.advance(wait_s - 0.001)
            assert drain(queue) == Drained()
            clock.advance(0.001)
            if wait_s < 50:
                assert drain(queue) == Drained(retried=1)
        with pytest.raises(RuntimeError, match="a at 4"):
            drain(queue)
        assert len(sidelined(queue)) == 1


def test_after_a_restart_with_fewer_attempts_what_waits_is_tried_once_more() -> None:
    clock = ManualClock(start=1_600_000_000)
    with ignis.Ignis("memory://fewer-attempts", clock=clock) as app:
        queue = app.queue("jobs", str, **ANY)
        queue.handler(retry=Retry(attempts=9, base="10s", factor=1, jitter=False))(Recorder())
        queue.publish("a:9")
        for _ in range(3):
            assert drain(queue) == Drained(retried=1)
            clock.advance(10)
    with ignis.Ignis("memory://fewer-attempts", clock=clock) as app:
        queue = app.queue("jobs", str, **ANY)
        handle = Recorder()
        queue.handler(retry=Retry(attempts=2))(handle)
        assert drain(queue, raises=False) == Drained(sidelined=1)
        assert handle.seen == [("a:9", 4, "RuntimeError: a at 3")]
        (message,) = sidelined(queue)
        assert (message.failures, message.given_up) == (4, True)


def test_with_jitter_it_comes_between_half_of_the_wait_and_all_of_it() -> None:
    handle = Recorder()
    clock, app, queue = clocked(Retry(base="10s"), handle)
    with app:
        queue.publish_many(["a:2"] * 200)
        assert drain(queue) == Drained(retried=200)
        dues = [(one.due.timestamp() - clock()) for one in queue.later.list(1_000)]
        assert 5 <= min(dues) < max(dues) <= 10


def test_a_handler_asks_for_its_own_time() -> None:
    asked: list[BaseException] = [
        RetryLater("30s", "closed"),
        RetryLater(at=datetime.fromtimestamp(1_600_003_600, timezone.utc)),
        RetryLater(timedelta(0)),
    ]

    def handle(job: str, ctx: ignis.Context) -> None:
        if asked:
            raise asked.pop(0)

    clock, app, queue = clocked(Retry(attempts=4, on=ValueError), handle)
    with app:
        queue.publish("a")
        assert drain(queue) == Drained(retried=1)
        due = queue.later.next_due()
        assert due is not None and due.timestamp() == clock() + 30
        clock.advance(30)
        assert drain(queue) == Drained(retried=1)
        due = queue.later.next_due()
        assert due is not None and due.timestamp() == 1_600_003_600
        (waiting,) = queue.later.list()
        assert waiting.message is not None
        assert waiting.message.history[0].error == "RetryLater: in 30 s: closed"
        clock.advance(3600)
        assert drain(queue) == Drained(done=1, retried=1)


def test_each_of_its_requests_is_an_attempt() -> None:
    def handle(job: str) -> None:
        raise RetryLater(0)

    _, app, queue = clocked(Retry(attempts=5), handle)
    with app:
        queue.publish("a")
        assert drain(queue, raises=False) == Drained(retried=4, sidelined=1)
        (message,) = sidelined(queue)
        assert (message.failures, len(message.history), message.given_up) == (5, 5, True)


@pytest.mark.parametrize("options", [{}, {"attempts": 3}, {"timeout_s": WAIT_S}, {"ignore": Exception}], ids=str)
@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("policy", [False, True])
def test_a_returned_request_is_one_too(
    app: ignis.Ignis, caplog: pytest.LogCaptureFixture, policy: bool, coroutine: bool, options: dict[str, Any]
) -> None:
    """It counted as done, and the message was gone."""
    if policy and "attempts" in options:
        return  # refused
    queue = app.queue("jobs", str, **ANY)
    seen: list[tuple[int, str | None]] = []

    def handle(job: str, ctx: ignis.Context) -> Any:
        seen.append((ctx.attempt, ctx.last_error))
        return RetryLater(0, "not yet") if ctx.attempt < 3 else None

    async def awaited(job: str, ctx: ignis.Context) -> Any:
        await asyncio.sleep(0)
        return handle(job, ctx)

    queue.handler(**options, **({"retry": AT_ONCE} if policy else {}))(awaited if coroutine else handle)
    queue.publish("a")
    app.start()
    eventually(lambda: consumed(queue, "handled") == 1)
    why = "RetryLater: in 0 s: not yet"
    assert seen == [(1, None), (2, why), (3, why)]
    assert (consumed(queue, "retried"), sidelined(queue)) == (2, [])
    assert not [one for one in caplog.records if one.name == "ignis.consumer.handler"]


def test_returned_requests_are_used_up_as_raised_ones_are() -> None:
    _, app, queue = clocked(Retry(attempts=3), lambda job: RetryLater(0))
    with app:
        queue.publish("a")
        assert drain(queue, raises=False) == Drained(retried=2, sidelined=1)
        (message,) = sidelined(queue)
        assert (message.failures, message.given_up, message.reason) == (3, True, "exception")


@pytest.mark.parametrize("options", [{}, {"retry": AT_ONCE}, {"timeout_s": WAIT_S}, {"ignore": Exception}], ids=str)
@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("raised", [False, True])
def test_a_request_that_does_not_count_uses_up_nothing(
    app: ignis.Ignis, caplog: pytest.LogCaptureFixture, raised: bool, coroutine: bool, options: dict[str, Any]
) -> None:
    """A handler that waits for its share of a rate would lose its message to the sideline after eight."""
    queue = app.queue("jobs", str, **ANY)
    seen: list[tuple[int, int, str | None]] = []

    def handle(job: str, ctx: ignis.Context) -> Any:
        seen.append((ctx.attempt, ctx.message.failures, ctx.last_error))
        if len(seen) > 20:
            return None
        asked = RetryLater(0, "no budget", counts=False)
        if raised:
            raise asked
        return asked

    async def awaited(job: str, ctx: ignis.Context) -> Any:
        await asyncio.sleep(0)
        return handle(job, ctx)

    queue.handler(**options)(awaited if coroutine else handle)
    queue.publish("a")
    app.start()
    eventually(lambda: consumed(queue, "handled") == 1)
    assert seen == [(1, 0, None), *[(1, 0, "RetryLater: in 0 s: no budget")] * 20]
    assert (consumed(queue, "retried"), sidelined(queue)) == (20, [])
    assert not [one for one in caplog.records if one.name == "ignis.consumer.handler"]


def test_among_attempts_a_request_that_does_not_count_stands_beside_them(app: ignis.Ignis) -> None:
    """The failures are counted on, and their history is what it was."""
    queue = app.queue("jobs", str, **ANY)
    calls: list[int] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) % 3:
            raise RetryLater(0, counts=False)
        raise ValueError(f"attempt {ctx.attempt}")

    queue.handler(retry=AT_ONCE)(handle)
    queue.publish("a", headers={"of": "mine"})
    assert drain(queue, raises=False) == Drained(retried=8, sidelined=1)
    assert calls == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    (message,) = sidelined(queue)
    assert (message.failures, message.given_up, message.headers) == (3, True, {"of": "mine"})
    assert [one.error for one in message.history] == [f"ValueError: attempt {n}" for n in (1, 2, 3)]


def test_calls_before_a_request_that_does_not_count_do(app: ignis.Ignis) -> None:
    """Of ``attempts``, in one delivery."""
    queue = app.queue("jobs", str, **ANY)
    seen: list[tuple[int, list[str]]] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        seen.append((ctx.attempt, [one.error for one in ctx.message.history]))
        if len(seen) == 1:
            raise ValueError("call 1")
        if len(seen) == 2:
            raise RetryLater(0, counts=False)

    queue.handler(attempts=2)(handle)
    queue.publish("a")
    assert drain(queue) == Drained(retried=1, done=1)
    assert seen == [(1, []), (2, []), (2, ["ValueError: call 1"])]


def test_of_a_batch_each_message_says_whether_it_counts(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, **ANY)
    seen: list[list[tuple[str, int]]] = []

    def handle(jobs: list[str], ctx: ignis.Context) -> Any:
        seen.append([(job, message.attempt) for job, message in zip(jobs, ctx.messages, strict=True)])
        if len(seen) > 1:
            return None
        return [RetryLater(0, counts=job == "b") for job in jobs]

    queue.handler(batch_size=2)(handle)
    queue.publish_many(["a", "b"], key=lambda job: "k")
    assert drain(queue) == Drained(retried=2, done=2)
    assert seen == [[("a", 1), ("b", 1)], [("a", 1), ("b", 2)]]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("coroutine", [False, True])
def test_messages_of_a_batch_ask_for_their_own_time(coroutine: bool, whole: bool) -> None:
    clock = ManualClock(1_600_000_000)
    app = ignis.Ignis("memory://", clock=clock)
    queue = app.queue("jobs", str, **ANY)

    def handle(jobs: list[str], ctx: ignis.Context) -> Any:
        if whole:
            return RetryLater("30s") if ctx.attempt == 1 else None
        first = [message.attempt == 1 for message in ctx.messages]
        return [RetryLater(int(job)) if new and job.isdigit() else None for job, new in zip(jobs, first, strict=True)]

    async def awaited(jobs: list[str], ctx: ignis.Context) -> Any:
        return handle(jobs, ctx)

    queue.handler(batch_size=4, batch_wait_s=1)(awaited if coroutine else handle)
    with app:
        queue.publish_many(["done", "30", "60"])
        assert drain(queue) == (Drained(retried=3) if whole else Drained(done=1, retried=2))
        dues = [one.due.timestamp() - clock() for one in queue.later.list()]
        assert dues == ([30, 30, 30] if whole else [30, 60])
        clock.advance(60)
        assert drain(queue).done == len(dues)


@pytest.mark.parametrize("ignore", [(), Exception])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_handler_without_a_policy_may_ask(app: ignis.Ignis, attempts: int, ignore: Any) -> None:
    """Up to eight attempts in all, and neither ``ignore`` nor ``attempts`` come before it."""
    queue = app.queue("jobs", str, **ANY)
    calls: list[int] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        calls.append(ctx.attempt)
        raise RetryLater(0)

    queue.handler(attempts=attempts, ignore=ignore)(handle)
    queue.publish("a")
    assert drain(queue, raises=False) == Drained(retried=7, sidelined=1)
    assert calls == list(range(1, 9))


def test_calls_in_one_delivery_count_too(app: ignis.Ignis) -> None:
    """Of ``attempts``, before the handler asks."""
    queue = app.queue("jobs", str, **ANY)
    seen: list[tuple[int, str | None]] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        seen.append((ctx.attempt, ctx.last_error))
        if len(seen) in (1, 3):
            raise ValueError(f"call {len(seen)}")
        if len(seen) == 2:
            raise RetryLater(0)

    queue.handler(attempts=2)(handle)
    queue.publish("a")
    assert drain(queue) == Drained(retried=1, done=1)
    assert seen == [(1, None), (2, "ValueError: call 1"), (3, "RetryLater: in 0 s"), (4, "ValueError: call 3")]


# -- what is tried again


@pytest.mark.parametrize(
    ("policy", "failing", "calls", "reason"),
    [
        (Retry(3, 0, on=ValueError), ValueError("x"), 3, "exception"),
        (Retry(3, 0, on=ValueError), KeyError("x"), 1, "exception"),
        (Retry(3, 0, give_up_on=(ValueError, OSError)), TimeoutError("x"), 1, "exception"),
        (Retry(3, 0, give_up_on=(ValueError, OSError)), KeyError("x"), 3, "exception"),
        (Retry(3, 0), SystemExit(1), 3, "exception"),
        (Retry(3, 0, on=Exception), SystemExit(1), 1, "exception"),
        ({TimeoutError: Retry(4, 0), ValueError: None}, TimeoutError("x"), 4, "exception"),
        ({Exception: Retry(4, 0), ValueError: None}, UnicodeError("x"), 1, "exception"),
        ({TimeoutError: Retry(4, 0)}, False, 1, "rejected"),
        ({Exception: Retry(4, 0)}, False, 4, "rejected"),
        (Retry(3, 0), False, 3, "rejected"),
        (Retry(3, 0, on=ValueError), False, 1, "rejected"),
        (Retry(1), ValueError("x"), 1, "exception"),
    ],
)
@pytest.mark.parametrize("coroutine", [False, True])
def test_which_failures(
    memory_app: ignis.Ignis, coroutine: bool, policy: Any, failing: Any, calls: int, reason: str
) -> None:
    queue = memory_app.queue("jobs", str, **ANY)
    seen: list[str] = []

    def handle(job: str) -> Any:
        seen.append(job)
        if isinstance(failing, BaseException):
            raise failing
        return failing

    async def awaited(job: str) -> Any:
        return handle(job)

    queue.handler(retry=policy)(awaited if coroutine else handle)
    queue.publish("a")
    assert drain(queue, raises=False) == Drained(retried=calls - 1, sidelined=1)
    assert len(seen) == calls
    (message,) = sidelined(queue)
    assert (message.reason, message.failures, message.given_up) == (reason, calls, True)


@pytest.mark.parametrize("options", [{}, {"timeout_s": WAIT_S}, {"batch_size": 2, "batch_wait_s": 1}], ids=str)
@pytest.mark.parametrize("coroutine", [False, True])
@one_store()
def test_the_exception_decides_in_every_worker(app: ignis.Ignis, coroutine: bool, options: dict[str, Any]) -> None:
    queue = app.queue("jobs", str, **ANY)

    def handle(jobs: Any) -> None:
        raise ValueError if "value" in str(jobs) else KeyError

    async def awaited(jobs: Any) -> None:
        handle(jobs)

    queue.handler(retry={ValueError: AT_ONCE, LookupError: None}, **options)(awaited if coroutine else handle)
    app.start()
    for job, failures in (("value", 3), ("key", 1)):
        queue.publish(job)
        (message,) = eventually(lambda job=job: [one for one in sidelined(queue) if one.body == job.encode()])
        assert message.failures == failures


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_time_out_is_a_timeout_error(app: ignis.Ignis, coroutine: bool) -> None:
    queue = app.queue("jobs", str, **ANY)
    release = threading.Event()
    attempts: list[int] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            release.wait(WAIT_S)

    async def awaited(job: str, ctx: ignis.Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.sleep(WAIT_S)

    queue.handler(retry={TimeoutError: AT_ONCE}, timeout_s=0.2)(awaited if coroutine else handle)
    queue.publish("a")
    try:
        app.start()
        eventually(lambda: consumed(queue, "handled") == 1)
    finally:
        release.set()
    assert attempts == [1, 2]
    assert consumed(queue, "retried") == 1


def test_what_cannot_be_read_is_not_tried_again(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", dict, **ANY)
    queue.handler(retry=AT_ONCE)(lambda job: None)
    publish_body(queue, b"{not json")
    app.start()
    (message,) = eventually(lambda: sidelined(queue))
    assert (message.reason, message.failures, message.given_up) == ("unreadable", 1, False)
    assert consumed(queue, "retried") == 0


@pytest.mark.parametrize("meta", UNREADABLE_METAS.values(), ids=UNREADABLE_METAS.keys())
def test_what_cannot_be_counted_is_not_tried_again(app: ignis.Ignis, meta: bytes) -> None:
    queue = app.queue("jobs", bytes, **ANY)
    seen: list[tuple[int, str | None]] = []

    def handle(body: bytes, ctx: ignis.Context) -> None:
        seen.append((ctx.attempt, ctx.last_error))
        raise ValueError

    queue.handler(retry=AT_ONCE)(handle)
    queue.main.store.load_records("jobs", 0, [encode_record(b"a", meta=meta)])
    app.start()
    (message,) = eventually(lambda: sidelined(queue))
    assert (message.reason, message.failures) == ("unreadable", 1)
    assert seen == [(1, None)]


def test_a_count_that_a_publisher_made_up_is_bounded(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", bytes, **ANY)
    calls: list[int] = []

    def handle(body: bytes, ctx: ignis.Context) -> None:
        calls.append(ctx.attempt)
        raise ValueError

    queue.handler(retry=AT_ONCE)(handle)
    queue.open()
    for tried in (-5, "3", True, 1 << 62):
        meta = msgspec.msgpack.encode({"tried": tried})
        queue.main.store.load_records("jobs", 0, [encode_record(b"a", meta=meta)])
        drain(queue, raises=False)
    assert calls == [1, 2, 3] * 3 + [(1 << 62) + 1]


# -- stores that cannot


def test_a_store_that_keeps_none_refuses_the_handler(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", str, **ANY)
    queue.handler(retry=AT_ONCE)(lambda job: None)
    monkeypatch.setattr(type(app.store.magazines), "keeps_later", False)
    queue.publish("a")
    for start in (app.start, queue.start):
        with pytest.raises(DelayNotSupportedError, match=r"queue 'jobs' has a retry.*leave retry out.*embedded"):
            start()
    assert queue.stats()["pending"] == 1
    late = app.queue("late", str)
    late.open()
    with pytest.raises(DelayNotSupportedError, match="queue 'late'"):
        late.handler(retry=AT_ONCE)(lambda job: None)
    assert late.spec is None
    late.handler(lambda job: None)


def test_on_such_a_store_what_asks_goes_to_the_sideline(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", str, **ANY)

    def handle(job: str) -> None:
        raise RetryLater("1s")

    queue.handler(handle)
    queue.publish("a")
    kind = type(app.store.magazines)
    monkeypatch.setattr(kind, "keeps_later", False)
    monkeypatch.setattr(kind, "defer", KeepsLater.defer)
    assert drain(queue, raises=False) == Drained(sidelined=1)
    (message,) = sidelined(queue)
    assert (message.error, message.given_up) == ("RetryLater: in 1 s", False), "the shovel's schedule brings it back"


# -- who uses none


def test_without_a_policy_the_record_is_what_it_was(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", str, **ANY)
    queue.handler(lambda job: False)
    queue.publish("a")
    drain(queue)
    (message,) = sidelined(queue)
    assert set(message.meta) == {"reason", "error", "failed_at_ms", "handler", "history"}


@pytest.mark.parametrize("policy", [None, AT_ONCE])
def test_the_loop_in_c_is_used_with_and_without(memory_app: ignis.Ignis, policy: Any) -> None:
    queue = memory_app.queue("jobs", str, **ANY)
    queue.handler(retry=policy)(lambda job, ctx: None)
    assert queue.spec is not None
    assert queue.make_runner(queue.spec).direct is not None


def test_nothing_is_decided_without_a_policy(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", str, **ANY)
    queue.open()
    now = Moment(memory_app.store)
    decide = Retrying(queue.context(), None).decide
    assert decide(Failure("exception", "x"), b"not looked at", now) == Decision()
    assert decide(Failed.of("exception", "x", again=NEVER), encode_record(b"a"), now) == Decision(
        None, 1, given_up=True
    )
    ruled = Retrying(queue.context(), retry_rules(AT_ONCE, {})).decide
    for reason in ("unreadable", "expired", "cancelled"):
        assert ruled(Failure(reason, "x"), encode_record(b"a"), now) == Decision()
    assert ruled(Failure("exception", "x"), b"no record", now) == Decision()


# -- the sideline behind it


def test_what_a_policy_gave_up_waits_for_a_person_and_begins_anew() -> None:
    handle = Recorder()
    clock = ManualClock()
    with ignis.Ignis("memory://", clock=clock) as app:
        queue = app.queue("jobs", str, shards=1, shovel_interval="10m")
        queue.handler(retry=AT_ONCE)(handle)
        queue.publish("a:9")
        assert drain(queue, raises=False) == Drained(retried=2, sidelined=1)
        clock.advance(86_400)
        assert drain(queue) == Drained()
        assert queue.shovel.stats()["waiting"] == 1
        assert queue.shovel.run_once().moved == 1
        assert drain(queue, raises=False) == Drained(retried=2, sidelined=1)
        (message,) = sidelined(queue)
    assert [attempt for _, attempt, _ in handle.seen] == [1, 2, 3, 1, 2, 3]
    assert (message.failures, message.returns, len(message.history)) == (6, 0, 6)


def test_what_a_sweep_took_goes_on_where_it_was(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, **ANY)
    handle = Recorder()
    queue.handler(retry=AT_ONCE)(handle)
    queue.publish("a:9")
    queue.open()
    (claim,) = queue.main.store.fire("jobs", 1, "somebody").claims
    record = claim.records[0]
    assert record is not None
    swept = failed_record(failed_record(record, "exception", "x", tried=1), "abandoned", "y", crashed=True)
    queue.main.store.transfer("jobs", queue.sideline.name, [Transfer(0, claim.pointers[0], swept, 0)])
    assert queue.shovel.run_scheduled().moved == 1
    assert drain(queue, raises=False) == Drained(retried=1, sidelined=1)
    assert [attempt for _, attempt, _ in handle.seen] == [2, 3]


# -- a full store


def test_what_a_full_store_refuses_stays_claimed_and_comes_later(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = app.queue("jobs", str, **ANY)
    handle = Recorder()
    queue.handler(retry=AT_ONCE)(handle)
    queue.publish_many(["a:2", "b:2", "c:9"])
    kind = type(app.store.magazines)
    whole, refusals = kind.defer, [0]

    def defer(self: Any, magazine: str, items: Any, dues_ms: Any, **options: Any) -> int:
        if refusals[0] < 12:
            refusals[0] += 1
            raise StoreFullError("no room")
        return whole(self, magazine, items, dues_ms, **options)

    monkeypatch.setattr(kind, "defer", defer)
    app.start()
    (message,) = eventually(lambda: sidelined(queue))
    eventually(lambda: consumed(queue, "handled") == 2)
    assert refusals == [12]
    assert message.body == b"c:9"
    assert Counter(job for job, _, _ in handle.seen) == {"a:2": 2, "b:2": 2, "c:9": 3}


# -- what it says


def test_what_is_tried_again_is_a_warning_and_the_last_an_error(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = memory_app.queue("jobs", str, **ANY)
    queue.handler(retry=Retry(2, 0))(Recorder())
    queue.publish("a:9")
    with caplog.at_level(logging.INFO, "ignis.consumer.handler"):
        drain(queue, raises=False)
    assert [(one.levelname, one.getMessage().partition("; ")[2]) for one in caplog.records] == [
        ("WARNING", "it is tried again"),
        ("ERROR", "the message goes to the sideline"),
    ]


def test_what_was_asked_for_is_no_trouble(memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    queue = memory_app.queue("jobs", str, **ANY)

    def handle(job: str, ctx: ignis.Context) -> None:
        if ctx.attempt < 3:
            raise RetryLater(0)

    queue.handler(handle)
    queue.publish("a")
    with caplog.at_level(logging.INFO, "ignis.consumer.handler"):
        assert drain(queue) == Drained(done=1, retried=2)
    assert not caplog.records


def test_many_workers_and_failures_lose_nothing(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=4, shovel_interval=0)
    handle = Recorder()
    queue.handler(concurrency=4, retry=Retry(4, base=0.001, max=0.01))(handle)
    wanted = {f"{n}:{n % 4 + 1}" for n in range(400)}
    app.start()
    queue.publish_many(sorted(wanted))
    eventually(lambda: consumed(queue, "handled") == 400)
    assert Counter(job for job, _, _ in handle.seen) == {job: int(job.partition(":")[2]) for job in wanted}
    assert consumed(queue, "retried") == sum(n % 4 for n in range(400))
    assert len(queue.later) == 0
