"""A call that takes long holds up its own message alone: what was claimed with it goes to others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import StoreBusyError
from tests.apps import jobs
from tests.conftest import MakeApp
from tests.support import WAIT_S, Journal, eventually, wait_idle

WARM, BEHIND = 3_000, 400


class Held:
    """A handler that is quick but for the message "slow", which it holds until it is opened."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, message: str) -> None:
        if message == "slow":
            self.entered.set()
            assert self.open.wait(WAIT_S)
        self.seen.append(message)

    def batch(self, messages: list[str]) -> None:
        for message in messages:
            self(message)

    async def coroutine(self, message: str) -> None:
        if message == "slow":
            self.entered.set()
            while not self.open.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.002)
        self.seen.append(message)


def warm_up(queue: ignis.Queue[str], seen: list[Any]) -> None:
    """So that as much is claimed at a time as may be."""
    queue.publish_many(["quick"] * WARM)
    eventually(lambda: len(seen) == WARM)
    wait_idle(queue)
    seen.clear()


def load_slow(queue: ignis.Queue[str], slow: int = 1, behind: int = BEHIND) -> None:
    queue.publish_many(["slow"] * slow + [str(number) for number in range(behind)])


@pytest.mark.parametrize("form", ["plain", "timed", "middleware", "batch"])
def test_other_threads_take_what_lies_behind_a_slow_message(new_app: MakeApp, form: str) -> None:
    app = new_app("memory://")
    queue = app.queue("work", str, shards=1)
    held = Held()
    if form == "batch":
        queue.handler(held.batch, concurrency=2, batch_size=100, batch_wait_s=1)
    elif form == "middleware":
        queue.middleware(lambda ctx, call_next: call_next(ctx))
        queue.handler(held, concurrency=2)
    else:
        queue.handler(held, concurrency=2, timeout_s=WAIT_S if form == "timed" else None)
    app.start()
    warm_up(queue, held.seen)
    load_slow(queue)
    assert held.entered.wait(WAIT_S)
    # Of a batch those that are in the same call wait for it.
    eventually(lambda: len(held.seen) >= (BEHIND - 100 if form == "batch" else BEHIND), "the others are handled")
    assert "slow" not in held.seen
    held.open.set()
    wait_idle(queue)
    assert sorted(held.seen) == sorted(["slow", *map(str, range(BEHIND))]), "each once"


@pytest.mark.parametrize("form", ["thread", "async"])
@pytest.mark.parametrize("url", ["memory://held-up", "embedded"])
def test_what_nobody_here_can_begin_goes_to_another_application(
    new_app: MakeApp, tmp_path: Path, url: str, form: str
) -> None:
    where = f"embedded://{tmp_path}/store" if url == "embedded" else url
    first, second = new_app(where), new_app(where)
    held, other = Held(), Held()
    ours, theirs = (app.queue("work", str, shards=1) for app in (first, second))
    ours.handler(held.coroutine if form == "async" else held)
    theirs.handler(other.coroutine if form == "async" else other)
    first.start()
    warm_up(ours, held.seen)
    load_slow(ours)
    assert held.entered.wait(WAIT_S)
    second.start()
    eventually(lambda: len(other.seen) + len(held.seen) == BEHIND, "the others are handled")
    assert "slow" not in other.seen
    held.open.set()
    wait_idle(ours)
    assert sorted(held.seen + other.seen) == sorted(["slow", *map(str, range(BEHIND))]), "each once"


