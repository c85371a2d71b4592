"""What a connection with TLS may keep: as much as one without, and no more of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import random
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.auth.tls import client_context, server_context
from ignis.broker.client import requests, store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack_connect
from ignis.broker.protocol.payloads import Connect
from ignis.native import encode_frame, encode_record
from ignis.tls_server import TlsDoor
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker
from tests.support.tls_files import TlsFiles

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the library of OpenSSL by name"),
]

LARGE = b"x" * (8 << 20)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["uvloop", "asyncio"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, files: TlsFiles) -> Iterator[RunningBroker]:
    url, tls, settings = (
        f"embedded://{tmp_path / 'store'}",
        server_context(*files.server),
        {"max_outbound_bytes": 1 << 20},
    )
    with RunningBroker(url, uvloop=request.param == "uvloop", tls=tls, settings=settings) as running:
        yield running


def client(broker: RunningBroker, files: TlsFiles) -> SyncClient:
    return SyncClient(BrokerAddress("127.0.0.1", broker.port, tls=client_context(files.ca)), {"timeout_s": WAIT_S})


def connected(broker: RunningBroker, files: TlsFiles, receives_bytes: int = 0) -> ssl.SSLSocket:
    """A connection that says who it is with the last bytes of its handshake."""
    sock = socket.socket()
    sock.settimeout(WAIT_S)
    if receives_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
    sock.connect(("127.0.0.1", broker.port))
    secured = client_context(files.ca).wrap_socket(sock, server_hostname="127.0.0.1")
    secured.sendall(encode_frame(Command.CONNECT, 1, pack_connect(Connect("ignis", "local", "t"))))
    assert secured.recv(1 << 16)
    return secured


def large_record(broker: RunningBroker, files: TlsFiles) -> None:
    with client(broker, files) as publisher:
        publisher.ask(requests.create_queue("q", {"codec": "raw", "shards": 1, "durability": "none"}))
        publisher.ask(requests.send("q", encode_record(LARGE)))


def test_what_nobody_reads_is_counted(broker: RunningBroker, files: TlsFiles) -> None:
    large_record(broker, files)
    with connected(broker, files, 4_096) as sock:
        (session,) = broker.on_loop(lambda: list(broker.broker.sessions))
        asked = store_requests.fire("q", 1, "", None, 64 << 20)
        sock.sendall(encode_frame(asked.command, 2, asked.payload))
        eventually(lambda: broker.on_loop(lambda: session.outbound_bytes) > len(LARGE) // 2)
        assert broker.on_loop(lambda: session.stuck_since_s) is not None, "its time to read runs"
        got = 0
        while got < len(LARGE):
            got += len(sock.recv(1 << 20))
        eventually(lambda: broker.on_loop(lambda: session.outbound_bytes) == 0)
        assert broker.on_loop(lambda: session.stuck_since_s) is None


def test_large_answers_arrive_whole(broker: RunningBroker, files: TlsFiles) -> None:
    large_record(broker, files)
    with client(broker, files) as consumer:
        found = consumer.consume("q", 1, wait_s=WAIT_S)
        assert sum(len(one) for claim in found.claims for one in claim.records) > len(LARGE)


def test_who_sends_nothing_but_new_keys_is_cut_off(broker: RunningBroker, files: TlsFiles) -> None:
    keys = KeyUpdates(broker.port)
    try:
        assert keys.send(20_000) < 20_000
    finally:
        keys.close()
    with connected(broker, files):
        pass


def test_new_keys_now_and_then_are_nothing(broker: RunningBroker) -> None:
    keys = KeyUpdates(broker.port)
    try:
        assert keys.send(20) == 20
    finally:
        keys.close()


def test_who_is_lost_with_the_end_of_the_handshake_keeps_no_place(
    broker: RunningBroker, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger would lock out his address: such a connection has no descriptor, and no end of its own."""
    caplog.set_level(logging.INFO)
    context = client_context(files.ca)
    for number in range(24):
        sock = socket.create_connection(("127.0.0.1", broker.port), WAIT_S)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(1 << 16))
        if number % 3 == 1:
            tls.write(encode_frame(Command.PING, 1, b""))
        if number % 3 == 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
        sock.sendall(outgoing.read())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    eventually(lambda: broker.on_loop(lambda: not broker.broker.sessions))
    with connected(broker, files):
        pass
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_what_comes_inside_tls_and_is_no_frame(
    broker: RunningBroker, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        sock = socket.create_connection(("127.0.0.1", broker.port), WAIT_S)
        with (
            client_context(files.ca).wrap_socket(sock, server_hostname="127.0.0.1") as tls,
            contextlib.suppress(OSError),
        ):
            tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            while tls.recv(1 << 16):
                pass
    eventually(lambda: broker.on_loop(lambda: not broker.broker.sessions))
    assert [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR] == []


class KeyUpdates:
    """A client of TLS 1.3 that derives new keys and wants the other side's: Python has no call for it."""

    def __init__(self, port: int) -> None:
        try:
            self._library = ctypes.CDLL("libssl.so.3")
        except OSError:
            pytest.skip("no libssl.so.3")
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        context = self._library.SSL_CTX_new(ctypes.c_void_p(self._library.TLS_client_method()))
        self._ssl = ctypes.c_void_p(self._library.SSL_new(ctypes.c_void_p(context)))
        self._sock.setblocking(True)
        self._library.SSL_set_fd(self._ssl, self._sock.fileno())
        assert self._library.SSL_connect(self._ssl) == 1
        self._sock.setblocking(False)

    def send(self, count: int) -> int:
        """So many; returns how many were sent before the connection ended."""
        deadline = time.monotonic() + WAIT_S
        for number in range(count):
            self._library.SSL_key_update(self._ssl, 1)
            while (answer := self._library.SSL_do_handshake(self._ssl)) != 1:
                if self._library.SSL_get_error(self._ssl, answer) not in (2, 3):
                    return number
                assert time.monotonic() < deadline
        return count

    def close(self) -> None:
        self._sock.close()


class Collecting(asyncio.BufferedProtocol):
    """Takes what comes in buffers of a few bytes."""

    def __init__(self) -> None:
        self.got = b""
        self._buffer = bytearray(7)
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self._buffer[:nbytes]

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: BaseException | None) -> None:
        self.ended.set_result(exc)


