"""An instance of the Java system in an election: Curator's own `LeaderSelector`, in a virtual machine that the test kills.

Curator and py4j come with PySpark. What the Java library does around the selector (member nodes, assignments, activation)
is done here as its documents describe it, through Curator as well, so that every node is made and read by it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import pytest

from tests.support import WAIT_S
from tests.support import zookeeper as zookeeper_support

SKIPPED = "no Curator: it comes with PySpark (pip install 'ignis-mq[spark]')"


def need() -> None:
    """Skips the test without ZooKeeper, Java or Curator; fails it in CI, where all can be had."""
    zookeeper_support.need()
    why = "" if _jars() else SKIPPED
    if why and os.environ.get("CI") == "true" and sys.platform == "linux":
        pytest.fail(why)
    if why:
        pytest.skip(why)


def _jars() -> str:
    """The class path; empty when Curator is not in it."""
    try:
        import py4j  # noqa: F401
        import pyspark
    except ImportError:
        return ""
    directory = os.path.join(os.path.dirname(pyspark.__file__), "jars")
    there = os.path.isdir(directory) and any(name.startswith("curator-recipes") for name in os.listdir(directory))
    return os.path.join(directory, "*") if there else ""


class _Listener:
    """Leads until told to stop. Called by Curator, in a thread of its own."""

    def __init__(self) -> None:
        self.leading = threading.Event()
        self.release = threading.Event()
        self.states: list[str] = []

    def takeLeadership(self, client: Any) -> None:  # noqa: N802 - the interface's name
        self.release.clear()
        self.leading.set()
        self.release.wait(10 * WAIT_S)
        self.leading.clear()

    def stateChanged(self, client: Any, state: Any) -> None:  # noqa: N802 - the interface's name
        self.states.append(str(state))

    class Java:
        implements = ("org.apache.curator.framework.recipes.leader.LeaderSelectorListener",)


class CuratorInstance:
    """One Java instance: a member and a candidate as long as it lives.

    Args:
        address: of the server.
        client_id: whose election.
        name: the instance's.
        session_ms: how long its nodes outlive it.
    """

    def __init__(self, address: str, client_id: str, name: str, session_ms: int) -> None:
        from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway

        self.name = name
        self._base = f"/{client_id}-ignis-workers/{client_id}"
        port, self._process = launch_gateway(
            classpath=_jars(), die_on_exit=True, return_proc=True, create_new_process_group=True,
            javaopts=["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"],
        )  # fmt: skip
        self._gateway = JavaGateway(
            # Nothing is given back while it lives: finalizers would call it in the middle of anything.
            gateway_parameters=GatewayParameters(port=port, auto_convert=True, enable_memory_management=False),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        server = self._gateway.java_gateway_server
        heard = self._gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), heard)
        curator = self._gateway.jvm.org.apache.curator
        self._modes = self._gateway.jvm.org.apache.zookeeper.CreateMode
        self.client = curator.framework.CuratorFrameworkFactory.newClient(
            address, session_ms, session_ms, curator.retry.RetryOneTime(100)
        )
        self.client.start()
        self.listener = _Listener()
        self.client.create().creatingParentsIfNeeded().withMode(self._modes.EPHEMERAL).forPath(
            f"{self._base}/members/{name}", b""
        )
        self.selector = curator.framework.recipes.leader.LeaderSelector(
            self.client, f"{self._base}/loadbalancer-leader", self.listener
        )
        self.selector.setId(name)
        self.selector.autoRequeue()
        self.selector.start()

    @property
    def leads(self) -> bool:
        return self.listener.leading.is_set() and bool(self.selector.hasLeadership())

    def leader(self) -> str:
        """Who leads, as Curator sees it."""
        return str(self.selector.getLeader().getId())

    def participants(self) -> list[str]:
        """Who stands, as Curator reads it; the leader first."""
        return [str(one.getId()) for one in self.selector.getParticipants()]

    def members(self) -> list[str]:
        return sorted(map(str, self.client.getChildren().forPath(f"{self._base}/members")))

    def assign(self, partitions: int) -> None:
        """As leader: deals the partitions to the members in turn. The Java library knows of no epoch."""
        shares: dict[str, list[int]] = {name: [] for name in self.members()}
        for share in range(partitions):
            shares[list(shares)[share % len(shares)]].append(share)
        for name, some in shares.items():
            data = json.dumps({"balancerId": self.name, "partitions": some}).encode()
            path = f"{self._base}/communicator/{name}"
            if self.client.checkExists().forPath(path) is None:
                self.client.create().creatingParentsIfNeeded().forPath(path, data)
            else:
                self.client.setData().forPath(path, data)

    def assignment(self) -> dict[str, Any]:
        """What it was assigned; empty when nothing was."""
        path = f"{self._base}/communicator/{self.name}"
        if self.client.checkExists().forPath(path) is None:
            return {}
        found = json.loads(bytes(self.client.getData().forPath(path)))
        return found if isinstance(found, dict) else {}

    @property
    def active(self) -> bool:
        """As the Java library decides it: by the balancer id alone."""
        return self.assignment().get("balancerId") == self.name

    def give_up(self) -> None:
        """The leadership; it stands again at the end of the line."""
        self.listener.release.set()

    def kill(self) -> None:
        """-9: its session runs out by itself."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT_S)
        self.listener.release.set()

    def close(self) -> None:
        self.listener.release.set()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(WAIT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._gateway.shutdown_callback_server()
        self._gateway.close()
