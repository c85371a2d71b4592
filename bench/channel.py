"""Channels: one producing and one consuming process, messages of one size, nothing kept.

Three questions: how many messages a second one at a time, how many in bulk, and how long a round trip takes. A run's
time goes from the producer's first call to the consumer's last return, on the machine-wide monotonic clock. Before a
peer is timed, numbered messages are sent through it and must arrive whole and in order.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from bench.measure import Options, Recorder, Result
from bench.peers.base import ChannelPeer, MissingError
from bench.peers.faster_fifo import FasterFifo
from bench.peers.ignis_channel import IgnisChannel
from bench.peers.multiprocessing_pipe import MultiprocessingPipe
from bench.peers.pyzmq_ipc import PyzmqIpc
from bench.processes import BenchError, Gate, Task, run_together
from bench.tables import Goal, best, grid_table, incomplete, latency_table, throughput_table

CHUNK = 1_000  # messages of one bulk call
SIZES = (16, 64, 256, 1_024, 4_096, 16_384, 65_536)
_CHECKED = 20_000
_MAX_BYTES_OF_A_CALL = 4 << 20  # faster-fifo takes a bulk call whole or not at all, so it must fit every peer's buffer
_MAX_BYTES_OF_A_RUN = 8 << 30


_RUN_TIMEOUT_S = 120.0
_PLACED = "each peer in its best placement (a core each, or left to the scheduler)"
_ALWAYS_FULL = IgnisChannel(room=64)


def channel_peers() -> list[ChannelPeer]:
    return [IgnisChannel(), _ALWAYS_FULL, FasterFifo(), PyzmqIpc(), MultiprocessingPipe()]


# -- the measuring processes -------------------------------------------------------------------------------------------


def produce(gate: Gate, peer: ChannelPeer, link: Any, size: int, count: int, bulk: bool) -> int:
    """Sends ``count`` messages; returns when it began, in monotonic nanoseconds."""
    end = peer.sender(link)
    body = b"x" * size
    send = end.send
    gate()
    began = time.monotonic_ns()
    if bulk:
        assert end.send_many is not None
        chunk = [body] * min(chunk_of(size), count)
        whole, rest = divmod(count, len(chunk))
        send_many = end.send_many
        for _ in repeat(None, whole):
            send_many(chunk)
        if rest:
            send_many(chunk[:rest])
    else:
        for _ in repeat(None, count):
            send(body)
    end.close()
    return began


def consume(gate: Gate, peer: ChannelPeer, link: Any, size: int, count: int, bulk: bool) -> int:
    """Receives ``count`` messages; returns when it had the last, in monotonic nanoseconds."""
    end = peer.receiver(link)
    recv = end.recv
    gate()
    if bulk:
        assert end.recv_many is not None
        recv_many = end.recv_many
        left = count
        while left > 0:
            got = recv_many(CHUNK)
            if not got:
                raise BenchError(f"{peer.name}: a bulk receive came back empty with {left} messages to come")
            left -= len(got)
    else:
        for _ in repeat(None, count):
            recv()
    ended = time.monotonic_ns()
    end.close()
    return ended


def produce_numbers(gate: Gate, peer: ChannelPeer, link: Any, size: int, count: int, bulk: bool) -> None:
    end = peer.sender(link)
    gate()
    if bulk:
        assert end.send_many is not None
        step = chunk_of(size)
        for first in range(0, count, step):
            end.send_many([numbered(i, size) for i in range(first, min(first + step, count))])
    else:
        for i in range(count):
            end.send(numbered(i, size))
    end.close()


def check_numbers(gate: Gate, peer: ChannelPeer, link: Any, size: int, count: int, bulk: bool) -> None:
    """Raises BenchError when a message is lost, repeated, out of order or damaged."""
    end = peer.receiver(link)
    gate()
    expected = 0
    while expected < count:
        got: Sequence[bytes] = end.recv_many(CHUNK) if bulk and end.recv_many is not None else (end.recv(),)
        for body in got:
            if bytes(body) != numbered(expected, size):
                raise BenchError(f"{peer.name}: message {expected} arrived damaged or out of order")
            expected += 1
    end.close()


def chunk_of(size: int) -> int:
    """Messages of one bulk call."""
    return max(1, min(CHUNK, _MAX_BYTES_OF_A_CALL // size))


def numbered(index: int, size: int) -> bytes:
    """A message that says which one it is, over its whole length."""
    return (b"%015d|" % index * (size // 16 + 1))[:size]


def ping(gate: Gate, peer: ChannelPeer, there: Any, back: Any, size: int, count: int) -> list[int]:
    """Round trips, each in nanoseconds."""
    out, home = peer.sender(there), peer.receiver(back)
    send, recv, clock = out.send, home.recv, time.perf_counter_ns
    body = b"x" * size
    gate()
    for _ in repeat(None, min(2_000, count)):
        send(body)
        recv()
    times = []
    for _ in repeat(None, count):
        began = clock()
        send(body)
        recv()
        times.append(clock() - began)
    out.close()
    home.close()
    return times


def pong(gate: Gate, peer: ChannelPeer, there: Any, back: Any, size: int, count: int) -> None:
    # The sending end first: who opens a receiving end may wait for the other side's sending end to exist.
    out, home = peer.sender(back), peer.receiver(there)
    send, recv = out.send, home.recv
    gate()
    for _ in repeat(None, min(2_000, count) + count):
        send(recv())
    out.close()
    home.close()


# -- one peer ----------------------------------------------------------------------------------------------------------

Cores = tuple[int | None, int | None]


def placements(options: Options, *, round_trip: bool) -> dict[str, Cores]:
    """Where the two processes run. What suits one peer harms another: threads of pyzmq want both cores, and a pipe's
    round trip is several times faster when both ends share one. So each peer is measured in every placement, and the
    table shows it in its best one."""
    first, second = options.cores
    if first is None:
        return {"free": (None, None)}
    found: dict[str, Cores] = {"a core each": (first, second), "free": (None, None)}
    if round_trip:
        found["one core"] = (first, first)
    return found


def _one_way(options: Options, peer: ChannelPeer, cores: Cores, size: int, count: int, bulk: bool) -> float:
    """Messages a second of one run."""
    with tempfile.TemporaryDirectory(dir=_region_directory(options), prefix="bench-") as name:
        arguments = (peer, peer.link(Path(name), size), size, count, bulk)
        began, ended = run_together(
            [Task(produce, arguments, cores[0]), Task(consume, arguments, cores[1])], _RUN_TIMEOUT_S
        )
    return float(count / max(1e-9, (ended - began) / 1e9))


def _check(options: Options, peer: ChannelPeer, size: int, bulk: bool) -> None:
    with tempfile.TemporaryDirectory(dir=_region_directory(options), prefix="bench-") as name:
        arguments = (peer, peer.link(Path(name), size), size, _CHECKED, bulk)
        run_together([Task(produce_numbers, arguments), Task(check_numbers, arguments)], _RUN_TIMEOUT_S)


def _round_trips(options: Options, peer: ChannelPeer, cores: Cores, size: int, count: int) -> list[int]:
    with tempfile.TemporaryDirectory(dir=_region_directory(options), prefix="bench-") as name:
        there, back = peer.link(Path(name), size), peer.link(Path(name), size)
        arguments = (peer, there, back, size, count)
        times, _ = run_together([Task(ping, arguments, cores[0]), Task(pong, arguments, cores[1])], _RUN_TIMEOUT_S)
    return list(times)


def _region_directory(options: Options) -> str:
    """Where mapped regions and sockets live: in memory where the system offers that, since nothing here is durable."""
    shared = Path("/dev/shm")
    return str(shared if shared.is_dir() else options.directory)


def measure_one_way(
    options: Options, peers: Sequence[ChannelPeer], size: int, bulk: bool, only: Mapping[str, str] | None = None
) -> list[Result]:
    """Throughput of each peer in its best placement (or, with ``only``, in the placement named there for it).

    The runs of the peers take turns, so that a disturbance does not fall on one alone.
    """
    tried: list[tuple[ChannelPeer, Cores, Result]] = []
    for peer in peers:
        if (bulk and not peer.has_bulk) or not options.wants(peer.name):
            continue
        problem = ""
        try:
            peer.require()
            _check(options, peer, size, bulk)
        except (MissingError, BenchError, OSError) as exc:
            problem = str(exc)
        for place, cores in placements(options, round_trip=False).items():
            if only is not None and only.get(peer.name, place) != place:
                continue
            how = peer.how_bulk if bulk else peer.how
            result = Result(peer.name, note=f"{how}; {place}", problem=problem)
            result.parameters = {"size_bytes": size, "bulk": chunk_of(size) if bulk else 1, "placement": place}
            tried.append((peer, cores, result))

    def calibrate(peer: ChannelPeer, cores: Cores, result: Result) -> None:
        result.n = _calibrate(options, peer, cores, size, bulk)

    def time_one(peer: ChannelPeer, cores: Cores, result: Result) -> None:
        result.throughput.add(_one_way(options, peer, cores, size, result.n, bulk))

    for turn in [calibrate, *[time_one] * options.runs]:
        for peer, cores, result in tried:
            _guard(turn, peer, cores, result)
    results = _best_of_each([result for _, _, result in tried], lambda result: -result.throughput.median)
    for result in results:
        if result.throughput.values:
            result.extra["megabytes_per_s"] = round(result.throughput.median * size / 1e6, 3)
    return results


def _calibrate(options: Options, peer: ChannelPeer, cores: Cores, size: int, bulk: bool) -> int:
    """How many messages make a run of about ``options.seconds``."""
    trial = max(200, min(20_000, (64 << 20) // size))
    rate = _one_way(options, peer, cores, size, trial, bulk)
    # The first trial is short and so rates low; a second one, nearer to the real length, sets the count.
    rate = max(rate, _one_way(options, peer, cores, size, max(trial, int(rate * min(0.2, options.seconds))), bulk))
    return max(trial, min(int(rate * options.seconds), _MAX_BYTES_OF_A_RUN // size))


def _guard(
    measure: Callable[[ChannelPeer, Cores, Result], None], peer: ChannelPeer, cores: Cores, result: Result
) -> None:
    """Measures unless the result has failed before; a failure is kept in it, so that the others go on."""
    if result.problem:
        return
    try:
        peer.require()
        measure(peer, cores, result)
    except (MissingError, BenchError, OSError) as exc:
        result.problem = str(exc)


def _best_of_each(results: Sequence[Result], key: Callable[[Result], float]) -> list[Result]:
    """Of the results of one peer the best; a failed one only when there is no other."""
    chosen: dict[str, Result] = {}
    for result in sorted(results, key=lambda r: (bool(r.problem), 0.0 if r.problem else key(r))):
        chosen.setdefault(result.peer, result)
    return list(chosen.values())


def measure_round_trips(options: Options, peers: Sequence[ChannelPeer], size: int) -> list[Result]:
    """Round trips of each peer in each placement, all of them: here the placement decides."""
    count = 5_000 if options.quick else 50_000
    tried = []
    for peer in peers:
        if options.wants(peer.name):
            for place, cores in placements(options, round_trip=True).items():
                result = Result(peer.name, note=f"{peer.how}; {place}", n=count)
                result.parameters = {"size_bytes": size, "placement": place}
                tried.append((peer, cores, result))

    def time_one(peer: ChannelPeer, cores: Cores, result: Result) -> None:
        result.add_latencies(_round_trips(options, peer, cores, size, count))

    for _ in range(options.runs):
        for peer, cores, result in tried:
            _guard(time_one, peer, cores, result)
    return [result for _, _, result in tried]


# -- the bench ---------------------------------------------------------------------------------------------------------


def run(options: Options, recorder: Recorder) -> None:
    """One at a time, in bulk, round trips, and the sizes."""
    peers, size = channel_peers(), options.size_bytes
    single = measure_one_way(options, peers, size, bulk=False)
    throughput_table(f"Channel, one at a time, {size}-byte messages between two processes", single, caption=_PLACED)
    best_single = best(single, ignis=False)
    some = incomplete(options, single)
    Goal("ignis send/recv against the best peer", _plain(single) / best_single, 10, partial=some).show()
    recorder.write_all("channel.single", single)

    bulk = measure_one_way(options, peers, size, bulk=True)
    throughput_table(
        f"Channel, in bulk ({CHUNK:,} a call), {size}-byte messages between two processes", bulk, caption=_PLACED
    )
    ratio = _plain(bulk) / best_single
    Goal("ignis send_many/recv_many against the best peer one at a time", ratio, 30, partial=some).show()
    recorder.write_all("channel.bulk", bulk)

    trips = measure_round_trips(options, [peer for peer in peers if peer.name != _ALWAYS_FULL.name], size)
    latency_table(f"Channel, round trip (there and back), {size}-byte messages", trips)
    for pipe_place, ours_place in (("a core each", "a core each"), ("", "")):
        ours = _best_p50(trips, "ignis", ours_place)
        pipe = _best_p50(trips, MultiprocessingPipe.name, pipe_place)
        words = "a core each" if pipe_place else "each in its best placement"
        Goal(f"ignis round-trip p50 against multiprocessing.Pipe, {words}", ours / pipe, 0.2, at_most=True).show()
    recorder.write_all("channel.round_trip", trips)

    for in_bulk, results in ((False, single), (True, bulk)):
        best_place = {r.peer: str(r.parameters["placement"]) for r in results if not r.problem}
        sizes(options, recorder, [peer for peer in peers if peer.name != _ALWAYS_FULL.name], in_bulk, best_place)


def _plain(results: Sequence[Result]) -> float:
    """The throughput of ignis with its default ring: goals are not met by picking the better of two settings."""
    return next((r.throughput.median for r in results if r.peer == "ignis" and not r.problem), float("nan"))


def _best_p50(results: Sequence[Result], peer: str, place: str) -> float:
    return min(
        (r.latency("p50") for r in results if r.peer == peer and place in r.note and not r.problem),
        default=float("nan"),
    )


def sizes(
    options: Options, recorder: Recorder, peers: Sequence[ChannelPeer], bulk: bool, place: Mapping[str, str]
) -> None:
    """Throughput over the message size, each peer in the placement that suited it before."""
    chosen = SIZES[::3] if options.quick else SIZES
    short = replace(options, seconds=min(options.seconds, 0.5), runs=min(options.runs, 3))
    cells: dict[str, list[Result | None]] = {}
    for size in chosen:
        for result in measure_one_way(short, peers, size, bulk, place):
            cells.setdefault(result.peer, []).append(result)
    words = f"in bulk ({CHUNK:,} a call, at most {_MAX_BYTES_OF_A_CALL >> 20} MiB)" if bulk else "one at a time"
    grid_table(
        f"Channel, {words}, messages/s by size",
        [f"{size:,} B" for size in chosen],
        list(cells.items()),
        caption=f"{short.runs} runs of {short.seconds:g} s, median",
    )
    recorder.write_all("channel.sizes", [result for row in cells.values() for result in row if result is not None])
