"""The broker's wire: requests that are given up, bytes that mean nothing, and clients that mean harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import ANSWERS, Command
from ignis.broker.protocol.encoding import pack, pack_connect, unpack
from ignis.broker.protocol.machine import Answer, BrokerMachine, ClientMachine, Request
from ignis.broker.protocol.payloads import Connect, Connected, Named, pack_send
from ignis.broker.protocol.table import TABLE
from ignis.broker.server.server import Broker
from ignis.errors import BadRequestError, BrokerError, ConfigError, MalformedFrameError
from ignis.native import encode_frame, encode_record
from ignis.native.wire import ReadArea, unpack_runs
from tests.torture.report import Outcome
from tests.vectors import by_hand

__all__ = ["cancellations", "frames", "hostile"]

_DECLARED = (BrokerError, MalformedFrameError, BadRequestError, ConfigError)
_WAIT_S = 30.0


# -- cancellation


def cancellations(count: int, rng: random.Random, deadline: float = float("inf")) -> Outcome:
    """Requests given up at every moment; each answer that arrives must be the caller's own."""
    outcome = Outcome("broker-cancellations")

    async def burst(client: AsyncClient, size: int, first: int) -> None:
        async def one(number: int) -> None:
            data = number.to_bytes(8, "big")
            if await client.ask(ClientRequest(Command.PING, data, bytes)) != data:
                outcome.fault(f"request {number} got another's answer")

        tasks = [asyncio.ensure_future(one(first + n)) for n in range(size)]
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        cancelled = [task for task in tasks if rng.random() < 0.9 and task.cancel()]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for found in results:
            if found is not None and not isinstance(found, asyncio.CancelledError):
                outcome.fault(f"{type(found).__name__}: {found}")
        outcome.add(requests=size, cancelled=len(cancelled))

    async def run() -> None:
        broker = Broker("memory://", port=0, settings={"max_pending": 100_000})
        await broker.start()
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"max_pending": 100_000}) as client:
            number = 0
            while outcome.figures.get("cancelled", 0) < count and time.monotonic() < deadline and not outcome.faults:
                await burst(client, 500, number)
                number += 500
                while client.pending > 50_000:
                    await client.ask(requests.ping())
            await client.ask(requests.ping())
            outcome.add(late_answers=client.late_answers, pending=client.pending)
        await broker.stop(5)

    asyncio.run(run())
    outcome.rounds = 1
    return outcome.finish()


# -- bytes


class _CountingBroker(BrokerMachine):
    """Counts the frames that it took, those behind the end of a stream not among them."""

    read = 0

    def _sort(self, items: list[tuple[int, int, Any]]) -> tuple[list[Request], bytes]:
        for command, _, payload in items:
            run = command == Command.SEND and isinstance(payload, tuple)
            self.read += sum(batch.count for _, batch, _ in payload[2]) if run else 1
        return super()._sort(items)


class _CountingClient(ClientMachine):
    """Likewise."""

    read = 0

    def _sort(self, items: list[tuple[int, int, Any]]) -> list[Answer]:
        self.read += len(items)
        return super()._sort(items)


