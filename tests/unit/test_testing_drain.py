"""``ignis.testing.drain``: what waits is handled in this thread, and what handlers raise is raised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis.errors import ConfigError, HandlerTimeoutError, UnreadableMessageError, WaitTimeoutError
from ignis.native import CODEC_JSON, encode_record
from ignis.testing import Drained, ManualClock, adrain, drain, use_memory_store
from tests.support import WAIT_S, NewThreads, reasons, sidelined


@pytest.fixture
def queue(app: ignis.Ignis) -> ignis.Queue[int]:
    """Of an application on either store, by the machine's clock."""
    return app.queue("jobs", int, shards=2)


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    """Nothing is started for it."""
    threads = NewThreads()
    yield
    assert not [name for name in threads.named() if "store" not in name and "flusher" not in name]


def test_everything_is_handled_in_this_thread(queue: ignis.Queue[int]) -> None:
    threads: set[int] = set()

    @queue.handler(concurrency=8)
    def handle(message: int, ctx: ignis.Context) -> None:
        threads.add(threading.get_ident())
        assert ctx.message.failures == 0

    queue.publish_many(range(100))
    assert drain(queue) == Drained(done=100)
    assert threads == {threading.get_ident()}
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)
    assert drain(queue.app) == Drained()


def test_an_exception_is_raised_once_its_message_is_in_the_sideline(queue: ignis.Queue[int]) -> None:
    seen: list[int] = []

    @queue.handler
    def handle(message: int) -> None:
        seen.append(message)
        assert message != 1, "a check in the handler"

    for n in range(3):
        queue.publish(n, key="k")
    with pytest.raises(AssertionError, match="a check in the handler") as info:
        drain(queue)
    assert info.traceback[-1].name == "handle"
    assert seen == [0, 1]
    (message,) = sidelined(queue)
    assert (message.reason, message.failures) == ("exception", 1)
    assert message.error is not None
    assert "a check in the handler" in message.error
    assert drain(queue) == Drained(done=1)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize(
    ("options", "drained"),
    [
        ({"retry": ignis.Retry()}, Drained(retried=1)),
        ({"retry": ignis.Retry(attempts=2, base=0)}, Drained(done=1, retried=1)),
        ({"ignore": Exception}, Drained(dropped=1)),
        ({"attempts": 2}, Drained(done=1)),
        ({"attempts": 2, "batch_size": 2}, Drained(done=1)),
    ],
    ids=str,
)
def test_a_failed_check_is_raised_wherever_its_message_goes(
    app: ignis.Ignis, options: dict[str, Any], drained: Drained, coroutine: bool
) -> None:
    """With a retry the test was green."""
    queue, seen = app.queue("checks", int), []

    def handle(message: Any, ctx: ignis.Context) -> None:
        seen.append(ctx.attempt)
        assert ctx.attempt > 1, "a check in the handler"

    async def awaited(message: Any, ctx: ignis.Context) -> None:
        handle(message, ctx)

    queue.handler(**options)(awaited if coroutine else handle)
    queue.publish(1)
    with pytest.raises(AssertionError, match="a check in the handler"):
        drain(queue)
    assert queue.main.in_flight() == 0
    drain(queue)
    assert queue.main.pending() == 0

    queue.publish(1)
    seen.clear()
    assert drain(queue, raises=False) == drained
    assert seen[0] == 1


def test_raising_may_be_left_out(queue: ignis.Queue[int]) -> None:
    queue.handler(lambda message: 1 / message)  # type: ignore[arg-type, return-value]
    queue.publish(0)
    queue.publish(0)
    assert drain(queue, raises=False) == Drained(sidelined=2)
    assert reasons(queue) == {"exception": 2}


