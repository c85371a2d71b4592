"""Clients: many requests at once, giving up, lost connections, brokers that come and go."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.broker.client import later_requests, requests, store_arguments, store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.client_request import ClientRequest
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.row_count import MAX_ROWS
from ignis.errors import (
    ClosedError,
    ConfigError,
    ConnectionLostError,
    DrainingError,
    ForkedHandleError,
    FrameTooLargeError,
    ProtocolError,
    StoreTimeoutError,
    StoreUnreachableError,
)
from ignis.native import PackedBatch, Record, encode_frame, encode_record
from ignis.storage import open_store
from ignis.storage.base import Transfer
from tests.conftest import MakeApp
from tests.support import WAIT_S, Gate, eventually, reasons, wait_idle
from tests.support.broker import RunningBroker, running
from tests.support.puppet_broker import Puppet

pytestmark = pytest.mark.integration


def client_of(port: int, **settings: float) -> SyncClient:
    return SyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": WAIT_S, **settings})


def silent_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# -- answers find their callers


def test_answers_in_any_order_reach_their_callers() -> None:
    held: list[tuple[int, bytes]] = []

    def script(command: int, request_id: int, payload: bytes) -> bytes:
        held.append((request_id, payload))
        if len(held) < 8:
            return b""
        return b"".join(encode_frame(Command.PONG, one, data) for one, data in reversed(held))

    answers: dict[int, bytes] = {}
    with Puppet(script) as puppet, client_of(puppet.port) as client:

        def ask(number: int) -> None:
            answers[number] = client.ask(ClientRequest(Command.PING, bytes([number]), bytes))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        client.close(0.1)
    assert answers == {number: bytes([number]) for number in range(8)}


def test_a_late_answer_is_dropped_and_counted_and_reaches_nobody_else() -> None:
    late: list[int] = []

    def script(command: int, request_id: int, payload: bytes) -> bytes:
        if payload == b"slow":
            late.append(request_id)
            return b""
        return b"".join(encode_frame(Command.PONG, one, b"late") for one in late) + encode_frame(
            Command.PONG, request_id, payload
        )

    with Puppet(script) as puppet, client_of(puppet.port) as client:
        with pytest.raises(StoreTimeoutError) as found:
            client.ask(ClientRequest(Command.PING, b"slow", bytes), 0.1)
        assert found.value.setting == "client.timeout_s"
        assert client.connection is not None
        assert client.connection.machine.pending == 1, "the id stays reserved"
        assert client.ask(ClientRequest(Command.PING, b"quick", bytes)) == b"quick"
        assert (client.connection.machine.pending, client.connection.machine.late_answers) == (0, 1)
        client.close(0.1)


def test_cancelled_coroutines_do_not_cross() -> None:
    async def run(port: int) -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": WAIT_S}) as client:
            await client.connect()

            async def one(number: int) -> None:
                data = number.to_bytes(4, "big")
                assert await client.ask(ClientRequest(Command.PING, data, bytes)) == data

            tasks = [asyncio.ensure_future(one(number)) for number in range(500)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(each, asyncio.CancelledError) for each in done) == len(tasks[::3])
            assert [each for each in done if each is not None and not isinstance(each, asyncio.CancelledError)] == []
            await one(9_999)
            assert (client.pending, client.late_answers) == (0, len(tasks[::3]))

    with running("memory://") as broker:
        asyncio.run(run(broker.port))


# -- lost connections


def test_everything_pending_fails_with_what_is_known_of_it() -> None:
    with Puppet(lambda command, request_id, payload: b"" if command == Command.SEND else None) as puppet:
        client = client_of(puppet.port)
        found: list[ConnectionLostError] = []

        def send() -> None:
            with pytest.raises(ConnectionLostError) as caught:
                client.ask(requests.send("q", encode_record(b"x")))
            found.append(caught.value)

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(command == Command.SEND for command, _ in puppet.seen) == 3)
        with pytest.raises(ConnectionLostError):
            client.ask(store_requests.array_enqueue("a", "b", [1]))
        for thread in threads:
            thread.join(WAIT_S)
        assert [one.sent for one in found] == [True, True, True]
        client.close(0.1)


def test_what_may_be_repeated_is_repeated() -> None:
    answers = iter([None, None])

    def script(command: int, request_id: int, payload: bytes) -> bytes | None:
        return next(answers, encode_frame(Command.RESULT, request_id, pack(["m"])))

    with Puppet(script) as puppet, client_of(puppet.port) as client:
        assert client.ask(store_requests.names()) == ["m"]
        assert client.connects == 3
        client.close(0.1)


def test_coroutines_fail_and_repeat_alike() -> None:
    answers = iter([None, None])

    def script(command: int, request_id: int, payload: bytes) -> bytes | None:
        return next(answers, encode_frame(Command.RESULT, request_id, pack(["m"])))

    async def run(port: int) -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": WAIT_S}) as client:
            with pytest.raises(ConnectionLostError) as found:
                await client.send("q", encode_record(b"x"))
            assert found.value.sent
            assert await client.ask(store_requests.names()) == ["m"]
            assert client.connects == 3
        with pytest.raises(ClosedError):
            await client.ask(store_requests.names())

    with Puppet(script) as puppet:
        asyncio.run(run(puppet.port))


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    with client_of(port, connect_timeout_s=0.2) as client, pytest.raises(StoreUnreachableError, match=str(port)):
        client.ask(store_requests.names())
    with pytest.raises(StoreUnreachableError):
        open_store(f"ignis://127.0.0.1:{port}?connect_timeout_s=0.1")

    async def run() -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", port), {"connect_timeout_s": 0.2}) as one:
            with pytest.raises(StoreUnreachableError):
                await one.ask(store_requests.names())

    asyncio.run(run())


def test_something_else_is_there() -> None:
    with Puppet(lambda *_: b"") as puppet:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = client_of(int(listener.getsockname()[1]), connect_timeout_s=0.3)
        with pytest.raises(ProtocolError, match="not a broker"):
            client.ask(store_requests.names())
        listener.close()
        thread.join(WAIT_S)
        assert puppet.seen == []


def test_clients_follow_a_broker_that_is_started_again(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    first = RunningBroker(url)
    port = first.port
    store = open_store(f"ignis://127.0.0.1:{port}", timeout_s=WAIT_S, connect_timeout_s=WAIT_S)
    store.magazines.declare("m", 1)
    store.magazines.load_records("m", 0, [encode_record(b"a")])
    first.stop()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(store.magazines.metadata("m")[0].load_pointer))
    thread.start()
    with RunningBroker(url, at_port=port):
        thread.join(WAIT_S)
        (last,) = results
        assert last >= 1
        assert store.magazines.load_records("m", 0, [encode_record(b"b")]) == last + 1
        assert [Record(one or b"").body for _, _, one in store.magazines.scan("m")] == [b"a", b"b"]
        store.close()


def test_a_drain_answers_what_is_under_way_and_takes_acknowledgements(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    broker = RunningBroker(url, settings={"drain_timeout_s": WAIT_S})
    client = broker.client(connect_timeout_s=0.2)
    client.ask(requests.create_queue("q", {"shards": 1}))
    client.ask(requests.send("q", encode_record(b"a")))
    found = client.consume("q", 1, wait_s=WAIT_S)
    pulls: list[int] = []
    with broker.client(connect_timeout_s=0.2) as other:
        thread = threading.Thread(target=lambda: pulls.append(other.consume("q", 1, wait_s=WAIT_S).total()))
        thread.start()
        eventually(lambda: broker.on_loop(lambda: sum(pump.consumers for pump in broker.pumps())))
        broker.broker.request_stop()
        thread.join(WAIT_S)
        assert pulls == [0]
        assert client.ack("q", {claim.shard: claim.pointers for claim in found.claims}) == 1
        broker.stop()
    client.close(0.1)
    with open_store(url) as store:
        assert (store.magazines.metadata("q")[0].pending, store.magazines.metadata("q")[0].in_flight) == (0, 0)


@pytest.mark.parametrize("coroutines", [False, True])
def test_what_a_draining_broker_refuses_does_not_end_the_connection_over_which_messages_are_held(
    tmp_path: Path, coroutines: bool
) -> None:
    """A request that was on its way when the broker was told to stop is refused. The messages that the same client holds are
    still its own, and are acknowledged over the same connection."""
    patient = {"drain_timeout_s": WAIT_S, "handshake_timeout_s": WAIT_S}
    with RunningBroker(f"embedded://{tmp_path}/store", settings=patient) as broker:
        settings = {"retry_wait_s": 0.01, "connect_timeout_s": WAIT_S, "timeout_s": WAIT_S}

        def drains(value: bool = True) -> None:
            broker.broker.state.draining = value  # as `stop` does, before its notice has reached the client

        def held() -> int:
            return broker.on_loop(lambda: sum(one.claims.held.count for one in broker.broker.sessions))

        def prepared() -> list[ClientRequest[Any]]:
            return [requests.create_queue("q", {"shards": 1}), requests.send("q", encode_record(b"a"))]

        def in_threads() -> int:
            with broker.client(**settings) as client:
                for one in prepared():
                    client.ask(one)
                found = client.consume("q", 1, wait_s=WAIT_S)
                broker.on_loop(drains)
                with pytest.raises((DrainingError, StoreUnreachableError, StoreTimeoutError)):
                    client.ask(requests.send("q", encode_record(b"b")), 0.5)
                assert held() == 1
                return client.ack("q", {claim.shard: claim.pointers for claim in found.claims})

        async def in_tasks() -> int:
            async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), settings) as client:
                for one in prepared():
                    await client.ask(one)
                found = await client.consume("q", 1, wait_s=WAIT_S)
                broker.on_loop(drains)
                with pytest.raises((DrainingError, StoreUnreachableError, StoreTimeoutError)):
                    await client.ask(requests.send("q", encode_record(b"b")), 0.5)
                assert held() == 1
                return await client.ack("q", {claim.shard: claim.pointers for claim in found.claims})

        assert (asyncio.run(in_tasks()) if coroutines else in_threads()) == 1


def test_what_a_store_holds_goes_on_at_a_broker_that_is_there_before_the_last_one_has_drained(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    patient = {"drain_timeout_s": WAIT_S, "handshake_timeout_s": WAIT_S}
    with RunningBroker(url, settings=patient) as first:
        store = open_store(f"{first.url}?connect_timeout_s={WAIT_S}&timeout_s={WAIT_S}")
        store.magazines.declare("q", 1)
        store.magazines.load_records("q", 0, [encode_record(b"a")])
        (claim,) = store.magazines.fire("q", 1, store.owner).claims
        first.broker.request_stop()
        assert first.refuses()  # and drains, as long as that message is held
        with RunningBroker(url, at_port=first.port, settings=patient):
            store.magazines.load_records("q", 0, [encode_record(b"b")])  # at the second: there is a new connection
            first.stop()  # whatever it was to give back it has given back
            (shard,) = store.magazines.metadata("q")
            assert (shard.pending, shard.in_flight) == (1, 1)
            assert store.magazines.delete("q", {claim.shard: claim.pointers}) == 1
            store.close()


def test_a_broker_that_drains_does_not_wait_for_a_handler_that_waits_for_the_next_one(
    tmp_path: Path, new_app: MakeApp
) -> None:
    url = f"embedded://{tmp_path}/store"
    patient = {"drain_timeout_s": WAIT_S, "handshake_timeout_s": WAIT_S}
    with RunningBroker(url, settings=patient) as first:
        app = new_app(f"{first.url}?connect_timeout_s={WAIT_S}&timeout_s={WAIT_S}&retry_wait_s=0.01")
        bills = app.queue("bills", str)
        gate, billed, handled = Gate(), threading.Event(), []

        def bill(order: str) -> None:
            gate(order)
            bills.main.registration.due_s = 0.0  # type: ignore[union-attr]  # its record is to be looked at first
            bills.publish(order)
            billed.set()
            handled.append(order)

        orders = app.queue("orders", str)
        orders.handler(bill, concurrency=2)
        bills.open()
        app.start()
        orders.publish_many(["first", "second"])
        gate.wait_entered(2)
        first.broker.request_stop()
        assert first.refuses()
        gate.open.set()
        first.stop()  # long before the drain's time is up
        assert not billed.is_set()
        with RunningBroker(url, at_port=first.port, settings=patient):
            eventually(lambda: len(handled) == 2)
            wait_idle(orders)
            assert sorted(handled) == ["first", "second"], "each once"
            assert (orders.stats()["sideline"], bills.stats()["pending"]) == (0, 2)
            assert app.stop() is True
            app.close()


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_client_that_is_at_another_broker_is_not_lost(tmp_path: Path, new_app: MakeApp, kind: str) -> None:
    """Its claims are its own, also for the broker that it was connected to before."""
    url, settings = f"embedded://{tmp_path}/store", {"redeliver_after_s": 2.0}
    with RunningBroker(url, settings=settings) as first, RunningBroker(url, settings=settings) as second:
        app = new_app(f"{first.url}?retry_wait_s=0.01")
        begun, gate = [], threading.Event()

        def handle(message: str) -> None:
            begun.append(message)
            assert gate.wait(WAIT_S)

        async def handle_in_loop(message: str) -> None:
            begun.append(message)
            await asyncio.to_thread(gate.wait, WAIT_S)

        queue = app.queue("q", str)
        queue.handler(handle if kind == "thread" else handle_in_loop, concurrency=3)
        app.start()
        queue.publish("one")
        eventually(lambda: begun == ["one"])
        client: SyncClient = app.store.client  # type: ignore[attr-defined]
        client.address = BrokerAddress("127.0.0.1", second.port)
        first.on_loop(lambda: [session.abort() for session in list(first.broker.sessions)])
        eventually(lambda: second.on_loop(lambda: sum(one.held.count for one in second.broker.sessions)) == 1)
        eventually(lambda: not first.on_loop(lambda: first.broker._presence._lost))
        eventually(lambda: first.on_loop(lambda: all(one.redelivery.idle for one in first.broker.applications)))
        time.sleep(0.2)
        assert begun == ["one"], "nobody was given it beside"
        gate.set()
        wait_idle(queue)
        assert begun == ["one"]
        queue.publish("two")  # a client that is gone for good is lost as ever
        eventually(lambda: begun == ["one", "two"])
        app.stop()


@pytest.mark.parametrize("held_by_another_s", [0.4, 30.0])
def test_who_waits_for_another_threads_attempt_waits_no_longer_than_it_is_told(
    tmp_path: Path, held_by_another_s: float
) -> None:
    with RunningBroker(f"embedded://{tmp_path}/store") as broker:
        client = broker.client(connect_timeout_s=0.5, retry_wait_s=0.01)  # which it does not reach any more
    deadlines: list[float] = []
    open_ = client._open
    client._open = lambda limit_s, deadline: (deadlines.append(deadline), open_(limit_s, deadline))[1]  # type: ignore[method-assign, func-returns-value]
    assert client._connecting.acquire()
    timer = threading.Timer(held_by_another_s, client._connecting.release)
    timer.start()
    began = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=r"client\.connect_timeout_s"):
        client.connect()
    assert all(deadline - began < 0.7 for deadline in deadlines), "what the other took is part of it"
    timer.cancel()
    client.close()


# -- the store


def test_the_whole_queue_api(tmp_path: Path) -> None:
    with RunningBroker(f"embedded://{tmp_path}/store") as broker, ignis.Ignis(broker.url) as app:
        queue = app.queue("orders", dict, durability="none")
        seen: list[int] = []

        @queue.handler(concurrency=2)
        def handle(message: dict[str, int]) -> bool:
            seen.append(message["n"])
            return message["n"] != 7

        app.start()
        published = queue.publish({"n": 0}, key="k", headers={"from": "test"})
        assert published.pointer == 1
        queue.publish_many([{"n": n} for n in range(1, 50)])
        with queue.publisher() as publisher:
            for n in range(50, 100):
                publisher.send({"n": n})
        eventually(lambda: len(seen) >= 100)
        wait_idle(queue)
        assert sorted(seen) == list(range(100))
        assert reasons(queue) == {"rejected": 1}
        assert queue.shovel.run_once() is not None
        eventually(lambda: seen.count(7) == 2)
        wait_idle(queue)
        assert queue.stats()["sideline"] == 1
        assert app.sweeper().run_once().swept == 0
        app.stop(WAIT_S)


def test_what_is_too_large_is_said_before_it_is_sent(memory_url: str) -> None:
    with running(memory_url, settings={"max_frame_bytes": 1 << 16}) as broker, open_store(broker.url) as store:
        store.magazines.declare("m", 1)
        with pytest.raises(FrameTooLargeError) as found:
            store.magazines.load("m", [(0, PackedBatch.pack([encode_record(bytes(1 << 16))]))], None)
        assert found.value.limit_bytes == 1 << 16
        assert store.magazines.names() == ["m"]


@pytest.mark.parametrize("keyed", [False, True])
def test_many_messages_are_divided_by_what_a_frame_takes(memory_url: str, keyed: bool) -> None:
    with running(memory_url, settings={"max_frame_bytes": 1 << 16}) as broker, ignis.Ignis(broker.url) as app:
        queue = app.queue("jobs", bytes, shards=2)
        bodies = [b"%03d" % number + bytes(9_000) for number in range(50)]
        ids = queue.publish_many(
            bodies, keys=[f"key {number}" for number in range(50)] if keyed else None, headers={"a": "b" * 500}
        )
        assert len(set(ids)) == 50
        found = list[bytes]()
        while fired := queue.main.fire(100):
            found += [one.message for one in fired]
        assert sorted(found) == bodies
        with pytest.raises(FrameTooLargeError) as refused:
            queue.publish_many([*bodies[:20], bytes(1 << 16)])
        assert refused.value.stored_messages == queue.main.pending() == 20, "of those before it the error says how many"


@pytest.mark.parametrize("body_bytes", [10, 9_000], ids=["rows", "bytes"])
@pytest.mark.parametrize("later", [False, True])
def test_moves_are_divided_by_what_a_request_takes(
    memory_url: str, monkeypatch: pytest.MonkeyPatch, body_bytes: int, later: bool
) -> None:
    monkeypatch.setattr(store_arguments, "MAX_ROWS", 20)
    with running(memory_url, settings={"max_frame_bytes": 1 << 16}) as broker, open_store(broker.url) as store:
        magazines = store.magazines
        for name in ("m", "m_SIDELINE"):
            magazines.declare(name, 1)
        for number in range(50):
            magazines.load_records("m", 0, [encode_record(b"%03d" % number + bytes(body_bytes))])
        items: list[Transfer] = []
        while found := magazines.fire("m", 50, store.owner).claims:
            for one in found:
                rows = zip(one.pointers, one.records, strict=True)
                items += [Transfer(one.shard, pointer, record or b"", 0) for pointer, record in rows]
        assert len(items) == 50
        sent: list[int] = []
        ask = SyncClient.ask

        def counted(client: SyncClient, request: ClientRequest[Any]) -> Any:
            sent.append(request.command)
            assert len(request.payload) < 1 << 16
            return ask(client, request)

        with monkeypatch.context() as patched:
            patched.setattr(SyncClient, "ask", counted)
            moved = (
                magazines.defer("m", items, [1 << 45] * 50) if later else magazines.transfer("m", "m_SIDELINE", items)
            )
        command = Command.DEFER if later else Command.TRANSFER
        assert (moved, sent.count(command)) == (50, 3 if body_bytes == 10 else 9)
        rest = magazines.list_later("m", limit=99) if later else magazines.scan("m_SIDELINE", limit=99)
        assert [Record(row[-1] or b"").body[:3] for row in rest] == [b"%03d" % number for number in range(50)]
        assert not any(one.in_flight for one in magazines.metadata("m"))


def test_more_rows_than_a_request_takes_are_refused_with_what_to_do(memory_url: str) -> None:
    with running(memory_url) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        items = [Transfer(0, 1, b"", 0)] * (MAX_ROWS + 1)
        with pytest.raises(ConfigError, match=r"TRANSFER with 100001 rows; at most 100000 .* send them in several"):
            client.ask(store_requests.transfer("q", "q_SIDELINE", items, None, None))
        with pytest.raises(ConfigError, match=r"DEFER with 100001 rows; at most 100000 .* send them in several"):
            client.ask(later_requests.defer("q", items, [1] * len(items), None, None))
        assert client.ask(requests.node_status())["connections"] == 1, "and the connection goes on"


def test_answers_that_would_be_too_large_come_in_pieces(memory_url: str) -> None:
    settings = {"max_frame_bytes": 1 << 16, "max_outbound_bytes": 1 << 14}
    with running(memory_url, settings=settings) as broker, open_store(broker.url) as store:
        magazines = store.magazines
        magazines.declare("m", 3)
        for shard in range(3):
            for _ in range(10):
                magazines.load_records("m", shard, [encode_record(bytes(2_000)) for _ in range(10)])
        assert len(magazines.scan("m", limit=1_000)) == 300
        assert len(magazines.scan("m", limit=123)) == 123
        found = magazines.peek("m", {shard: range(1, 101) for shard in range(3)})
        assert {shard: sorted(many) for shard, many in found.items()} == {n: list(range(1, 101)) for n in range(3)}
        fired, count = magazines.fire("m", 300, "me"), 0
        while fired.claims:
            count += fired.total()
            fired = magazines.fire("m", 300, "me")
        assert count == 300


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("ignis://127.0.0.1:1/path", "path"), ("ignis://127.0.0.1:1?nonsense=1", "nonsense"),
        ("ignis://127.0.0.1:1?ca=/x", "tls"), ("ignis+tls://127.0.0.1:1?ca=/nowhere", "TLS"),
    ],
)  # fmt: skip
def test_urls_that_are_none(url: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        open_store(url)


def test_a_child_process_needs_a_client_of_its_own() -> None:
    with running("memory://") as broker, broker.client() as client:
        client.ask(store_requests.names())
        pid = os.fork()
        if not pid:
            code = 1
            try:
                client.ask(store_requests.names())
            except ForkedHandleError:
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert client.ask(store_requests.names()) == []


def test_brokers_of_one_store_know_each_other_and_serve_one_queue(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with RunningBroker(url) as one, RunningBroker(url) as other, one.client() as first, other.client() as second:
        members = first.ask(requests.cluster_status())
        assert {member["address"] for member in members} == {f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"}
        assert second.ask(requests.cluster_status()) == members
        first.ask(requests.create_queue("q", {"shards": 2}))
        with second.subscribe("q") as subscription:
            first.ask(requests.send("q", encode_record(b"over there")))
            found = subscription.receive(WAIT_S)
            assert found is not None
            assert subscription.ack({claim.shard: claim.pointers for claim in found.claims}) == 1
        status = first.ask(requests.node_status())
        assert (status["broker"], status["draining"]) == (one.broker.id, False)
        figures = {name for name, _, _ in first.ask(requests.metrics())}
        assert figures >= {
            "ignis_broker_requests", "ignis_broker_connection_timeouts_total", "ignis_broker_ring_depth",
            "ignis_broker_bytes_total", "ignis_broker_ring_bytes", "ignis_broker_connections",
        }  # fmt: skip
        other.stop()
        assert [member["broker"] for member in first.ask(requests.cluster_status())] == [one.broker.id]


def test_a_subscription_that_has_ended_says_so_whenever_it_is_asked(tmp_path: Path) -> None:
    """A loop that goes on with it must not take it for one that was closed."""

    async def twice(port: int, stop: Any) -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": WAIT_S}) as client:
            subscription = await client.subscribe("q")
            await asyncio.to_thread(stop)
            for _ in range(2):
                with pytest.raises(ConnectionLostError):
                    async for _found in subscription:
                        pass
            await subscription.close()
            assert [found async for found in subscription] == []

    url = f"embedded://{tmp_path}/store"
    with RunningBroker(url) as broker, broker.client(timeout_s=WAIT_S) as client:
        client.ask(requests.create_queue("q", {"shards": 2}))
        subscription = client.subscribe("q")
        asyncio.run(twice(broker.port, broker.stop))
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                next(iter(subscription))
        subscription.close()
        assert list(subscription) == []


def test_a_connection_is_waited_for_no_longer_when_the_end_comes() -> None:
    with client_of(silent_port(), connect_timeout_s=10 * WAIT_S, timeout_s=10 * WAIT_S) as client:
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                client.connect()
            except StoreUnreachableError as exc:
                failed.append(exc)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: client._attempts.failure is not None)
        client.until_s = 0.0
        for thread in threads:
            thread.join(WAIT_S)
        assert len(failed) == 3
        ask()
        assert "refused" in str(failed[-1])


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_an_idle_application_stops_although_its_broker_is_gone(tmp_path: Path, new_app: MakeApp, kind: str) -> None:
    async def awaited(body: bytes) -> None:
        pass

    def called(body: bytes) -> None:
        pass

    with RunningBroker(f"embedded://{tmp_path}/store") as broker:
        app = new_app(f"{broker.url}?connect_timeout_s={10 * WAIT_S:.0f}")
        for name in "abc":
            app.queue(name, bytes).handler(awaited if kind == "async" else called)
        app.start()
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(app.stop(10 * WAIT_S)), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert ended == [True]


def test_threads_that_give_up_never_see_each_others_answers() -> None:
    """Answers come late, in any order and in pieces, to threads that wait for them for a moment only."""
    rng = random.Random(7)
    held: list[tuple[int, bytes]] = []

    def script(command: int, request_id: int, payload: bytes) -> bytes:
        held.append((request_id, payload))
        rng.shuffle(held)
        due = [held.pop() for _ in range(rng.randint(0, len(held)))]
        return b"".join(encode_frame(Command.PONG, one, data) for one, data in due)

    wrong: list[tuple[bytes, bytes]] = []
    answered: list[bytes] = []
    unsent: list[ConnectionLostError] = []

    def ask(number: int) -> None:
        own = random.Random(number)
        for turn in range(150):
            data = f"{number}/{turn}".encode()
            try:
                found = client.ask(ClientRequest(Command.PING, data, bytes), own.choice([0.0005, 0.002, 0.01]))
            except StoreTimeoutError:
                continue
            except ConnectionLostError as exc:  # others were sending for as long as it had
                unsent.append(exc)
                continue
            answered.append(found)
            if found != data:
                wrong.append((data, found))

    with Puppet(script) as puppet, client_of(puppet.port) as client:
        client.connect()
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert wrong == []
        assert [one for one in unsent if one.sent] == []
        assert len(set(answered)) == len(answered)
        assert client.connection is not None
        machine = client.connection.machine
        late = 6 * 150 - len(answered) - len(unsent)
        assert machine.late_answers + machine.pending == late, "every one is accounted for"
        client.close(0.1)
