"""``ignis worker`` as a process: it handles, drains on a signal, ends at once on a second, and dies without losing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from ignis.app import Ignis
from tests.support import sidelined

TIMEOUT_S = 60
MODULE = """
import os, time, ignis
app = ignis.Ignis()
@app.queue("q", str).handler
def handle(body):
    with open("seen", "a") as file:
        file.write(body + "\\n")
    while body == "hang" and not os.path.exists("release"):
        time.sleep(0.01)
"""

FULL = """
import os, ignis
from ignis.errors import StoreFullError
app = ignis.Ignis(consumer={"ack_retry": 0.05})
queue = app.queue("q", str)
@queue.handler
def handle(body):
    store = queue.main.store
    if not hasattr(store, "whole"):
        store.whole = store.delete
    def delete(*arguments):
        if not os.path.exists("room"):
            open("refused", "a").close()
            raise StoreFullError("no room")
        return store.whole(*arguments)
    store.delete = delete
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path / 'store'}"


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Starts a worker of the module above and waits until it says that it runs."""
    (tmp_path / "shop.py").write_text(MODULE)
    started: list[subprocess.Popen[bytes]] = []

    def call(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ignis", "worker", "shop", "--url", url, "--json", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert wait([process.stdout], TIMEOUT_S)
        event = json.loads(process.stdout.readline() or b"{}")
        assert (event.get("event"), event.get("pid"), event.get("queues")) == ("started", process.pid, ["q"])
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def seen(directory: Path) -> list[str]:
    path = directory / "seen"
    return path.read_text().split() if path.exists() else []


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_handles_and_drains(tmp_path: Path, url: str, start: Start) -> None:
    process = start("--queue", "q")
    with Ignis(url) as app:
        app.queue("q", str).publish_many([str(number) for number in range(100)])
        wait_for(lambda: len(seen(tmp_path)) == 100)
        app.queue("q", str).publish("hang")
        wait_for(lambda: "hang" in seen(tmp_path))
        process.send_signal(signal.SIGTERM)
        (tmp_path / "release").touch()
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        assert json.loads(out)["event"] == "stopped"
        queue = app.queue("q", str)
        assert (queue.main.pending(), queue.main.in_flight(), queue.sideline.pending()) == (0, 0, 0)
    assert sorted(seen(tmp_path)) == sorted([*map(str, range(100)), "hang"])


@pytest.mark.parametrize("more", [[], ["--processes", "1"]])
def test_it_says_where_it_listens_and_how_many_handlers_run(tmp_path: Path, url: str, more: list[str]) -> None:
    """Also for people: with port 0 nobody could know."""
    (tmp_path / "shop.py").write_text(MODULE)
    options = ["--url", url, "--health-bind", "0", "--max-running", "3", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "ignis", "worker", "shop", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(f"ignis worker {process.pid}"))
        found = re.search(r"; (http://127\.0\.0\.1:[1-9]\d*/healthz); ", line)
        assert found is not None, line
        with urllib.request.urlopen(found[1], timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
        assert more or "; at most 3 threads in handlers; " in line
        metrics = found[1].replace("/healthz", "/metrics")
        wait_for(lambda: b"\nignis_turns 3.0\n" in urllib.request.urlopen(metrics, timeout=TIMEOUT_S).read())
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


PATTERNS = """
from ignis import Ignis

app = Ignis()
app.queue("mails.urgent", str)

@app.handler("mails.*", str)
def send(mail): ...

