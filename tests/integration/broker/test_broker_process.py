"""``ignis broker`` as a process: its first line, its signals, its death."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ignis.broker.client import requests
from ignis.broker.client.address import BrokerAddress
from ignis.broker.client.sync_client import SyncClient
from ignis.cli import main
from ignis.metric_catalogue import BROKER, BUILD
from ignis.native import PackedBatch, Record, encode_record
from ignis.storage import open_store
from ignis.storage.base import FireResult
from tests.support import WAIT_S, eventually

pytestmark = pytest.mark.integration


class BrokerProcess:
    """``ignis broker`` on a free port, or on the one given."""

    def __init__(self, url: str, port: int = 0, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "ignis",
            "broker",
            "--url",
            url,
            "--bind",
            f"127.0.0.1:{port}",
            "--json",
            *options,
        ]
        environment = {**os.environ, "IGNIS_BROKER_REDELIVER_AFTER_S": "0.05"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.started: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.port = int(self.started["port"])

    def client(self, **settings: Any) -> SyncClient:
        return SyncClient(
            BrokerAddress("127.0.0.1", self.port), {"timeout_s": WAIT_S, "connect_timeout_s": WAIT_S, **settings}
        )

    def end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.rest = self.process.communicate(timeout=2 * WAIT_S)
        return self.process.returncode

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=WAIT_S)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store"


def bodies(result: FireResult) -> list[str]:
    return [Record(record).body.decode() for claim in result.claims for record in claim.records if record is not None]


def places(result: FireResult) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for claim in result.claims:
        found.setdefault(claim.shard, []).extend(claim.pointers)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(url: str, number: int) -> None:
    with BrokerProcess(url) as broker:
        assert broker.started["event"] == "started"
        assert broker.started["pid"] == broker.process.pid
        assert (broker.started["users"], broker.started["tls"]) == (False, False)
        with broker.client() as client:
            client.ask(requests.create_queue("q", {"shards": 1}))
            client.ask(requests.send("q", encode_record(b"a")))
        assert broker.end(number) == 0
        assert json.loads(broker.rest[0]) == {"event": "stopped", "pid": broker.process.pid}
        assert b"Traceback" not in broker.rest[1]
    with open_store(url) as store:
        assert store.magazines.metadata("q")[0].pending == 1


def test_nothing_acknowledged_is_lost_when_it_is_killed(url: str) -> None:
    """Published messages are there; what was delivered and not acknowledged its client may acknowledge at the next broker."""
    with BrokerProcess(url) as broker:
        port = broker.port
        client = broker.client()
        client.ask(requests.create_queue("q", {"shards": 2}))
        batches = [
            (shard, PackedBatch.pack([encode_record(f"{shard}.{n}".encode()) for n in range(50)])) for shard in range(2)
        ]
        client.ask(requests.send_batch("q", batches))
        delivered = client.consume("q", 30, wait_s=WAIT_S)
        acknowledged = client.consume("q", 20, wait_s=WAIT_S)
        assert client.ack("q", places(acknowledged)) == acknowledged.total()
        assert broker.end(signal.SIGKILL) == -signal.SIGKILL
    with BrokerProcess(url, port):
        seen: list[str] = []
        assert client.ack("q", places(delivered)) == delivered.total()
        assert client.ack("q", places(delivered)) == 0
        wanted = 100 - acknowledged.total() - delivered.total()
        while len(set(seen)) < wanted:
            found = client.consume("q", 100, wait_s=WAIT_S)
            seen += bodies(found)
            client.ack("q", places(found))
        assert not set(bodies(delivered)) & set(seen)
        assert not set(bodies(acknowledged)) & set(seen)
        assert client.consume("q", 1).claims == []
        assert client.connects >= 2
        client.close()


def test_a_killed_clients_messages_go_to_another(url: str) -> None:
    program = (
        "import sys, time\n"
        "from ignis.broker.client.address import BrokerAddress\n"
        "from ignis.broker.client.sync_client import SyncClient\n"
        "client = SyncClient(BrokerAddress('127.0.0.1', int(sys.argv[1])))\n"
        "print(client.consume('q', 10, wait_s=20).total(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with BrokerProcess(url) as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        client.ask(
            requests.send_batch("q", [(0, PackedBatch.pack([encode_record(str(n).encode()) for n in range(10)]))])
        )
        consumer = subprocess.Popen([sys.executable, "-c", program, str(broker.port)], stdout=subprocess.PIPE)
        try:
            assert consumer.stdout is not None
            assert int(consumer.stdout.readline()) == 10
            assert client.consume("q", 1).claims == []
        finally:
            consumer.kill()
            consumer.communicate(timeout=WAIT_S)
        seen: list[str] = []
        while len(seen) < 10:
            found = client.consume("q", 10, wait_s=WAIT_S)
            seen += bodies(found)
            client.ack("q", places(found))
        assert sorted(seen) == sorted(str(n) for n in range(10))


def test_the_command_line_on_a_broker(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with BrokerProcess(url) as broker:
        where = f"ignis://127.0.0.1:{broker.port}"
        publish = [sys.executable, "-m", "ignis", "publish", "orders", "--create", "--url", where]
        subprocess.run(publish, input=b'{"n": 1}', check=True, capture_output=True, timeout=WAIT_S)
        assert main(["queues", "--url", where]) == 0
        assert "orders" in capfd.readouterr().out
        with broker.client() as client:
            eventually(lambda: client.ask(requests.queue_info("orders"))["pending"] == 1)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_its_health_and_metrics_over_http(url: str) -> None:
    with BrokerProcess(url, 0, "--health-bind", "0") as broker, broker.client() as client:
        client.ask(requests.create_queue("q", {"shards": 1}))
        client.ask(requests.send_batch("q", [(0, PackedBatch.pack([encode_record(b"x"), encode_record(b"y")]))]))
        status, body = get(broker.started["health"] + "/healthz")
        assert (status, json.loads(body)["status"], json.loads(body)["pid"]) == (200, "ok", broker.process.pid)
        status, body = get(broker.started["health"] + "/metrics")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }
        assert status == 200
        assert samples["ignis_broker_published_total",] == 2
        assert samples["ignis_broker_connections",] == 1
        assert samples["ignis_broker_bytes_total", "in"] > 0
        names = {name for name, *_ in samples}
        assert {one for one in names if not one.startswith("ignis_store_")} == {one.name for one in (*BROKER, *BUILD)}
        assert (samples["ignis_store_up",], samples["ignis_store_records",]) == (1, 2)
        # What a client holds keeps the drain waiting, and the endpoint answers meanwhile.
        assert client.consume("q", 1, wait_s=WAIT_S).total() == 1
        broker.process.send_signal(signal.SIGTERM)
        eventually(lambda: get(broker.started["health"] + "/healthz")[0] == 503)
        status, body = get(broker.started["health"] + "/healthz")
        assert json.loads(body)["status"] == "draining"
        client.close()
        assert broker.end(0) == 0


def test_a_health_address_that_is_taken_ends_it(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "ignis", "broker", "--url", url, "--bind", "127.0.0.1:0"]
        ended = subprocess.run([*command, "--health-bind", where], capture_output=True, timeout=2 * WAIT_S, check=False)
    assert ended.returncode == 4
    assert f"another process listens at {where}; give another address with --health-bind" in ended.stderr.decode()


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "0.0.0.0:0"])
def test_a_bind_that_is_refused(url: str, bind: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--url", url, "--bind", bind]) == 2
    assert "bind" in capfd.readouterr().err
