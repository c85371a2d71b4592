"""``ignis worker --processes``: real processes that are killed, stopped, reloaded, limited, scaled and looked into."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.supervisor import LocalProcesses
from tests.conftest import MakeApp
from tests.support import eventually, reasons
from tests.support.fleet import MODULE, START_S, Command, alive

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path, embedded_url: str) -> Iterator[Start]:
    made: list[Command] = []

    def call(*arguments: str, **options: Any) -> Command:
        made.append(Command(tmp_path, embedded_url, *arguments, **options))
        return made[-1]

    yield call
    for one in made:
        one.close()


@pytest.fixture
def queue(embedded_url: str, new_app: MakeApp) -> ignis.Queue[str]:
    return new_app(embedded_url).queue("q", str, shards=4, shovel_interval=0)


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def test_a_killed_worker_is_replaced_and_what_it_held_is_given_back(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "2", "--health-bind", "0").wait_started()
    assert len(command.started["processes"]) == 2
    queue.publish_many(["hold go", "hold go"])
    eventually(lambda: len(command.journal()) == 2)
    holders = {pid for _, _, pid in command.journal()}
    victim = holders.pop()
    os.kill(victim, signal.SIGKILL)
    # At once: nobody waits for the 20 minutes after which a claim looks abandoned, and no sweeper runs within 10.
    eventually(lambda: reasons(queue)["abandoned"] >= 1)
    pids = command.wait_running(2, without=[victim])
    assert victim not in pids
    status, health = command.health()
    assert (status, health["deaths"], health["restarts"]) == (200, 1, 1)
    assert health["recovered"] == reasons(queue)["abandoned"]
    counted = f'ignis_sidelined_total{{queue="q",reason="abandoned"}} {health["recovered"]}.0'
    eventually(lambda: counted in command.get("/metrics")[1].decode())  # its figures are up to a second old
    [message] = [one.envelope for one in queue.sideline.peek(1)]
    assert message.crashes == 1
    assert f":{victim}:" in (message.error or "")
    assert "its process ended with signal SIGKILL" in (message.error or "")
    command.release("go")
    queue.shovel.run_once()
    eventually(lambda: command.ended()["hold go"] == 2)
    command.signal(signal.SIGTERM)
    assert command.wait() == 0
    assert not any(alive(pid) for pid in pids)
    assert queue.main.in_flight() == 0


def test_sigterm_drains_every_process(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "2").wait_started()
    queue.publish_many([*numbered(300, "slow "), "hold go"])
    eventually(lambda: len(command.ended()) > 5)
    command.signal(signal.SIGTERM)
    command.release("go")
    assert command.wait() == 0
    assert command.process.stdout is not None
    assert json.loads(command.process.stdout.read())["code"] == 0
    begun, ended = {body for what, body, _ in command.journal() if what == "start"}, command.ended()
    assert begun == set(ended), "what ran was finished"
    assert set(ended.values()) == {1}
    assert (queue.main.pending(), queue.main.in_flight()) == (301 - len(ended), 0)
    assert reasons(queue) == {}


def test_a_second_signal_ends_at_once_and_gives_back(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "2").wait_started()
    queue.publish("hold never")
    eventually(command.journal)
    command.signal(signal.SIGTERM)
    eventually(lambda: "a second signal ends at once" in command.log())
    assert command.process.poll() is None
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert (queue.main.in_flight(), reasons(queue)["abandoned"]) == (0, 1)


def test_what_a_drain_could_not_finish_is_given_back(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "1", "--stop-timeout", "0.3").wait_started()
    queue.publish("hold never")
    eventually(command.journal)
    command.signal(signal.SIGTERM)
    assert command.wait() == 0
    assert "left to the sweeper" in command.log()
    assert (queue.main.in_flight(), reasons(queue)["abandoned"]) == (0, 1)


def test_a_killed_supervisor_takes_its_processes_along_gently(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "2").wait_started()
    pids = command.started["processes"]
    queue.publish("hold go")
    eventually(command.journal)
    command.process.kill()
    command.wait()
    eventually(lambda: "the supervisor is gone: draining" in command.log())
    assert any(alive(pid) for pid in pids), "one still holds a message"
    command.release("go")
    eventually(lambda: not any(alive(pid) for pid in pids))
    assert command.ended() == {"hold go": 1}
    assert (queue.main.pending(), queue.main.in_flight()) == (0, 0)


def test_reload_replaces_one_by_one(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "2", "--health-bind", "0").wait_started()
    before = command.wait_running(2)
    module = command.directory / "jobs.py"
    module.write_text(module.read_text().replace('note(f"end {body}")', 'note(f"end {body} anew")'))
    command.signal(signal.SIGHUP)
    least = 2

    def replaced() -> bool:
        nonlocal least
        queue.publish("quick")
        running = command.pids()
        least = min(least, len(running))
        return len(running) == 2 and not set(running) & set(before)

    eventually(replaced, timeout=START_S)
    assert least == 2, "a new one consumed before an old one was told to end"
    eventually(lambda: not any(alive(pid) for pid in before))
    queue.publish("last")
    eventually(lambda: command.ended()["last anew"] == 1)
    status, health = command.health()
    assert (status, health["deaths"]) == (200, 0)
    eventually(lambda: not queue.main.pending() and not queue.main.in_flight())
    begun = [body for what, body, _ in command.journal() if what == "start"]
    assert len(begun) == sum(command.ended().values()), "nothing was handled twice"


def test_burst_ends_when_the_queue_is_empty(start: Start, queue: ignis.Queue[str]) -> None:
    queue.publish_many(numbered(500))
    command = start("--processes", "2", "--burst")
    assert command.wait() == 0
    assert sorted(command.ended()) == sorted(numbered(500))
    assert set(command.ended().values()) == {1}


def test_burst_in_one_process(start: Start, queue: ignis.Queue[str]) -> None:
    queue.publish_many(numbered(50))
    command = start("--burst").wait_started()
    assert command.started["queues"] == ["q"]
    assert command.wait() == 0
    assert command.process.stdout is not None
    assert json.loads(command.process.stdout.read())["why"] == "burst"
    assert len(command.ended()) == 50


def test_max_messages_replaces_the_process(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "1", "--max-messages", "30", "--health-bind", "0").wait_started()
    first = command.wait_running(1)
    for _ in range(9):
        queue.publish_many(numbered(10, "slow "))
    eventually(lambda: sum(command.ended().values()) == 90, timeout=START_S)
    health = command.health()[1]
    assert health["restarts"] >= 1
    assert health["deaths"] == 0
    eventually(lambda: not set(command.pids()) & set(first))
    assert reasons(queue) == {}
    begun = [body for what, body, _ in command.journal() if what == "start"]
    assert len(begun) == 90, "nothing was handled twice"


def test_a_process_whose_threads_all_hang_is_replaced(start: Start, queue: ignis.Queue[str]) -> None:
    module = MODULE.replace("consumer={", 'consumer={"max_consumers": 1, ').replace(
        ".handler\n", ".handler(timeout_s=0.2)\n"
    )
    command = start("--processes", "1", "--health-bind", "0", module=module).wait_started()
    first = command.wait_running(1)
    queue.publish_many(["hold never", "hold never"])
    assert command.wait_running(1, without=first)
    assert "overran timeout_s and still run" in command.log()
    assert "has reached its limit (hanging)" in command.log()
    health = command.health()[1]
    assert (health["restarts"], health["deaths"]) == (1, 0)


def test_max_rss_replaces_the_process(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "1", "--max-rss", "150M", "--health-bind", "0").wait_started()
    first = command.wait_running(1)
    queue.publish("eat")
    assert command.wait_running(1, without=first)
    assert "resident memory" in command.log()
    assert command.health()[1]["deaths"] == 0
    assert command.ended() == {"eat": 1}


@pytest.mark.long
def test_memory_that_is_over_at_once_is_a_failure_and_no_loop(start: Start) -> None:
    command = start("--processes", "1", "--max-rss", "1M", "--health-bind", "0")
    eventually(lambda: "another one in 1 s" in command.log(), timeout=START_S)
    assert "is over 1048576: ending" in command.log()


def test_one_that_dies_in_its_first_message_gives_it_back(start: Start, queue: ignis.Queue[str]) -> None:
    """Before it could say that it consumes: who it was is known all the same."""
    module = """
