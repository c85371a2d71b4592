"""The broker's event loop looks for the next request before it sleeps (`broker.spin_us`)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ignis.broker.client import requests
from ignis.broker.client.sync_client import SyncClient
from ignis.native import encode_record
from tests.support import WAIT_S, eventually
from tests.support.broker import RunningBroker, running

pytestmark = pytest.mark.integration

LONG_US = 10_000
"""However busy the machine is, the next request of a client that waits for nothing comes within that time."""


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """This thread runs there alone."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.fixture
def cores() -> tuple[int, int]:
    free = sorted(os.sched_getaffinity(0))
    if len(free) < 2:
        pytest.skip("one core: nobody sends from another one")
    return free[0], free[1]


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def uvloop(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "uvloop")


def looks(broker: RunningBroker) -> tuple[int, int]:
    spin: Any = broker.broker.context.spin
    return broker.on_loop(lambda: (spin.looked, spin.found))


def publish(client: SyncClient, count: int = 1) -> None:
    for _ in range(count):
        client.ask(requests.send("one", encode_record(b"text"), ttl_s=None))


@contextlib.contextmanager
def served(path: Path, spin_us: int, uvloop: bool, core: int) -> Iterator[tuple[RunningBroker, SyncClient]]:
    """A broker on that core, and a client with a queue of one message."""
    with (
        running(f"embedded://{path}/store", settings={"spin_us": spin_us}, uvloop=uvloop) as broker,
        broker.client(timeout_s=WAIT_S) as client,
    ):
        broker.on_loop(lambda: os.sched_setaffinity(0, {core}))
        client.ask(requests.create_queue("one", {"shards": 1, "durability": "none", "codec": "raw"}))
        publish(client)
        yield broker, client


def test_it_finds_what_a_client_on_another_core_sends_next(
    tmp_path: Path, uvloop: bool, cores: tuple[int, int]
) -> None:
    with served(tmp_path, LONG_US, uvloop, cores[0]) as (broker, client), on_core(cores[1]):

        def found() -> bool:
            publish(client, 20)
            return looks(broker)[1] > 0

        eventually(found)


def test_who_comes_on_another_connection_is_seen_meanwhile(
    tmp_path: Path, uvloop: bool, cores: tuple[int, int]
) -> None:
    with (
        served(tmp_path, LONG_US, uvloop, cores[0]) as (broker, client),
        broker.client(timeout_s=WAIT_S) as other,
        on_core(cores[1]),
    ):
        crowd = [threading.Thread(target=publish, args=(one, 300)) for one in (client, other)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in crowd)
        found = client.ask(requests.consume("one", 1_000, 0, 1 << 20))
        assert sum(len(claim.pointers) for claim in found.claims) == 601
        assert looks(broker)[0] > 0


def test_it_does_not_look_where_the_sender_needs_its_core(tmp_path: Path, uvloop: bool, cores: tuple[int, int]) -> None:
    with served(tmp_path, LONG_US, uvloop, cores[0]) as (broker, client), on_core(cores[0]):
        publish(client)  # of the one before it is not known where it came from
        before = looks(broker)
        publish(client, 200)
        assert looks(broker) == before


def test_without_spin_us_it_never_looks(tmp_path: Path, uvloop: bool, cores: tuple[int, int]) -> None:
    with served(tmp_path, 0, uvloop, cores[0]) as (broker, client), on_core(cores[1]):
        publish(client, 200)
        assert looks(broker) == (0, 0)
