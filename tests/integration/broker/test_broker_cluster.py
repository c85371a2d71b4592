"""Several brokers in front of one store on servers of its own: one queue, and who is there."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ignis.broker.client import requests, store_requests
from ignis.errors import CoordinatorUnreachableError
from ignis.native import encode_record
from tests.integration.broker.test_broker_consuming import places, texts
from tests.support import WAIT_S, eventually
from tests.support import aerospike as aerospike_support
from tests.support import zookeeper as zookeeper_support
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration


def test_brokers_over_one_aerospike_serve_one_queue() -> None:
    url = aerospike_support.url(scope="local")
    scope = {"client_id": parse_qs(urlsplit(url).query)["client_id"][0]}
    seen: Counter[str] = Counter()
    try:
        with contextlib.ExitStack() as stack:
            brokers = [stack.enter_context(RunningBroker(url, settings={"redeliver_after_s": 0})) for _ in range(2)]
            clients = [stack.enter_context(one.client(timeout_s=WAIT_S, **scope)) for one in brokers]
            clients[0].ask(requests.create_queue("q", {"shards": 4, "codec": "raw"}))
            for number in range(40):
                clients[number % 2].ask(requests.send("q", encode_record(str(number).encode())))
            lost = brokers[0].client(timeout_s=WAIT_S, **scope)
            held = lost.consume("q", 5, wait_s=WAIT_S)
            assert held.total() >= 1
            assert lost.connection is not None
            lost.connection.lose("cable cut")
            while len(seen) < 40:
                for client in clients:
                    found = client.consume("q", 7, wait_s=0.2)
                    seen.update(texts(found))
                    assert client.ack("q", places(found)) == found.total()
            lost.close()
            for client in clients:
                info = client.ask(requests.queue_info("q"))
                assert (info["pending"], info["in_flight"]) == (0, 0)
                assert len(client.ask(requests.cluster_status())) == 2
    finally:
        aerospike_support.forget(aerospike_support.address(), list(scope.values()))
    assert set(seen) == {str(number) for number in range(40)}


def test_brokers_see_each_other_through_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zookeeper_support.running() as server:
        monkeypatch.setenv("IGNIS_LEADER_ZOOKEEPER", f"zk://127.0.0.1:{server.port}/brokers")
        monkeypatch.setenv("IGNIS_LEADER_SESSION_TIMEOUT", "2")
        url = f"embedded://{tmp_path}/store"
        with RunningBroker(url) as one, RunningBroker(url) as other, one.client() as client:
            members = client.ask(requests.cluster_status())
            assert {each["broker"] for each in members} == {one.broker.id, other.broker.id}
            assert {each["address"] for each in members} == {f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"}
            other.stop()
            eventually(lambda: [each["broker"] for each in client.ask(requests.cluster_status())] == [one.broker.id])
            server.remove()

            def unreachable() -> bool:
                try:
                    client.ask(requests.cluster_status())
                except CoordinatorUnreachableError:
                    return True
                return False

            eventually(unreachable)
            assert client.ask(store_requests.names()) == [], "queues are served without ZooKeeper"
