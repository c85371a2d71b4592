"""Delayed messages through a broker: put, looked for, cancelled and run now by its clients, and delivered when they are due."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ignis import Ignis
from ignis.broker.client import later_requests, requests, store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.async_client import AsyncClient
from ignis.cli import main
from ignis.errors import (
    ConfigError,
    DelayNotSupportedError,
    IgnisError,
    InvalidNameError,
    PermissionDeniedError,
    StoreFullError,
)
from ignis.native import ANY_SHARD, PackedBatch, encode_record
from ignis.native.wire import pack_pointers
from ignis.storage import open_store
from ignis.storage.embedded.magazines import EmbeddedMagazines
from ignis.storage.later import KeepsLater, later_of
from tests.contract.support import text
from tests.integration.broker.test_broker_permissions import Tokens
from tests.integration.broker.test_broker_process import BrokerProcess
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(f"embedded://{tmp_path}/store", settings={"max_outbound_bytes": 1 << 16}) as one:
        yield one


def places(found: list[Any]) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for one in found:
        out.setdefault(one.shard, []).append(one.pointer)
    return out


# -- delivery


@pytest.mark.parametrize("through_the_broker", [False, True])
@pytest.mark.parametrize("idle_s", [0.0, 2.0])
def test_a_consumer_of_the_broker_gets_what_comes_to_be_due(
    broker: RunningBroker, tmp_path: Path, idle_s: float, through_the_broker: bool
) -> None:
    got: list[str] = []
    publishing = broker.url if through_the_broker else f"embedded://{tmp_path}/store"
    with Ignis(broker.url) as consumer, Ignis(publishing) as publisher:
        queue = consumer.queue("jobs", str)
        queue.handler(got.append)
        queue.start()
        theirs = publisher.queue("jobs", str)
        theirs.publish("now")
        eventually(lambda: got == ["now"])
        time.sleep(idle_s)  # an idle consumer waits in another way
        theirs.publish("far", delay="1h")
        theirs.publish("near", delay=0.3)
        eventually(lambda: got == ["now", "near"])
        assert len(theirs.later) == len(queue.later) == 1


def test_never_before_its_time_by_the_store_of_the_broker(broker: RunningBroker, tmp_path: Path) -> None:
    """The client's own clock has no say."""
    early: list[float] = []
    handled: list[float] = []
    with Ignis(broker.url) as consumer, open_store(f"embedded://{tmp_path}/store") as store:
        queue = consumer.queue("jobs", float)

        @queue.handler
        def handle(due_s: float) -> None:
            now_s = store.now_s()
            handled.append(due_s)
            if now_s < due_s - 1e-3:
                early.append(due_s - now_s)

        queue.start()
        for number in range(20):
            delay_s = 0.01 + number / 100
            queue.publish(store.now_s() + delay_s, delay=delay_s)
        eventually(lambda: len(handled) == 20)
    assert early == []


def test_magazines_that_share_a_thread_come_to_be_due_too(tmp_path: Path) -> None:
    """A broker has so many threads that sleep in the store; whatever is beyond them shares one more, which does not."""
    names = [f"q{number}" for number in range(4)]
    with (
        RunningBroker(f"embedded://{tmp_path}/store", settings={"watch_threads": 1}) as broker,
        broker.client() as client,
    ):
        subscriptions = {}
        for name in names:
            client.ask(requests.create_queue(name, {"shards": 2, "codec": "raw"}))
            subscriptions[name] = client.subscribe(name, 8)
        for name in names:
            client.send_later(name, encode_record(b"far"), 3600)
            client.send_later(name, encode_record(name.encode()), 0.2)
        for name in names:
            delivered = subscriptions[name].receive(WAIT_S)
            assert delivered is not None, name
            assert [text(one) for claim in delivered.claims for one in claim.records] == [name]


