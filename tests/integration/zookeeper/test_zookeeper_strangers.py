"""What others write into ZooKeeper: odd bytes, other people's nodes, parents that vanish. Nothing of it ends an election."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.cli import output
from ignis.config import LeaderSettings
from ignis.errors import CoordinatorError
from ignis.leader import Leadership, make_leader
from ignis.storage.base import Store
from tests.support import WAIT_S, eventually
from tests.support import zookeeper as zookeeper_support
from tests.support.zookeeper import Server

pytestmark = pytest.mark.integration

MakeApp = Callable[..., ignis.Ignis]
MakeLeader = Callable[..., Any]

SESSION_S = 5.0
_clients = itertools.count(1)

ODD: dict[str, bytes | None] = {
    "not utf-8": b'{"farmId":"x\xff"}',
    "name not utf-8": b'{"farm\xffId":"x"}',
    "lone surrogate": b'{"farmId":"\\ud800","balancerId":"\\ud800"}',
    "deep lists": b"[" * 100_000,
    "deep maps": b'{"balancerId":' * 50_000,
    "huge number": b'{"balancerId":"b","epoch":' + b"9" * 6_000 + b',"sinceMs":' + b"9" * 6_000 + b"}",
    "infinite": b'{"balancerId":"b","epoch":1e400,"sinceMs":-1e400}',
    "no data": None,
    "empty": b"",
    "null": b"null",
    "wrong types": b'{"balancerId":[],"epoch":"x","partitions":{},"sinceMs":null,"farmId":7,"owner":[[]]}',
    "terminal": b'{"farmId":"\\u001b[2Jx\\nERROR root: y","balancerId":"\\u001b]0;z\\u0007"}',
    "large": b'{"farmId":"' + b"f" * 500_000 + b'"}',
    "zeros": bytes(1_000),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with zookeeper_support.running() as one:
        yield one


@pytest.fixture
def store(new_app: MakeApp, memory_url: str) -> Store:
    return new_app(memory_url, client_id=f"strange{next(_clients)}").store


@pytest.fixture
def candidate(server: Server, store: Store) -> Iterator[MakeLeader]:
    """``candidate(instance, **settings)``: one that is closed after the test."""
    made: list[Leadership] = []

    def make(instance: str = "", **settings: Any) -> Any:
        given = {"zookeeper": f"zk://{server.address}", "session_timeout_s": SESSION_S, "refresh_s": 0.3, **settings}
        made.append(make_leader(store, "sweeper", LeaderSettings(instance=instance, **given)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def raw(server: Server) -> Iterator[Any]:
    """The bare driver, as another program would use it."""
    from kazoo.client import KazooClient

    client = KazooClient(server.address)
    client.start(WAIT_S)
    yield client
    client.stop()
    client.close()


class Tree:
    """The nodes of one election, written by somebody else."""

    def __init__(self, client: Any, store: Store) -> None:
        self.client = client
        self.base = f"/{store.client_id}-ignis-workers/{store.client_id}"
        self.contest = f"{self.base}/loadbalancer-leader"
        self.members = f"{self.base}/members"
        self.communicator = f"{self.base}/communicator"

    def put(self, path: str, data: bytes | None, acl: Any = None) -> None:
        """The driver itself writes no node without data."""
        from kazoo.exceptions import NodeExistsError, NoNodeError
        from kazoo.protocol.serialization import Create
        from kazoo.security import OPEN_ACL_UNSAFE

        self.client.ensure_path(path.rpartition("/")[0])
        done = self.client.handler.async_result()
        self.client._call(Create(path, data, acl or OPEN_ACL_UNSAFE, 0), done)
        try:
            done.get(timeout=WAIT_S)
        except NodeExistsError:
            try:
                self.client.set(path, data or b"")
            except NoNodeError:
                self.put(path, data, acl)

    def vanish(self, path: str) -> bool:
        """Deletes a node and all below it, in one transaction; False when there was a change meanwhile. Deleted one by
        one, the election makes the first ones anew before the last one is gone, and again at the next attempt."""
        from kazoo.exceptions import KazooException, NoNodeError

        doomed = [path]
        try:
            for one in doomed:  # which grows
                doomed += [f"{one}/{name}" for name in self.client.get_children(one)]
        except NoNodeError:
            return False
        transaction = self.client.transaction()
        for one in reversed(doomed):
            transaction.delete(one)
        return not any(isinstance(done, KazooException) for done in transaction.commit())


@pytest.fixture
def tree(raw: Any, store: Store) -> Tree:
    return Tree(raw, store)


def leads(leader: Any) -> bool:
    return leader.try_lead() is not None and leader.stats()["available"]


def whole(first: Any, second: Any) -> bool:
    """Either leads, both take part, and anybody sees so."""
    leading = [one for one in (first, second) if leads(one)]
    seen = first.status()
    return (
        len(leading) == 1
        and seen.leader == seen.sweeping != ""
        and seen.members == ("i1", "i2")
        and all(one.stats()["available"] for one in (first, second))
    )


def goes_round(leader: Any, rounds: int = 3) -> None:
    """Whole looks begin and end from here on, and it still leads under the epoch it had."""
    epoch = eventually(leader.try_lead).epoch
    for _ in range(rounds):
        before = leader._looked_s
        leader._on_watch()
        eventually(lambda before=before: leader._looked_s > before)
    assert eventually(leader.try_lead).epoch == epoch
    assert (leader.stats()["available"], leader.stats()["trouble"]) == (True, "")


@pytest.mark.parametrize(
    "odd",
    [
        name
        if name in ("not utf-8", "deep lists", "no data", "wrong types")
        else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(ODD)
    ],
)
def test_odd_bytes_in_any_node_end_no_election(
    odd: str, candidate: MakeLeader, tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    data = ODD[odd]
    for path in (
        f"{tree.members}/odd", f"{tree.members}/i1", f"{tree.communicator}/odd", f"{tree.communicator}/i1",
        f"{tree.communicator}/i2", f"{tree.contest}/odd",
    ):  # fmt: skip
        tree.put(path, data)
    first, second = candidate("i1"), candidate("i2")
    eventually(lambda: leads(first))
    assert second.try_lead() is None
    eventually(lambda: second.assignment is not None)
    for path in (f"{tree.members}/odd", f"{tree.communicator}/i1", f"{tree.communicator}/i2", f"{tree.contest}/odd"):
        tree.put(path, data)
    goes_round(first)
    for one in (first, second):
        status = one.status()
        assert (status.available, status.leader, status.sweeping) == (True, "i1", "i1")
        output.pairs({"leader": status.leader, "since_at_ms": status.since_ms})
    assert "Traceback" not in caplog.text
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 100_000
    first.close()
    eventually(lambda: leads(second))


def test_a_leaders_name_that_another_wrote_is_shown_in_one_line(candidate: MakeLeader, tree: Tree) -> None:
    name = b"\x1b[2Jevil\nERROR\xff" + b"x" * 5_000
    tree.client.create(f"{tree.contest}/_c_0-lock-0000000000", name, ephemeral=True, makepath=True)
    status = candidate("i1").status()
    assert "evil" in status.leader
    assert status.leader.isprintable()
    assert len(status.leader) < 300


def test_nodes_below_what_is_to_be_removed_end_no_election(candidate: MakeLeader, tree: Tree) -> None:
    """A node with children cannot be removed: neither a stranger's, nor one in the way of an assignment."""
    for name in ("junk", "i1", "i2"):
        tree.put(f"{tree.communicator}/{name}/below/deeper", b"x")
        tree.put(f"{tree.members}/{name}/below", b"x")
    first, second = candidate("i1"), candidate("i2")
    eventually(lambda: leads(first))
    assert second.try_lead() is None
    eventually(lambda: second.assignment is not None and second.assignment.balancer_id == "i1")
    goes_round(first)
    assert tree.client.exists(f"{tree.communicator}/junk/below/deeper"), "it is not ours to remove"
    first.close()
    eventually(lambda: leads(second))
    goes_round(second)


