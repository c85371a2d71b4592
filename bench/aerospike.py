"""Queues on Aerospike, beside the same work done call by call, on one real server.

Call by call is what the Java library does for each message: to publish, move the load pointer, write, count; to consume,
read the pointers, move the fire pointer, count, stamp, read, remove; by one thread and by several, which each have shards
of their own. Same driver, same server, same run, taking turns.
The server is the one that ``IGNIS_BENCH_AEROSPIKE=host:port/namespace`` names.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.latency import RATE, consume, produce
from bench.locks import VARIABLE
from bench.measure import Options, Recorder, Result
from bench.peers.base import MissingError, require_module
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.processes import BenchError, Task, run_together
from bench.tables import Goal, console, grid_table, latency_table, throughput_table

MESSAGES = 10_000
SHARDS = 32
BODY_BYTES = 256
CONSUMERS = (1, 4, 8, 16, 32, 50)
NAIVE = (1, 8, 50)
BATCH = 1_000
_LIMIT_S = 60.0
_FACTOR = 8
_CALLS_PER_MESSAGE = 0.05
_P99_NS = 20e6


class CallByCall:
    """One message at a time, by the driver alone. Thread-safe as the driver is."""

    name = "call by call"

    def __init__(self, address: str) -> None:
        import aerospike
        from aerospike_helpers.operations import operations

        where, _, self._namespace = address.partition("/")
        host, _, port = where.rpartition(":")
        self._operations = operations
        self._set = f"bench{os.getpid()}"
        self._client = aerospike.client({"hosts": [(host, int(port))], "max_conns_per_node": 2 * max(NAIVE)})
        self.calls = 0
        self._counting = threading.Lock()

    def close(self) -> None:
        self._client.truncate(self._namespace, f"{self._set}_data_set", 0)
        self._client.truncate(self._namespace, f"{self._set}_meta_set", 0)
        self._client.close()

    def _key(self, kind: str, name: str) -> tuple[str, str, str]:
        return self._namespace, f"{self._set}_{kind}_set", name

    def _raise(self, name: str, bin_name: str) -> int:
        ops = [self._operations.increment(bin_name, 1), self._operations.read(bin_name)]
        return int(self._client.operate(self._key("meta", name), ops)[2][bin_name])

    def publish(self, shard: int, body: str) -> None:
        pointer = self._raise(f"q_SHARD_{shard}_POINTERS", "LOAD_POINTER")
        bins = {"data": body, "modified_at": int(time.time() * 1000)}
        self._client.put(self._key("data", f"q_SHARD_{shard}_{pointer}"), bins)
        self._raise(f"q_SHARD_{shard}_COUNTERS", "LOAD_COUNTER")
        self.calls += 3

    def drain(self, shard: int) -> int:
        """Consumes one shard to its end."""
        count = 0
        while True:
            bins = self._client.get(self._key("meta", f"q_SHARD_{shard}_POINTERS"))[2]
            if bins.get("FIRE_POINTER", 0) >= bins["LOAD_POINTER"]:
                with self._counting:
                    self.calls += 6 * count + 1
                return count
            pointer = self._raise(f"q_SHARD_{shard}_POINTERS", "FIRE_POINTER")
            self._raise(f"q_SHARD_{shard}_COUNTERS", "FIRE_COUNTER")
            key = self._key("data", f"q_SHARD_{shard}_{pointer}")
            self._client.put(key, {"fireTS": int(time.time() * 1000)})
            self._client.get(key)
            self._client.remove(key)
            count += 1


@contextmanager
def opened(address: str, name: str) -> Iterator[tuple[Any, Any]]:
    """(application, queue), both gone afterwards."""
    from ignis import Ignis

    app = Ignis(f"aerospike://{address}", client_id=f"b{os.getpid()}", farm_id="bench")
    queue = app.queue(name, bytes, shards=SHARDS, shovel_interval=0)
    queue.open()
    try:
        yield app, queue
    finally:
        app.stop()
        app.store.magazines.drop(queue.main.name)
        app.store.magazines.drop(queue.sideline.name)
        app.store.queues.remove(name)
        app.close()


def publish_in_batches(address: str, result: Result) -> None:
    """Through ``publish_many``."""
    bodies = [b"x" * BODY_BYTES] * BATCH
    with opened(address, "publish") as (app, queue):
        queue.publish_many(bodies)  # the magazine is made by the first
        calls = app.store.connection.calls
        before, began = calls.total(), time.perf_counter()
        for _ in range(MESSAGES // BATCH):
            queue.publish_many(bodies)
        result.throughput.add(MESSAGES / (time.perf_counter() - began))
        result.extra["calls_per_message"] = round((calls.total() - before) / MESSAGES, 4)
        result.n += MESSAGES


def drain_with_consumers(address: str, consumers: int, result: Result) -> None:
    """Handlers that do nothing, acknowledged. Raises BenchError when a message is missing or came twice."""
    seen: list[bytes] = []

    def handle(body: bytes) -> None:
        seen.append(body)

    with opened(address, f"drain{consumers}") as (app, queue):
        queue.publish_many([b"%0*d" % (BODY_BYTES, n) for n in range(MESSAGES)])
        queue.handler(concurrency=consumers)(handle)
        calls = app.store.connection.calls
        before, began = calls.total(), time.perf_counter()
        app.start()
        while queue.consumer.counts.handled < MESSAGES and time.perf_counter() - began < _LIMIT_S:
            time.sleep(0.001)
        elapsed, used = time.perf_counter() - began, calls.total() - before
        left = queue.main.pending() + queue.main.in_flight()
    missing, twice = MESSAGES - len(set(seen)), len(seen) - len(set(seen))
    if left or twice or missing:
        raise BenchError(f"{consumers} consumers: {missing} not seen, {left} left, {twice} twice")
    result.throughput.add(MESSAGES / elapsed)
    result.extra["calls_per_message"] = max(result.extra.get("calls_per_message", 0), round(used / MESSAGES, 4))
    result.n += MESSAGES


class IgnisAerospike(IgnisEmbedded):
    """The same sessions as on the embedded store, on a server."""

    def __init__(self, address: str) -> None:
        super().__init__("none")
        self.name = "ignis on Aerospike"
        self._address = address

    def start(self, directory: Path) -> None:
        self.url = f"aerospike://{self._address}?client_id=l{os.getpid()}&farm_id=bench"


def latency(options: Options, address: str, result: Result) -> None:
    """One run at a steady rate between two processes."""
    seconds = 2.0 if options.quick else 10.0 * options.seconds
    peer, count = IgnisAerospike(address), int(RATE * seconds)
    peer.start(options.directory)
    tasks = [Task(produce, (peer, BODY_BYTES, count)), Task(consume, (peer, count, seconds + _LIMIT_S))]
    (held, _), (times, handled) = run_together(tasks, seconds + 2 * _LIMIT_S)
    result.n += len(times)
    result.throughput.add(handled)
    result.add_latencies(times)
    result.extra["published_per_s"] = round(held, 1)


def run(options: Options, recorder: Recorder) -> None:
    """Publish, drain by number of consumers, latency."""
    try:
        require_module("aerospike", "ignis-mq[aerospike]")
        address = os.environ.get(VARIABLE)
        if not address:
            raise MissingError(f"MISSING: no Aerospike server; set {VARIABLE}=host:port/namespace")
    except MissingError as exc:
        console.print(f"Aerospike: {exc}", style="bold red")
        recorder.write("aerospike", Result("ignis on Aerospike", problem=str(exc)))
        return
    publish = [
        Result("ignis on Aerospike", note=f"queue.publish_many, {BATCH:,} a call"),
        Result(CallByCall.name, note="3 client calls a message"),
    ]
    drains = {count: Result("ignis on Aerospike", parameters={"consumers": count}) for count in CONSUMERS}
    alone = {
        count: Result(CallByCall.name, note="6 client calls a message", parameters={"consumers": count})
        for count in NAIVE
    }
    for _ in range(options.runs):
        publish_in_batches(address, publish[0])
        for count, result in alone.items():
            _one_by_one(address, publish[1], result, count)
        for count, result in drains.items():
            drain_with_consumers(address, count, result)
    shape = f"{MESSAGES:,} messages of {BODY_BYTES} bytes, {SHARDS} shards"
    throughput_table(f"Aerospike, publish: {shape}", publish)
    factor = publish[0].throughput.median / publish[1].throughput.median
    Goal("publish against call by call", factor, _FACTOR).show()

    naive = [alone.get(count) for count in CONSUMERS]
    rows = [("ignis on Aerospike", list(drains.values())), (CallByCall.name, naive)]
    grid_table(f"Aerospike, drain by number of consumers, messages/s: {shape}", [str(n) for n in CONSUMERS], rows)
    one, most = drains[1].throughput.median, drains[CONSUMERS[-1]].throughput.median
    Goal("drain against call by call, 1 consumer", one / alone[1].throughput.median, _FACTOR).show()
    for count in NAIVE[1:]:
        factor = drains[count].throughput.median / alone[count].throughput.median
        Goal(f"drain against call by call, {count} consumers each", factor, 1).show()
    Goal(f"{CONSUMERS[-1]} consumers against 1", most / one, 0.9).show()
    calls = max(result.extra["calls_per_message"] for result in drains.values())
    Goal("client calls a message, the most of all", calls, _CALLS_PER_MESSAGE, at_most=True, unit="").show()

    delay = Result("ignis on Aerospike", note="queue.publish; handler, pool=thread, default polling")
    for _ in range(options.runs):
        latency(options, address, delay)
    latency_table(f"Aerospike, publish to handled at {RATE:,} messages/s, two processes", [delay], show_rate=True)
    Goal("p99 from publish to handled, ns", delay.latency("p99"), _P99_NS, at_most=True, unit="").show()
    recorder.write_all("aerospike", [*publish, *alone.values(), *drains.values(), delay])


def _one_by_one(address: str, publish: Result, drain: Result, threads: int) -> None:
    """As many shards as threads, if that is more."""
    peer, body, count, shards = CallByCall(address), "x" * BODY_BYTES, MESSAGES // 5, max(SHARDS, threads)
    try:
        began = time.perf_counter()
        for n in range(count):
            peer.publish(n % shards, body)
        between, published = time.perf_counter(), peer.calls
        with ThreadPoolExecutor(threads) as pool:
            done = sum(pool.map(peer.drain, range(shards)))
        ended = time.perf_counter()
    finally:
        calls = peer.calls
        peer.close()
    if done != count:
        raise BenchError(f"call by call: {count} in, {done} out")
    publish.throughput.add(count / (between - began))
    drain.throughput.add(count / (ended - between))
    publish.extra["calls_per_message"] = published / count
    drain.extra["calls_per_message"] = round((calls - published) / count, 4)
    publish.n, drain.n = publish.n + count, drain.n + count
