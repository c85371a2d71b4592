"""The buffered publisher over a broker: several loads on their way, in order whatever happens to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.machine import BrokerMachine
from ignis.broker.protocol.payloads import pack_send_ack
from ignis.config import PublisherSettings
from ignis.errors import ConnectionLostError, DrainingError, StoreFullError
from ignis.magazine import Magazine
from ignis.message import BodyCodec
from ignis.native import Receipt, Record, encode_frame
from ignis.native.wire import unpack_send_batch
from ignis.publisher import Publisher
from ignis.storage import open_store
from ignis.storage.base import Store
from tests.integration.broker.test_broker_clients import Puppet
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration

IN_FLIGHT = 3


class Held:
    """A puppet's loads: kept until the test answers them."""

    def __init__(self) -> None:
        self.open: list[tuple[int, list[bytes]]] = []
        self.stored: list[bytes] = []

    def script(self, command: int, request_id: int, payload: bytes) -> bytes:
        if command != Command.SEND_BATCH:
            return encode_frame(Command.RESULT, request_id, pack(None))
        _, _, batches = unpack_send_batch(payload)
        self.open.append((request_id, [Record(one).body for _, batch in batches for one in batch.records()]))
        return b""

    def answer(self, refused: Exception | None = None) -> bytes:
        """The oldest."""
        request_id, bodies = self.open.pop(0)
        if refused is not None:
            return BrokerMachine.error_frame(request_id, refused)
        self.stored += bodies
        return encode_frame(Command.SEND_ACK, request_id, pack_send_ack([(0, 1, len(bodies))]))


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def puppet(held: Held) -> Iterator[Puppet]:
    with Puppet(held.script) as one:
        yield one


@pytest.fixture
def store(puppet: Puppet) -> Iterator[Store]:
    with open_store(f"ignis://127.0.0.1:{puppet.port}", timeout_s=WAIT_S, retry_wait_s=0.01) as one:
        yield one


@pytest.fixture
def publisher(store: Store) -> Iterator[Publisher[bytes]]:
    magazine = Magazine(store, "m", BodyCodec(bytes), 1, None, "none", 1 << 20)
    with Publisher(magazine, PublisherSettings(loads_in_flight=IN_FLIGHT, max_batch=1)) as one:
        yield one


def send(publisher: Publisher[bytes], count: int) -> list[Receipt]:
    """All are there before the second is taken: who has a load under way and finds nothing more waits for its answer."""
    drain, sent = publisher._drain, threading.Event()

    def drain_all(*arguments: Any) -> Any:
        assert sent.wait(WAIT_S)
        return drain(*arguments)

    publisher._drain = drain_all  # type: ignore[method-assign]
    receipts = [publisher.send(str(number).encode()) for number in range(count)]
    sent.set()
    return receipts


def when(condition: Callable[[], bool]) -> None:
    eventually(condition)


def test_so_many_are_on_their_way_and_no_more(publisher: Publisher[bytes], puppet: Puppet, held: Held) -> None:
    receipts = send(publisher, 5)
    when(lambda: len(held.open) == IN_FLIGHT)
    connection = puppet.connections[-1]
    connection.sendall(held.answer())
    assert receipts[0].result(WAIT_S)
    when(lambda: len(held.open) == IN_FLIGHT)
    assert not receipts[1].done()
    while len(held.stored) < 5:
        when(lambda: bool(held.open))
        connection.sendall(held.answer())
    for receipt in receipts:
        assert receipt.result(WAIT_S)
    assert held.stored == [b"0", b"1", b"2", b"3", b"4"]


def test_a_refused_one_fails_alone(publisher: Publisher[bytes], puppet: Puppet, held: Held) -> None:
    receipts = send(publisher, 3)
    when(lambda: len(held.open) == 3)
    frames = held.answer(), held.answer(StoreFullError("no room")), held.answer()
    puppet.connections[-1].sendall(b"".join(reversed(frames)))  # in another order
    assert receipts[0].result(WAIT_S)
    with pytest.raises(StoreFullError):
        receipts[1].result(WAIT_S)
    assert receipts[2].result(WAIT_S)
    with pytest.raises(ignis.errors.PublishError):
        publisher.close()