def frames(count: int, rng: random.Random, deadline: float = float("inf")) -> Outcome:
    """Damaged frames into both state machines: only the declared errors may come out, and no memory stays behind.

    The frames are the protocol's vectors, malformed ones among them, and the same payloads under other commands. What
    ends a connection is rare, since nothing behind it is read; only what was read is counted. Payloads are looked into for
    one stream in five: that takes ten times as long as the rest.
    """
    outcome = Outcome("broker-frames")
    area = ReadArea()
    vectors = [bytes.fromhex(one["frame"]) for one in by_hand.all_vectors()]
    payloads = [one[14:] for one in vectors]
    known, answers = [int(one) for one in Command if one not in (*ANSWERS, Command.CONNECT)], sorted(map(int, ANSWERS))
    sends = [encode_frame(10, n, pack_send(b"q", 0, n % 5, encode_record(b"body", key=b"k"))) for n in range(200)]
    asked = [
        encode_frame(rng.choice([*known, 10, 11, 0, -1, 999]), rng.getrandbits(40), rng.choice(payloads))
        for _ in range(1_000)
    ]
    answered = [encode_frame(rng.choice(answers), rng.choice([2, 2, 77]), rng.choice(payloads)) for _ in range(1_000)]
    while outcome.figures.get("frames", 0) < count and time.monotonic() < deadline and not outcome.faults:
        to_broker = rng.random() < 0.8
        many = rng.choices(rng.choice([sends, asked]) if to_broker else answered, k=2_000)
        if rng.random() < 0.5:
            many[rng.randrange(2_000)] = rng.choice(vectors)
        stream = bytearray(b"".join(many))
        for _ in range(rng.choice([0, 1, 5, 50])):
            stream[rng.randrange(len(stream))] = rng.getrandbits(8)
        _read_in_pieces(outcome, area, bytes(stream), to_broker, rng.random() < 0.2, rng)
        if area.carried_bytes:
            outcome.fault(f"{area.carried_bytes} bytes stayed behind")
    outcome.rounds = 1
    return outcome.finish()


def _read_in_pieces(
    outcome: Outcome, area: ReadArea, stream: bytes, to_broker: bool, deep: bool, rng: random.Random
) -> None:
    """In pieces of any size to one connection; what follows an end goes to the next."""
    at = 0
    side = _connected(area, to_broker)
    while at < len(stream):
        piece = stream[at : at + int(2 ** rng.uniform(0, 15))]
        at += len(piece)
        before = side.read
        try:
            found = side.feed(piece)
        except _DECLARED:
            outcome.add(ends=1, frames=side.read - before)
            side = _connected(area, to_broker)
        except Exception as exc:
            outcome.fault(f"{type(exc).__name__}: {exc}; bytes {piece[:200].hex()}")
            return
        else:
            outcome.add(frames=side.read - before)
            for one in (found[0] if isinstance(found, tuple) else found) if deep else ():
                _look_into(outcome, one)


def _look_into(outcome: Outcome, one: Request | Answer) -> None:
    """What a session and a caller do with a payload before anything is done with the store."""
    if not isinstance(one.payload, bytes):
        return
    try:
        if one.command == Command.DELIVER:
            requests.delivered(one.payload)
        elif one.command in (Command.ACK, Command.NACK, Command.DELETE, Command.PEEK, Command.RELOAD):
            unpack_runs(one.payload, unpack(one.payload, Named)[1])
        elif (row := TABLE.get(one.command)) is not None and row.names is not None:
            row.names(one.payload)
    except _DECLARED:
        outcome.add(refused=1)
    except Exception as exc:
        outcome.fault(f"{type(exc).__name__}: {exc}; command {one.command}, payload {one.payload[:200].hex()}")


def _connected(area: ReadArea, to_broker: bool) -> _CountingBroker | _CountingClient:
    client, broker = _CountingClient(area, 1 << 20, 1 << 20), _CountingBroker(area, 1 << 20, 1 << 30)
    broker.feed(client.connect(Connect("a", "b", "c")))
    client.feed(broker.welcome(1, Connected("b", 1 << 20, 1 << 20, 1_000)))
    client.request(Command.SUBSCRIBE, b"", "token", streams=True)
    broker.read = client.read = 0
    return broker if to_broker else client


# -- clients that mean harm


_MOST_BYTES, _MOST_EACH_BYTES = 600 << 20, 120 << 10
"""Twice the default limits of what is unread over all connections, and what each may hold of its own."""
_HELLO = encode_frame(Command.CONNECT, 1, pack_connect(Connect("ignis", "local", "hostile")))
_PING = encode_frame(Command.PING, 1, bytes(4_000))
_SCAN = encode_frame(Command.SCAN, 9, pack(["q", {}, 100, False]))
_SEND = encode_frame(Command.SEND, 9, pack_send(b"q", 0, 0, encode_record(bytes(400))))


class Attack(NamedTuple):
    """What a client of one kind writes, as far as it is taken; with ``greeted`` after the answer to its CONNECT. Then it
    does nothing more, and it reads nothing."""

    name: str
    written: bytes
    greeted: bool = True


