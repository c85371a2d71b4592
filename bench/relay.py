"""The relay: what a publish costs its caller, and what one process stores for many.

Paced: each of the producers sends ten messages a millisecond, call by call, which the relay keeps up with: what a request
handler sees. Saturated: as fast as the loops go, so that the channels fill, and the clock stops when everything is
stored: at every size and number of producers. Beside it the same producers with a publisher on the store itself, which is
what the relay is to save them: each holds the store open, and each waits for its lock.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.measure import Options, Recorder, Result
from bench.peers.base import INTERVAL, NONE, PROMISES, SYNC, MissingError
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.peers.ignis_relay import IgnisRelay
from bench.processes import BenchError, Gate, Task, run_together
from bench.store import started
from bench.tables import Goal, console, latency_table, throughput_table

PRODUCERS = 8
BURST = 10
BURST_EVERY_S = 0.001
SIZES = (100, 1_024, 10_240)
_MOST_RUNS = 3
"""Of the saturated cells, of which there are many; their runs alternate between relay and store."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Way:
    """A way in: through a relay or straight into the store, with some producer processes."""

    peer: type[IgnisRelay] | type[IgnisEmbedded]
    producers: int

    def make(self, durability: str) -> IgnisRelay | IgnisEmbedded:
        return IgnisRelay(durability) if self.peer is IgnisRelay else IgnisEmbedded(durability, via="publisher")

    @property
    def name(self) -> str:
        who = "1 producer" if self.producers == 1 else f"{self.producers} producers"
        return f"ignis, relay, {who}" if self.peer is IgnisRelay else f"store itself, {who}"

    @property
    def how(self) -> str:
        return IgnisRelay.how_publish if self.peer is IgnisRelay else "publisher.send on the embedded store"


WAYS = tuple(Way(peer, producers) for producers in (1, PRODUCERS) for peer in (IgnisRelay, IgnisEmbedded))


def produce_paced(gate: Gate, peer: Any, size: int, seconds: float) -> list[int]:
    """The time of each call in nanoseconds, reading the clock included."""
    session = peer.session()
    publisher = session.publisher if isinstance(peer, IgnisRelay) else session.queue.publisher()
    send, body, clock = publisher.send, b"x" * size, time.perf_counter_ns
    times: list[int] = []
    gate()
    began = time.perf_counter()
    bursts = int(seconds / BURST_EVERY_S)
    for n in range(bursts):
        ahead = began + n * BURST_EVERY_S - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        for _ in range(BURST):
            before = clock()
            send(body)
            times.append(clock() - before)
    publisher.close()
    session.close()
    return times


def produce_saturated(gate: Gate, peer: Any, size: int, seconds: float) -> tuple[int, float]:
    """Messages, and seconds from the start until all of them were stored."""
    session = peer.session()
    publisher = session.publisher if isinstance(peer, IgnisRelay) else session.queue.publisher()
    send, body = publisher.send, b"x" * size
    count = 0
    gate()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            send(body)
        count += 100
    publisher.flush()
    elapsed = time.perf_counter() - began
    publisher.close()
    session.close()
    return count, elapsed


def run(options: Options, recorder: Recorder) -> None:
    """The paced table, then the saturated ones, by durability and size."""
    results = _measured(options, SYNC, _paced)
    latency_table(
        f"Publish as its caller sees it, {options.size_bytes}-byte messages, each producer {BURST} every "
        f"{BURST_EVERY_S * 1e3:g} ms", results, caption="a relayed message survives its producer at once; stored, as "
        f"all of them are at the end: {PROMISES[SYNC]}", show_rate=True,
    )  # fmt: skip
    for result in results:
        if result.peer == Way(IgnisRelay, PRODUCERS).name:
            p50 = result.latency("p50")
            Goal(f"relay: publish p50, {PRODUCERS} producers", p50, 2_000, at_most=True, unit=" ns").show()
    recorder.write_all("relay.paced", results)
    goals: list[Goal] = []
    for durability in (SYNC, INTERVAL, NONE):
        for size in (options.size_bytes,) if durability != SYNC else SIZES:
            sized = replace(options, size_bytes=size, runs=min(options.runs, _MOST_RUNS))
            results = _measured(sized, durability, _saturated)
            throughput_table(
                f"Publish until stored [{durability}], {size}-byte messages", results, caption=PROMISES[durability]
            )
            lines = Recorder(sized)  # it says the size in each
            lines.write_all("relay.saturated", results)
            recorder.problems += lines.problems
            goals += _beside_the_store(results, f"[{durability}] {size} bytes")
    for goal in goals:
        goal.show()
    console.print()


def _beside_the_store(results: list[Result], cell: str) -> list[Goal]:
    """Relay against store, with as many producers."""
    rates = {result.peer: result.throughput.median for result in results}
    goals = []
    for producers in (1, PRODUCERS):
        ours, theirs = (rates.get(Way(peer, producers).name, math.nan) for peer in (IgnisRelay, IgnisEmbedded))
        goals.append(Goal(f"relay / store itself, {cell}, {producers} producer(s)", ours / theirs, 1.0))
    return goals


def _measured(options: Options, durability: str, once: Any) -> list[Result]:
    results = [Result(way.name, durability, way.how, {"producers": way.producers}) for way in WAYS]
    for _ in range(options.runs):
        for way, result in zip(WAYS, results, strict=True):
            if options.wants(way.name) and not result.problem:
                _guarded(result, partial(once, options, way, durability, result))
    return [result for result in results if result.n or result.problem]


def _guarded(result: Result, measure: Any) -> None:
    try:
        measure()
    except (MissingError, BenchError, OSError) as exc:
        result.problem = str(exc)


def _paced(options: Options, way: Way, durability: str, result: Result) -> None:
    times, _ = _together(options, way, durability, produce_paced)
    flat = [one for many in times for one in many]
    result.n += len(flat)
    result.add_latencies(flat)
    result.throughput.add(len(flat) / options.seconds)


def _saturated(options: Options, way: Way, durability: str, result: Result) -> None:
    answers, stored = _together(options, way, durability, produce_saturated)
    count = sum(sent for sent, _ in answers)
    if stored != count:
        raise BenchError(f"{count:,} messages were sent and {stored:,} are stored")
    result.n += count
    result.throughput.add(count / max(elapsed for _, elapsed in answers))


def _together(options: Options, way: Way, durability: str, produce: Any) -> tuple[list[Any], int]:
    """What each producer measured, and how many messages the store has afterwards."""
    peer = way.make(durability)
    peer.require()
    with started(peer, options):
        task = Task(produce, (peer, options.size_bytes, options.seconds))
        answers = run_together([task] * way.producers, _TIMEOUT_S)
        if isinstance(peer, IgnisRelay):
            return answers, peer.stored()
        session = peer.session()
        stored = session.waiting()
        session.close()
        return answers, stored
