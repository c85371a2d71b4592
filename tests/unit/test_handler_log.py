"""A failing handler is seen in the log, at a bounded rate, and so is an answer that means nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import ignis
from ignis.consumer.handler import HandlerSpec
from ignis.consumer.handler_log import FailureTold, HandlerLog
from ignis.consumer.outcome import Failure, batch_outcomes
from ignis.consumer.runner import Runner
from ignis.hooks import log_safely
from ignis.log_limit import LogLimit
from ignis.message import BodyCodec
from ignis.native import CODEC_JSON, encode_record
from tests.apps import jobs
from tests.support import Journal, eventually, sidelined, wait_idle

POOLS = ["thread", "async", "process"]


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == "ignis.consumer.handler"]


def text_of(one: logging.LogRecord) -> str:
    return logging.Formatter().format(one)


@pytest.mark.parametrize("name", ["jobs", "batches"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_raises_is_logged_with_its_traceback(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str, name: str
) -> None:
    queue = jobs.register(memory_app, name, pool)
    ids = queue.publish_many([{"n": n, "do": "raise", "whole": "raise"} for n in range(20)])
    memory_app.start()
    wait_idle(queue)
    [one] = [one for one in said(caplog) if "raised RuntimeError" in one.getMessage()]
    text = text_of(one)
    assert one.levelno == logging.ERROR
    assert f"of queue {name}" in text
    assert any(id in text for id in ids)
    assert "Traceback (most recent call last)" in text
    assert "RuntimeError: " in text
    first = text.partition("(most recent call last):\n")[2].partition("\n")[0]
    assert "tests/apps/jobs.py" in first, text
    assert len(sidelined(queue)) == 20


@pytest.mark.parametrize("pool", POOLS)
def test_an_attempt_that_is_repeated_is_a_warning(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    queue = jobs.register(memory_app, "again", pool)
    queue.publish({"n": 1, "good": 2})
    memory_app.start()
    wait_idle(queue)
    [one] = said(caplog)
    assert (one.levelno, sidelined(queue)) == (logging.WARNING, [])
    assert "tried again" in one.getMessage()


@pytest.mark.parametrize("pool", POOLS)
def test_a_value_that_means_nothing_is_said_once_and_the_message_is_done(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    queue = jobs.register(memory_app, "jobs", pool, concurrency=2)
    queue.publish_many([{"n": n, "do": "text"} for n in range(10)])
    memory_app.start()
    wait_idle(queue)
    assert sidelined(queue) == []
    [one] = said(caplog)
    assert "type str, which is ignored" in one.getMessage()


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_work_that_comes_back_undone_is_no_answer(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    """A plain function that returns a coroutine, or a generator: nothing of it has run."""
    queue = jobs.register(memory_app, "jobs", pool)
    ids = queue.publish_many([{"n": 1, "do": "coroutine"}, {"n": 2, "do": "generator"}])
    memory_app.start()
    wait_idle(queue)
    assert ["of which nothing has run" in (one.error or "") for one in sidelined(queue)] == [True, True]
    [one] = said(caplog)  # the second is within the limit
    assert one.levelno == logging.ERROR
    assert "handler returned a coroutine, of which nothing has run" in one.getMessage()
    assert any(f"message {id} failed, exception: " in one.getMessage() for id in ids)
    assert one.getMessage().endswith("; the message goes to the sideline")
    assert journal.lines() == ["start 1", "end 1", "start 2", "end 2"]


async def work(message: Any) -> None:
    raise AssertionError("nobody awaits it")


@pytest.mark.parametrize(
    "options", [{"attempts": 2}, {"retry": ignis.Retry(attempts=2, base=0)}], ids=["attempts", "retry"]
)
@pytest.mark.parametrize("form", ["plain", "coroutine", "batch", "each"])
def test_a_forgotten_await_is_an_error_in_the_log(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture, form: str, options: Any
) -> None:
    queue = memory_app.queue("jobs", dict, shards=1)

    def plain(message: Any) -> Any:
        return work(message)

    async def coroutine(message: Any) -> Any:
        return work(message)

    def each(messages: Any) -> Any:
        return [work(one) for one in messages]

    batches = {} if form in ("plain", "coroutine") else {"batch_size": 2}
    queue.handler({"coroutine": coroutine, "each": each}.get(form, plain), **batches, **options)
    queue.publish_many([{"n": 1}, {"n": 2}])
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 2)
    assert all("handler returned a coroutine, of which nothing has run" in one.getMessage() for one in said(caplog))
    assert [(one.levelname, one.getMessage().rpartition("; ")[2]) for one in said(caplog)] == [
        ("WARNING", "it is tried again"),
        ("ERROR", "the message goes to the sideline"),
    ]


def test_one_mistake_for_a_whole_batch_is_said_once(memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    queue = memory_app.queue("jobs", dict, shards=1)
    queue.handler(lambda messages: [False], batch_size=3)
    queue.publish_many([{"n": n} for n in range(3)])
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 3)
    [one] = said(caplog)
    assert one.levelno == logging.ERROR
    assert "a batch of 3 from message" in one.getMessage()
    assert "a list of 1 for 3 messages" in one.getMessage()


def test_numpys_truth_values_are_truth_values(caplog: pytest.LogCaptureFixture) -> None:
    numpy = pytest.importorskip("numpy")
    for answer, reason in ((numpy.bool_(False), "rejected"), (numpy.bool_(True), None)):
        runner = Runner(HandlerSpec(lambda message, *, of=answer: of, "jobs"), BodyCodec(dict), {})
        outcome = runner.run(encode_record(b"{}", flags=CODEC_JSON))
        assert getattr(outcome, "reason", None) == reason
    assert said(caplog) == []


def test_what_cannot_be_read_or_overruns_is_logged_too(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = memory_app.queue("jobs", dict)

    @queue.handler(timeout_s=0.02)
    async def slow(message: Any) -> None:
        await asyncio.sleep(60)

    queue.main.store.load_records("jobs", 0, [encode_record(b"{", flags=CODEC_JSON)])
    queue.publish({"n": 1})
    memory_app.start()
    wait_idle(queue)
    assert sorted((one.getMessage().partition("failed, ")[2].partition(":")[0], one.levelname) for one in said(caplog)) == [
        ("timeout", "ERROR"), ("unreadable", "WARNING"),
    ]  # fmt: skip


def test_what_a_handler_is_told_to_ignore_is_not_logged(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    queue = jobs.register(memory_app, "jobs", "thread")
    queue.publish_many([{"n": 1, "do": "ignore"}, {"n": 2, "do": "false"}, {"n": 3, "do": "none"}])
    memory_app.start()
    wait_idle(queue)
    assert said(caplog) == []


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("forwards", [False, True], ids=["here", "forwarded"])
def test_logging_never_raises(caplog: pytest.LogCaptureFixture, forwards: bool) -> None:
    made = HandlerLog("jobs", "handle")
    if forwards:

        def gone(level: int, key: str, text: str, failure: FailureTold | None) -> None:
            raise OSError("the parent is gone")

        made.send = gone
    made.raised(NoTextError(), "message 1", again=False)
    assert "handler handle of queue jobs raised NoTextError on message 1" in said(caplog)[0].getMessage()


class Shy(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__name__", "__module__"):
            raise ValueError("no name")
        return super().__getattribute__(name)


class ShyError(Exception, metaclass=Shy):
    """Its class does not say what it is called."""


class Unbound:
    """As a proxy of a web framework outside of its request."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("nothing stands behind it")