def test_what_was_refused_because_the_broker_drains_is_sent_again_in_order(
    publisher: Publisher[bytes], puppet: Puppet, held: Held
) -> None:
    receipts = send(publisher, 4)
    when(lambda: len(held.open) == IN_FLIGHT)
    refused = b"".join(held.answer(DrainingError("the broker is shutting down")) for _ in range(IN_FLIGHT))
    puppet.connections[-1].sendall(refused)
    while len(held.stored) < 4:
        when(lambda: bool(held.open))
        puppet.connections[-1].sendall(held.answer())
    for receipt in receipts:
        assert receipt.result(WAIT_S)
    assert held.stored == [b"0", b"1", b"2", b"3"]
    assert len(puppet.connections) > 1


def test_a_broker_that_has_said_meanwhile_that_it_goes_is_sent_nothing(
    publisher: Publisher[bytes], puppet: Puppet, held: Held
) -> None:
    """It is read by who is about to send, behind the look whether the connection is of use."""
    for number in range(3):
        receipt = publisher.send(str(number).encode())
        when(lambda: len(held.open) == 1)
        puppet.connections[-1].sendall(held.answer())
        assert receipt.result(WAIT_S)
        puppet.connections[-1].sendall(encode_frame(Command.DISCONNECT, 0, pack(None)))
        time.sleep(0.05)  # so that the client looks before it sends
    assert held.stored == [b"0", b"1", b"2"]
    assert len(puppet.connections) == 3


def test_what_was_on_a_lost_connection_is_in_doubt(publisher: Publisher[bytes], puppet: Puppet, held: Held) -> None:
    receipts = send(publisher, IN_FLIGHT)
    when(lambda: len(held.open) == IN_FLIGHT)
    held.open.clear()
    puppet.connections[-1].shutdown(2)
    for receipt in receipts:
        with pytest.raises(ConnectionLostError) as found:
            receipt.result(WAIT_S)
        assert found.value.sent
    again = publisher.send(b"again")
    when(lambda: len(held.open) == 1)
    puppet.connections[-1].sendall(held.answer())
    assert again.result(WAIT_S)
    with pytest.raises(ignis.errors.PublishError):
        publisher.close()


def test_keys_keep_their_order_while_brokers_come_and_go(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    first = RunningBroker(url, settings={"drain_timeout_s": 1})
    port = first.port
    brokers = [first]

    def change() -> None:
        for _ in range(3):
            stopped.wait(0.1)
            brokers[-1].stop()
            brokers.append(RunningBroker(url, at_port=port, settings={"drain_timeout_s": 1}))

    stopped = threading.Event()
    changing = threading.Thread(target=change)
    settings = {"timeout_s": WAIT_S, "connect_timeout_s": WAIT_S, "retry_wait_s": 0.01, "max_retry_wait_s": 0.05}
    try:
        with ignis.Ignis(f"ignis://127.0.0.1:{port}", store=settings) as app:
            queue = app.queue("orders", bytes, shards=3, durability="none")
            publisher = queue.publisher(max_batch=20, capacity=256)
            changing.start()
            receipts = []
            number = 0
            while changing.is_alive() or number < 2_000:
                receipts.append(publisher.send(str(number).encode(), key=str(number % 7)))
                number += 1
            publisher.flush()
            stored = [one for one, receipt in enumerate(receipts) if not failed(receipt)]
            try:
                publisher.close()
            except ignis.errors.PublishError:
                assert len(stored) < number  # in doubt, when a connection was cut off under them
    finally:
        stopped.set()
        changing.join(WAIT_S)
        brokers[-1].stop()
    with open_store(url) as store:
        rows = store.magazines.scan("orders", limit=10 * number)
        by_key: dict[bytes, list[int]] = {}
        for _, _, data in rows:
            assert data is not None
            by_key.setdefault(Record(data).key, []).append(int(Record(data).body))
        assert sorted(by_key) == [str(key).encode() for key in range(7)]
        for numbers in by_key.values():
            assert numbers == sorted(numbers)
        assert {one for many in by_key.values() for one in many} >= set(stored)


def failed(receipt: Receipt) -> bool:
    try:
        receipt.result(WAIT_S)
    except ConnectionLostError:
        return True
    return False
