"""Worker processes that are stopped, keep old code, do not end, or cannot be told of: what their supervisor does."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ignis
from ignis.config import SupervisorSettings
from ignis.supervisor import LocalProcesses, Supervisor, WorkerCommand
from ignis.supervisor.process import LOCKED, RUNNING, STARTING, STOPPING, WorkerProcess
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually, reasons
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


def test_a_stopped_worker_is_replaced_and_what_it_held_given_back(
    start: Start, queue: ignis.Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_SUPERVISOR_SILENT_AFTER", "2")
    monkeypatch.setenv("IGNIS_SUPERVISOR_SILENT_KILL_AFTER", "4")
    command = start("--processes", "1", "--health-bind", "0").wait_started()
    [victim] = command.wait_running(1)
    queue.publish("hold never")
    eventually(command.journal)
    os.kill(victim, signal.SIGSTOP)
    eventually(lambda: f"process {victim} has said nothing for" in command.log())
    eventually(lambda: not alive(victim), timeout=START_S)
    eventually(lambda: not Path(f"/proc/{victim}").exists(), "it was waited for")
    eventually(lambda: reasons(queue)["abandoned"] == 1)
    command.wait_running(1, without=[victim])
    queue.publish("next")
    eventually(lambda: command.ended()["next"] == 1)
    eventually(lambda: command.health()[0] == 200)
    assert command.health()[1]["deaths"] >= 1


@pytest.mark.long
def test_a_worker_that_goes_on_is_one_too_many(
    start: Start, queue: ignis.Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped for a while, as in a debugger: another works beside it, and nothing is killed or handled twice."""
    monkeypatch.setenv("IGNIS_SUPERVISOR_SILENT_AFTER", "3")
    monkeypatch.setenv("IGNIS_SUPERVISOR_SILENT_KILL_AFTER", "0")
    command = start("--processes", "1", "--health-bind", "0").wait_started()
    [stopped] = command.wait_running(1)
    queue.publish("hold go")
    eventually(command.journal)
    os.kill(stopped, signal.SIGSTOP)
    eventually(lambda: len(command.pids()) == 2 and command.health()[0] == 200, "another beside it", START_S)
    queue.publish("next")
    eventually(lambda: command.ended()["next"] == 1)
    os.kill(stopped, signal.SIGCONT)
    command.wait_running(1)
    command.release("go")
    eventually(lambda: command.ended() == {"next": 1, "hold go": 1})
    assert command.health()[1]["deaths"] == 0


@pytest.mark.long
def test_a_locked_worker_is_not_unlocked_with_old_code(tmp_path: Path, embedded_url: str) -> None:
    module = tmp_path / "jobs.py"
    module.write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    app = ignis.Ignis(embedded_url)
    queue = app.queue("q", str, shards=4, shovel_interval=0)
    journal = tmp_path / "journal"

    def lines() -> list[str]:
        return journal.read_text().splitlines() if journal.exists() else []

    with LocalProcesses(
        "jobs", ["--url", embedded_url], processes=2, environment=environment, directory=str(tmp_path)
    ) as target:
        target.wait_ready(START_S)
        supervisor = target.supervisor

        def states() -> dict[int, str]:
            return {one["pid"]: one["state"] for one in supervisor.describe()["processes"]}

        before = set(states())
        queue.publish("hold first")
        eventually(lambda: len(lines()) == 1)
        holder = int(lines()[0].split()[-1])
        # The other one is locked, or holds the second message and is locked all the same.
        queue.publish("hold second")
        eventually(lambda: len(lines()) == 2)
        target.scale_to(1)
        eventually(lambda: LOCKED in states().values() or len(states()) == 1)
        if len({int(line.split()[-1]) for line in lines()}) < 2:
            (tmp_path / "first").touch()
            (tmp_path / "second").touch()
            pytest.skip(f"process {holder} got both: nothing is locked and busy")
        [locked] = [pid for pid, state in states().items() if state == LOCKED]
        module.write_text(MODULE.replace('note(f"end {body}")', 'note(f"end {body} anew")'))
        supervisor.reload()
        target.scale_to(2)
        (tmp_path / ("first" if locked != holder else "second")).touch()  # the other one can be replaced
        eventually(lambda: [pid for pid, state in states().items() if state == RUNNING and pid not in before][1:])
        # Its predecessor claims until the successor consumes: it must be gone before "next" comes.
        eventually(lambda: before & states().keys() == {locked})
        assert states()[locked] == LOCKED
        queue.publish("next")
        eventually(lambda: any(line.startswith("end next") for line in lines()))
        assert any(line.startswith("end next anew") for line in lines()), (locked, holder, states(), lines())
        (tmp_path / "first").touch()
        (tmp_path / "second").touch()
        eventually(lambda: len(states()) == 2 and not set(states()) & before)
        assert supervisor.deaths == 0
    assert len([line for line in lines() if line.startswith("end")]) == 3
    app.close()


