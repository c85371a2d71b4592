"""The broker beside other brokers: publishing and consuming with acknowledgement over loopback TCP.

One table for each durability class, because what an acknowledgement survives decides what may be compared. For each
number of connections a peer has one server and as many client processes, which go through all message sizes and runs: they
publish for a fixed time, each batch acknowledged before the next, then they consume what is there in competition, until
nothing is left or the time is up. What was acknowledged and does not come back fails the peer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Barrier

from bench import broker_connections
from bench.latency import RATE, consume, produce
from bench.measure import Options, Recorder, Result
from bench.peers.base import DURABILITIES, INTERVAL, NONE, PROMISES, SYNC, MissingError, Peer, Session
from bench.peers.beanstalkd import Beanstalkd
from bench.peers.ignis_broker import IgnisBroker, IgnisBrokerHandler
from bench.peers.nats_jetstream import NatsJetStream
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis_lists import RedisLists
from bench.peers.redis_streams import RedisStreams
from bench.processes import CONTEXT, BenchError, Gate, Task, run_together
from bench.store import measure, once, publish_singly, started
from bench.tables import Goal, console, grid_table, latency_table, throughput_table

SIZES = (100, 1_024, 10_240)
CONNECTIONS = (1, 16)
BATCHES = {100: 1_000, 1_024: 1_000, 10_240: 100}
HEADLINE = {100: 100_000, 1_024: 50_000, 10_240: 10_000}
"""AeroMQ's own figures, messages a second."""
_MOST_RUNS = 5
_LATENCY_RUNS = 5
_SHARE = 0.5
"""Of ``seconds``, for publishing in one run: there are many."""
_CONSUME_FACTOR = 6.0
_EMPTYING_S = 20.0
_SLACK_S = 120.0


def peers_of(durability: str) -> list[Peer]:
    """Who promises as much; all over TCP."""
    peers: list[Peer] = [
        IgnisBroker(durability),
        IgnisBroker(durability, via="publisher"),
        RedisLists(durability, tcp=True),
        RedisStreams(durability, tcp=True),
        Beanstalkd(durability, tcp=True),
    ]
    if durability == SYNC:
        peers.append(RabbitMq())
    if durability in (INTERVAL, NONE):
        peers.append(NatsJetStream(durability))
    return peers


@dataclass(frozen=True)
class Cycle:
    """What one client process did: messages published in so many seconds; messages consumed from one moment to another;
    of the last run of a size, messages that were left after that."""

    published: int
    publish_s: float
    consumed: int
    first_s: float
    last_s: float
    left: int = 0


def work(
    gate: Gate, peer: Peer, sizes: Sequence[int], runs: int, seconds: float, consume_s: float, together: Barrier
) -> list[list[Cycle]]:
    """For each size so many runs. All processes publish together; each begins to consume when it is done with that."""
    gate()
    done = []
    for size in sizes:
        cycles = []
        for run in range(runs):
            # A fresh one each time: a client that consumed before would be sent messages while it still publishes.
            session = peer.session()
            together.wait(_SLACK_S)
            cycles.append(_cycle(session, size, seconds, consume_s))
            if run < runs - 1:
                session.close()
        # What was not consumed in time must not be taken for messages of another size.
        end, left = time.monotonic() + _EMPTYING_S, 0
        while time.monotonic() < end and (got := session.drain(BATCHES[size], _ignore)):
            left += got
        session.close()
        cycles[-1] = replace(cycles[-1], left=left)
        done.append(cycles)
    return done


def _cycle(session: Session, size: int, seconds: float, consume_s: float) -> Cycle:
    batch = BATCHES[size]
    bodies = [b"x" * size] * batch
    began = time.monotonic()
    published = 0
    while time.monotonic() - began < seconds:
        session.publish_batch(bodies)
        published += batch
    session.flush()
    publish_s = time.monotonic() - began
    first = time.monotonic()
    end, last, consumed, idle = first + consume_s, first, 0, 0
    while time.monotonic() < end and idle < 2:
        got = session.drain(batch, _ignore)
        if got:
            consumed, last, idle = consumed + got, time.monotonic(), 0
        else:
            idle += 1
    return Cycle(published, publish_s, consumed, first, last)


def _ignore(body: bytes) -> None:
    """The handler."""


def run(options: Options, recorder: Recorder) -> None:
    """Throughput by size and connections, one message at a time, latency, many connections."""
    short = replace(options, runs=min(options.runs, _MOST_RUNS))
    for durability in DURABILITIES:
        _throughput(short, recorder, durability)
        _singles(short, recorder, durability)
        _latency(short, recorder, durability)
    broker_connections.run(short, recorder)


def _throughput(options: Options, recorder: Recorder, durability: str) -> None:
    peers = [peer for peer in peers_of(durability) if options.wants(peer.name)]
    sizes = SIZES[:1] if options.quick else SIZES
    published: dict[tuple[str, int, int], Result] = {}
    consumed: dict[tuple[str, int, int], Result] = {}
    for peer in peers:
        for connections in CONNECTIONS:
            for size in sizes:
                where = {"connections": connections, "size_bytes": size, "batch": BATCHES[size]}
                published[peer.name, size, connections] = Result(peer.name, durability, peer.how_batch, where)
                consumed[peer.name, size, connections] = Result(peer.name, durability, peer.how_drain, where)
            here = [(one[peer.name, size, connections]) for size in sizes for one in (published, consumed)]
            try:
                cycles = _cycles(options, peer, sizes, connections)
                for size, many in zip(sizes, cycles, strict=True):
                    where_to = peer.name, size, connections
                    _take(many, published[where_to], consumed[where_to])
            except (MissingError, BenchError, OSError) as exc:
                for result in here:
                    result.problem = str(exc)
    cells = [(size, connections) for size in sizes for connections in CONNECTIONS]
    titles = [f"{connections} x {size:,} B" for size, connections in cells]
    for word, results in (("publish", published), ("consume", consumed)):
        rows = [(peer.name, [results[peer.name, size, connections] for size, connections in cells]) for peer in peers]
        grid_table(
            f"Broker [{durability}], {word} with acknowledgement, messages/s by connections and message size", titles,
            rows, caption=PROMISES[durability],
        )  # fmt: skip
        _compare(word, durability, results, cells)
        recorder.write_all(f"broker.{word}", list(results.values()))


