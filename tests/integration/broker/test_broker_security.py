"""A broker as a process, with users and TLS: who gets in, what they may do, and what is refused at the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis import errors
from ignis.broker.auth.passwords import hash_password, new_token
from ignis.broker.auth.users_file import Token, User, editing
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from tests.support import WAIT_S
from tests.support.tls_files import TlsFiles

Start = Callable[..., "Running"]


class Running:
    """A broker's process and where it listens."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def app(self, tls: TlsFiles | None = None, **options: Any) -> ignis.Ignis:
        scheme = "ignis" if tls is None else "ignis+tls"
        if tls is not None:
            options.setdefault("ca", str(tls.ca))
        options.setdefault("connect_timeout_s", WAIT_S)
        return ignis.Ignis(f"{scheme}://127.0.0.1:{self.port}", store=options)


def command(tmp_path: Path, *arguments: object) -> list[str]:
    return [
        sys.executable, "-m", "ignis", "broker", "--url", f"embedded://{tmp_path}/store", "--json", *map(str, arguments),
    ]  # fmt: skip


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: object) -> Running:
        process = subprocess.Popen(
            command(tmp_path, "--bind", "127.0.0.1:0", *arguments),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert wait([process.stdout], WAIT_S), "the broker does not say that it runs"
        line = process.stdout.readline()
        assert line, process.communicate(timeout=WAIT_S)[1]
        return Running(process, json.loads(line)["port"])

    yield call
    for process in started:
        process.kill()
        process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


PASSWORD = "open sesame"
PUBLISHER, WORKER = new_token(), new_token()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    with editing(path) as all_users:
        all_users.users += [
            User("boss", ["all:*"], password=hash_password(PASSWORD)),
            User("web", ["publish:orders"], tokens=[Token(PUBLISHER.id, PUBLISHER.digest)]),
            User("worker", ["work:orders"], tokens=[Token(WORKER.id, WORKER.digest)]),
            User("ann", ["look:*"], certificate=True),
        ]
    return path


def test_users_do_what_they_may(start: Start, users: Path) -> None:
    broker = start("--users", users)
    with broker.app(user="boss", password=PASSWORD) as boss:
        for name in ("orders", "bills"):
            boss.queue(name, bytes).open()
        with broker.app(token=PUBLISHER.text) as web:
            web.queue("orders", bytes).publish(b"one")
            with pytest.raises(errors.PermissionDeniedError, match=r"DECLARE.*bills|QUEUE_GET.*bills"):
                web.queue("bills", bytes).publish(b"two")
            with pytest.raises(errors.PermissionDeniedError, match="FIRE"):
                web.queue("orders", bytes).main.fire(1)
            with pytest.raises(errors.PermissionDeniedError, match="QUEUE_REMOVE"):
                web.store.queues.remove("orders")
        with broker.app(token=WORKER.text) as worker:
            (fired,) = worker.queue("orders", bytes).main.fire(5)
            assert fired.message == b"one"
            assert worker.queue("orders", bytes).main.delete([fired]) == 1
            with pytest.raises(errors.PermissionDeniedError):
                worker.store.magazines.metadata("bills")
        assert boss.queue("bills", bytes).main.pending() == 0


@pytest.mark.parametrize(
    "given",
    [{"token": "wrong"}, {"user": "boss", "password": "wrong"}, {"user": "nobody", "password": PASSWORD}],
)
def test_everybody_else_is_refused_alike(start: Start, users: Path, given: dict[str, str]) -> None:
    broker = start("--users", users)
    with broker.app(**given) as app, pytest.raises(errors.UnauthenticatedError, match="unknown user, or wrong"):
        app.queue("orders", bytes).open()


def test_who_gives_nothing_is_told_that(start: Start, users: Path) -> None:
    """It is the client that says so: the broker answers everybody alike."""
    broker = start("--users", users)
    text = "no token, user or password was given .*IGNIS_TOKEN"
    with broker.app() as app, pytest.raises(errors.UnauthenticatedError, match=text):
        app.queue("orders", bytes).open()

    async def main() -> None:
        client = AsyncClient(BrokerAddress("127.0.0.1", broker.port))
        try:
            with pytest.raises(errors.UnauthenticatedError, match=text):
                await client.connect()
        finally:
            await client.close()

    asyncio.run(main())


def test_guessing_is_slowed_down_and_nothing_secret_is_logged(start: Start, users: Path) -> None:
    broker = start("--users", users, "--log-level", "debug")
    guess = "ign_" + "0" * 12 + "_" + "G" * 43
    answers: Counter[type[BaseException]] = Counter()
    while not answers[errors.TooManyRequestsError]:
        with (
            broker.app(token=guess, connect_timeout_s=1.0) as app,
            pytest.raises((errors.UnauthenticatedError, errors.TooManyRequestsError)) as refused,
        ):
            _ = app.store
        answers[refused.type] += 1
        assert answers.total() < 60, "nobody is slowed down"
    assert answers[errors.UnauthenticatedError] > 10
    with (
        broker.app(user="boss", password=PASSWORD, connect_timeout_s=1.0) as app,
        contextlib.suppress(errors.IgnisError),
    ):
        _ = app.store  # whether its wait is over by now is the clock's to say
    broker.process.terminate()
    out, err = broker.process.communicate(timeout=WAIT_S)
    for secret in (guess, "G" * 43, PUBLISHER.text, PUBLISHER.text.split("_", 2)[2], PASSWORD):
        assert secret not in out + err


def test_tls_from_end_to_end(start: Start, users: Path, tls: TlsFiles) -> None:
    broker = start("--users", users, "--tls-cert", tls.server[0], "--tls-key", tls.server[1])
    with broker.app(tls, user="boss", password=PASSWORD) as app:
        queue = app.queue("orders", bytes)
        ids = queue.publish_many([b"x" * 1_000] * 2_000)
        assert len(set(ids)) == 2_000
        assert queue.main.pending() == 2_000
    with broker.app(tls, ca=str(tls.other_ca), connect_timeout_s=0.5) as app, pytest.raises(errors.IgnisError):
        _ = app.store
    with socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S) as plain:
        plain.sendall(b"\0\0\0\x0a" + b"\0" * 10)
        answer = b""
        while data := plain.recv(4_096):
            answer += data
        assert not answer or answer[0] == 21, "a TLS alert at most, and never a frame"


