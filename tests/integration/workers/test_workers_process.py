"""Workers that are processes: the same outcomes as threads, and what becomes of messages when one is killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.consumer.pools import child
from ignis.consumer.pools import process as process_module
from ignis.errors import WorkerStartError
from ignis.log_format import JsonFormatter
from tests.apps import jobs
from tests.support import WAIT_S, Journal, eventually, reasons, sidelined, wait_idle

pytestmark = pytest.mark.integration
MakeApp = Callable[..., ignis.Ignis]

OUTCOMES: dict[str, str | None] = {
    "none": None,
    "true": None,
    "dropped": None,
    "ignore": None,
    "false": "rejected",
    "raise": "exception",
    "exit": "exception",
    "text": None,
    "die": "crash",
}


def release(journal: Journal, name: str) -> None:
    """Lets the jobs go on that hold until that name."""
    journal.path.with_name(f"{journal.path.name}.{name}").touch()


def pids(queue: ignis.Queue[Any]) -> list[int]:
    assert queue.consumer is not None
    return queue.consumer.worker_pids


def wait_ready(queue: ignis.Queue[Any], count: int) -> list[int]:
    """Until so many worker processes take messages."""
    eventually(lambda: queue.consumer.stats()["workers"] == count)  # type: ignore[union-attr]
    return pids(queue)


@pytest.fixture(autouse=True)
def _quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_RESTART_PAUSE_S", (0.0, 0.01))


@pytest.fixture
def app(embedded_url: str, new_app: MakeApp) -> ignis.Ignis:
    return new_app(embedded_url)


def test_outcomes(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process", concurrency=2)
    for n, do in enumerate(OUTCOMES):
        queue.publish({"n": n, "do": do}, key=do, headers={"do": do})
    queue.main.store.load_records("jobs", 0, [b"\x09garbage"])
    app.start()
    wait_idle(queue)
    assert Counter(row.record for row in queue.sideline.peek(100))[b"\x09garbage"] == 1
    found = {
        row.envelope.headers["do"]: row.envelope for row in queue.sideline.peek(100) if row.record != b"\x09garbage"
    }
    assert {do: message.reason for do, message in found.items()} == {do: why for do, why in OUTCOMES.items() if why}
    assert found["raise"].error == "RuntimeError: job 5 failed"
    assert found["exit"].error == "SystemExit: 3"
    assert (found["die"].crashes, found["die"].failures) == (1, 1)
    assert "signal SIGKILL" in (found["die"].error or "")
    assert all(message.crashes == 0 for do, message in found.items() if do != "die")
    counts = journal.counts()
    assert all(counts[f"start {n}"] == 1 for n in range(len(OUTCOMES))), "each was called once"
    assert app.stop() is True


def test_attempts(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "again", "process")
    queue.publish_many([{"n": 1, "good": 3}, {"n": 2, "good": 4}])
    app.start()
    wait_idle(queue)
    assert sorted(journal.lines()) == [f"try {n} {a}" for n in (1, 2) for a in (1, 2, 3)]
    assert [message.error for message in sidelined(queue)] == ["RuntimeError: attempt 3"]


@pytest.mark.long
def test_retries(app: ignis.Ignis, journal: Journal) -> None:
    """What is tried again is decided by the exception in the worker, or its answer, by the death of it in its parent."""
    queue = jobs.register(app, "retried", "process", shovel_interval=0)
    queue.publish_many([{"n": 1, "good": 3}, {"n": 2, "good": 9}, {"n": 3, "good": 1, "dies": 1}])
    queue.publish({"n": 4, "good": 1, "asks": 1})
    queue.publish({"n": 5, "good": 1, "defers": True})
    app.start()
    eventually(lambda: queue.stats()["consumer"]["handled"] == 4)
    (message,) = eventually(lambda: sidelined(queue))
    assert sorted(journal.lines()) == sorted(
        ["try 5 1"] * 2 + [f"try {n} {a}" for n, most in ((1, 3), (2, 3), (3, 2), (4, 2)) for a in range(1, most + 1)]
    )
    assert [one.error for one in message.history] == [f"RuntimeError: attempt {n}" for n in (1, 2, 3)]
    assert all("in act_again" in one.trace and one.worker for one in message.history)
    assert queue.stats()["consumer"]["retried"] == 7


def test_batches(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "batches", "process")
    dos = ["none", "true", "false", "text", "dropped"] * 4
    queue.publish_many([{"n": n, "do": do} for n, do in enumerate(dos)])
    app.start()
    wait_idle(queue)
    assert reasons(queue) == Counter({"rejected": 4})
    assert journal.counts()["batch 5"] >= 3


def test_a_batch_dies_as_a_whole_and_alone(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "batches", "process", shovel_interval=0)
    queue.publish_many([{"n": n, "do": "none"} for n in range(5)], keys=["k"] * 5)
    queue.publish_many([{"n": n, "do": "none", "whole": "die"} for n in range(5, 10)], keys=["k"] * 5)
    queue.publish_many([{"n": n, "do": "none"} for n in range(10, 15)], keys=["k"] * 5)
    app.start()
    wait_idle(queue)
    assert [(message.reason, message.crashes) for message in sidelined(queue)] == [("crash", 1)] * 5
    assert all(journal.counts()[f"start {n}"] == 1 for n in range(15))


def test_the_death_of_a_process_is_logged(app: ignis.Ignis, journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    queue = jobs.register(app, "jobs", "process")
    app.start()
    [pid] = wait_ready(queue, 1)
    published = queue.publish({"n": 0, "do": "die"})
    wait_idle(queue)
    [record] = [one for one in caplog.records if "ended with" in one.getMessage()]
    line, fields = record.getMessage(), json.loads(JsonFormatter().format(record))
    assert (fields["event"], fields["queue"], fields["message_id"]) == ("worker_process_died", "jobs", published.id)
    assert line.startswith(f"worker process {pid} (")
    assert line.endswith(f"of queue jobs ended with signal SIGKILL and 1 message(s) in hand, at message {published.id}")


def test_a_process_that_overruns_is_killed(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "timed", "process")
    queue.publish({"n": 0, "do": "hold", "until": "never"}, key="k")
    queue.publish_many([{"n": n, "do": "none"} for n in range(1, 6)], keys=["k"] * 5)
    app.start()
    [pid] = wait_ready(queue, 1)
    wait_idle(queue)
    [message] = sidelined(queue)
    assert (message.reason, message.error, message.crashes) == ("timeout", "handler ran for more than 0.4 s", 0)
    assert all(journal.counts()[f"end {n}"] == 1 for n in range(1, 6)), "its successor went on"
    assert pids(queue) != [pid]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("concurrency", [1, pytest.param(3, marks=pytest.mark.long)])
def test_kill_9_costs_the_message_at_hand_and_no_other(app: ignis.Ignis, journal: Journal, concurrency: int) -> None:
    queue = jobs.register(app, "jobs", "process", concurrency=concurrency)
    app.start()
    wait_ready(queue, concurrency)
    queue.publish_many([{"n": n, "do": "none"} for n in range(50)])
    wait_idle(queue)
    queue.publish({"n": 1_000, "do": "hold", "until": "never", "tell": 1})
    [held] = eventually(lambda: [line for line in journal.lines() if line.startswith("held by ")])
    queue.publish_many([{"n": n, "do": "none"} for n in range(50, 100)])
    pid = int(held.removeprefix("held by "))
    assert pid in pids(queue)
    os.kill(pid, signal.SIGKILL)
    wait_idle(queue)
    [message] = sidelined(queue)
    assert (message.reason, message.crashes, message.body) == (
        "crash",
        1,
        b'{"n":1000,"do":"hold","until":"never","tell":1}',
    )
    counts = journal.counts()
    assert all(counts[f"end {n}"] == 1 for n in range(100))
    eventually(lambda: queue.consumer.stats()["worker_deaths"] == 1)  # type: ignore[union-attr]
    eventually(lambda: len(pids(queue)) == concurrency)
    assert app.stop() is True


def test_kill_9_of_idle_processes_costs_nothing(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process", concurrency=2)
    app.start()
    for first in (0, 10):
        for pid in wait_ready(queue, 2):
            if first:
                os.kill(pid, signal.SIGKILL)
        queue.publish_many([{"n": n, "do": "none"} for n in range(first, first + 10)])
        eventually(lambda: sum(line.startswith("end") for line in journal.lines()) == first + 10)  # noqa: B023
    wait_idle(queue)
    assert sidelined(queue) == []
    assert all(journal.counts()[f"end {n}"] == 1 for n in range(20))


def test_a_poisonous_message_does_not_stop_the_queue(app: ignis.Ignis, journal: Journal) -> None:
    """Every tenth message kills its worker."""
    queue = jobs.register(app, "jobs", "process", concurrency=2)
    queue.publish_many([{"n": n, "do": "none" if n % 10 else "die"} for n in range(60)])
    app.start()
    wait_idle(queue)
    assert reasons(queue) == Counter({"crash": 6})
    counts = journal.counts()
    assert all(counts[f"start {n}"] == 1 for n in range(60))
    assert all(counts[f"end {n}"] == 1 for n in range(60) if n % 10)


def test_more_and_fewer_processes(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process", concurrency=1)
    app.start()
    first = wait_ready(queue, 1)
    queue.increase_consumers(2)
    three = wait_ready(queue, 3)
    assert first[0] in three
    queue.publish_many([{"n": n, "do": "hold", "until": "go"} for n in range(6)])
    eventually(lambda: len(journal.lines()) == 3)
    queue.decrease_consumers(2)
    assert len(pids(queue)) == 1
    release(journal, "go")
    wait_idle(queue)
    assert all(journal.counts()[f"end {n}"] == 1 for n in range(6))
    eventually(lambda: not any(alive(pid) for pid in set(three) - set(pids(queue))))
    assert sidelined(queue) == []


def test_a_process_that_is_added_begins_when_the_one_before_has_ended(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process", concurrency=1)
    app.start()
    (first,) = wait_ready(queue, 1)
    queue.publish({"n": 0, "do": "hold", "until": "go"})
    eventually(lambda: len(journal.lines()) == 1)
    queue.decrease_consumers()
    queue.increase_consumers()
    queue.publish_many([{"n": n, "do": "none"} for n in range(1, 5)])
    time.sleep(2.0)  # for one that would begin at once, which takes a process that long
    assert len(journal.lines()) == 1
    release(journal, "go")
    wait_idle(queue)
    assert all(journal.counts()[f"end {n}"] == 1 for n in range(5))
    eventually(lambda: not alive(first))


def test_one_process_keeps_the_order_while_more_is_published(app: ignis.Ignis, journal: Journal) -> None:
    """What lies behind a slow message is taken back, and what was claimed meanwhile does not pass it."""
    queue = jobs.register(app, "jobs", "process", concurrency=1)
    app.start()
    total = 0
    for lot in range(100):
        naps = lot % 8 == 3
        queue.publish_many(
            [{"n": total + n, "do": "nap" if naps and n == 7 else "none"} for n in range(20)], key=lambda _: "one"
        )
        total += 20
        time.sleep(0.02)
    wait_idle(queue)
    assert [line for line in journal.lines() if line.startswith("start")] == [f"start {n}" for n in range(total)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_graceful_stop_loses_and_doubles_nothing(embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    app = new_app(embedded_url)
    queue = jobs.register(app, "jobs", "process", concurrency=2)
    queue.publish_many([{"n": n, "do": "none"} for n in range(250)])
    rounds = 0
    while queue.main.pending():
        before = len(journal.lines())
        app.start()
        eventually(lambda: len(journal.lines()) >= min(before + 100, 500) or not queue.main.pending())  # noqa: B023
        assert app.stop() is True
        assert queue.main.in_flight() == 0
        rounds += 1
        assert rounds < 100
    counts = journal.counts()
    assert all(counts[f"end {n}"] == counts[f"start {n}"] == 1 for n in range(250))
    assert sidelined(queue) == []


def test_a_stuck_process_is_killed_at_the_end_and_its_message_given_back(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process")
    queue.publish({"n": 0, "do": "hold", "until": "never"}, key="k")
    queue.publish_many([{"n": n, "do": "none"} for n in range(1, 5)], keys=["k"] * 4)
    app.start()
    eventually(lambda: journal.lines() == ["start 0"])
    [pid] = pids(queue)
    assert app.stop(timeout=0.3) is True
    assert (queue.main.pending(), queue.main.in_flight(), sidelined(queue)) == (5, 0, [])
    assert not alive(pid)


def test_context_and_middleware_are_those_of_the_imported_module(app: ignis.Ignis, journal: Journal) -> None:
    """The worker's application is its own: what the parent's middleware does stays in the parent."""
    queue = jobs.register(app, "jobs", "process")
    seen: list[Any] = []
    app.middleware(lambda ctx, call_next: seen.append(ctx) or call_next(ctx))
    queue.publish({"n": 1, "do": "none"})
    app.start()
    wait_idle(queue)
    assert journal.lines() == ["start 1", "end 1"]
    assert seen == []


def test_the_stored_codec_reaches_the_workers(embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    """A worker process never opens the store: it is told what the queue's bodies are."""
    new_app(embedded_url).queue("jobs", dict, codec="msgpack", shards=4).publish({"n": 1, "do": "none"})
    app = new_app(embedded_url)
    queue = jobs.register(app, "jobs", "process")
    app.start()
    wait_idle(queue)
    assert journal.lines() == ["start 1", "end 1"]
    assert sidelined(queue) == []


