"""Acknowledgements that nobody waits for, and what comes for those who have given up."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import msgspec
import pytest

from ignis.broker.client import requests, store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.pending_acks import MAX_PENDING
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.errors import ClosedError, ConnectionLostError, StoreFailedError, StoreTimeoutError
from ignis.native import PackedBatch, Record, encode_record
from ignis.storage.base import FireResult
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    url, settings = f"embedded://{tmp_path}/store", {"redeliver_after_s": 3_600}
    with RunningBroker(url, settings=settings, uvloop=request.param == "uvloop") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[SyncClient]:
    with broker.client(timeout_s=WAIT_S) as one:
        one.ask(requests.create_queue("q", {"shards": 2, "durability": "none", "codec": "raw"}))
        yield one


def publish(client: SyncClient, count: int) -> None:
    client.ask(
        requests.send_batch("q", [(0, PackedBatch.pack([encode_record(str(n).encode()) for n in range(count)]))])
    )


def texts(found: FireResult) -> list[str]:
    return [Record(one).body.decode() for claim in found.claims for one in claim.records if one is not None]


def run_in_loop(broker: RunningBroker, work: Coroutine[None, None, None]) -> None:
    """On an event loop of the broker's kind."""
    loop = broker.new_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(work, WAIT_S))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def come_true(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


def info(client: SyncClient) -> dict[str, int]:
    return client.ask(requests.queue_info("q"))


def refuse_deletes(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    application = next(iter(broker.broker.applications))

    def refuse(name: str, runs: object, done: object, failed: Callable[[Exception], None], **_: bool) -> None:
        failed(StoreFailedError("no deletes today"))

    def refuse_lone(name: str, ack: object) -> bool:
        raise StoreFailedError("no deletes today")

    monkeypatch.setattr(application.turns, "delete", refuse)
    monkeypatch.setattr(application.store.magazines, "try_delete_lone", refuse_lone)


def test_deliveries_are_acknowledged_without_waiting(client: SyncClient) -> None:
    publish(client, 1_000)
    seen: Counter[str] = Counter()
    with client.subscribe("q", credit=7) as subscription:
        while len(seen) < 1_000:
            found = subscription.receive()
            assert found is not None
            seen.update(texts(found))
            subscription.ack_nowait(requests.pointers_of(found))
        assert subscription.wait_acks() == 1_000
        assert subscription.wait_acks() == 0, "counted once"
    assert set(seen.values()) == {1}
    assert info(client)["in_flight"] == info(client)["pending"] == 0


def test_pulls_are_acknowledged_without_waiting(client: SyncClient) -> None:
    publish(client, 500)
    count = 0
    while count < 500:
        found = client.consume("q", 3, wait_s=WAIT_S)
        count += found.total()
        client.ack_nowait("q", requests.pointers_of(found))
    client.ack_nowait("q", {0: [1, 2]})  # not held any more
    assert client.wait_acks() == 500, "what was given back or done before does not count"


def test_unanswered_ones_are_bounded(client: SyncClient) -> None:
    publish(client, 4 * MAX_PENDING)
    found = client.consume("q", 4 * MAX_PENDING, wait_s=WAIT_S)
    assert client.connection is not None
    for claim in found.claims:
        for pointer in claim.pointers:
            client.ack_nowait("q", {claim.shard: [pointer]})
            assert client.connection.pending_acks.count <= MAX_PENDING
    assert client.wait_acks() == found.total()


def test_from_several_threads(client: SyncClient) -> None:
    publish(client, 400)
    handled: list[int] = []

    def work() -> None:
        while sum(handled) < 400:
            found = client.consume("q", 5, wait_s=0.05)
            if found.claims:
                client.ack_nowait("q", requests.pointers_of(found))
                handled.append(found.total())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert client.wait_acks() == sum(handled) == 400


def test_a_refusal_is_raised_by_the_next_one(
    client: SyncClient, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, 3)
    found = client.consume("q", 3, wait_s=WAIT_S)
    with monkeypatch.context() as patched:
        refuse_deletes(broker, patched)
        client.ack_nowait("q", {0: [1]})
        with pytest.raises(StoreFailedError, match="today"):
            client.wait_acks()
        client.ack_nowait("q", {0: [2]})
        assert client.connection is not None
        pending_acks = client.connection.pending_acks
        client.ping()
        eventually(lambda: client.ping() and pending_acks.count == 0)
        with pytest.raises(StoreFailedError):
            client.ack_nowait("q", {0: [3]})
    client.ack_nowait("q", {0: [1, 2, 3]})
    assert client.wait_acks() == found.total() == 3, "they were held all the time"


def test_closing_says_what_was_refused(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = broker.client(timeout_s=WAIT_S)
    client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
    publish(client, 1)
    client.consume("q", 1, wait_s=WAIT_S)
    refuse_deletes(broker, monkeypatch)
    client.ack_nowait("q", {0: [1]})
    with pytest.raises(StoreFailedError):
        client.close()
    assert client.closed


def test_a_lost_connection_leaves_them_in_doubt(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 1)
    found = client.consume("q", 1, wait_s=WAIT_S)
    connection = client.connection
    assert connection is not None
    with connection._lock:  # the answer cannot be given out before the end
        connection.machine.request(Command.ACK, b"", connection.pending_acks)
        connection.pending_acks.count += 1
    connection.lose("cable cut")
    with pytest.raises(ConnectionLostError, match="cable"):
        client.wait_acks()
    assert client.ack("q", requests.pointers_of(found)) == 1


def test_coroutines_do_not_wait_either(broker: RunningBroker) -> None:
    async def run() -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S}) as client:
            for name in ("a", "b"):
                await client.ask(requests.create_queue(name, {"shards": 2, "durability": "none"}))
                await asyncio.gather(*(client.send(name, encode_record(b"x")) for _ in range(150)))
            subscription = await client.subscribe("a", credit=3)
            count = 0
            while count < 150:
                found = await subscription.receive()
                assert found is not None
                count += found.total()
                await subscription.ack_nowait(requests.pointers_of(found))
            assert await subscription.wait_acks() == 150
            await subscription.close()
            while count < 300:
                pulled = await client.consume("b", 10, wait_s=WAIT_S)
                count += pulled.total()
                await client.ack_nowait("b", requests.pointers_of(pulled))
            await client.wait_acks()
            for name in ("a", "b"):
                figures = await client.ask(requests.queue_info(name))
                assert (figures["pending"], figures["in_flight"]) == (0, 0)

    run_in_loop(broker, run())


# -- who gives up


def test_what_comes_for_a_cancelled_pull_goes_back(client: SyncClient, broker: RunningBroker) -> None:
    async def run() -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S}) as giving_up:
            for _ in range(5):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(giving_up.consume("q", 10, wait_s=WAIT_S), 0.02)
            await asyncio.to_thread(publish, client, 3)
            # All of them are given to the pulls that nobody waits for, and come back.
            seen: list[str] = []
            while len(seen) < 3:
                found = await asyncio.to_thread(client.consume, "q", 1, WAIT_S)
                seen += texts(found)
                await asyncio.to_thread(client.ack, "q", requests.pointers_of(found))
            assert sorted(seen) == ["0", "1", "2"]

    run_in_loop(broker, run())
    assert info(client)["in_flight"] == 0


