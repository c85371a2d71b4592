"""Connecting: what cannot work is said at once and names the option; what may come back is waited for."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.auth.principal import Credentials, Principal
from ignis.broker.auth.tls import client_context, server_context
from ignis.broker.client import store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.sync_client import SyncClient
from ignis.errors import ClosedError, ProtocolError, StoreUnreachableError, TlsError, UnauthenticatedError
from ignis.storage import open_store
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker
from tests.support.tls_files import TlsFiles

pytestmark = pytest.mark.integration

FOR_EVER_S = 3_000.0
"""Who tries for as long as this does not come back within the test."""

Ask = Callable[..., list[str]]


def ask_sync(port: int, tls: ssl.SSLContext | None = None, timeout_s: float = FOR_EVER_S, **scope: Any) -> list[str]:
    settings = {"timeout_s": timeout_s, "connect_timeout_s": timeout_s}
    with SyncClient(BrokerAddress("127.0.0.1", port, tls=tls, **scope), settings) as client:
        return client.ask(store_requests.names())


def ask_async(port: int, tls: ssl.SSLContext | None = None, timeout_s: float = FOR_EVER_S, **scope: Any) -> list[str]:
    async def run() -> list[str]:
        settings = {"timeout_s": timeout_s, "connect_timeout_s": timeout_s}
        async with AsyncClient(BrokerAddress("127.0.0.1", port, tls=tls, **scope), settings) as client:
            return await client.ask(store_requests.names())

    return asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


@pytest.fixture(params=[ask_sync, ask_async], ids=["threads", "coroutines"])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def with_tls(files: TlsFiles) -> Iterator[int]:
    with RunningBroker("memory://dialling-tls", tls=server_context(*files.server)) as broker:
        yield broker.port


@pytest.fixture(scope="module")
def without_tls() -> Iterator[int]:
    with RunningBroker("memory://dialling") as broker:
        yield broker.port


def test_who_waits_for_another_threads_attempts_is_told_why_they_fail() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = SyncClient(BrokerAddress("127.0.0.1", port), {"connect_timeout_s": WAIT_S, "retry_wait_s": 0.01})

    def connect() -> None:
        with pytest.raises((StoreUnreachableError, ClosedError)):
            client.connect()

    thread = threading.Thread(target=connect)
    thread.start()
    eventually(lambda: client._attempts.failure is not None)
    with pytest.raises(
        StoreUnreachableError, match=r"127\.0\.0\.1:\d+: .*refused \(another thread is still connecting"
    ):
        client.connect(0.01)
    client.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_what_a_coroutine_waits_for_is_told_in_the_same_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def main() -> None:
        client = AsyncClient(BrokerAddress("127.0.0.1", port), {"connect_timeout_s": WAIT_S, "retry_wait_s": 0.01})
        attempt = asyncio.create_task(client.connect())
        while client._attempts.failure is None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        with pytest.raises(StoreUnreachableError, match=r"Connect call failed.* \(still connecting after"):
            await client.connect(0.01)
        await client.close()
        with pytest.raises((asyncio.CancelledError, ClosedError, StoreUnreachableError)):
            await attempt

    asyncio.run(main())


def test_a_port_where_nobody_listens(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = r"127\.0\.0\.1:\d+: \[Errno 111\] .*; tried for 0\.3 s \(client\.connect_timeout_s\)$"
    with pytest.raises(StoreUnreachableError, match=said):
        ask(port, timeout_s=0.3)


def test_with_tls(ask: Ask, with_tls: int, files: TlsFiles) -> None:
    assert ask(with_tls, client_context(files.ca)) == []


def test_a_certificate_of_others(ask: Ask, with_tls: int, files: TlsFiles) -> None:
    with pytest.raises(TlsError, match=r"not accepted.*option ca"):
        ask(with_tls, client_context(files.other_ca))


def test_a_certificate_whose_common_name_is_the_host(files: TlsFiles) -> None:
    with RunningBroker("memory://named", tls=server_context(*files.named_localhost)) as broker:
        for host in ("localhost", "127.0.0.1"):
            with pytest.raises(TlsError, match=r"not accepted.*must name the host of the URL in its subjectAltName"):
                open_store(f"ignis+tls://{host}:{broker.port}?ca={files.ca}&connect_timeout_s={FOR_EVER_S}")


def test_a_side_without_tls(ask: Ask, with_tls: int, without_tls: int, files: TlsFiles) -> None:
    with pytest.raises(TlsError, match="use ignis://"):
        ask(without_tls, client_context(files.ca))
    with pytest.raises(TlsError, match=r"use ignis\+tls://"):
        ask(with_tls)


def test_a_store_says_so_when_it_is_opened(with_tls: int, files: TlsFiles) -> None:
    with pytest.raises(TlsError, match="option ca"):
        open_store(f"ignis+tls://127.0.0.1:{with_tls}?ca={files.other_ca}&connect_timeout_s={FOR_EVER_S}")


def test_a_certificate_that_the_broker_wants(ask: Ask, files: TlsFiles) -> None:
    with RunningBroker("memory://mutual", tls=server_context(*files.server, client_ca=files.ca)) as broker:
        for context in (
            client_context(files.ca),
            client_context(files.ca, certificate=files.stranger[0], key=files.stranger[1]),
        ):
            # The broker ends the connection without a word, as one that dies does: so it is tried again for a while.
            with pytest.raises((StoreUnreachableError, TlsError), match="cert and key"):
                ask(broker.port, context, 0.3)
        assert ask(broker.port, client_context(files.ca, certificate=files.client[0], key=files.client[1])) == []


def test_credentials_that_are_refused(ask: Ask) -> None:
    class Nobody:
        open = False

        def authenticate(self, credentials: Credentials) -> Principal:
            raise UnauthenticatedError("token is not known")

    with RunningBroker("memory://nobody", authenticator=Nobody()) as broker:
        with pytest.raises(UnauthenticatedError, match="token"):
            ask(broker.port, token="wrong")
        assert broker.broker.state.denied == 1, "one attempt"


def test_something_else_listens(ask: Ask, files: TlsFiles) -> None:
    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        port = int(listener.getsockname()[1])
        try:
            with pytest.raises(ProtocolError, match="not a broker"):
                ask(port)
            with pytest.raises(TlsError, match="does not speak TLS"):
                ask(port, client_context(files.ca))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(WAIT_S)


def test_nobody_yet(ask: Ask, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    with pytest.raises(StoreUnreachableError, match="Errno"):
        ask(port, None, 0.2)
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(ask(port)))
    thread.start()
    with RunningBroker(f"embedded://{tmp_path}/store", at_port=port):
        thread.join(WAIT_S)
    assert found == [[]]


@pytest.mark.parametrize(
    ("who", "what"), [("?token=t", "token"), ("?user=u&password=p", "user and password"), ("", "")]
)
def test_a_broker_without_users_looks_at_no_password(
    memory_url: str, caplog: pytest.LogCaptureFixture, who: str, what: str
) -> None:
    with RunningBroker(memory_url) as broker:
        open_store(broker.url + who).close()
        said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        name = f"broker 127.0.0.1:{broker.port}"
        assert said == ([f"{name} has no users: it let this client in without a look at its {what}"] if what else [])
