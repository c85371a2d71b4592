"""``ignis console`` as a process, talked to over a socket: what a client does that no library of HTTP does."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from tests.support import WAIT_S

pytestmark = pytest.mark.integration


@contextmanager
def _serving(tmp_path: Path, *options: str) -> Iterator[tuple[str, int]]:
    url = f"embedded://{tmp_path}/store"
    with Ignis(url) as app:
        app.queue("jobs", dict, shards=1).open()
    command = [sys.executable, "-m", "ignis", "console", "--url", url, "--bind", "127.0.0.1:0", "--json"]
    command += ["--anyone", "operate", *options]
    with (tmp_path / "console.err").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        try:
            found = urlsplit(json.loads(process.stdout.readline())["url"])
            assert found.hostname is not None
            assert found.port is not None
            yield found.hostname, found.port
        finally:
            process.terminate()
            code = process.wait(WAIT_S)
            process.stdout.close()
    assert code == 0
    assert "uvicorn" not in (tmp_path / "console.err").read_text()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    with _serving(tmp_path) as found:
        yield found


def _answers(address: tuple[str, int], sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What comes until the console closes the connection."""
    found = bytearray()
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, WAIT_S))
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection, server_hostname="localhost"))
        connection.settimeout(WAIT_S)
        try:
            connection.sendall(sent)
            while piece := connection.recv(1 << 16):
                found += piece
        except ConnectionResetError:
            pass  # it was closed with requests unread
    return bytes(found)


def test_requests_that_are_sent_behind_each_other_are_bounded(address: tuple[str, int]) -> None:
    one = f"GET /ignis/v1/openapi.json HTTP/1.1\r\nHost: localhost:{address[1]}\r\n\r\n".encode()
    found = _answers(address, one * 1_500)
    assert found.count(b"HTTP/1.1 200 OK") == found.count(b"HTTP/1.1") == 1


def test_a_body_in_chunks_is_refused_at_once(address: tuple[str, int]) -> None:
    head = f"POST /nothing HTTP/1.1\r\nHost: localhost:{address[1]}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    found = _answers(address, head + b"1\r\n \r\n" * 10_000)
    assert found.startswith(b"HTTP/1.1 411 ")
    assert b'"length_required"' in found


def test_by_tls_the_same_is_refused(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(pem)
    certificate.private_key_pem.write_to_path(key)
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    with _serving(tmp_path, "--tls-cert", str(pem), "--tls-key", str(key)) as address:
        head = f"POST /nothing HTTP/1.1\r\nHost: localhost:{address[1]}\r\n"
        chunks = _answers(address, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\n \r\n" * 10_000, tls)
        assert chunks.startswith(b"HTTP/1.1 411 ")
        large = _answers(address, f"{head}Content-Length: 3000000\r\n\r\n".encode() + b"x" * 3_000_000, tls)
        assert large.startswith(b"HTTP/1.1 404 ")
        assert large.endswith(b"}\n")
        closing = f"GET / HTTP/1.1\r\nHost: localhost:{address[1]}\r\nConnection: close\r\n\r\n".encode()
        assert _answers(address, closing, tls).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_says_it_is_too_large_is_not_waited_for(address: tuple[str, int]) -> None:
    head = (
        f"POST /ignis/v1/session HTTP/1.1\r\nHost: localhost:{address[1]}\r\nContent-Type: application/json\r\n"
        "Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
    )
    found = _answers(address, head.encode())
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b'"body_too_large"' in found


def test_who_sends_all_of_a_body_that_is_too_large_finds_the_answer(address: tuple[str, int]) -> None:
    origin = f"http://localhost:{address[1]}"
    headers = {"Host": f"localhost:{address[1]}", "Content-Type": "application/json", "Origin": origin}
    connection = http.client.HTTPConnection(*address, timeout=WAIT_S)
    try:
        connection.request("POST", "/ignis/v1/session", b"{}", headers)
        answer = connection.getresponse()
        session = json.loads(answer.read())
        headers["Cookie"] = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        headers["X-CSRF-Token"] = session["csrf"]
        connection.request("POST", "/ignis/v1/queues/jobs/publish", b" " * (12 << 20), headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (413, "body_too_large")
        assert answer.getheader("Connection") == "close"
    finally:
        connection.close()
