"""A console for tests: a store with a queue, users of every role, and clients that are somebody."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import ignis
from ignis.broker.auth.passwords import hash_password, new_token
from ignis.broker.auth.users_file import Token, User, editing
from ignis.console import Console, application
from ignis.message import failed_record
from ignis.storage.base import Transfer

ORIGIN = "http://localhost:9711"
API = "/ignis/v1"
PASSWORD = "open sesame, please"
ALLOWED = {
    "rita": ["look:*"],
    "olga": ["work:*"],
    "adam": ["work,manage:*"],
    "pub": ["publish:jobs"],
    "con": ["consume:jobs"],
    "else": ["all:other"],
    "none": ["arrays:jobs"],
}
"""Users, by what they may: read, operate, admin, publish and consume on `jobs`, everything elsewhere, nothing."""

_addresses = itertools.count(1)

_HASH = hash_password(PASSWORD)


def write_users(path: Path) -> dict[str, str]:
    """A users file; returns the token of each user. All have the same password."""
    tokens = {}
    with editing(path) as users:
        for name, rules in ALLOWED.items():
            token = new_token()
            tokens[name] = token.text
            users.users.append(User(name, rules, password=_HASH, tokens=[Token(token.id, token.digest)]))
    return tokens


class Someone:
    """A client that shows a token with each request, from an address of its own: failed logins are counted by address."""

    def __init__(self, console: Console, token: str = "", origin: str = ORIGIN) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        number = next(_addresses)
        address = (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 50_000)
        self.http = TestClient(console, base_url=origin, headers=headers, raise_server_exceptions=False, client=address)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return self.http.request(
            method, API + path, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    def get(self, path: str) -> Any:
        found = self.ask("GET", path)
        assert found.status_code == 200, found.text
        return found.json()

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        found = self.ask("POST", path, {} if body is None else body)
        assert found.status_code == status, found.text
        return found.json()

    def log_in(self, user: str, password: str = PASSWORD, **headers: str) -> dict[str, str]:
        """Begins a session, whose token each request shows from then on; returns the headers that its changes need."""
        found = self.ask("POST", "/session", {"user": user, "password": password}, **headers)
        assert found.status_code == 200, found.text
        self.http.headers["x-csrf-token"] = found.json()["csrf"]
        return {"x_csrf_token": found.json()["csrf"], "origin": ORIGIN}


@contextmanager
def a_console(app: ignis.Ignis, **options: Any) -> Iterator[Console]:
    console = application(app, **options)
    try:
        yield console
    finally:
        console.close()


def fail(
    queue: ignis.Queue[Any],
    *bodies: Any,
    reason: str = "exception",
    error: str = "ValueError: no",
    key: str | None = None,
    headers: dict[str, Any] | None = None,
) -> list[str]:
    """Publishes messages and puts them into the sideline, as a handler that failed does; returns their ids."""
    ids = [queue.publish(body, key=key, headers=headers).id for body in bodies]
    store = queue.main.store
    found = queue.main.fire(1_000)
    mine = [one for one in found if one.envelope.id in ids]
    items = [
        Transfer(
            one.shard, one.pointer, failed_record(one.record or b"", reason, error, handler="jobs.handle"), one.shard
        )
        for one in mine
    ]
    assert store.transfer(queue.main.name, queue.sideline.name, items) == len(ids)
    queue.main.reload([one for one in found if one not in mine])
    return ids
