"""Sweeping on a real Aerospike server: the dead, what was lost, and who may."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import ignis
from ignis.errors import StaleEpochError
from ignis.leader import LeaseLeader
from tests.support import WAIT_S, eventually, sidelined
from tests.support import aerospike as aerospike_support
from tests.support import zookeeper as zookeeper_support

pytestmark = pytest.mark.integration

MakeApp = Callable[..., ignis.Ignis]


@pytest.fixture
def url() -> Iterator[str]:
    made = aerospike_support.url(scope="local")
    yield made
    aerospike_support.forget(aerospike_support.address(), parse_qs(urlsplit(made).query)["client_id"])


def client_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["client_id"][0]


def ahead() -> float:
    return time.time() + 10_000


def test_a_pass_that_cannot_know_refuses_and_the_others_go_on(url: str, new_app: MakeApp, caplog: Any) -> None:
    """The pointers record of one queue was lost and begun anew by a Java instance: by itself that would read as "nothing
    was ever claimed"."""
    app = new_app(url, clock=ahead, store={"settle_s": 1})
    for name in ("lost", "good"):
        queue = app.queue(name, int, shards=1)
        queue.publish_many(range(20))
        queue.main.delete(queue.main.fire(10))
    app.sweeper().run_once()
    time.sleep(1.5)
    app.sweeper().run_once()
    for name in ("lost", "good"):
        app.queue(name).main.fire(5)
    raw = aerospike_support.raw_client()
    try:
        sets = app.store.sets  # type: ignore[attr-defined]
        key = (aerospike_support.address().partition("/")[2], sets.meta, "lost_POINTERS")
        raw.remove(key)
        raw.put(key, {"LOAD_POINTER": 1, "FIRE_POINTER": 0})
    finally:
        raw.close()
    result = app.sweeper().run_once()
    assert (result.queues, result.failed_queues, result.swept) == (2, 1, 5)
    assert "its pointers record was lost, so what is abandoned cannot be told" in caplog.text
    assert app.stats()["sweeper"]["failed_queues"] == 1


CLAIMER = textwrap.dedent("""
    import sys, ignis
    queue = ignis.Ignis(sys.argv[1]).queue("jobs", int, shards=2, stuck_after="10m")
    print(len(queue.main.fire(5)), flush=True)
    sys.stdin.read()
""")


def test_what_a_dead_process_held_is_recovered_as_its_crash(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2, stuck_after="10m")
    queue.publish_many(range(8))
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "5\n"
        assert app.sweep_queue("jobs").swept == 0, "it lives"
        os.kill(process.pid, signal.SIGKILL)
    assert app.sweep_queue("jobs").swept == 5
    found = sidelined(queue)
    assert [(message.reason, message.crashes) for message in found] == [("abandoned", 1)] * 5
    assert all("its worker's process is dead" in (message.error or "") for message in found)


def test_a_lease_that_was_taken_over_sweeps_nothing(url: str, new_app: MakeApp) -> None:
    app = new_app(url, clock=ahead)
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(5))
    queue.main.fire(5)
    assert isinstance(app.leader(), LeaseLeader)
    app.leader().lead()
    app.store.locks.raise_epoch("sweeper", 1_000)
    with pytest.raises(StaleEpochError):
        app.sweep_queue("jobs")
    assert (queue.main.in_flight(), sidelined(queue)) == (5, [])
    app.leader().relinquish()
    assert app.sweep_queue("jobs").swept == 5
    assert app.store.locks.epoch("sweeper") == 1_001


def test_zookeeper_decides_and_the_server_checks(url: str, new_app: MakeApp) -> None:
    with zookeeper_support.running() as server:
        client_id = client_of(url)
        settings = {"zookeeper": server.address, "session_timeout": 1}
        first, second = (new_app(url, clock=ahead, leader=settings) for _ in range(2))
        queue = first.queue("jobs", int, shards=1)
        queue.publish_many(range(10))
        queue.main.fire(5)
        fence = first.leader().lead()
        assert first.store.client_id == client_id
        assert first.sweep_queue("jobs").swept == 5
        second.leader().start()
        eventually(lambda: len(second.leader().status().members or ()) == 2)
        first.leader().relinquish()
        newer = eventually(second.leader().try_lead, timeout=WAIT_S)
        assert newer.epoch > fence.epoch
        queue.main.fire(5)
        with pytest.raises(StaleEpochError):
            first.store.magazines.reload("jobs", {0: list(range(6, 11))}, fence)
        assert second.sweep_queue("jobs").swept == 5
        record = second.store.queues.get("jobs")
        assert record is not None
        assert record.extra["sweep"]["epoch"] == newer.epoch


def test_what_the_living_hold_before_a_dead_ones_claims_is_not_passed(url: str, new_app: MakeApp) -> None:
    """The sweep pointer of the queue's record is a low-water mark to every process: nothing below it is looked at again."""
    first = new_app(url)
    queue = first.queue("jobs", int, shards=1, stuck_after="10m")
    queue.publish_many(range(8))
    assert len(queue.main.fire(3)) == 3, "in work here, before what the other one claims"
    script = CLAIMER.replace("shards=2", "shards=1")
    with subprocess.Popen(
        [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "5\n"
        process.kill()
    assert first.sweep_queue("jobs").swept == 5
    first.leader().relinquish()
    later = new_app(url, clock=ahead)
    assert later.sweep_queue("jobs").swept == 3, "they were left behind, and are found"
    assert sorted(int(message.body) for message in sidelined(later.queue("jobs", int))) == list(range(8))
