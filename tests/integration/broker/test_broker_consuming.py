"""Subscriptions, pulls, acknowledgements, and what becomes of messages whose connection is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.protocol.commands import Command
from ignis.errors import BadRequestError, ConfigError, QueueNotFoundError, TooManyRequestsError
from ignis.message import Message
from ignis.native import Record, encode_record
from ignis.storage.base import FireResult, Pointers
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, Wire, running

pytestmark = pytest.mark.integration


@pytest.fixture(params=["uvloop", "asyncio"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    """On both event loops."""
    url, settings = f"embedded://{tmp_path}/store", {"redeliver_after_s": 0.05}
    with RunningBroker(url, settings=settings, uvloop=request.param == "uvloop") as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[SyncClient]:
    with broker.client(timeout_s=WAIT_S) as one:
        one.ask(requests.create_queue("q", {"shards": 4, "durability": "none", "codec": "raw"}))
        yield one


def publish(client: SyncClient, *bodies: str, queue: str = "q") -> None:
    for body in bodies:
        client.ask(requests.send(queue, encode_record(body.encode())))


def texts(result: FireResult | None) -> list[str]:
    assert result is not None
    return [Record(record).body.decode() for claim in result.claims for record in claim.records if record is not None]


def places(result: FireResult) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for claim in result.claims:
        found.setdefault(claim.shard, []).extend(claim.pointers)
    return found


def info(client: SyncClient) -> dict[str, int]:
    return client.ask(requests.queue_info("q"))


def test_a_pull_gets_what_is_there_and_acknowledges_it(client: SyncClient) -> None:
    publish(client, "a", "b", "c")
    seen: list[str] = []
    while len(seen) < 3:
        found = client.consume("q", 2, wait_s=WAIT_S)
        seen += texts(found)
        assert client.ack("q", places(found)) == found.total()
    assert sorted(seen) == ["a", "b", "c"]
    assert client.consume("q", 2).claims == []
    assert (info(client)["pending"], info(client)["in_flight"]) == (0, 0)


def test_a_pull_waits_for_the_next_message(client: SyncClient, broker: RunningBroker) -> None:
    found: list[list[str]] = []
    with broker.client(timeout_s=WAIT_S) as other:
        thread = threading.Thread(target=lambda: found.append(texts(other.consume("q", 1, wait_s=WAIT_S))))
        thread.start()
        eventually(lambda: broker.on_loop(lambda: sum(pump.consumers for pump in broker.pumps())))
        publish(client, "late")
        thread.join(WAIT_S)
    assert found == [["late"]]


def test_credit_bounds_what_is_unacknowledged(client: SyncClient) -> None:
    publish(client, *(str(number) for number in range(20)))
    with client.subscribe("q", credit=5) as subscription:
        held: list[FireResult] = []
        while sum(one.total() for one in held) < 5:
            delivery = subscription.receive()
            assert delivery is not None
            held.append(delivery)
        assert sum(one.total() for one in held) == 5
        assert subscription.receive(0.2) is None
        assert info(client)["in_flight"] == 5
        first = held.pop(0)
        assert subscription.ack(places(first)) == first.total()
        more = subscription.receive()
        assert more is not None
        assert more.total() <= first.total()
        subscription.set_credit(20)
        count = more.total() + sum(one.total() for one in held)
        while count < 20 - first.total():
            delivery = subscription.receive()
            assert delivery is not None
            count += delivery.total()
        assert count == 20 - first.total()


def test_consumers_compete(client: SyncClient, broker: RunningBroker) -> None:
    seen: Counter[str] = Counter()
    per_client: list[int] = []
    lock, done = threading.Lock(), threading.Event()

    def consume() -> None:
        mine = 0
        with broker.client(timeout_s=WAIT_S) as one, one.subscribe("q", credit=3) as subscription:
            while not done.is_set():
                found = subscription.receive(0.05)
                if found is not None:
                    assert subscription.ack(places(found)) == found.total()
                    mine += found.total()
                    with lock:
                        seen.update(texts(found))
                        if len(seen) == 300:
                            done.set()
        per_client.append(mine)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    publish(client, *(str(number) for number in range(300)))
    for thread in threads:
        thread.join(WAIT_S)
    assert seen == Counter(str(number) for number in range(300))
    assert sum(per_client) == 300


def test_what_a_lost_connection_held_is_delivered_again(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, "a", "b")
    lost = broker.client(timeout_s=WAIT_S)
    assert lost.consume("q", 2, wait_s=WAIT_S).total() >= 1
    assert info(client)["in_flight"] >= 1
    assert lost.connection is not None
    lost.connection.lose("cable cut")
    seen: list[str] = []
    while len(seen) < 2:
        found = client.consume("q", 2, wait_s=WAIT_S)
        seen += texts(found)
        client.ack("q", places(found))
    assert sorted(seen) == ["a", "b"]
    lost.close()


def test_a_client_that_comes_back_keeps_what_it_held(tmp_path: Path) -> None:
    settings = {"redeliver_after_s": 3_600}
    with RunningBroker(f"embedded://{tmp_path}/store", settings=settings) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        publish(client, "a")
        found = client.consume("q", 1, wait_s=WAIT_S)
        assert client.connection is not None
        client.connection.lose("cable cut")
        assert client.ack("q", places(found)) == 1
        assert client.connects == 2
        assert info(client)["in_flight"] == 0


def test_an_orderly_end_gives_back_at_once_or_not_at_all(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, "a")
    for give_back, pending in ((True, 1), (False, 0)):
        other = broker.client(timeout_s=WAIT_S)
        assert texts(other.consume("q", 1, wait_s=WAIT_S)) == ["a"]
        other.close(give_back=give_back)
        if give_back:
            eventually(lambda: info(client)["pending"] == 1)
        assert info(client)["pending"] == pending
    assert info(client)["in_flight"] == 1


def test_an_acknowledgement_needs_the_claim(client: SyncClient, broker: RunningBroker) -> None:
    publish(client, "a")
    found = client.consume("q", 1, wait_s=WAIT_S)
    with broker.client(timeout_s=WAIT_S) as other:
        assert other.ack("q", places(found)) == 0
        assert other.ask(requests.nack("q", places(found))) == 0
        assert info(client)["in_flight"] == 1
    assert client.ack("q", places(found)) == 1
    assert client.ack("q", places(found)) == 0


def test_nack_gives_back(client: SyncClient) -> None:
    publish(client, "a")
    for delay_s in (0, 0.05):
        found = client.consume("q", 1, wait_s=WAIT_S)
        assert texts(found) == ["a"]
        assert client.ask(requests.nack("q", places(found), delay_s=delay_s)) == 1
    found = client.consume("q", 1, wait_s=WAIT_S)
    assert texts(found) == ["a"]
    assert client.ack("q", places(found)) == 1


def test_delayed_nacks_of_a_user_are_bounded_and_count_until_their_time(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with RunningBroker(url, settings={"max_waiting_per_user": 2}) as broker, broker.client() as client:
        waiting = broker.broker.context.waiting
        client.ask(requests.create_queue("q", {"shards": 4, "durability": "none", "codec": "raw"}))
        publish(client, "a", "b", "c")
        with broker.client() as other:
            first, second, found = (other.consume("q", 1, wait_s=WAIT_S) for _ in range(3))
            for one in (first, second):
                assert other.ask(requests.nack("q", places(one), delay_s=3_600)) == 1
            with pytest.raises(TooManyRequestsError, match=r"broker\.max_waiting_per_user"):
                other.ask(requests.nack("q", places(found), delay_s=0.01))
            assert other.ack("q", places(found)) == 1, "it holds what it could not give back"
        assert broker.on_loop(lambda: sum(waiting._counts.values())) == 2, "its connection is gone"
        with pytest.raises(TooManyRequestsError):
            client.consume("q", 1, wait_s=WAIT_S)
    with RunningBroker(url, settings={"max_waiting_per_user": 2}) as broker, broker.client() as client:
        waiting = broker.broker.context.waiting
        for _ in range(3):
            assert client.ask(requests.nack("q", places(client.consume("q", 2, wait_s=WAIT_S)), delay_s=0.01)) == 2
            eventually(lambda: not broker.on_loop(lambda: sum(waiting._counts.values())))
        eventually(lambda: info(client)["pending"] == 2)


def test_nack_sets_aside_with_a_reason(client: SyncClient) -> None:
    publish(client, "a")
    found = client.consume("q", 1, wait_s=WAIT_S)
    assert client.ask(requests.nack("q", places(found), sideline=True, reason="exception", error="no such order")) == 1
    assert (info(client)["sideline"], info(client)["in_flight"]) == (1, 0)
    aside = client.consume("q_SIDELINE", 1, wait_s=WAIT_S)
    record = aside.claims[0].records[0]
    assert record is not None
    message = Message(Record(record))
    assert (message.reason, message.error, message.failures, message.body) == ("exception", "no such order", 1, b"a")
    with pytest.raises(BadRequestError, match="sideline"):
        client.ask(requests.nack("q_SIDELINE", places(aside), sideline=True))
    with pytest.raises(BadRequestError, match="reason"):
        client.ask(requests.nack("q", {0: [1]}, sideline=True, reason="mood")) or client.ask(
            requests.nack("q_SIDELINE", places(aside), sideline=True, reason="mood")
        )


def test_delayed_messages_are_not_lost_with_the_broker(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with RunningBroker(url) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        publish(client, "a")
        found = client.consume("q", 1, wait_s=WAIT_S)
        assert client.ask(requests.nack("q", places(found), delay_s=3_600)) == 1
        assert client.consume("q", 1).claims == []
    with RunningBroker(url) as broker, broker.client() as client:
        assert texts(client.consume("q", 1, wait_s=WAIT_S)) == ["a"]


def test_one_subscription_per_queue_and_connection(client: SyncClient) -> None:
    with client.subscribe("q"), pytest.raises(BadRequestError, match="already"):
        client.subscribe("q")
    with client.subscribe("q"):
        pass
    with pytest.raises(QueueNotFoundError):
        client.subscribe("nowhere")
    with pytest.raises(QueueNotFoundError):
        client.consume("nowhere")
    for credit in (-1, 1 << 30):
        with pytest.raises(ConfigError, match="credit"):
            client.subscribe("q", credit=credit)


def test_a_queue_that_is_deleted_ends_its_subscriptions(client: SyncClient, broker: RunningBroker) -> None:
    with broker.client(timeout_s=WAIT_S) as other:
        subscription = other.subscribe("q")
        assert client.ask(requests.delete_queue("q", False))
        publish_fails = pytest.raises(QueueNotFoundError)
        with publish_fails:
            publish(client, "a")
        with pytest.raises(QueueNotFoundError):
            eventually(lambda: subscription.receive(0.2))


def test_clients_that_send_to_a_queue_whose_record_went_are_refused(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the queue's own time to live, which is the default: nobody consumes what has no queue."""
    monkeypatch.setattr("ignis.broker.server.queue_facts._RECORD_S", 0.05)
    publish(client, "a")
    with ignis.Ignis(broker.broker.url) as behind:
        behind.store.queues.remove("q")

        def refused() -> bool:
            try:
                publish(client, "b")
            except QueueNotFoundError:
                return True
            return False

        eventually(refused)


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(client: SyncClient, broker: RunningBroker) -> None:
    """Whoever waits, by subscription or by pull; what was delivered before can be acknowledged."""
    app = ignis.Ignis(broker.url)
    with app, broker.client(timeout_s=WAIT_S) as other:
        subscription = other.subscribe("q")
        publish(client, "a")
        first = subscription.receive(WAIT_S)
        assert texts(first) == ["a"]
        app.queue("q", bytes).pause()
        assert info(client)["paused"] is True
        publish(client, "b")
        assert client.consume("q", 5, wait_s=0.1).claims == []
        publish(client, "c")
        assert subscription.receive(0.2) is None
        assert first is not None
        assert other.ack("q", places(first)) == 1
        assert (info(client)["pending"], info(client)["in_flight"]) == (2, 0)
        app.queue("q").resume()
        got: list[str] = []
        while len(got) < 2:
            found = subscription.receive(WAIT_S)
            assert found is not None
            got += texts(found)
            other.ack("q", places(found))
        assert sorted(got) == ["b", "c"]
        assert info(client)["paused"] is False


