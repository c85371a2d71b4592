"""A broker that is killed and started anew, while its clients' handlers run: a claim's owner is who works on it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.broker.auth.permissions import Permissions
from ignis.broker.client import requests, store_requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack_connect
from ignis.broker.protocol.payloads import Connect
from ignis.errors import ConfigError, PermissionDeniedError, ProtocolError
from ignis.native.wire import pack_pointers
from ignis.storage import open_store
from tests.integration.broker.test_broker_process import BrokerProcess, bodies, places
from tests.support import WAIT_S, Journal, eventually, reasons, wait_idle
from tests.support.broker import RunningBroker, Wire

pytestmark = pytest.mark.integration

WORKER = """
import sys, time
from pathlib import Path
import ignis, ignis.consumer.acknowledger
from tests.support import Journal
ignis.storage.base.RENEWALS = 2400  # every half second
url, folder, settings = sys.argv[1], Path(sys.argv[2]), {"timeout_s": 5}
app = ignis.Ignis(url, store=settings)
queue = app.queue("jobs", int, shards=2)
@queue.handler(concurrency=2)
def handle(message):
    Journal(folder / "journal").note(f"start {message}")
    while not (folder / "go").exists():
        time.sleep(0.01)
    Journal(folder / "journal").note(f"end {message}")
app.start()
while not (folder / "stop").exists():
    time.sleep(0.02)
consumer = queue.consumer
app.stop()
print(consumer.counts.late_acks, flush=True)
app.close()
"""


class Workers:
    """Processes that consume ``jobs`` through a broker, each with two handlers that wait for the test."""

    def __init__(self, url: str, folder: Path, count: int) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal")
        command = [sys.executable, "-c", textwrap.dedent(WORKER), url, str(folder)]
        self.processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]

    def started(self, count: int) -> None:
        eventually(lambda: sum(line.startswith("start") for line in self.journal.lines()) == count)

    def go(self) -> None:
        (self.folder / "go").touch()

    def stop(self) -> list[str]:
        (self.folder / "stop").touch()
        return [one.communicate(timeout=WAIT_S)[0].strip() for one in self.processes if one.returncode is None]

    def end(self) -> None:
        for one in self.processes:
            one.kill()
            one.communicate()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store"


@pytest.fixture
def queue(url: str) -> Iterator[ignis.Queue[Any]]:
    """Of an application beside the broker, which sweeps."""
    with ignis.Ignis(url) as app:
        queue: ignis.Queue[Any] = app.queue("jobs", int, shards=2)
        queue.open()
        yield queue


def test_handlers_that_run_while_the_broker_is_killed_run_once(
    url: str, queue: ignis.Queue[Any], tmp_path: Path
) -> None:
    queue.publish_many(range(40))
    with BrokerProcess(url) as first:
        port = first.port
        workers = Workers(f"ignis://127.0.0.1:{port}", tmp_path, 2)
        try:
            workers.started(4)
            first.end(signal.SIGKILL)
            assert queue.app.sweep_queue("jobs").swept == 0, "its clients live"
            with BrokerProcess(url, port):
                assert queue.app.sweep_queue("jobs").swept == 0
                time.sleep(7)  # beyond the time that clients have to come back
                assert queue.app.sweep_queue("jobs").swept == 0
                assert len(workers.journal.lines()) == 4
                workers.go()
                wait_idle(queue)
                assert workers.stop() == ["0", "0"]
        finally:
            workers.end()
    assert workers.journal.counts() == {f"{what} {n}": 1 for n in range(40) for what in ("start", "end")}
    assert (queue.main.in_flight(), queue.main.pending(), queue.sideline.pending()) == (0, 0, 0)


def test_claims_whose_answer_was_lost_with_the_broker_go_back(url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(10))
    with BrokerProcess(url) as first:
        port = first.port
        store = open_store(f"ignis://127.0.0.1:{port}", timeout_s=WAIT_S)
        mine = store.magazines.fire("jobs", 4, store.owner)
        with pytest.MonkeyPatch.context() as patch:
            # What the broker claimed for this client, of which the client never hears.
            patch.setattr(store.calls.tracking, "_held", type(store.calls.tracking._held)())  # type: ignore[attr-defined]
            patch.setattr(store.calls.tracking, "_keep", lambda: None)  # type: ignore[attr-defined]
            assert store.magazines.fire("jobs", 3, store.owner).total() == 3
        first.end(signal.SIGKILL)
    with BrokerProcess(url, port):
        eventually(lambda: queue.main.pending() == 6)
        assert queue.main.in_flight() == 4
        assert store.magazines.renew_claims("jobs", places(mine), store.owner) == {}
        assert store.magazines.delete("jobs", places(mine)) == 4
        store.close()
    assert reasons(queue) == {}


def test_a_client_that_died_with_the_broker(url: str, queue: ignis.Queue[Any], tmp_path: Path) -> None:
    queue.publish_many(range(2))
    with BrokerProcess(url) as first:
        port = first.port
        workers = Workers(f"ignis://127.0.0.1:{port}", tmp_path, 1)
        try:
            workers.started(2)
            workers.processes[0].kill()
            workers.processes[0].wait()
            first.end(signal.SIGKILL)
        finally:
            workers.end()
    with BrokerProcess(url, port):
        eventually(lambda: queue.main.in_flight() == 0)
    assert queue.main.pending() == 2
    assert [one.envelope.crashes for one in queue.main.fire(2)] == [1, 1]


def test_a_client_that_dies_alone(url: str, queue: ignis.Queue[Any], tmp_path: Path) -> None:
    queue.publish_many(range(2))
    with BrokerProcess(url) as broker:
        workers = Workers(f"ignis://127.0.0.1:{broker.port}", tmp_path, 1)
        try:
            workers.started(2)
            workers.processes[0].kill()
            workers.processes[0].wait()
            eventually(lambda: queue.main.pending() == 2)
        finally:
            workers.end()
    assert [one.envelope.crashes for one in queue.main.fire(2)] == [1, 1]


@pytest.mark.long
def test_a_client_that_does_not_come_back(url: str, queue: ignis.Queue[Any]) -> None:
    """It lives, so its death is not what counts: it had its time, and no crash is counted."""
    queue.publish_many(range(4))
    with BrokerProcess(url) as first:
        port = first.port
        client = first.client()
        assert client.consume("jobs", 3, wait_s=WAIT_S).total() == 3
        first.end(signal.SIGKILL)
    with BrokerProcess(url, port):
        assert queue.main.in_flight() == 3
        eventually(lambda: queue.main.in_flight() == 0)
    assert [one.envelope.crashes for one in queue.main.fire(4)] == [0, 0, 0, 0]
    client.close()


def test_a_client_that_comes_back_holds_what_it_was_delivered(url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(6))
    with BrokerProcess(url) as first:
        port = first.port
        client = first.client()
        found = client.consume("jobs", 4, wait_s=WAIT_S)
        first.end(signal.SIGKILL)
    with BrokerProcess(url, port) as second:
        client.ping()
        time.sleep(7)
        assert queue.main.in_flight() == 4
        one = next(iter(places(found)))
        done = client.ack("jobs", {one: places(found)[one][:1]})
        assert done == 1
        other = second.client()
        assert other.ack("jobs", places(found)) == 0, "not its own"
        assert client.ack("jobs", places(found)) == 3
        other.close()
        client.close()
    assert queue.main.in_flight() == 0


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker in this process renews every half second."""
    monkeypatch.setattr("ignis.storage.base.RENEWALS", 2_400)


