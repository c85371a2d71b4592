"""The small HTTP endpoint, and what it shows of an application."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis import http_endpoint
from ignis.errors import AddressInUseError, ConfigError
from ignis.http_endpoint import HttpEndpoint, Reply, metrics_route, parse_bind
from ignis.supervisor.http_routes import app_endpoint
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
def endpoint() -> Iterator[HttpEndpoint]:
    def broken(rest: str) -> Reply:
        raise KeyError("secret")

    routes = {
        "/one": lambda rest: Reply(200, b"{}"),
        "/many/": lambda rest: Reply(203, rest.encode(), "text/plain"),
        "/broken": broken,
    }
    endpoint = HttpEndpoint("0", routes)
    yield endpoint
    endpoint.close()


def test_routes(endpoint: HttpEndpoint) -> None:
    port = endpoint.port
    assert endpoint.url == f"http://127.0.0.1:{port}"
    assert fetch(port, "/one") == (200, "application/json", b"{}")
    assert fetch(port, "/one?since=1")[0] == 200
    assert fetch(port, "/many/a/b") == (203, "text/plain", b"a/b")
    assert fetch(port, "/one", "HEAD") == (200, "application/json", b"")
    for path in ("/", "/ones", "/one/more", "/../etc/passwd"):
        assert fetch(port, path)[0] == 404
    assert fetch(port, "/one", "POST")[0] == 501


@pytest.mark.parametrize(
    "line", [b"Host : evil.example", b"Host\t: localhost", b"no header", b": localhost", b"H\xc3\xb6st: localhost"]
)
def test_a_head_with_a_line_that_is_no_header_is_refused(endpoint: HttpEndpoint, line: bytes) -> None:
    for head in (line, b"Host: localhost\r\n" + line):
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=WAIT_S) as made:
            made.sendall(b"GET /one HTTP/1.0\r\n" + head + b"\r\n\r\n")
            assert made.makefile("rb").readline().split()[1] == b"400", head


def test_metrics_without_their_package_are_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Any:
        raise ModuleNotFoundError("prometheus_client")

    endpoint = HttpEndpoint("0", {"/metrics": metrics_route(make)})
    try:
        assert "pip install 'ignis-mq[metrics]'" in caplog.text
        status, answer = fetch_json(endpoint.port, "/metrics")
        assert status == 501
        assert answer["error"] in caplog.text
    finally:
        endpoint.close()


def asked_for(port: int, *hosts: str) -> int:
    """The status of a request with these Host headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.putrequest("GET", "/one", skip_host=True)
        for host in hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:{port}",
        "app.localhost",
        "127.0.0.1:{port}",
        "[::1]:{port}",
        "10.1.2.3",
        "localhost.",
        "a.b.localhost:{port}",
        "127.0.0.1:",
        "[::1]",
    ],
)
def test_who_asks_for_this_machine_is_answered(endpoint: HttpEndpoint, host: str) -> None:
    assert asked_for(endpoint.port, host.format(port=endpoint.port)) == 200


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example"],
        ["evil.example:{port}"],
        ["localhost.evil.example"],
        ["127.0.0.1.evil.example"],
        ["localhost", "evil.example"],
        ["evillocalhost"],
        [""],
        *(
            [host]
            for host in (
                "[::1].evil.example",
                "[::1]evil.example",
                "[::1",
                "[127.0.0.1]",
                "::1",
                "127.0.0.1:80:evil.example",
                "localhost:evil.example",
                "localhost:80.evil.example",
                "evil.example/.localhost",
                "evil.example?.localhost",
                "evil.example#.localhost",
                "evil.example@localhost",
                "evil.example\\.localhost",
                "evil.example .localhost",
                "evil.example,.localhost",
                "evil.example\r\n\t.localhost",
                "localhost\r\n evil.example",
                ".localhost",
                "evil..localhost",
                "127.1",
                "2130706433",
                "0x7f.0.0.1",
                "localhost:\u0663".encode().decode("latin-1"),
            )
        ),
    ],
)
def test_a_page_of_a_stranger_is_not(endpoint: HttpEndpoint, hosts: list[str]) -> None:
    assert asked_for(endpoint.port, *(host.format(port=endpoint.port) for host in hosts)) == 421


def test_without_a_host_no_browser_asked(endpoint: HttpEndpoint) -> None:
    assert asked_for(endpoint.port) == 200


def test_who_is_open_to_others_is_reached_by_any_name() -> None:
    endpoint = HttpEndpoint("0.0.0.0:0", {"/one": lambda rest: Reply(200, b"{}")}, public=True)
    try:
        assert asked_for(endpoint.port, "metrics.example") == 200
    finally:
        endpoint.close()


