"""An application that was closed, or stopped, works again: with its queues and handlers, on a store that is opened anew."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import ClosedError, QueueMismatchError
from tests.apps import jobs
from tests.conftest import MakeApp
from tests.support import SHARED_THREADS, Journal, eventually, wait_idle
from tests.support.broker import running

CYCLES = 3


def ours() -> set[threading.Thread]:
    """The threads of this package. One of the store's stays for the process's life once it was needed."""
    return {
        one
        for one in threading.enumerate()
        if one.name.startswith("ignis") and not one.name.startswith(SHARED_THREADS) and "store" not in one.name
    }


def test_start_after_close(store_url: str, new_app: MakeApp) -> None:
    app, seen = new_app(store_url), []
    queue = app.queue("jobs", int, shards=3)
    layers: list[int] = []

    @app.middleware
    def layer(ctx: ignis.Context, call_next: Any) -> Any:
        layers.append(ctx.body)
        return call_next(ctx)

    queue.handler(seen.append, concurrency=2)
    before = ours()
    for n in range(CYCLES):
        app.start()
        queue.publish(n)
        eventually(lambda n=n: seen[-1:] == [n])  # type: ignore[misc]
        assert asyncio.run(queue.apublish(100 + n)).pointer >= 1
        eventually(lambda n=n: seen[-1:] == [100 + n])  # type: ignore[misc]
        app.close()
        assert not app.running
        eventually(lambda: ours() <= before)
    assert seen == layers
    assert app.queue("jobs") is queue
    assert queue.settings.shards == 3


def test_with_twice_and_what_was_published_in_between(store_url: str) -> None:
    app, seen = ignis.Ignis(store_url), []
    queue = app.queue("jobs", int)
    queue.handler(seen.append)
    for n in range(CYCLES):
        with app:
            app.start()
            queue.publish(2 * n)
            wait_idle(queue)
        queue.publish(2 * n + 1)  # opens the store again, without a start
        assert queue.main.pending() == 1
    with app:
        app.start()
        wait_idle(queue)
    assert sorted(seen) == list(range(2 * CYCLES))


def test_start_and_stop_many_times(app: ignis.Ignis) -> None:
    queue, seen = app.queue("jobs", int), []

    @queue.handler(concurrency=2)
    async def handle(message: int) -> None:
        seen.append(message)

    before = ours()
    for n in range(CYCLES):
        app.start()
        queue.publish(n)
        eventually(lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
        assert app.stop() is True
        eventually(lambda: ours() <= before)


def test_no_descriptor_is_left(embedded_url: str, new_app: MakeApp) -> None:
    app = new_app(embedded_url)
    app.queue("jobs", int).handler(lambda message: None)

    def cycle() -> int:
        app.start()
        app.close()
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("descriptors cannot be counted here")
    first = cycle()
    assert [cycle() for _ in range(CYCLES)] == [first] * CYCLES


def test_handles_of_before_stay_closed(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    magazine, publisher = queue.main, queue.publisher()
    publisher.close()
    app.close()
    queue.publish(1)
    assert queue.main is not magazine
    with pytest.raises(ClosedError):
        magazine.load(1)
    with pytest.raises(ClosedError):
        publisher.send(1)


def test_another_store_is_taken_up_with_its_own_settings(tmp_path: Path, new_app: MakeApp) -> None:
    for name, shards in (("first", 5), ("second", 7)):
        with ignis.Ignis(f"embedded://{tmp_path}/{name}") as other:
            other.queue("jobs", bytes, shards=shards).open()
    app = new_app(f"embedded://{tmp_path}/first")
    queue = app.queue("jobs")
    queue.handler(lambda message: None, concurrency=3)
    assert (queue.main.shards, queue.codec.name) == (5, "raw")
    queue.increase_consumers(2)
    app.close()
    assert (queue.consumers, queue.codec.name) == (3, "json")
    app.url = f"embedded://{tmp_path}/second"
    assert (queue.main.shards, queue.codec.name, queue.consumers) == (7, "raw", 3)


def test_what_is_stored_is_checked_again(tmp_path: Path, new_app: MakeApp) -> None:
    app = new_app(f"embedded://{tmp_path}/first")
    queue = app.queue("jobs", int, durability="sync")
    queue.open()
    app.close()
    with ignis.Ignis(f"embedded://{tmp_path}/second") as other:
        other.queue("jobs", int, durability="none").open()
    app.url = f"embedded://{tmp_path}/second"
    with pytest.raises(QueueMismatchError, match="durability"):
        queue.publish(1)


def test_other_settings_after_a_close(app: ignis.Ignis) -> None:
    queue, seen = app.queue("jobs", int, shards=2), []
    queue.handler(seen.append)
    queue.open()
    with pytest.raises(QueueMismatchError, match="shards = 2, now asked for with 8"):
        app.queue("jobs", int, shards=8)
    app.close()
    assert app.queue("jobs", dict, shards=8) is queue
    queue.publish({"n": 1})  # type: ignore[arg-type]
    assert queue.main.shards == 8
    app.start()
    eventually(lambda: seen == [{"n": 1}])


def test_queues_of_templates_are_found_again(store_url: str, new_app: MakeApp) -> None:
    with ignis.Ignis(store_url) as other:
        other.queue("orders.de", int).publish(1)
        app, seen = new_app(store_url), []
        app.handler("orders.*", int)(seen.append)
        for n in range(CYCLES):
            app.start()
            eventually(lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
            app.close()
            assert app.queues() == []
            other.queue("orders.de").publish(1)


def test_a_pause_ends_with_the_application(app: ignis.Ignis) -> None:
    queue, seen = app.queue("jobs", int), []
    queue.handler(seen.append)
    app.start()
    app.pause()
    app.close()
    assert not app.paused
    app.start()
    queue.publish(1)
    eventually(lambda: seen == [1])


def test_locks_of_before_do_not_lead(store_url: str, new_app: MakeApp) -> None:
    """The lead is given up with the close, and taken again."""
    app = new_app(store_url)
    queue = app.queue("jobs", int)
    queue.open()
    for _ in range(CYCLES):
        assert queue.sweep().swept == 0
        app.close()
        queue.publish(1)


def test_process_workers_start_again(embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    app = new_app(embedded_url)
    queue = jobs.register(app, "jobs", "process")
    for n in range(2):
        app.start()
        queue.publish({"do": "none", "n": n})
        wait_idle(queue)
        app.close()
    assert {"start 0", "start 1"} <= set(journal.lines())


def test_over_a_broker(embedded_url: str, new_app: MakeApp) -> None:
    with running(embedded_url) as broker:
        app, seen = new_app(broker.url), []
        queue = app.queue("jobs", int)
        queue.handler(seen.append)
        for n in range(CYCLES):
            app.start()
            asyncio.run(queue.apublish(n))
            eventually(lambda n=n: seen[-1:] == [n])  # type: ignore[misc]
            app.close()
