"""How long messages were in their handler: each with its own time, whatever worker it had and however its call ended."""

from __future__ import annotations

import time
from typing import Any

import pytest

import ignis
from ignis.consumer.pools.process_worker import ProcessWorker
from ignis.figures import HANDLING
from ignis.native import CODEC_JSON, encode_record
from tests.apps import jobs
from tests.support import Journal, eventually, sidelined, wait_idle

POOLS = ["thread", "async", "process"]
LONG_S = 0.2
"""A bound of the buckets that lies below `jobs.NAP_S` and below the time-out of "timed"."""


def counted(queue: ignis.Queue[Any]) -> tuple[int, int]:
    """(all, those that took longer than `LONG_S`)."""
    counts = queue.local_stats()["times"]["handling"]["counts"]
    return sum(counts), sum(counts[HANDLING.bounds_s.index(LONG_S) + 1 :])


def counted_all(queue: ignis.Queue[Any], count: int) -> int:
    """How many of so many took longer than `LONG_S`, once all are accounted for."""
    wait_idle(queue)
    eventually(lambda: counted(queue)[0] >= count, f"{count} durations")
    number, long = counted(queue)
    assert number == count
    return long


@pytest.mark.parametrize("pool", POOLS)
def test_a_slow_message_among_quick_ones_is_counted_as_slow(
    memory_app: ignis.Ignis, journal: Journal, pool: str
) -> None:
    queue = jobs.register(memory_app, "jobs", pool)
    queue.publish_many([{"n": n, "do": "nap" if n == 7 else "none"} for n in range(50)])
    memory_app.start()
    assert 1 <= counted_all(queue, 50) < 50
    assert queue.local_stats()["times"]["handling"]["sum_s"] > LONG_S


def test_without_anything_between_worker_and_handler_too(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("q", dict)
    queue.handler(lambda body, ctx: time.sleep(jobs.NAP_S) if body["n"] == 7 else None)
    queue.publish_many([{"n": n} for n in range(50)])
    memory_app.start()
    assert 1 <= counted_all(queue, 50) < 50


def test_coroutines_beside_each_other_take_their_own_time_each(memory_app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(memory_app, "jobs", "async", concurrency=20)
    queue.publish_many([{"n": n, "do": "nap"} for n in range(20)])
    memory_app.start()
    assert counted_all(queue, 20) == 20


@pytest.mark.parametrize("pool", POOLS)
def test_what_failed_and_what_was_dropped_is_counted(memory_app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(memory_app, "jobs", pool)
    what = ["none", "raise", "ignore", "false", "text", "dropped"]
    queue.publish_many([{"n": n, "do": do} for n, do in enumerate(what)])
    memory_app.start()
    counted_all(queue, len(what))


@pytest.mark.parametrize("pool", POOLS)
def test_a_message_of_a_batch_has_the_time_of_the_call(memory_app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(memory_app, "batches", pool)
    queue.publish_many([{"n": n, "do": "none", "whole": "nap"} for n in range(5)])
    memory_app.start()
    assert counted_all(queue, 5) == 5


@pytest.mark.parametrize("pool", POOLS)
def test_a_time_out_counts_what_it_took(memory_app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(memory_app, "timed", pool)
    queue.publish_many([{"n": 1, "do": "none"}, {"n": 2, "do": "hold", "until": "go"}, {"n": 3, "do": "none"}])
    memory_app.start()
    eventually(lambda: [one.reason for one in sidelined(queue)] == ["timeout"])
    assert counted_all(queue, 3) >= 1
    journal.path.with_name(f"{journal.path.name}.go").touch()
    eventually(lambda: pool != "thread" or not queue.stats()["consumer"]["lost_threads"])
    counted_all(queue, 3)


def test_what_a_killed_process_was_at_is_counted(memory_app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(memory_app, "jobs", "process")
    queue.publish_many([{"n": n, "do": "die" if n == 7 else "none"} for n in range(20)])
    memory_app.start()
    eventually(lambda: [one.reason for one in sidelined(queue)] == ["crash"])
    counted_all(queue, 20)


@pytest.mark.parametrize("pool", POOLS)
def test_what_no_handler_got_is_not_counted(memory_app: ignis.Ignis, journal: Journal, pool: str) -> None:
    queue = jobs.register(memory_app, "jobs", pool)
    queue.main.store.load_records("jobs", 0, [encode_record(b"{", flags=CODEC_JSON)])
    queue.publish({"n": 1, "do": "none"})
    memory_app.start()
    eventually(lambda: [one.reason for one in sidelined(queue)] == ["unreadable"])
    counted_all(queue, 1)


def test_for_how_long_a_process_is_at_its_message(memory_app: ignis.Ignis, journal: Journal) -> None:
    """Without a time-out it was for as long as the machine runs."""
    queue = jobs.register(memory_app, "jobs", "process")
    queue.publish({"n": 1, "do": "hold", "until": "go"})
    memory_app.start()
    eventually(lambda: journal.lines() == ["start 1"])
    assert queue.consumer is not None
    [worker] = queue.consumer._pool.workers
    assert isinstance(worker, ProcessWorker)
    running = worker.running()
    assert running is not None
    assert running[2] is not None
    assert 0 <= running[2] <= time.monotonic() - worker.started_at
    journal.path.with_name(f"{journal.path.name}.go").touch()
    counted_all(queue, 1)
