"""The leader by a real ZooKeeper: layout, hand-over, lost connections, permissions, and what goes on without it."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.cli import main
from ignis.config import LeaderSettings
from ignis.errors import (
    ClosedError,
    ConfigError,
    CoordinatorError,
    CoordinatorUnreachableError,
    ForkedHandleError,
    LockHeldError,
    StaleEpochError,
)
from ignis.leader import Deciders, Leadership, make_leader
from ignis.storage.base import QueueRecord, Store, Transfer
from tests.support import WAIT_S, NewThreads, eventually, sidelined
from tests.support import zookeeper as zookeeper_support
from tests.support.zookeeper import Link, Server

pytestmark = pytest.mark.integration

MakeApp = Callable[..., ignis.Ignis]
MakeLeader = Callable[..., Any]

SESSION_S = 5.0
"""Longer than any pause of a busy machine, where no test waits for its end."""
SHORT_S = 1.5
_clients = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Shared by tests that leave it running; each has a client id, and so an election, of its own."""
    with zookeeper_support.running() as one:
        yield one


@pytest.fixture
def own_server() -> Iterator[Server]:
    with zookeeper_support.running() as one:
        yield one


@pytest.fixture
def store(new_app: MakeApp, memory_url: str) -> Store:
    return new_app(memory_url, client_id=f"shop{next(_clients)}").store


