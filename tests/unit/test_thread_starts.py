"""A thread that finds no memory at its start: Python's own ``Thread.start`` would wait for it for ever."""

from __future__ import annotations

import ast
import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import StoreUnreachableError
from ignis.stacks import start_thread
from ignis.upkeep import SharedThreads, WorkThreads, in_thread, run_soon, timers, upkeep_stalled
from tests.conftest import MakeApp
from tests.support import WAIT_S, eventually
from tests.support.parsing import parse

PACKAGE = Path(ignis.__file__).parent

Lose = Callable[..., list[str]]


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Lose:
    """Threads of that name die before they say that they run, so many of them."""
    monkeypatch.setattr("ignis.stacks.START_S", 0.2)

    def begin(name: str, often: int = 1) -> list[str]:
        lost: list[str] = []
        whole: Any = threading.Thread._bootstrap  # type: ignore[attr-defined]

        def bootstrap(thread: threading.Thread) -> None:
            if thread.name.startswith(name) and len(lost) < often:
                lost.append(thread.name)
                return
            whole(thread)

        monkeypatch.setattr(threading.Thread, "_bootstrap", bootstrap)
        return lost

    return begin


def test_a_thread_that_dies_at_its_start_is_an_error(lose: Lose) -> None:
    lost, ran = lose("mine"), threading.Event()
    with pytest.raises(RuntimeError, match="can't start new thread: mine has not begun"):
        start_thread(threading.Thread(target=ran.set, name="mine", daemon=True))
    assert lost and not ran.is_set()
    start_thread(threading.Thread(target=ran.set, name="mine", daemon=True))
    assert ran.wait(WAIT_S)


def test_a_thread_that_comes_too_late_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work may be another's by now."""
    monkeypatch.setattr("ignis.stacks.START_S", 0.1)
    whole: Any = threading.Thread._bootstrap  # type: ignore[attr-defined]
    gate, ran, ended = threading.Event(), threading.Event(), threading.Event()

    def bootstrap(thread: threading.Thread) -> None:
        gate.wait(WAIT_S)
        whole(thread)
        ended.set()

    monkeypatch.setattr(threading.Thread, "_bootstrap", bootstrap)
    with pytest.raises(RuntimeError, match="start new thread"):
        start_thread(threading.Thread(target=ran.set, daemon=True))
    gate.set()
    assert ended.wait(WAIT_S) and not ran.is_set()


def test_what_joins_names_and_counts_threads_goes_on() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="one", daemon=True)
    start_thread(thread)
    assert thread.is_alive() and thread.ident and thread in threading.enumerate()
    gate.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    with pytest.raises(RuntimeError):
        start_thread(thread)


def test_no_memory_for_a_thread_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise MemoryError

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread: no memory"):
        start_thread(threading.Thread(target=print))


def test_the_shared_threads_go_on(lose: Lose) -> None:
    threads, ran = SharedThreads(), threading.Event()
    lost = lose("ignis-upkeep")
    with pytest.raises(RuntimeError, match="start new thread"):
        threads.submit(ran.set)
    assert lost and not ran.is_set()
    threads.submit(ran.set)
    assert ran.wait(WAIT_S)