def test_a_pull_that_waits_gets_what_comes_to_be_due(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.ask(requests.create_queue("jobs", {"shards": 4, "codec": "raw"}))
        client.send_later("jobs", encode_record(b"soon"), 0.1)
        found = client.consume("jobs", 10, WAIT_S)
        assert [text(one) for claim in found.claims for one in claim.records] == ["soon"]
        assert client.ack("jobs", requests.pointers_of(found)) == 1
        # And one that is put while the pull waits, through another connection.
        with broker.client() as other:
            client.send_later("jobs", encode_record(b"far"), 3600)
            subscription = client.subscribe("jobs", 8)
            other.send_later("jobs", encode_record(b"near"), 0.1)
            delivered = subscription.receive(WAIT_S)
            assert delivered is not None
            assert [text(one) for claim in delivered.claims for one in claim.records] == ["near"]


def test_what_is_run_now_is_delivered_at_once(broker: RunningBroker) -> None:
    with broker.client() as client, broker.client() as other:
        client.ask(requests.create_queue("jobs", {"shards": 4, "codec": "raw"}))
        placed = other.send_later("jobs", encode_record(b"far"), 3600)
        subscription = client.subscribe("jobs", 8)
        assert other.run_now("jobs", {placed[0]: [placed[1]]}) == 1
        delivered = subscription.receive(WAIT_S)
        assert delivered is not None
        assert [text(one) for claim in delivered.claims for one in claim.records] == ["far"]
        assert other.run_now("jobs", {placed[0]: [placed[1]]}) == 0


def test_what_waits_outlives_a_broker_that_is_killed(tmp_path: Path) -> None:
    """With the answer it is as durable as any message. Who waited goes on at the next broker."""
    url = f"embedded://{tmp_path}/store"
    got: list[str] = []
    with BrokerProcess(url) as first, Ignis(f"ignis://127.0.0.1:{first.port}") as app:
        queue = app.queue("jobs", str)
        queue.handler(got.append)
        queue.start()
        queue.publish("now")
        eventually(lambda: got == ["now"])
        queue.publish_many([f"m{number}" for number in range(50)], delay=1)
        far = queue.publish("far", delay="1h")
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        with BrokerProcess(url, first.port):
            # On a slow machine some were delivered before, and may come twice.
            eventually(lambda: set(got) == {"now", *(f"m{number}" for number in range(50))})
            assert [one.id for one in queue.later] == [far.id]


# -- what users have


def test_queue_later_through_the_broker(broker: RunningBroker) -> None:
    with Ignis(broker.url) as app:
        queue = app.queue("jobs", str)
        ids = [queue.publish(f"m{number}", key="k", delay=f"{number + 1}h").id for number in range(4)]
        at = datetime.now(timezone.utc) + timedelta(days=1)
        ids += queue.publish_many(["x", "y"], at=at)
        assert len(queue.later) == queue.stats()["delayed"] == 6
        found = queue.later.find(ids[2])
        assert found is not None and found.message is not None
        assert found.message.key == "k"
        assert [one.id for one in queue.later.list(4)] == ids[:4]
        assert {one.id for one in queue.later} == set(ids)
        due = queue.later.list(6)[-1].due
        assert abs(due - at) < timedelta(seconds=5)
        assert queue.later.cancel(ids[0], ids[0]) == 1
        assert queue.later.run_now(ids[3], ids[0]) == 1
        assert queue.stats()["pending"] == 1
        assert queue.later.cancel_all() == 4
        assert (len(queue.later), queue.later.next_due()) == (0, None)
        app.remove_queue("jobs", force=True)
        assert app.store.magazines.names() == []


def test_the_command_line(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    with Ignis(broker.url) as app:
        ids = [app.queue("jobs", str).publish(f"m{number}", delay=f"{number + 1}h").id for number in range(3)]

    def run(*arguments: str) -> tuple[int, Any]:
        code = main(["later", *arguments, "--json", "--url", broker.url])
        return code, json.loads(capsys.readouterr().out)

    code, listed = run("list", "jobs")
    assert (code, listed["total"], [one["id"] for one in listed["messages"]]) == (0, 3, ids)
    assert run("cancel", "jobs", ids[0]) == (0, {"queue": "jobs", "cancelled": 1})
    assert run("run", "jobs", ids[1]) == (0, {"queue": "jobs", "moved": 1})
    assert run("cancel", "jobs", "--all", "--yes") == (0, {"queue": "jobs", "cancelled": 1})
    with Ignis(broker.url) as app:
        assert [one.message for one in app.queue("jobs", str).main.fire(10)] == ["m1"]


def test_the_sweeper_moves_without_a_consumer(broker: RunningBroker) -> None:
    with Ignis(broker.url) as app:
        queue = app.queue("jobs", str)
        queue.publish_many(["a", "b"], delay=0)
        queue.publish("far", delay="1h")
        queue.sweep()
        assert (queue.stats()["delayed"], queue.stats()["pending"]) == (1, 2)


def test_what_waits_counts_for_the_room_of_the_store(tmp_path: Path) -> None:
    with RunningBroker(f"embedded://{tmp_path}/store?max_store_bytes=2097152") as broker, Ignis(broker.url) as app:
        queue = app.queue("jobs", bytes)

        def fill() -> None:
            for _ in range(1_000):
                queue.publish(bytes(100_000), delay="1h")

        with pytest.raises(StoreFullError):
            fill()
        with pytest.raises(StoreFullError):
            queue.publish(bytes(1_000_000))
        assert queue.later.cancel_all() > 10
        queue.publish(bytes(1_000_000))
        assert queue.stats()["pending"] == 1


def test_a_store_that_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_later", "defer", "run_now", "cancel_later"):
        monkeypatch.setattr(EmbeddedMagazines, name, getattr(KeepsLater, name))
    monkeypatch.setattr(EmbeddedMagazines, "keeps_later", False)
    with RunningBroker(f"embedded://{tmp_path}/store") as broker:
        with Ignis(broker.url) as app:
            queue = app.queue("jobs", str)
            with pytest.raises(DelayNotSupportedError, match="embedded"):
                queue.publish("a", delay="1h")
            with pytest.raises(DelayNotSupportedError):
                queue.later.cancel("01890000-0000-7000-8000-000000000000")
            assert queue.later.list() == []
            assert queue.stats()["pending"] == queue.stats()["delayed"] == 0
        with broker.client() as client, pytest.raises(DelayNotSupportedError, match="EmbeddedMagazines"):
            client.send_later("jobs", encode_record(b"x"), 5)


# -- both clients


def test_the_client_for_coroutines(broker: RunningBroker) -> None:
    async def main() -> None:
        async with AsyncClient(BrokerAddress("127.0.0.1", broker.port), {"timeout_s": WAIT_S}) as client:
            await client.ask(requests.create_queue("jobs", {"shards": 4, "codec": "raw"}))
            placed = [await client.send_later("jobs", encode_record(bytes([65 + n])), 60 * (n + 1)) for n in range(3)]
            found = await client.list_later("jobs", 10)
            assert [(one.shard, one.pointer) for one in found] == placed
            assert [text(one.record) for one in found] == ["A", "B", "C"]
            assert await client.list_later("jobs", 10, after=found[1][:3]) == found[2:]
            assert await client.cancel_later("jobs", {placed[0][0]: [placed[0][1]]}) == 1
            assert await client.run_now("jobs", {placed[1][0]: [placed[1][1]]}) == 1
            claimed = await client.consume("jobs", 10, WAIT_S)
            assert [text(one) for claim in claimed.claims for one in claim.records] == ["B"]
            assert await client.list_later("jobs") == found[2:]

    asyncio.run(main())


def test_keys_choose_the_shard_and_each_record_keeps_its_time(broker: RunningBroker) -> None:
    """Where the sender leaves the shard to the broker."""
    with broker.client() as client:
        client.ask(requests.create_queue("jobs", {"shards": 8, "codec": "raw"}))
        keys = [f"k{number % 13}".encode() for number in range(200)]
        records = [encode_record(b"%d" % number, key=key) for number, key in enumerate(keys)]
        dues_ms = [4_000_000_000_000 + (number * 7919) % 1_000 for number in range(200)]
        request = later_requests.load_later("jobs", [(ANY_SHARD, PackedBatch.pack(records))], [dues_ms], None)
        assert sum(count for _, _, count in client.ask(request)) == 200
        shards = {key: client.send("jobs", encode_record(b"now", key=key))[0] for key in set(keys)}
        rows, cut = client.ask(later_requests.listed("jobs", None, 1_000))
        assert not cut
        assert [one.due_ms for one in rows] == sorted(dues_ms)
        for one in rows:
            number = int(text(one.record) or "")
            assert (one.due_ms, one.shard) == (dues_ms[number], shards[keys[number]])


def test_a_long_list_comes_in_pieces(broker: RunningBroker) -> None:
    with Ignis(broker.url) as app:
        queue = app.queue("jobs", bytes)
        ids = list(queue.publish_many([bytes(10_000)] * 40, delay="1h"))
        with broker.client() as client:
            some, cut = client.ask(later_requests.listed("jobs", None, 1_000))
            assert cut and 1 <= len(some) < 10
        assert {one.id for one in queue.later.list(1_000)} == set(ids)
        assert [one.id for one in queue.later.list(7)] == [one.id for one in queue.later.list(40)][:7]


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12, "5m", True])
def test_delays_that_are_none(broker: RunningBroker, delay: Any) -> None:
    with broker.client() as client, pytest.raises(ConfigError):
        client.send_later("jobs", encode_record(b"x"), delay)


