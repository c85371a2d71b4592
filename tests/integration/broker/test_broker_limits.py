"""Clients that break the rules, and the limits that keep them from hurting the others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ignis.broker.auth.principal import Credentials, Principal
from ignis.broker.client import requests, store_requests
from ignis.broker.protocol.commands import MAGIC, Command
from ignis.broker.protocol.encoding import pack, pack_connect
from ignis.broker.protocol.payloads import Connect, Consume, Wait, pack_send
from ignis.broker.server.server import Broker
from ignis.errors import (
    ConfigError,
    PermissionDeniedError,
    StoreUnreachableError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from ignis.native import encode_frame, encode_record
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(memory_url: str) -> Iterator[RunningBroker]:
    settings = {"handshake_timeout_s": 1.5, "max_pending": 4, "max_outbound_bytes": 1 << 16}
    with RunningBroker(memory_url, settings=settings) as one:
        with one.client() as client:
            client.ask(requests.create_queue("q", {"shards": 2, "codec": "raw"}))
        yield one


def connect(port: int) -> Wire:
    wire = Wire(port)
    wire.greet()
    return wire


# -- before anybody knows who it is


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "frame_too_large"),
        (b"\xff\xff\xff\xff", "malformed_frame"),
        (b"\0\0\0\x03abc", "malformed_frame"),
        ((8_192 - 3).to_bytes(4, "big"), "frame_too_large"),
        (encode_frame(Command.QUEUE_GET, 1, pack(["q"])), "protocol"),
        (encode_frame(Command.SEND, 1, pack_send(b"q", 0, 0, encode_record(b"x"))), "protocol"),
        (encode_frame(Command.RESULT, 1, b""), "protocol"),
        (encode_frame(31_000, 1, b""), "protocol"),
        (encode_frame(Command.CONNECT, 1, b""), "protocol"),
        (encode_frame(Command.CONNECT, 1, b"MQTT" + bytes(12) + pack(["a", "b", "c"])), "protocol"),
        (encode_frame(Command.CONNECT, 1, pack_connect(Connect("a", "b", "c"), lowest=2, highest=9)), "protocol"),
        (encode_frame(Command.CONNECT, 1, MAGIC + b"\0\1\0\1" + bytes(8) + b"\0\0\0\x04abcd"), "protocol"),
        (encode_frame(Command.CONNECT, 1, pack_connect(Connect("a b", "b", "c"))), "invalid_name"),
        (encode_frame(Command.CONNECT, 1, pack_connect(Connect("a", "b", ""))), "config"),
        (2 * encode_frame(Command.CONNECT, 1, pack_connect(Connect("a", "b", "c"))), "protocol"),
    ],
    ids=range(15),
)
def test_a_bad_beginning_ends_the_connection_with_a_reason(broker: RunningBroker, sent: bytes, code: str) -> None:
    with Wire(broker.port) as wire:
        wire.raw(sent)
        failure = wire.failure()
        assert (failure.code, failure.fatal) == (code, True)
        assert wire.closed()


def test_only_ping_is_answered(broker: RunningBroker) -> None:
    with Wire(broker.port) as wire:
        wire.send(Command.PING, 77, b"abc")
        assert wire.receive() == (Command.PONG, 77, b"abc")


def test_silence_ends_a_connection(broker: RunningBroker) -> None:
    with Wire(broker.port) as silent, Wire(broker.port) as slow:
        slow.raw(b"\0\0")
        for wire in (silent, slow):
            assert "handshake_timeout_s" in wire.failure().message
            assert wire.closed()
    assert broker.broker.state.timeouts == 2


def test_connections_are_counted(memory_url: str) -> None:
    settings = {"max_connections": 3, "max_unauthenticated": 2}
    with running(memory_url, settings=settings) as broker, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(Wire(broker.port)) for _ in range(2)]
        for wire in strangers:
            wire.send(Command.PING, 1)
            wire.receive()
        with Wire(broker.port) as third:
            assert third.failure().code == "too_many_requests"
        for wire in strangers:
            wire.greet()
        eventually(lambda: broker.on_loop(lambda: len(broker.broker.sessions)) == 2)
        stack.enter_context(Wire(broker.port)).greet()
        with Wire(broker.port) as fourth:
            assert "max_connections" in fourth.failure().message


# -- afterwards


def test_the_cap_on_pending_requests(broker: RunningBroker) -> None:
    with connect(broker.port) as wire:
        for number in range(10, 16):
            wire.send(Command.CONSUME, number, pack(Consume("q", 1, 60_000)))
        refused = {wire.receive()[1] for _ in range(2)}
        assert refused == {14, 15}
        wire.send(Command.PING, 20)
        assert wire.receive() == (Command.PONG, 20, b"")
        assert broker.on_loop(lambda: [one.pending for one in broker.broker.sessions]) == [4]
    eventually(lambda: not broker.on_loop(lambda: broker.broker.sessions))
    with broker.client(max_pending=2) as client:
        threads = [threading.Thread(target=lambda: client.consume("q", 1, wait_s=1)) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: client.connection is not None and client.connection.machine.pending == 2)
        with pytest.raises(TooManyRequestsError, match=r"client\.max_pending"):
            client.ask(store_requests.names())
        for thread in threads:
            thread.join(WAIT_S)


def test_a_bad_payload_is_one_requests_error(broker: RunningBroker) -> None:
    with connect(broker.port) as wire:
        for number, (command, payload) in enumerate(
            [
                (Command.FIRE, b""),
                (Command.FIRE, pack("text")),
                (Command.FIRE, b"\0\0\1\0"),
                (31_000, b""),
                (Command.SEND, b"short"),
                (Command.SEND_BATCH, b"short"),
                (Command.DELETE, pack(["q"], b"xx")),
                (Command.NACK, pack(["q", "throw away"], bytes(4))),
                (Command.SCAN, pack(["q", {0: "x"}])),
                (Command.CREDIT, pack([99, 1])),
                (Command.FIRE, pack(["q", "many", "me"])),
            ],
            10,
        ):
            wire.send(command, number, payload)
            kind, request_id, _ = frame = wire.receive()
            assert (kind, request_id) == (Command.ERROR, number), frame
        wire.send(Command.PING, 99)
        assert wire.receive()[0] == Command.PONG


def test_every_prefix_of_every_request_is_survived(broker: RunningBroker) -> None:
    frames = [
        store_requests.fire("q", 1, "me", None, 100),
        requests.send("q", encode_record(b"x"), ttl_s=None),
        requests.ack("q", {0: [1, 2]}),
        requests.consume("q", 1, 0, 1),
        requests.create_queue("q", {"shards": 2, "codec": "raw"}),
        store_requests.scan("q", {0: 1}, 1, True),
        store_requests.array_enqueue("a", "b", [1, {"x": b"y"}]),
        store_requests.queue_get("q"),
        store_requests.wait("q", -1, 0),
    ]
    with connect(broker.port) as wire:
        number = 10
        for ask in frames:
            for size in range(len(ask.payload) + 1):
                number += 1
                wire.send(ask.command, number, ask.payload[:size])
                while wire.receive()[1] != number:
                    pass


def test_one_that_does_not_read_is_not_read_either(memory_url: str) -> None:
    settings = {"max_pending": 10_000, "max_outbound_bytes": 1 << 16, "drain_timeout_s": 0}
    with running(memory_url, settings=settings) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        for _ in range(40):
            client.ask(requests.send("q", encode_record(bytes(30_000))))
        with connect(broker.port) as greedy:
            greedy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            request = encode_frame(Command.SCAN, 5, pack(["q", {}, 100, False]))
            greedy.sock.setblocking(False)
            # 64 KiB each: far more than the system's own buffers take.
            with contextlib.suppress(BlockingIOError):
                for _ in range(2_000):
                    greedy.sock.send(request)
            held = eventually(
                lambda: broker.on_loop(lambda: max((one.outbound_bytes for one in broker.broker.sessions), default=0))
            )
            # The limit, and the answers that were being made when it was reached.
            assert held < 8 * (1 << 16)
            assert client.ping() < WAIT_S
            assert client.ask(store_requests.names())


def test_one_that_reads_nothing_is_closed(memory_url: str) -> None:
    settings = {"write_timeout_s": 0.3, "max_outbound_bytes": 1 << 16, "max_pending": 10_000}
    with running(memory_url, settings=settings) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        for _ in range(60):
            client.ask(requests.send("q", encode_record(bytes(100_000))))
        wire = connect(broker.port)
        wire.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for number in range(2_000):
                wire.send(Command.SCAN, 10 + number, pack(["q", {}, 100, False]))
        eventually(lambda: broker.broker.state.timeouts == 1)
        wire.close()
        assert client.ask(store_requests.names())


def test_idle_connections_are_closed_and_clients_connect_again(memory_url: str) -> None:
    with running(memory_url, settings={"idle_timeout_s": 0.3}) as broker, broker.client() as client:
        assert client.ask(store_requests.names()) == []
        eventually(lambda: not broker.on_loop(lambda: broker.broker.sessions))
        assert client.ask(store_requests.names()) == []
        assert client.connects == 2


def test_waiting_is_not_idling(memory_url: str) -> None:
    with running(memory_url, settings={"idle_timeout_s": 0.2}) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        assert client.consume("q", 1, wait_s=0.8).claims == []
        assert client.connects == 1


def test_a_quiet_subscriber_and_one_at_work_are_left_alone(memory_url: str) -> None:
    with running(memory_url, settings={"idle_timeout_s": 0.2}) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        with client.subscribe("q") as subscription:
            assert subscription.receive(0.8) is None
            client.ask(requests.send("q", encode_record(b"x")))
            found = subscription.receive(WAIT_S)
            assert found is not None
            time.sleep(0.8)
            assert subscription.ack({claim.shard: claim.pointers for claim in found.claims}) == 1
        assert client.connects == 1


def test_a_full_inbox_holds_senders_back(memory_url: str) -> None:
    with running(memory_url, settings={"max_inbox_bytes": 1 << 16}) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        store = broker.broker.applications[0].store
        inside, go_on = threading.Event(), threading.Event()
        load = store.magazines.load

        def slow(*args: Any) -> Any:
            inside.set()
            assert go_on.wait(WAIT_S)
            return load(*args)

        store.magazines.load = slow  # type: ignore[method-assign]
        with connect(broker.port) as wire:
            wire.sock.setblocking(False)
            frame = encode_frame(Command.SEND, 7, pack_send(b"q", 0, 0, encode_record(bytes(30_000))))
            sent = 0
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                try:
                    sent += wire.sock.send(frame[sent % len(frame) :])
                except BlockingIOError:
                    if inside.is_set() and broker.on_loop(lambda: any(one.unread for one in broker.broker.sessions)):
                        break
                    time.sleep(0.01)
            waiting = broker.on_loop(
                lambda: sum(one.bytes for app in broker.broker.applications for one in app.inboxes)
            )
            assert 1 << 16 < waiting < (1 << 16) + (512 << 10)
            go_on.set()
            wire.sock.setblocking(True)
            wire.raw(frame[sent % len(frame) :] if sent % len(frame) else b"")
            answered = 0
            while answered < -(-sent // len(frame)):
                assert wire.receive()[0] in (Command.SEND_ACK, Command.ERROR)
                answered += 1
        store.magazines.load = load  # type: ignore[method-assign]


# -- who may do what


class Somebody:
    name = "reader"

    def allows(self, command: str, queue: str) -> bool:
        return command in ("SCAN", "QUEUE_GET", "DISCONNECT") and queue in ("open", "")

    def allows_some(self, command: str) -> bool:
        return command in ("SCAN", "QUEUE_GET", "DISCONNECT")


class Doorman:
    open = False

    def authenticate(self, credentials: Credentials) -> Principal:
        if credentials.token != "let me in":
            raise UnauthenticatedError("not let in")
        return Somebody()


def test_permissions_and_tokens(memory_url: str) -> None:
    with running(memory_url, authenticator=Doorman()) as broker:
        with broker.client() as stranger, pytest.raises(UnauthenticatedError):
            stranger.ask(store_requests.names())
        with broker.client(token="let me in") as client:
            assert client.ask(store_requests.queue_get("open")) is None
            for ask in (
                store_requests.queue_get("shut"),
                store_requests.scan("shut", {}, 1, False),
                store_requests.names(),
                store_requests.fire("open", 1, "me", None, 1),
                requests.send("open", encode_record(b"x")),
                store_requests.transfer("open", "shut", [], None, None),
                requests.node_status(),
                requests.consume("open", 1, 0, 1),
                store_requests.scan("shut_SIDELINE", {}, 1, False),
                store_requests.wait("shut", 0, 0),
            ):
                with pytest.raises(PermissionDeniedError):
                    client.ask(ask)
        assert "let me in" not in repr(Credentials(token="let me in"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_no_open_door_without_asking_for_it(memory_url: str, host: str) -> None:
    with pytest.raises(ConfigError, match="authentication and no TLS"):
        Broker(memory_url, host)
    with pytest.raises(ConfigError, match="no TLS"):
        Broker(memory_url, host, authenticator=Doorman())
    Broker(memory_url, host, allow_open=True)
    Broker(memory_url, "::1")


def test_applications_are_apart_and_counted(memory_url: str) -> None:
    with running(memory_url, settings={"max_applications": 2}) as broker:
        one, other = broker.client(), broker.client(client_id="other")
        with one, other, broker.client(client_id="third", connect_timeout_s=0.2) as third:
            one.ask(store_requests.declare("m", 1, "none"))
            assert (one.ask(store_requests.names()), other.ask(store_requests.names())) == (["m"], [])
            with pytest.raises((TooManyRequestsError, StoreUnreachableError)):
                third.ask(store_requests.names())


def test_waits_end_with_their_connection(broker: RunningBroker) -> None:
    with connect(broker.port) as wire:
        wire.send(Command.WAIT, 5, pack(Wait("q", -1, 0)))
        _, _, payload = wire.receive()
        wire.send(Command.WAIT, 6, pack(Wait("q", int.from_bytes(payload[4:5], "big"), 60_000)))
        eventually(lambda: broker.on_loop(lambda: [one.pending for one in broker.broker.sessions]) == [1])
    eventually(lambda: not broker.on_loop(lambda: broker.broker.sessions))