@pytest.fixture
def candidate(store: Store) -> Iterator[MakeLeader]:
    """``candidate(address, **settings)``: one that is closed after the test."""
    made: list[Leadership] = []

    def make(address: str, scope: str = "sweeper", store: Store = store, **settings: Any) -> Leadership:
        given = {"zookeeper": f"zk://{address}", "session_timeout_s": SESSION_S, "refresh_s": 30, **settings}
        made.append(make_leader(store, scope, LeaderSettings(**given)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def raw(server: Server) -> Iterator[Any]:
    """The bare driver, as another program would use it."""
    with driver(server.address) as client:
        yield client


class driver:  # noqa: N801 - used like a function
    def __init__(self, address: str, **options: Any) -> None:
        from kazoo.client import KazooClient

        self._client = KazooClient(address, **options)

    def __enter__(self) -> Any:
        self._client.start(WAIT_S)
        return self._client

    def __exit__(self, *exc: object) -> None:
        self._client.stop()
        self._client.close()


@pytest.fixture
def link(own_server: Server) -> Iterator[Link]:
    one = Link(own_server.port)
    yield one
    one.close()


def settled(leader: Any) -> bool:
    return bool(leader._settled.is_set())


# -- the layout


def test_nodes_lie_where_the_java_library_has_them(
    server: Server, store: Store, candidate: MakeLeader, raw: Any
) -> None:
    base = f"/{store.client_id}-ignis-workers/{store.client_id}"
    first, second = candidate(server.address, instance="i1"), candidate(server.address, instance="i2")
    fence = first.lead()
    assert second.try_lead() is None
    eventually(lambda: settled(second) and second.assignment)
    assert sorted(raw.get_children(base)) == ["communicator", "loadbalancer-leader", "members"]
    assert sorted(raw.get_children(f"{base}/members")) == ["i1", "i2"]
    assert sorted(raw.get_children(f"{base}/communicator")) == ["i1", "i2"]
    places = sorted(raw.get_children(f"{base}/loadbalancer-leader"), key=lambda name: name[-10:])
    assert [raw.get(f"{base}/loadbalancer-leader/{name}")[0] for name in places] == [b"i1", b"i2"]
    assert all(name.startswith("_c_") and "-lock-" in name for name in places)
    stat = raw.get(f"{base}/loadbalancer-leader/{places[0]}")[1]
    assert fence.epoch == stat.czxid, "the epoch is the transaction that made the leader's node"
    for kind in ("members", "communicator"):
        for name in ("i1", "i2"):
            assert raw.get(f"{base}/{kind}/{name}")[1].ephemeralOwner, "they end with their session"
    assert json.loads(raw.get(f"{base}/members/i1")[0])["owner"] == store.owner


def test_assignments_are_dealt_in_turn_and_carry_the_balancer(
    server: Server, store: Store, candidate: MakeLeader, raw: Any
) -> None:
    from kazoo.exceptions import NoNodeError

    leader = candidate(server.address, instance="b", partitions=5)
    fence = leader.lead()
    others = [candidate(server.address, instance=name, partitions=5) for name in ("a", "c")]
    for one in others:
        one.start()

    def given() -> dict[str, Any]:
        base = f"/{store.client_id}-ignis-workers/{store.client_id}/communicator"
        found = {}
        for name in sorted(raw.get_children(base)):
            with contextlib.suppress(NoNodeError):  # it has just gone
                found[name] = json.loads(raw.get(f"{base}/{name}")[0])
        return found

    eventually(lambda: len(given()) == 3 and len(given()["b"]["partitions"]) == 2)
    assert {name: one["partitions"] for name, one in given().items()} == {"b": [0, 3], "a": [1, 4], "c": [2]}
    assert {(one["balancerId"], one["epoch"]) for one in given().values()} == {("b", fence.epoch)}
    eventually(lambda: others[0].assignment is not None and others[0].assignment.partitions == [1, 4])
    assert [one.fence for one in others] == [None, None]
    others[1].close()
    eventually(lambda: {name: one["partitions"] for name, one in given().items()} == {"a": [1, 3], "b": [0, 2, 4]})
    assert leader.fence == fence


def test_an_instance_is_active_by_its_assignment(server: Server, store: Store, candidate: MakeLeader, raw: Any) -> None:
    """Not by its place alone: the balancer id decides, and a watch tells."""
    leader = candidate(server.address, instance="i1")
    fence = leader.lead()
    path = f"/{store.client_id}-ignis-workers/{store.client_id}/communicator/i1"
    was = json.loads(raw.get(path)[0])
    # While it holds the place it writes its assignment again, so that somebody else's does not stay.
    raw.set(path, json.dumps({**was, "balancerId": "somebody"}).encode())
    eventually(lambda: json.loads(raw.get(path)[0]) == was)
    raw.delete(path)
    eventually(lambda: raw.exists(path) and leader.fence is not None)
    assert leader.fence == fence


def test_the_refresh_finds_what_no_watch_told(
    server: Server, candidate: MakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = candidate(server.address), candidate(server.address, refresh_s=0.2)
    monkeypatch.setattr(second._contest, "_watch", lambda event=None: None)
    first.lead()
    with pytest.raises(LockHeldError):
        second.lead()
    first.relinquish()
    eventually(second.try_lead)


def test_scopes_are_led_apart(server: Server, store: Store, candidate: MakeLeader, raw: Any) -> None:
    sweeper, scaler = candidate(server.address), candidate(server.address, "autoscaler")
    assert sweeper.lead().scope == "sweeper"
    assert scaler.lead().scope == "autoscaler"
    assert raw.exists(f"/{store.client_id}-ignis-workers/{store.client_id}/scopes/autoscaler/loadbalancer-leader")


def test_an_application_has_one_session(server: Server, store: Store, raw: Any) -> None:
    threads = NewThreads()
    deciders = Deciders(store, LeaderSettings(zookeeper=server.address, session_timeout_s=SESSION_S))
    fences = [deciders.of(scope).lead() for scope in ("sweeper", "autoscaler")]
    assert {fence.scope for fence in fences} == {"sweeper", "autoscaler"}
    assert deciders.of("sweeper") is deciders.of("sweeper")
    base = f"/{store.client_id}-ignis-workers/{store.client_id}"
    owners = {
        raw.get(f"{path}/{name}")[1].ephemeralOwner
        for path in (f"{base}/members", f"{base}/scopes/autoscaler/members")
        for name in raw.get_children(path)
    }
    assert len(owners) == 1
    deciders.close()
    deciders.close()
    assert not threads.named("ignis-leader")


# -- hand-over


def test_leaders_follow_each_other_under_rising_epochs(server: Server, candidate: MakeLeader, store: Store) -> None:
    candidates = [candidate(server.address) for _ in range(3)]
    epochs = [candidates[0].lead().epoch]
    for one in candidates[1:]:
        assert one.try_lead() is None
        eventually(lambda one=one: settled(one))
    for turn in range(6):
        candidates[turn % 3].relinquish()
        fence = eventually(candidates[(turn + 1) % 3].try_lead)
        epochs.append(fence.epoch)
        assert store.locks.epoch("sweeper") == fence.epoch
        candidates[turn % 3].start()
        eventually(lambda turn=turn: settled(candidates[turn % 3]))
        leading = [one for one in candidates if one.fence is not None]
        assert leading == [candidates[(turn + 1) % 3]]
    assert epochs == sorted(set(epochs))


def test_who_leads_is_shown(
    server: Server, candidate: MakeLeader, store: Store, monkeypatch: pytest.MonkeyPatch, capfd: Any, embedded_url: str
) -> None:
    leader, other = candidate(server.address, instance="i1"), candidate(server.address, instance="i2")
    assert leader.status().leader == ""
    fence = leader.lead()
    with pytest.raises(LockHeldError, match=f"another instance leads sweeper: i1 epoch {fence.epoch}"):
        other.lead()
    status = other.status()
    assert (status.leader, status.sweeping, status.epoch, status.members, status.here, status.available) == (
        "i1", "i1", fence.epoch, ("i1", "i2"), False, True,
    )  # fmt: skip
    assert leader.since_s is not None
    assert status.since_ms == int(leader.since_s * 1000)
    assert leader.status().here
    names = ("leading", "epoch", "available", "members", "partitions")
    # It deals anew when a watch has told it of the second one.
    eventually(lambda: [leader.stats()[name] for name in names] == [True, fence.epoch, True, 2, 16])
    with ignis.Ignis(embedded_url, client_id=store.client_id) as app:
        app.store.queues.put(QueueRecord("q"))
    monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", f"zk://{server.address}")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    capfd.readouterr()
    assert main(["leader", "-u", embedded_url, "--client-id", store.client_id, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["kind"], shown["leader"], shown["sweeping"]) == ("zookeeper", "i1", "i1")
    assert (shown["epoch"], shown["members"], shown["since_ms"]) == (fence.epoch, ["i1", "i2"], status.since_ms)


def test_changes_are_told(server: Server, candidate: MakeLeader) -> None:
    first, second = candidate(server.address), candidate(server.address)
    told = threading.Event()
    first.lead()
    second.on_change(told.set)
    second.start()
    eventually(lambda: settled(second))
    assert not told.is_set()
    first.close()
    assert told.wait(WAIT_S)
    eventually(second.try_lead)


def test_a_name_is_one_instances(server: Server, candidate: MakeLeader) -> None:
    first, second = candidate(server.address, instance="same"), candidate(server.address, instance="same")
    first.lead()
    with pytest.raises(CoordinatorError, match="another instance goes by the name 'same'"):
        second.lead()
    first.close()
    eventually(second.try_lead)


def test_farms_in_one_election_are_complained_of(
    server: Server, candidate: MakeLeader, store: Store, new_app: MakeApp, memory_url: str, caplog: Any
) -> None:
    elsewhere = new_app(memory_url, client_id=store.client_id, farm_id="far").store
    leader = candidate(server.address)
    leader.lead()
    candidate(server.address, store=elsewhere).start()
    eventually(lambda: "instances of farm far are in one election with those of local" in caplog.text)
    assert leader.fence is not None


# -- lost connections


def test_a_leader_that_is_cut_off_gives_up_and_another_takes_over(
    own_server: Server, link: Link, candidate: MakeLeader, store: Store, caplog: Any
) -> None:
    store.magazines.declare("m", 1)
    store.magazines.load_records("m", 0, [b"0" * 40])
    far, near = (candidate(one, session_timeout_s=SHORT_S) for one in (link.address, own_server.address))
    old = far.lead()
    near.start()
    eventually(lambda: settled(near))
    link.cut()
    new = eventually(near.try_lead)
    assert new.epoch > old.epoch
    with pytest.raises(StaleEpochError):
        store.magazines.transfer("m", "m", [Transfer(0, 1, b"0" * 40, 0)], None, old)
    eventually(lambda: far.fence is None)
    eventually(lambda: far.stats()["losses"] == 1)
    assert far.try_lead() is None
    link.mend()
    eventually(lambda: settled(far))
    assert far.try_lead() is None
    assert near.fence == new
    near.close()
    assert eventually(far.try_lead).epoch > new.epoch
    assert "leadership of sweeper is given up: the connection to ZooKeeper is lost" in caplog.text


def test_a_dropped_connection_ends_the_lead_though_the_session_lives(
    own_server: Server, link: Link, candidate: MakeLeader
) -> None:
    far, near = candidate(link.address), candidate(own_server.address)
    first = far.lead()
    session = far._session._client.client_id
    near.start()
    eventually(lambda: settled(near))
    link.drop()
    second = eventually(near.try_lead)
    assert second.epoch > first.epoch
    eventually(lambda: settled(far))
    assert far._session._client.client_id == session, "it is the same session"
    assert (far.try_lead(), far.stats()["losses"], near.fence) == (None, 1, second)
    near.close()
    assert eventually(far.try_lead).epoch > second.epoch, "a place at the end of the line"


def test_a_suspended_leader_gives_up_at_once_and_stands_again_at_the_end(
    own_server: Server, candidate: MakeLeader
) -> None:
    """The server freezes for less than the session timeout as it counts it: the session survives, the lead does not."""
    leader = candidate(own_server.address, session_timeout_s=SHORT_S)
    first = leader.lead()
    own_server.stop()
    eventually(lambda: leader.fence is None)
    assert not leader.stats()["available"] or leader.stats()["losses"] == 1
    with pytest.raises(CoordinatorUnreachableError):
        leader.lead()
    own_server.go_on()
    second = eventually(leader.try_lead)
    assert second.epoch > first.epoch
    assert leader.stats()["offices"] == 2


def test_without_an_answer_a_fence_runs_out_by_itself(server: Server, candidate: MakeLeader) -> None:
    """As in a process that was paused: before anything tells it, it knows by the time."""
    leader = candidate(server.address)
    fence = leader.lead()
    leader._until_s = 0.0
    assert leader.fence is None
    assert leader.try_lead() is None
    leader._poke.set()
    assert eventually(leader.try_lead) == fence


def test_nothing_waits_for_zookeeper_and_all_heals(
    own_server: Server, new_app: MakeApp, embedded_url: str, caplog: Any
) -> None:
    """Down at the start, up, and down again: publishing and consuming go on, nothing is swept, and it is said."""
    caplog.set_level(logging.INFO, "ignis")
    own_server.kill()
    app = new_app(
        embedded_url,
        sweeper={"interval": 0.1, "initial_delay": 0},
        leader={"zookeeper": own_server.address, "session_timeout": SHORT_S, "refresh": 0.2},
    )
    queue = app.queue("jobs", int, shards=2)
    queue.open()
    handled: list[int] = []
    queue.handler(handled.append)
    orphan = app.queue("orphans", int, shards=1)
    orphan.open()
    app.start()

    def works(number: int) -> None:
        queue.publish(number)
        eventually(lambda: number in handled)

    def leave_behind(number: int) -> None:
        """Claimed under the name of a process that is dead."""
        orphan.publish(number)
        pid = os.fork()
        if pid == 0:
            try:
                child = ignis.Ignis(embedded_url)
                child.queue("orphans", int).main.fire(1)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def away() -> bool:
        return not app.stats()["sweeper"]["leader"]["available"]

    works(1)
    leave_behind(1)
    eventually(away)
    eventually(lambda: "nobody leads sweeper from here" in caplog.text)
    assert "publishing and consuming go on" in caplog.text
    with pytest.raises(CoordinatorUnreachableError):
        app.sweep_queue("orphans")
    assert app.sweeper().passes == 0
    assert sidelined(orphan) == []
    own_server.start()
    eventually(lambda: len(sidelined(orphan)) == 1)
    assert not away()
    own_server.kill()
    eventually(away)
    passes = app.sweeper().passes
    works(2)
    leave_behind(2)
    assert app.stats()["sweeper"]["leader"]["unavailable_s"] >= 0
    assert not app.stats()["leaders"]["sweeper"]["leading"]
    assert app.sweeper().passes - passes <= 1, "one that had begun"
    own_server.start()
    eventually(lambda: len(sidelined(orphan)) == 2)
    works(3)
    assert "ZooKeeper is in order again for sweeper" in caplog.text


# -- epochs


def test_an_epoch_below_the_stores_is_refused_and_said(
    server: Server, candidate: MakeLeader, store: Store, caplog: Any
) -> None:
    """As after ZooKeeper lost its data."""
    store.locks.raise_epoch("sweeper", 1 << 40)
    leader = candidate(server.address)
    eventually(lambda: leader.try_lead() is None and leader.stats()["refused_epochs"])
    assert "raise leader.epoch_base" in caplog.text
    leader.close()
    mended = candidate(server.address, epoch_base=1 << 41)
    assert mended.lead().epoch > 1 << 41


# -- who may


def test_nodes_are_open_to_their_user_alone(server: Server, candidate: MakeLeader, store: Store, raw: Any) -> None:
    from kazoo.exceptions import NoAuthError

    leader = candidate(f"ann:s3cret@{server.address}", instance="i1")
    leader.lead()
    member = f"/{store.client_id}-ignis-workers/{store.client_id}/members/i1"
    with pytest.raises(NoAuthError):
        raw.get(member)
    with driver(server.address, auth_data=[("digest", "ann:s3cret")]) as client:
        assert client.get(member)[0]
    stranger = candidate(server.address, user="bob", password="other")
    with pytest.raises(CoordinatorError, match="NoAuthError"):
        stranger.lead()
    assert "s3cret" not in repr(leader._settings) + repr(leader._session.address)
    friend = candidate(server.address, user="ann", password="s3cret")
    with pytest.raises(LockHeldError):
        friend.lead()


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, str]]]:
    """Its port, and the settings of a client that it accepts. It wants a certificate of every client."""
    zookeeper_support.need()
    directory = tmp_path_factory.mktemp("certificates")
    zookeeper_support.make_certificates(directory)
    files = {"tls_cafile": "ca.pem", "tls_certfile": "client.pem", "tls_keyfile": "client.key"}
    with zookeeper_support.running_with_tls(directory) as port:
        yield port, {"tls": "yes", **{name: f"{directory}/{file}" for name, file in files.items()}}


def test_tls_with_a_certificate_of_the_clients(tls_server: tuple[int, dict[str, str]], candidate: MakeLeader) -> None:
    port, settings = tls_server
    assert candidate(f"127.0.0.1:{port}", **settings).lead().epoch


# The driver leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"tls": "no"}, marks=pytest.mark.long),
        {"tls_cafile": ""},
        pytest.param({"tls_certfile": "", "tls_keyfile": ""}, marks=pytest.mark.long),
        {"host": "localhost"},
    ],
    ids=["plain", "unknown authority", "no certificate", "other name"],
)
def test_tls_that_does_not_fit_does_not_connect(
    tls_server: tuple[int, dict[str, str]], candidate: MakeLeader, change: dict[str, str]
) -> None:
    port, settings = tls_server
    given = {**settings, **change}
    host = given.pop("host", "127.0.0.1")
    leader = candidate(f"{host}:{port}", session_timeout_s=SHORT_S, **given)
    with pytest.raises(CoordinatorUnreachableError, match="cannot be reached"):
        leader.lead()
    leader.close()
    del leader
    gc.collect()


