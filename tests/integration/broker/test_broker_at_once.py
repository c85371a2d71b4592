"""What the broker's event loop does itself, what it leaves to threads, and that neither shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import unpack
from ignis.broker.protocol.payloads import Failure, pack_send_batch
from ignis.broker.server.publish_buffer import PublishBuffer
from ignis.broker.server.session import Session
from ignis.broker.server.write_batcher import WriteBatcher
from ignis.errors import ConnectionLostError, IgnisError, StoreBusyError
from ignis.native import PackedBatch, Record, encode_frame, encode_record
from ignis.native.lone import LoneRequest
from ignis.storage.base import FireResult
from ignis.storage.embedded import writes
from ignis.storage.embedded.magazines import EmbeddedMagazines
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire
from tests.support.embedded import held_by_another, lose_segment, refuse_writes, resting, settle

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, path: Path) -> Iterator[RunningBroker]:
    """On both event loops: what is sent within a turn takes another way in each."""
    url, settings = f"embedded://{path}", {"redeliver_after_s": 0.05}
    with RunningBroker(url, settings=settings, uvloop=request.param == "uvloop") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[SyncClient]:
    with broker.client(timeout_s=WAIT_S) as one:
        for name in ("none", "sync"):
            one.ask(requests.create_queue(name, {"shards": 2, "durability": name, "codec": "raw"}))
        for name in ("none", "sync"):
            # Opens the logs and fills what the broker remembers: from here on the loop can do it alone.
            one.ask(requests.send(name, encode_record(b"warm")))
            found = one.consume(name, 10, wait_s=WAIT_S)
            one.ack(name, places(found))
        yield one


def places(result: FireResult) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for claim in result.claims:
        found.setdefault(claim.shard, []).extend(claim.pointers)
    return found


def texts(result: FireResult | None) -> list[str]:
    assert result is not None
    return [Record(record).body.decode() for claim in result.claims for record in claim.records if record is not None]


def turns(broker: RunningBroker) -> WriteBatcher:
    return broker.broker.applications[0].turns


def figures(broker: RunningBroker) -> dict[str, int]:
    """Of the log of ``sync``."""
    store: Any = broker.broker.applications[0].store
    found: dict[str, int] = store.directory.log("sync").figures()
    return found


def watch_flushes(monkeypatch: pytest.MonkeyPatch, watch: Callable[[Callable[[], None]], None]) -> None:
    """``watch`` is called, with what makes it, in place of each flush of what was written at once."""
    real, loaded = writes._Unflushed.flush, WriteBatcher.loaded
    monkeypatch.setattr(writes._Unflushed, "flush", lambda self: watch(lambda: real(self)))

    class Pending:
        """That of a `LoneLane`."""

        def __init__(self, pending: Any) -> None:
            self._pending = pending

        def flush(self) -> None:
            watch(self._pending.flush)

        def __call__(self, error: BaseException | None) -> None:
            self._pending(error)

    def watched(self: WriteBatcher, unflushed: Any, finish: Any) -> None:
        if unflushed is finish:
            unflushed = finish = Pending(unflushed)
        loaded(self, unflushed, finish)

    monkeypatch.setattr(WriteBatcher, "loaded", watched)


def batch(text: str, nbytes: int = 0) -> PackedBatch:
    return PackedBatch.pack([encode_record(text.ljust(nbytes, ".").encode())])


@pytest.mark.parametrize("queue", ["none", "sync"])
def test_small_messages_need_no_thread(broker: RunningBroker, client: SyncClient, queue: str) -> None:
    before = broker.on_loop(lambda: turns(broker).at_once)
    with client.subscribe(queue, 8) as subscription:
        for number in range(20):
            client.ask(requests.send(queue, encode_record(b"%d" % number)))
            found = subscription.receive(WAIT_S)
            assert texts(found) == [str(number)]
            assert found is not None
            assert subscription.ack(places(found)) == 1
    # Of 40 writes; a file that has to grow takes one to a thread now and then.
    assert broker.on_loop(lambda: turns(broker).at_once) - before > 30
    left = client.ask(requests.queue_info(queue))
    assert (left["pending"], left["in_flight"]) == (0, 0)


def test_the_loop_goes_on_while_another_process_holds_the_store(
    broker: RunningBroker, client: SyncClient, path: Path
) -> None:
    with client.subscribe("none", 16) as subscription:
        client.ask(requests.send("none", encode_record(b"0")))
        found = subscription.receive(WAIT_S)
        assert texts(found) == ["0"]
        assert found is not None
        with Wire(broker.port) as wire:
            wire.greet()
            with held_by_another(path, "none") as held:
                for number in range(1, 4):
                    wire.send(Command.SEND, 1 + number, requests.send("none", encode_record(b"%d" % number)).payload)
                wire.send(Command.PING, 99)
                # Nobody's answer is there before the store is free, but the loop answers.
                assert wire.receive()[:2] == (Command.PONG, 99)
                assert held()
            acked = {wire.receive()[:2] for _ in range(3)}
            assert acked == {(Command.SEND_ACK, 1 + number) for number in range(1, 4)}
        assert subscription.ack(places(found)) == 1
        seen: list[str] = []
        while len(seen) < 3:
            seen += texts(subscription.receive(WAIT_S))
        assert sorted(seen) == ["1", "2", "3"]


def test_small_and_large_loads_of_a_magazine_keep_their_order(broker: RunningBroker, client: SyncClient) -> None:
    """The large ones go to a thread, and the small ones behind them must not overtake."""
    sizes = [0, 0, 60_000, 0, 400_000, 0, 0, 50_000, 0]
    with Wire(broker.port) as wire:
        wire.greet()
        for number, size in enumerate(sizes):
            payload = requests.send_batch("none", [(0, batch(f"{number} ", size))]).payload
            wire.send(Command.SEND_BATCH, 2 + number, payload)
        answered = {wire.receive()[1] for _ in sizes}
        assert answered == set(range(2, 2 + len(sizes)))
    seen: list[str] = []
    while len(seen) < len(sizes):
        found = client.consume("none", 100, wait_s=WAIT_S)
        seen += [text.split(" ")[0] for text in texts(found)]
        client.ack("none", places(found))
    assert seen == [str(number) for number in range(len(sizes))]


def test_a_request_that_is_refused_alone_is_answered(broker: RunningBroker, client: SyncClient) -> None:
    """Nothing is left to write then."""
    with Wire(broker.port) as wire:
        wire.greet()
        wire.send(Command.SEND_BATCH, 2, pack_send_batch(b"none", 1 << 63, [(0, batch("a"))]))
        assert wire.failure().code == "config"
        wire.send(Command.SEND_BATCH, 3, pack_send_batch(b"none", 0, [(0, batch("b"))]))
        assert wire.receive()[:2] == (Command.SEND_ACK, 3)


def test_messages_older_than_the_subscription_come_before_new_ones(broker: RunningBroker, client: SyncClient) -> None:
    for number in range(5):
        client.ask(requests.send_batch("none", [(0, batch(str(number)))]))
    with client.subscribe("none", 3) as subscription:
        seen: list[str] = []
        for number in range(5, 12):
            client.ask(requests.send_batch("none", [(0, batch(str(number)))]))
        while len(seen) < 12:
            found = subscription.receive(WAIT_S)
            seen += texts(found)
            assert found is not None
            subscription.ack(places(found))
    assert seen == [str(number) for number in range(12)]


def test_nothing_is_answered_before_it_was_flushed(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is delivered does not wait for it."""
    events: list[tuple[str, bool]] = []
    real_write, real_deliver, real_deliver_lone = Session.write_now, Session.deliver, Session.deliver_lone
    real_end = Session.end_pending

    def note(what: str) -> None:
        now = figures(broker)
        events.append((what, now["durable"] == now["end"]))

    def answer(self: Session, frames: bytes, count: int) -> None:
        note("answered")
        real_write(self, frames, count)

    def end_pending(self: Session, count: int) -> None:
        note("answered")
        real_end(self, count)

    def deliver(self: Session, frame: memoryview) -> None:
        note("delivered")
        real_deliver(self, frame)

    def deliver_lone(self: Session, lone: LoneRequest, request_id: int, count: int) -> None:
        note("delivered")
        real_deliver_lone(self, lone, request_id, count)

    with client.subscribe("sync", 64):
        monkeypatch.setattr(Session, "write_now", answer)
        monkeypatch.setattr(Session, "end_pending", end_pending)
        monkeypatch.setattr(Session, "deliver", deliver)
        monkeypatch.setattr(Session, "deliver_lone", deliver_lone)
        early = 0
        for number in range(20):
            events.clear()
            client.ask(requests.send("sync", encode_record(b"%d" % number)))
            eventually(lambda: len(events) >= 2)
            assert ("answered", True) in events
            early += ("delivered", False) in events
        assert early > 0


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "together"])
def test_a_delivery_that_was_not_stored_ends_the_connection_that_has_it(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Its pointers will be another message's, so nothing that this connection says of them may be heard."""
    planted: list[bool] = []

    def fail(
        self: writes.Writes, magazine: str, lone: Any, shards: int, any_shard: int, ttl_s: Any, taker: Any
    ) -> None:
        if not planted:
            planted.append(True)
            taker.give([(0, PackedBatch.pack([encode_record(b"ghost")]))], [50])
        raise StoreBusyError("planted")

    def fail_together(self: writes.Writes, write: Any, taker: Any, found: Any) -> bool:
        if not planted:
            planted.append(True)
            write.given = True
            taker.give([(0, PackedBatch.pack([encode_record(b"ghost")]))], [50])
        raise StoreBusyError("planted")

    monkeypatch.setattr(EmbeddedMagazines, "lone_lane", lambda *_: None)
    with broker.client(timeout_s=WAIT_S) as consumer:
        subscription = consumer.subscribe("none", 8)
        client.ask(requests.send("none", encode_record(b"0")))
        found = subscription.receive(WAIT_S)
        assert texts(found) == ["0"]
        if alone:
            monkeypatch.setattr(writes.Writes, "try_load_lone", fail)
            with pytest.raises(StoreBusyError):
                client.ask(requests.send("none", encode_record(b"1")))
            monkeypatch.undo()
        else:
            monkeypatch.setattr(PublishBuffer, "load_lone", lambda *_: False)
            monkeypatch.setattr(writes.Writes, "_give", fail_together)
        client.ask(requests.send("none", encode_record(b"1")))
        assert planted
        with pytest.raises(ConnectionLostError):
            for _ in iter(lambda: subscription.receive(WAIT_S), None):
                pass
    seen: list[str] = []
    while len(seen) < 2:
        back = client.consume("none", 10, wait_s=WAIT_S)
        seen += texts(back)
        client.ack("none", places(back))
    assert sorted(seen) == ["0", "1"]


def test_acknowledgements_share_the_flush_of_a_load_that_is_due(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bool] = []

    def watch(flush: Callable[[], None]) -> None:
        now = figures(broker)
        flushed.append(now["durable"] < now["end"])
        flush()

    monkeypatch.setattr("ignis.broker.server.write_batcher._LOADS_GO_ON_S", 2 * WAIT_S)
    monkeypatch.setattr("ignis.broker.server.write_batcher._SHARES_S", 2 * WAIT_S)
    client.ask(requests.send("sync", encode_record(b"a")))
    found = client.consume("sync", 1, wait_s=WAIT_S)
    assert texts(found) == ["a"]
    watch_flushes(monkeypatch, watch)
    thread = threading.Thread(target=lambda: client.ack("sync", places(found)), daemon=True)
    thread.start()
    eventually(lambda: broker.on_loop(lambda: turns(broker)._flush_timer is not None))
    client.ask(requests.send("sync", encode_record(b"b")))
    thread.join(WAIT_S)
    assert not thread.is_alive(), "answered with the load, not after its own time"
    assert flushed.count(True) == 1, "the others found that all was on the disk"


def test_a_slow_disk_is_waited_for_by_a_thread(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, where = [True], []

    def watch(flush: Callable[[], None]) -> None:
        where.append(threading.current_thread().name)
        if slow:
            slow.clear()
            time.sleep(0.2)
        flush()

    watch_flushes(monkeypatch, watch)
    for number in range(10):
        client.ask(requests.send("sync", encode_record(b"%d" % number)))
    assert any(name.startswith("ignis-broker-flush") for name in where)


@pytest.mark.parametrize("fails", ["write", "flush"])
def test_a_failed_write_or_flush_is_everybodys_error(
    path: Path, broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """And the next message is stored: a failure stops nobody who comes behind it."""
    generation = figures(broker)["generation"]
    store: Any = broker.broker.applications[0].store
    settle(store)
    failing = [True]

    def watch(flush: Callable[[], None]) -> None:
        if failing:
            lose_segment(path, "sync")
        flush()

    with resting(store), Wire(broker.port) as wire:
        if fails == "flush":
            watch_flushes(monkeypatch, watch)
        else:
            refuse_writes(path, "sync")
        wire.greet()
        payload = requests.send("sync", encode_record(b"x")).payload
        wire.raw(b"".join(encode_frame(Command.SEND, request_id, payload) for request_id in range(2, 6)))
        for _ in range(4):
            command, _, payload = wire.receive()
            assert command == Command.ERROR
            assert unpack(payload, Failure)[0].code == "store_failed"
    failing.clear()
    client.ask(requests.send("sync", encode_record(b"y")))
    assert figures(broker)["generation"] > generation
    assert texts(client.consume("sync", 10, wait_s=WAIT_S)) == ["y"]


@pytest.mark.parametrize("durability", ["none", "sync"])
def test_a_lone_message_is_stored_where_it_is_read(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """No turn is planned for it, and its acknowledgement leaves in the pass of the loop that stored or flushed it."""
    client.ask(requests.send(durability, encode_record(b"first")))  # what is to be known of the queue is known then
    turns = broker.broker.applications[0].turns
    store: Any = broker.broker.applications[0].store
    settle(store)
    planned: list[str] = []
    monkeypatch.setattr(type(turns), "_run", lambda self: planned.append("turn"))
    monkeypatch.setattr(
        type(broker.broker.context.flushes), "_flush_planned_ones", lambda self: planned.append("flush")
    )
    before = broker.on_loop(lambda: turns.at_once)
    with resting(store):
        placed = [
            client.ask(requests.send(durability, encode_record(b"%d" % number), ttl_s=None)) for number in range(8)
        ]
        (batched,) = client.ask(
            requests.send_batch(durability, [(0, PackedBatch.pack([encode_record(b"8")] * 3))], ttl_s=None)
        )
    assert broker.on_loop(lambda: turns.at_once) == before + 9
    assert planned == []
    monkeypatch.undo()
    assert len({*placed, batched[:2]}) == 9
    assert batched[2] == 3
    seen: list[str] = []
    while len(seen) < 12:
        found = client.consume(durability, 20, wait_s=WAIT_S)
        seen += texts(found)
        client.ack(durability, places(found))
    assert sorted(seen) == sorted(["first", *map(str, range(8)), "8", "8", "8"])


def test_a_lone_message_that_cannot_be_read_is_refused_alone(broker: RunningBroker, client: SyncClient) -> None:
    client.ask(requests.send("none", encode_record(b"a")))
    with pytest.raises(IgnisError, match="record 0"):
        client.ask(requests.send("none", b"\xff" * 40, ttl_s=None))
    client.ask(requests.send("none", encode_record(b"b"), ttl_s=None))
    assert sorted(texts(client.consume("none", 9, wait_s=WAIT_S))) == ["a", "b"]


def test_what_comes_while_a_thread_flushes_is_flushed_together_behind_it(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the loop goes on meanwhile: other requests are answered."""
    client.ask(requests.send("sync", encode_record(b"first")))
    running_one, go, flushes = threading.Event(), threading.Event(), []

    def watch(flush: Callable[[], None]) -> None:
        name = threading.current_thread().name
        flushes.append(name)
        if not running_one.is_set() and name.startswith("ignis-broker-flush"):
            running_one.set()
            assert go.wait(WAIT_S)
        flush()

    turns = broker.broker.applications[0].turns
    broker.on_loop(lambda: setattr(turns, "_flush_s", 1.0))  # as on a slow disk
    watch_flushes(monkeypatch, watch)
    with Wire(broker.port) as one, Wire(broker.port) as other:
        for wire in (one, other):
            wire.greet(instance=f"wire{wire.sock.fileno()}")
        one.send(Command.SEND, 2, requests.send("sync", encode_record(b"1")).payload)
        assert running_one.wait(WAIT_S)
        for number in range(10, 20):
            other.send(Command.SEND, number, requests.send("sync", encode_record(b"%d" % number)).payload)
            assert client.ask(requests.ping()) == b""  # so each is read by itself
        eventually(lambda: broker.on_loop(lambda: len(turns._unflushed)) >= 1)
        before = len(flushes)
        assert broker.on_loop(lambda: turns._flushing)
        go.set()
        assert one.receive()[:2] == (Command.SEND_ACK, 2)
        assert sorted(other.receive()[1] for _ in range(10)) == list(range(10, 20))
    assert before == 1, "no second flush beside the first"
    eventually(lambda: broker.on_loop(lambda: turns.idle))