def test_large_messages(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process")
    for n, size in enumerate([10, 5_000, 100_000, 300_000, 1_000_000]):
        queue.publish({"n": n, "do": "none", "pad": "x" * size})
    app.start()
    wait_idle(queue)
    assert all(journal.counts()[f"end {n}"] == 1 for n in range(5))
    assert sidelined(queue) == []


def test_nothing_is_left_in_shared_memory(app: ignis.Ignis, journal: Journal) -> None:
    queue = jobs.register(app, "jobs", "process", concurrency=2)
    app.start()
    wait_ready(queue, 2)
    assert queue.consumer is not None
    directory: Path = queue.consumer._pool.directory  # type: ignore[attr-defined]
    eventually(lambda: list(directory.iterdir()) == [])
    assert directory.stat().st_mode & 0o777 == 0o700
    app.stop()
    assert not directory.exists()


# -- parents that end in other ways


def script(tmp_path: Path, body: str) -> list[str]:
    path = tmp_path / "main.py"
    path.write_text(
        textwrap.dedent("""
        import os, sys, time
        import ignis
        from tests.apps import jobs
        from tests.support import eventually

        def main():
            app = ignis.Ignis(sys.argv[1])
            queue = jobs.register(app, "jobs", "process", concurrency=2)
            queue.publish_many([{"n": n, "do": "none"} for n in range(20)])
            app.start()
            eventually(lambda: not queue.main.pending() and not queue.main.in_flight())
            print(*queue.consumer.worker_pids, flush=True)
        """)
        + textwrap.indent(textwrap.dedent(body), "    ")
        + '\nif __name__ == "__main__":\n    main()\n'
    )
    return [sys.executable, str(path)]


def environment(journal: Journal) -> dict[str, str]:
    root = Path(__file__).parents[3]
    return {**os.environ, "PYTHONPATH": str(root), "IGNIS_TEST_JOURNAL": str(journal.path)}


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        pytest.param("sys.exit(4)", 4, marks=pytest.mark.long),
        pytest.param("raise RuntimeError('x')", 1, marks=pytest.mark.long),
        ("os._exit(5)", 5),
    ],
)
def test_a_parent_that_just_ends_leaves_no_process(
    tmp_path: Path, embedded_url: str, journal: Journal, end: str, code: int
) -> None:
    done = subprocess.run(
        [*script(tmp_path, end), embedded_url],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=environment(journal),
    )
    assert done.returncode == code
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    eventually(lambda: not any(alive(pid) for pid in workers))


