"""Coroutines that wait for nothing share a task, and must not notice it; one that waits has a task of its own."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ignis
from ignis.errors import ConsumerLimitError
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually

SEEN: contextvars.ContextVar[int] = contextvars.ContextVar("SEEN", default=0)
COUNT = 500


def drained(app: ignis.Ignis, queue: ignis.Queue[Any]) -> None:
    app.start()
    eventually(lambda: queue.main.pending() == 0 and queue.main.in_flight() == 0)


def test_each_message_has_context_variables_of_its_own(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    seen: list[tuple[int, int]] = []

    @queue.handler(concurrency=3)
    async def handle(message: int) -> None:
        before = SEEN.get()
        SEEN.set(message)
        if message % 7 == 0:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        seen.append((before, SEEN.get() - message))

    queue.publish_many(range(1, COUNT + 1))
    drained(memory_app, queue)
    assert seen == [(0, 0)] * COUNT


def test_what_needs_a_task_finds_one(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    failed: list[BaseException] = []

    @queue.handler(concurrency=5, timeout_s=30)
    async def handle(message: int) -> None:
        try:
            assert asyncio.current_task() is not None
            await asyncio.wait_for(asyncio.sleep(0), 20)
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
            if hasattr(asyncio, "timeout"):
                async with asyncio.timeout(20):
                    await asyncio.sleep(0)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await asyncio.sleep(1)
        except BaseException as exc:
            failed.append(exc)

    queue.publish_many(range(50))
    drained(memory_app, queue)
    assert failed == [] and queue.sideline.pending() == 0


def test_those_that_wait_have_a_task_each(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    tasks: list[Any] = []

    @queue.handler(concurrency=4)
    async def handle(message: int) -> None:
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    queue.publish_many(range(60))
    drained(memory_app, queue)
    assert len({id(task) for task in tasks}) == 60


def test_who_cancels_its_own_task_cancels_no_other_message(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    done: list[int] = []
    told: list[int] = []

    @queue.handler(concurrency=2)
    async def handle(message: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        if message == 20:
            task.cancel()
            return
        if message == 40:
            task.add_done_callback(lambda _: told.append(len(done)))
        if message in (21, 22, 41):
            await asyncio.sleep(0.01)
        done.append(message)

    queue.publish_many(range(60))
    drained(memory_app, queue)
    assert sorted(done) == [one for one in range(60) if one != 20]
    assert queue.sideline.pending() == 0
    eventually(lambda: told)
    assert told[0] < 60


def test_somebody_who_cancels_all_tasks_loses_no_message(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    done: list[int] = []

    @queue.handler(concurrency=10)
    async def handle(message: int) -> None:
        if message == 30:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        if message % 2:
            await asyncio.sleep(0.001)
        done.append(message)

    queue.publish_many(range(100))
    drained(memory_app, queue)
    assert len(done) + queue.sideline.pending() == 100
    assert queue.sideline.pending() < 11


def test_a_message_that_never_ends_holds_up_no_other(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    done: list[int] = []

    @queue.handler(concurrency=2, timeout_s=0.3)
    async def handle(message: int) -> None:
        if message == 5:
            await asyncio.sleep(600)
        done.append(message)

    queue.publish_many(range(100))
    drained(memory_app, queue)
    assert done == [one for one in range(100) if one != 5]
    [late] = queue.sideline.peek(1)
    assert late.envelope.reason == "timeout" if hasattr(late, "envelope") else True


def test_no_more_run_at_a_time_than_are_asked_for(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    running, most = [0], [0]

    @queue.handler(concurrency=7)
    async def handle(message: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        if message % 3:
            await asyncio.sleep(0.001)
        running[0] -= 1

    queue.publish_many(range(300))
    drained(memory_app, queue)
    assert most == [7]


def test_quick_coroutines_leave_the_loop_to_others(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    late_s: list[float] = []

    @queue.handler(concurrency=2)
    async def handle(message: int) -> None:
        if message == 0:
            while queue.main.pending():
                began = time.monotonic()
                await asyncio.sleep(0.001)
                late_s.append(time.monotonic() - began)
        else:
            time.sleep(0.0001)  # noqa: ASYNC251 - it is to block

    queue.publish_many(range(3_000))
    drained(memory_app, queue)
    assert len(late_s) > 20, "it had its turn while the others ran"


def test_a_body_that_ends_python_fails_its_message_alone(memory_app: ignis.Ignis) -> None:
    from dataclasses import dataclass

    @dataclass
    class Order:
        id: int

        def __post_init__(self) -> None:
            if self.id == 3 and reading:
                raise SystemExit(3)

    reading: list[int] = []
    queue = memory_app.queue("jobs", Order)
    done: list[int] = []

    @queue.handler
    async def handle(order: Order) -> None:
        done.append(order.id)

    queue.publish_many([Order(one) for one in range(6)])
    reading.append(1)
    drained(memory_app, queue)
    assert (done, queue.sideline.pending()) == ([0, 1, 2, 4, 5], 1)


def test_a_thousand_coroutines(new_app: MakeApp, memory_url: str) -> None:
    app = new_app(memory_url)
    queue = app.queue("jobs", int)
    running, most = [0], [0]

    @queue.handler(concurrency=1_000)
    async def handle(message: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        if running[0] < 1_000 and most[0] < 1_000:
            await asyncio.sleep(0.3)
        running[0] -= 1

    queue.publish_many(range(2_000))
    drained(app, queue)
    assert most == [1_000]
    with pytest.raises(
        ConsumerLimitError, match=r"1001 consumers asked for, the limit is 1000 \(consumer.max_coroutines\)"
    ) as limited:
        queue.increase_consumers(1)
    copied = pickle.loads(pickle.dumps(limited.value))
    assert vars(copied) == vars(limited.value) and copied.setting == "consumer.max_coroutines"
    raised = new_app(memory_url, consumer={"max_coroutines": 1_500})
    raised.queue("more", int).handler(handle, concurrency=1_001)
    with pytest.raises(ConsumerLimitError, match=r"consumer.max_consumers"):
        raised.queue("threads", int).handler(lambda message: None, concurrency=101)


def test_a_stop_that_breaks_off_a_handler_closes_what_its_loop_has_open(
    memory_url: str, new_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app, closed = new_app(memory_url), threading.Event()
    queue = app.queue("slow", int)

    async def rows() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    generator = rows()  # outlives its handler

    @queue.handler
    async def handle(number: int) -> None:
        await generator.__anext__()
        await asyncio.sleep(WAIT_S)

    app.start()
    queue.publish(1)
    eventually(lambda: queue.main.in_flight() == 1 and queue.consumer is not None and queue.consumer.in_flight == 1)
    time.sleep(0.05)
    app.close(timeout=0.1)
    assert closed.wait(WAIT_S)
    assert "worker_broken" not in caplog.text and "event loop of" not in caplog.text