def test_outcomes_are_those_of_a_running_application(app: ignis.Ignis) -> None:
    queue, layers = app.queue("words", str), []
    counted: list[tuple[str, int, int]] = []
    app.after_handling(lambda *args: counted.append(args))

    @app.middleware
    def layer(ctx: ignis.Context, call_next: Any) -> Any:
        layers.append((ctx.body, ctx.attempt))
        return call_next(ctx)

    @queue.handler(ignore=KeyError, attempts=2)
    def handle(word: str) -> bool | None:
        if word == "ignored":
            raise KeyError
        if word == "once" and layers[-1] == ("once", 1):
            raise OSError("the first attempt")
        return word != "false"

    queue.publish_many(["fine", "ignored", "once", "false"], keys=["k"] * 4)
    assert drain(app) == Drained(done=2, dropped=1, sidelined=1)
    assert reasons(queue) == {"rejected": 1}
    assert layers == [("fine", 1), ("ignored", 1), ("once", 1), ("once", 2), ("false", 1), ("false", 2)]
    assert {name for name, _, _ in counted} == {"words"}
    assert (sum(one[1] for one in counted), sum(one[2] for one in counted)) == (3, 1)


def test_an_exception_of_an_earlier_attempt_is_not_the_outcome(queue: ignis.Queue[int]) -> None:
    @queue.handler(attempts=2)
    def handle(message: int, ctx: ignis.Context) -> bool:
        if ctx.attempt == 1:
            raise OSError
        return False

    queue.publish(1)
    assert drain(queue) == Drained(sidelined=1)
    assert reasons(queue) == {"rejected": 1}


def test_what_middleware_raises_is_raised(queue: ignis.Queue[int]) -> None:
    @queue.middleware
    def layer(ctx: ignis.Context, call_next: Any) -> Any:
        raise PermissionError("not you")

    queue.handler(lambda message: None)
    queue.publish(1)
    with pytest.raises(PermissionError, match="not you"):
        drain(queue)


@pytest.mark.parametrize("batch_size", [None, 10])
def test_middleware_that_is_a_coroutine_function_round_a_plain_handler(
    queue: ignis.Queue[int], batch_size: int | None
) -> None:
    layers: list[str] = []

    @queue.app.middleware
    async def outer(ctx: ignis.Context, call_next: Any) -> Any:
        await asyncio.sleep(0)
        layers.append("outer")
        return await call_next(ctx)

    @queue.middleware
    def inner(ctx: ignis.Context, call_next: Any) -> Any:
        layers.append("inner")
        return call_next(ctx)

    @queue.handler(batch_size=batch_size, attempts=2, timeout_s=30)
    def handle(message: Any) -> bool:
        layers.append("handler")
        if message in (1, [1]):
            raise ValueError("one")
        return message not in (2, [2])

    async def in_a_loop() -> Drained:
        with pytest.raises(ConfigError, match="adrain"):
            drain(queue)
        return await adrain(queue)

    queue.publish(0)
    assert drain(queue) == Drained(done=1)
    assert layers == ["outer", "inner", "handler"]
    queue.publish(0)
    assert asyncio.run(in_a_loop()) == Drained(done=1)
    queue.publish(1)
    with pytest.raises(ValueError, match="one"):
        drain(queue)
    queue.publish(1)
    with pytest.raises(ValueError, match="one"):
        asyncio.run(in_a_loop())
    queue.publish(2)
    assert asyncio.run(in_a_loop()) == Drained(sidelined=1)
    assert reasons(queue) == {"exception": 2, "rejected": 1}


def test_a_body_that_cannot_be_read(queue: ignis.Queue[int]) -> None:
    queue.handler(lambda message: pytest.fail("it was called"))
    queue.main.store.load_records("jobs", 0, [encode_record(b'"x"', flags=CODEC_JSON)])
    with pytest.raises(UnreadableMessageError, match=r"'jobs'.*Expected `int`, got `str`"):
        drain(queue)
    assert reasons(queue) == {"unreadable": 1}


def test_batches(queue: ignis.Queue[int]) -> None:
    sizes: list[int] = []

    @queue.handler(batch_size=4)
    def handle(messages: list[int], ctx: ignis.Context) -> list[bool]:
        sizes.append(len(messages))
        assert [one.id for one in ctx.messages]
        return [message % 5 != 0 for message in messages]

    queue.publish_many(range(10))
    assert drain(queue) == Drained(done=8, sidelined=2)
    assert sum(sizes) == 10
    assert max(sizes) == 4
    queue.publish(-1)
    assert drain(queue) == Drained(done=1)