@app.handler(handler_type="letter")
def post(letter): ...
"""


@pytest.mark.parametrize("more", [[], pytest.param(["--processes", "1"], marks=pytest.mark.long)])
def test_it_says_what_it_waits_for(tmp_path: Path, url: str, more: list[str]) -> None:
    (tmp_path / "mails.py").write_text(PATTERNS)
    process = subprocess.Popen(
        [sys.executable, "-m", "ignis", "worker", "mails", "--url", url, *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(f"ignis worker {process.pid}"))
        told = {part.strip() for part in line.partition(" run " if more else f" on {url}: ")[2].split(";")}
        waits = "waits for queues mails.*, with the handler type letter"
        assert {"mails.urgent", waits} <= told, line
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize("processes", [[], pytest.param(["--processes", "1"], marks=pytest.mark.long)])
@pytest.mark.parametrize("room", [True, False])
def test_a_burst_ends_well_when_all_is_acknowledged(tmp_path: Path, url: str, processes: list[str], room: bool) -> None:
    """On a store that has no room for acknowledgements it waits; told to end it says what it leaves."""
    (tmp_path / "full.py").write_text(FULL)
    with Ignis(url) as app:
        queue = app.queue("q", str)
        queue.publish("a")
        command = ["-m", "ignis", "worker", "full", "--url", url, "--burst", "--stop-timeout", "0.5", *processes]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
        ) as process:
            try:
                wait_for((tmp_path / "refused").exists)
                assert queue.main.in_flight() == 1
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.5)
                if room:
                    (tmp_path / "room").touch()
                else:
                    process.terminate()
                errors = process.communicate(timeout=TIMEOUT_S)[1]
            finally:
                process.kill()
        assert process.returncode == (0 if room else 1), errors
        assert queue.main.in_flight() == (0 if room else 1) or processes
        assert (b"left to the sweeper: 0 in hand, of 1 the outcome is not stored" in errors) is not room
        assert (b"in hand" in errors) is not room


def burst(folder: Path, url: str, module: str, *more: str) -> subprocess.CompletedProcess[str]:
    """A worker that ends when its queues are empty."""
    return subprocess.run(
        [sys.executable, "-m", "ignis", "worker", module, "--url", url, "--burst", *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_burst_says_what_is_delayed(tmp_path: Path, url: str) -> None:
    """It ended with 0 and no word while attempts were still to come."""
    (tmp_path / "later.py").write_text(
        f"import ignis\napp = ignis.Ignis({url!r})\n"
        "@app.queue('jobs', str).handler(retry=ignis.Retry(attempts=3, base='9m', jitter=False))\n"
        "def handle(body):\n    raise ConnectionError\n"
    )
    with Ignis(url) as app:
        app.queue("jobs", str).publish("one")
    ended = burst(tmp_path, url, "later")
    assert ended.returncode == 0, ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert re.match(
        r"1 message\(s\) of jobs are delayed, retries too, the next at 20\d\d-.*: the burst did not wait", said
    )
    assert "nothing is left to do: stopping" in ended.stderr
    assert "a second signal" not in ended.stderr, "nobody sent a first one"


@pytest.mark.parametrize("more", [[], pytest.param(["--processes", "1"], marks=pytest.mark.long)])
def test_a_burst_does_not_wait_for_a_queue_that_is_publish_only(tmp_path: Path, url: str, more: list[str]) -> None:
    """It never ended: it counted as left to do what nobody was to claim."""
    (tmp_path / "zero.py").write_text(
        f"import ignis\napp = ignis.Ignis({url!r})\n"
        "@app.queue('zero', str).handler(concurrency=0)\ndef handle(body): ...\n"
        "@app.queue('one', str).handler\ndef take(body): ...\n"
    )
    with Ignis(url) as app:
        for name in ("zero", "one"):
            app.queue(name, str).publish_many(["a", "b"])
    ended = burst(tmp_path, url, "zero", *more)
    assert ended.returncode == 0, ended.stderr
    assert "one, zero (publish only); SIGTERM" in ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert more or said == "2 message(s) of zero wait: nobody consumes it here, its concurrency is 0"
    with Ignis(url) as app:
        assert [app.queue(name, str).main.pending() for name in ("zero", "one")] == [2, 0]


def test_who_works_on_another_store_than_the_environment_names_is_told(tmp_path: Path, url: str) -> None:
    (tmp_path / "own.py").write_text(
        f"import ignis\napp = ignis.Ignis({url!r})\n@app.queue('q', str).handler\ndef handle(body): ...\n"
    )
    command = [sys.executable, "-m", "ignis", "worker", "own", "--burst"]
    for named, more in ((url, []), (f"{url}2", []), (f"{url}2", ["--url", url])):
        ended = subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "IGNIS_URL": named},
        )  # fmt: skip
        assert ("not on IGNIS_URL" in ended.stderr) is (named != url and not more), ended.stderr


def test_a_second_signal_ends_at_once(tmp_path: Path, url: str, start: Start) -> None:
    process = start()
    with Ignis(url) as app:
        app.queue("q", str).publish("hang")
        wait_for(lambda: seen(tmp_path))
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while b"stopping" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130
        assert app.queue("q", str).main.in_flight() == 1


def test_killed_worker_is_swept_and_shovelled(tmp_path: Path, url: str, start: Start) -> None:
    process = start()
    with Ignis(url) as app:
        app.queue("q", str).publish("hang")
        wait_for(lambda: seen(tmp_path))
    process.kill()
    process.communicate(timeout=TIMEOUT_S)

    def ignis(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "ignis", *arguments, "-u", url, "--json"]
        out = json.loads(subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True).stdout)
        assert isinstance(out, dict)
        return out

    assert ignis("sweep")["swept"] == 1
    assert ignis("sideline", "list", "q")["reasons"]["abandoned"]["count"] == 1
    assert ignis("stats", "q")["swept"] == 1
    assert ignis("sideline", "shovel", "q")["moved"] == 1
    (tmp_path / "release").touch()
    start()
    wait_for(lambda: len(seen(tmp_path)) == 2)


@pytest.mark.parametrize("how", ["worker", "burst", "start"])
def test_what_a_killed_worker_held_is_taken_back_by_the_next_start(
    tmp_path: Path, url: str, start: Start, how: str
) -> None:
    """Long before the sweeper's first pass, and before ``stuck_after``."""
    process = start()
    with Ignis(url) as app:
        app.queue("q", str).publish("hang")
        wait_for(lambda: seen(tmp_path))
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        (tmp_path / "release").touch()
        app.queue("q", str).publish("more")
        queue = app.queue("q", str)
        if how == "start":
            queue.handler(lambda body: None)
            app.start()
        else:
            start(*(["--burst"] if how == "burst" else []))
        wait_for(lambda: (queue.main.pending(), queue.main.in_flight()) == (0, 0))
        assert [(one.reason, one.crashes) for one in sidelined(queue)] == [("abandoned", 1)]
        app.stop()


