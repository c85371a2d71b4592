"""A message that comes alone goes from where it was received to who waits for it, and an ACK or a DELETE that comes alone is
carried out where it is read. Nobody can tell: not by an answer, not by a delivery, not by what is stored, and not by a figure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.auth.principal import Credentials
from ignis.broker.client import requests
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.payloads import pack_send, pack_send_batch
from ignis.broker.server.dispatcher import DirectDelivery
from ignis.broker.server.lone_acks import LoneAcks
from ignis.errors import StoreFailedError
from ignis.native import PackedBatch, encode_frame, encode_record
from ignis.native.lone import LoneRequest
from ignis.native.wire import ClaimsFrame, pack_pointers
from ignis.storage.embedded import writes
from ignis.storage.write_batch import FiredInto
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire
from tests.support.embedded import held_by_another, resting, settle

pytestmark = pytest.mark.integration

_FIGURES = ("messages_in", "bytes_in", "bytes_out", "errors", "denied", "refused", "protocol_errors")
_SUBSCRIPTION = 2
_CREDIT = 4


class Some:
    """May do everything but acknowledge, and delete, messages of ``closed``."""

    open = True
    name = "some"

    def authenticate(self, credentials: Credentials) -> Some:
        return self

    def allows(self, command: str, queue: str) -> bool:
        return command not in ("ACK", "DELETE") or queue != "closed"

    def allows_some(self, command: str) -> bool:
        return True


def record(number: int) -> bytes:
    return encode_record(b"body %d" % number, id=bytes([number]) * 16, enqueued_at_us=1)


def batch(*numbers: int) -> PackedBatch:
    return PackedBatch.pack([record(number) for number in numbers])


def ack(queue: str, *runs: tuple[int, range]) -> bytes:
    return pack((queue,), pack_pointers(list(runs)))


class Script:
    """What a publisher and a consumer say, in turn, and what they are told."""

    def __init__(self, publisher: Wire, consumer: Wire, other: Wire) -> None:
        self.told: list[tuple[str, tuple[int, int, bytes]]] = []
        self._publisher = publisher
        self._consumer = consumer
        self._other = other
        self._numbers = iter(range(10, 10_000))

    def publishes(self, command: int, payload: bytes, delivered: bool = True) -> None:
        """A lone request; its messages come at the consumer before anything else is said."""
        self._publisher.send(command, next(self._numbers), payload)
        if delivered:
            self.told.append(("delivered", self._consumer.receive()))
        self.told.append(("published", self._publisher.receive()))

    def sends(self, queue: bytes, shard: int, number: int, delivered: bool = True) -> None:
        self.publishes(Command.SEND, pack_send(queue, 0, shard, record(number)), delivered)

    def acks(self, payload: bytes, delivers: int = 0, command: int = Command.ACK) -> None:
        """Waits for the answer, and for so many deliveries that it makes room for, in any order: that room is there before the
        answer, and others may say meanwhile that there are messages."""
        self._consumer.send(command, next(self._numbers), payload)
        self.told += sorted(("answered", self._consumer.receive()) for _ in range(1 + delivers))

    def anothers(self, payload: bytes) -> None:
        self._other.send(Command.ACK, next(self._numbers), payload)
        self.told.append(("answered another", self._other.receive()))

    def asks(self, command: int, number: int, payload: bytes) -> None:
        self._consumer.send(command, number, payload)
        self.told.append(("answered", self._consumer.receive()))


def say(script: Script, queue: str) -> None:
    name = queue.encode()
    # One at a time: delivered, acknowledged.
    for number in range(1, 5):
        script.sends(name, number % 2, number)
        script.acks(ack(queue, (number % 2, range(1 + (number - 1) // 2, 2 + (number - 1) // 2))))
    # Shard 0 has had pointers 1 and 2 by now, and so has shard 1.
    script.publishes(Command.SEND_BATCH, pack_send_batch(name, 60_000, [(0, batch(5, 6, 7))]))
    script.acks(ack(queue, (0, range(4, 5))))
    script.acks(ack(queue, (0, range(4, 5))))  # twice
    script.acks(ack(queue, (0, range(3, 4)), (0, range(5, 6))))
    # Not as simple as that.
    script.sends(name, 0, 8)
    script.anothers(ack(queue, (0, range(6, 7))))  # which another holds
    script.acks(ack(queue, (0, range(6, 8))))  # of which it holds a part
    script.sends(name, 0, 9)
    script.acks(ack(queue, (0, range(7, 8)), (0, range(7, 8))))  # one twice in one request
    script.sends(name, 0, 10)
    script.acks(pack((queue, "a later field"), pack_pointers({0: [8]})))
    for payload in (
        ack(queue), ack("unknown", (0, range(1, 2))), ack("not a name", (0, range(1, 2))), ack("", (0, range(1, 2))),
        ack("n\u00e4me", (0, range(1, 2))), ack(queue, (0, range(500, 501))), ack(queue, (7, range(1, 2))),
        ack(queue, (0, range(1, 5_000))), ack(queue, (1, range(1, 2)), (0, range(1, 2))),
        ack(queue + "_SIDELINE", (0, range(1, 2))), ack(queue, (0, range(1, 2)))[:-1], ack(queue, (0, range(1, 2))) + b"\0",
        b"", b"\xff" * 9, pack(7), pack((7,)), pack([]),
    ):  # fmt: skip
        script.acks(payload)
    # No more than the credit is delivered; an acknowledgement makes room.
    for number in range(_CREDIT):
        script.sends(name, 1, 20 + number)
    script.sends(name, 1, 30, delivered=False)
    script.acks(ack(queue, (1, range(4, 5))), delivers=1)
    script.acks(ack(queue, (1, range(3, 4)), (1, range(5, 8))))
    # With something behind it: never alone.
    script.sends(name, 1, 31)
    frame = encode_frame(Command.ACK, 9_000, ack(queue, (1, range(8, 9)))) + encode_frame(Command.PING, 9_001, b"")
    script._consumer.raw(frame)
    script.told += sorted(("answered", script._consumer.receive()) for _ in range(2))
    # A pull, and what nobody may acknowledge.
    script.asks(Command.UNSUBSCRIBE, 9_002, pack([_SUBSCRIPTION]))
    script._consumer.send(Command.CONSUME, 9_003, pack((queue, 2, int(WAIT_S * 1_000))))
    # What follows is said when the broker has read that.
    script.asks(Command.PING, 9_005, b"")
    script.sends(name, 0, 40)
    script.acks(ack(queue, (0, range(9, 10))))
    script.sends(b"closed", 0, 41, delivered=False)
    script.asks(Command.CONSUME, 9_004, pack(("closed", 2, int(WAIT_S * 1_000))))
    script.acks(ack("closed", (0, range(1, 2))))
    script.asks(Command.DELETE, 9_006, ack("closed", (0, range(1, 2))))
    # What the client claims by itself, and deletes.
    for number in range(50, 58):
        script.sends(name, 1, number, delivered=False)
    script.asks(Command.FIRE, 9_010, pack((queue, 6, "")))
    script.asks(Command.FIRE, 9_011, pack((queue, 1, "job-7")))  # in another name: this connection does not hold it
    for number, payload in enumerate(
        (
            ack(queue, (1, range(9, 10))), ack(queue, (1, range(9, 10))), ack(queue, (1, range(10, 12))),
            ack(queue, (1, range(11, 13))), ack(queue, (1, range(13, 14)), (1, range(13, 14))), ack(queue, (1, range(15, 16))),
            ack(queue, (1, range(500, 501))), ack(queue, (7, range(1, 2))), ack(queue), ack("unknown", (0, range(1, 2))),
            ack(queue + "_SIDELINE", (0, range(1, 2))), ack(queue, (1, range(14, 15)))[:-1], pack((queue, "later"), b""),
            ack(queue, (1, range(14, 15))),
        ),
        9_020,
    ):  # fmt: skip
        script.asks(Command.DELETE, number, payload)


def figures(broker: RunningBroker) -> dict[str, int]:
    def read() -> dict[str, int]:
        found = {name: getattr(broker.broker.state, name) for name in _FIGURES}
        found["pending"] = sum(session.pending for session in broker.broker.sessions)
        found["held"] = sum(session.held.count for session in broker.broker.sessions)
        return found

    found = broker.on_loop(read)
    found["delivered"] = sum(pump.delivered for pump in broker.pumps())
    return found


class Talk:
    """What was said and what became of it."""

    def __init__(self, told: object, left: dict[str, int], kept: object, direct: dict[str, int]) -> None:
        self.told = told
        self.left = left
        self.kept = kept
        self.direct = direct


def by_claims(self: DirectDelivery, lone: LoneRequest) -> None:
    """`DirectDelivery.give_lone` as of what came with others."""
    from ignis.broker.server.subscription import packed

    claims = ClaimsFrame()
    lone.put_into(claims)
    found = packed(claims, FiredInto({}, 0, False))
    self._runs = found.runs
    self._pump.hand_over(self._consumer, found)


def talk(
    path: Path, durability: str, uvloop: bool, monkeypatch: pytest.MonkeyPatch, alone: bool, **options: Any
) -> Talk:
    direct = {"acks": 0, "deliveries": 0}
    take, give = LoneAcks.take_received, DirectDelivery.give_lone

    def take_received(self: LoneAcks, size: int) -> bool:
        done = alone and take(self, size)
        direct["acks"] += done
        return done

    def give_lone(self: DirectDelivery, lone: LoneRequest) -> None:
        direct["deliveries"] += alone
        (give if alone else by_claims)(self, lone)

    with monkeypatch.context() as patched:
        patched.setattr(LoneAcks, "take_received", take_received)
        patched.setattr(DirectDelivery, "give_lone", give_lone)
        with RunningBroker(f"embedded://{path}", uvloop=uvloop, **options) as broker:
            with (
                broker.client(timeout_s=WAIT_S) as client,
                Wire(broker.port) as publisher,
                Wire(broker.port) as consumer,
            ):
                for name in (durability, "closed"):
                    client.ask(requests.create_queue(name, {"shards": 2, "durability": durability, "codec": "raw"}))
                with Wire(broker.port) as other:
                    for wire, instance in ((publisher, "publisher"), (consumer, "consumer"), (other, "other")):
                        wire.greet(instance=instance)
                    warm(broker, consumer, durability)
                    script = Script(publisher, consumer, other)
                    say(script, durability)
                    left = figures(broker)
                    store: Any = broker.broker.applications[0].store
                    kept = {
                        name: [found[:2] for found in store.magazines.scan(name, limit=1_000)]
                        for name in (durability, "closed")
                    }
            # An error may name the store.
            told = [
                (what, (command, number, payload.replace(str(path).encode(), b"")))
                for what, (command, number, payload) in script.told
            ]
            return Talk(told, left, kept, direct)


def warm(broker: RunningBroker, consumer: Wire, queue: str) -> None:
    """What is to be known of the queue is known behind this, and the first claim, which a thread makes, is over."""
    with broker.client(timeout_s=WAIT_S) as client:
        for name in (queue, "closed"):
            assert client.consume(name, 1).claims == []
    facts = broker.broker.applications[0].facts
    broker.on_loop(lambda: [broker.broker.applications[0].inbox(name) for name in (queue, "closed")])
    assert facts.shards(queue) == facts.shards("closed") == 2
    consumer.send(Command.SUBSCRIBE, _SUBSCRIPTION, pack((queue, _CREDIT)))
    assert consumer.receive()[0] == Command.RESULT
    (pump,) = [pump for pump in broker.pumps() if pump.magazine == queue]
    eventually(lambda: broker.on_loop(lambda: not (pump._by_thread or pump._firing)))


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("durability", ["none", "interval", "sync"])
def test_answers_and_deliveries_are_those_of_the_ordinary_way_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, uvloop: bool
) -> None:
    options = {"authenticator": Some()}
    ours = talk(tmp_path / "a", durability, uvloop, monkeypatch, True, **options)
    theirs = talk(tmp_path / "b", durability, uvloop, monkeypatch, False, **options)
    assert ours.told == theirs.told
    assert ours.kept == theirs.kept
    assert ours.left == theirs.left
    assert ours.direct["acks"] >= 12, "the way that is compared was gone"
    assert ours.direct["deliveries"] >= 8
    assert theirs.direct == {"acks": 0, "deliveries": 0}


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(f"embedded://{tmp_path / 'store'}", uvloop=request.param == "uvloop") as running:
        yield running


@contextlib.contextmanager
def subscribed(broker: RunningBroker, durability: str) -> Iterator[tuple[Wire, Wire]]:
    """A publisher and a consumer of a queue of which everything is known that is to be."""
    with broker.client(timeout_s=WAIT_S) as client, Wire(broker.port) as publisher, Wire(broker.port) as consumer:
        for name in (durability, "closed"):
            client.ask(requests.create_queue(name, {"shards": 2, "durability": durability, "codec": "raw"}))
        publisher.greet(instance="publisher")
        consumer.greet(instance="consumer")
        warm(broker, consumer, durability)
        yield publisher, consumer


@pytest.mark.parametrize("durability", ["none", "sync"])
def test_a_lone_message_takes_no_turn_to_be_delivered_and_acknowledged(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    planned: list[str] = []
    with subscribed(broker, durability) as (publisher, consumer):
        application = broker.broker.applications[0]
        store: Any = application.store
        settle(store)
        monkeypatch.setattr(type(application.turns), "_run", lambda self: planned.append("turn"))
        monkeypatch.setattr(
            type(broker.broker.context.flushes), "_flush_planned_ones", lambda self: planned.append("flush")
        )
        before = broker.on_loop(lambda: application.turns.at_once)
        with resting(store):
            for number in range(8):
                publisher.send(Command.SEND, number, pack_send(durability.encode(), 0, 0, record(number)))
                assert consumer.receive()[:2] == (Command.DELIVER, _SUBSCRIPTION)
                assert publisher.receive()[:2] == (Command.SEND_ACK, number)
                consumer.send(Command.ACK, 10 + number, ack(durability, (0, range(1 + number, 2 + number))))
                assert consumer.receive() == (Command.RESULT, 10 + number, pack(1))
        assert broker.on_loop(lambda: application.turns.at_once) == before + 16
        assert planned == []
        monkeypatch.undo()


@pytest.mark.parametrize("command", [Command.ACK, Command.DELETE])
def test_what_could_not_be_flushed_is_held_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """And its consumer is told."""
    real, failing = writes._Unflushed.flush, threading.Event()

    def flush(self: Any) -> None:
        if failing.is_set():
            raise StoreFailedError("planted")
        real(self)

    monkeypatch.setattr(writes._Unflushed, "flush", flush)
    with subscribed(broker, "sync") as (publisher, consumer):
        publisher.send(Command.SEND, 3, pack_send(b"sync", 0, 0, record(1)))
        assert consumer.receive()[0] == Command.DELIVER
        assert publisher.receive()[0] == Command.SEND_ACK
        (held,) = (session.held for session in broker.broker.sessions if session.instance == "consumer")
        assert broker.on_loop(lambda: held.runs("sync")) == [(0, 1, 2)]
        failing.set()
        consumer.send(command, 4, ack("sync", (0, range(1, 2))))
        failure = consumer.failure()
        assert (failure.code, "planted" in failure.message) == ("store_failed", True)
        assert broker.on_loop(lambda: held.runs("sync")) == [(0, 1, 2)]
        failing.clear()


def test_what_a_store_cannot_do_at_once_goes_the_ordinary_way(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another process holds the store: the loop does not wait for it, and the message stays held until it is retired."""
    with subscribed(broker, "none") as (publisher, consumer):
        publisher.send(Command.SEND, 3, pack_send(b"none", 0, 0, record(1)))
        assert consumer.receive()[0] == Command.DELIVER
        with held_by_another(tmp_path / "store", "none") as held:
            consumer.send(Command.ACK, 4, ack("none", (0, range(1, 2))))
            consumer.send(Command.PING, 5)
            assert consumer.receive()[:2] == (Command.PONG, 5)
            assert held()
        assert consumer.receive() == (Command.RESULT, 4, pack(1))


