"""From publish to handled, at a steady rate, between two processes.

Open loop: the producer has a timetable and does not wait for the consumer. A message's clock starts when the producer
turned to it, or, when the producer is late because an earlier publish took long, when it was due: a stall counts
against every message that it delayed. Only the timer's own oversleeping is left out. The first second is not counted.
"""

from __future__ import annotations

import struct
import time

from bench.measure import Options, Recorder, Result
from bench.peers.base import DURABILITIES, PROMISES, Peer
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.processes import BenchError, Gate, Task, run_together
from bench.store import measure, peers_of, started
from bench.tables import console, latency_table

RATE = 1_000
AWAKE_US = 5_000  # of `consumer.spin_us`: longer than the time between two messages
_WARM_UP = RATE
_STAMP = struct.Struct("<q")
_HEAD_START_S = 1.0
_SLACK_S = 30.0


def produce(gate: Gate, peer: Peer, size: int, count: int) -> tuple[float, float]:
    """Publishes the warm-up and ``count`` messages; returns the rate it held and the share it was late for."""
    session = peer.session()
    session.announce()
    publish, now_ns, padding = session.publish, time.monotonic_ns, b"x" * max(0, size - _STAMP.size)
    step_ns = 1_000_000_000 // RATE
    gate()
    time.sleep(_HEAD_START_S)  # the consumer gets to its waiting place
    late = 0
    start_ns = now_ns()
    for index in range(_WARM_UP + count):
        due = start_ns + index * step_ns
        now = now_ns()
        if now < due:
            time.sleep((due - now) / 1e9)
            began = now_ns()
        else:
            began, late = due, late + 1
        publish(_STAMP.pack(began if index >= _WARM_UP else 0) + padding)
    session.flush()
    elapsed = (now_ns() - start_ns) / 1e9
    session.close()
    return (_WARM_UP + count) / elapsed, late / (_WARM_UP + count)


def consume(gate: Gate, peer: Peer, count: int, timeout_s: float) -> tuple[list[int], float]:
    """Handles all messages; returns the latencies in nanoseconds and the rate at which they were handled."""
    session = peer.session()
    times: list[int] = []
    take, now_ns, read = times.append, time.monotonic_ns, _STAMP.unpack_from

    def handle(body: bytes) -> None:
        sent = read(body)[0]
        if sent:
            take(now_ns() - sent)
            ends[bool(len(times) > 1)] = now_ns()

    ends = [0, 0]
    gate()
    handled = session.listen(_WARM_UP + count, handle, time.monotonic() + timeout_s)
    session.close()
    if handled < _WARM_UP + count or len(times) != count:
        raise BenchError(f"{handled:,} of {_WARM_UP + count:,} messages were handled in {timeout_s:.0f} s")
    return times, (count - 1) / max(1e-9, (ends[1] - ends[0]) / 1e9)


def listeners(durability: str) -> list[Peer]:
    """The peers of a class that wake a waiting consumer; ignis with both ways of publishing, with coroutines as handlers, and
    with a consumer that does not sleep between two messages."""
    return [
        IgnisEmbedded(durability, pool="async"),
        IgnisEmbedded(durability, spin_us=AWAKE_US),
        *(
            peer
            for peer in peers_of(durability)
            if peer.can_listen and not (isinstance(peer, IgnisEmbedded) and peer.pool == "process")
        ),
    ]


def run(options: Options, recorder: Recorder) -> None:
    """One table a durability class."""
    seconds = 2.0 if options.quick else 10.0 * options.seconds
    count = int(RATE * seconds)
    timeout_s = seconds + _HEAD_START_S + _WARM_UP / RATE + _SLACK_S
    for durability in DURABILITIES:
        tried = [
            (peer, Result(peer.name, durability, peer.how_listen, {"rate_per_s": RATE}))
            for peer in listeners(durability)
            if options.wants(peer.name)
        ]

        def one_run(peer: Peer, result: Result) -> None:
            with started(peer, options):
                tasks = [
                    Task(produce, (peer, options.size_bytes, count)),
                    Task(consume, (peer, count, timeout_s)),
                ]
                (held, late), (times, handled) = run_together(tasks, timeout_s + _SLACK_S)
            result.n += len(times)
            result.throughput.add(handled)
            result.add_latencies(times)
            result.extra["published_per_s"] = round(held, 1)
            result.extra["late_share"] = round(late, 4)

        results = measure(options, tried, one_run)
        latency_table(
            f"Latency [{durability}], publish to handled at {RATE:,} messages/s, {options.size_bytes}-byte messages",
            results, caption=f"{PROMISES[durability]}; two processes, {seconds:g} s a run", show_rate=True,
        )  # fmt: skip
        recorder.write_all("latency", results)
    console.print()