def test_nodes_that_we_may_not_read_end_no_election(candidate: MakeLeader, tree: Tree) -> None:
    from kazoo.security import make_digest_acl

    theirs = [make_digest_acl("ann", "secret", all=True)]
    for path in (f"{tree.members}/odd", f"{tree.communicator}/odd", f"{tree.communicator}/i1", f"{tree.contest}/odd"):
        tree.put(path, b"x", theirs)
    leader = candidate("i1")
    eventually(lambda: leads(leader))
    goes_round(leader)
    assert leader.status().leader == "i1"
    assert "odd" in leader.status().members


def test_one_that_cannot_be_told_does_not_lead_and_lets_others(
    server: Server, candidate: MakeLeader, tree: Tree
) -> None:
    """Its assignment's node is another's, with children: it can neither be read, nor removed, nor written."""
    from kazoo.security import make_digest_acl

    tree.put(f"{tree.communicator}/i1", b"x", [make_digest_acl("ann", "secret", all=True)])
    other = type(tree.client)(server.address, auth_data=[("digest", "ann:secret")])
    other.start(WAIT_S)
    try:
        other.create(f"{tree.communicator}/i1/below", b"x")
        first = candidate("i1", session_timeout_s=1.5)
        with pytest.raises(CoordinatorError):
            first.lead()
        eventually(lambda: not first.stats()["available"] and "communicator/i1" in first.stats()["trouble"])
        second = candidate("i2", session_timeout_s=1.5)
        eventually(lambda: leads(second))
        goes_round(second)
        assert first.fence is None
    finally:
        other.stop()
        other.close()