import os, ignis
class App(ignis.Ignis):
    @property
    def ready(self):
        return False  # it never says so
    @ready.setter
    def ready(self, value): ...
app = App()
@app.queue("q", str, shards=4, shovel_interval=0).handler
def handle(body):
    os._exit(3)
"""
    queue.publish("poison")
    command = start("--processes", "1", module=module)
    eventually(lambda: reasons(queue)["abandoned"] == 1, timeout=START_S)
    assert "INFO ignis.supervisor: process" not in command.log()


def test_one_that_has_no_handler_says_that_alone(start: Start) -> None:
    """Not also that a process is dead that never held anything."""
    command = start("--processes", "1", module="import ignis\napp = ignis.Ignis()\n")
    assert command.wait() == 2
    assert "no queue of this application has a handler" in command.log()
    assert "is dead" not in command.log()


def test_a_process_that_cannot_begin_ends_it_all(start: Start) -> None:
    command = start("--processes", "2", module="import nothing.of.that.kind\n")
    assert command.wait() == 2
    assert "there is no module 'nothing'" in command.log() or "cannot import" in command.log()


def test_one_that_dies_again_and_again_is_started_ever_more_slowly(start: Start) -> None:
    """The module fails from its second start on. What is compared is what the supervisor says it will wait."""
    module = """
