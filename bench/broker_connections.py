"""Many connections to one broker: 1,000 that send a message a second each, and 10,000 that are only there.

The clients speak the wire protocol over plain asyncio, so that what is measured is the broker and not 10,000 clients' threads.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from pathlib import Path
from typing import Any

from bench.measure import Options, Recorder, Result
from bench.peers.base import NONE, PROMISES, SYNC
from bench.peers.ignis_broker import IgnisBroker
from bench.peers.ignis_embedded import QUEUE
from bench.processes import BenchError, Gate, Task, run_together
from bench.store import measure, started
from bench.tables import Goal, console, latency_table

ACTIVE = 1_000
IDLE = 10_000
PROCESSES = 2
_PERIOD_S = 1.0
_AT_A_TIME = 50  # of each process: both together stay below broker.max_unauthenticated_per_address
_HANDSHAKE_S = 60.0
_SLACK_S = 120.0
_CONNECTING_S = 600.0


class Wire(asyncio.Protocol):
    """One connection: the handshake, then one request at a time."""

    def __init__(self) -> None:
        from ignis.native import FrameDecoder

        self._decoder = FrameDecoder()
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None
        self._request = 0
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        for command, request_id, payload in self._decoder.frames():
            if self._waiting is not None and request_id == self._request and not self._waiting.done():
                self._waiting.set_result((command, payload))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BenchError("the broker closed a connection"))

    async def ask(self, command: int, payload: bytes, expected: int) -> None:
        """Sends a request and waits for the answer that it must have."""
        from ignis.native import encode_frame

        if self.lost or self._transport is None:
            raise BenchError("the connection is gone")
        self._request += 1
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(encode_frame(command, self._request, payload))
        answer, detail = await asyncio.wait_for(self._waiting, _HANDSHAKE_S)
        if answer != expected:
            raise BenchError(f"command {command} was answered with {answer}: {detail[:200]!r}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect_all(port: int, count: int) -> list[Wire]:
    """So many connections, a bounded number at a time: the broker bounds those that have not said who they are."""
    from ignis.broker.protocol.commands import Command
    from ignis.broker.protocol.encoding import pack_connect
    from ignis.broker.protocol.payloads import Connect

    loop, turn, made = asyncio.get_running_loop(), asyncio.Semaphore(_AT_A_TIME), list[Wire]()

    async def one(number: int) -> None:
        async with turn:
            _, wire = await loop.create_connection(Wire, "127.0.0.1", port)
            hello = Connect(client_id="ignis", farm_id="local", instance=f"bench-{number}-{time.monotonic_ns()}")
            await wire.ask(Command.CONNECT, pack_connect(hello), Command.RESULT)
            made.append(wire)

    await asyncio.gather(*[one(number) for number in range(count)])
    return made


def send_steadily(gate: Gate, port: int, size: int, connections: int, seconds: float) -> list[int]:
    """Each connection sends a message every second, spread over the second; the time to each acknowledgement in ns."""
    return asyncio.run(_send_steadily(gate, port, size, connections, seconds))


async def _send_steadily(gate: Gate, port: int, size: int, connections: int, seconds: float) -> list[int]:
    from ignis.broker.client import requests
    from ignis.broker.protocol.commands import Command
    from ignis.native import encode_record

    _raise_limit()
    wires = await connect_all(port, connections)
    times: list[int] = []
    body = b"x" * size
    gate()
    began = time.monotonic()

    async def beat(number: int, wire: Wire) -> None:
        due = began + number / connections * _PERIOD_S
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            before = time.monotonic_ns()
            await wire.ask(Command.SEND, requests.send(QUEUE, encode_record(body)).payload, Command.SEND_ACK)
            times.append(time.monotonic_ns() - before)
            due += _PERIOD_S

    await asyncio.gather(*[beat(number, wire) for number, wire in enumerate(wires)])
    for wire in wires:
        wire.close()
    return times


def stay(gate: Gate, port: int, pid: int, connections: int) -> tuple[int, int, float]:
    """Connects, and looks at the broker: bytes of memory before and with the connections, seconds for connecting."""
    return asyncio.run(_stay(gate, port, pid, connections))


async def _stay(gate: Gate, port: int, pid: int, connections: int) -> tuple[int, int, float]:
    from ignis.broker.protocol.commands import Command

    _raise_limit()
    gate()
    before = resident_bytes(pid)
    began = time.monotonic()
    wires = await connect_all(port, connections)
    elapsed = time.monotonic() - began
    await asyncio.sleep(1.0)
    after = resident_bytes(pid)
    for wire in wires[:: max(1, connections // 100)]:
        await wire.ask(Command.PING, b"", Command.PONG)  # they are not only open, they are served
    lost = sum(wire.lost for wire in wires)
    if lost:
        raise BenchError(f"{lost:,} of {connections:,} idle connections were lost")
    for wire in wires:
        wire.close()
    gc.collect()
    return before, after, elapsed


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own: without the pages of files."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"no RssAnon in /proc/{pid}/status")


def _raise_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(options: Options, recorder: Recorder) -> None:
    """The active ones, by durability, then the idle ones."""
    active, idle = (100, 500) if options.quick else (ACTIVE, IDLE)
    seconds = 3.0 if options.quick else 10.0 * options.seconds
    for durability in (SYNC, NONE):
        peer = IgnisBroker(durability)
        if not options.wants(peer.name):
            return

        def one_run(peer: Any, result: Result) -> None:
            with started(peer, options):
                each = active // PROCESSES
                task = Task(send_steadily, (peer.port, options.size_bytes, each, seconds))
                answers = run_together([task] * PROCESSES, seconds + _SLACK_S)
            times = [one for many in answers for one in many]
            result.n += len(times)
            result.add_latencies(times)
            result.throughput.add(len(times) / seconds)

        tried = [(peer, Result(peer.name, durability, "SEND to SEND_ACK", {"connections": active}))]
        results = measure(options, tried, one_run)
        latency_table(
            f"Broker [{durability}], {active:,} connections, each a {options.size_bytes}-byte message a second",
            results, caption=PROMISES[durability], show_rate=True,
        )  # fmt: skip
        Goal(
            f"[{durability}] p99 with {active:,} connections", results[0].latency("p99"), 5e6, at_most=True, unit=" ns"
        ).show()
        recorder.write_all("broker.connections", results)
    _idle(options, recorder, idle)


def _idle(options: Options, recorder: Recorder, count: int) -> None:
    peer = IgnisBroker(SYNC)
    result = Result(peer.name, "", "connected and known; resident memory of the broker", {"connections": count})

    def one_run(peer: Any, result: Result) -> None:
        with started(peer, options):
            before, after, elapsed = run_together([Task(stay, (peer.port, peer.server_pid, count))], _CONNECTING_S)[0]
        result.n += count
        result.throughput.add(count / elapsed)
        result.extra.setdefault("bytes_per_connection", []).append(round((after - before) / count))

    measure(options, [(peer, result)], one_run)
    if result.problem:
        console.print(f"{count:,} idle connections: {result.problem}", style="bold red")
    else:
        each = sorted(result.extra["bytes_per_connection"])
        console.print(
            f"{count:,} idle connections: {each[len(each) // 2] / 1024:.1f} KiB each in the broker, "
            f"{result.throughput.median:,.0f} connected a second"
        )
    recorder.write_all("broker.idle", [result])
    console.print()
