"""Messages that kill their clients: counted, and set aside before they have killed them all."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ignis.broker.client import requests
from ignis.broker.client.sync_client import SyncClient
from ignis.broker.server.redelivery import _BATCH, Redelivery
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASONS, Message
from ignis.native import PackedBatch, Record, encode_record
from tests.support import UNREADABLE_METAS, WAIT_S, eventually
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration

SIDELINE = "q" + SIDELINE_SUFFIX

CONSUMER = """
import os, signal, sys
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.native import Record
client = SyncClient(BrokerAddress("127.0.0.1", int(sys.argv[1])), {"timeout_s": float(sys.argv[2])})
while True:
    found = client.consume("q", 1, wait_s=float(sys.argv[2]))
    for claim in found.claims:
        if Record(claim.records[0]).body == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        client.ack("q", {claim.shard: claim.pointers})
        print(Record(claim.records[0]).body.decode(), flush=True)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store"


def running(url: str, **settings: float) -> RunningBroker:
    return RunningBroker(url, settings={"redeliver_after_s": 0.05, **settings})


@pytest.fixture
def broker(url: str) -> Iterator[RunningBroker]:
    with running(url) as one:
        yield one


def create(client: SyncClient, *bodies: bytes) -> None:
    client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw", "shovel_interval_s": 0}))
    client.ask(requests.send_batch("q", [(0, PackedBatch.pack([encode_record(body) for body in bodies]))]))


def info(client: SyncClient) -> dict[str, int]:
    return client.ask(requests.queue_info("q"))


def messages(client: SyncClient, magazine: str, limit: int = 10) -> list[Message]:
    """Claimed, and then retired."""
    found = client.consume(magazine, limit, wait_s=WAIT_S)
    client.ack(magazine, {claim.shard: claim.pointers for claim in found.claims})
    return [Message(Record(record)) for claim in found.claims for record in claim.records if record is not None]


def lose(broker: RunningBroker, limit: int = 1_000) -> int:
    """A client claims, and its connection is gone for good."""
    client = broker.client(timeout_s=WAIT_S)
    count = client.consume("q", limit, wait_s=WAIT_S).total()
    assert client.connection is not None
    client.connection.lose("cable cut")
    return count


def counted(client: SyncClient) -> dict[str, float]:
    """What the broker has put aside, by reason. Each reason is there, the others with 0."""
    found = {
        labels["reason"]: value
        for name, labels, value in client.ask(requests.metrics())
        if name == "ignis_broker_sidelined_total"
    }
    assert set(found) == set(REASONS)
    return {reason: value for reason, value in found.items() if value}


def damage(directory: Path, body: bytes) -> None:
    """Changes a byte of what is stored, under the open store."""
    (log,) = (one for one in directory.rglob("log-*") if body in one.read_bytes())
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(body))
        file.write(b"x")


def settled(client: SyncClient) -> bool:
    return info(client)["in_flight"] == 0


def test_a_message_that_kills_its_clients_is_set_aside(broker: RunningBroker) -> None:
    with broker.client(timeout_s=WAIT_S) as client:
        create(client, b"poison", b"first", b"second")
        command = [sys.executable, "-c", CONSUMER, str(broker.port), str(WAIT_S)]
        done: list[str] = []
        deaths = 0
        while info(client)["sideline"] == 0:
            consumer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                output, _ = consumer.communicate(timeout=WAIT_S)
            finally:
                consumer.kill()
            assert consumer.returncode == -signal.SIGKILL
            done += output.split()
            deaths += 1
            eventually(lambda: settled(client))
        assert deaths == broker.broker.settings.max_crashes == 3
        assert sorted(done) == ["first", "second"], "the others were handled once each"
        assert info(client)["pending"] == 0
        (aside,) = messages(client, SIDELINE)
        assert (aside.body, aside.reason, aside.crashes) == (b"poison", "crash", 3)
        assert aside.error is not None
        assert "3 connection(s)" in aside.error
        eventually(lambda: counted(client) == {"crash": 1})


def test_the_count_outlives_the_broker(url: str) -> None:
    for number in range(3):
        with running(url) as broker, broker.client(timeout_s=WAIT_S) as client:
            if number == 0:
                create(client, b"poison")
            assert lose(broker) == 1
            eventually(lambda client=client: settled(client))  # type: ignore[misc]
            assert info(client)["sideline"] == (number == 2)


def test_the_orderly_end_of_a_client_or_a_broker_counts_nothing(url: str) -> None:
    with running(url, drain_timeout_s=0.1) as broker, broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a")
        with broker.client(timeout_s=WAIT_S) as other:
            assert other.consume("q", 1, wait_s=WAIT_S).total() == 1
        eventually(lambda: settled(client))
        unfinished = broker.client(timeout_s=WAIT_S)
        assert unfinished.consume("q", 1, wait_s=WAIT_S).total() == 1
        broker.stop()
        unfinished.close(0.1)
    with running(url) as broker, broker.client(timeout_s=WAIT_S) as client:
        (message,) = messages(client, "q")
        assert (message.body, message.crashes, message.failures) == (b"a", 0, 0)


def test_a_client_that_comes_back_in_time_counts_nothing(url: str) -> None:
    with running(url, redeliver_after_s=3_600) as broker, broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a")
        found = client.consume("q", 1, wait_s=WAIT_S)
        assert client.connection is not None
        client.connection.lose("cable cut")
        where = {claim.shard: claim.pointers for claim in found.claims}
        assert client.ask(requests.nack("q", where)) == 1
        (message,) = messages(client, "q")
        assert message.crashes == 0