# -- who may, and what may not be


def as_user(broker: RunningBroker, rules: str) -> Any:
    return broker.client(token=f"somebody|{rules}", timeout_s=WAIT_S)


def test_ids_that_are_loaded_once_live_as_long_as_the_queue_says(broker: RunningBroker) -> None:
    """Without a time to live of their own, as in every payload of a SEND_BATCH."""
    with broker.client() as client:
        client.ask(requests.create_queue("mine", {"shards": 1, "codec": "raw", "message_expiry_s": 3600}))
        batches = [(0, PackedBatch.pack([encode_record(b"x")]))]
        client.ask(store_requests.load_once("mine", batches, "queue", 60))
        assert sum(one.load_counter for one in client.ask(store_requests.metadata("mine"))) == 1


def test_nothing_comes_into_a_later_magazine_without_a_time(tmp_path: Path) -> None:
    """Whether and when it came would be nobody's promise."""
    with RunningBroker(f"embedded://{tmp_path}/store", authenticator=Tokens()) as broker:
        with as_user(broker, "all:*") as boss:
            boss.ask(requests.create_queue("mine", {"shards": 2, "codec": "raw"}))
            boss.send_later("mine", encode_record(b"far"), 3600)
        name, record = later_of("mine"), encode_record(b"x")
        asks: list[Callable[[Any], Any]] = [
            lambda client: client.send(name, record, shard=0),
            lambda client: client.send(name, record, shard=0, ttl_s=None),
            lambda client: client.send_batch(name, [(0, PackedBatch.pack([record]))], ttl_s=60),
            lambda client: client.ask(store_requests.load_once(name, [(0, PackedBatch.pack([record]))], None, 5)),
            lambda client: client.ask(store_requests.transfer("mine", name, [], None, None)),
            lambda client: client.consume(name),
            lambda client: client.ask(store_requests.fire(name, 1, "", None, 1 << 20)),
            lambda client: client.ask(store_requests.declare(name, 4, "sync")),
        ]
        for rules in ("publish,work,manage:mine*", "all:*"):
            with as_user(broker, rules) as client:
                for ask in asks:
                    with pytest.raises((InvalidNameError, PermissionDeniedError)):
                        ask(client)
        with as_user(broker, "all:*") as boss:
            assert boss.ask(later_requests.delayed("mine"))[0] == 1
            assert sum(one.load_counter for one in boss.ask(store_requests.metadata(name))) == 1


