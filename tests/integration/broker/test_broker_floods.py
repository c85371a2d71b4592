"""Floods of connections: they are counted from accept on, and nobody locks out the others."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.broker.auth.tls import client_context, server_context
from ignis.broker.client import store_requests
from ignis.broker.protocol.commands import Command
from ignis.broker.server import listener
from ignis.errors import IgnisError
from ignis.native import encode_frame
from tests.support import WAIT_S, eventually
from tests.support.broker import Wire, running
from tests.support.tls_files import TlsFiles

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and prlimit"),
]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def silent(port: int, count: int, source: str = "127.0.0.2") -> Iterator[list[socket.socket]]:
    """Connections of one address that say nothing."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port), WAIT_S, source_address=(source, 0))
            found.append(stack.enter_context(sock))
        yield found


def closed_of(sockets: list[socket.socket]) -> int:
    """How many the broker has ended."""
    with contextlib.closing(select.epoll()) as poll:
        for sock in sockets:
            poll.register(sock, select.EPOLLIN | select.EPOLLHUP)
        return len(poll.poll(0, len(sockets)))


@pytest.mark.parametrize("with_tls", [True, False], ids=["tls", "plain"])
@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_silence_of_one_address_does_not_lock_out_another(
    memory_url: str, tls: TlsFiles, uvloop: bool, with_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of 127/8 is one machine's, and would count as that.
    monkeypatch.setattr(listener, "network_of_connection", lambda sock, address: address[0])
    options = {"tls": server_context(*tls.server)} if with_tls else {}
    settings = {"handshake_timeout_s": WAIT_S, "max_unauthenticated": 40, "max_unauthenticated_per_address": 40}
    context = client_context(tls.ca) if with_tls else None
    with running(memory_url, settings=settings, uvloop=uvloop, **options) as broker:  # type: ignore[arg-type]
        with silent(broker.port, 64) as sockets:
            eventually(lambda: closed_of(sockets) == 24)
            eventually(lambda: broker.on_loop(lambda: broker.broker.admission.strangers) == 40)
            with broker.client(tls=context, connect_timeout_s=WAIT_S) as client:
                assert client.ask(store_requests.names()) == []
            eventually(lambda: closed_of(sockets) == 25)
            assert broker.broker.admission.displaced == 1
        eventually(lambda: broker.on_loop(lambda: broker.broker.admission.count) == 0)


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_a_handshake_that_is_never_begun_or_never_ended(memory_url: str, tls: TlsFiles, uvloop: bool) -> None:
    settings = {"handshake_timeout_s": 1.5}
    options: dict[str, Any] = {"settings": settings, "uvloop": uvloop, "tls": server_context(*tls.server)}
    with running(memory_url, **options) as broker:
        with silent(broker.port, 4) as sockets:
            sockets[0].sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a record
            sockets[1].sendall(b"no TLS at all")
            eventually(lambda: closed_of(sockets) == 4)
        eventually(
            lambda: broker.on_loop(lambda: (broker.broker.admission.count, len(broker.broker.sessions))) == (0, 0)
        )


def test_who_reads_no_answers_before_he_is_known(memory_url: str) -> None:
    """His time is that of all others, and what he leaves unread is little."""
    settings = {"handshake_timeout_s": 3, "write_timeout_s": 300}
    ping = encode_frame(Command.PING, 1, b"x" * 8_000)
    with running(memory_url, settings=settings) as broker, silent(broker.port, 3) as sockets:
        unread, most, began_s = 0, 0, time.monotonic()
        for sock in sockets:
            sock.setblocking(False)
        while (left := broker.on_loop(lambda: list(broker.broker.sessions))) or time.monotonic() - began_s < 1.0:
            assert time.monotonic() - began_s < 3 + WAIT_S
            for sock in sockets:
                with contextlib.suppress(OSError):
                    sock.send(ping * 32)
            for one in left:
                unread = broker.on_loop(lambda one=one: 0 if one.closed else one.outbound_bytes)
                most = max(most, unread)
        assert 65_536 <= most <= 65_536 + (1 << 19)
        assert time.monotonic() - began_s < 6.0, "a second time would be over after 6 s at the earliest"


def test_who_ends_tls_without_an_answer_keeps_no_place(memory_url: str, tls: TlsFiles) -> None:
    """The end of a TLS connection waits for the other side, which may never say anything."""
    settings = {"handshake_timeout_s": 1.5, "write_timeout_s": 300}
    options: dict[str, Any] = {"settings": settings, "tls": server_context(*tls.server)}
    with running(memory_url, **options) as broker, silent(broker.port, 1) as (plain,):
        # Past the handshake, and then nothing is read.
        secure = client_context(tls.ca).wrap_socket(plain, server_hostname="localhost")
        eventually(lambda: broker.on_loop(lambda: broker.broker.admission.count) == 1)
        eventually(lambda: broker.on_loop(lambda: broker.broker.admission.count) == 0)
        secure.close()


def test_every_refusal_names_its_setting(memory_url: str) -> None:
    settings = {"max_connections_per_address": 3, "max_unauthenticated_per_address": 2}
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.port)) for _ in range(2)]
        eventually(lambda: broker.on_loop(lambda: broker.broker.admission.strangers) == 2)
        with Wire(broker.port) as third:
            assert "broker.max_unauthenticated_per_address" in third.failure().message
        for wire in wires:
            wire.greet()
        stack.enter_context(Wire(broker.port)).greet()
        with Wire(broker.port) as fourth:
            assert "broker.max_connections_per_address" in fourth.failure().message


