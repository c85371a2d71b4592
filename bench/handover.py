"""What a change of threads costs inside the broker, beside the small write that it could be made for.

There and back between an event loop and a thread, through each way that there is, and the embedded store's transaction
made on the spot. All in one process, in turn, hot (one after the other) and cold (1,000 a second, as at that rate of
messages). The decision that rests on it is in ``docs/broker.md``.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Options, Recorder, Result
from bench.peers.base import MissingError, require_module
from bench.tables import latency_table

_HOT, _COLD = 5_000, 1_000
_COLD_S = 0.001

Step = Callable[[], Awaitable[None]]


class _Helper:
    """A thread that gives back what it is given, through one way or the other."""

    def __init__(self, take: Callable[[], object], give: Callable[[object], object]) -> None:
        self._take = take
        self._give = give
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (item := self._take()) not in (None, b""):
            self._give(item)


async def _measure(step: Step, count: int, pause_s: float) -> list[int]:
    times = []
    for _ in range(count):
        if pause_s:
            await asyncio.sleep(pause_s)
        began = time.perf_counter_ns()
        await step()
        times.append(time.perf_counter_ns() - began)
    return times


async def _ways(directory: Path, options: Options) -> list[Result]:
    from ignis.native import Channel, PackedBatch, encode_record
    from ignis.storage import open_store
    from ignis.storage.write_batch import WriteBatch

    loop = asyncio.get_running_loop()
    steps: list[tuple[str, str, Step]] = []

    there: queue.SimpleQueue[object] = queue.SimpleQueue()
    waiting: list[asyncio.Future[None]] = []
    _Helper(there.get, lambda item: loop.call_soon_threadsafe(lambda: waiting.pop().set_result(None)))

    async def through_loop() -> None:
        waiting.append(loop.create_future())
        there.put(b"x")
        await waiting[0]

    steps.append(("loop, thread, loop", "a queue there, call_soon_threadsafe back", through_loop))

    ask: queue.SimpleQueue[object] = queue.SimpleQueue()
    answer: queue.SimpleQueue[object] = queue.SimpleQueue()
    _Helper(ask.get, answer.put)

    async def through_queue() -> None:
        ask.put(b"x")
        answer.get()

    steps.append(("two threads, queue", "SimpleQueue there and back", through_queue))

    out, back = Channel.heap(), Channel.heap()
    _Helper(lambda: out.recv(60.0), lambda item: back.send(b"x"))

    async def through_channel() -> None:
        out.send(b"x")
        back.recv(60.0)

    steps.append(("two threads, Channel", "the native ring there and back", through_channel))

    store = open_store(f"embedded://{directory}/store")
    store.magazines.declare("m", 32, "none")
    record = encode_record(b"x" * options.size_bytes)
    store.magazines.load_records("m", 0, [record])
    skipped = 0

    async def on_the_spot() -> None:
        nonlocal skipped
        write = WriteBatch("m", [(0, PackedBatch.pack([record]))])
        store.magazines.try_together([write])
        if not write.done:  # the file has to grow, which happens now and then
            skipped += 1
            store.magazines.load("m", write.batches or (), None)

    steps.append(("ignis, on the spot", "try_together of one message, durability none", on_the_spot))
    results = []
    for name, how, step in steps:
        for word, count, pause_s in (("hot", _HOT, 0.0), ("cold", _COLD, _COLD_S)):
            result = Result(f"{name}, {word}", note=how, parameters={"pause_s": pause_s})
            times = await _measure(step, count // (10 if options.quick else 1), pause_s)
            result.n = len(times)
            result.add_latencies(times)
            results.append(result)
    there.put(None)
    ask.put(None)
    out.send(b"")
    results[-1].extra["skipped"] = skipped
    store.close()
    return results


def run(options: Options, recorder: Recorder) -> None:
    """One table; on the event loop that the broker uses."""
    try:
        require_module("uvloop", "uvloop")
    except MissingError as exc:
        result = Result("handover", problem=str(exc))
        latency_table("Hand-over", [result])
        recorder.write_all("handover", [result])
        return
    import uvloop

    with TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        loop = uvloop.new_event_loop()
        try:
            results = loop.run_until_complete(_ways(Path(directory), options))
        finally:
            loop.close()
    latency_table("Hand-over inside the broker, there and back, beside the write itself", results)
    recorder.write_all("handover", results)