def test_a_pause_that_another_process_stored_is_found_out(
    broker: RunningBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the broker: in the store behind it."""
    for name in ("queue_facts._RECORD_S", "application._PAUSES_S"):
        monkeypatch.setattr(f"ignis.broker.server.{name}", 0.05)
    with ignis.Ignis(broker.broker.url) as behind, broker.client(timeout_s=WAIT_S) as other:
        subscription = other.subscribe("q")
        behind.queue("q", bytes).pause()

        def paused() -> bool:
            publish(client, "a")
            found = subscription.receive(0.05)
            if found is not None:
                other.ack("q", places(found))
            return found is None and info(client)["pending"] > 0

        eventually(paused)
        behind.queue("q").resume()
        assert subscription.receive(WAIT_S) is not None


def test_coroutines(broker: RunningBroker) -> None:
    async def run() -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S}) as client:
            await client.ask(requests.create_queue("a", {"shards": 3, "durability": "none"}))
            subscription = await client.subscribe("a", credit=50)
            placed = await asyncio.gather(*(client.send("a", encode_record(str(n).encode())) for n in range(200)))
            assert len(set(placed)) == 200
            seen: Counter[str] = Counter()
            async for found in subscription:
                seen.update(texts(found))
                assert await subscription.ack(places(found)) == found.total()
                if len(seen) == 200:
                    await subscription.close()
            assert seen == Counter(str(n) for n in range(200))
            assert (await client.ask(requests.queue_info("a")))["in_flight"] == 0

    asyncio.run(run())


def test_looks_for_what_is_not_held_come_one_after_the_other(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names what it does not hold takes one thread of the store's, whatever it names and however often."""
    with running(memory_url) as broker:
        with broker.client() as client:
            client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw"}))
        go, names, under_way = threading.Event(), 1 << 20, []
        magazines = broker.broker.applications[0].store.magazines
        renew, call = magazines.renew_claims, broker.broker.context.threads.call

        def held_up(magazine: str, pointers: Pointers, owner: str, **how: Any) -> dict[int, Sequence[int]]:
            assert go.wait(WAIT_S)
            assert [len(many) for many in pointers.values()] == [names]
            return renew(magazine, pointers, owner, **how)

        def counted(work: Callable[..., Any], done: Callable[..., None], *rest: Any, **how: Any) -> None:
            under_way.append(work)
            call(work, done, *rest, **how)

        monkeypatch.setattr(magazines, "renew_claims", held_up)
        monkeypatch.setattr(broker.broker.context.threads, "call", counted)
        with Wire(broker.port) as wire:
            wire.greet()
            under_way.clear()
            for number in range(20):
                ask = requests.ack("q", {0: range(1, names + 1)})
                wire.send(ask.command, 10 + number, ask.payload)
            wire.send(Command.PING, 99)
            assert wire.receive()[1] == 99
            looks = [one for one in under_way if one.__name__ == "look"]
            go.set()
            assert len(looks) == 1
            answers = [wire.receive() for _ in range(20)]
            assert sorted(one[1] for one in answers) == list(range(10, 30))
            assert {requests.count_of(one[2]) for one in answers} == {0}
