"""What queues cost that nothing happens on: threads, and the share of a core, of one process that has many with handlers.

Each run is a process of its own. It starts the application, lets it settle, and then counts what the process uses in a
while in which nobody publishes. At the end one message goes through each of some queues, to show that they are awake.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ignis

_SETTLE_S = 4.0
_PROBES = 20
_WAIT_S = 30.0


def measure_once(scheme: str, queues: int, pool: str, seconds: float) -> dict[str, float]:
    """In the process that is measured."""
    handled: list[int] = []

    def plain(message: int) -> None:
        handled.append(message)

    async def coroutine(message: int) -> None:
        await asyncio.sleep(0)
        handled.append(message)

    with tempfile.TemporaryDirectory() as directory:
        url = "memory://" if scheme == "memory" else f"{scheme}://{Path(directory) / 'store'}"
        with ignis.Ignis(url) as app:
            made = [app.queue(f"q{number}", int, shards=1) for number in range(queues)]
            for queue in made:
                queue.handler(coroutine if pool == "async" else plain)
            app.start()
            time.sleep(_SETTLE_S)
            threads = len(threading.enumerate())
            began, used = time.monotonic(), _cpu_s()
            time.sleep(seconds)
            share = (_cpu_s() - used) / (time.monotonic() - began)
            first_ms = []
            for queue in made[:_PROBES]:
                before, sent = len(handled), time.monotonic()
                queue.publish(1)
                while len(handled) == before and time.monotonic() < sent + _WAIT_S:
                    time.sleep(0.00005)
                first_ms.append((time.monotonic() - sent) * 1000)
            if len(handled) != len(first_ms):
                raise SystemExit(f"{len(handled)} of {len(first_ms)} messages were handled")
    return {"threads": threads, "core_percent": 100 * share, "first_message_ms": statistics.median(first_ms)}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="embedded", choices=("embedded", "memory"))
    parser.add_argument("--queues", type=int, nargs="+", default=[200, 1_000])
    parser.add_argument("--pool", nargs="+", default=["thread", "async"], choices=("thread", "async"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure_once(asked.store, asked.queues[0], asked.pool[0], asked.seconds)))
        return
    print("store     pool    queues  threads  % of a core  first message, ms (with its publish)")
    for pool in asked.pool:
        for queues in asked.queues:
            runs = [_run(asked.store, queues, pool, asked.seconds) for _ in range(asked.runs)]
            threads, percent, first_ms = (
                statistics.median(run[name] for run in runs) for name in ("threads", "core_percent", "first_message_ms")
            )
            print(f"{asked.store:9} {pool:7} {queues:6}  {threads:7.0f}  {percent:11.2f}  {first_ms:.2f}", flush=True)


def _run(store: str, queues: int, pool: str, seconds: float) -> dict[str, float]:
    command = [
        sys.executable, "-m", "bench.idle", "--one", "--store", store, "--queues", str(queues), "--pool", pool,
        "--seconds", str(seconds),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
