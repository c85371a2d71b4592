"""Delayed messages and retries on Aerospike while their processes are killed at any moment: none is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

import ignis
from ignis.storage.aerospike import remove
from tests.conftest import MakeApp
from tests.support import WAIT_S, Journal, eventually, sidelined
from tests.support import aerospike as aerospike_support

pytestmark = pytest.mark.integration

ROUNDS = 6
MESSAGES = 200
GOOD_AT = 3
STALE_MS = 1_500
"""Instead of half a minute, so that what a killed process was moving comes back within the test."""

PROGRAM = """
    import os, sys
    import ignis
    from ignis.storage.aerospike import remove

    url, path, stale_ms = sys.argv[1:]
    remove.MOVE_STALE_MS = int(stale_ms)
    app = ignis.Ignis(url, consumer={"max_chunk": 8, "max_claim": 16})
    queue = app.queue("jobs", int, shards=3, shovel_interval=0, max_returns=1_000)
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @queue.handler(concurrency=2, retry=ignis.Retry(attempts=6, base=0.02, factor=1.5, max=0.1))
    def handle(job: int, ctx: ignis.Context) -> None:
        os.write(journal, f"{job} {ctx.attempt}\\n".encode())
        if ctx.attempt < 3:
            raise RuntimeError(f"attempt {ctx.attempt}")

    app.start()
    print("runs", flush=True)
    sys.stdin.read()
    app.close()
"""


def test_kills_at_any_moment_lose_nothing(tmp_path: Path, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove, "MOVE_STALE_MS", STALE_MS)
    url = aerospike_support.url()
    client_id = url.partition("client_id=")[2]
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    journal = Journal(tmp_path / "journal")
    rng = random.Random(22)
    ahead_s = 0.0
    app = new_app(url, clock=lambda: time.time() + ahead_s)
    queue = app.queue("jobs", int, shards=3, shovel_interval=0, max_returns=1_000)
    queue.publish_many(range(MESSAGES // 2))
    queue.publish_many(range(MESSAGES // 2, MESSAGES), delay="1s")
    rounds = 0
    while rounds < ROUNDS or left(queue):
        assert rounds < 20 * ROUNDS
        rounds += 1
        process = subprocess.Popen(
            [sys.executable, str(program), url, str(journal.path), str(STALE_MS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == b"runs\n"
            some = rng.randrange(10, 90) if rounds <= ROUNDS else sys.maxsize
            advance(queue, journal, len(journal.lines()) + some)
            time.sleep(rng.random() / 20)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            process.stdin.close()
            process.stdout.close()
        queue.sweep()
        if unstamped(queue):  # killed between a claim and its stamp: only its age tells that nobody is at it
            ahead_s = 2 * queue.settings.stuck_after_s
            queue.sweep()
            ahead_s = 0.0
    assert sidelined(queue) == []
    calls: dict[int, Counter[int]] = {job: Counter() for job in range(MESSAGES)}
    for line in journal.lines():
        job, attempt = map(int, line.split())
        calls[job][attempt] += 1
    assert [job for job, seen in calls.items() if not seen[GOOD_AT]] == [], "a message is lost"
    assert {attempt for seen in calls.values() for attempt in seen} == set(range(1, GOOD_AT + 1))
    app.close(WAIT_S)
    aerospike_support.forget(aerospike_support.address(), [client_id])


def advance(queue: ignis.Queue[int], journal: Journal, wanted: int) -> None:
    """Waits until so many lines are there, or nothing is left; from one line to the next the usual time at most."""

    def moved() -> bool:
        # What a killed process was moving cannot be recovered before that is stale; the sweeper's first pass is minutes away.
        queue.sweep()
        queue.shovel.run_scheduled()
        return len(journal.lines()) > seen or not left(queue)

    while (seen := len(journal.lines())) < wanted and left(queue):
        eventually(moved)


def unstamped(queue: ignis.Queue[int]) -> bool:
    magazines = queue.main.store
    claims = [one for shard in range(3) for one in magazines.abandoned("jobs", shard, 1 << 53, MESSAGES)]
    return any(not one.owner for one in claims)


def left(queue: ignis.Queue[int]) -> int:
    return at_work(queue) + queue.sideline.pending()


def at_work(queue: ignis.Queue[int]) -> int:
    # What is moved may be between two magazines: looked at from both sides.
    return sum(
        len(queue.later) + queue.main.pending() + queue.main.in_flight() + queue.sideline.in_flight() for _ in range(3)
    )