def test_a_batch_that_raises(queue: ignis.Queue[int]) -> None:
    queue.handler(batch_size=4)(lambda messages: {}[len(messages)])
    queue.publish_many(range(3), keys=["k"] * 3)
    with pytest.raises(KeyError, match="3"):
        drain(queue)
    assert reasons(queue) == {"exception": 3}


def test_coroutines(queue: ignis.Queue[int]) -> None:
    seen: list[int] = []
    left: list[asyncio.Task[None]] = []

    @queue.handler(timeout_s=30)
    async def handle(message: int) -> None:
        left.append(asyncio.create_task(asyncio.sleep(3600)))
        await asyncio.sleep(0)
        seen.append(message)
        if message == 2:
            raise LookupError("two")

    for n in range(3):
        queue.publish(n, key="k")
    with pytest.raises(LookupError, match="two"):
        drain(queue)
    assert seen == [0, 1, 2]
    assert all(task.cancelled() for task in left)


def test_coroutines_in_the_tests_own_loop(queue: ignis.Queue[int]) -> None:
    loops: set[int] = set()

    @queue.handler
    async def handle(message: int) -> None:
        loops.add(id(asyncio.get_running_loop()))
        if message:
            raise LookupError

    @queue.app.queue("plain", int).handler
    def plain(message: int) -> None:
        loops.add(id(asyncio.get_running_loop()))

    async def main() -> None:
        await queue.apublish(0)
        await queue.app.queue("plain", int).apublish(0)
        assert await adrain(queue.app) == Drained(done=2)
        await queue.apublish(1)
        with pytest.raises(ConfigError, match="await adrain"):
            drain(queue)
        assert (queue.main.pending(), queue.main.in_flight()) == (1, 0)
        assert loops == {id(asyncio.get_running_loop())}

    asyncio.run(main())


