"""From a handler's answer to an outcome: the rules, without workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import inspect
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, TypedDict

import pytest

import ignis
from ignis.consumer.handler import DROPPED, Context, Failure, HandlerSpec, Outcome
from ignis.consumer.runner import Runner
from ignis.errors import ConfigError, ConsumerLimitError
from ignis.message import BodyCodec, Message, failed_record
from ignis.native import CODEC_JSON, encode_record


class IgnoredError(Exception):
    pass


def spec_of(fn: Callable[..., Any], **settings: Any) -> HandlerSpec:
    return HandlerSpec(fn, "jobs", **settings)


def record(body: bytes = b'{"n": 1}') -> bytes:
    return encode_record(body, flags=CODEC_JSON, key=b"k")


def run(fn: Callable[..., Any], data: bytes | None = None, resources: Any = None, **settings: Any) -> Outcome:
    """The outcome of one record, by whichever way fits the handler."""
    runner = Runner(spec_of(fn, **settings), BodyCodec(dict), resources or {})
    data = record() if data is None else data
    return asyncio.run(runner.run_async(data)) if inspect.iscoroutinefunction(fn) else runner.run(data)


def run_batch(fn: Callable[..., Any], records: list[bytes], **settings: Any) -> list[Outcome]:
    settings = {"batch_size": 10, **settings}
    runner = Runner(spec_of(fn, **settings), BodyCodec(dict), {})
    if inspect.iscoroutinefunction(fn):
        outcomes = asyncio.run(runner.run_batch_async(records))
    else:
        outcomes = runner.run_batch(records)
    return [None] * len(records) if outcomes is None else outcomes


def sync_and_async(answer: Callable[..., Any]) -> list[Callable[..., Any]]:
    async def coroutine(message: Any, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return answer(message, ctx)

    def plain(message: Any, ctx: Context) -> Any:
        return answer(message, ctx)

    return [plain, coroutine]


def raises(exc: BaseException) -> Callable[..., Any]:
    def answer(message: Any, ctx: Context) -> Any:
        raise exc

    return answer


OUTCOMES: list[tuple[str, Callable[..., Any], Outcome]] = [
    ("none", lambda message, ctx: None, None),
    ("true", lambda message, ctx: True, None),
    ("dropped", lambda message, ctx: DROPPED, DROPPED),
    ("false", lambda message, ctx: False, Failure("rejected", "")),
    ("its own failure", lambda message, ctx: Failure("rejected", "because"), Failure("rejected", "because")),
    ("ignored", raises(IgnoredError()), DROPPED),
    ("exception", raises(RuntimeError("no")), Failure("exception", "RuntimeError: no")),
    ("exit", raises(SystemExit(3)), Failure("exception", "SystemExit: 3")),
    # Without a text: on Python 3.10 asyncio's own time-outs drop it.
    ("cancelled", raises(asyncio.CancelledError()), Failure("exception", "CancelledError: ")),
    ("its own time-out", raises(asyncio.TimeoutError("y")), Failure("exception", "TimeoutError: y")),
    ("zero", lambda message, ctx: 0, None),
    ("text", lambda message, ctx: "yes", None),
    ("list", lambda message, ctx: [False], None),
]


@pytest.mark.parametrize("timeout_s", [None, 30])
@pytest.mark.parametrize("coroutine", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize(("answer", "outcome"), [one[1:] for one in OUTCOMES], ids=[one[0] for one in OUTCOMES])
def test_outcomes(answer: Callable[..., Any], outcome: Outcome, coroutine: bool, timeout_s: float | None) -> None:
    fn = sync_and_async(answer)[coroutine]
    assert run(fn, ignore=(IgnoredError,), timeout_s=timeout_s) == outcome


@pytest.mark.parametrize(
    "data",
    [record(b"{bad"), record(b"[1]"), b"\x09not an envelope", b""],
    ids=["body", "type", "envelope", "empty"],
)
def test_an_unreadable_message_reaches_no_handler(data: bytes) -> None:
    called = []
    for fn in sync_and_async(lambda message, ctx: called.append(message)):
        outcome = run(fn, data)
        assert isinstance(outcome, Failure)
        assert outcome.reason == "unreadable"
        assert outcome.error
    assert not called


def test_a_coroutine_that_overruns_is_cancelled() -> None:
    cancelled = []

    async def slow(message: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(message)
            raise

    assert run(slow, timeout_s=0.01) == Failure("timeout", "handler ran for more than 0.01 s")
    assert cancelled == [{"n": 1}]


def test_our_time_out_is_not_ignorable_but_the_handlers_own_is() -> None:
    async def slow(message: Any) -> None:
        await asyncio.sleep(60)

    async def gives_up(message: Any) -> None:
        raise asyncio.TimeoutError

    outcome = run(slow, timeout_s=0.01, ignore=(asyncio.TimeoutError,))
    assert isinstance(outcome, Failure)
    assert outcome.reason == "timeout"
    assert run(gives_up, timeout_s=60, ignore=(asyncio.TimeoutError,)) is DROPPED
    [batch] = run_batch(slow, [record()], timeout_s=0.01, ignore=(asyncio.TimeoutError,))
    assert isinstance(batch, Failure)
    assert batch.reason == "timeout"


@pytest.mark.parametrize("coroutine", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("good_at", [1, 2, 3])
def test_attempts(attempts: int, good_at: int, coroutine: bool) -> None:
    seen: list[int] = []

    def answer(message: Any, ctx: Context) -> Any:
        seen.append(ctx.attempt)
        ctx.items.setdefault("of this call", len(seen))
        if ctx.attempt < good_at:
            raise RuntimeError
        return ctx.items["of this call"] == 1

    outcome = run(sync_and_async(answer)[coroutine], attempts=attempts)
    assert seen == list(range(1, min(attempts, good_at) + 1))
    assert (outcome is None) == (attempts >= good_at)


def test_what_was_dropped_is_not_tried_again() -> None:
    calls = []

    def answer(message: Any, ctx: Context) -> Any:
        calls.append(ctx.attempt)
        return DROPPED

    for fn in sync_and_async(answer):
        assert run(fn, attempts=3) is DROPPED
    assert calls == [1, 1]


def test_all_attempts_together_have_the_time_of_one() -> None:
    calls = []

    async def slow(message: Any, ctx: Context) -> None:
        calls.append(ctx.attempt)
        await asyncio.sleep(0 if ctx.attempt < 3 else 60)
        raise RuntimeError

    outcome = run(slow, attempts=100, timeout_s=0.05)
    assert isinstance(outcome, Failure)
    assert outcome.reason == "timeout"
    assert calls == [1, 2, 3]


def test_context() -> None:
    resources = {"db": object()}

    def handler(message: Any, ctx: Context) -> None:
        assert ctx.body is message
        assert (ctx.queue, ctx.attempt, ctx.resources) == ("jobs", 1, resources)
        assert ctx.message.key == "k"
        assert list(ctx.messages) == [ctx.message]
        assert ctx.items == {}
        ctx.items["x"] = 1

    assert run(handler, resources=resources) is None
    assert run(handler, resources=resources) is None, "items are of one call alone"


class Methods:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def one(self, message: Any) -> None:
        self.seen.append(message)

    def two(self, message: Any, ctx: Context) -> None:
        self.seen.append((message, ctx.queue))

    def __call__(self, message: Any) -> None:
        self.seen.append(message)


class CoroutineObject:
    async def __call__(self, message: Any) -> bool:
        return False


def test_what_may_be_a_handler() -> None:
    methods, got = Methods(), []
    for fn in (got.append, methods.one, methods, functools.partial(Methods.one, methods), lambda *args: None):
        assert run(fn) is None
    assert run(methods.two) is None
    assert got == [{"n": 1}]
    assert methods.seen == [{"n": 1}] * 3 + [({"n": 1}, "jobs")]
    assert spec_of(CoroutineObject()).pool == "async"
    assert spec_of(methods.one).name == "Methods.one"


def test_middleware_is_an_onion() -> None:
    seen: list[str] = []

    def layer(name: str) -> Callable[..., Any]:
        def around(ctx: Context, call_next: Callable[[Context], Any]) -> Any:
            seen.append(f"{name} in {ctx.items.get('from')}")
            ctx.items["from"] = name
            answer = call_next(ctx)
            seen.append(f"{name} out {answer}")
            return answer

        return around

    def handler(message: Any, ctx: Context) -> bool:
        seen.append(f"handler from {ctx.items['from']}")
        return True

    assert run(handler, middleware=[layer("a"), layer("b")]) is None
    assert seen == ["a in None", "b in a", "handler from b", "b out True", "a out True"]


def test_middleware_may_answer_change_and_catch() -> None:
    def refuse(ctx: Context, call_next: Any) -> bool:
        return False

    def rename(ctx: Context, call_next: Any) -> Any:
        ctx.body = {"n": 2}
        return call_next(ctx)

    def rescue(ctx: Context, call_next: Any) -> Any:
        try:
            return call_next(ctx)
        except RuntimeError:
            return True

    got: list[Any] = []
    assert run(got.append, middleware=[refuse]) == Failure("rejected", "")
    assert run(got.append, middleware=[rename]) is None
    assert got == [{"n": 2}]
    assert run(raises(RuntimeError()), middleware=[rescue]) is None


def test_middleware_of_coroutines() -> None:
    seen: list[str] = []

    async def around(ctx: Context, call_next: Any) -> Any:
        seen.append("in")
        answer = await call_next(ctx)
        seen.append("out")
        return answer

    async def answers(ctx: Context, call_next: Any) -> bool:
        return False

    async def fails(ctx: Context, call_next: Any) -> Any:
        raise RuntimeError("middleware")

    async def handler(message: Any) -> None:
        seen.append("handler")

    assert run(handler, middleware=[around, around]) is None
    assert seen == ["in", "in", "handler", "out", "out"]
    assert run(handler, middleware=[answers]) == Failure("rejected", "")
    assert run(handler, middleware=[fails]) == Failure("exception", "RuntimeError: middleware")


def test_middleware_that_forgets_the_handler_fails_the_message() -> None:
    """Wherever it stands, of both kinds, and also where the coroutine was made and not awaited."""
    called: list[Any] = []

    def plain(message: Any) -> None:
        called.append(message)

    async def coroutine(message: Any) -> None:
        called.append(message)

    def forgets(ctx: Context, call_next: Any) -> None:
        pass

    async def forgets_too(ctx: Context, call_next: Any) -> None:
        pass

    async def never_awaits(ctx: Context, call_next: Any) -> None:
        call_next(ctx).close()

    def passes(ctx: Context, call_next: Any) -> Any:
        return call_next(ctx)

    async def passes_too(ctx: Context, call_next: Any) -> Any:
        return await call_next(ctx)

    def answers(ctx: Context, call_next: Any) -> bool:
        return True

    def without_answer(ctx: Context, call_next: Any) -> None:
        call_next(ctx)

    for handler, layers in (
        (plain, [forgets]),
        (plain, [passes, forgets]),
        (plain, [forgets, passes]),
        (plain, [passes_too, forgets]),
        (plain, [forgets_too, passes]),
        (coroutine, [forgets_too]),
        (coroutine, [passes_too, forgets_too]),
        (coroutine, [never_awaits]),
    ):
        outcome = run(handler, middleware=layers)
        assert isinstance(outcome, Failure), layers
        assert outcome.reason == "exception"
        assert re.match(r"HandlerNotCalledError: middleware .*(forgets|never)\S* returned None without", outcome.error)
    assert run(plain, middleware=[answers]) is None
    assert called == []
    assert run(plain, middleware=[without_answer]) is None
    assert len(called) == 1


def test_middleware_that_forgets_to_return_gives_the_handlers_answer() -> None:
    """Else each failure that is told by an answer would pass as done. Of several calls the last counts."""

    def forgets(ctx: Context, call_next: Any) -> None:
        call_next(ctx)

    async def forgets_too(ctx: Context, call_next: Any) -> None:
        await call_next(ctx)

    def passes(ctx: Context, call_next: Any) -> Any:
        return call_next(ctx)

    def twice(ctx: Context, call_next: Any) -> None:
        call_next(ctx)
        call_next(ctx)

    def catches(ctx: Context, call_next: Any) -> None:
        with contextlib.suppress(RuntimeError):
            call_next(ctx)

    def says_done(ctx: Context, call_next: Any) -> bool:
        call_next(ctx)
        return True

    def refuses(message: Any) -> bool:
        return False

    async def refuses_too(message: Any) -> bool:
        return False

    asked = Failure("exception", "RetryLater: in 1 s")
    for layers in ([forgets], [forgets_too], [passes, forgets], [forgets_too, forgets], [forgets, forgets], [twice]):
        assert run(refuses, middleware=layers) == Failure("rejected", ""), layers
        assert run(lambda message: ignis.RetryLater(1), middleware=layers) == asked, layers
        batch = run_batch(lambda messages: [None, False, ignis.RetryLater(1)], [record()] * 3, middleware=layers)
        assert batch == [None, Failure("rejected", ""), asked], layers
    assert run(refuses_too, middleware=[forgets_too]) == Failure("rejected", "")
    assert run(refuses, middleware=[says_done]) is None
    assert run(raises(RuntimeError("no")), middleware=[catches]) is None

    answers = iter([False, True])
    assert run(lambda message: next(answers), middleware=[twice]) is None


@pytest.mark.parametrize("reason", ["nonsense", "the shop is closed", "", None, 1, ["rejected"]])
def test_a_failure_has_one_of_the_reasons(reason: Any) -> None:
    """Lists and filters of the sideline know no other; a message was stored with whatever it was."""
    with pytest.raises(
        ConfigError, match=r"Failure: reason = .* is none: known: rejected, exception, .*; what happened"
    ):
        Failure(reason, "x")
    assert Failure("timeout") == Failure("timeout", "") == ("timeout", "")
    made = Failure("rejected", "x")
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == made
    with pytest.raises(ConfigError, match="is rejected meant"):
        Failure("rejekted")


def test_a_failure_with_another_reason_fails_as_what_it_raised() -> None:
    outcome = run(lambda message: Failure("nonsense", "x"))
    assert isinstance(outcome, Failure)
    assert (outcome.reason, outcome.error[:40]) == ("exception", "ConfigError: Failure: reason = 'nonsense")
    outcome = run(lambda message: Failure("rejected", "x")._replace(reason="nonsense"))
    assert isinstance(outcome, Failure)
    assert (outcome.reason, outcome.error[:40]) == ("exception", "ConfigError: Failure: reason = 'nonsense")


# -- batches


ASKED = Failure("exception", "RetryLater: in 1 s")
REJECTED, ERROR = Failure("rejected", ""), Failure("exception", "RuntimeError: no")
BATCHES: list[tuple[str, Callable[..., Any], list[Outcome]]] = [
    ("all done", lambda messages, ctx: None, [None] * 3),
    ("all true", lambda messages, ctx: True, [None] * 3),
    ("all false", lambda messages, ctx: False, [REJECTED] * 3),
    ("raised", raises(RuntimeError("no")), [ERROR] * 3),
    ("exit", raises(SystemExit(1)), [Failure("exception", "SystemExit: 1")] * 3),
    ("ignored", raises(IgnoredError()), [DROPPED] * 3),
    ("each", lambda messages, ctx: [None, False, True], [None, REJECTED, None]),
    ("tuple", lambda messages, ctx: (DROPPED, REJECTED, None), [DROPPED, REJECTED, None]),
    ("one failure for all", lambda messages, ctx: REJECTED, [REJECTED] * 3),
    (
        "too few, one failed",
        lambda messages, ctx: [None, False],
        [Failure("exception", "batch handler answered with a list of 2 for 3 messages: which fail cannot be told")] * 3,
    ),
    (
        "too few, one asks for its own time",
        lambda messages, ctx: [None, ignis.RetryLater(1)],
        [Failure("exception", "batch handler answered with a list of 2 for 3 messages: which fail cannot be told")] * 3,
    ),
    ("one asks for its own time", lambda messages, ctx: [None, ignis.RetryLater(1), True], [None, ASKED, None]),
    ("all ask", lambda messages, ctx: ignis.RetryLater(1), [ASKED] * 3),
    ("too few", lambda messages, ctx: [None], [None] * 3),
    ("empty", lambda messages, ctx: [], [None] * 3),
    ("numbers", lambda messages, ctx: [0, 1, 2], [None] * 3),
]


@pytest.mark.parametrize("coroutine", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize(("answer", "outcomes"), [one[1:] for one in BATCHES], ids=[one[0] for one in BATCHES])
def test_batch_outcomes(answer: Callable[..., Any], outcomes: list[Outcome], coroutine: bool) -> None:
    fn = sync_and_async(answer)[coroutine]
    assert run_batch(fn, [record()] * 3, ignore=(IgnoredError,)) == outcomes


def test_a_batch_goes_on_without_its_unreadable_messages() -> None:
    def answer(messages: list[Any], ctx: Context) -> Any:
        assert [one["n"] for one in messages] == [0, 2]
        assert len(ctx.messages) == 2
        assert ctx.body is messages
        return [None, False]

    records = [record(b'{"n": 0}'), record(b"{bad"), record(b'{"n": 2}'), b"no record"]
    for fn in sync_and_async(answer):
        found = run_batch(fn, records)
        assert [one.reason if isinstance(one, Failure) else one for one in found] == [
            None,
            "unreadable",
            "rejected",
            "unreadable",
        ]


def test_a_batch_of_unreadable_messages_alone_calls_nobody() -> None:
    for fn in sync_and_async(raises(AssertionError())):
        found = run_batch(fn, [b"", b""])
        assert [one.reason for one in found if isinstance(one, Failure)] == ["unreadable"] * 2


def test_further_attempts_of_a_batch_get_what_failed() -> None:
    seen: list[Any] = []

    def answer(messages: list[Any], ctx: Context) -> Any:
        seen.append((ctx.attempt, [one["n"] for one in messages], len(ctx.messages)))
        return [one["n"] < ctx.attempt for one in messages]

    for fn in sync_and_async(answer):
        seen.clear()
        found = run_batch(fn, [record(b'{"n": %d}' % n) for n in range(4)], attempts=3)
        assert found == [None, None, None, REJECTED]
        assert seen == [(1, [0, 1, 2, 3], 4), (2, [1, 2, 3], 3), (3, [2, 3], 2)]


def test_a_batch_that_overruns() -> None:
    async def slow(messages: Any) -> None:
        await asyncio.sleep(60)

    found = run_batch(slow, [record()] * 2, timeout_s=0.01, attempts=3)
    assert found == [Failure("timeout", "handler ran for more than 0.01 s")] * 2


# -- registration


def plain(message: Any) -> None:
    pass


async def coroutine(message: Any) -> None:
    pass


def test_the_pool_follows_the_function() -> None:
    assert spec_of(plain).pool == "thread"
    assert spec_of(coroutine).pool == "async"
    assert spec_of(plain, pool="process").pool == "process"


@pytest.mark.parametrize(
    ("fn", "settings", "says"),
    [
        ("text", {}, "is not callable"),
        (plain, {"pool": "fork"}, "pool = 'fork' is not one of thread, async, process"),
        (plain, {"pool": "async"}, "plain is a plain function: pool='async' cannot run it"),
        (coroutine, {"pool": "thread"}, "coroutine is a coroutine function: pool='thread' cannot run it"),
        (coroutine, {"pool": "process"}, "pool='process' cannot run it"),
        (plain, {"concurrency": -1}, "concurrency = -1 is below 0"),
        (plain, {"attempts": 0}, "attempts = 0 is below 1"),
        (plain, {"timeout_s": 0}, "timeout_s = 0 is not above 0"),
        (plain, {"ignore": "KeyError"}, "ignore = 'KeyError' is not an exception class, nor several"),
        (plain, {"timeout_s": "30s"}, "timeout_s = '30s' is not a number of seconds, such as 30 or 0.5"),
        (plain, {"ignore": ("KeyError",)}, "ignore holds 'KeyError', which is not an exception class"),
        (plain, {"ignore": (SystemExit,)}, "ignore holds SystemExit, which is no subclass of Exception"),
        (
            plain,
            {"ignore": (BaseException,)},
            "ignore holds BaseException, which is no subclass of Exception: give Exception",
        ),
        (plain, {"batch_size": 1}, "batch_size = 1 is outside 2 to 200000"),
        (plain, {"batch_size": 200_001}, "batch_size = 200001 is outside 2 to 200000"),
        (plain, {"batch_size": 2, "batch_wait_s": 0.5}, "batch_wait_s = 0.5 is outside 1 to 300"),
        (plain, {"batch_size": 2, "batch_wait_s": 301}, "batch_wait_s = 301 is outside 1 to 300"),
        (lambda message: None, {"pool": "process"}, "cannot be imported by a worker process"),
        (Methods(), {"pool": "process"}, "cannot be imported by a worker process"),
    ],
)
def test_registrations_that_are_refused(fn: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        spec_of(fn, **settings)


class Shop:
    def on_many(self, orders: list[dict[str, Any]], ctx: Context) -> None:
        pass

    async def __call__(self, orders: Sequence[dict[str, Any]]) -> None:
        pass


def on_list(orders: list[dict[str, Any]]) -> None:
    pass


def on_one(order: dict[str, Any]) -> None:
    pass


def context_first(ctx: Context, order: dict[str, Any]) -> None:
    pass


def number_second(order: dict[str, Any], number: int) -> None:
    pass


class Row(TypedDict):
    n: int


def on_int(number: int) -> None:
    pass


def on_float(number: float) -> None:
    pass


def on_bytes(data: bytes) -> None:
    pass


def on_either(orders: list[dict[str, Any]] | dict[str, Any]) -> None:
    pass


def on_any(orders: Any) -> None:
    pass


def on_unknown(orders: list[Nowhere]) -> None:  # type: ignore[name-defined] # noqa: F821
    pass


CONTRADICTIONS: list[tuple[Callable[..., Any], Any, dict[str, Any], str]] = [
    (on_list, dict, {}, r"on_list takes list\[.*\], but it gets one message \(dict\) at a time: give batch_size"),
    (Shop().on_many, dict, {}, "give batch_size"),
    (Shop(), dict, {}, "give batch_size"),
    (on_one, dict, {"batch_size": 10}, "gets a list of messages: annotate it as list"),
    (functools.partial(on_one), dict, {"batch_size": 10}, "gets a list of messages"),
    (context_first, dict, {}, r"the message comes first: fn\(message, ctx\)"),
    (context_first, None, {"batch_size": 10}, "the message comes first"),
    (number_second, dict, {}, r"takes int second, but what comes second is the context: fn\(message, ctx\)"),
    (on_one, dict, {"batch_wait_s": 2}, "batch_wait_s = 2 is for batches; give batch_size too"),
    (on_one, dict, {"batchsize": 2}, "unknown option 'batchsize'; is batch_size meant"),
    (
        on_one,
        dict,
        {"max_retries": 2},
        "unknown option 'max_retries'; docs/coming-from-celery.md says what is here for it",
    ),
]


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda message, got=7: got, 7),
        (lambda message, ctx=None: type(ctx), Context),
        (lambda message, context=None: type(context), Context),
        (lambda message, delivery: type(delivery), Context),
        (lambda message, *rest: type(rest[0]), Context),
    ],
)
def test_a_second_argument_with_a_default_is_the_handlers_own(fn: Callable[..., Any], given: Any) -> None:
    seen: list[Any] = []

    @functools.wraps(fn)
    def handler(*args: Any) -> None:
        seen.append(fn(*args))

    assert run(handler) is None
    assert seen == [given]


def test_a_second_argument_that_is_annotated_as_context_gets_it() -> None:
    seen: list[Any] = []

    def handler(message: Any, delivery: Context | None = None) -> None:
        seen.append(type(delivery))

    assert run(handler) is None
    assert seen == [Context]


@pytest.mark.parametrize(("fn", "kind", "options", "says"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused_where_it_is_registered(
    memory_app: ignis.Ignis, fn: Any, kind: Any, options: dict[str, Any], says: str
) -> None:
    queue = memory_app.queue("orders", kind)
    with pytest.raises(ConfigError, match=says):
        queue.handler(**options)(fn)
    assert queue.spec is None
    with pytest.raises(ConfigError, match=says):
        memory_app.handler("orders.*", kind, **options)(fn)
    assert not memory_app.templates


@pytest.mark.parametrize(
    ("fn", "kind", "options"),
    [
        (on_list, dict, {"batch_size": 10}),
        (on_list, list, {}),
        (on_list, list[dict], {}),
        (on_list, None, {}),  # any JSON value
        (on_list, Annotated[list[int], "rows"], {}),
        (on_one, dict, {}),
        (on_int, float | int, {}),
        (on_float, int, {}),
        (on_bytes, bytearray, {}),
        (on_one, Row, {}),
        (on_either, dict, {"batch_size": 10}),
        (on_either, dict, {}),
        (on_any, dict, {"batch_size": 10}),
        (on_any, dict, {}),
        (on_unknown, dict, {}),
        (on_one, dict, {"batch_size": None, "batch_wait_s": None}),
        (Shop(), dict, {"batch_size": 10, "batch_wait_s": 2}),
    ],
)
def test_what_may_be_meant_is_registered(memory_app: ignis.Ignis, fn: Any, kind: Any, options: dict[str, Any]) -> None:
    memory_app.queue("orders", kind).handler(**options)(fn)
    memory_app.handler("orders.*", kind, **options)(fn)


OTHER_TYPES: list[tuple[Callable[..., Any], Any, str]] = [
    (on_int, str, r"on_int takes int, but the queue's messages are str: annotate it with that"),
    (on_int, float, "on_int takes int, but the queue's messages are float"),
    (on_one, int, r"on_one takes dict\[str, .*\], but the queue's messages are int"),
    (functools.partial(on_bytes), str, "takes bytes, but the queue's messages are str"),
]


@pytest.mark.parametrize(("fn", "kind", "says"), OTHER_TYPES)
def test_another_type_than_the_queues_is_refused(memory_app: ignis.Ignis, fn: Any, kind: Any, says: str) -> None:
    queue = memory_app.queue("orders", kind)
    with pytest.raises(ConfigError, match=says):
        queue.handler(fn)
    assert queue.spec is None
    with pytest.raises(ConfigError, match=says):
        memory_app.handler("orders.*", kind)(fn)
    assert not memory_app.templates


@pytest.mark.parametrize("whole", [False, True])
def test_a_middleware_may_make_of_it_what_it_likes(memory_app: ignis.Ignis, whole: bool) -> None:
    queue = memory_app.queue("orders", str)

    def as_number(ctx: Context, call_next: Any) -> Any:
        return call_next(ctx)

    (memory_app if whole else queue).middleware(as_number)
    queue.handler(on_int)
    if whole:
        memory_app.handler("orders.*", str)(on_int)


def three(message: Any, ctx: Any, more: Any) -> None:
    pass


def keyword(message: Any, *, more: Any) -> None:
    pass


def generator(message: Any) -> Any:
    yield message


async def agenerator(message: Any) -> Any:
    yield message


class Generator:
    def __call__(self, message: Any) -> Any:
        yield message


class Late:
    def handle(message: Any) -> None:  # type: ignore[misc] # noqa: N805 - self was forgotten
        pass


WRONG_FORMS = [
    (lambda: None, r"fn\(message\) or fn\(message, ctx\)"),
    (
        three,
        r"three\(message, ctx, more\) cannot be called as fn\(message\) or fn\(message, ctx\)",
    ),
    (keyword, "keyword"),
    (Late().handle, r"Late\.handle"),
    (functools.partial(three, 1, 2, 3), "cannot be called"),
    (generator, "generator is a generator function"),
    (agenerator, "agenerator is a generator function"),
    (Generator(), "Generator is a generator function"),
    (functools.partial(generator), "generator is a generator function"),
]


@pytest.mark.parametrize(("fn", "says"), WRONG_FORMS)
def test_a_handler_that_no_message_can_be_given_to_is_refused(fn: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        spec_of(fn)
    with ignis.Ignis("memory://") as app:
        queue = app.queue("q", dict)
        with pytest.raises(ConfigError, match=says):
            queue.handler(fn)
        assert queue.spec is None
        with pytest.raises(ConfigError, match=says):
            app.handler("orders.*")(fn)


def test_forms_that_can_be_called_are_taken() -> None:
    good: list[Any] = [
        print,
        min,
        lambda *a: None,
        lambda m, c=None, d=None: None,
        functools.partial(three, more=1),
        dict,
    ]
    for fn in good:
        assert spec_of(fn).fn is fn


def test_middleware_and_hooks_of_a_wrong_form_are_refused() -> None:
    with ignis.Ignis("memory://") as app:
        for register in (app.middleware, app.queue("q").middleware):
            with pytest.raises(ConfigError, match=r"cannot be called as fn\(ctx, call_next\)"):
                register(lambda ctx: None)  # type: ignore[arg-type, misc]
        with pytest.raises(ConfigError, match=r"cannot be called as fn\(queue, count\)"):
            app.after_publish(lambda: None)  # type: ignore[arg-type, misc]
        with pytest.raises(ConfigError, match=r"cannot be called as fn\(queue, handled, sidelined\)"):
            app.after_handling(lambda queue, handled: None)  # type: ignore[arg-type, misc]


def test_a_nested_function_cannot_run_in_a_process() -> None:
    def nested(message: Any) -> None:
        pass

    with pytest.raises(ConfigError, match="at module level"):
        spec_of(nested, pool="process")


def test_too_many_consumers() -> None:
    with pytest.raises(
        ConsumerLimitError, match=r"101 consumers asked for, the limit is 100 \(consumer.max_consumers\)"
    ) as info:
        spec_of(plain, concurrency=101)
    assert (info.value.asked, info.value.limit) == (101, 100)
    assert spec_of(plain, concurrency=100).concurrency == 100


def test_a_thread_is_not_cancelled_by_time() -> None:
    """A plain handler's time is its pool's business: the runner only calls it."""
    assert run(lambda message: time.sleep(0.02), timeout_s=0.001) is None


def test_nothing_is_left_behind_by_exceptions() -> None:
    run(raises(RuntimeError()))
    assert sys.exc_info() == (None, None, None)


NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "answer", [raises(ValueError(NOT_UTF8)), lambda message, ctx: Failure("exception", f"ValueError: {NOT_UTF8}")]
)
def test_an_error_that_is_not_utf8_can_be_stored(answer: Callable[..., Any], batch: bool, coroutine: bool) -> None:
    fn = sync_and_async(answer)[coroutine]
    outcome = run_batch(fn, [record()])[0] if batch else run(fn)
    assert outcome == Failure("exception", "ValueError: caf\\udce9")


def test_whatever_a_failure_says_the_message_is_set_aside() -> None:
    message = Message.from_bytes(failed_record(record(), "exception", NOT_UTF8, handler=NOT_UTF8))
    assert (message.reason, message.error, message.meta["handler"]) == ("exception", "caf\\udce9", "caf\\udce9")


class Mute:
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class MuteError(Mute, Exception):
    pass


class MuteExit(Mute, SystemExit):
    pass


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("exc", [MuteError(), MuteExit()])
def test_an_exception_without_a_text_is_told_by_its_type(exc: BaseException, batch: bool, coroutine: bool) -> None:
    fn = sync_and_async(raises(exc))[coroutine]
    assert (run_batch(fn, [record()])[0] if batch else run(fn)) == Failure("exception", type(exc).__qualname__)


def test_a_coroutine_that_blocked_past_its_time_counts_as_what_it_returned() -> None:
    """Nothing could cancel it, and those that it held up meanwhile are not to blame."""

    async def block(message: Any) -> bool:
        time.sleep(0.02)  # noqa: ASYNC251 - that is the case
        return True

    assert run(block, timeout_s=0.001) is None


class HandLoop(asyncio.SelectorEventLoop):
    """Its time goes on only where a handler blocks."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def block(self, seconds: float) -> None:
        self.now_s += seconds


