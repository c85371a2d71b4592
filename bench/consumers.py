"""Many consumers of one queue, and many queues with one each, in one process: does the rate hold, and what does a queue cost?

An embedded store, durability ``none``, thread handlers that do nothing. A run is a process of its own, which publishes a backlog,
starts the application and waits until the consumers have stored that all of it is done. Those of the last table write a line to a
file that all of them share, beside plain threads that write as many lines and have no queue. The memory of a queue is what a
process has more of its own (RssAnon) when all of them run and wait than it had before they were made.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import Options, Recorder, Result, Sample
from bench.memory import anonymous_bytes
from bench.processes import BenchError, Gate, Task, run_together
from bench.tables import Goal, console, grid_table

CONSUMERS = (1, 2, 5, 10, 25, 50)
QUEUES = (1, 10, 100, 1_000)
WRITERS = 300
"""Queues whose handler writes a line."""
RUNNING = (0, 1, 4, 16, 64)
"""By `consumer.max_running`."""
QUEUE_BYTES = 200 << 10
"""The most that a queue may take."""
_BACKLOG = 1_000_000
_SHARDS = 64
_SETTLED_S = 3.0
_LIMIT_S = 120.0


def _ignore(body: bytes) -> None:
    """The handler."""


def _drain(app: Any, queues: list[Any], count: int) -> float:
    """Messages a second, from when the application has started to the last acknowledgement. They are of all queues alike."""
    app.start()
    began = time.monotonic()
    for queue in queues:  # one behind the other: a look at a thousand takes the interpreter for a millisecond
        while (done := queue.consumer.counts.handled) < count // len(queues):
            if time.monotonic() > began + _LIMIT_S:
                raise BenchError(f"{done:,} messages of {queue.name} were handled in {_LIMIT_S:g} s")
            time.sleep(0.005)
    return count / (time.monotonic() - began)


def by_consumers(gate: Gate, directory: str, consumers: int, size: int, backlog: int) -> float:
    """The rate of so many consumers of one queue."""
    import ignis

    with ignis.Ignis(f"embedded://{directory}/store") as app:
        queue = app.queue("crowd", bytes, shards=_SHARDS, durability="none")
        queue.handler(concurrency=consumers)(_ignore)
        queue.publish_many([b"x" * size] * backlog)
        gate()
        return _drain(app, [queue], backlog)


def by_queues(gate: Gate, directory: str, queues: int, size: int, backlog: int) -> float:
    """The rate over so many queues with a consumer each."""
    import ignis

    with ignis.Ignis(f"embedded://{directory}/store") as app:
        return _drain_many(gate, app, queues, _ignore, size, backlog)


def _drain_many(gate: Gate, app: Any, queues: int, handler: Callable[[bytes], None], size: int, backlog: int) -> float:
    """Messages a second over so many queues, which share the backlog and the handler."""
    made = [app.queue(f"q{number}", bytes, shards=1, durability="none") for number in range(queues)]
    for queue in made:
        queue.handler(handler)
        queue.publish_many([b"x" * size] * (backlog // queues))
    gate()
    return _drain(app, made, backlog // queues * queues)


def by_running(gate: Gate, directory: str, most: int, size: int, backlog: int) -> float:
    """The rate over `WRITERS` queues whose handlers write a line each, where so many run at a time. 0 = all."""
    import ignis

    def write_line(body: bytes) -> None:
        lines.write("a line\n")

    with (
        open(f"{directory}/lines", "w", buffering=1, encoding="ascii") as lines,
        ignis.Ignis(f"embedded://{directory}/store", consumer={"max_running": most}) as app,
    ):
        return _drain_many(gate, app, WRITERS, write_line, size, backlog)


def without_queues(gate: Gate, directory: str, threads: int, size: int, backlog: int) -> float:
    """Lines a second of so many plain threads that write them to one file."""
    begin = threading.Event()

    def write_all() -> None:
        begin.wait()
        write = lines.write
        for _ in range(backlog // threads):
            write("a line\n")

    with open(f"{directory}/lines", "w", buffering=1, encoding="ascii") as lines:
        writers = [threading.Thread(target=write_all, daemon=True) for _ in range(threads)]
        for writer in writers:
            writer.start()
        gate()
        began = time.monotonic()
        begin.set()
        for writer in writers:
            writer.join(max(0.0, began + _LIMIT_S - time.monotonic()))
        if any(writer.is_alive() for writer in writers):
            raise BenchError(f"{threads} threads did not write {backlog:,} lines in {_LIMIT_S:g} s")
        return backlog // threads * threads / (time.monotonic() - began)


def bytes_of_queue(gate: Gate, directory: str, queues: int, size: int, backlog: int) -> float:
    """The memory that each of so many takes while its consumer waits."""
    import ignis

    logging.getLogger("ignis").setLevel(logging.ERROR)  # their handlers are registered late, which is logged
    with ignis.Ignis(f"embedded://{directory}/store") as app:
        app.queue("first", bytes, shards=1, durability="none").handler(_ignore)
        app.start()
        time.sleep(_SETTLED_S)
        gate()
        before = anonymous_bytes(os.getpid())
        for number in range(queues):
            app.queue(f"q{number}", bytes, shards=1, durability="none").handler(_ignore)
        time.sleep(_SETTLED_S)
        return (anonymous_bytes(os.getpid()) - before) / queues


def run(options: Options, recorder: Recorder) -> None:
    """A table for each, and the goals: a rate that does not fall, and the room of a queue."""
    backlog = _BACKLOG // (10 if options.quick else 1)
    consumers, queues = (CONSUMERS[:2], QUEUES[:2]) if options.quick else (CONSUMERS, QUEUES)
    _show("consumers", _measured(options, consumers, by_consumers, backlog), recorder)
    _show("queues", _measured(options, queues, by_queues, backlog), recorder)
    _show_writers(options, recorder)
    for count, sizes in _measured(options, queues[1:], bytes_of_queue, backlog).items():
        result = Result("ignis", "none", "RssAnon a queue that waits", {"queues": count}, n=len(sizes))
        result.extra["queue_bytes"] = Sample(sizes).as_json()
        recorder.write_all("consumers.memory", [result])
        each_kib, most_kib = Sample(sizes).median / 1024, QUEUE_BYTES / 1024
        Goal(f"a queue of {count:,}", each_kib, most_kib, at_most=True, unit=" KiB").show()
    console.print()


def _show_writers(options: Options, recorder: Recorder) -> None:
    """A table of the queues whose handlers write a line."""
    backlog = WRITERS * (10 if options.quick else 400)
    plain = _measured(options, (1, WRITERS), without_queues, backlog)
    found = _measured(options, RUNNING[:3] if options.quick else RUNNING, by_running, backlog)
    rows = []
    for name, word, rates in (("plain threads", "threads", plain), ("ignis", "max_running", found)):
        for count, samples in rates.items():
            result = Result(name, "none", f"writes a line, {WRITERS} queues", {word: count}, n=len(samples))
            result.throughput = Sample(list(samples))
            rows.append((f"{name}, {word} {count or 'all'}", [result]))
    grid_table(f"{WRITERS} queues whose handlers write a line, lines/s", ["to one file"], rows)
    recorder.write_all("consumers.writers", [result for _, results in rows for result in results])


def _measured(
    options: Options, counts: tuple[int, ...], function: Callable[..., float], backlog: int
) -> dict[int, list[float]]:
    """The results of all runs by count. The counts take turns."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(options.runs):
        for count, results in found.items():
            with TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
                task = Task(function, (str(Path(directory)), count, options.size_bytes, backlog))
                results.append(run_together([task], 2 * _LIMIT_S)[0])
    return found


def _show(word: str, found: dict[int, list[float]], recorder: Recorder) -> None:
    results = []
    for count, rates in found.items():
        result = Result("ignis", "none", f"thread handlers, {word}", {word: count}, n=len(rates))
        result.throughput = Sample(list(rates))
        results.append(result)
    titles = [f"{count:,}" for count in found]
    grid_table(f"Drain with acknowledgement by number of {word}, messages/s", titles, [("ignis", results)])
    ratio = results[-1].throughput.median / results[0].throughput.median
    Goal(f"{titles[-1]} {word} against {titles[0]}", ratio, 1.0).show()
    recorder.write_all(f"consumers.by_{word}", results)