@pytest.mark.parametrize("pool", ["thread", "async"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_what_cannot_be_looked_at_ends_no_worker(memory_app: ignis.Ignis, pool: str, attempts: int) -> None:
    queue = memory_app.queue("jobs", str, shards=1, max_returns=0)

    def answer(message: str) -> Any:
        if message == "raises":
            raise ShyError
        return Unbound()

    if pool == "async":

        async def later(message: str) -> Any:
            return answer(message)

        queue.handler(later, attempts=attempts)
    else:
        queue.handler(answer, attempts=attempts)
    queue.publish_many(["answers", "raises"])
    memory_app.start()
    wait_idle(queue)
    assert [(one.message, one.envelope.reason) for one in queue.sideline.peek()] == [("raises", "exception")]
    assert (queue.sideline.peek()[0].envelope.error or "").startswith("ShyError")


def none_asks(_: object, __: int) -> None:
    raise AssertionError


def test_batch_answers_that_cannot_be_looked_at_fail_nothing() -> None:
    made = HandlerLog("jobs", "handle")
    assert batch_outcomes(Unbound(), 2, made, none_asks) == [None, None]
    assert batch_outcomes([Unbound(), True], 2, made, none_asks) == [None, None]


def test_a_list_of_another_length_is_told_with_both_lengths(caplog: pytest.LogCaptureFixture) -> None:
    made = HandlerLog("jobs", "handle")
    assert batch_outcomes([True] * 4, 3, made, none_asks) == [None] * 3
    assert "returned a list of 4 for a batch of 3" in caplog.text
    [failure] = set(batch_outcomes([False], 2, made, none_asks))
    assert isinstance(failure, Failure)
    assert "a list of 1 for 2 messages" in failure.error


def test_a_failure_for_good_is_said_though_earlier_attempts_were(caplog: pytest.LogCaptureFixture) -> None:
    made = HandlerLog("jobs", "handle")
    for again in (True, True, False, False):
        made.raised(ValueError("no"), "message 1", again=again)
    assert [one.levelno for one in said(caplog)] == [logging.WARNING, logging.ERROR]


@pytest.mark.parametrize("pool", POOLS)
def test_an_overrun_names_the_message(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    queue = jobs.register(memory_app, "timed", pool)
    published = queue.publish({"n": 1, "do": "hold", "until": "released"})
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 1)
    journal.path.with_name(journal.path.name + ".released").touch()
    assert f"message {published.id} failed, timeout: handler ran for more than 0.4 s" in caplog.text
    [one] = said(caplog)
    assert (one.levelno, one.getMessage().rpartition("; ")[2]) == (logging.ERROR, "the message goes to the sideline")


@pytest.mark.parametrize("pool", POOLS)
def test_an_overrun_that_is_tried_again_is_a_warning_and_the_last_an_error(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    queue = jobs.register(memory_app, "timed-again", pool)
    queue.publish({"n": 1, "do": "hold", "until": "released"})
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 1)
    journal.path.with_name(journal.path.name + ".released").touch()
    assert [(one.levelname, one.getMessage().rpartition("; ")[2]) for one in said(caplog)] == [
        ("WARNING", "it is tried again"),
        ("ERROR", "the message goes to the sideline"),
    ]


def test_what_a_policy_gives_up_on_is_not_said_to_be_tried_again(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = memory_app.queue("jobs", dict)

    @queue.handler(timeout_s=0.02, retry=ignis.Retry(attempts=3, base=0, give_up_on=ignis.errors.HandlerTimeoutError))
    async def slow(message: Any) -> None:
        await asyncio.sleep(60)

    queue.main.store.load_records("jobs", 0, [encode_record(b"{", flags=CODEC_JSON)])
    queue.publish({"n": 1})
    memory_app.start()
    wait_idle(queue)
    assert {one.getMessage().rpartition("; ")[2] for one in said(caplog)} == {"the message goes to the sideline"}


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_of_a_batch_that_overran_the_first_message_tells_what_follows(
    memory_app: ignis.Ignis, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    queue = memory_app.queue("jobs", dict, shards=1)
    options: Any = {"timeout_s": 0.1, "batch_size": 2, "retry": ignis.Retry(attempts=2, base=0)}
    released = threading.Event()
    if pool == "async":

        async def slow(messages: Any) -> None:
            await asyncio.sleep(60)

        queue.handler(slow, **options)
    else:
        queue.handler(lambda messages: released.wait(60), **options)
    queue.publish_many([{"n": 1}, {"n": 2}])
    memory_app.start()
    eventually(lambda: queue.sideline.pending() == 2)
    released.set()
    assert {(one.levelname, one.getMessage().rpartition("; ")[2]) for one in said(caplog)} == {
        ("WARNING", "it is tried again"),
        ("ERROR", "the message goes to the sideline"),
    }


def test_a_line_that_cannot_be_logged_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unsayable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log_safely(logging.getLogger("ignis.consumer.handler"), logging.ERROR, "%s", Unsayable())
    assert "a line could not be logged: RuntimeError" in caplog.text
    assert capsys.readouterr().err == "", "nothing past the log's own form"


def test_a_long_text_is_cut_in_the_middle() -> None:
    sent: list[tuple[str, FailureTold | None]] = []
    made = HandlerLog("jobs", "handle")
    made.send = lambda level, key, text, failure: sent.append((text, failure))
    made.raised(ValueError("é" * 100_000), "message 1", again=False)
    [(text, failure)] = sent
    assert text.startswith("handler handle")
    assert failure is not None
    kind, error, trace = failure
    assert kind == "ValueError"
    assert len(error.encode()) < 2_100
    assert len(trace.encode()) < 12_100
    assert trace.startswith("ValueError: éé")


def test_the_rate_is_bounded_by_key_and_nothing_is_uncounted() -> None:
    now = [0.0]
    limit = LogLimit(10, clock=lambda: now[0])
    assert [limit.due("a") for _ in range(5)] == [1, 0, 0, 0, 0]
    assert limit.due("b", 3) == 3
    now[0] = 9.9
    assert limit.due("a") == 0
    now[0] = 10
    assert limit.due("a") == 6, "the five that were left out, and this one"
    assert limit.due("b") == 1
    assert limit.due("a", 7) == 0
    now[0] = 20
    assert limit.due("a", 2) == 9


def test_keys_do_not_grow_without_bound() -> None:
    limit = LogLimit(10, clock=lambda: 0.0)
    assert all(limit.due(str(n)) == 1 for n in range(5_000))
    assert limit.due("4999") == 0
    assert limit.due("0") == 1, "forgotten, and hence said again"


# -- middleware of the other kind


def plain(ctx: ignis.Context, call_next: Any) -> Any:
    call_next(ctx)


async def coroutine(ctx: ignis.Context, call_next: Any) -> Any:
    ctx.items["seen"] = True
    return await call_next(ctx)


class Layer:
    async def __call__(self, ctx: ignis.Context, call_next: Any) -> Any:
        return await call_next(ctx)


@pytest.mark.parametrize("order", ["handler first", "middleware first"])
@pytest.mark.parametrize("of", ["app", "queue", "template"])
def test_plain_middleware_round_a_coroutine_is_refused_at_registration(
    memory_app: ignis.Ignis, of: str, order: str
) -> None:
    queue = memory_app.queue("jobs", dict)

    async def handle(message: Any) -> None:
        pass

    def add_handler() -> None:
        (memory_app.handler("jobs.*") if of == "template" else queue.handler)(handle)

    def add_layer() -> None:
        (queue if of == "queue" else memory_app).middleware(plain)

    first, second = (add_handler, add_layer) if order == "handler first" else (add_layer, add_handler)
    first()
    with pytest.raises(ignis.errors.ConfigError, match=r"middleware plain is a plain function round handler .*handle"):
        second()
    if order == "handler first":
        assert memory_app.layers == []


def test_plain_middleware_round_coroutine_middleware_is_refused(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", dict)
    queue.handler(lambda message: None)
    memory_app.middleware(plain)
    with pytest.raises(ignis.errors.ConfigError, match="plain function round middleware coroutine"):
        queue.middleware(coroutine)


@pytest.mark.parametrize("layer", [coroutine, Layer()], ids=["function", "object"])
@pytest.mark.parametrize("batch_size", [None, 2], ids=["one", "batch"])
def test_coroutine_middleware_round_a_plain_handler_works(
    memory_app: ignis.Ignis, layer: Any, batch_size: int | None
) -> None:
    seen: list[Any] = []
    queue = memory_app.queue("jobs", dict)
    memory_app.middleware(layer)
    queue.middleware(coroutine)

    @queue.middleware
    def inside(ctx: ignis.Context, call_next: Any) -> Any:
        return call_next(ctx)

    @queue.handler(concurrency=2, batch_size=batch_size, attempts=2)
    def handle(message: Any, ctx: ignis.Context) -> bool | None:
        seen.append((message, ctx.items["seen"]))
        n = message["n"] if isinstance(message, dict) else 0
        if n == 1:
            raise SystemExit(3)
        return None if n == 0 else False

    queue.publish_many([{"n": n} for n in range(3)])
    memory_app.start()
    wait_idle(queue)
    assert all(one[1] for one in seen)
    if batch_size is None:
        assert [one.error for one in sidelined(queue)] == ["SystemExit: 3", ""]
        assert len(seen) == 5
    else:
        assert sidelined(queue) == []
        eventually(lambda: sum(len(one) for one, _ in seen) == 3)


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_that_is_not_utf8_is_logged_with_escapes(
    memory_app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    """A stream in UTF-8 takes no halves of surrogates: it would drop the line."""
    queue = jobs.register(memory_app, "jobs", pool)
    queue.publish({"n": 1, "do": "odd bytes"})
    memory_app.start()
    wait_idle(queue)
    [one] = [one for one in said(caplog) if "raised" in one.getMessage()]
    assert text_of(one).encode("utf-8").count(b"\\udce9") > 0