def test_what_comes_after_the_time_goes_back(client: SyncClient, broker: RunningBroker) -> None:
    with broker.client(timeout_s=WAIT_S) as late:
        late.ping()  # connecting is no part of the time
        with pytest.raises(StoreTimeoutError):
            late.ask(msgspec.structs.replace(requests.consume("q", 5, WAIT_S, 1 << 20), extra_s=0.0), 0.05)
        publish(client, 2)
        assert late.connection is not None
        machine = late.connection.machine
        eventually(lambda: late.ping() and machine.late_answers == 1)
        seen: list[str] = []
        while len(seen) < 2:
            found = client.consume("q", 2, wait_s=WAIT_S)
            seen += texts(found)
            client.ack("q", requests.pointers_of(found))
        eventually(lambda: late.ping() and machine.pending == 0)
        assert machine.late_answers == 1


def test_a_cancelled_subscription_holds_nothing(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, 20)

    async def run() -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S}) as giving_up:
            await giving_up.connect()
            for turns in range(12):
                task = asyncio.ensure_future(giving_up.subscribe("q", credit=2))
                for _ in range(2 + turns):  # before, between and after the answer and the first delivery
                    await asyncio.sleep(0.0005 * (turns % 3))
                if task.done():
                    await task.result().close()
                    continue
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await come_true(lambda: giving_up.pending == 0)
            await asyncio.to_thread(eventually, lambda: info(client)["in_flight"] == 0)
            assert (await giving_up.ask(requests.queue_info("q")))["pending"] == 20

    run_in_loop(broker, run())


# -- coroutines that come and go


def test_requests_under_way_end_with_their_client(broker: RunningBroker) -> None:
    async def run() -> None:
        client = AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": 10 * WAIT_S})
        await client.ask(requests.create_queue("q", {"shards": 1}))
        pulls = [asyncio.ensure_future(client.consume("q", 1, wait_s=10 * WAIT_S)) for _ in range(3)]
        await come_true(lambda: client.pending == 3)
        await client.close()
        found = await asyncio.wait_for(asyncio.gather(*pulls, return_exceptions=True), WAIT_S)
        assert [type(one) for one in found] == [ClosedError] * 3

    run_in_loop(broker, run())


def test_one_attempt_to_connect_serves_all_and_survives_a_cancelled_one(broker: RunningBroker) -> None:
    async def run() -> None:
        client = AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S})
        tasks = [asyncio.ensure_future(client.ask(store_requests.names())) for _ in range(20)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert [one for one in found[1:] if not isinstance(one, list)] == []
        assert client.connects == 1
        await client.close()

    run_in_loop(broker, run())


def test_closing_ends_an_attempt_to_connect() -> None:
    async def run() -> None:
        port = silent.getsockname()[1]
        client = AsyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": WAIT_S, "connect_timeout_s": WAIT_S})
        task = asyncio.ensure_future(client.ask(store_requests.names()))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ClosedError):
            await asyncio.wait_for(task, WAIT_S)

    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        asyncio.run(run())


def test_everybody_waits_for_a_connection_only_as_long_as_asked() -> None:
    async def run() -> None:
        port = silent.getsockname()[1]
        client = AsyncClient(BrokerAddress("127.0.0.1", port), {"timeout_s": 0.2, "connect_timeout_s": 0.2})
        asked = [client.ask(store_requests.names()) for _ in range(200)]
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), WAIT_S)
        assert all(isinstance(one, Exception) for one in found)
        await client.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        asyncio.run(run())


def test_a_client_outlives_its_event_loop(broker: RunningBroker) -> None:
    client = AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of a loop that ended under an open connection
        assert asyncio.run(client.ask(store_requests.names())) is not None
        assert asyncio.run(client.ask(store_requests.names())) is not None
        assert client.connects == 2
        asyncio.run(client.close())
        del client
        gc.collect()
    client = AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S})

    async def elsewhere() -> None:
        await client.ask(store_requests.names())
        with pytest.raises(ClosedError, match="event loop"):
            await asyncio.to_thread(asyncio.run, client.ask(store_requests.names()))
        await client.close()

    asyncio.run(elsewhere())