def claimed_before(queue: ignis.Queue[Any], moment_s: float) -> int:
    magazines = queue.main.store
    return sum(len(magazines.abandoned(queue.name, shard, int(moment_s * 1000), 100)) for shard in range(2))


def test_handlers_behind_a_broker_are_renewed(url: str, queue: ignis.Queue[Any], tmp_path: Path) -> None:
    queue.publish_many(range(2))
    with BrokerProcess(url) as broker:
        workers = Workers(f"ignis://127.0.0.1:{broker.port}", tmp_path, 1)
        try:
            workers.started(2)
            moment_s = time.time()
            eventually(lambda: claimed_before(queue, moment_s) == 0)
            workers.go()
            wait_idle(queue)
            assert workers.stop() == ["0"]
        finally:
            workers.end()
    assert workers.journal.counts() == {f"{what} {n}": 1 for n in range(2) for what in ("start", "end")}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("way", ["consume", "subscribe"])
def test_the_broker_renews_what_a_connection_was_delivered(way: str, url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(3))
    with RunningBroker(url, settings={"redeliver_after_s": 0.05}) as broker, broker.client() as client:
        if way == "consume":
            found = client.consume("jobs", 3, wait_s=WAIT_S)
        else:
            subscription = client.subscribe("jobs", 3)
            deliveries = []
            while sum(one.total() for one in deliveries) < 3:
                delivery = subscription.receive(WAIT_S)
                assert delivery is not None
                deliveries.append(delivery)
            found = deliveries[0]._replace(claims=[claim for one in deliveries for claim in one.claims])
        moment_s = time.time()
        eventually(lambda: claimed_before(queue, moment_s) == 0)
        client.ask(requests.nack("jobs", places(found), delay_s=WAIT_S))
        moment_s = time.time()
        eventually(lambda: claimed_before(queue, moment_s) == 0, what="what the broker itself keeps")
        assert queue.main.in_flight() == 3