def test_a_later_magazine_goes_with_its_queue(tmp_path: Path) -> None:
    with RunningBroker(f"embedded://{tmp_path}/store", authenticator=Tokens()) as broker:
        with as_user(broker, "all:*") as boss:
            for queue in ("mine", "mine2"):
                boss.ask(requests.create_queue(queue, {"shards": 2, "codec": "raw"}))
                boss.send_later(queue, encode_record(b"far"), 3600)
        with as_user(broker, "look:mine") as looker:
            assert looker.ask(store_requests.names()) == ["mine", later_of("mine"), "mine_SIDELINE"]
            assert len(looker.list_later("mine")) == 1
            one = pack_pointers(places(looker.list_later("mine")))
            rows, _ = looker.ask(store_requests.peek(later_of("mine"), one))
            assert [text(record) for _, _, record in rows] == ["far"]
            for ask in (
                store_requests.peek(later_of("mine2"), one), store_requests.scan(later_of("mine2"), {}, 5, False),
                store_requests.metadata(later_of("mine2")), later_requests.listed("mine2", None, 5),
                later_requests.cancel_later("mine", one), later_requests.run_now("mine", one),
                store_requests.delete(later_of("mine"), one), store_requests.drop(later_of("mine")),
            ):  # fmt: skip
                with pytest.raises(PermissionDeniedError):
                    looker.ask(ask)
        with as_user(broker, "publish:mine") as web:
            assert web.ask(later_requests.clock()) > 1_700_000_000_000_000
            web.send_later("mine", encode_record(b"far"), 3600)
            for ask in (later_requests.listed("mine", None, 5), later_requests.cancel_later("mine", one)):
                with pytest.raises(PermissionDeniedError):
                    web.ask(ask)
        with as_user(broker, "locks:mine") as nobody, pytest.raises(PermissionDeniedError):
            nobody.ask(later_requests.clock())
        with as_user(broker, "work:mine") as worker:
            assert worker.cancel_later("mine", places(worker.list_later("mine"))) == 2


