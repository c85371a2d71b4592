"""What ``await queue.apublish`` costs beside ``await publisher.send``: both return when their message is durable.

Coroutines publish one message after the other, in turns of the two calls in one process, and the figure is the wall time
a message. They share transactions, so that the time falls as their number grows.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ignis
from bench.measure import Options, Recorder, Result
from bench.peers.base import SYNC
from bench.processes import Gate, Task, run_together
from bench.tables import Goal, console, latency_table

TASKS = (1, 100, 1_000)
_TIMEOUT_S = 600.0

Call = Callable[[], Awaitable[Any]]


async def _each_ns(call: Call, tasks: int, seconds: float) -> int:
    """Nanoseconds a message while so many coroutines publish."""
    count = 0
    end = time.perf_counter() + seconds

    async def publish() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await call()
            count += 1

    began = time.perf_counter_ns()
    await asyncio.gather(*(publish() for _ in range(tasks)))
    return (time.perf_counter_ns() - began) // count


def measure(gate: Gate, directory: str, size: int, seconds: float, runs: int) -> dict[int, list[tuple[int, int]]]:
    """Number of coroutines -> (apublish, send) of each run, in turns so that a disturbance hits both."""
    body = b"x" * size
    found: dict[int, list[tuple[int, int]]] = {tasks: [] for tasks in TASKS}

    async def main(queue: ignis.Queue[bytes], publisher: ignis.Publisher[bytes]) -> None:
        async def send() -> str:
            return await publisher.send(body)

        for tasks in TASKS:
            await _each_ns(send, tasks, seconds / 4)
            await _each_ns(lambda: queue.apublish(body), tasks, seconds / 4)
            for _ in range(runs):
                sent = await _each_ns(send, tasks, seconds)
                found[tasks].append((await _each_ns(lambda: queue.apublish(body), tasks, seconds), sent))

    with ignis.Ignis(f"embedded://{directory}/store") as app:
        queue = app.queue("coroutines", bytes)
        gate()
        with queue.publisher() as publisher:
            asyncio.run(main(queue, publisher))
    return found


def run(options: Options, recorder: Recorder) -> None:
    """A table with a pair of rows for each number of coroutines, and the ratio of their medians."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        task = Task(measure, (directory, options.size_bytes, options.seconds, options.runs))
        found = run_together([task], _TIMEOUT_S)[0]
    results, ratios = [], {}
    for tasks, pairs in found.items():
        for index, what in enumerate(("await queue.apublish", "await publisher.send")):
            result = Result(f"{what}, {tasks:,} coroutines", SYNC, "wall time a message; durable on return")
            for pair in pairs:
                result.add_latencies([pair[index]])
            result.n = len(pairs)
            results.append(result)
        ratios[tasks] = statistics.median(apublish / send for apublish, send in pairs)
    latency_table(
        f"Publish from coroutines, {options.size_bytes}-byte messages", results, caption="each observation is one run"
    )
    for tasks, ratio in ratios.items():
        console.print(f"{tasks:,} coroutines: apublish takes {ratio:.2f} times as long as send")
    Goal("apublish beside send, 1,000 coroutines", ratios[TASKS[-1]], 1.5, at_most=True, unit=" times").show()
    recorder.write_all("apublish", results)
    console.print()
