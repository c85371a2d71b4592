"""The small HTTP endpoint, and what it shows of an application."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis import httpd
from ignis.errors import ConfigError
from ignis.httpd import Endpoint, Reply, parse_bind
from ignis.supervisor.endpoint import app_endpoint
from tests.support import WAIT_S, eventually, wait_idle


def fetch(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def fetch_json(port: int, path: str) -> tuple[int, Any]:
    status, kind, body = fetch(port, path)
    assert kind == "application/json"
    return status, json.loads(body)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    def broken(rest: str) -> Reply:
        raise KeyError("secret")

    routes = {
        "/one": lambda rest: Reply(200, b"{}"),
        "/many/": lambda rest: Reply(203, rest.encode(), "text/plain"),
        "/broken": broken,
    }
    endpoint = Endpoint("0", routes)
    yield endpoint
    endpoint.close()


def test_routes(endpoint: Endpoint) -> None:
    port = endpoint.port
    assert endpoint.url == f"http://127.0.0.1:{port}"
    assert fetch(port, "/one") == (200, "application/json", b"{}")
    assert fetch(port, "/one?since=1")[0] == 200
    assert fetch(port, "/many/a/b") == (203, "text/plain", b"a/b")
    assert fetch(port, "/one", "HEAD") == (200, "application/json", b"")
    for path in ("/", "/ones", "/one/more", "/../etc/passwd"):
        assert fetch(port, path)[0] == 404
    assert fetch(port, "/one", "POST")[0] == 501


def test_a_route_that_fails_says_no_more_than_its_kind(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    assert fetch(endpoint.port, "/broken") == (500, "application/json", b'{"error":"KeyError"}')
    assert "/broken failed" in caplog.text


def test_garbage_and_silence_do_not_keep_others_out(endpoint: Endpoint) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), WAIT_S) for _ in range(10)]
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port), WAIT_S) as rude:
            rude.sendall(b"\x00\xff" * 40_000 + b"\r\n")
            assert b"200 OK" not in rude.recv(4_096)
        assert fetch(endpoint.port, "/one")[0] == 200
    finally:
        for one in silent:
            one.close()


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "_MAX_CONNECTIONS", 2)
    entered, go = threading.Semaphore(0), threading.Event()

    def slow(rest: str) -> Reply:
        entered.release()
        go.wait(WAIT_S)
        return Reply(200, b"{}")

    endpoint = Endpoint("0", {"/slow": slow})
    try:
        threads = [threading.Thread(target=fetch, args=(endpoint.port, "/slow")) for _ in range(2)]
        for thread in threads:
            thread.start()
            assert entered.acquire(timeout=WAIT_S)
        with pytest.raises((http.client.HTTPException, OSError)):
            fetch(endpoint.port, "/slow")
        go.set()
        for thread in threads:
            thread.join(WAIT_S)
        eventually(lambda: _answers(endpoint.port))
    finally:
        go.set()
        endpoint.close()


def _answers(port: int) -> bool:
    try:
        return fetch(port, "/nothing")[0] == 404
    except (http.client.HTTPException, OSError):
        return False


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("localhost:0", ("localhost", 0)),
        ("127.0.0.9:80", ("127.0.0.9", 80)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_bind(text) == address


@pytest.mark.parametrize("text", ["", "host", "127.0.0.1:", "1:2:x", "127.0.0.1:65536", "-1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_bind(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "10.1.2.3:80", "example.org:80"])
def test_an_address_that_others_reach_must_be_meant(text: str) -> None:
    with pytest.raises(ConfigError, match="say --public-bind"):
        parse_bind(text)
    assert parse_bind(text, public=True)[1] == 80


def test_a_port_that_is_taken(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {endpoint.port}"):
        Endpoint(str(endpoint.port), {})


def test_what_an_application_shows(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=2)
    queue.handler(lambda n: n != 3)
    queue.publish_many(range(5))
    endpoint = app_endpoint("0", app)
    try:
        port = endpoint.port
        assert fetch_json(port, "/healthz")[0] == 503, "it does not run yet"
        assert fetch_json(port, "/scale/jobs") == (200, {"queue": "jobs", "pending": 5, "oldest_age_s": AnyFloat()})
        assert fetch_json(port, "/scale/none") == (404, {"error": "no active queue 'none'"})
        assert fetch_json(port, "/scale")[1]["pending"] == 5
        app.start()
        wait_idle(queue)
        status, health = fetch_json(port, "/healthz")
        assert (status, health["status"], health["queues"], health["paused"]) == (200, "ok", ["jobs"], False)
        assert queue.consumer is not None
        monkeypatch.setattr(queue.consumer, "failed", OSError("disk"))
        status, health = fetch_json(port, "/healthz")
        assert (status, health["status"], health["failed"]) == (503, "failing", ["jobs"])
    finally:
        endpoint.close()


class AnyFloat:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, float)

    __hash__ = None  # type: ignore[assignment]
