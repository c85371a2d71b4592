"""Requests that come alone, on the way that looks nothing up: `LoneLoads` over the `LoneLane` of a magazine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol import payloads
from ignis.broker.protocol.commands import Command
from ignis.broker.server import write_batcher
from ignis.broker.server.dispatcher import DirectDelivery
from ignis.errors import (
    ConnectionLostError,
    IgnisError,
    PermissionDeniedError,
    QueueNotFoundError,
    StoreBusyError,
    StoreFailedError,
    StoreFullError,
)
from ignis.native import PackedBatch, Record, encode_frame, encode_record
from ignis.storage.base import FireResult
from ignis.storage.checks import MAX_TTL_S
from ignis.storage.embedded.magazines import EmbeddedMagazines
from tests.integration.broker.test_broker_hostile import Users
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire, running
from tests.support.embedded import lose_segment, open_at, refuse_writes, resting, settle

pytestmark = pytest.mark.integration

CLASSES = ("none", "interval", "sync")


class Counted:
    """Counts what the `LoneLoads` of a broker's application take."""

    def __init__(self, broker: RunningBroker) -> None:
        application: Any = broker.broker.applications[0]
        self._broker = broker
        self._loads = application.loads
        self._taken = 0
        broker.on_loop(lambda: setattr(application, "loads", self))

    def take(self, *arguments: Any) -> bool:
        taken: bool = self._loads.take(*arguments)
        self._taken += taken
        return taken

    @property
    def taken(self) -> int:
        """An answer may arrive before it is counted."""
        return self._broker.on_loop(lambda: self._taken)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(
        f"embedded://{path}?sync_interval_ms=1000",
        settings={"redeliver_after_s": 0.05},
        uvloop=request.param == "uvloop",
    ) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[SyncClient]:
    with broker.client(timeout_s=WAIT_S) as one:
        for name in CLASSES:
            one.ask(requests.create_queue(name, {"shards": 2, "durability": name, "codec": "raw"}))
            for text in (b"first", b"second"):  # what is to be known of the queue is known then, and then the way
                one.ask(requests.send(name, encode_record(text), ttl_s=None))
        yield one


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop flushes for who publishes alone, however long the disk of this machine takes."""
    monkeypatch.setattr(write_batcher, "_SLOW_FLUSH_S", float("inf"))


@pytest.fixture
def counted(broker: RunningBroker, client: SyncClient) -> Counted:
    return Counted(broker)


def send(client: SyncClient, queue: str, text: str, **options: Any) -> Any:
    return client.ask(requests.send(queue, encode_record(text.encode()), ttl_s=None, **options))


def texts(result: FireResult | None) -> list[str]:
    assert result is not None
    return [Record(record).body.decode() for claim in result.claims for record in claim.records if record is not None]


def drained(client: SyncClient, queue: str, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        back = client.consume(queue, 100, wait_s=WAIT_S)
        found += texts(back)
        client.ack(queue, requests.pointers_of(back))
    return found


@pytest.mark.parametrize("queue", CLASSES)
def test_what_comes_alone_is_stored_and_answered(
    broker: RunningBroker, client: SyncClient, counted: Counted, queue: str
) -> None:
    before = broker.on_loop(lambda: broker.broker.applications[0].inbox(queue).loads)
    placed = [send(client, queue, str(number)) for number in range(50)]
    assert counted.taken >= 45, "a file that has to grow, or a store's upkeep, takes one another way"
    assert len(set(placed)) == 50
    assert {shard for shard, _ in placed} == {0, 1}
    assert broker.on_loop(lambda: broker.broker.applications[0].inbox(queue).loads) == before + 50
    assert sorted(drained(client, queue, 52)) == sorted(["first", "second", *map(str, range(50))])
    info = client.ask(requests.queue_info(queue))
    assert (info["pending"], info["in_flight"]) == (0, 0)


@pytest.mark.parametrize("queue", CLASSES)
def test_who_waits_is_given_it(broker: RunningBroker, client: SyncClient, counted: Counted, queue: str) -> None:
    drained(client, queue, 2)
    with broker.client(timeout_s=WAIT_S) as consumer, consumer.subscribe(queue, 8) as subscription:
        for number in range(20):
            send(client, queue, str(number))
            found = subscription.receive(WAIT_S)
            assert texts(found) == [str(number)]
            assert found is not None
            assert subscription.ack(requests.pointers_of(found)) == 1
    assert counted.taken >= 15
    info = client.ask(requests.queue_info(queue))
    assert (info["pending"], info["in_flight"]) == (0, 0)


def test_the_answers_of_sync_come_behind_the_flush(
    broker: RunningBroker, client: SyncClient, counted: Counted, monkeypatch: pytest.MonkeyPatch, quick_disk: None
) -> None:
    log = broker.broker.applications[0].store.directory.log("sync")  # type: ignore[attr-defined]
    seen: list[bool] = []
    real = type(broker.broker.applications[0].turns)._flush_lone

    def watch(self: Any, one: Any, answer: Any) -> None:
        def look(error: BaseException | None) -> None:
            figures = log.figures()
            seen.append(figures["durable"] == figures["end"])
            answer(error)

        figures = log.figures()
        assert figures["durable"] < figures["end"], "nothing to flush: the test sees nothing"
        real(self, one, look)

    with resting(broker.broker.applications[0].store):
        monkeypatch.setattr(type(broker.broker.applications[0].turns), "_flush_lone", watch)
        for number in range(10):
            send(client, "sync", str(number))
    assert seen == [True] * 10
    assert counted.taken == 10


def test_an_order_is_kept_with_what_comes_together(broker: RunningBroker, client: SyncClient, counted: Counted) -> None:
    """What comes alone does not overtake what came before it and is still on its way."""
    with Wire(broker.port) as wire:
        wire.greet()
        request, sent = 2, []
        for size in [1, 3, 1, 1, 5, 1, 40, 1] * 10:
            frames = b""
            for _ in range(size):
                record = encode_record(b"%d" % request, key=b"one")
                frames += encode_frame(Command.SEND, request, requests.send("none", record, ttl_s=None).payload)
                sent.append(str(request))
                request += 1
            wire.raw(frames)
        answered = [wire.receive()[1] for _ in sent]
    assert sorted(answered) == list(range(2, request))
    assert [text for text in drained(client, "none", 2 + len(sent)) if text.isdigit()] == sent


def test_a_queue_that_is_made_anew_is_found(broker: RunningBroker, client: SyncClient, counted: Counted) -> None:
    for shards, durability in ((4, "sync"), (1, "interval"), (3, "none")):
        send(client, "none", "old")
        client.ask(requests.delete_queue("none", True))
        with pytest.raises(IgnisError):
            send(client, "none", "nowhere")
        settings = {"shards": shards, "durability": durability, "codec": "raw"}
        client.ask(requests.create_queue("none", settings))
        placed = [send(client, "none", str(number)) for number in range(12)]
        assert {shard for shard, _ in placed} == set(range(shards))
        # What was counted of the old one says nothing of the new: who asks is given what is there, and does not wait.
        found = client.consume("none", 100, wait_s=5.0)
        assert sorted(texts(found)) == sorted(map(str, range(12)))
        client.ack("none", requests.pointers_of(found))


def test_a_queue_that_others_drop_is_not_written_to(
    path: Path, broker: RunningBroker, client: SyncClient, counted: Counted
) -> None:
    """Another process knows nothing of what the broker remembers."""
    send(client, "none", "old")
    with open_at(path) as store:
        store.magazines.drop("none")
        with pytest.raises(IgnisError):
            send(client, "none", "nowhere")
        store.magazines.declare("none", 2, "none")
        eventually(lambda: _sends(client, "none", "new"))
    assert "new" in drained(client, "none", 1)


def _sends(client: SyncClient, queue: str, text: str) -> bool:
    try:
        send(client, queue, text)
    except IgnisError:
        return False
    return True


@pytest.mark.parametrize("fails", ["write", "flush"])
def test_a_failed_write_or_flush_is_the_senders_error(
    path: Path,
    broker: RunningBroker,
    client: SyncClient,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
    quick_disk: None,
    fails: str,
) -> None:
    store: Any = broker.broker.applications[0].store
    settle(store)
    turns = type(broker.broker.applications[0].turns)
    real = turns._flush_lone

    def lose(self: Any, one: Any, answer: Any) -> None:
        lose_segment(path, "sync")
        monkeypatch.undo()
        real(self, one, answer)

    with resting(store):
        if fails == "write":
            refuse_writes(path, "sync")
        else:
            monkeypatch.setattr(turns, "_flush_lone", lose)
        with pytest.raises(StoreFailedError):
            send(client, "sync", "refused")
        assert counted.taken == 1
        send(client, "sync", "stored")
    # What was in the file that cannot be read any more is damaged.
    left = ["first", "second", "stored"] if fails == "write" else ["stored"]
    assert sorted(drained(client, "sync", len(left))) == left


def test_a_flush_of_interval_that_failed_is_told_to_the_next(
    path: Path, broker: RunningBroker, client: SyncClient, counted: Counted
) -> None:
    store: Any = broker.broker.applications[0].store
    settle(store)
    with resting(store):
        send(client, "interval", "1")
        lose_segment(path, "interval")  # within the second until it is flushed
        eventually(lambda: store.directory.interval.failures > 0)
        with pytest.raises(StoreFailedError):
            send(client, "interval", "2")
        send(client, "interval", "3")
    assert counted.taken >= 1


def test_a_full_store_refuses_and_counts(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'store'}?max_store_bytes=1048576"
    with RunningBroker(url) as broker, broker.client(timeout_s=WAIT_S) as client:
        client.ask(requests.create_queue("q", {"shards": 1, "durability": "none", "codec": "raw"}))
        send(client, "q", "first")
        send(client, "q", "second")
        counted = Counted(broker)
        refusals = [one for _ in range(25) if (one := _refusal(client, "x" * 50_000)) is not None]
        assert 1 <= len(refusals) < 10
        assert all(isinstance(one, StoreFullError) and "max_store_bytes" in str(one) for one in refusals)
        assert counted.taken > 15
        assert broker.broker.applications[0].store.stats()["refused_loads_limit"] == len(refusals)


def _refusal(client: SyncClient, text: str) -> IgnisError | None:
    try:
        send(client, "q", text)
    except IgnisError as exc:
        return exc
    return None


def test_who_cannot_be_counted_for_ends_no_connection(
    broker: RunningBroker, client: SyncClient, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a queue that is gone answers is the load's to say: the connection that has sent it stays."""

    def gone(self: EmbeddedMagazines, magazine: str, seen: int, timeout_s: float) -> int:
        raise QueueNotFoundError("planted")

    drained(client, "none", 2)
    with broker.client(timeout_s=WAIT_S) as consumer:
        subscription = consumer.subscribe("none", 8)
        for number in range(3):
            send(client, "none", str(number))
            assert texts(subscription.receive(WAIT_S)) == [str(number)]
        connection = client.connection
        with monkeypatch.context() as patched:
            patched.setattr(EmbeddedMagazines, "wait", gone)
            send(client, "none", "3")
        assert client.connection is connection
        assert connection is not None and connection.alive


