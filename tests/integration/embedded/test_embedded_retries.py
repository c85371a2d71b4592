"""Retries on the embedded store when the application is killed: nothing is lost, and every attempt has its number."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import ignis
from tests.conftest import MakeApp
from tests.support import WAIT_S, Journal, eventually, sidelined

pytestmark = pytest.mark.integration

ROUNDS = 4
MESSAGES = 150
GOOD_AT = 4

PROGRAM = """
    import os, sys
    import ignis

    url, path = sys.argv[1:]
    app = ignis.Ignis(url, consumer={"max_chunk": 16, "max_claim": 32})
    queue = app.queue("jobs", int, shards=3, shovel_interval=0, max_returns=1_000)
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @queue.handler(concurrency=2, retry=ignis.Retry(attempts=6, base=0.01, factor=1.5, max=0.05))
    def handle(job: int, ctx: ignis.Context) -> None:
        os.write(journal, f"{job} {ctx.attempt} {len(ctx.message.history)}\\n".encode())
        if ctx.attempt < 4:
            raise RuntimeError(f"attempt {ctx.attempt}")

    app.start()
    print("runs", flush=True)
    sys.stdin.read()
    app.close()
"""


def test_a_kill_between_failure_and_retry(tmp_path: Path, new_app: MakeApp) -> None:
    url = f"embedded://{tmp_path}/store"
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    journal = Journal(tmp_path / "journal")
    rng = random.Random(16)
    app = new_app(url)
    queue = app.queue("jobs", int, shards=3, shovel_interval=0, max_returns=1_000)
    queue.publish_many(range(MESSAGES))
    rounds = 0
    while rounds < ROUNDS or left(queue):
        assert rounds < 20 * ROUNDS
        rounds += 1
        process = subprocess.Popen(
            [sys.executable, str(program), url, str(journal.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == b"runs\n"
            # What was swept goes on where it was, as by the schedule of the shovel: that counts no attempt.
            queue.shovel.run_scheduled()
            if rounds <= ROUNDS:
                before = len(journal.lines())
                some = rng.randrange(5, 60)
                eventually(lambda before=before, some=some: len(journal.lines()) >= before + some or not left(queue))
                time.sleep(rng.random() / 50)
            else:
                eventually(lambda: not at_work(queue))
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            process.stdin.close()
            process.stdout.close()
        queue.sweep()
    assert sidelined(queue) == []
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in journal.lines():
        job, attempt, history = map(int, line.split())
        seen[job].append((attempt, history))
    assert set(seen) == set(range(MESSAGES)), "a message is lost"
    for job, calls in seen.items():
        attempts = [attempt for attempt, _ in calls]
        # A call that was noted and not stored is made again under its number; none is left out, and none is counted twice.
        assert attempts == sorted(attempts), (job, calls)
        assert set(attempts) == set(range(1, GOOD_AT + 1)), (job, calls)
        assert all(history >= attempt - 1 for attempt, history in calls), (job, calls)


def left(queue: ignis.Queue[int]) -> int:
    return at_work(queue) + queue.sideline.pending()


def at_work(queue: ignis.Queue[int]) -> int:
    # What waits for its next attempt may be between two magazines: looked at from both sides.
    return sum(
        len(queue.later) + queue.main.pending() + queue.main.in_flight() + queue.sideline.in_flight() for _ in range(3)
    )


def test_a_restart_keeps_the_time_and_the_count(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    seen: list[tuple[int, str | None]] = []

    def handle(job: str, ctx: ignis.Context) -> None:
        seen.append((ctx.attempt, ctx.last_error))
        raise RuntimeError(f"attempt {ctx.attempt}")

    def run(attempts: int) -> datetime | None:
        with ignis.Ignis(url) as app:
            queue = app.queue("jobs", str, shards=1, shovel_interval=0)
            queue.handler(retry=ignis.Retry(attempts=5, base="1h", factor=2, max="1d", jitter=False))(handle)
            app.start()
            eventually(lambda: len(seen) == attempts and len(queue.later) == 1)
            return queue.later.next_due()

    with ignis.Ignis(url) as app:
        app.queue("jobs", str, shards=1, shovel_interval=0).publish("a")
    before = datetime.now(timezone.utc)
    first = run(1)
    assert first is not None and timedelta(minutes=59) < first - before < timedelta(minutes=61)
    again = run(1)
    assert again is not None and abs(again - first) < timedelta(seconds=5), "the same time, and no call in between"
    with ignis.Ignis(url) as app:
        queue = app.queue("jobs", str)
        (waiting,) = queue.later.list()
        assert waiting.id is not None and queue.later.run_now(waiting.id) == 1
    before = datetime.now(timezone.utc)
    second = run(2)
    assert second is not None and timedelta(minutes=119) < second - before < timedelta(minutes=121)
    assert seen == [(1, None), (2, "RuntimeError: attempt 1")]