def test_a_route_that_fails_says_no_more_than_its_kind(
    endpoint: HttpEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert fetch(endpoint.port, "/broken") == (500, "application/json", b'{"error":"KeyError"}')
    assert "/broken failed" in caplog.text


def test_control_characters_of_a_client_are_in_no_log(endpoint: HttpEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    odd = b"/broken\x1b[2J\x08\x7f\x9b?q"
    for line in (b"GET " + odd + b" HTTP/1.0", b"\x1b]0;x\x07 /one HTTP/1.0", b"GET /one HTTP/\x1b[31m"):
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=WAIT_S) as wire:
            wire.sendall(line + b"\r\n\r\n")
            while wire.recv(4_096):
                pass
    eventually(lambda: len([one for one in caplog.records if "x1b" in one.getMessage()]) >= 3)
    said = [one.getMessage() for one in caplog.records if one.name.startswith("ignis")]
    assert all(text.isprintable() and text.isascii() for text in said), said


def test_garbage_and_silence_do_not_keep_others_out(endpoint: HttpEndpoint) -> None:
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
    monkeypatch.setattr(http_endpoint, "_MAX_CONNECTIONS", 2)
    entered, go = threading.Semaphore(0), threading.Event()

    def slow(rest: str) -> Reply:
        entered.release()
        go.wait(WAIT_S)
        return Reply(200, b"{}")

    endpoint = HttpEndpoint("0", {"/slow": slow})
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


def silent(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT_S, source_address=(source, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2")
def test_silence_of_one_address_does_not_lock_out_another(
    endpoint: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of 127/8 is one machine's, and would count as that.
    monkeypatch.setattr(http_endpoint, "network_of_connection", lambda sock, address: address[0])
    with contextlib.ExitStack() as stack:
        for source in ("127.0.0.2", "127.0.0.3"):
            for _ in range(30):
                stack.enter_context(silent(endpoint.port, source))
        for _ in range(3):
            assert fetch(endpoint.port, "/one")[0] == 200


def test_a_connection_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte comes: the time for one read begins anew with each."""
    monkeypatch.setattr(http_endpoint, "_CONNECTION_S", 0.3)
    endpoint = HttpEndpoint("0", {})
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port), WAIT_S) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            slow.settimeout(0.02)

            def cut() -> bool:
                try:
                    slow.sendall(b"x")
                    return slow.recv(1) == b""
                except TimeoutError:
                    return False
                except OSError:
                    return True

            eventually(cut)
    finally:
        endpoint.close()


def test_a_thread_that_cannot_be_had_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "_MAX_CONNECTIONS", 2)
    endpoint = HttpEndpoint("0", {})
    start = threading.Thread.start

    def none(thread: threading.Thread) -> None:
        if "process_request_thread" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none)
            for _ in range(5):
                with pytest.raises((http.client.HTTPException, OSError)):
                    fetch(endpoint.port, "/nothing")
        assert _answers(endpoint.port)
    finally:
        endpoint.close()


def test_running_out_of_files_passes(endpoint: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    listening, failures = endpoint._server.socket, [OSError(24, "Too many open files")] * 2

    class Failing:
        def accept(self) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return listening.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(listening, name)

    pauses: list[float] = []
    monkeypatch.setattr(http_endpoint, "time", types.SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    monkeypatch.setattr(endpoint._server, "socket", Failing())
    assert fetch(endpoint.port, "/one")[0] == 200
    assert (failures, len(pauses)) == ([], 2), "it does not turn in circles meanwhile"


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


def test_a_port_that_is_taken(endpoint: HttpEndpoint) -> None:
    with pytest.raises(AddressInUseError, match=f"another process listens at {endpoint.port}.* --health-bind"):
        HttpEndpoint(str(endpoint.port), {})
    with pytest.raises(ConfigError, match=r"cannot listen on 192.0.2.1:9"):
        HttpEndpoint("192.0.2.1:9", {}, public=True)


def test_what_an_application_shows(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int, shards=2)
    queue.handler(lambda n: n != 3)
    queue.publish_many(range(5))
    endpoint = app_endpoint("0", app)
    try:
        port = endpoint.port
        assert fetch_json(port, "/healthz")[0] == 503, "it does not run yet"
        assert fetch_json(port, "/livez") == (200, {"status": "ok"})
        assert fetch_json(port, "/readyz") == (503, {"status": "failing", "error": "the consumers do not run"})
        assert fetch_json(port, "/scale/jobs") == (200, {"queue": "jobs", "pending": 5, "oldest_age_s": AnyFloat()})
        assert fetch_json(port, "/scale/none") == (404, {"error": "no active queue 'none'"})
        assert fetch_json(port, "/scale")[1]["pending"] == 5
        app.start()
        wait_idle(queue)
        status, health = fetch_json(port, "/healthz")
        assert (status, health["status"], health["queues"], health["paused"]) == (200, "ok", ["jobs"], False)
        assert fetch_json(port, "/readyz") == (200, {"status": "ok"})
        assert health["schedules"] == {"fired": 0, "missed": 0, "failed": 0}
        app.refresher.states["other"] = "failed: /var/lib/orders/format.json: Permission denied"
        assert fetch_json(port, "/healthz")[1]["states"]["other"] == "failed", "no path for whoever reaches the port"
        assert queue.consumer is not None
        monkeypatch.setattr(queue.consumer, "failed", OSError("disk"))
        status, health = fetch_json(port, "/healthz")
        assert (status, health["status"], health["failed"]) == (503, "failing", ["jobs"])
        assert fetch_json(port, "/livez") == (
            503,
            {"status": "failing", "error": "a consumer has failed, or all of its threads hang"},
        )
        assert fetch_json(port, "/readyz")[0] == 503
        monkeypatch.undo()
        assert fetch_json(port, "/livez")[0] == 200
        app.stop()
        assert (fetch_json(port, "/livez")[0], fetch_json(port, "/readyz")[0]) == (200, 503), "it stops, and lives"
    finally:
        endpoint.close()


class AnyFloat:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, float)

    __hash__ = None  # type: ignore[assignment]