def test_a_drain_that_is_cancelled_gives_back_what_it_was_at(queue: ignis.Queue[int]) -> None:
    begun = asyncio.Event()

    @queue.handler
    async def handle(message: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def main() -> None:
        await queue.apublish(1)
        draining = asyncio.create_task(adrain(queue))
        await asyncio.wait_for(begun.wait(), WAIT_S)
        draining.cancel()
        await asyncio.wait([draining])
        assert draining.cancelled()

    asyncio.run(main())
    assert (queue.main.pending(), queue.main.in_flight()) == (1, 0)


def test_a_coroutine_that_cancels_itself_has_failed(queue: ignis.Queue[int]) -> None:
    @queue.handler
    async def handle(message: int) -> None:
        raise asyncio.CancelledError

    queue.publish_many([1, 2])
    assert drain(queue, raises=False) == Drained(sidelined=2)
    assert reasons(queue) == {"exception": 2}


def test_a_coroutine_that_overruns(queue: ignis.Queue[int]) -> None:
    @queue.handler(timeout_s=0.01)
    async def handle(message: int) -> None:
        await asyncio.sleep(3600)

    queue.publish(1)
    with pytest.raises(HandlerTimeoutError, match=r"ran for more than 0\.01 s"):
        drain(queue)
    assert reasons(queue) == {"timeout": 1}


def test_a_handler_of_worker_processes_runs_here(app: ignis.Ignis) -> None:
    seen: list[int] = []
    queue = app.queue("jobs", int)

    def module_level(message: int) -> None:
        seen.append(message)

    module_level.__qualname__ = "module_level"
    queue.handler(pool="process")(module_level)
    queue.publish(1)
    assert drain(app) == Drained(done=1)
    assert seen == [1]


def test_publishers_and_what_handlers_publish(app: ignis.Ignis) -> None:
    first, second, seen = app.queue("first", int), app.queue("second", int), []
    with first.publisher(linger_s=10) as publisher, second.publisher() as onwards:
        first.handler(lambda message: onwards.send(message * 10) and None)
        second.handler(seen.append)
        publisher.send(1)
        publisher.send(2)
        assert drain(app) == Drained(done=4)
    assert sorted(seen) == [10, 20]


def test_a_handler_that_feeds_itself(queue: ignis.Queue[int]) -> None:
    queue.handler(lambda message: queue.publish(message) and None)
    queue.publish(1)
    with pytest.raises(WaitTimeoutError, match=r"more than 50 messages .*1 wait in queue 'jobs' \(limit\)"):
        drain(queue, limit=50)


def test_queues_that_a_pattern_fits(store_url: str, new_app: Any) -> None:
    seen: list[int] = []
    with ignis.Ignis(store_url) as other:
        other.queue("orders.de", int).publish(1)
        app = new_app(store_url)
        app.handler("orders.*", int)(seen.append)
        assert drain(app) == Drained(done=1)
    assert seen == [1]


def test_what_is_paused_waits(app: ignis.Ignis) -> None:
    queue, other = app.queue("jobs", int), app.queue("others", int)
    queue.handler(lambda message: None)
    other.handler(lambda message: None)
    queue.publish(1)
    other.publish(1)
    queue.pause()
    assert drain(app) == Drained(done=1)
    assert (queue.main.pending(), other.main.pending()) == (1, 0)
    app.pause()
    queue.resume()
    assert drain(queue) == Drained()
    app.resume()
    assert drain(queue) == Drained(done=1)


def test_what_is_refused(queue: ignis.Queue[int]) -> None:
    with pytest.raises(ConfigError, match="has no handler"):
        drain(queue)
    with pytest.raises(ConfigError, match="'jobs' is neither an application nor a queue"):
        drain("jobs")  # type: ignore[arg-type]
    queue.handler(lambda message: None)
    with pytest.raises(ConfigError, match="limit = 0"):
        drain(queue, limit=0)


def test_a_running_application_is_refused(memory_app: ignis.Ignis) -> None:
    memory_app.queue("jobs", int).handler(lambda message: None)
    memory_app.start()
    with pytest.raises(ConfigError, match="stop it before drain"):
        drain(memory_app)
    memory_app.stop()
    assert drain(memory_app) == Drained()


def test_the_registered_handler_is_as_it_was(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None)
    spec = queue.spec
    assert spec is not None
    drain(queue)
    assert queue.spec is spec
    assert spec.middleware == []


def test_an_application_that_exists_on_memory(embedded_url: str, new_app: Any) -> None:
    app, seen = new_app(embedded_url, store={"sync_interval_ms": 500}), []
    queue = app.queue("jobs", int)
    queue.handler(seen.append)
    for n in range(2):
        with use_memory_store(app) as clock:
            assert isinstance(clock, ManualClock)
            queue.publish(n)
            assert app.store.url == "memory://"
            assert drain(app) == Drained(done=1)
    assert seen == [0, 1]
    assert app.url == embedded_url
    queue.publish(7)
    assert app.store.url != "memory://"
    with pytest.raises(ConfigError, match="in use; close it before"), use_memory_store(app):
        pass
    app.close()
    assert queue.main.pending() == 1
    app.close()
    with pytest.raises(ConfigError, match="is not a ManualClock"), use_memory_store(app, clock=3):  # type: ignore[arg-type]
        pass


def test_schedules_go_by_the_clock_of_the_test() -> None:
    clock = ManualClock()
    with ignis.Ignis("memory://", clock=clock) as app:
        seen: list[str] = []
        jobs = app.queue("jobs", str)
        jobs.handler(seen.append)
        app.schedule("s", queue=jobs, message="due", every="1h", missed="all")
        assert drain(app) == Drained()
        clock.advance(3_599)
        assert drain(app) == Drained()
        clock.advance(7_201)
        assert drain(app) == Drained(done=3)
        assert seen == ["due"] * 3
