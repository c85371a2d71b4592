"""Worker processes that cannot start: who is told, and how often it is tried."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.consumer.pools import child
from ignis.consumer.pools import process as process_module
from ignis.errors import WorkerStartError
from ignis.native import process_start_time
from tests.support import WAIT_S, eventually

pytestmark = pytest.mark.integration
MakeApp = Callable[..., ignis.Ignis]

HANDLERS = """
import os, signal, sys
import ignis
where = os.environ.get("WHERE", "")
in_worker = os.environ.get("PARENT") != str(os.getpid())
if in_worker and os.path.exists(where):
    how = open(where).read()
    if how == "raise":
        import no_such_module
    if how == "exit":
        sys.exit(7)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        import time
        time.sleep(600)
app = ignis.Ignis("memory://")

def work(message):
    if message == "die":
        os.kill(os.getpid(), signal.SIGKILL)

app.queue("jobs", str).handler(work, pool="process")
"""

HOWS = {
    "raise": r"ModuleNotFoundError: No module named 'no_such_module' .*handlers_of_.*, line 9",
    "exit": "SystemExit: 7",
    "die": "signal SIGKILL before it was ready",
    "hang": r"worker_start_timeout_s",
}


@pytest.fixture
def how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """``how("raise")``: what a worker process does from now on when it imports the handler's module."""
    monkeypatch.setenv("WHERE", str(tmp_path / "how"))
    monkeypatch.setenv("PARENT", str(os.getpid()))
    return (tmp_path / "how").write_text


@pytest.fixture
def make_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_app: MakeApp) -> Callable[..., ignis.Queue[Any]]:
    name = f"handlers_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**settings: Any) -> ignis.Queue[Any]:
        module = __import__(name)
        app = new_app(f"embedded://{tmp_path}/store", consumer=settings)
        queue = app.queue("jobs", str)
        queue.handler(module.work, pool="process", concurrency=2)
        return queue

    return make


@pytest.mark.parametrize("what", HOWS)
def test_start_fails_with_the_error_of_the_worker(
    how: Callable[[str], int], make_queue: Callable[..., ignis.Queue[Any]], what: str
) -> None:
    how(what)
    queue = make_queue(worker_start_timeout=1.5 if what == "hang" else 60)
    with pytest.raises(WorkerStartError, match=HOWS[what]) as caught:
        queue.app.start()
    assert (caught.value.queue, caught.value.handler) == ("jobs", "work")
    assert queue.consumer is None and not queue.app.running


def test_what_a_worker_said_before_it_ended_is_told_however_late_it_is_read(
    how: Callable[[str], int], make_queue: Callable[..., ignis.Queue[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens its channels, reports and ends between two looks of the thread that hears it."""
    real = child.launch

    def launch(spec: child.ChildSpec) -> subprocess.Popen[bytes]:
        process = real(spec)
        process.poll = lambda: process.wait(WAIT_S)  # type: ignore[method-assign]
        return process

    monkeypatch.setattr(child, "launch", launch)
    how("raise")
    queue = make_queue(worker_start_timeout=60)
    with pytest.raises(WorkerStartError, match=HOWS["raise"]):
        queue.app.start()


def test_it_starts_when_it_can_again(how: Callable[[str], int], make_queue: Callable[..., ignis.Queue[Any]]) -> None:
    how("raise")
    queue = make_queue()
    with pytest.raises(WorkerStartError):
        queue.app.start()
    how("")
    queue.app.start()
    queue.publish("work")
    eventually(lambda: not queue.main.pending() and not queue.main.in_flight())


def test_deaths_at_start_after_a_good_one_are_bounded(
    how: Callable[[str], int], make_queue: Callable[..., ignis.Queue[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_RESTART_PAUSE_S", (0.0, 0.01))
    monkeypatch.setattr(process_module, "_MOST_FAILED_STARTS", 3)
    launched: list[bool] = []
    good: list[int] = []
    real = child.launch

    def launch(spec: child.ChildSpec) -> subprocess.Popen[bytes]:
        launched.append(not any(map(process_start_time, good)))  # as long as one lives it is tried for ever
        return real(spec)

    monkeypatch.setattr(child, "launch", launch)
    queue = make_queue()
    queue.app.start()
    consumer = queue.consumer
    assert consumer is not None
    eventually(lambda: consumer.stats()["workers"] == 2)
    good += consumer.worker_pids
    how("raise")
    queue.publish_many(["die", "die"])
    eventually(lambda: consumer.failed is not None, "it gives up, after five interpreters", 3 * WAIT_S)
    assert isinstance(consumer.failed, WorkerStartError)
    assert "no_such_module" in str(consumer.failed)
    assert "no_such_module" in consumer.stats()["start_error"]
    assert consumer.stats()["failed_starts"] >= 3
    seen = len(launched)
    assert sum(launched) <= 2 + 2 + 3
    time.sleep(0.2)
    assert len(launched) == seen, "nothing is started any more"


def run_script(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, str(path), f"embedded://{tmp_path}/store"],
        capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=tmp_path,
    )  # fmt: skip


def test_a_script_without_the_guard_publishes_once(tmp_path: Path, new_app: MakeApp) -> None:
    script = """
        import sys
        import ignis

        app = ignis.Ignis(sys.argv[1])
        queue = app.queue("jobs", str)

        @queue.handler(pool="process", concurrency=4)
        def work(message):
            print("handled", flush=True)

        queue.publish("one")
        app.run()
    """
    done = run_script(tmp_path, script)
    assert done.returncode == 1
    assert "MainGuardError" in done.stderr
    said = done.stderr.splitlines()[-1]
    assert 'if __name__ == "__main__":' in said, "start() says so, and shows the guard"
    assert f"open_store() was called at {tmp_path}/script.py:12, in a script" in said, "the user's own line"
    assert new_app(f"embedded://{tmp_path}/store").queue("jobs", str).main.pending() == 1


def test_a_script_is_not_run_again_for_a_handler_of_another_module(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        textwrap.dedent(
            """
            import sys
            import ignis

            app = ignis.Ignis(sys.argv[1])
            queue = app.queue("jobs", str)

            @queue.handler(pool="process", concurrency=2)
            def work(message):
                print("handled", message, flush=True)
            """
        )
    )
    script = """
        import threading, time
        from tasks import app, queue

        print("script", flush=True)
        queue.publish("one")

        def stop():
            while queue.main.pending() or queue.main.in_flight():
                time.sleep(0.01)
            app.request_stop()

        threading.Thread(target=stop, daemon=True).start()
        app.run()
        app.close()
    """
    done = run_script(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["handled one", "script"]


def test_a_handler_that_cannot_be_imported(new_app: MakeApp, embedded_url: str) -> None:
    queue = new_app(embedded_url).queue("jobs", str)
    with pytest.raises(ignis.errors.ConfigError, match="function at module level"):
        queue.handler(lambda message: None, pool="process")