@pytest.mark.parametrize(
    "gone", ["loadbalancer-leader", "members", "communicator", ""], ids=["contest", "members", "assignments", "all"]
)
def test_deleted_parents_come_back(gone: str, candidate: MakeLeader, tree: Tree) -> None:
    first, second = candidate("i1"), candidate("i2")
    eventually(first.try_lead)
    assert second.try_lead() is None
    eventually(lambda: second.assignment is not None)
    eventually(lambda: tree.vanish(f"{tree.base}/{gone}".rstrip("/")))
    eventually(lambda: whole(first, second))


def test_parents_that_are_deleted_again_and_again_come_back(
    candidate: MakeLeader, tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    """One by one, while the election makes them anew."""
    from kazoo.exceptions import NotEmptyError

    first, second = candidate("i1"), candidate("i2")
    eventually(first.try_lead)
    assert second.try_lead() is None
    for _ in range(30):
        with contextlib.suppress(NotEmptyError):
            tree.client.delete(tree.base, recursive=True)
    eventually(lambda: whole(first, second))
    assert not [one for one in caplog.records if one.exc_info]


def test_a_parent_that_vanishes_while_the_way_is_made_is_made_again(
    candidate: MakeLeader, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver makes the nodes above one by one, and fails when one of them is gone before the next is there."""
    leader = candidate("i1", refresh_s=WAIT_S, session_timeout_s=WAIT_S)
    driver, left = leader._session._client, 2
    real = driver.create_async

    def create_async(path: str, *args: Any, **settings: Any) -> Any:
        nonlocal left
        if path == tree.contest and left:
            left -= 1
            assert tree.vanish(tree.base)
        return real(path, *args, **settings)

    monkeypatch.setattr(driver, "create_async", create_async)
    assert leader.lead()
    assert (left, leader.stats()["trouble"]) == (0, "")


def test_generated_bytes_everywhere(candidate: MakeLeader, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger that writes, deletes and writes again all that the election reads, while it goes on."""
    from kazoo.exceptions import KazooException

    dice = random.Random(20_260_301)
    first, second = candidate("i1"), candidate("i2")
    first.lead()
    assert second.try_lead() is None
    scalars = ("x", "", -1, 1 << 62, 1 << 63, 1 << 200, 1.5, None, True, "\ud83d", "i1", "i2", "\0")

    def value(depth: int = 0) -> Any:
        kind = dice.randrange(4 if depth < 4 else 2)
        if kind == 2:
            return [value(depth + 1) for _ in range(dice.randrange(4))]
        if kind == 3:
            return {name: value(depth + 1) for name in dice.sample(("a", "epoch", "farmId"), dice.randrange(3))}
        return dice.choice(scalars)

    def data() -> bytes | None:
        kind = dice.randrange(5)
        if kind == 0:
            return dice.choice([one for one in ODD.values() if one is None or len(one) < 10_000])
        if kind == 1:
            return dice.randbytes(dice.randrange(200))
        fields = {name: value() for name in ("balancerId", "epoch", "partitions", "sinceMs", "owner", "farmId")}
        text = bytearray(json.dumps(fields).encode())
        if kind == 2:
            for _ in range(dice.randrange(1, 4)):
                text[dice.randrange(len(text))] = dice.randrange(256)
        return bytes(text)

    names = ["i1", "i2", "junk", "junk/below", "a b", "\u00fc" * 40, "-lock-", f"lock-{'9' * 5_000}", "lock-\u0665"]
    for _ in range(150):
        path = f"{dice.choice((tree.contest, tree.members, tree.communicator))}/{dice.choice(names)}"
        if path.endswith("/i1") and path.startswith(tree.members):
            continue  # taking its name is not writing odd things
        try:
            if dice.randrange(4):
                tree.put(path, data())
            else:
                tree.client.delete(path)
        except KazooException:
            continue  # it was not there, has children, or its parent ends with a session

    def one_leads() -> bool:
        return sum(leads(one) for one in (first, second)) == 1

    eventually(one_leads)
    for one in (first, second):
        assert one.status().available
        assert one.stats()["available"]
    assert "Traceback" not in caplog.text
    assert not [one for one in caplog.records if one.exc_info]


def test_a_member_node_that_outlives_sessions_keeps_nobodys_name(candidate: MakeLeader, tree: Tree) -> None:
    """Instances make theirs ephemeral: one without a session is nobody's, and will never end by itself."""
    tree.put(f"{tree.members}/i1", b"{}")
    leader = candidate("i1")
    assert leader.lead()
    assert tree.client.exists(f"{tree.members}/i1").ephemeralOwner


def test_a_place_that_outlives_sessions_is_nobodys(candidate: MakeLeader, tree: Tree) -> None:
    for number in range(3):
        tree.put(f"{tree.contest}/_c_{number}-lock-000000000{number}", b"nobody")
    first, second = candidate("i1"), candidate("i2")
    assert first.lead()
    assert second.try_lead() is None
    goes_round(first)
    assert [one.status().leader for one in (first, second)] == ["i1", "i1"]
    first.close()
    eventually(lambda: leads(second))


def test_a_failing_round_is_shown(candidate: MakeLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that fails: who cannot hold an election is not available, and does not keep the first place."""
    first = candidate("i1", session_timeout_s=1.5)
    epoch = first.lead().epoch

    def broken(*args: object) -> None:
        raise ZeroDivisionError("no reason at all")

    monkeypatch.setattr(first._contest, "assign", broken)
    first._on_watch()
    eventually(lambda: not first.stats()["available"])
    assert "no reason at all" in first.stats()["trouble"]
    eventually(lambda: first.fence is None)
    second = candidate("i2")
    assert eventually(second.try_lead).epoch > epoch
    eventually(lambda: first.stats()["available"], "who only waits can take part")
    assert first.stats()["trouble"] == ""