def test_what_dead_processes_held_is_left_to_the_sweeper_where_that_is_wanted(
    tmp_path: Path, url: str, start: Start
) -> None:
    process = start()
    with Ignis(url, sweeper={"dead_owners": False}) as app:
        queue = app.queue("q", str)
        queue.publish("hang")
        wait_for(lambda: seen(tmp_path))
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        queue.handler(lambda body: None)
        app.start()
        assert queue.main.in_flight() == 1
        app.stop()


def test_a_setting_that_is_refused_names_the_users_line(tmp_path: Path, url: str) -> None:
    """And no line of generated code, such as that of a dataclass."""
    (tmp_path / "shop.py").write_text('import ignis\napp = ignis.Ignis()\napp.queue("q", str, message_expiry="7d")\n')
    process = subprocess.run(
        [sys.executable, "-m", "ignis", "worker", "shop", "--url", url],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 2
    assert "give a queue_expiry of at least 604800 s too" in process.stderr
    assert f"({tmp_path}/shop.py, line 3)" in process.stderr


@pytest.mark.parametrize("call", ["run", "start"])
def test_a_module_that_runs_its_application_at_import_is_refused(tmp_path: Path, url: str, call: str) -> None:
    (tmp_path / "unguarded.py").write_text(f"{MODULE}\napp.{call}()\n")
    process = subprocess.run(
        [sys.executable, "-m", "ignis", "worker", "unguarded", "--url", url, "--burst"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "IGNIS_URL": url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 2
    assert (
        f"app.{call}() was called at {tmp_path}/unguarded.py:11, in a module that ignis worker imports"
        in process.stderr
    )
    assert 'if __name__ == "__main__":' in process.stderr
