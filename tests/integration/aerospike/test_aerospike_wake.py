"""A load wakes the consumers of other processes of the machine: what is counted is looks, no time is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ignis.broker.client import requests
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
from ignis.storage.base import Store, Transfer
from tests.contract.support import numbered, pointers
from tests.support import WAIT_S
from tests.support import aerospike as aerospike_support
from tests.support.broker import RunningBroker

pytestmark = pytest.mark.integration

CONSUMER = """
import json, sys, time
from ignis.storage import open_store
from ignis.storage.aerospike import waits

url, count, most_looks, wait_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
# Only a wake ends a wait, or a record that is on its way: nobody looks because time has passed.
waits._Bell.look_pause_s = lambda bell: 1e6
store = open_store(url)
magazines, found, looks, woken = store.magazines, 0, 0, 0
until = time.monotonic() + wait_s
while True:
    seen = magazines.wait("m", -1, 0)
    result = magazines.fire("m", 100, "me")
    looks += 1
    for claim in result.claims:
        found += len(claim.pointers)
        magazines.delete("m", {claim.shard: claim.pointers})
    if looks == 1:
        print("looked", flush=True)
    left = until - time.monotonic()
    if found >= count or looks >= most_looks or left <= 0:
        break
    if not result.more:
        woken += magazines.idle("m", seen, left) != seen
print(json.dumps({"found": found, "looks": looks, "woken": woken}), flush=True)
store.close(10)
"""


class Machine:
    """Two magazines on the server, a producer's store in this process, and consumers in processes of their own."""

    def __init__(self, wake_dir: Path) -> None:
        self.wake_dir = wake_dir
        self.address = aerospike_support.address()
        self.url = aerospike_support.url(wake_dir=wake_dir)
        self.client_id = parse_qs(urlsplit(self.url).query)["client_id"][0]
        self.store: Store = open_store(self.url)
        self.magazines = self.store.magazines
        for name in ("m", "other"):
            self.magazines.declare(name, 4)
        self.children: list[subprocess.Popen[str]] = []

    def consumer(
        self, count: int = 1, *, most_looks: int = 1_000_000, wait_s: float = WAIT_S, url: str | None = None
    ) -> subprocess.Popen[str]:
        """One that has looked, found nothing, and sleeps or is about to."""
        child = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, url or self.url, str(count), str(most_looks), str(wait_s)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "looked\n"
        return child

    @staticmethod
    def outcome(child: subprocess.Popen[str]) -> dict[str, int]:
        out, _ = child.communicate(timeout=2 * WAIT_S)
        return dict(json.loads(out))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    one = Machine(tmp_path / "wake")
    yield one
    for child in one.children:
        child.kill()
        child.wait(WAIT_S)
    one.store.close(10)
    aerospike_support.forget(one.address, [one.client_id])


def _load(machine: Machine) -> Callable[[], Any]:
    return lambda: machine.magazines.load("m", [(1, PackedBatch.pack(numbered(1)))], None)


def _load_once(machine: Machine) -> Callable[[], Any]:
    """As a Spark task and the broker's clients that ask for it load."""
    return lambda: machine.magazines.load_once("m", [(1, PackedBatch.pack(numbered(1)))], None, 60)


def _reload(machine: Machine) -> Callable[[], Any]:
    machine.magazines.load_records("m", 1, numbered(1))
    held = pointers(machine.magazines.fire("m", 9, "me"))
    return lambda: machine.magazines.reload("m", held)


def _transfer(machine: Machine) -> Callable[[], Any]:
    machine.magazines.load_records("other", 1, numbered(1))
    machine.magazines.fire("other", 9, "me")
    ((_, record),) = machine.magazines.peek("other", {1: [1]})[1].items()
    assert record is not None
    return lambda: machine.magazines.transfer("other", "m", [Transfer(1, 1, record, 0)])


@pytest.mark.parametrize("way", [_load, _load_once, _reload, _transfer])
def test_a_sleeping_consumer_of_another_process_is_woken(machine: Machine, way: Callable[[Machine], Any]) -> None:
    do = way(machine)
    child = machine.consumer()
    do()
    assert machine.outcome(child) == {"found": 1, "looks": 2, "woken": 1}
    assert str(machine.store.stats()["wake_words"]).startswith(f"{machine.wake_dir}/wake-words")


def test_what_a_broker_stores_wakes_a_consumer_without_one(machine: Machine) -> None:
    with RunningBroker(machine.url) as broker, broker.client(timeout_s=WAIT_S, client_id=machine.client_id) as client:
        client.ask(requests.create_queue("m", {"shards": 4, "codec": "raw"}))
        child = machine.consumer()
        client.ask(requests.send("m", encode_record(b"x")))
        assert machine.outcome(child)["found"] == 1


def test_no_wake_is_lost(machine: Machine) -> None:
    """One by one, as quickly as the producer can: a wake that is lost leaves the consumer asleep and the count short."""
    count = 300
    child = machine.consumer(count)
    for number in range(count):
        machine.magazines.load_records("m", number % 4, numbered(1))
    assert machine.outcome(child)["found"] == count


def test_consumers_of_one_magazine_are_all_woken(machine: Machine) -> None:
    """All look, whoever gets it."""
    children = [machine.consumer(9, most_looks=2) for _ in range(3)]
    machine.magazines.load_records("m", 0, numbered(2))
    outcomes = [machine.outcome(child) for child in children]
    assert sum(one["found"] for one in outcomes) == 2
    assert [(one["looks"], one["woken"]) for one in outcomes] == [(2, 1)] * 3


def test_switched_off_nobody_is_woken(machine: Machine) -> None:
    off = aerospike_support.url(client_id=machine.client_id, wake_dir="")
    child = machine.consumer(url=off, wait_s=0.5)
    machine.magazines.load_records("m", 1, numbered(1))
    assert machine.outcome(child)["woken"] == 0


def test_without_the_directory_the_store_works(tmp_path: Path) -> None:
    """Others may enter it: it is not used, and the consumer looks by itself."""
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o755)
    machine = Machine(tmp_path / "open")
    try:
        assert machine.store.stats()["wake_words"] == ""
        seen = machine.magazines.wait("m", -1, 0)
        machine.magazines.load_records("m", 1, numbered(1))
        assert machine.magazines.idle("m", seen, WAIT_S) != seen
        assert pointers(machine.magazines.fire("m", 9, "me")) == {1: [1]}
    finally:
        machine.store.close(10)
        aerospike_support.forget(machine.address, [machine.client_id])
