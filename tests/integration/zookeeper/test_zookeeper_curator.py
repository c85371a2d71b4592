"""One election of Python instances and of one that is led by Curator, as the Java system is: they agree on the leader, and
each reads what the other has written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.config import LeaderSettings
from ignis.leader import Leadership, make_leader
from ignis.storage.base import Store
from tests.support import curator as curator_support
from tests.support import eventually
from tests.support import zookeeper as zookeeper_support
from tests.support.curator import CuratorInstance
from tests.support.zookeeper import Server

pytestmark = pytest.mark.integration

MakeApp = Callable[..., ignis.Ignis]
MakeLeader = Callable[[str], Any]
MakeJava = Callable[[str], CuratorInstance]

SESSION_S = 3.0


@pytest.fixture
def server() -> Iterator[Server]:
    curator_support.need()
    with zookeeper_support.running() as one:
        yield one


@pytest.fixture
def store(new_app: MakeApp, memory_url: str) -> Store:
    return new_app(memory_url, client_id="shop").store


@pytest.fixture
def python(server: Server, store: Store) -> Iterator[MakeLeader]:
    made: list[Leadership] = []

    def make(name: str) -> Leadership:
        settings = LeaderSettings(
            zookeeper=f"zk://{server.address}", session_timeout_s=SESSION_S, refresh_s=1, instance=name, partitions=5
        )
        made.append(make_leader(store, "sweeper", settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def java(server: Server) -> Iterator[MakeJava]:
    made: list[CuratorInstance] = []

    def make(name: str) -> CuratorInstance:
        made.append(CuratorInstance(server.address, "shop", name, int(SESSION_S * 1000)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_leader_whoever_leads_and_whoever_dies(python: MakeLeader, java: MakeJava) -> None:
    first = python("python-1")
    epoch = first.lead().epoch
    peer = java("java-1")

    # Python leads: Java sees it, stands behind it, and is dealt its share.
    eventually(lambda: peer.participants() == ["python-1", "java-1"])
    assert peer.leader() == "python-1"
    eventually(lambda: first.status().members == ("java-1", "python-1"))
    eventually(lambda: peer.assignment().get("partitions") == [1, 3])
    assert peer.assignment()["balancerId"] == "python-1"
    assert peer.members() == ["java-1", "python-1"]
    assert (peer.leads, peer.active, first.fence is not None) == (False, False, True)

    # Python lets go: Java leads, and what it says is read here.
    second = python("python-2")
    second.start()
    eventually(lambda: peer.participants() == ["python-1", "java-1", "python-2"])
    first.relinquish()
    eventually(lambda: peer.leads)
    assert (first.fence, second.try_lead()) == (None, None)
    peer.assign(5)
    status = eventually(lambda: second.status() if second.status().sweeping == "java-1" else None)
    assert (status.leader, status.sweeping, status.here) == ("java-1", "java-1", False)
    assert status.members == ("java-1", "python-2")
    eventually(lambda: second.assignment is not None and second.assignment.balancer_id == "java-1")
    assert second.assignment.partitions == [1, 3]
    assert (second.fence, second.try_lead(), peer.active) == (None, None, True)

    # Java dies: its nodes go with its session, and the next in line takes over under a higher epoch.
    peer.kill()
    fence = eventually(second.try_lead)
    assert fence.epoch > epoch
    assert (second.status().leader, second.status().sweeping) == ("python-2", "python-2")
    eventually(lambda: second.status().members == ("python-2",))


@pytest.mark.long
def test_java_leads_first_and_stands_again(python: MakeLeader, java: MakeJava) -> None:
    peer = java("java-1")
    eventually(lambda: peer.leads)
    peer.assign(5)
    mine = python("python-1")
    mine.start()
    eventually(lambda: peer.participants() == ["java-1", "python-1"])
    assert peer.leader() == "java-1"
    assert mine.try_lead() is None
    assert mine.status().leader == "java-1"
    peer.assign(5)
    eventually(lambda: mine.assignment is not None and mine.assignment.partitions == [1, 3])
    assert mine.fence is None

    peer.give_up()
    fence = eventually(mine.try_lead)
    eventually(lambda: peer.participants() == ["python-1", "java-1"])
    eventually(lambda: not peer.active and peer.assignment().get("balancerId") == "python-1")
    assert (peer.leads, mine.fence) == (False, fence)
    assert peer.leader() == mine.status().leader == "python-1"

    # And back: the epoch of each leadership here is above the one before.
    mine.relinquish()
    eventually(lambda: peer.leads)
    assert mine.fence is None
    mine.start()
    eventually(lambda: peer.participants() == ["java-1", "python-1"])
    peer.give_up()
    assert eventually(mine.try_lead).epoch > fence.epoch


@pytest.mark.long
def test_never_two_at_once(python: MakeLeader, java: MakeJava) -> None:
    """The leadership goes round; whenever anybody looks, one of them has it at most."""
    peer, ours = java("java-1"), [python("python-1"), python("python-2")]
    for one in ours:
        one.start()
    seen: set[str] = set()
    for _ in range(6):
        holders = eventually(
            lambda: [one.instance for one in ours if one.try_lead()] or (["java-1"] if peer.leads else [])
        )
        holders = [one.instance for one in ours if one.fence is not None] + (["java-1"] if peer.leads else [])
        assert len(holders) == 1, holders
        seen.update(holders)
        if holders == ["java-1"]:
            peer.give_up()
            eventually(lambda: not peer.listener.leading.is_set())
        else:
            leader = next(one for one in ours if one.instance == holders[0])
            leader.relinquish()
            leader.start()
        time.sleep(0.05)
    assert seen == {"java-1", "python-1", "python-2"}
