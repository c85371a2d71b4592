"""What a buffered publish costs its caller: the time until the call returns, call by call.

Paced: bursts of 100 a millisecond, which the flusher keeps up with; this is what a request handler sees. Saturated:
as fast as the loop goes, so that the ring fills and the call has to wait. Refused: a ring of 64 and a time-out of 0.
Typed: messages of a class, read back as the consumer will read them (`queue.strict`) and not.
The peers are what one would otherwise hand a message to without waiting. Reading the clock twice is part of every
figure; its cost is a row of its own.
"""

from __future__ import annotations

import collections
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import ignis
from bench.measure import Options, Recorder, Result
from bench.peers.base import SYNC, MissingError, require_module
from bench.peers.ignis_embedded import IgnisEmbedded
from bench.processes import CONTEXT, BenchError, Gate, Task, run_together
from bench.store import started
from bench.tables import Goal, console, latency_table

BURST = 100
BURST_EVERY_S = 0.001
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Target:
    """Something to hand messages to. ``open`` returns the call, what waits for its end, and what closes it."""

    name: str
    how: str
    open: Callable[[Path], tuple[Callable[[bytes], object], Callable[[], object]]]
    module: str = ""


def _open_deque(directory: Path) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    messages: collections.deque[bytes] = collections.deque(maxlen=65_536)
    return messages.append, lambda: None


def _open_simple_queue(directory: Path) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: collections.deque(iter(messages.get, None), maxlen=0), daemon=True)
    thread.start()

    def close() -> None:
        messages.put(None)
        thread.join(60)

    return messages.put, close


def _swallow(messages: Any) -> None:
    while messages.get(timeout=60) is not None:
        pass


def _open_multiprocessing_queue(directory: Path) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    messages = CONTEXT.Queue()
    process = CONTEXT.Process(target=_swallow, args=(messages,), daemon=False)
    process.start()

    def close() -> None:
        messages.put(None)
        process.join(60)
        if process.is_alive():
            process.kill()
            process.join(5)

    return messages.put, close


def _open_pyzmq(directory: Path) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    import zmq

    context = zmq.Context()
    sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    receiver.bind("inproc://bench")
    sender.connect("inproc://bench")
    stop = threading.Event()

    def swallow() -> None:
        receiver.rcvtimeo = 100
        while not stop.is_set():
            try:
                receiver.recv()
            except zmq.Again:
                continue

    thread = threading.Thread(target=swallow, daemon=True)
    thread.start()

    def close() -> None:
        stop.set()
        thread.join(60)
        context.destroy(0)

    return sender.send, close


TARGETS = (
    Target("collections.deque", "append: the floor; reaches nobody, dies with the process", _open_deque),
    Target("queue.SimpleQueue", "put, a thread takes; dies with the process", _open_simple_queue),
    Target(
        "multiprocessing.Queue",
        "put, its feeder thread pickles, a process takes; dies with the processes",
        _open_multiprocessing_queue,
    ),
    Target("pyzmq inproc", "PUSH send, a thread takes; dies with the process", _open_pyzmq, module="zmq"),
)


# -- the measuring process ---------------------------------------------------------------------------------------------


