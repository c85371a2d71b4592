"""Two ``ignis worker`` on one store, without a supervisor: one is killed or stopped, the other goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from tests.conftest import MakeApp
from tests.support import eventually, reasons
from tests.support.fleet import Command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="open-file-description locks"),
]


@pytest.fixture
def pair(tmp_path: Path, embedded_url: str) -> Iterator[list[Command]]:
    made = [Command(tmp_path, embedded_url) for _ in range(2)]
    try:
        yield [one.wait_started() for one in made]
    finally:
        for one in made:
            if one.process.poll() is None:
                one.signal(signal.SIGCONT)
            one.close()


@pytest.fixture
def queue(embedded_url: str, new_app: MakeApp) -> ignis.Queue[str]:
    return new_app(embedded_url).queue("q", str, shards=4, shovel_interval=0)


def holder(pair: list[Command], queue: ignis.Queue[str]) -> tuple[Command, Command]:
    """The one that is at the message, and the other."""
    queue.publish("hold go")
    eventually(pair[0].journal)
    [(_, _, pid)] = pair[0].journal()
    return (pair[0], pair[1]) if pair[0].process.pid == pid else (pair[1], pair[0])


def test_the_survivor_sweeps_what_the_killed_one_held(pair: list[Command], queue: ignis.Queue[str]) -> None:
    """It waited for the sweeper's next pass, up to 15 minutes."""
    victim, survivor = holder(pair, queue)
    os.kill(victim.process.pid, signal.SIGKILL)
    eventually(lambda: reasons(queue)["abandoned"] == 1)
    [message] = [one.envelope for one in queue.sideline.peek(1)]
    assert (message.crashes, queue.main.in_flight()) == (1, 0)
    assert f":{victim.process.pid}:" in (message.error or "")
    eventually(lambda: "dead processes held messages of q: 1 are in its sideline now" in survivor.log())
    survivor.release("go")
    queue.shovel.run_once()
    eventually(lambda: survivor.ended()["hold go"] == 1)


def test_one_that_is_only_stopped_keeps_its_message(pair: list[Command], queue: ignis.Queue[str]) -> None:
    stopped, other = holder(pair, queue)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    queue.publish_many(["slow 1", "slow 2"])
    eventually(lambda: other.ended().total() == 2)
    time.sleep(1.0)  # ten looks of the other one
    assert (queue.main.in_flight(), reasons(queue)) == (1, {})
    os.kill(stopped.process.pid, signal.SIGCONT)
    other.release("go")
    eventually(lambda: other.ended()["hold go"] == 1)
    eventually(lambda: queue.main.in_flight() == 0)
    assert reasons(queue) == {}