def test_an_acknowledgement_that_is_lost_with_its_connection_is_carried_out_all_the_same(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    real: Callable[[Any], None] = writes._Unflushed.flush
    with subscribed(broker, "sync") as (publisher, consumer):
        publisher.send(Command.SEND, 3, pack_send(b"sync", 0, 0, record(1)))
        assert consumer.receive()[0] == Command.DELIVER
        assert publisher.receive()[0] == Command.SEND_ACK
        turns = broker.broker.applications[0].turns
        broker.on_loop(lambda: setattr(turns, "_flush_s", 1.0))  # as on a slow disk: a thread waits for it

        def flush(self: Any) -> None:
            assert go.wait(WAIT_S)
            real(self)

        monkeypatch.setattr(writes._Unflushed, "flush", flush)
        consumer.send(Command.ACK, 4, ack("sync", (0, range(1, 2))))
        eventually(lambda: broker.on_loop(lambda: turns._flushing))
        sessions = broker.broker.sessions
        consumer.close()
        eventually(lambda: broker.on_loop(lambda: all(one.instance != "consumer" for one in sessions)))
        go.set()
        eventually(lambda: broker.on_loop(lambda: turns.idle))
        with broker.client(timeout_s=WAIT_S) as client:
            info = client.ask(requests.queue_info("sync"))
        assert (info["pending"], info["in_flight"]) == (0, 0)
