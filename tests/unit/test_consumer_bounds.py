"""What a consumer holds at a time, by its settings, and what of it goes back when it stops in order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import ignis
from ignis.consumer.dispatcher import Dispatcher
from ignis.consumer.pools.thread import _ThreadWorker
from tests.apps import jobs
from tests.conftest import MakeApp
from tests.support import WAIT_S, Gate, Journal, wait_idle

COUNT = 600
WORKERS, MAX_CHUNK, MAX_UNACKED, BATCH = 4, 4, 16, 10
BOUNDS = {
    "thread": MAX_UNACKED + WORKERS * 2 * MAX_CHUNK,
    "process": MAX_UNACKED + WORKERS * 2 * MAX_CHUNK,
    "batch": MAX_UNACKED + WORKERS * 2 * BATCH,
    "async": MAX_UNACKED + 2 * max(WORKERS, MAX_CHUNK),
    "async batch": MAX_UNACKED + WORKERS * 2 * BATCH,
}


@pytest.mark.parametrize("form", BOUNDS)
def test_what_a_consumer_has_claimed_is_bounded_by_its_settings(
    new_app: MakeApp, journal: Journal, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    settings = {"max_chunk": MAX_CHUNK, "max_unacked": MAX_UNACKED, "chunk_target_s": 10, "ack_linger_s": 0.02}
    app = new_app("memory://", consumer=settings)
    held: list[int] = []
    if form == "process":
        queue = jobs.register(app, "jobs", "process", concurrency=WORKERS)
    else:
        queue = app.queue("jobs", dict, shards=3)

        def handle(message: Any) -> None:
            held.append(queue.main.in_flight())

        async def handle_async(message: Any) -> None:
            held.append(queue.main.in_flight())
            await asyncio.sleep(0)

        if "batch" in form:
            queue.handler(handle_async if "async" in form else handle, concurrency=WORKERS, batch_size=BATCH)
        else:
            queue.handler(handle_async if form == "async" else handle, concurrency=WORKERS)
    queue.publish_many([{"n": n, "do": "none"} for n in range(COUNT)])
    app.start()
    deadline = time.monotonic() + WAIT_S
    while queue.main.pending() and time.monotonic() < deadline:
        held.append(queue.main.in_flight())
    wait_idle(queue)
    assert MAX_CHUNK < max(held) <= BOUNDS[form]


def test_as_many_batches_of_a_coroutine_function_run_as_were_asked_for(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=2)
    most, running = 0, 0
    full = asyncio.Event()

    @queue.handler(concurrency=6, batch_size=4)
    async def handle(numbers: list[int]) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        if running == 6:
            full.set()
        await asyncio.wait_for(full.wait(), WAIT_S)
        running -= 1

    queue.publish_many(range(6 * 4 * 3))
    app.start()
    wait_idle(queue)
    assert most == 6


def test_an_orderly_stop_reloads_what_it_had_not_begun(
    app: ignis.Ignis, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = app.queue("jobs", int, shards=1)
    monkeypatch.setattr(Dispatcher, "_window", lambda self: (4, 8))
    give_back = _ThreadWorker.give_back

    def give_back_and_open(worker: _ThreadWorker, *, stop: bool = False) -> None:
        give_back(worker, stop=stop)
        gate.open.set()

    monkeypatch.setattr(_ThreadWorker, "give_back", give_back_and_open)
    queue.handler(gate)
    queue.publish_many(range(40))
    app.start()
    gate.wait_entered()
    claimed = queue.main.in_flight()
    assert claimed > 1
    assert app.stop() is True
    app.start()
    wait_idle(queue)
    assert gate.seen == [0, *range(claimed, 40), *range(1, claimed)]