def test_more_than_one_transaction_holds(broker: RunningBroker) -> None:
    count = 2 * _BATCH + 3
    with broker.client(timeout_s=WAIT_S) as client:
        create(client, *(str(number).encode() for number in range(count)))
        for crashes in (1, 2, 3):
            assert lose(broker) == count
            eventually(lambda: settled(client))
            assert info(client)["sideline"] == (count if crashes == 3 else 0)
        seen = []
        while len(seen) < count:
            seen += messages(client, SIDELINE, count)
        assert [one.body for one in seen] == [str(number).encode() for number in range(count)], "in their order"
        assert {one.crashes for one in seen} == {3}


def test_the_limit_may_be_off(url: str) -> None:
    with running(url, max_crashes=0) as broker, broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a")
        for _ in range(4):
            assert lose(broker) == 1
            eventually(lambda: settled(client))
        (message,) = messages(client, "q")
        assert message.crashes == 0


def test_a_sideline_has_no_sideline(url: str) -> None:
    with running(url, max_crashes=1) as broker, broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a")
        assert lose(broker) == 1
        eventually(lambda: info(client)["sideline"] == 1)
        reader = broker.client(timeout_s=WAIT_S)
        assert reader.consume(SIDELINE, 1, wait_s=WAIT_S).total() == 1
        assert reader.connection is not None
        reader.connection.lose("cable cut")
        eventually(lambda: info(client)["sideline_in_flight"] == 0)
        assert info(client)["sideline"] == 1


@pytest.mark.parametrize("kind", UNREADABLE_METAS)
def test_headers_that_cannot_be_read_hold_nobody_up(broker: RunningBroker, kind: str) -> None:
    with broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a")
        records = [encode_record(b"poison", meta=UNREADABLE_METAS[kind]), encode_record(b"b"), encode_record(b"c")]
        client.ask(requests.send_batch("q", [(0, PackedBatch.pack(records))]))
        assert lose(broker) == 4
        eventually(lambda: settled(client))
        (aside,) = messages(client, SIDELINE)
        assert (aside.body, aside.reason, aside.crashes) == (b"poison", "unreadable", 1)
        assert [(one.body, one.crashes) for one in messages(client, "q")] == [(b"a", 1), (b"b", 1), (b"c", 1)]


def test_a_refusal_of_what_cannot_be_read_sets_it_aside(broker: RunningBroker) -> None:
    with broker.client(timeout_s=WAIT_S) as client:
        client.ask(requests.create_queue("q", {"shards": 1, "codec": "raw", "shovel_interval_s": 0}))
        records = [encode_record(b"poison", meta=meta) for meta in UNREADABLE_METAS.values()]
        records.append(encode_record(b"a"))
        client.ask(requests.send_batch("q", [(0, PackedBatch.pack(records))]))
        found = client.consume("q", 10, wait_s=WAIT_S)
        where = {claim.shard: claim.pointers for claim in found.claims}
        assert client.ask(requests.nack("q", where, sideline=True, reason="rejected")) == len(records)
        assert [one.reason for one in messages(client, SIDELINE)] == ["unreadable"] * len(UNREADABLE_METAS) + [
            "rejected"
        ]


def test_what_lost_connections_held_is_counted_by_the_reason_it_has(url: str, tmp_path: Path) -> None:
    with running(url, max_crashes=1) as broker, broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a" * 40, b"b" * 40)
        records = [encode_record(b"poison", meta=meta) for meta in UNREADABLE_METAS.values()]
        client.ask(requests.send_batch("q", [(0, PackedBatch.pack(records))]))
        assert counted(client) == {}
        damage(tmp_path / "store", b"a" * 40)
        assert lose(broker) == 2 + len(records)
        eventually(lambda: settled(client))
        eventually(lambda: counted(client) == {"corrupt": 1, "crash": 1, "unreadable": len(records)})
        assert Counter(one.reason for one in messages(client, SIDELINE)) == counted(client)


def test_what_a_client_refuses_is_counted_by_the_reason_it_has(broker: RunningBroker, tmp_path: Path) -> None:
    with broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a" * 40, b"b" * 40, b"c", b"d")
        client.ask(requests.send_batch("q", [(0, PackedBatch.pack([encode_record(b"e", meta=b"\xc1")]))]))
        damage(tmp_path / "store", b"a" * 40)
        found = client.consume("q", 10, wait_s=WAIT_S)
        pointers = [pointer for claim in found.claims for pointer in claim.pointers]
        assert len(pointers) == 5
        assert client.ask(requests.nack("q", {0: pointers[:3]}, sideline=True, reason="exception")) == 3
        assert client.ask(requests.nack("q", {0: pointers[3:4]})) == 1, "given back: in no sideline"
        assert client.ask(requests.nack("q", {0: pointers[4:]}, sideline=True, reason="timeout")) == 1
        expected = {"corrupt": 1, "exception": 2, "unreadable": 1}
        assert counted(client) == expected
        assert client.ask(requests.nack("q", {0: pointers[:3]}, sideline=True, reason="exception")) == 0
        assert counted(client) == expected, "what had moved already counts once"
        assert Counter(one.reason for one in messages(client, SIDELINE)) == expected


def test_whatever_counting_raises_the_messages_come_back(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("a bug")

    with broker.client(timeout_s=WAIT_S) as client:
        create(client, b"a", b"b")
        monkeypatch.setattr(Redelivery, "count_crash", broken)
        assert lose(broker) == 2
        eventually(lambda: settled(client))
        assert [(one.body, one.crashes) for one in messages(client, "q")] == [(b"a", 0), (b"b", 0)]
