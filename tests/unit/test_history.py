"""What a message's envelope keeps of the attempts that failed, whoever runs them, and what old and odd envelopes give."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ignis
from ignis.consumer.handler import HandlerSpec
from ignis.consumer.outcome import Failed
from ignis.consumer.runner import Runner
from ignis.control.redelivery import recover_owner
from ignis.errors import ConfigError
from ignis.history import (
    MAX_HISTORY_BYTES,
    MOST_ATTEMPT_BYTES,
    MOST_ATTEMPTS,
    Attempt,
    extended,
    parsed,
    trace_of,
    without_callers,
)
from ignis.message import BodyCodec, Message, encode_meta, failed_record
from ignis.native import CODEC_JSON, Record, encode_record
from tests.apps import jobs
from tests.support import Journal, eventually, sidelined, wait_idle

POOLS = ["thread", "async", "process"]
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "record.json").read_text(encoding="utf-8")
)["envelopes"]


def record(meta: bytes = b"") -> bytes:
    return encode_record(b'{"n": 1}', flags=CODEC_JSON, meta=meta)


@pytest.mark.parametrize("pool", POOLS)
def test_a_failure_says_when_why_where_and_who(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "jobs", pool)
    before_ms = time.time_ns() // 1_000_000
    queue.publish_many([{"n": 1, "do": "raise"}, {"n": 2, "do": "false"}])
    app.start()
    wait_idle(queue)
    raised, rejected = sidelined(queue)
    [attempt] = raised.history
    assert (attempt.reason, attempt.error) == ("exception", "RuntimeError: job 1 failed")
    assert "tests/apps/jobs.py" in attempt.trace
    assert attempt.trace.splitlines()[-1].strip() == """raise RuntimeError(f"job {job['n']} failed")"""
    assert "ignis/consumer/handler.py" not in attempt.trace
    assert "jobs" in attempt.worker
    assert before_ms <= attempt.at_ms <= time.time_ns() // 1_000_000
    assert attempt.took_ms is not None
    [attempt] = rejected.history
    assert (attempt.reason, attempt.error, attempt.trace) == ("rejected", "", "")
    assert attempt.took_ms is not None


@pytest.mark.parametrize("pool", POOLS)
def test_each_attempt_of_a_delivery_is_kept(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "again", pool)
    queue.publish({"n": 1, "good": 9})
    app.start()
    wait_idle(queue)
    [message] = sidelined(queue)
    assert [one.error for one in message.history] == [f"RuntimeError: attempt {n}" for n in (1, 2, 3)]
    assert message.failures == 1, "one delivery"


@pytest.mark.parametrize("pool", POOLS)
def test_batches_keep_a_history_for_each_message(app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(app, "batches", pool)
    queue.publish_many([{"n": n, "do": do} for n, do in enumerate(["none", "false", "true", "false", "none"])])
    app.start()
    wait_idle(queue)
    assert [[one.reason for one in message.history] for message in sidelined(queue)] == [["rejected"]] * 2


def test_the_handler_sees_what_went_before(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", dict, shovel_interval=0)
    seen: list[list[str]] = []

    @queue.handler
    def handle(message: Any, ctx: ignis.Context) -> None:
        seen.append([one.error for one in ctx.message.history])
        raise RuntimeError(f"delivery {len(seen)}")

    queue.publish({"n": 1})
    memory_app.start()
    for n in range(1, MOST_ATTEMPTS + 3):
        eventually(lambda: queue.sideline.pending() == 1 and len(seen) == n)  # noqa: B023
        queue.shovel.run_once()
    eventually(lambda: queue.sideline.pending() == 1 and len(seen) == MOST_ATTEMPTS + 3)
    assert seen[0] == []
    assert seen[2] == ["RuntimeError: delivery 1", "RuntimeError: delivery 2"]
    assert seen[-1] == [f"RuntimeError: delivery {n}" for n in range(3, MOST_ATTEMPTS + 3)], "the last eight"


def test_what_is_swept_names_the_owner_and_how_long_it_had_it(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", dict)
    queue.publish({"n": 1})
    app.store.magazines.fire("jobs", 1, "dead-one")
    assert recover_owner(app.store, "dead-one", "killed").sidelined == 1
    [message] = sidelined(queue)
    [attempt] = message.history
    assert (attempt.reason, attempt.worker) == ("abandoned", "dead-one")
    assert attempt.took_ms is not None


def test_a_retried_coroutine_counts_each_call_once() -> None:
    from ignis.consumer.handler import HandlerSpec
    from ignis.consumer.outcome import Failed, timed
    from ignis.consumer.runner import Runner
    from ignis.message import BodyCodec

    async def handle(message: Any) -> bool:
        await asyncio.sleep(0)
        return False

    runner = Runner(HandlerSpec(handle, "jobs", attempts=20), BodyCodec(dict), {})
    began_s = time.monotonic()
    outcome = timed(asyncio.run(runner.run_async(record())), began_s)
    assert isinstance(outcome, Failed)
    assert len(outcome.attempts) == MOST_ATTEMPTS
    assert all(one.took_ms is not None and one.took_ms >= 0 for one in outcome.attempts)


def test_a_retried_batch_keeps_the_calls_of_each_message() -> None:
    from ignis.consumer.handler import DROPPED, HandlerSpec
    from ignis.consumer.outcome import Failed, timed
    from ignis.consumer.runner import Runner
    from ignis.message import BodyCodec

    answers = iter([[None, False, False, False], [False, None, DROPPED], [False]])

    def handle(messages: list[Any]) -> Any:
        return next(answers)

    runner = Runner(HandlerSpec(handle, "jobs", attempts=3, batch_size=9), BodyCodec(dict), {})
    outcomes = [timed(one, time.monotonic()) for one in runner.run_batch([record()] * 4) or ()]
    assert (outcomes[0], outcomes[2], outcomes[3]) == (None, None, DROPPED)
    assert isinstance(outcomes[1], Failed)
    assert [one.reason for one in outcomes[1].attempts] == ["rejected"] * 3


# -- the envelope


def test_a_message_that_never_failed_has_no_history() -> None:
    assert Message.from_bytes(record()).history == ()
    assert b"history" not in record(encode_meta({"a": 1}))


def test_an_envelope_of_before_is_read_and_goes_on() -> None:
    """As this library wrote it when envelopes had no history."""
    old = record(msgspec.msgpack.encode({"reason": "timeout", "error": "slow", "failed_at_ms": 5, "handler": "h"}))
    assert Message.from_bytes(old).history == ()
    assert Message.from_bytes(old).reason == "timeout"
    again = Message.from_bytes(failed_record(old, "exception", "KeyError: 1", worker="w"))
    assert [(one.reason, one.error, one.worker) for one in again.history] == [("exception", "KeyError: 1", "w")]


@pytest.mark.parametrize("vector", VECTORS, ids=["with a history", "of before"])
def test_vectors(vector: dict[str, Any]) -> None:
    message = Message.from_bytes(bytes.fromhex(vector["record"]))
    found = {name: getattr(message, name) for name in ("headers", "reason", "error", "failed_at_ms")}
    assert found == {name: vector[name] for name in found}
    assert [list(one) for one in message.history] == vector["history"]


def test_its_bytes_are_bounded() -> None:
    long = Attempt(1 << 62, "r" * 999, "é" * 99_999, "\n".join(["x" * 80] * 9_999), "w" * 999, 1 << 62)
    data = record()
    for _ in range(20):
        data = failed_record(data, "exception", "", attempts=[long] * 3)
    stored = msgspec.msgpack.encode(Message.from_bytes(data).meta["history"])
    assert len(stored) <= MOST_ATTEMPTS * MOST_ATTEMPT_BYTES + 8 <= MAX_HISTORY_BYTES
    assert len(Message.from_bytes(data).history) == MOST_ATTEMPTS
    assert Message.from_bytes(data).history[-1].trace.endswith("x" * 80), "the innermost lines are kept"


ODD: dict[str, Any] = {
    "no list": {"a": 1},
    "text": "history",
    "entries": [1, None, "x", [], [1], ["late", "exception"], [-1, "exception"], [True, "exception"], [1, 2, 3]],
    "too many": [[n, "exception"] for n in range(100_000)],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_what_others_wrote_there_is_no_error(odd: Any) -> None:
    data = record(msgspec.msgpack.encode({"history": odd}))
    assert all(isinstance(one, Attempt) for one in Message.from_bytes(data).history)
    again = Message.from_bytes(failed_record(data, "exception", "E"))
    assert again.history[-1].error == "E"
    assert len(again.history) <= MOST_ATTEMPTS
    assert Record(failed_record(data, "exception", "E")).attempts == 1


def test_an_attempt_of_a_later_release_is_read() -> None:
    assert parsed([[7, "exception", "E", "T", "W", 3, "more", {"x": 1}]]) == (
        Attempt(7, "exception", "E", "T", "W", 3),
    )
    assert parsed([[7, "exception"]]) == (Attempt(7, "exception"),)
    assert extended([[7, "exception", "E", "T", "W", 3, "more"]], []) == [[7, "exception", "E", "T", "W", 3]]


def test_as_a_document() -> None:
    shown = Message.from_bytes(failed_record(record(), "exception", "E", worker="w", took_ms=4)).as_dict()
    [attempt] = shown["history"]
    assert attempt == {
        "at_ms": attempt["at_ms"], "reason": "exception", "error": "E", "trace": "", "worker": "w", "took_ms": 4,
    }  # fmt: skip


def test_the_frames_of_middleware_do_not_push_out_the_users_own() -> None:
    async def layer(ctx: Any, call_next: Any) -> Any:
        return await call_next(ctx)

    async def handle(message: Any) -> None:
        raise RuntimeError("no")

    spec = HandlerSpec(handle, "jobs", middleware=[layer] * 4)
    outcome = asyncio.run(Runner(spec, BodyCodec(dict), {}).run_async(encode_record(b"{}", flags=CODEC_JSON)))
    assert isinstance(outcome, Failed)
    trace = outcome.attempts[0].trace
    assert trace.count("in layer") == 4
    assert trace.rstrip().endswith('raise RuntimeError("no")')


@pytest.mark.parametrize("how", ["plain", "timeout", "coroutine", "coroutine with a time-out"])
def test_a_trace_begins_with_the_handler(memory_app: ignis.Ignis, how: str) -> None:
    """The bytes that it has are for the user's frames."""
    queue = memory_app.queue("jobs", int, shovel_interval=0)
    options: dict[str, Any] = {"timeout_s": 30} if "time" in how else {}

    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("deep")

    async def handle_async(n: int) -> None:
        deep(n)

    def handle(n: int) -> None:
        deep(n)

    queue.handler(**options)(handle_async if "coroutine" in how else handle)
    queue.publish(1)
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 1)
    [message] = queue.sideline.peek(1)
    frames = re.findall(r"in (\w+)$", message.envelope.history[-1].trace, re.MULTILINE)
    assert frames == ["handle_async" if "coroutine" in how else "handle", "deep", "deep"]


def test_a_trace_of_ours_alone_is_kept() -> None:
    with pytest.raises(ConfigError) as raised:
        ignis.Retry(attempts=0)
    trace = raised.tb
    assert without_callers(trace) is trace, "the user's call is the first"
    assert without_callers(trace.tb_next) is trace.tb_next
    assert trace_of(raised.value.with_traceback(trace.tb_next))