ATTACKS = [
    Attack("idle", b""),
    Attack("silent", b"", False),
    Attack("half_open", _HELLO[:20], False),
    Attack("floods", _PING * 100, False),
    Attack("announces", ((64 << 20) - 4).to_bytes(4, "big") + bytes(250_000)),
    Attack("reads_nothing", _SCAN * 200),
    Attack("sends_only", _SEND * 2_000),
]


@contextlib.contextmanager
def _serving(directory: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    command = [
        sys.executable,
        "-m",
        "ignis",
        "broker",
        "--url",
        f"embedded://{directory}/store",
        "--bind",
        "127.0.0.1:0",
    ]
    limits = {"MAX_UNAUTHENTICATED": "20000", "MAX_CONNECTIONS": "20000", "HANDSHAKE_TIMEOUT_S": "60"}
    environment = {**os.environ, **{f"IGNIS_BROKER_{name}": value for name, value in limits.items()}}
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        assert process.stdout is not None
        yield process, int(json.loads(process.stdout.readline())["port"])
    finally:
        process.kill()
        process.wait(_WAIT_S)
        if process.stdout is not None:
            process.stdout.close()


def hostile(connections: int, deadline: float = float("inf")) -> Outcome:
    """So many clients of each kind against a broker process of its own: what it holds for each of them, and how long a
    good client waits for its acknowledgement meanwhile."""
    if not Path("/proc/self/statm").exists():
        return Outcome("broker-hostile", skipped="memory is read from /proc")
    outcome = Outcome("broker-hostile")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if connections + 200 > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + 200), hard))
    for attack in ATTACKS:
        if time.monotonic() >= deadline:
            break
        with tempfile.TemporaryDirectory(prefix="ignis-hostile-") as directory, _serving(directory) as (process, port):
            _attack(outcome, attack, connections, process, port)
        outcome.rounds += 1
    return outcome.finish()


def _attack(outcome: Outcome, attack: Attack, connections: int, process: subprocess.Popen[bytes], port: int) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(
            SyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": 60, "connect_timeout_s": 60})
        )
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw", "durability": "none"}))
        for _ in range(50):
            client.ask(requests.send("q", encode_record(bytes(30_000))))
        before = _resident_bytes(process.pid)
        waits: list[float] = []
        sockets = _open(stack, port, attack, connections, lambda: waits.append(_send(client)))
        waits += [_send(client) for _ in range(200)]
        held = _resident_bytes(process.pid) - before
        waits.sort()
        outcome.add(**{
            f"{attack.name}_connections": sum(one is not None for one in sockets),
            f"{attack.name}_mib": held >> 20,
            f"{attack.name}_p99_us": int(waits[len(waits) * 99 // 100] * 1e6),
        })  # fmt: skip
        if process.poll() is not None:
            outcome.fault(f"{attack.name}: the broker ended with {process.returncode}")
        if held > _MOST_BYTES + connections * _MOST_EACH_BYTES:
            outcome.fault(f"{attack.name}: {held >> 20} MiB are held for {connections} clients")


def _open(
    stack: contextlib.ExitStack, port: int, attack: Attack, connections: int, now_and_then: Callable[[], object]
) -> list[socket.socket | None]:
    """Connects them all and has each write what it can; None for one that was refused."""
    sockets: list[socket.socket | None] = []
    for number in range(connections):
        if number % 50 == 0:
            now_and_then()
        try:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            if attack.greeted:
                sock.sendall(_HELLO)
                sock.recv(1, socket.MSG_PEEK)
            sock.setblocking(False)
            _write(sock, attack.written)
        except OSError:
            sockets.append(None)
        else:
            sockets.append(sock)
    return sockets


def _write(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(BlockingIOError):
        while data:
            data = data[sock.send(data) :]


def _send(client: SyncClient) -> float:
    began = time.perf_counter()
    client.ask(requests.send("q", encode_record(b"good")))
    return time.perf_counter() - began


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * resource.getpagesize()