def paced(send: Callable[[Any], object], size: int, seconds: float, message: Any = None) -> list[int]:
    """The time of each call in nanoseconds, in bursts with pauses between them. ``message``: None = ``size`` bytes."""
    clock, body = time.perf_counter_ns, b"x" * size if message is None else message
    times: list[int] = []
    took = times.append
    for _ in range(20 * BURST):
        send(body)
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        for _ in range(BURST):
            before = clock()
            send(body)
            took(clock() - before)
        due = max(due + BURST_EVERY_S, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
    return times


def saturated(send: Callable[[bytes], object], size: int, seconds: float) -> tuple[list[int], float]:
    """The time of each call, as fast as they go, and the seconds it took."""
    clock, body = time.perf_counter_ns, b"x" * size
    times: list[int] = []
    took = times.append
    began = clock()
    end, before = began + int(seconds * 1e9), began
    while before < end:
        send(body)
        now = clock()
        took(now - before)
        before = now
    return times, (before - began) / 1e9


class Line(msgspec.Struct):
    sku: str
    count: int
    price: float
    note: str | None = None


class Order(msgspec.Struct):
    id: int
    customer: str
    lines: list[Line]


TYPED: dict[str, tuple[type, Any]] = {
    "4 fields": (Line, Line("A-1138", 3, 9.5, "gift")),
    "4 fields, one None": (Line, Line("A-1138", 3, 9.5)),
    "an order of 10 lines": (Order, Order(7, "ada", [Line("A-1138", n, 9.5, "gift") for n in range(10)])),
}


def measure_typed(gate: Gate, directory: str, what: str, strict: bool, seconds: float) -> list[int]:
    """Paced calls with a message of a class, whose encoding is part of the call."""
    kind, message = TYPED[what]
    with ignis.Ignis(f"embedded://{directory}/store") as app:
        queue = app.queue("typed", kind, strict=strict)
        gate()
        with queue.publisher() as publisher:
            return paced(publisher.send, 0, seconds, message)


def measure_target(gate: Gate, index: int, directory: str, size: int, seconds: float) -> list[int]:
    send, close = TARGETS[index].open(Path(directory))
    gate()
    times = paced(send, size, seconds)
    close()
    return times


def measure_clock(gate: Gate, size: int, seconds: float) -> list[int]:
    """The same loop around a call that does nothing."""
    gate()
    return paced(lambda body: None, size, seconds)


def measure_ignis(gate: Gate, peer: IgnisEmbedded, size: int, seconds: float) -> dict[str, Any]:
    """Paced and saturated calls of the publisher; everything sent is durable at the end."""
    session = peer.session()
    gate()
    with session.queue.publisher() as publisher:
        quiet = paced(publisher.send, size, seconds)
        publisher.flush()
    with session.queue.publisher() as publisher:
        busy, _ = saturated(publisher.send, size, seconds)
        began = time.perf_counter()
        publisher.flush()
        flush_s = time.perf_counter() - began
    session.close()
    return {"paced": quiet, "saturated": busy, "flush_s": flush_s}


def measure_refusals(gate: Gate, peer: IgnisEmbedded, size: int, seconds: float) -> dict[str, Any]:
    """A ring of 64 slots and a sender that does not wait: accepted, refused, and what a refusal costs."""
    from ignis.errors import ChannelFullError

    session = peer.session()
    body, clock = b"x" * size, time.perf_counter_ns
    accepted, refusals = 0, []
    gate()
    with session.queue.publisher(capacity=64) as publisher:
        end = clock() + int(seconds * 1e9)
        before = clock()
        while before < end:
            try:
                publisher.send(body, timeout=0)
                accepted += 1
            except ChannelFullError:
                refusals.append(clock() - before)
            before = clock()
    stored = session.waiting()
    session.close()
    if stored != accepted:
        raise BenchError(f"{accepted:,} messages were accepted and {stored:,} are stored")
    return {"accepted": accepted, "refused": refusals}


# -- the bench ---------------------------------------------------------------------------------------------------------


def run(options: Options, recorder: Recorder) -> None:
    """The paced table, then the full ring."""
    size, seconds = options.size_bytes, options.seconds
    ours = Result("ignis, publisher", SYNC, "publisher.send; durable when its receipt is done")
    full = Result("ignis, publisher saturated", SYNC, "publisher.send as fast as it goes: the ring fills, send waits")
    refused = Result("ignis, publisher refusing", SYNC, "capacity=64, send(timeout=0): the time of a ChannelFullError")
    clock = Result("(reading the clock twice)", note="part of every row")
    typed = {
        (what, strict): Result(
            f"ignis, {what}{'' if strict else ', strict=False'}", SYNC, "publisher.send of an object"
        )
        for what in TYPED
        for strict in (True, False)
    }
    results = [clock, ours, *typed.values()]
    peers = [Result(target.name, note=target.how) for target in TARGETS]
    results += peers
    for _ in range(options.runs):
        _once(clock, lambda: clock.add_latencies(_alone(measure_clock, size, seconds)))
        _once(ours, lambda: _run_ignis(options, ours, full))
        _once(refused, lambda: _run_refusals(options, refused))
        for (what, strict), result in typed.items():
            _once(result, partial(_run_typed, options, result, what, strict))
        for index, target in enumerate(TARGETS):
            if options.wants(target.name):
                _once(peers[index], partial(_run_target, options, peers[index], index))
    shown = [result for result in results if result.latency_ns or result.problem]
    latency_table(
        f"Publish as its caller sees it, {size}-byte messages, bursts of {BURST} every {BURST_EVERY_S * 1e3:g} ms",
        shown, caption="only ignis' messages are durable afterwards; the others are the price of a hand-over alone",
    )  # fmt: skip
    for what in TYPED:
        ratio = typed[what, True].latency("p50") / max(1, typed[what, False].latency("p50"))
        console.print(f"{what}: the check (queue.strict) makes the call {ratio:.2f} times as long")
    Goal("buffered publish p50", ours.latency("p50"), 1_000, at_most=True, unit=" ns").show()
    recorder.write_all("publish.paced", shown)

    full.problem = ours.problem
    caption = _full_caption(full, refused)
    latency_table("Publish into a full ring", [full, refused], caption=caption, show_rate=True)
    recorder.write_all("publish.full", [full, refused])
    console.print()


def _full_caption(full: Result, refused: Result) -> str:
    if "refused" not in refused.extra:
        return ""
    return (
        f"flush after the last call {full.extra['flush_s']:.3g} s; "
        f"of a ring of 64: {refused.n:,} accepted and stored, {refused.extra['refused']:,} refused"
    )


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    return run_together([Task(function, arguments)], _TIMEOUT_S)[0]


def _run_target(options: Options, result: Result, index: int) -> None:
    if TARGETS[index].module:
        require_module(TARGETS[index].module, TARGETS[index].module)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        times = _alone(measure_target, index, directory, options.size_bytes, options.seconds)
    result.n += len(times)
    result.add_latencies(times)


def _run_typed(options: Options, result: Result, what: str, strict: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        times = _alone(measure_typed, directory, what, strict, options.seconds)
    result.n += len(times)
    result.add_latencies(times)


def _run_ignis(options: Options, ours: Result, full: Result) -> None:
    with started(IgnisEmbedded(SYNC), options) as peer:
        answer = _alone(measure_ignis, peer, options.size_bytes, options.seconds)
    ours.n += len(answer["paced"])
    ours.add_latencies(answer["paced"])
    full.n += len(answer["saturated"])
    full.add_latencies(answer["saturated"])
    full.throughput.add(len(answer["saturated"]) / (sum(answer["saturated"]) / 1e9 + answer["flush_s"]))
    full.extra["flush_s"] = answer["flush_s"]


def _run_refusals(options: Options, refused: Result) -> None:
    with started(IgnisEmbedded(SYNC), options) as peer:
        answer = _alone(measure_refusals, peer, options.size_bytes, options.seconds)
    refused.n += answer["accepted"]
    refused.throughput.add(answer["accepted"] / options.seconds)
    refused.add_latencies(answer["refused"] or [0])
    refused.extra["refused"] = refused.extra.get("refused", 0) + len(answer["refused"])


def _once(result: Result, measure: Callable[[], object]) -> None:
    if result.problem:
        return
    try:
        measure()
    except (MissingError, BenchError, OSError) as exc:
        result.problem = str(exc)