import os, ignis
first = not os.path.exists("begun")
with open("begun", "a") as file:
    file.write("x")
if not first:
    os.abort()
app = ignis.Ignis()
@app.queue("q", str).handler
def handle(body):
    os._exit(3)
"""
    command = start("--processes", "1", "--health-bind", "0", module=module)
    command.wait_started()
    with ignis.Ignis(command.url) as app:
        app.queue("q", str).publish("x")
        eventually(lambda: command.health()[1]["failures_in_a_row"] >= 3, timeout=START_S)
        status, health = command.health()
        assert (status, health["status"]) == (503, "failing")
        assert (command.get("/livez")[0], command.get("/readyz")[0]) == (200, 503), "it goes on trying"
        assert reasons(app.queue("q", str)) == {"abandoned": 1}
    waits = [
        float(line.partition("another one in ")[2].split()[0])
        for line in command.log().splitlines()
        if "another one in" in line
    ]
    assert waits[:3] == [0.5, 1.0, 2.0]


def test_a_look_inside(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "1", "--health-bind", "0").wait_started()
    published = queue.publish("hold go")
    eventually(command.journal)
    [pid] = command.wait_running(1)
    command.signal(signal.SIGUSR1)
    eventually(lambda: "in hand:" in command.log())
    text = command.log().partition("in hand: ")[2].splitlines()[0]
    dump = json.loads(text)
    assert dump["pid"] == pid
    assert dump["queues"]["q"]["in_flight"] == 1
    [worker] = [one for one in dump["queues"]["q"]["workers"] if "pointer" in one]
    assert (worker["pointer"], worker["messages"], worker["id"]) == (1, 1, published.id)
    eventually(lambda: 'jobs.py", line' in command.log(), "the handler is in the stacks")
    assert command.health()[0] == 200, "it goes on"
    command.release("go")
    eventually(lambda: command.ended()["hold go"] == 1)


@pytest.mark.long
def test_a_look_inside_has_fields(start: Start, queue: ignis.Queue[str]) -> None:
    """For who gathers the lines as JSON: no Python text is to be read there."""
    command = start("--processes", "1", "--log-format", "json", "--health-bind", "0").wait_started()
    queue.publish("hold go")
    eventually(command.journal)
    [pid] = command.wait_running(1)
    command.signal(signal.SIGUSR1)

    def lines(event: str) -> list[dict[str, Any]]:
        whole = [line for line in command.log().splitlines(keepends=True) if line.endswith("}\n")]
        return [one for one in map(json.loads, whole) if one["event"] == event]

    [state] = eventually(lambda: lines("supervisor_state"))
    assert (state["wanted"], [one["pid"] for one in state["processes"]]) == (1, [pid])
    assert json.loads(state["message"].removeprefix("supervisor: "))["wanted"] == 1
    [dump] = eventually(lambda: lines("in_hand"))
    assert dump["queues"]["q"]["in_flight"] == 1
    command.release("go")


@pytest.mark.parametrize("form", [pytest.param("text", marks=pytest.mark.long), "json"])
def test_the_stacks_of_each_process_are_one_record(start: Start, queue: ignis.Queue[str], form: str) -> None:
    """One of them keeps the interpreter in a call of C: no line of Python runs there."""
    module = """