def test_a_certificate_is_a_user(start: Start, users: Path, tls: TlsFiles) -> None:
    broker = start("--users", users, "--tls-cert", tls.server[0], "--tls-key", tls.server[1], "--tls-client-ca", tls.ca)
    certificate, key = map(str, tls.client)
    with broker.app(tls, cert=certificate, key=key) as app:
        assert app.store.queues.list() == []
        with pytest.raises(errors.PermissionDeniedError):
            app.queue("orders", bytes).open()
    certificate, key = map(str, tls.stranger)
    for options in ({}, {"cert": certificate, "key": key}):
        with broker.app(tls, **options, connect_timeout_s=0.5) as app, pytest.raises((errors.IgnisError, ssl.SSLError)):
            _ = app.store


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bind", "0.0.0.0:0"], "no authentication and no TLS"),
        (["--bind", "0.0.0.0:0", "--users", "USERS"], "TLS"),
        (["--bind", "127.0.0.1:0", "--users", "nowhere.json"], "users file nowhere.json"),
        (["--bind", "127.0.0.1:0", "--tls-key", "x.key"], "--tls-cert"),
        (["--bind", "127.0.0.1:0", "--tls-cert", "x.pem"], "--tls-key"),
        (["--bind", "127.0.0.1:0", "--tls-cert", "x.pem", "--tls-key", "x.key"], "TLS certificate x.pem"),
    ],
)
def test_what_is_not_safe_does_not_start(tmp_path: Path, users: Path, arguments: list[str], says: str) -> None:
    chosen = [str(users) if one == "USERS" else one for one in arguments]
    done = subprocess.run(
        command(tmp_path, *chosen), check=False, capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path
    )
    assert done.returncode == 2
    assert says.lower() in json.loads(done.stderr.strip().splitlines()[-1])["error"]["message"].lower()