def test_others_are_not_held_up_by_a_start(lose: Lose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.stacks.START_S", 2.0)
    threads, busy, ran = SharedThreads(), threading.Event(), threading.Event()
    threads.submit(lambda: busy.wait(WAIT_S) and None)
    lost = lose("ignis-upkeep")
    starter = threading.Thread(target=threads.submit, args=(lambda: None,))
    starter.start()
    eventually(lambda: lost)
    began = time.monotonic()
    busy.set()  # the one that there is takes both, while the other waits for its thread
    threads.submit(ran.set)
    assert ran.wait(WAIT_S)
    assert time.monotonic() - began < 1.5
    starter.join(WAIT_S)


def test_what_found_no_thread_is_made_later(lose: Lose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.upkeep.threads._of_process", {})
    lost, ran = lose("ignis-upkeep", 2), threading.Event()
    run_soon(ran.set)
    assert ran.wait(WAIT_S) and len(lost) == 2


def test_a_process_whose_upkeep_waits_is_not_ready(
    memory_app: ignis.Ignis, lose: Lose, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory_app.queue("jobs", int).handler(lambda n: None)
    memory_app.start()
    assert memory_app.ready
    monkeypatch.setattr("ignis.upkeep.threads._of_process", {})
    monkeypatch.setattr(timers, "STALLED_S", 0.3)
    monkeypatch.setattr(timers.timers_of(None), "_said_at_s", float("-inf"))
    monkeypatch.setattr("ignis.stacks.START_S", 0.02)
    lost, ran = lose("ignis-upkeep", 30), threading.Event()
    run_soon(ran.set)
    eventually(lambda: not memory_app.ready)
    assert [one for one in caplog.records if getattr(one.msg, "event", "") == "upkeep_waits"]
    assert ran.wait(WAIT_S) and len(lost) == 30
    eventually(lambda: memory_app.ready and not upkeep_stalled())


@pytest.mark.parametrize("name", ["ignis-upkeep", "ignis-timers", "ignis-worker", "ignis-sweep_"])
def test_a_queue_is_handled_though_one_thread_was_lost(
    new_app: MakeApp, embedded_url: str, lose: Lose, name: str
) -> None:
    app = new_app(embedded_url, sweeper={"interval_s": 0.2, "initial_delay_s": 0})
    queue, seen = app.queue("jobs", int, shards=1), []
    queue.handler(seen.append)
    lose(name)
    try:
        app.start()
    except StoreUnreachableError:
        app.start()  # the caller was told
    queue.publish_many(range(50))
    eventually(lambda: len(seen) == 50 and not queue.stats()["in_flight"])
    assert app.stop(WAIT_S)


def test_a_sweep_is_made_by_whoever_asks_for_it(new_app: MakeApp, embedded_url: str, lose: Lose) -> None:
    app = new_app(embedded_url)
    app.queue("jobs", int).open()
    lost = lose("ignis-sweep", 100)
    assert app.sweeper().run_once().queues == 1
    assert lost
    assert app.sweeper().run_once().queues == 1, "and gives its lock back"


def test_a_publisher_says_that_it_has_no_thread(new_app: MakeApp, embedded_url: str, lose: Lose) -> None:
    queue = new_app(embedded_url).queue("jobs", int)
    lose("ignis-flusher")
    with pytest.raises(StoreUnreachableError, match="no thread can be started"):
        queue.publisher()
    with queue.publisher() as publisher:
        publisher.send(1).result(WAIT_S)


def test_work_threads(lose: Lose) -> None:
    with WorkThreads(2, "work") as pool:
        lost = lose("work")
        with pytest.raises(RuntimeError, match="start new thread"):
            pool.submit(print)
        assert pool.submit_or_run(threading.current_thread).result(WAIT_S).name == "work_2"
        lost.clear()
        gate, futures = threading.Event(), list[Future[bool]]()
        futures += [pool.submit(gate.wait, WAIT_S) for _ in range(5)]
        assert len(pool._threads) <= 2
        gate.set()
        assert all(one.result(WAIT_S) for one in futures)
        failing = pool.submit(int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            failing.result(WAIT_S)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit_or_run(print)


def test_coroutines_hear_that_there_is_no_thread(lose: Lose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.upkeep.pool._of_process", {})
    lose("ignis-async")

    async def twice() -> int:
        with pytest.raises(StoreUnreachableError, match="no thread can be started"):
            await in_thread(int, "5")
        return await in_thread(int, "5")

    assert asyncio.run(twice()) == 5


def _starts(tree: ast.AST) -> list[str]:
    """What starts a thread in Python's own way."""
    threads, found = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(
            ("threading.Thread(", "threading.Timer(")
        ):
            threads.update(ast.unparse(target) for target in node.targets)
        if isinstance(node, ast.Name) and node.id == "ThreadPoolExecutor":
            found.append(node.id)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        call, on = node.func.attr, ast.unparse(node.func.value)
        if call == "start" and (on in threads or on.startswith("threading.T")):
            found.append("start")
        if (call, on) == ("to_thread", "asyncio") or call == "start_new_thread":
            found.append(call)
        if call == "run_in_executor" and node.args and ast.unparse(node.args[0]) == "None":
            found.append(call)
    return found


def test_every_thread_is_started_in_one_place() -> None:
    found = {path: starts for path in PACKAGE.rglob("*.py") if (starts := _starts(parse(path.read_text())))}
    assert not found, "start_thread, WorkThreads and in_thread do not wait for ever"