import ctypes, ignis
app = ignis.Ignis(consumer={"idle_poll_s": 0.05})

@app.queue("q", str, shards=4, shovel_interval=0).handler
def handle(body):
    if body == "stuck":
        open("stuck", "x").close()
        ctypes.PyDLL(None).sleep(600)
"""
    arguments = ("--processes", "2", "--log-format", form, "--health-bind", "0")
    command = start(*arguments, module=module).wait_started()
    queue.publish("stuck")
    eventually((command.directory / "stuck").exists)
    pids = command.wait_running(2)
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    eventually(lambda: command.log().count("stacks of process") == 2 and command.log().endswith("\n"))
    log = command.log()
    if form == "json":
        records = [json.loads(line) for line in log.splitlines()]
        found = [one for one in records if one["event"] == "stacks"]
        assert {one["pid"] for one in found} == {command.process.pid}, "the supervisor's, which is not stuck"
        texts = [str(one["message"]) for one in found]
    else:
        # A record is its first line, and those behind it that are indented.
        texts = re.findall(r"stacks of process \d+:\n(?:  .*\n)+", log)
    assert sorted(int(text.split()[3].rstrip(":")) for text in texts) == sorted(pids)
    for text in texts:
        assert all(line.startswith("  ") for line in text.splitlines()[1:]), text
        assert text.count("most recent call first") >= 2
        assert text.count("Current thread") == 1, "of one process"
    assert sum("in handle" in text for text in texts) == 1, "that which is stuck"
    command.signal(signal.SIGTERM)
    eventually(lambda: "a second signal ends at once" in command.log())
    command.signal(signal.SIGTERM)
    assert command.wait() == 130


def test_what_the_endpoint_says(start: Start, queue: ignis.Queue[str]) -> None:
    command = start("--processes", "2", "--health-bind", "0").wait_started()
    queue.publish_many(numbered(100))
    eventually(lambda: len(command.ended()) == 100)

    def metrics() -> str:
        status, body = command.get("/metrics")
        assert status == 200
        return str(body, "utf-8")

    eventually(lambda: 'ignis_consumed_total{queue="q"} 100.0' in metrics())
    assert "ignis_pool_slots{" not in metrics(), "threads that claim for themselves need no buffers"
    [victim, *_] = command.pids()
    os.kill(victim, signal.SIGKILL)
    command.wait_running(2, without=[victim])
    eventually(lambda: "ignis_process_deaths_total 1.0" in metrics())
    for name in ("wait", "handler", "end_to_end"):
        assert f'ignis_{name}_duration_seconds_count{{queue="q"}} 100.0' in metrics(), "those of the dead process count"
    assert command.get("/livez") == command.get("/readyz") == (200, {"status": "ok"})
    assert 'ignis_consumed_total{queue="q"} 100.0' in metrics(), "what the dead one counted still counts"
    assert command.get("/scale/q") == (200, {"queue": "q", "pending": 0, "oldest_age_s": 0.0})
    assert command.get("/nothing")[0] == 404


def test_scaling_down_locks_first_and_unlocks_when_work_comes(tmp_path: Path, embedded_url: str) -> None:
    """Driven by hand, without an autoscaler's timing: three processes, each holding a message, are to become one."""
    (tmp_path / "jobs.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    app = ignis.Ignis(embedded_url)
    queue = app.queue("q", str, shards=4, shovel_interval=0)
    journal = tmp_path / "journal"
    with LocalProcesses(
        "jobs", ["--url", embedded_url], processes=3, environment=environment, directory=str(tmp_path)
    ) as target:
        target.wait_ready(START_S)
        supervisor = target.supervisor

        def states() -> list[str]:
            return sorted(one["state"] for one in supervisor.describe()["processes"])

        def paused() -> list[bool]:
            return sorted(one["paused"] for one in supervisor.describe()["processes"])

        for n in range(3):
            queue.publish(f"hold go{n}")
            eventually(lambda: len(journal.read_text().splitlines()) == n + 1 if journal.exists() else False)  # noqa: B023
        holders = [int(line.split()[-1]) for line in journal.read_text().splitlines()]
        if len(set(holders)) < 3:
            pytest.skip("one process got two of the three: nothing to see here")
        target.scale_to(1)
        eventually(lambda: states() == ["locked", "locked", "running"])
        eventually(lambda: paused() == [False, True, True])
        locked = {one["pid"] for one in supervisor.describe()["processes"] if one["state"] == "locked"}
        [free] = set(holders) - locked
        (tmp_path / f"go{holders.index(free)}").touch()
        queue.publish_many(numbered(20))
        eventually(lambda: len(journal.read_text().splitlines()) == 3 + 1 + 2 * 20)
        handled_by = {int(line.split()[-1]) for line in journal.read_text().splitlines()[3:]}
        assert handled_by == {free}, "a locked one claims nothing"
        assert states() == ["locked", "locked", "running"], "they still hold a message each"
        target.scale_to(3)
        eventually(lambda: states() == ["running"] * 3)
        pids = {one["pid"] for one in supervisor.describe()["processes"]}
        assert pids == set(holders), "they were unlocked, none was started anew"
        eventually(lambda: paused() == [False] * 3, "they have heard of it")
        target.scale_to(1)
        eventually(lambda: states() == ["locked", "locked", "running"])
        for n in range(3):
            (tmp_path / f"go{n}").touch()
        eventually(lambda: states() == ["running"])
        assert supervisor.deaths == 0
        eventually(lambda: not queue.main.pending() and not queue.main.in_flight())
    begun = [line.rpartition(" ")[0] for line in journal.read_text().splitlines() if line.startswith("start")]
    assert len(begun) == len(set(begun)) == 23
    app.close()


def test_options_that_make_no_sense(start: Start) -> None:
    for arguments, says in (
        (("--autoscale", "3"), "--autoscale needs --processes"),
        (("--processes", "2", "--autoscale", "3", "--burst"), "give one of them"),
        (("--processes", "3", "--autoscale", "2"), "max_workers = 2 is below min_workers = 3"),
        (("--processes", "2", "--max-rss", "much"), "is not a size"),
        (("--processes", "2", "--max-rss", "5"), "'5' is 5 bytes, below 1M"),
        (("--processes", "2", "--health-bind", "0.0.0.0:0"), "say --public-bind"),
    ):
        command = start(*arguments)
        assert command.wait() == 2
        assert says in command.log()
