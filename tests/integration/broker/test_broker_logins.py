"""Passwords take their time, and only that of passwords."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from ignis.broker.auth import authenticator, logins
from ignis.broker.auth.authenticator import UsersFile
from ignis.broker.auth.passwords import new_token
from ignis.broker.auth.users_file import Token, User, editing
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack_connect
from ignis.broker.protocol.payloads import Connect
from tests.support import WAIT_S, eventually
from tests.support.broker import Wire, running

pytestmark = pytest.mark.integration


def test_tokens_do_not_wait_behind_passwords(memory_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, path = new_token(), tmp_path / "users.json"
    with editing(path) as users:
        users.users.append(User("robot", ["publish:*"], tokens=[Token(token.id, token.digest)]))
    entered, leave = threading.Semaphore(0), threading.Event()

    def slow(password: str, kept: str) -> bool:
        entered.release()
        assert leave.wait(WAIT_S)
        return False

    monkeypatch.setattr(logins, "MOST_WAITING", 3)
    monkeypatch.setattr(logins, "WAIT_S", WAIT_S)
    known = UsersFile(path)
    monkeypatch.setattr(authenticator, "verify_password", slow)
    with running(memory_url, authenticator=known) as broker, contextlib.ExitStack() as stack:

        def attempt() -> Wire:
            wire = stack.enter_context(Wire(broker.port))
            wire.send(Command.CONNECT, 1, pack_connect(Connect("a", "local", "x", user="ann", password="wrong")))
            return wire

        stack.callback(leave.set)
        line = broker.broker._logins
        held = [attempt() for _ in range(logins.AT_A_TIME)]
        for _ in held:
            assert entered.acquire(timeout=WAIT_S)
        waiting = [attempt() for _ in range(3)]
        assert eventually(lambda: line.waiting == 3)
        failure = attempt().failure()
        assert (failure.code, failure.retryable) == ("too_many_requests", True)
        assert "logins by password" in failure.message
        with Wire(broker.port) as robot:
            robot.greet(token=token.text)
        waiting.pop().close()
        assert eventually(lambda: broker.on_loop(lambda: len(broker.broker.sessions)) == 4)
        waiting.append(attempt())
        leave.set()
        for wire in held + waiting:
            assert wire.failure().code == "unauthenticated"


def test_one_login_keeps_nobody_out(memory_url: str, tmp_path: Path) -> None:
    """However many connections it asks for, the others have places."""
    tokens, path = [new_token(), new_token()], tmp_path / "users.json"
    with editing(path) as users:
        for name, token in zip(("ann", "bob"), tokens, strict=True):
            users.users.append(User(name, ["publish:*"], tokens=[Token(token.id, token.digest)]))
    ann, bob = (token.text for token in tokens)
    settings = {"max_connections": 12}
    with (
        running(memory_url, settings=settings, authenticator=UsersFile(path)) as broker,
        contextlib.ExitStack() as stack,
    ):
        wires = [stack.enter_context(Wire(broker.port)) for _ in range(3)]
        for wire in wires:
            wire.greet(token=ann)
        with Wire(broker.port) as fourth:
            fourth.send(Command.CONNECT, 1, pack_connect(Connect("a", "local", "x", token=ann)))
            failure = fourth.failure()
        assert (failure.code, failure.retryable) == ("too_many_requests", True)
        assert "broker.max_connections_per_user" in failure.message
        stack.enter_context(Wire(broker.port)).greet(token=bob)
        wires[0].close()
        assert eventually(lambda: broker.on_loop(lambda: broker.broker.admission.count) == 3)
        with Wire(broker.port) as again:
            again.greet(token=ann)