@pytest.mark.parametrize("url", ["memory://", "embedded"])
def test_with_one_worker_the_order_stays(new_app: MakeApp, tmp_path: Path, url: str) -> None:
    app = new_app(f"embedded://{tmp_path}/store" if url == "embedded" else url)
    queue = app.queue("work", str, shards=1)
    held = Held()
    queue.handler(held)
    app.start()
    warm_up(queue, held.seen)
    load_slow(queue)
    assert held.entered.wait(WAIT_S)
    queue.publish_many([str(number) for number in range(BEHIND, 2 * BEHIND)])
    time.sleep(0.5)  # several looks
    assert held.seen == []
    held.open.set()
    wait_idle(queue)
    assert held.seen == ["slow", *map(str, range(2 * BEHIND))]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_worker_processes(
    new_app: MakeApp, journal: Journal, tmp_path: Path, workers: int, released: Callable[[str], None]
) -> None:
    where = f"embedded://{tmp_path}/store"
    apps = [new_app(where) for _ in range(2 if workers == 1 else 1)]
    queues = [jobs.register(app, "jobs", "process", concurrency=workers) for app in apps]
    apps[0].start()
    queues[0].publish_many([{"n": -1, "do": "none"}] * WARM)
    wait_idle(queues[0])
    queues[0].publish_many(
        [{"n": 1_000, "do": "hold", "until": "go"}, *({"n": n, "do": "none"} for n in range(BEHIND))]
    )
    eventually(lambda: "start 1000" in journal.lines())
    for app in apps[1:]:
        app.start()
    eventually(lambda: all(f"end {n}" in journal.counts() for n in range(BEHIND)), "the others are handled")
    assert "end 1000" not in journal.counts()
    released("go")
    for queue in queues:
        wait_idle(queue)
    counts = journal.counts()
    assert all(counts[f"start {n}"] == 1 for n in [1_000, *range(BEHIND)]), "each once"


@pytest.fixture
def released(journal: Journal) -> Callable[[str], None]:
    """Lets the jobs go on that hold until that name."""
    return lambda name: Path(f"{journal.path}.{name}").touch()


class Unknowing:
    """What a store that cannot tell says."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, magazine: str) -> None:
        self.asked += 1


@pytest.mark.parametrize(
    ("workers", "shards", "key", "goes"),
    [(1, 4, None, True), (1, 1, None, False), (1, 4, "k", False), (2, 1, "k", True)],
)
def test_a_store_that_cannot_tell_who_waits(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, workers: int, shards: int, key: str | None, goes: bool
) -> None:
    queue = app.queue("work", str, shards=shards)
    unknowing = Unknowing()
    monkeypatch.setattr(queue.main.store, "awaited", unknowing, raising=False)
    held = Held()
    queue.handler(held, concurrency=workers)
    app.start()
    warm_up(queue, held.seen)
    # In one shard, and first there: what follows is in one chunk with it.
    queue.publish_many([*["slow"] * workers, *map(str, range(40))], key=None if key is None else lambda message: key)
    assert held.entered.wait(WAIT_S)
    if goes:
        eventually(queue.main.pending, "given back")
    else:
        eventually(lambda: unknowing.asked >= 10, "several looks")
        assert queue.main.pending() == 0
    held.open.set()
    wait_idle(queue)
    if key or shards == 1:
        assert workers > 1 or held.seen == ["slow", *map(str, range(40))]
    assert sorted(held.seen) == sorted([*["slow"] * workers, *map(str, range(40))])


def test_what_could_not_be_given_back_is_handled_by_nobody_meanwhile(
    new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_app("memory://held-up"), new_app("memory://held-up")
    held, other = Held(), Held()
    ours, theirs = (app.queue("work", str, shards=1) for app in (first, second))
    ours.handler(held)
    theirs.handler(other)
    first.start()
    warm_up(ours, held.seen)
    reload, failed = ours.main.store.reload, threading.Event()

    def fails_once(*args: Any) -> int:
        count = reload(*args)
        if not failed.is_set():
            failed.set()
            raise StoreBusyError("it was done, and the answer is lost")
        return count

    monkeypatch.setattr(ours.main.store, "reload", fails_once, raising=False)
    load_slow(ours)
    assert held.entered.wait(WAIT_S)
    second.start()
    eventually(lambda: len(other.seen) == BEHIND, "the others are handled")
    held.open.set()
    wait_idle(ours)
    assert held.seen == ["slow"]
    assert sorted(other.seen, key=int) == [str(n) for n in range(BEHIND)], (
        "each once; put back in parts they come in another order"
    )
    assert first.stop()