def test_a_parent_that_is_killed_leaves_no_process(tmp_path: Path, embedded_url: str, journal: Journal) -> None:
    with subprocess.Popen(
        [*script(tmp_path, "time.sleep(60)"), embedded_url],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(journal),
    ) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    eventually(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.long
def test_a_handler_does_not_outlive_the_parent(tmp_path: Path, embedded_url: str, journal: Journal) -> None:
    """Nobody would hear its outcome, and its message is given to somebody else."""
    body = """
    queue.publish({"n": 99, "do": "hold", "until": "never", "tell": 1})
    time.sleep(60)
    """
    with subprocess.Popen(
        [*script(tmp_path, body), embedded_url], stdout=subprocess.DEVNULL, env=environment(journal)
    ) as parent:
        [held] = eventually(lambda: [line for line in journal.lines() if line.startswith("held by ")])
        parent.kill()
    eventually(lambda: not alive(int(held.removeprefix("held by "))), timeout=WAIT_S / 3)


def test_handlers_of_the_main_script(tmp_path: Path, embedded_url: str, new_app: MakeApp, journal: Journal) -> None:
    """``python app.py`` with the handler in it: the worker imports it under another name."""
    path = tmp_path / "app.py"
    path.write_text(
        textwrap.dedent("""
        import sys
        import ignis
        from tests.apps.jobs import note

        app = ignis.Ignis(sys.argv[1] if len(sys.argv) > 1 else None)
        queue = app.queue("numbers", int)

        @queue.handler(pool="process", concurrency=2)
        def handle(number: int) -> None:
            note(number)

        if __name__ == "__main__":
            queue.publish_many(range(100))
            app.start()
            from tests.support import wait_idle
            wait_idle(queue)
            assert app.stop()
        """)
    )
    subprocess.run([sys.executable, str(path), embedded_url], timeout=WAIT_S, check=True, env=environment(journal))
    assert sorted(journal.lines(), key=int) == [str(n) for n in range(100)]
    assert sidelined(new_app(embedded_url).queue("numbers", int)) == []


def test_a_module_that_cannot_be_imported_fails_the_start(
    app: ignis.Ignis, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = jobs.register(app, "jobs", "process")
    assert queue.spec is not None
    monkeypatch.setattr(type(queue.spec), "import_path", lambda self: ("no_such_module", "handle"))
    queue.publish({"n": 1, "do": "none"})
    with pytest.raises(WorkerStartError, match="no_such_module"):
        app.start()
    assert (queue.main.pending(), queue.main.in_flight()) == (1, 0)


def test_without_a_descriptor_the_start_names_the_limit(
    app: ignis.Ignis, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(spec: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    jobs.register(app, "jobs", "process")
    monkeypatch.setattr(child, "launch", none_left)
    with pytest.raises(WorkerStartError, match=r"Too many open files \(ulimit -n\)"):
        app.start()
