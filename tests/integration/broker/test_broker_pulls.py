"""Pulls that do not wait, or whose time is over: an empty answer means that nothing was there to be claimed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.payloads import Consume
from ignis.errors import DrainingError, StoreTimeoutError
from ignis.native import encode_record
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire

pytestmark = pytest.mark.integration


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, memory_url: str) -> Iterator[RunningBroker]:
    """On both event loops."""
    with RunningBroker(memory_url, uvloop=request.param == "uvloop") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[SyncClient]:
    with broker.client(timeout_s=WAIT_S) as one:
        one.ask(requests.create_queue("q", {"shards": 4, "codec": "raw"}))
        yield one


def publish(client: SyncClient, count: int) -> None:
    for number in range(count):
        client.ask(requests.send("q", encode_record(b"%d" % number)))


class Gate:
    """Stands in front of the claims that threads of the store's make."""

    def __init__(self, broker: RunningBroker) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        magazines = broker.broker.applications[0].store.magazines
        fire: Callable[..., Any] = magazines.fire

        def gated(*args: Any, **options: Any) -> Any:
            if self.failure is not None:
                raise self.failure
            found = fire(*args, **options)
            if threading.current_thread().name.startswith("ignis-broker-store"):
                self.reached.set()
                assert self.opened.wait(WAIT_S)
            return found

        magazines.fire = gated  # type: ignore[method-assign]


def by_thread(broker: RunningBroker) -> None:
    """The next claim is a thread's, as it is now and then."""
    broker.on_loop(lambda: [pump.look() for pump in broker.pumps()])


def turns(broker: RunningBroker) -> None:
    """The event loop has gone round a few times."""
    for _ in range(5):
        broker.on_loop(lambda: None)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def test_the_claim_of_a_thread_is_waited_for(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 3)
    gate = Gate(broker)
    thread, found = in_thread(lambda: client.consume("q", 10))
    assert gate.reached.wait(WAIT_S)
    turns(broker)
    assert not found
    gate.opened.set()
    thread.join(WAIT_S)
    assert [one.total() for one in found] == [3]


def test_so_is_the_claim_under_way_for_another(client: SyncClient, broker: RunningBroker) -> None:
    """It was begun before anything was there."""
    gate = Gate(broker)
    with broker.client(timeout_s=WAIT_S) as other:
        first, nothing = in_thread(lambda: other.consume("q", 10))
        assert gate.reached.wait(WAIT_S)
        publish(client, 3)
        second, found = in_thread(lambda: client.consume("q", 10))
        eventually(lambda: broker.on_loop(lambda: sum(pump.consumers for pump in broker.pumps())) == 2)
        turns(broker)
        gate.opened.set()
        for thread in (first, second):
            thread.join(WAIT_S)
    assert sum(one.total() for one in [*nothing, *found]) == 3


def test_time_that_runs_out_during_a_claim(client: SyncClient, broker: RunningBroker) -> None:
    client.consume("q", 1)
    gate = Gate(broker)
    thread, found = in_thread(lambda: client.consume("q", 10, wait_s=0.2))
    eventually(lambda: broker.on_loop(lambda: sum(pump.consumers for pump in broker.pumps())) == 1)
    with broker.client(timeout_s=WAIT_S) as other:
        by_thread(broker)
        assert gate.reached.wait(WAIT_S)
        publish(other, 3)
        eventually(lambda: broker.on_loop(lambda: all(one.due for pump in broker.pumps() for one in pump._pulls)))
        turns(broker)
        assert not found
        gate.opened.set()
        thread.join(WAIT_S)
        # Its own claim had begun before anything was there: what matters is that nothing is lost or stuck.
        rest = other.consume("q", 10)
    assert [one.total() for one in found] == [3 - rest.total()]


def test_several_at_once_are_all_answered(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 3)
    gate = Gate(broker)
    with Wire(broker.port) as wire:
        wire.greet()
        for number in range(10, 14):
            wire.send(Command.CONSUME, number, pack(Consume("q", 3, 0)))
        assert gate.reached.wait(WAIT_S)
        gate.opened.set()
        answers = {wire.receive()[:2] for _ in range(4)}
    assert answers == {(Command.DELIVER, number) for number in range(10, 14)}


def test_a_claim_that_fails_is_no_empty_answer(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 1)
    gate = Gate(broker)
    gate.opened.set()
    gate.failure = StoreTimeoutError("fire", 10, "a setting")
    with pytest.raises(StoreTimeoutError):
        client.consume("q", 1)
    gate.failure = None
    assert client.consume("q", 1).total() == 1


def test_a_broker_that_ends_does_not_say_that_nothing_is_there(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 3)
    gate = Gate(broker)
    with Wire(broker.port) as wire:
        wire.greet()
        wire.send(Command.CONSUME, 10, pack(Consume("q", 10, 0)))
        assert gate.reached.wait(WAIT_S)
        broker.broker.request_stop()
        failure = wire.failure()
        gate.opened.set()
    assert failure.code == DrainingError.code


def test_a_drain_by_coroutines_leaves_nothing(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 200)

    async def drain() -> int:
        count = 0
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port)) as one:
            while found := (await one.consume("q", 7)).total():
                count += found
                if count % 3 == 0:
                    await asyncio.to_thread(by_thread, broker)
        return count

    assert asyncio.run(drain()) == 200
