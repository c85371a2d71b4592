"""An application as a process of its own, and the signals that end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.stop_signals import stop_signals
from tests.apps import jobs
from tests.support import WAIT_S, Journal, eventually, sidelined

pytestmark = pytest.mark.integration
MakeApp = Callable[..., ignis.Ignis]
Start = Callable[..., "subprocess.Popen[str]"]
POOLS = ["thread", "async", "process"]


@pytest.fixture
def start(embedded_url: str, journal: Journal) -> Iterator[Start]:
    """``start(pool, ...)``: the service, running and ready."""
    started: list[subprocess.Popen[str]] = []

    def run(pool: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.apps.service", embedded_url, pool, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=WAIT_S)


@pytest.fixture
def queue(embedded_url: str, new_app: MakeApp) -> ignis.Queue[Any]:
    return new_app(embedded_url).queue("jobs", dict, shards=4, shovel_interval=0)


def release(journal: Journal, name: str) -> None:
    journal.path.with_name(f"{journal.path.name}.{name}").touch()


@pytest.mark.parametrize(
    ("number", "pool"),
    [
        *((signal.SIGTERM, pool) for pool in POOLS),
        *((number, "thread") for number in (signal.SIGINT, signal.SIGHUP)),
        *(
            pytest.param(number, pool, marks=pytest.mark.long)
            for number in (signal.SIGINT, signal.SIGHUP)
            for pool in POOLS
            if pool != "thread"
        ),
    ],
)
def test_a_signal_drains(
    queue: ignis.Queue[Any], start: Start, journal: Journal, number: signal.Signals, pool: str
) -> None:
    """What runs is finished, what was claimed and not started goes back, nothing is lost or done twice."""
    service = start(pool)
    # One after the other, before any time was measured: each worker is given one.
    for n in range(2):
        queue.publish({"n": n, "do": "hold", "until": "go"})
        eventually(lambda: f"start {n}" in journal.lines())  # noqa: B023
    queue.publish_many([{"n": n, "do": "none"} for n in range(2, 300)])
    # To the whole group, as a terminal's Ctrl-C or a service manager does.
    os.killpg(service.pid, number)
    release(journal, "go")
    out, err = service.communicate(timeout=WAIT_S)
    assert (service.returncode, out) == (0, "stopped\n"), err
    assert f"process {service.pid}: stopping; a second signal ends at once" in err
    counts = journal.counts()
    done = [n for n in range(300) if counts[f"end {n}"]]
    assert {0, 1} <= set(done)
    assert all(counts[f"start {n}"] == counts[f"end {n}"] == 1 for n in done)
    assert (queue.main.pending(), queue.main.in_flight()) == (300 - len(done), 0)
    assert sidelined(queue) == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_second_signal_ends_at_once(
    queue: ignis.Queue[Any], start: Start, journal: Journal, embedded_url: str, new_app: MakeApp, pool: str
) -> None:
    """What was claimed is left to the sweeper, which sees that its owner is dead."""
    service = start(pool)
    queue.publish({"n": 0, "do": "hold", "until": "never"})
    eventually(lambda: journal.lines() == ["start 0"])
    service.send_signal(signal.SIGTERM)
    assert service.stderr is not None
    for line in service.stderr:
        if "stopping; a second signal ends at once" in line:
            break
    assert service.poll() is None, "it waits for the handler"
    service.send_signal(signal.SIGINT)
    out, _ = service.communicate(timeout=WAIT_S)
    assert (service.returncode, out) == (130, "")
    assert queue.main.in_flight() == 1
    assert new_app(embedded_url).sweeper().run_once().swept == 1
    [message] = sidelined(queue)
    assert (message.reason, message.crashes) == ("abandoned", 1)


@pytest.mark.parametrize("pool", POOLS)
def test_a_terminal_that_ends_only_asks_to_stop(
    queue: ignis.Queue[Any], start: Start, journal: Journal, pool: str
) -> None:
    """It sends SIGHUP to the whole group, often twice; SIGUSR1, which asks for a dump, ends no worker process."""
    service = start(pool)
    queue.publish({"n": 0, "do": "hold", "until": "go"})
    eventually(lambda: journal.lines() == ["start 0"])
    for pid in _children(service.pid):
        os.kill(pid, signal.SIGUSR1)
    os.killpg(service.pid, signal.SIGHUP)
    assert service.stderr is not None
    for line in service.stderr:
        if "stopping; a second signal ends at once" in line:
            break
    os.killpg(service.pid, signal.SIGHUP)
    release(journal, "go")
    out, _ = service.communicate(timeout=WAIT_S)
    assert (service.returncode, out) == (0, "stopped\n")
    assert (queue.main.pending(), queue.main.in_flight(), sidelined(queue)) == (0, 0, [])


def _children(pid: int) -> list[int]:
    """The worker processes."""
    listed = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [
        int(child)
        for children in listed
        for child in children
        if b"ignis.consumer.pools.child" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_hang_up_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup. SIGINT is heard, also by a job in the background of a shell without job control."""
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    assert signal.SIGHUP not in stop_signals()
    assert signal.SIGINT in stop_signals()


@pytest.mark.parametrize("pool", POOLS)
def test_the_stop_timeout_bounds_the_drain(queue: ignis.Queue[Any], start: Start, journal: Journal, pool: str) -> None:
    service = start(pool, "0.3")
    published = queue.publish({"n": 0, "do": "hold", "until": "never"})
    eventually(lambda: journal.lines() == ["start 0"])
    service.send_signal(signal.SIGTERM)
    out, err = service.communicate(timeout=WAIT_S)
    assert out == "stopped\n", err
    told = f"of jobs did not end within the 0.3 s that a stop has (consumer.stop_timeout_s) and {{}}: message {published.id}"
    if pool == "thread":
        assert told.format("cannot be ended") in err
        assert "consumer of jobs stopped with 1 message(s) left to the sweeper" in err
        assert (queue.main.pending(), queue.main.in_flight()) == (0, 1)
    else:
        assert told.format("was ended") in err
        assert "left to the sweeper" not in err
        assert (queue.main.pending(), queue.main.in_flight()) == (1, 0)
    assert sidelined(queue) == [], "a planned stop is no death of the message"


@pytest.mark.parametrize("pool", POOLS)
def test_kill_9_loses_nothing(
    queue: ignis.Queue[Any], start: Start, journal: Journal, embedded_url: str, new_app: MakeApp, pool: str
) -> None:
    """Killed in the middle of many messages: everything is handled, in the sideline, or still pending."""
    service = start(pool)
    queue.publish_many([{"n": n, "do": "none"} for n in range(1_000)])
    eventually(lambda: len(journal.lines()) > 200)
    os.killpg(service.pid, signal.SIGKILL)
    service.wait(WAIT_S)
    app = new_app(embedded_url)
    app.sweeper().run_once()
    assert queue.main.in_flight() == 0
    for message in sidelined(queue):
        assert (message.reason, message.crashes) == ("abandoned", 1)
    queue.shovel.run_once()
    mine = jobs.register(app, "jobs", "thread", shovel_interval=0)
    app.start()
    eventually(lambda: not mine.main.pending() and not mine.main.in_flight())
    counts = journal.counts()
    assert all(counts[f"end {n}"] >= 1 for n in range(1_000))