def _cycles(options: Options, peer: Peer, sizes: Sequence[int], connections: int) -> list[list[list[Cycle]]]:
    """By size, by run, by process."""
    seconds = _SHARE * options.seconds
    consume_s = _CONSUME_FACTOR * seconds
    limit_s = len(sizes) * (options.runs * (seconds + consume_s + 5.0) + _EMPTYING_S) + _SLACK_S
    with started(peer, options):
        together = CONTEXT.Barrier(connections)
        task = Task(work, (peer, sizes, options.runs, seconds, consume_s, together))
        by_process: Sequence[list[list[Cycle]]] = run_together([task] * connections, limit_s)
    return [[[one[size][number] for one in by_process] for number in range(options.runs)] for size in range(len(sizes))]


def _take(runs: list[list[Cycle]], published: Result, consumed: Result) -> None:
    """The figures of one size. Raises BenchError when messages were lost or invented."""
    made = came = 0
    for cycles in runs:
        sent, taken = sum(one.published for one in cycles), sum(one.consumed for one in cycles)
        span_s = max(one.last_s for one in cycles) - min(one.first_s for one in cycles)
        made, came = made + sent, came + taken
        published.n += sent
        published.throughput.add(sent / max(one.publish_s for one in cycles))
        consumed.n += taken
        consumed.throughput.add(taken / max(span_s, 1e-9))
    came += sum(one.left for one in runs[-1])
    if came != made:
        raise BenchError(f"{made:,} messages were acknowledged and {came:,} came back")


def _compare(
    word: str, durability: str, results: dict[tuple[str, int, int], Result], cells: Sequence[tuple[int, int]]
) -> None:
    for size, connections in cells:
        here = [one for key, one in results.items() if key[1:] == (size, connections) and one.throughput.values]
        ours = max((one.throughput.median for one in here if one.is_ignis), default=float("nan"))
        theirs = max((one.throughput.median for one in here if not one.is_ignis), default=float("nan"))
        name = f"[{durability}] {word} {connections} x {size:,} B: ignis / best peer"
        Goal(name, ours / theirs, 1.0).show()
        if word == "publish" and durability == SYNC:
            Goal(f"[{durability}] publish {connections} x {size:,} B", ours, HEADLINE[size], unit="/s").show()


def _singles(options: Options, recorder: Recorder, durability: str) -> None:
    tried = [
        (peer, Result(peer.name, durability, peer.how_publish))
        for peer in peers_of(durability)
        if options.wants(peer.name) and not (isinstance(peer, IgnisBroker) and peer.via == "publisher")
    ]

    def one_run(peer: Peer, result: Result) -> None:
        seconds = _SHARE * options.seconds
        count, elapsed, times = once(options, peer, publish_singly, seconds, seconds=seconds)
        result.n += count
        result.throughput.add(count / elapsed)
        result.add_latencies(times)

    results = measure(options, tried, one_run)
    throughput_table(
        f"Broker [{durability}], publish one at a time, {options.size_bytes}-byte messages, one connection",
        results, caption=PROMISES[durability], with_latency=True,
    )  # fmt: skip
    recorder.write_all("broker.publish_singly", results)


def _latency(options: Options, recorder: Recorder, durability: str) -> None:
    seconds = 1.0 if options.quick else 4.0 * options.seconds
    options = replace(options, runs=min(options.runs, _LATENCY_RUNS))
    count = int(RATE * seconds)
    timeout_s = seconds + _SLACK_S
    tried = [
        (peer, Result(peer.name, durability, peer.how_listen, {"rate_per_s": RATE}))
        for peer in [*peers_of(durability), *(IgnisBrokerHandler(durability, pool) for pool in ("thread", "async"))]
        if options.wants(peer.name) and not (isinstance(peer, IgnisBroker) and peer.via == "publisher")
    ]

    def one_run(peer: Peer, result: Result) -> None:
        with started(peer, options):
            tasks = [Task(produce, (peer, options.size_bytes, count)), Task(consume, (peer, count, timeout_s))]
            (held, late), (times, handled) = run_together(tasks, timeout_s)
        result.n += len(times)
        result.throughput.add(handled)
        result.add_latencies(times)
        result.extra["published_per_s"] = round(held, 1)
        result.extra["late_share"] = round(late, 4)

    results = measure(options, tried, one_run)
    latency_table(
        f"Broker [{durability}], publish to handled at {RATE:,} messages/s, {options.size_bytes}-byte messages",
        results, caption=f"{PROMISES[durability]}; two processes, {seconds:g} s a run", show_rate=True,
    )  # fmt: skip
    for name in ("p50", "p99"):
        ours = min((one.latency(name) for one in results if one.is_ignis and one.latency_ns), default=float("nan"))
        theirs = min(
            (one.latency(name) for one in results if not one.is_ignis and one.latency_ns), default=float("nan")
        )
        Goal(f"[{durability}] latency {name}: ignis / best peer", ours / theirs, 1.0, at_most=True).show()
    recorder.write_all("broker.latency", results)
    console.print()