@pytest.mark.parametrize("first", ["resume", "end"])
def test_a_connection_that_is_lost_after_its_client_is_back(first: str, url: str, queue: ignis.Queue[Any]) -> None:
    """The broker may see the end of the old connection after the beginning of the new one."""
    queue.publish_many(range(6))
    with RunningBroker(url, settings={"redeliver_after_s": 0.3}) as broker, Wire(broker.port) as old:
        old.greet(instance="one")
        old.send(Command.FIRE, 7, store_requests.fire("jobs", 4, "", None, 1 << 20).payload)
        old.receive()
        owner = next(iter(queue.main.store.claimants("jobs")))
        run = queue.main.store.held("jobs", owner)[0]
        with Wire(broker.port) as new:
            new.greet(instance="one")
            if first == "end":
                old.close()
                eventually(lambda: broker.on_loop(lambda: len(broker.broker.sessions)) == 1)
            new.send(Command.RESUME, 8, requests.resume("jobs", pack_pointers({run.shard: [run.first]})).payload)
            new.receive()
            old.close()
            time.sleep(0.6)
            assert (queue.main.in_flight(), queue.main.pending()) == (1, 5)


@pytest.mark.usefixtures("often")
def test_what_came_over_a_lost_connection_is_the_clients_to_renew(url: str, queue: ignis.Queue[Any]) -> None:
    """The broker cannot know whether it ever arrived: it must not keep it for ever."""
    queue.publish_many(range(3))
    with RunningBroker(url, settings={"redeliver_after_s": WAIT_S}) as broker, broker.client() as client:
        found = client.consume("jobs", 3, wait_s=WAIT_S)
        assert client.connection is not None
        client.connection.lose("by the test")
        eventually(lambda: client.ask(requests.node_status())["connections"] == 1)
        moment_s = time.time() + 0.01
        time.sleep(1.5)
        assert claimed_before(queue, moment_s) == 3
        assert client.renew("jobs", places(found)) == 0
        assert claimed_before(queue, moment_s) == 0
        assert client.ack("jobs", places(found)) == 3
        assert client.renew("jobs", places(found)) == 3


@pytest.mark.usefixtures("often")
def test_a_client_that_pulls_again_says_what_it_holds(url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(6))
    with RunningBroker(url, settings={"redeliver_after_s": WAIT_S}) as broker, broker.client() as client:
        found = client.consume("jobs", 2, wait_s=WAIT_S)
        lost = client.ask(requests.consume("jobs", 3, WAIT_S, 1 << 20))  # as if its answer had not arrived
        assert client.connection is not None
        client.connection.lose("by the test")
        again = client.consume("jobs", 1, wait_s=WAIT_S)
        assert again.total() == 1
        client.consume("jobs", 1)
        assert queue.main.in_flight() + queue.main.pending() == 6
        eventually(lambda: client.ack("jobs", places(lost)) == 0, what="it went back")
        moment_s = time.time() + 0.01
        mine = places(found)
        eventually(
            lambda: all(
                set(mine.get(shard, ())).isdisjoint(
                    one.pointer for one in queue.main.store.abandoned("jobs", shard, int(moment_s * 1000), 100)
                )
                for shard in range(2)
            ),
            what="renewed by the broker: the client has it",
        )
        assert client.ack("jobs", mine) == 2


@pytest.mark.parametrize("how", ["connection", "broker"])
def test_a_subscription_begins_anew(how: str, url: str, queue: ignis.Queue[Any]) -> None:
    """What it left unacknowledged comes again at once, and takes none of its credit."""
    queue.publish_many(range(4))
    with BrokerProcess(url) as first:
        port = first.port
        client = first.client()
        seen: list[str] = []
        subscription = client.subscribe("jobs", 4)
        while len(seen) < 4:
            seen += bodies(subscription.receive(WAIT_S) or pytest.fail("nothing came"))
        assert client.connection is not None
        if how == "connection":
            client.connection.lose("by the test")
        else:
            first.end(signal.SIGKILL)
            first = BrokerProcess(url, port)  # noqa: PLW2901
        try:
            client.ping()
            subscription = client.subscribe("jobs", 4)
            while len(seen) < 8:
                found = subscription.receive(WAIT_S) or pytest.fail("nothing came again")
                seen += bodies(found)
                subscription.ack(places(found))
        finally:
            client.close()
            first.end(signal.SIGKILL)
    assert sorted(seen) == sorted(2 * [str(n) for n in range(4)])


@pytest.mark.usefixtures("often")
def test_what_a_client_claimed_by_itself_is_not_renewed_for_it(url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(3))
    with RunningBroker(url) as broker:
        store = open_store(broker.url)
        store.magazines.fire("jobs", 3, store.owner)
        moment_s = time.time() + 0.01
        time.sleep(3)
        assert claimed_before(queue, moment_s) == 3, "the frozen must be told from the living"
        store.close()