def test_a_delivery_whose_load_fails_is_undone(
    broker: RunningBroker, client: SyncClient, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer has the message, and its sender is told that it failed: nothing more is heard from that consumer."""
    real = DirectDelivery.give_lone

    def give(self: DirectDelivery, lone: Any) -> None:
        real(self, lone)
        monkeypatch.undo()
        raise StoreBusyError("planted")

    drained(client, "none", 2)
    with broker.client(timeout_s=WAIT_S) as consumer:
        subscription = consumer.subscribe("none", 8)
        for number in range(3):  # until it is known that the consumer waits
            send(client, "none", str(number))
            assert texts(subscription.receive(WAIT_S)) == [str(number)]
        before = counted.taken
        monkeypatch.setattr(DirectDelivery, "give_lone", give)
        with pytest.raises(StoreBusyError):
            send(client, "none", "3")
        assert counted.taken == before + 1
        with pytest.raises(ConnectionLostError):
            for _ in iter(lambda: subscription.receive(WAIT_S), None):
                pass
    assert sorted(drained(client, "none", 4)) == ["0", "1", "2", "3"]


def test_a_sender_that_leaves_before_the_flush_harms_nobody(
    broker: RunningBroker, client: SyncClient, counted: Counted
) -> None:
    def leave() -> None:
        with Wire(broker.port) as wire:
            wire.greet(instance=f"wire{wire.sock.fileno()}")
            wire.send(Command.SEND, 2, requests.send("sync", encode_record(b"left"), ttl_s=None).payload)

    threads = [threading.Thread(target=leave) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(WAIT_S)
    send(client, "sync", "after")
    assert "after" in drained(client, "sync", 3)
    eventually(lambda: broker.on_loop(lambda: broker.broker.applications[0].turns.idle))
    assert broker.on_loop(lambda: broker.broker.applications[0].inbox("sync").bytes) == 0


@pytest.mark.parametrize("queue", CLASSES)
def test_a_time_to_live_is_kept(broker: RunningBroker, client: SyncClient, counted: Counted, queue: str) -> None:
    drained(client, queue, 2)
    for number in range(10):
        client.ask(requests.send(queue, encode_record(b"%d" % number), ttl_s=0.05 if number % 2 else 3_600))
    client.ask(requests.send_batch(queue, [(0, PackedBatch.pack([encode_record(b"b")] * 3))], ttl_s=0.05))
    assert counted.taken >= 8
    time.sleep(0.1)
    assert sorted(drained(client, queue, 5)) == ["0", "2", "4", "6", "8"]
    assert texts(client.consume(queue, 100)) == [], "what has expired is nobody's"


def test_a_time_to_live_beyond_all_bounds_is_refused(
    broker: RunningBroker, client: SyncClient, counted: Counted
) -> None:
    with Wire(broker.port) as wire:
        wire.greet()
        payload = payloads.pack_send(b"none", (MAX_TTL_S + 1) * 1000, 0, encode_record(b"long"))
        wire.send(Command.SEND, 2, payload)
        assert "ttl_ms" in wire.failure().message
    assert counted.taken == 0


def test_who_may_send_there_goes_that_way_and_who_may_not_is_refused(path: Path) -> None:
    users = Users(boss=["all:*"], web=["publish:none"], other=["publish:other"])
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running(f"embedded://{path}", authenticator=users))
        boss, web, other = (stack.enter_context(broker.client(timeout_s=WAIT_S, user=name)) for name in users.users)
        boss.ask(requests.create_queue("none", {"shards": 1, "durability": "none", "codec": "raw"}))
        for _ in range(3):
            send(web, "none", "warm")
        counted = Counted(broker)
        for number in range(10):
            send(web, "none", str(number))
            with pytest.raises(PermissionDeniedError):
                send(other, "none", "denied")
        assert counted.taken >= 8
        assert broker.on_loop(lambda: broker.broker.state.denied) == 10
        assert sorted(drained(boss, "none", 13)) == sorted([*map(str, range(10)), *["warm"] * 3])