def on(loop: HandLoop, calls: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    try:
        return loop.run_until_complete(calls())
    finally:
        loop.close()


@pytest.mark.parametrize("at_first", [True, False], ids=["before it awaits", "after it has awaited"])
@pytest.mark.parametrize("place", range(3))
def test_the_time_in_which_a_coroutine_blocks_its_loop_is_not_held_against_those_beside_it(
    place: int, at_first: bool
) -> None:
    """Whether they have begun or not, and however often they still await."""
    loop = HandLoop()

    async def handle(message: Any) -> None:
        if message["n"] != place:
            for _ in range(20):
                await asyncio.sleep(0)
            return
        if not at_first:
            await asyncio.sleep(0)
        loop.block(3)

    async def together() -> list[Outcome]:
        runner = Runner(spec_of(handle, timeout_s=1), BodyCodec(dict), {})
        return await asyncio.gather(*(runner.run_async(record(b'{"n": %d}' % n)) for n in range(3)))

    assert on(loop, together) == [None, None, None]


def test_the_time_in_which_a_coroutine_blocks_is_its_own() -> None:
    """One that computes, and lets others run now and then, is cancelled as any."""
    loop = HandLoop()

    async def compute(message: Any) -> None:
        while True:
            loop.block(0.1)
            await asyncio.sleep(0)

    runner = Runner(spec_of(compute, timeout_s=0.3), BodyCodec(dict), {})
    assert on(loop, lambda: runner.run_async(record())) == Failure("timeout", "handler ran for more than 0.3 s")


def test_what_blocks_before_the_handler_takes_no_time_of_another() -> None:
    """Such as a large body that is read."""
    loop = HandLoop()

    async def handle(message: Any) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    class Codec(BodyCodec[dict]):  # type: ignore[type-arg]
        def decode_checked(self, body: bytes) -> Any:
            if body == b'{"n": 1}':
                loop.block(3)
            return super().decode_checked(body)

    async def together() -> list[Outcome]:
        runner = Runner(spec_of(handle, timeout_s=1), Codec(dict), {})
        return await asyncio.gather(*(runner.run_async(record(b'{"n": %d}' % n)) for n in range(3)))

    first, _, last = on(loop, together)
    assert (first, last) == (None, None)


def test_a_batch_that_blocks_its_loop_takes_no_time_of_another() -> None:
    loop = HandLoop()

    async def handle(messages: Any) -> None:
        if len(messages) == 1:
            loop.block(3)
        for _ in range(20):
            await asyncio.sleep(0)

    async def together() -> Sequence[Sequence[Outcome] | None]:
        runner = Runner(spec_of(handle, timeout_s=1, batch_size=10), BodyCodec(dict), {})
        return await asyncio.gather(*(runner.run_batch_async([record()] * count) for count in (2, 1, 2)))

    first, blocking, last = on(loop, together)
    assert (first, last) == (None, None)  # done, all of both
    assert blocking == [Failure("timeout", "handler ran for more than 1 s")]


def test_a_coroutine_that_raises_when_its_time_is_up_tells_what_it_raised() -> None:
    async def clean_up(message: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("cleaning up") from None

    assert run(clean_up, timeout_s=0.01) == Failure("exception", "RuntimeError: cleaning up")


def test_work_that_nobody_waits_for_fails_the_message() -> None:
    """What is to be awaited is no answer, whatever becomes of it; only of what has not begun it is said that nothing has run."""

    async def coroutine() -> bool:
        return False

    async def async_generator() -> Any:
        yield 1

    class Awaitable:
        def __await__(self) -> Any:
            yield

    def done_future() -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(False)
        return future

    def failed() -> Any:
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        future.set_exception(ValueError())
        return future

    made: dict[str, tuple[Callable[[], Any], str]] = {
        "coroutine": (coroutine, "of which nothing has run"),
        "async generator": (async_generator, "of which nothing has run"),
        "task": (lambda: asyncio.get_running_loop().create_task(coroutine()), "for which nobody waits"),
        "future": (done_future, "for which nobody waits"),
        "awaitable": (Awaitable, "for which nobody waits"),
        "future of a thread": (failed, "for which nobody waits"),
    }

    async def run(make: Callable[[], Any]) -> Outcome:
        async def handle(message: Any) -> Any:
            return make()

        runner = Runner(HandlerSpec(handle, "jobs"), BodyCodec(dict), {})
        return await runner.run_async(encode_record(b"{}", flags=CODEC_JSON))

    for name, (make, said) in made.items():
        outcome = asyncio.run(run(make))
        assert isinstance(outcome, Failure), name
        assert (outcome.reason, said in outcome.error) == ("exception", True), outcome