def test_names_of_others_are_refused(url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(4))
    with RunningBroker(url) as broker:
        victim, other = open_store(broker.url), open_store(broker.url)
        assert victim.owner != other.owner
        found = victim.magazines.fire("jobs", 2, victim.owner)
        for call in (
            lambda: other.magazines.fire("jobs", 1, victim.owner),
            lambda: other.magazines.claim("jobs", 1, victim.owner),
            lambda: other.magazines.held("jobs", victim.owner),
            lambda: other.magazines.renew("jobs", victim.owner),
            lambda: other.magazines.renew_claims("jobs", places(found), victim.owner),
            lambda: (
                other.magazines.renew_claims("jobs", {}, other.owner, to_owner=victim.owner)
                or other.magazines.renew_claims("jobs", {0: [1]}, other.owner, to_owner=victim.owner)
            ),
        ):
            with pytest.raises(ConfigError, match="broker/"):
                call()
        assert other.magazines.renew_claims("jobs", places(found), other.owner) == {
            shard: list(many) for shard, many in places(found).items()
        }
        victim.close()
        other.close()


def test_who_may_only_consume_renews_nobody_elses_claims(url: str, queue: ignis.Queue[Any]) -> None:
    class Consumer:
        name = "ann"
        _rules = Permissions(["consume:jobs"])

        def allows(self, command: str, queue: str) -> bool:
            return self._rules.allows(command, queue)

        def allows_some(self, command: str) -> bool:
            return self._rules.allows_some(command)

    class Known:
        open = False

        def authenticate(self, credentials: Any) -> Any:
            return Consumer()

    queue.publish_many(range(3))
    runs = queue.main.store.claim("jobs", 3, "job:nightly")
    job = {one.shard: range(one.first, one.last + 1) for one in runs}
    with RunningBroker(url, authenticator=Known()) as broker, broker.client() as client:
        for owner, to_owner in (("job:nightly", ""), ("job:nightly", "mine"), ("", "mine")):
            with pytest.raises(PermissionDeniedError):
                client.ask(requests.renew_claims("jobs", pack_pointers(job), owner, to_owner))
        assert client.renew("jobs", job) == 3
        assert client.ack("jobs", job) == 0
    assert queue.main.in_flight() == 3


def test_a_lie_about_a_process_is_believed_of_its_own_claims_alone(url: str, queue: ignis.Queue[Any]) -> None:
    """A client that names another's process, or a dead one, cannot have the other's claims swept."""
    queue.publish_many(range(4))
    with RunningBroker(url) as broker:
        victim = open_store(broker.url)
        victim.magazines.fire("jobs", 2, victim.owner)
        true = BrokerAddress().hello("x").process
        assert true is not None
        dead = (true[0], true[1], true[2] + 1, true[3], true[4])
        with Wire(broker.port) as wire:
            wire.greet(instance="liar", process=dead)
            wire.send(Command.FIRE, 7, store_requests.fire("jobs", 2, "", None, 1 << 20).payload)
            wire.receive()
            assert queue.app.sweep_queue("jobs").swept == 2
        assert set(queue.main.store.claimants("jobs")) == {victim.owner}
        assert queue.main.in_flight() == 2
        victim.close()


@pytest.mark.parametrize(
    "process",
    [("", 1, 1, 1, "b"), ("h\n", 1, 1, 1, "b"), ("h", 0, 1, 1, "b"), ("h", 1 << 31, 1, 1, "b"), ("h", 1, -1, 1, "b"),
     ("h", 1, 1, 1 << 63, "b"), ("h", 1, 1, 1, "x" * 65)],
)  # fmt: skip
def test_what_cannot_be_a_process_is_refused(process: Any, url: str) -> None:
    with RunningBroker(url) as broker, Wire(broker.port) as wire:
        hello = Connect("ignis", "local", "wire", process=process)
        wire.send(Command.CONNECT, 1, pack_connect(hello))
        failure = wire.failure()
        assert failure.fatal
        assert failure.code in (ProtocolError.code, ConfigError.code), failure
        assert "process" in failure.message
        assert wire.closed()
        assert not any(one.users for one in broker.broker.applications), "it uses no application"


def test_without_a_process_only_time_says_anything(url: str, queue: ignis.Queue[Any]) -> None:
    queue.publish_many(range(2))
    with RunningBroker(url) as broker, Wire(broker.port) as wire:
        wire.greet(instance="elsewhere")
        wire.send(Command.FIRE, 7, store_requests.fire("jobs", 2, "", None, 1 << 20).payload)
        wire.receive()
        assert queue.app.sweep_queue("jobs").swept == 0
        assert list(queue.main.store.claimants("jobs").values()) == [False]