def test_records_are_counted_wherever_they_are_cut(files: TlsFiles) -> None:
    rng = random.Random(14)

    async def run() -> None:
        sizes = [rng.choice([0, 1, 22, 300, 16_640]) for _ in range(200)]
        stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes)
        for _ in range(20):
            door = TlsDoor(Collecting(), server_context(*files.server), 1.0)
            at = counted = 0
            while at < len(stream):
                size = rng.choice([1, 2, 4, 5, 6, 27, 1_000, 20_000])
                data = memoryview(stream[at : at + size])
                pieces = door._pieces(data)
                assert b"".join(piece for piece, _ in pieces) == data
                assert all(records <= 64 for _, records in pieces)
                counted += sum(records for _, records in pieces)
                at += size
            assert counted == len(sizes)

    asyncio.run(run())


def test_what_comes_with_the_end_of_the_handshake_is_there(files: TlsFiles) -> None:
    """In one segment with it: before the protocol has its transport."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        made: list[Collecting] = []

        def protocol() -> TlsDoor:
            made.append(Collecting())
            return TlsDoor(made[-1], server_context(*files.server), WAIT_S)

        server = await loop.create_server(protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context(files.ca).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
        tls.write(b"what comes early")
        writer.write(outgoing.read())
        for _ in range(1_000):
            if made and made[0].got == b"what comes early":
                break
            await asyncio.sleep(0.01)
        assert made[0].got == b"what comes early"
        assert made[0].transport.get_protocol() is made[0]
        made[0].transport.close()
        made[0].transport.close()
        assert made[0].transport.is_closing()
        assert await asyncio.wait_for(made[0].ended, WAIT_S) is None, "also where nobody answers the end"
        writer.close()
        server.close()

    asyncio.run(run())