def test_one_that_says_it_ends_and_does_not_is_killed(
    start: Start, queue: ignis.Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_SUPERVISOR_KILL_AFTER", "1")
    module = MODULE + "\nimport atexit\natexit.register(time.sleep, 600)\n"
    command = start("--processes", "1", "--max-messages", "1", "--health-bind", "0", module=module).wait_started()
    [first] = command.wait_running(1)
    queue.publish("one")
    eventually(lambda: command.ended()["one"] == 1)
    command.wait_running(1, without=[first])
    assert not alive(first)
    assert "(stopping) takes too long to end: killed" in command.log()
    queue.publish("two")
    eventually(lambda: command.ended()["two"] == 1)
    command.signal(signal.SIGTERM)
    assert command.wait() == 0
    assert (queue.main.in_flight(), reasons(queue)) == (0, {})


def test_one_of_three_is_not_healthy(start: Start, queue: ignis.Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are wanted by what waits, and only the first can begin."""
    monkeypatch.setenv("IGNIS_AUTOSCALER_MESSAGES_PER_WORKER", "1")
    monkeypatch.setenv("IGNIS_AUTOSCALER_INTERVAL", "0.1")
    module = "import os\nif os.path.exists('begun'): os.abort()\nopen('begun', 'w').close()\n" + MODULE
    command = start("--processes", "1", "--autoscale", "3", "--health-bind", "0", module=module).wait_started()
    assert command.health()[0] == 200
    queue.publish_many([f"hold {n}" for n in range(200)])
    eventually(lambda: command.health()[1]["deaths"] >= 2, timeout=START_S)
    status, health = command.health()
    assert (status, health["status"], health["wanted"]) == (503, "failing", 3)
    assert [one["state"] for one in health["processes"] if one["state"] == "running"] == ["running"]


@pytest.mark.parametrize(
    ("states", "silent", "failures", "healthy"),
    [
        ([RUNNING] * 3, 0, 0, True),
        ([RUNNING, RUNNING], 0, 0, False),
        ([RUNNING, STARTING, STARTING], 0, 0, True),
        ([RUNNING, STARTING, STARTING], 0, 1, False),
        ([STARTING] * 3, 0, 0, False),
        ([RUNNING] * 3, 1, 0, False),
        ([RUNNING] * 4, 1, 0, True),
        ([RUNNING, RUNNING, LOCKED], 0, 0, False),
        ([RUNNING, RUNNING, STOPPING], 0, 0, False),
    ],
    ids=["all", "two", "begin", "fail", "none yet", "silent", "beside", "locked", "ending"],
)
def test_what_is_healthy(states: list[str], silent: int, failures: int, healthy: bool) -> None:
    supervisor = Supervisor(WorkerCommand(["jobs"]), 1, settings=SupervisorSettings(silent_after_s=30))
    supervisor.scale_to(3)
    supervisor._failures = failures
    supervisor._living = [
        SimpleNamespace(state=state, replaces=None, silent_s=31.0 if n < silent else 0.1)  # type: ignore[misc]
        for n, state in enumerate(states)
    ]
    assert supervisor.healthy is healthy


def test_one_that_cannot_be_killed_keeps_nobody_from_ending() -> None:
    """As one that waits for a disk that does not answer."""
    supervisor = Supervisor(WorkerCommand(["--help"]), 1)
    one = WorkerProcess(WorkerCommand(["--help"]), 1)
    try:
        supervisor._living = [one]
        supervisor._stopping = True
        one.kill()
        assert not supervisor._over()
        one.killed_at -= 60
        assert supervisor._over()
    finally:
        one.popen.wait(WAIT_S)
        one.close()


def test_a_supervisor_that_was_stopped_blames_nobody() -> None:
    """As by a debugger or a container's pause: what it did not hear in that time was perhaps not said either."""
    settings = SupervisorSettings(silent_after_s=30, silent_kill_after_s=60, start_timeout_s=60)
    supervisor = Supervisor(WorkerCommand(["-c", "pass"]), 2, settings=settings)
    started = [WorkerProcess(WorkerCommand(["--help"]), number) for number in range(2)]
    try:
        started[0].state = RUNNING
        supervisor._living = started
        for one in started:
            one.heard_at -= 1_000
            one.began_at -= 1_000
        supervisor._looked_at -= 1_000
        assert all(one.overdue(60, 60) for one in started)
        supervisor._look_at_the_clock()
        assert [one.overdue(60, 60) for one in started] == ["", ""]
        started[0].heard_at -= 1_000
        supervisor._look_at_the_clock()
        assert started[0].overdue(60, 60), "it was not stopped this time"
    finally:
        for one in started:
            one.kill()
            one.popen.wait(WAIT_S)
            one.close()


@pytest.mark.parametrize(
    ("output", "processes"),
    [
        ("closed", ()),
        ("gone", ()),
        pytest.param("full", (), marks=pytest.mark.long),
        pytest.param("unread", (), marks=pytest.mark.long),
        pytest.param("gone", ("--processes", "1"), marks=pytest.mark.long),
    ],
    ids=["closed", "gone", "full", "unread", "gone-supervised"],
)
def test_a_standard_output_that_takes_nothing_ends_no_worker(
    tmp_path: Path, embedded_url: str, queue: ignis.Queue[str], output: str, processes: tuple[str, ...]
) -> None:
    (tmp_path / "jobs.py").write_text(MODULE)
    queue.publish("one")
    arguments = [
        sys.executable,
        "-m",
        "ignis",
        "worker",
        "jobs",
        "--url",
        embedded_url,
        "--json",
        "--burst",
        *processes,
    ]
    given: Any = None
    read, write = os.pipe()
    if output == "closed":
        arguments = ["sh", "-c", 'exec "$@" >&-', "sh", *arguments]
    elif output == "full":
        given = os.open("/dev/full", os.O_WRONLY)
    else:
        given = write
        if output == "gone":
            os.close(read)
        else:
            os.set_blocking(write, False)
            size = fcntl.fcntl(write, 1_031)  # F_GETPIPE_SZ
            os.write(write, b"x" * size)
            os.set_blocking(write, True)
    try:
        done = subprocess.run(
            arguments, cwd=tmp_path, stdout=given, stderr=subprocess.PIPE, timeout=WAIT_S + START_S, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    finally:
        for one in {write, *([] if output == "gone" else [read]), *([given] if output == "full" else [])}:
            os.close(one)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert queue.main.pending() == 0
    if output != "closed":
        assert b"standard output cannot be written, going on without it" in done.stderr
