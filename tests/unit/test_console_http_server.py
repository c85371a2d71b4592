"""What a connection may make the console's server parse before anybody has said who they are: bytes and requests are counted."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from ignis.console import http_server
from ignis.console.http_server import MOST_CONNECTIONS, Connection, Server
from ignis.console.request_head import MOST_BYTES, MOST_LINES, HeadReader, Unfit
from ignis.console.turns import MOST_IN_A_TURN, Turns
from tests.support import WAIT_S

HEAD = b"POST /anything HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport without a socket: what was written, and whether reading is paused and the connection closed."""

    def __init__(self, peer: str = "10.0.0.1") -> None:
        super().__init__({"peername": (peer, 50_000), "sockname": ("127.0.0.1", 9711)})
        self.written = bytearray()
        self.ended = asyncio.Event()
        self.paused = self.closed = self.reset = self.aborted = False
        self.unread = 0

    def write(self, data: Any) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.reset:
            raise OSError(errno.ENOTCONN, "not connected")

    def close(self) -> None:
        self.closed = True
        self.ended.set()

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Site:
    """A server without sockets. ``asked``: the requests that reached the application."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.parsed = 0
        self.go_on: asyncio.Event | None = None
        server = Server(self.app, None, lambda: None)
        self.config, self.state = server.config, server.server_state

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == "/read":
            while (await receive()).get("more_body"):
                pass
        if self.go_on is not None:
            await self.go_on.wait()
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    def connect(self, peer: str = "10.0.0.1") -> tuple[Connection, Wire]:
        """A new connection, whose parser counts what it is given."""
        made: Any = self.config.http_protocol_class(
            config=self.config, server_state=self.state, app_state={}, _loop=None
        )  # type: ignore[call-arg]
        receive = made.conn.receive_data

        def counted(data: bytes) -> None:
            self.parsed += len(data)
            receive(data)

        made.conn.receive_data = counted
        wire = Wire(peer)
        made.connection_made(wire)
        return made, wire


def run(body: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(Site()), WAIT_S)

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def status_of(wire: Wire) -> int:
    return int(wire.written.split(b" ", 2)[1])


def code_of(wire: Wire) -> str:
    return str(json.loads(wire.written.partition(b"\r\n\r\n")[2])["error"]["code"])


def test_a_body_in_chunks_is_refused_and_none_of_it_is_parsed() -> None:
    async def body(site: Site) -> None:
        connection, wire = site.connect()
        connection.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10_000)
        await settle()
        assert (status_of(wire), code_of(wire)) == (411, "length_required")
        for _ in range(20):
            connection.data_received(b"1\r\n \r\n" * 10_000)
        assert (site.parsed, site.asked, wire.closed) == (0, [], True)

    run(body)


@pytest.mark.parametrize(
    "name",
    [
        b"Transfer-Encoding: gzip",
        b"TRANSFER-ENCODING:chunked",
        b"transfer-encoding : x",
        b"X: a\r\n transfer-encoding: b",
    ],
)
def test_no_spelling_of_chunks_is_parsed(name: bytes) -> None:
    reader = HeadReader()
    assert reader.add(HEAD + name + b"\r\nContent-Length: 1\r\n\r\n")
    found = reader.take()
    assert isinstance(found, Unfit)
    assert found.status == 411


def test_a_large_head_and_one_of_many_lines_are_not_parsed() -> None:
    async def body(site: Site) -> None:
        for sent in (
            HEAD + b"a: b\r\n" * MOST_LINES + b"\r\n",
            HEAD + b"a: " + b"b" * MOST_BYTES + b"\r\n\r\n",
            b"G" * (MOST_BYTES + 1),
        ):
            connection, wire = site.connect()
            connection.data_received(sent)
            await settle()
            assert (status_of(wire), code_of(wire)) == (431, "head_too_large")
        connection, wire = site.connect()
        connection.data_received(HEAD + b"a: b\r\n" * (MOST_LINES - 2) + b"\r\n")
        await settle()
        assert status_of(wire) == 404

    run(body)


def test_a_head_that_comes_byte_by_byte_is_found() -> None:
    reader = HeadReader()
    assert [reader.add(bytes([one])) for one in GET] == [False] * (len(GET) - 1) + [True]
    assert reader.take() == (GET, b"")
    assert reader.add(b"GET / HTTP/1.1\n\nmore")
    assert reader.take() == (b"GET / HTTP/1.1\n\n", b"more")


def test_what_is_no_http_is_refused_as_json() -> None:
    async def body(site: Site) -> None:
        connection, wire = site.connect()
        connection.data_received(b"this is no request\r\n\r\n")
        await settle()
        assert (status_of(wire), code_of(wire), site.asked) == (400, "bad_request", [])

    run(body)


def test_what_is_left_of_a_body_when_the_answer_goes_out_is_not_parsed() -> None:
    async def body(site: Site) -> None:
        connection, wire = site.connect()
        head = HEAD + b"Content-Length: 100000000\r\n\r\n"
        connection.data_received(head + b"x" * 1_000)
        await settle()
        assert status_of(wire) == 404
        assert b"connection: close" in wire.written
        assert not wire.closed  # who sends on before reading finds the answer
        for _ in range(17):
            connection.data_received(b"x" * (1 << 20))
        await settle()
        assert (site.parsed, wire.closed) == (len(head) + 1_000, True)

    run(body)


def test_of_requests_behind_each_other_one_is_parsed() -> None:
    async def body(site: Site) -> None:
        site.go_on = asyncio.Event()
        connection, wire = site.connect()
        connection.data_received(GET * 3_000)
        await settle()
        assert wire.paused  # no more of them is even read
        site.go_on.set()
        await settle()
        connection.data_received(GET * 30_000)
        await settle()
        assert (site.asked, site.parsed, wire.written.count(b"HTTP/1.1")) == (["/page"], len(GET), 1)
        assert wire.closed

    run(body)


def test_requests_one_after_the_other_share_a_connection() -> None:
    async def body(site: Site) -> None:
        connection, wire = site.connect()
        for count in range(1, 4):
            connection.data_received(b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n12")
            await settle()
            connection.data_received(b"34")
            await settle()
            assert wire.written.count(b"HTTP/1.1 404") == count
        assert not wire.closed

    run(body)


def test_a_request_whose_client_has_left_is_not_parsed() -> None:
    async def body(site: Site) -> None:
        connection, wire = site.connect()
        connection.data_received(GET)
        wire.close()
        connection.connection_lost(None)
        await settle()
        assert (site.parsed, site.asked) == (0, [])

    run(body)


def test_a_connection_is_read_a_little_at_a_time() -> None:
    async def body(site: Site) -> None:
        connection, wire = site.connect()
        other, _ = site.connect()
        assert isinstance(
            connection, asyncio.BufferedProtocol
        )  # asyncio asks for the buffer, and reads no more than that
        room = memoryview(connection.get_buffer(-1))
        assert 0 < len(room) <= 64 << 10
        room[:10] = GET[:10]
        connection.buffer_updated(10)
        memoryview(other.get_buffer(-1))[:10] = b"x" * 10
        room[: len(GET) - 10] = GET[10:]
        connection.buffer_updated(len(GET) - 10)
        await settle()
        assert (site.asked, status_of(wire)) == (["/page"], 404)

    run(body)


def test_many_requests_at_once_are_begun_a_few_in_a_turn_and_addresses_take_turns() -> None:
    async def body(site: Site) -> None:
        for number in range(100):
            connection, _ = site.connect()
            connection.data_received(GET.replace(b"page", b"%d" % number))
        connection, _ = site.connect("10.0.0.2")
        connection.data_received(GET.replace(b"page", b"other"))
        assert site.parsed == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(site.asked) <= 2 * MOST_IN_A_TURN
        assert "/other" in site.asked
        await settle()
        assert len(site.asked) == 101

    run(body)


def test_a_connection_that_is_reset_before_it_is_refused_keeps_nobody_waiting() -> None:
    async def body(site: Site) -> None:
        gone, wire = site.connect()
        wire.reset = True
        gone.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(2 * MOST_IN_A_TURN):
            connection, last = site.connect()
            connection.data_received(GET)
        await settle()
        assert status_of(last) == 404

    run(body)


def test_work_that_fails_keeps_no_other_from_its_turn() -> None:
    due: list[Callable[[], None]] = []
    turns, done = Turns(due.append), []

    def fail() -> None:
        raise ValueError("no")

    turns.enter("a", fail)
    turns.enter("a", lambda: done.append("a"))
    with pytest.raises(ValueError, match="no"):
        due.pop()()
    due.pop()()
    assert done == ["a"]


def test_work_takes_turns() -> None:
    due: list[Callable[[], None]] = []
    turns, done = Turns(due.append, 2), []
    for whose, what in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")]:
        turns.enter(whose, lambda what=what: done.append(what))  # type: ignore[misc]
    assert len(due) == 1
    due.pop()()
    assert done == ["a1", "b1"]
    due.pop()()
    assert done == ["a1", "b1", "a2", "a3"]
    assert due == []
    turns.enter("c", lambda: done.append("c1"))
    due.pop()()
    assert done[-1] == "c1"


def test_places_are_bounded_and_one_address_does_not_keep_another_out() -> None:
    async def body(site: Site) -> None:
        wires = [site.connect()[1] for _ in range(MOST_CONNECTIONS)]
        connection, wire = site.connect()
        assert (status_of(wire), code_of(wire)) == (503, "too_many_connections")
        connection, wire = site.connect("10.0.0.2")
        connection.data_received(GET)
        await settle()
        assert status_of(wire) == 404
        assert [one.closed for one in wires].index(True) == 0
        assert sum(one.closed for one in wires) == 1

    run(body)


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_HEAD_S", 0.01)

    async def body(site: Site) -> None:
        idle, slow = site.connect(), site.connect()
        slow[0].data_received(b"GET / HT")
        await asyncio.gather(idle[1].ended.wait(), slow[1].ended.wait())
        assert site.parsed == 0

    run(body)


def test_an_answer_that_is_not_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_UNREAD_S", 0.01)

    async def body(site: Site) -> None:
        connection, wire = site.connect()
        connection.pause_writing()  # the transport has more than it sends
        connection.resume_writing()
        reader, read = site.connect()
        reader.data_received(GET)
        await settle()
        assert not wire.closed
        connection.pause_writing()
        await wire.ended.wait()
        assert (wire.aborted, read.closed) == (True, False)
        connection.connection_lost(None)

    run(body)


def test_an_answer_that_has_no_end_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})

        connection, wire = site.connect()
        connection.app = connection._ending(app)
        connection.data_received(GET)
        await settle()
        assert (status_of(wire), wire.aborted) == (200, True)

    run(body)
    assert not caplog.records


def test_an_idle_connection_with_something_unread_is_not_waited_for() -> None:
    async def body(site: Site) -> None:
        for unread in (0, 100):
            connection, wire = site.connect()
            connection.data_received(GET)
            await settle()
            wire.unread = unread
            connection.timeout_keep_alive_handler()
            assert (wire.closed, wire.aborted) == (True, bool(unread))

    run(body)