class Process:
    """``ignis broker`` over an embedded store."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ignis", "broker", "--url", f"embedded://{directory}/store", "--json",
             "--bind", "127.0.0.1:0"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "IGNIS_BROKER_RESERVED_FILES": "24"},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port: int = json.loads(self.process.stdout.readline())["port"]

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


def test_connections_leave_files_for_the_store(tmp_path: Path) -> None:
    """The limit is lowered under a broker that runs: what is reserved stays free, and afterwards there are places again."""

    def app(**store: float) -> ignis.Ignis:
        return ignis.Ignis(f"ignis://127.0.0.1:{broker.port}", store=store)

    with Process(tmp_path) as broker, app(connect_timeout_s=WAIT_S) as known:
        known.queue("q", bytes, shards=1).publish(b"before")
        most = broker.files + 48
        hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (most, hard))
        with silent(broker.port, 100) as sockets:
            eventually(lambda: closed_of(sockets) > 60)
            assert broker.files <= most - 20
            for number in range(20):
                known.queue(f"other-{number}", bytes, shards=1).publish(b"during")
            with pytest.raises(IgnisError), app(connect_timeout_s=0.2) as refused:
                refused.queue("q", bytes, shards=1).publish(b"too many")
        with app(connect_timeout_s=WAIT_S) as later:
            later.queue("q", bytes, shards=1).publish(b"after")


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_a_listener_that_cannot_accept_rests(memory_url: str, uvloop: bool) -> None:
    with running(memory_url, uvloop=uvloop) as broker:
        accepting = broker.broker._listener
        assert accepting is not None
        (listening,) = accepting._sockets
        failures = [OSError(24, "Too many open files"), MemoryError(), OSError(23, "Too many open files in system")]

        class Failing:
            """The socket, but that accepting fails for a while."""

            def fileno(self) -> int:
                return listening.fileno()

            def close(self) -> None:
                listening.close()

            def accept(self) -> tuple[socket.socket, object]:
                if failures:
                    raise failures.pop(0)
                return listening.accept()

        def swap() -> None:
            broker.broker.loop.remove_reader(listening.fileno())
            accepting._sockets[:] = [Failing()]  # type: ignore[list-item]
            accepting._go_on()

        broker.on_loop(swap)
        with Wire(broker.port) as wire:
            wire.greet()
        assert (failures, accepting.pauses) == ([], 3)


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_who_is_given_up_as_soon_as_he_is_accepted_is_closed_and_counted_no_longer(
    memory_url: str, uvloop: bool
) -> None:
    """The listener ends in the turn of the event loop in which it accepted: nothing of the connection has begun."""
    with running(memory_url, uvloop=uvloop) as broker:
        accepting = broker.broker._listener
        assert accepting is not None
        (listening,) = accepting._sockets

        def accept_and_end() -> int:
            client.connect(("127.0.0.1", broker.port))
            assert select.select([listening], [], [], WAIT_S)[0]
            accepting._accept(listening)
            accepting.close()
            return broker.broker.admission.count

        with socket.socket() as client:
            client.settimeout(WAIT_S)
            assert broker.on_loop(accept_and_end) == 1
            assert client.recv(1) == b""
            eventually(lambda: not broker.broker.admission.count)