def test_the_hosts_name_may_be_left_unchecked(tls_server: tuple[int, dict[str, str]], candidate: MakeLeader) -> None:
    port, settings = tls_server
    assert candidate(f"localhost:{port}", **settings, tls_check_hostname="no").lead()


def test_a_chroot_of_several_levels_is_made(server: Server, candidate: MakeLeader, store: Store, raw: Any) -> None:
    base = f"/{store.client_id}-ignis-workers"
    candidate(f"{server.address}/one/two").lead()
    candidate(server.address).lead()
    assert raw.exists(f"/one/two{base}")
    assert raw.exists(base)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("zk://", "names hosts ''"),
        ("http://h1", "is not an address"),
        ("zk://h1,,h2//x", "has the chroot"),
        ("h1:2181;h2", "names hosts"),
        ("zk://u:pass@", "names hosts"),
    ],
)
def test_bad_addresses_are_refused(store: Store, address: str, why: str) -> None:
    zookeeper_support.need()
    with pytest.raises(ConfigError, match=why) as caught:
        make_leader(store, "sweeper", LeaderSettings(zookeeper=address))
    assert "pass" not in str(caught.value)


# -- life


def test_closed_and_forked_candidates_say_so(server: Server, candidate: MakeLeader) -> None:
    leader = candidate(server.address)
    fence = leader.lead()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        word = b"?"
        try:
            word = b"led" if leader.fence is not None else b"free"
            leader.try_lead()
        except ForkedHandleError:
            leader.close()
            word += b" refused"
        finally:
            os.write(write, word)
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"free refused"
    os.close(read)
    os.close(write)
    assert leader.fence == fence, "the parent's is untouched"
    assert leader.status().here
    leader.close()
    leader.close()
    with pytest.raises(ClosedError):
        leader.try_lead()


def test_closing_does_not_wait_for_a_server_that_is_away(own_server: Server, candidate: MakeLeader) -> None:
    leader = candidate(own_server.address, session_timeout_s=SHORT_S)
    leader.lead()
    own_server.stop()
    closing = threading.Thread(target=leader.close)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    own_server.go_on()
