"""A broker that is told to stop while its clients send: nothing of theirs ends in doubt, is lost, or is there twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.message import Record
from ignis.storage import open_store
from tests.support import WAIT_S
from tests.support.broker import RunningBroker, Wire

pytestmark = pytest.mark.integration

RESTARTS = 4
BETWEEN = 40
"""Messages of each thread between two restarts."""


class Sender(threading.Thread):
    """Publishes numbers until it is told to end, one call each or through a publisher."""

    def __init__(self, queue: ignis.Queue[bytes], name: str, *, ring: bool) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.failures: list[BaseException] = []
        self._queue = queue
        self._named = name
        self._ring = ring
        self._over = threading.Event()
        self._further = threading.Condition()

    def run(self) -> None:
        if not self._ring:
            for body in self._bodies():
                try:
                    self._queue.publish(body)
                except ignis.IgnisError as exc:
                    self.failures.append(exc)
            return
        receipts: list[ignis.Receipt] = []
        try:
            with self._queue.publisher(capacity=64) as publisher:
                receipts.extend(map(publisher.send, self._bodies()))
        except ignis.IgnisError as exc:
            self.failures.append(exc)
        for receipt in receipts:
            try:
                receipt.result(WAIT_S)
            except ignis.IgnisError as exc:
                self.failures.append(exc)

    def _bodies(self) -> Iterator[bytes]:
        while not self._over.wait(0.001):
            yield f"{self._named} {self.sent}".encode()
            with self._further:
                self.sent += 1
                self._further.notify_all()

    def go_on(self, count: int) -> None:
        """Returns when so many more are sent."""
        with self._further:
            until = self.sent + count
            assert self._further.wait_for(lambda: self.sent >= until, WAIT_S)

    def end(self) -> None:
        self._over.set()
        self.join(WAIT_S)
        assert not self.is_alive()


@pytest.mark.parametrize("uvloop", [True, pytest.param(False, marks=pytest.mark.long)], ids=["uvloop", "asyncio"])
def test_restarts_leave_nothing_in_doubt(tmp_path: Path, uvloop: bool) -> None:
    url = f"embedded://{tmp_path}/store"
    broker = RunningBroker(url, uvloop=uvloop)
    settings = {"timeout_s": WAIT_S, "connect_timeout_s": WAIT_S, "retry_wait_s": 0.01, "max_retry_wait_s": 0.05}
    try:
        with ignis.Ignis(broker.url, store=settings) as app, ignis.Ignis(broker.url, store=settings) as other:
            senders = [
                Sender(one.queue("orders", bytes, shards=2, durability="none"), name, ring=ring)
                for one, name, ring in ((app, "call", False), (app, "ring", True), (other, "else", False))
            ]
            for sender in senders:
                sender.start()
            for _ in range(RESTARTS):
                for sender in senders:
                    sender.go_on(BETWEEN)
                broker.stop()
                broker = RunningBroker(url, at_port=broker.port, uvloop=uvloop)
            for sender in senders:
                sender.end()
    finally:
        broker.stop()
    assert [failure for sender in senders for failure in sender.failures] == []
    with open_store(url) as store:
        rows = store.magazines.scan("orders", limit=sum(sender.sent for sender in senders) + 1)
        stored = Counter(bytes(Record(data).body) for _, _, data in rows if data is not None)
    assert stored == Counter(
        f"{name} {number}".encode()
        for sender, name in zip(senders, ("call", "ring", "else"), strict=True)
        for number in range(sender.sent)
    )


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_what_comes_while_a_broker_ends_is_answered_until_it_is_quiet(tmp_path: Path, uvloop: bool) -> None:
    with RunningBroker(f"embedded://{tmp_path}/store", uvloop=uvloop) as broker:
        wire = Wire(broker.port)
        wire.greet()
        broker.broker.request_stop()
        assert wire.receive()[:2] == (Command.DISCONNECT, 0)
        for request_id in range(2, 22):
            wire.send(Command.LIST_QUEUES, request_id, pack(None))
        for request_id in range(2, 22):
            wire.send(Command.PING, 100 + request_id)
        answers = [wire.receive() for _ in range(40)]
        assert sorted(found for _, found, _ in answers) == [*range(2, 22), *range(102, 122)]
        with pytest.raises(EOFError):
            wire.receive()
        # Half closed: what comes too late does not make the end an abort.
        wire.send(Command.PING, 200)
        with pytest.raises(EOFError):
            wire.receive()
        wire.sock.close()
