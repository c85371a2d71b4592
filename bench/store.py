"""Durable publishing and draining, one table for each durability class: what an acknowledgement survives decides what
may be compared.

Each run has a fresh server or file, and one client process. Publishing is timed over a fixed time, draining over a
backlog made beforehand. Before a peer is timed, numbered messages are published and drained: each must come back once.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.measure import Options, Recorder, Result
from bench.peers.base import DURABILITIES, INTERVAL, NONE, PROMISES, SYNC, MissingError, Peer
from bench.peers.beanstalkd import Beanstalkd
from bench.peers.huey_sqlite import HueySqlite
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.peers.lmdb_alone import LmdbAlone
from bench.peers.persist_queue import PersistQueue
from bench.peers.postgres import Postgres
from bench.peers.raw_append import RawAppend
from bench.peers.redis_lists import RedisLists
from bench.peers.redis_streams import RedisStreams
from bench.processes import BenchError, Gate, Task, run_together
from bench.tables import Goal, console, grid_table, throughput_table

BATCHES = (100, 1_000, 10_000)
DRAIN_BATCH = 1_000
BACKLOG = 1_000_000
_CHECKED = 400
_SLACK_S = 120.0  # a run may overshoot its time by one batch, and a slow disk stretches that


def peers_of(durability: str) -> list[Peer]:
    """Everybody in one class."""
    peers: list[Peer] = [
        IgnisEmbedded(durability),
        IgnisEmbedded(durability, via="publisher"),
        IgnisEmbedded(durability, pool="process"),
    ]
    if durability in (SYNC, INTERVAL):
        peers += [RedisLists(durability), RedisStreams(durability), Postgres(durability)]
    if durability in (SYNC, NONE):
        peers += [RawAppend(durability), LmdbAlone(durability), HueySqlite(durability)]
    if durability == SYNC:
        peers.append(PersistQueue())
    peers.append(Beanstalkd(durability))
    return peers


# -- the measuring process ---------------------------------------------------------------------------------------------


def publish_singly(gate: Gate, peer: Peer, size: int, seconds: float) -> tuple[int, float, list[int]]:
    """Messages, seconds, and the time of each call in nanoseconds."""
    session = peer.session()
    publish, clock, body = session.publish, time.perf_counter_ns, b"x" * size
    times: list[int] = []
    gate()
    began = clock()
    end = began + int(seconds * 1e9)
    before = began
    while before < end:
        publish(body)
        now = clock()
        times.append(now - before)
        before = now
    session.close()
    return len(times), (before - began) / 1e9, times


def publish_batches(gate: Gate, peer: Peer, size: int, batch: int, seconds: float) -> tuple[int, float]:
    """Messages, and seconds until all of them were durable."""
    session = peer.session()
    bodies = [b"x" * size] * batch
    gate()
    began = time.perf_counter()
    count = 0
    while time.perf_counter() - began < seconds:
        session.publish_batch(bodies)
        count += batch
    session.flush()
    elapsed = time.perf_counter() - began
    session.close()
    return count, elapsed


def drain_backlog(
    gate: Gate, peer: Peer, size: int, backlog: int, batch: int, seconds: float
) -> tuple[int, float, int]:
    """Messages acknowledged, seconds, and how many are left. ``seconds`` bounds the filling and the draining."""
    session = peer.session()
    bodies = [b"x" * size] * min(1_000, backlog)
    made, end = 0, time.monotonic() + seconds
    while made < backlog and time.monotonic() < end:
        session.publish_batch(bodies)
        made += len(bodies)
    session.flush()
    gate()
    began = time.monotonic()
    done = session.drain_all(made, batch, _ignore, began + seconds)
    # A session that must wind its consumer down afterwards says itself when the last acknowledgement was stored.
    elapsed = getattr(session, "drained_at", time.monotonic()) - began
    session.close()
    return done, elapsed, made - done


def check(gate: Gate, peer: Peer, size: int) -> None:
    """Raises BenchError when a numbered message is lost, repeated, changed or invented."""
    session = peer.session()
    sent = [b"%0*d" % (size, index) for index in range(_CHECKED)]
    gate()
    session.publish(sent[0])
    session.publish_batch(sent[1:])
    session.flush()
    if peer.can_drain and not (isinstance(peer, IgnisEmbedded) and peer.pool == "process"):
        got: list[bytes] = []
        done = session.drain_all(len(sent), 100, lambda body: got.append(bytes(body)), time.monotonic() + 30)
        if done != len(sent) or sorted(got) != sent:
            raise BenchError(
                f"{peer.name}: {len(sent)} messages in, {done} acknowledged, {len(set(got))} different out"
            )
    session.close()


def _ignore(body: bytes) -> None:
    """The handler of a drain."""


# -- one run -----------------------------------------------------------------------------------------------------------


@contextmanager
def started(peer: Peer, options: Options) -> Iterator[Peer]:
    """The peer, empty, in a directory of its own; stopped and removed afterwards."""
    peer.require()
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        peer.start(directory)
        yield peer
    finally:
        with suppress(AttributeError):  # it never came to start a server
            peer.stop()
        shutil.rmtree(directory, ignore_errors=True)


def once(options: Options, peer: Peer, function: Callable[..., Any], *arguments: Any, seconds: float = 0.0) -> Any:
    """One run against a fresh peer, in a process of its own."""
    with started(peer, options):
        return run_together([Task(function, (peer, options.size_bytes, *arguments))], seconds + _SLACK_S)[0]


def measure(
    options: Options, tried: Sequence[tuple[Peer, Result]], one_run: Callable[[Peer, Result], None]
) -> list[Result]:
    """Runs each pair in turn, round by round; a failure is kept in the result and the others go on."""
    for _ in range(options.runs):
        for peer, result in tried:
            if result.problem:
                continue
            try:
                one_run(peer, result)
            except (MissingError, BenchError, OSError) as exc:
                result.problem = str(exc)
    return [result for _, result in tried]


# -- the tables --------------------------------------------------------------------------------------------------------


def run(options: Options, recorder: Recorder) -> None:
    """One class after the other: one at a time, in batches, draining."""
    for durability in DURABILITIES:
        peers = [peer for peer in peers_of(durability) if options.wants(peer.name)]
        broken = _check_all(options, peers)
        _singles(options, recorder, durability, peers, broken)
        _batches(options, recorder, durability, peers, broken)
        _drains(options, recorder, durability, peers, broken)


def _check_all(options: Options, peers: Sequence[Peer]) -> dict[str, str]:
    """Why a peer cannot be measured, by name; with it the tables say so instead of showing a figure."""
    broken = {}
    for peer in peers:
        try:
            once(options, peer, check)
        except (MissingError, BenchError, OSError) as exc:
            broken[peer.name] = str(exc)
    return broken


def _singles(
    options: Options, recorder: Recorder, durability: str, peers: Sequence[Peer], broken: dict[str, str]
) -> None:
    tried = [
        (peer, Result(peer.name, durability, peer.how_publish, problem=broken.get(peer.name, "")))
        for peer in peers
        if not (isinstance(peer, IgnisEmbedded) and (peer.via == "publisher" or peer.pool == "process"))
    ]

    def one_run(peer: Peer, result: Result) -> None:
        count, elapsed, times = once(options, peer, publish_singly, options.seconds, seconds=options.seconds)
        result.n += count
        result.throughput.add(count / elapsed)
        result.add_latencies(times)

    results = measure(options, tried, one_run)
    throughput_table(
        f"Store [{durability}], publish one at a time, {options.size_bytes}-byte messages",
        results, caption=PROMISES[durability], with_latency=True,
    )  # fmt: skip
    if durability == SYNC:
        floor = next((r.throughput.median for r in results if r.peer.startswith("raw append")), float("nan"))
        ours = next((r.throughput.median for r in results if r.is_ignis), float("nan"))
        Goal("ignis publish against raw append + fdatasync", ours / floor, 0.7).show()
    recorder.write_all("store.publish", results)


def _batches(
    options: Options, recorder: Recorder, durability: str, peers: Sequence[Peer], broken: dict[str, str]
) -> None:
    sizes = BATCHES[1:2] if options.quick else BATCHES
    tried = []
    for peer in peers:
        if isinstance(peer, IgnisEmbedded) and peer.pool == "process":
            continue
        for size in sizes if peer.can_batch else sizes[:1]:
            result = Result(peer.name, durability, peer.how_batch, {"batch": size}, problem=broken.get(peer.name, ""))
            tried.append((peer, result))

    def one_run(peer: Peer, result: Result) -> None:
        batch = result.parameters["batch"]
        count, elapsed = once(options, peer, publish_batches, batch, options.seconds, seconds=options.seconds)
        result.n += count
        result.throughput.add(count / elapsed)

    results = measure(options, tried, one_run)
    best: dict[str, Result] = {}
    for result in results:
        known = best.get(result.peer)
        if known is None or (not result.problem and not known.throughput.median >= result.throughput.median):
            best[result.peer] = result
    for result in best.values():
        result.note += f"; batch {result.parameters['batch']:,}"
    throughput_table(
        f"Store [{durability}], publish in batches, each at its best size, {options.size_bytes}-byte messages",
        list(best.values()), caption=PROMISES[durability],
    )  # fmt: skip
    if len(sizes) > 1:
        rows = [(name, [_find(results, name, size) for size in sizes]) for name in best]
        grid_table(f"Store [{durability}], messages/s by batch size", [f"{size:,}" for size in sizes], rows)
    recorder.write_all("store.publish_batch", results)


def _find(results: Sequence[Result], peer: str, batch: int) -> Result | None:
    return next((r for r in results if r.peer == peer and r.parameters["batch"] == batch), None)


def _drains(
    options: Options, recorder: Recorder, durability: str, peers: Sequence[Peer], broken: dict[str, str]
) -> None:
    backlog = BACKLOG // 10 if options.quick else BACKLOG
    tried = [
        (peer, Result(peer.name, durability, peer.how_drain, {"batch": DRAIN_BATCH}, problem=broken.get(peer.name, "")))
        for peer in peers
        if peer.can_drain and not (isinstance(peer, IgnisEmbedded) and peer.via == "publisher")
    ]
    limit_s = 5 * options.seconds

    def one_run(peer: Peer, result: Result) -> None:
        done, elapsed, left = once(options, peer, drain_backlog, backlog, DRAIN_BATCH, limit_s, seconds=2 * limit_s)
        if left and elapsed < limit_s:
            raise BenchError(f"the queue was empty with {left:,} messages not seen")
        result.n += done
        result.throughput.add(done / elapsed)

    results = measure(options, tried, one_run)
    throughput_table(
        f"Store [{durability}], drain with acknowledgement, handler does nothing, {options.size_bytes}-byte messages",
        results, caption=PROMISES[durability],
    )  # fmt: skip
    recorder.write_all("store.drain", results)
    console.print()
