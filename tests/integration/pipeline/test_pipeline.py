"""Several processes on one directory: publishers, consumers, shovel and sweeper together."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from tests.support import WAIT_S, Journal, eventually, idle, reasons

pytestmark = pytest.mark.integration
MakeApp = Callable[..., ignis.Ignis]

PUBLISH = """
    import sys, ignis
    app = ignis.Ignis(sys.argv[1])
    queue = app.queue("numbers", int, shards=8, shovel_interval=0)
    first, way = int(sys.argv[2]), sys.argv[3]
    numbers = range(first, first + 400)
    if way == "one":
        for n in numbers[:40]:
            queue.publish(n, key=f"k{n % 10}")
        queue.publish_many(numbers[40:], key=lambda n: f"k{n % 10}")
    else:
        with queue.publisher(capacity=64) as publisher:
            for n in numbers:
                publisher.send(n, key=f"k{n % 10}")
    app.close()
"""

CONSUME = """
    import sys, ignis
    from tests.apps.jobs import note
    app = ignis.Ignis(sys.argv[1])
    queue = app.queue("numbers", int, shards=8, shovel_interval=0)

    @queue.handler(concurrency=2)
    def handle(n, ctx):
        note(n)
        return n % 50 != 0 or ctx.message.failures > 0

    app.run()
    app.close()
"""


def run(body: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")


def test_many_processes_on_one_directory(embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    queue = new_app(embedded_url).queue("numbers", int, shards=8, shovel_interval=0)
    queue.open()
    consumers = [run(CONSUME, embedded_url) for _ in range(2)]
    publishers = [run(PUBLISH, embedded_url, str(n * 400), way) for n, way in enumerate(["one", "ring"] * 2)]
    for process in publishers:
        finish(process)
    eventually(lambda: idle(queue) and queue.sideline.pending() == 32)
    assert reasons(queue) == {"rejected": 32}
    assert queue.shovel.run_once().moved == 32
    eventually(lambda: idle(queue) and not queue.sideline.pending())
    for process in consumers:
        process.send_signal(signal.SIGTERM)
    for process in consumers:
        finish(process)
    counts = journal.counts()
    assert sorted(counts, key=int) == [str(n) for n in range(1_600)], "nothing lost, nothing invented"
    assert all(count == (2 if int(n) % 50 == 0 else 1) for n, count in counts.items()), "nothing done twice"
    assert new_app(embedded_url).stats()["queues"] == []


def test_order_per_key_over_publishers_and_restarts(embedded_url: str, new_app: MakeApp) -> None:
    """One producer, one worker: each key's messages arrive in order, whichever way they were published."""
    seen: list[int] = []
    for start in range(0, 1_200, 400):
        finish(run(PUBLISH, embedded_url, str(start), "ring" if start else "one"))
    app = new_app(embedded_url)
    queue: ignis.Queue[Any] = app.queue("numbers", int, shards=8, shovel_interval=0)
    queue.handler(seen.append)
    app.start()
    eventually(lambda: len(seen) == 1_200)
    for k in range(10):
        assert [n for n in seen if n % 10 == k] == list(range(k, 1_200, 10))


def test_consumers_that_come_and_die(embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    """Consumers killed with -9 again and again: the sweeper recovers what they held, nothing is lost."""
    app = new_app(embedded_url)
    queue = app.queue("numbers", int, shards=8, shovel_interval=0)
    queue.publish_many([n * 50 + 1 for n in range(1_500)])
    for _ in range(3):
        before = len(journal.lines())
        process = run(CONSUME, embedded_url)
        eventually(lambda: len(journal.lines()) > before + 50 or idle(queue))  # noqa: B023
        process.kill()
        process.communicate(timeout=WAIT_S)
        app.sweeper().run_once()
        queue.shovel.run_once()
        assert queue.main.in_flight() == queue.sideline.in_flight() == 0
    last = run(CONSUME, embedded_url)
    eventually(lambda: idle(queue))
    last.send_signal(signal.SIGTERM)
    finish(last)
    assert set(journal.counts()) == {str(n * 50 + 1) for n in range(1_500)}
    assert queue.sideline.pending() == 0