def test_who_looks_does_not_hold_up_the_others(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are made by threads of their own, few of one connection at a time; those of one that is gone are not made at all."""
    begun, may_end = threading.Semaphore(0), threading.Event()
    made: list[int] = []

    def slow(self: EmbeddedMagazines, magazine: str, **more: Any) -> Any:
        made.append(1)
        begun.release()
        assert may_end.wait(WAIT_S)
        return [], False

    monkeypatch.setattr(EmbeddedMagazines, "list_later_within", slow)
    with broker.client() as other:
        other.ask(requests.create_queue("jobs", {"shards": 2, "codec": "raw"}))
        lookers = [broker.client() for _ in range(4)]
        threads = []
        try:
            for looker in lookers:
                for _ in range(16):
                    thread = threading.Thread(target=_ask_in_vain, args=(looker,))
                    thread.start()
                    threads.append(thread)
            assert begun.acquire(timeout=WAIT_S)
            assert begun.acquire(timeout=WAIT_S)
            other.send("jobs", encode_record(b"now"))
            assert len(other.consume("jobs", 1, WAIT_S).claims) == 1  # by a thread of the store's
            for looker in lookers:
                looker.close()
            for thread in threads:
                thread.join(WAIT_S)
            eventually(lambda: broker.on_loop(lambda: len(broker.broker.sessions)) == 1)
        finally:
            may_end.set()
        other.send_later("jobs", encode_record(b"far"), 3600)
        monkeypatch.undo()
        assert len(other.ask(later_requests.listed("jobs", None, 10))[0]) == 1
        assert len(made) == 2


def _ask_in_vain(client: Any) -> None:
    with suppress(IgnisError):
        client.ask(later_requests.listed("jobs", None, 10))
