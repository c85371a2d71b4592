"""Coroutine handlers claim on their event loop: who claims where, and that nothing claimed is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.consumer.loop_claims import LoopClaims
from ignis.errors import StoreBusyError, StoreFormatError
from ignis.native import Watch
from ignis.storage.base import FireResult
from tests.conftest import MakeApp, url_of
from tests.support import WAIT_S, NewThreads, eventually, one_store, reasons, wait_idle
from tests.support.broker import RunningBroker


@pytest.fixture(params=["memory", "embedded"])
def quick(request: pytest.FixtureRequest, new_app: MakeApp, tmp_path: Path) -> ignis.Ignis:
    """On a store that calls back."""
    return new_app(url_of(request.param, tmp_path))


@pytest.fixture
def any_app(quick: ignis.Ignis) -> ignis.Ignis:
    return quick


class Calls:
    """Which threads call what of the store."""

    def __init__(self, queue: ignis.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = queue.main.store
        self.made: list[tuple[str, int]] = []
        self._patch = monkeypatch
        for name in ("fire", "try_fire", "idle"):
            self.around(name, lambda call, *args, **kwargs: call(*args, **kwargs))

    def around(self, name: str, instead: Callable[..., Any]) -> None:
        call = getattr(self.store, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.made.append((name, threading.get_ident()))
            return instead(call, *args, **kwargs)

        self._patch.setattr(self.store, name, noted)

    def by(self, name: str) -> set[int]:
        return {ident for one, ident in list(self.made) if one == name}


def collecting(queue: ignis.Queue[Any], **options: Any) -> tuple[list[Any], set[int]]:
    seen: list[Any] = []
    threads: set[int] = set()

    async def handle(message: Any) -> None:
        threads.add(threading.get_ident())
        await asyncio.sleep(0)
        seen.append(message)

    queue.handler(handle, **options)
    return seen, threads


def test_the_loop_that_handles_claims(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, threads = quick.queue("jobs", int), NewThreads()
    seen, loop = collecting(queue, concurrency=4)
    queue.publish(0)
    calls = Calls(queue, monkeypatch)
    quick.start()
    for number in range(1, 20):
        queue.publish(number)
        eventually(lambda: number in seen)  # noqa: B023
    wait_idle(queue)
    assert calls.by("try_fire") == loop
    assert not calls.by("idle"), "no thread waits"
    assert not [name for name in threads.named() if "fetch" in name]
    assert sorted(seen) == list(range(20))
    assert quick.stop() is True


@pytest.fixture
def broker(embedded_url: str) -> Iterator[RunningBroker]:
    with RunningBroker(embedded_url) as running:
        yield running


def test_where_a_store_only_waits_the_loop_does_not(
    broker: RunningBroker, new_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(broker.url)
    queue = app.queue("jobs", int)
    seen, loop = collecting(queue, concurrency=4)
    queue.publish(0)
    calls = Calls(queue, monkeypatch)
    calls.around("fire_next", lambda call, *args, **kwargs: call(*args, **kwargs))
    app.start()
    for number in range(1, 20):
        queue.publish(number)
        eventually(lambda: number in seen)  # noqa: B023
    assert not calls.by("try_fire")
    assert calls.by("fire")
    assert calls.by("fire_next")
    assert not (calls.by("fire") | calls.by("fire_next")) & loop
    assert app.stop() is True


def test_a_claim_that_would_wait_holds_up_no_handler(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = quick.queue("jobs", int)
    gate, beats, seen = threading.Event(), [], []

    async def handle(message: int) -> None:
        seen.append(message)
        while message == 0 and not gate.is_set():
            beats.append(1)
            await asyncio.sleep(0.001)

    queue.handler(handle, concurrency=4)
    queue.publish(0)
    quick.start()
    eventually(lambda: seen == [0])
    calls = Calls(queue, monkeypatch)
    calls.around("try_fire", lambda call, *args, **kwargs: None)
    entered = threading.Event()

    def slow(call: Callable[..., FireResult], *args: Any, **kwargs: Any) -> FireResult:
        entered.set()
        assert gate.wait(WAIT_S)
        return call(*args, **kwargs)

    calls.around("fire", slow)
    queue.publish(1)
    assert entered.wait(WAIT_S)
    before = len(beats)
    eventually(lambda: len(beats) > before + 20)
    assert seen == [0]
    gate.set()
    eventually(lambda: seen == [0, 1])
    assert quick.stop() is True


def test_a_claim_that_is_away_while_the_consumer_stops_comes_back(
    any_app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has claimed already, or claims yet: none of it is handled, and all of it waits for the next."""
    queue = any_app.queue("jobs", int)
    seen, _ = collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    claimed, gate = threading.Event(), threading.Event()

    def slow(call: Callable[..., FireResult], *args: Any, **kwargs: Any) -> FireResult:
        result = call(*args, **kwargs)
        if result.claims:
            claimed.set()
            assert gate.wait(WAIT_S)
        return result

    calls.around("try_fire", lambda call, *args, **kwargs: None)
    calls.around("fire", slow)
    queue.publish_many(range(10))
    any_app.start()
    assert claimed.wait(WAIT_S)
    stopped: list[bool] = []
    stopping = threading.Thread(target=lambda: stopped.append(any_app.stop(WAIT_S)))
    stopping.start()
    time.sleep(0.05)
    gate.set()
    stopping.join(WAIT_S)
    assert stopped == [True]
    assert queue.main.in_flight() == 0
    assert queue.main.pending() + len(seen) == 10


def test_a_claim_that_comes_back_too_late_is_given_back(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer gave up waiting for it, and its loop has ended."""
    queue = quick.queue("jobs", int)
    collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    claimed, gate = threading.Event(), threading.Event()

    def slow(call: Callable[..., FireResult], *args: Any, **kwargs: Any) -> FireResult:
        result = call(*args, **kwargs)
        claimed.set()
        assert gate.wait(WAIT_S)
        return result

    calls.around("try_fire", lambda call, *args, **kwargs: None)
    calls.around("fire", slow)
    queue.publish_many(range(10))
    quick.start()
    assert claimed.wait(WAIT_S)
    quick.stop(0.05)
    gate.set()
    eventually(lambda: queue.main.in_flight() == 0)
    assert queue.main.pending() == 10


@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_handler_that_cancels_every_task_loses_no_message(any_app: ignis.Ignis, batch_size: int | None) -> None:
    """Those that have not begun are begun again; those that wait for something have failed."""
    queue = any_app.queue("jobs", int, shovel_interval=0)
    done: list[int] = []
    cancelled = 0

    async def handle(given: Any) -> None:
        nonlocal cancelled
        if cancelled < 3:
            cancelled += 1
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
        await asyncio.sleep(0.001)
        done.extend(given if batch_size else [given])

    queue.handler(handle, concurrency=10, **({"batch_size": batch_size} if batch_size else {}))
    queue.publish_many(range(100))
    any_app.start()
    eventually(lambda: len(done) + queue.sideline.pending() == 100)
    wait_idle(queue)
    assert len(set(done)) == len(done)
    assert any_app.stop() is True


def test_a_pause_waits_for_the_claim_that_is_away(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = quick.queue("jobs", int)
    seen, _ = collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    entered, gate = threading.Event(), threading.Event()

    def slow(call: Callable[..., FireResult], *args: Any, **kwargs: Any) -> FireResult:
        entered.set()
        assert gate.wait(WAIT_S)
        return call(*args, **kwargs)

    calls.around("try_fire", lambda call, *args, **kwargs: None)
    calls.around("fire", slow)
    queue.publish(1)
    quick.start()
    assert entered.wait(WAIT_S)
    quick.pause()
    assert not quick.quiet
    gate.set()
    eventually(lambda: quick.quiet)
    assert seen == [1]
    queue.publish(2)
    time.sleep(0.1)
    assert seen == [1]
    quick.resume()
    eventually(lambda: seen == [1, 2])
    assert quick.stop() is True


def test_a_pause_of_an_idle_queue_is_quiet_at_once_and_ends(any_app: ignis.Ignis) -> None:
    queue = any_app.queue("jobs", int)
    seen, _ = collecting(queue)
    any_app.start()
    queue.publish(1)
    eventually(lambda: seen == [1])
    wait_idle(queue)
    any_app.pause()
    eventually(lambda: any_app.quiet)
    queue.publish(2)
    time.sleep(0.1)
    assert seen == [1]
    any_app.resume()
    eventually(lambda: seen == [1, 2])
    assert any_app.stop() is True


@one_store("quick")
def test_a_claim_that_fails_is_made_again(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = quick.queue("jobs", int)
    seen, _ = collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    failures: list[int] = []

    def busy(call: Callable[..., FireResult], *args: Any, **kwargs: Any) -> FireResult:
        if len(failures) < 2:
            failures.append(1)
            raise StoreBusyError("the writer lock is held")
        return call(*args, **kwargs)

    calls.around("try_fire", lambda call, *args, **kwargs: None)
    calls.around("fire", busy)
    queue.publish(1)
    quick.start()
    eventually(lambda: seen == [1])
    assert queue.consumer is not None
    assert queue.consumer.counts.fetch_errors == 2
    assert quick.stop() is True


@pytest.mark.parametrize("where", ["try_fire", "on_load"])
@one_store("quick")
def test_a_loop_that_is_refused_asks_again(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    queue = quick.queue("jobs", int)
    seen, _ = collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    refused: list[int] = []

    def busy(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if len(refused) < 2:
            refused.append(1)
            raise StoreBusyError("no thread is to be had")
        return call(*args, **kwargs)

    calls.around(where, busy)
    quick.start()
    eventually(lambda: len(refused) == 2)
    queue.publish(1)
    eventually(lambda: seen == [1])
    assert quick.stop() is True


@pytest.mark.parametrize("where", ["try_fire", "fire"])
def test_a_store_that_cannot_be_read_ends_the_consumer(
    quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    queue = quick.queue("jobs", int)
    collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)

    def broken(*args: Any, **kwargs: Any) -> FireResult:
        raise StoreFormatError("another format")

    if where == "fire":
        calls.around("try_fire", lambda call, *args, **kwargs: None)
    calls.around(where, broken)
    quick.start()
    eventually(lambda: queue.consumer is not None and queue.consumer.failed)
    count = len(calls.made)
    time.sleep(0.1)
    assert len(calls.made) == count
    assert quick.stop() is True


@pytest.mark.parametrize("idle_poll_s", [0.02, 1.0])
def test_what_nobody_announced_is_found(
    quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, idle_poll_s: float, new_app: MakeApp
) -> None:
    app = new_app(quick.url, consumer={"idle_poll_s": idle_poll_s})
    if idle_poll_s == 1.0 and app.url.startswith("memory"):
        pytest.skip("in memory nobody dies between a load and its announcement")
    queue = app.queue("jobs", int)
    seen, _ = collecting(queue)
    app.start()
    queue.publish(1)
    eventually(lambda: seen == [1])
    wait_idle(queue)
    store = queue.main.store
    wait, frozen = store.wait, store.wait("jobs", -1, 0)
    # It seems to have been empty when the number was what it is behind the load.
    monkeypatch.setattr(store, "wait", lambda *args: frozen)
    listen = store.on_load
    monkeypatch.setattr(store, "on_load", lambda name, seen, call: listen(name, wait(name, -1, 0), call))
    queue.publish(2)
    queue.publish(3)
    eventually(lambda: sorted(seen) == [1, 2, 3])
    assert app.stop() is True


def test_a_deep_queue_lets_the_handlers_run_between_claims(quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = quick.queue("jobs", int, shards=2)
    claims_at: list[int] = []
    seen, _ = collecting(queue, concurrency=50)
    queue.publish_many(range(5_000))
    calls = Calls(queue, monkeypatch)

    def noted(call: Callable[..., FireResult], *args: Any, **kwargs: Any) -> FireResult:
        claims_at.append(len(seen))
        return call(*args, **kwargs)

    calls.around("try_fire", noted)
    quick.start()
    eventually(lambda: len(seen) == 5_000)
    assert sorted(seen) == list(range(5_000))
    assert len(set(claims_at)) > 3
    assert quick.stop() is True


@pytest.mark.parametrize("spin_us", [0, 50_000])
def test_a_loop_that_spins_looks_again_at_once_and_runs_its_tasks(
    quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, new_app: MakeApp, spin_us: int
) -> None:
    app = new_app(quick.url, consumer={"spin_us": spin_us})
    queue = app.queue("jobs", int)
    beats: list[int] = []

    async def handle(message: int) -> None:
        asyncio.get_running_loop().call_later(0.005, beats.append, 1)

    queue.handler(handle)
    queue.open()
    looks: list[int] = []
    wait = queue.main.store.wait
    monkeypatch.setattr(queue.main.store, "wait", lambda *args: looks.append(1) or wait(*args))
    app.start()
    queue.publish(1)
    eventually(lambda: beats)
    eventually(lambda: queue.consumer is not None and queue.consumer.counts.handled == 1)
    time.sleep(0.2)
    assert (len(looks) > 100) is (spin_us > 0)
    count = len(looks)
    time.sleep(0.2)
    assert len(looks) - count < 10, "and then it sleeps"
    assert app.stop() is True


def _rings() -> int:
    """Descriptors of this process that wait on a word in the kernel."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("anon_inode:[io_uring]")
    return count


def stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: no queue is taken for idle."""
    monkeypatch.setattr(LoopClaims, "_quiet_s", lambda self: 3_600.0)


@pytest.fixture
def embedded(new_app: MakeApp, tmp_path: Path) -> ignis.Ignis:
    try:
        Watch().close()
    except OSError as exc:
        pytest.skip(f"this kernel has no descriptors for loads, or refuses them: {exc}")
    return new_app(url_of("embedded", tmp_path))


def test_a_queue_in_use_is_claimed_by_its_loop_and_no_other_thread(
    embedded: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load itself wakes the loop: the store's own thread is not called, and would call nobody."""
    stays_in_use(monkeypatch)
    queue = embedded.queue("jobs", int, shards=1)
    seen, loop = collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    calls.around("watch", lambda call, *args: call(*args))
    embedded.start()
    queue.publish(0)
    eventually(lambda: seen == [0] and "watch" in [name for name, _ in calls.made])
    calls.around("on_load", lambda call, *args: lambda: None)
    for number in range(1, 50):
        queue.publish(number)
        eventually(lambda: len(seen) == number + 1)  # noqa: B023
    assert seen == list(range(50))
    assert calls.by("watch") == calls.by("try_fire") == loop
    assert not calls.by("on_load")
    assert embedded.stop() is True


def test_a_load_of_another_process_wakes_the_loop(
    embedded: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, new_app: MakeApp
) -> None:
    stays_in_use(monkeypatch)
    queue = embedded.queue("jobs", int)
    seen, _ = collecting(queue)
    queue.open()
    calls = Calls(queue, monkeypatch)
    calls.around("watch", lambda call, *args: call(*args))
    embedded.start()
    queue.publish(0)
    eventually(lambda: seen == [0] and "watch" in [name for name, _ in calls.made])
    calls.around("on_load", lambda call, *args: lambda: None)
    program = (
        "import ignis, sys\n"
        "app = ignis.Ignis(sys.argv[1])\n"
        "queue = app.queue('jobs', int)\n"
        "for line in sys.stdin:\n"
        "    queue.publish(int(line)); print(flush=True)\n"
        "app.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, embedded.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        for number in range(1, 20):
            other.stdin.write(f"{number}\n")
            other.stdin.flush()
            eventually(lambda: len(seen) == number + 1)  # noqa: B023
        other.stdin.close()
        assert other.wait(WAIT_S) == 0
    assert seen == list(range(20))
    assert embedded.stop() is True


def test_an_idle_queue_gives_its_descriptor_back(embedded: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ignis.consumer.loop_claims.RELOOK_S", 0.01)
    before = _rings()
    queue = embedded.queue("jobs", int)
    seen, _ = collecting(queue)
    embedded.start()
    for number in range(3):
        queue.publish(number)
        eventually(lambda: len(seen) == number + 1)  # noqa: B023
        eventually(lambda: _rings() == before)
    assert embedded.stop() is True
    assert _rings() == before


def test_where_the_store_has_no_use_for_a_descriptor_none_is_kept(
    new_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays_in_use(monkeypatch)
    app = new_app(url_of("memory", tmp_path))
    before = _rings()
    queue = app.queue("jobs", int)
    seen, _ = collecting(queue)
    app.start()
    for number in range(3):
        queue.publish(number)
        eventually(lambda: len(seen) == number + 1)  # noqa: B023
        wait_idle(queue)
    eventually(lambda: _rings() == before)
    assert app.stop() is True


def test_a_stop_gives_the_descriptor_back(embedded: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    stays_in_use(monkeypatch)
    before = _rings()
    queue = embedded.queue("jobs", int)
    seen, _ = collecting(queue)
    embedded.start()
    queue.publish(1)
    eventually(lambda: seen == [1] and _rings() == before + 1)
    assert embedded.stop() is True
    assert _rings() == before


def test_a_paused_loop_claims_nothing_that_its_descriptor_tells(
    embedded: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays_in_use(monkeypatch)
    queue = embedded.queue("jobs", int)
    seen, _ = collecting(queue)
    embedded.start()
    queue.publish(1)
    eventually(lambda: seen == [1] and _rings() > 0)
    wait_idle(queue)
    assert queue.consumer is not None
    queue.consumer.pause()
    eventually(lambda: queue.consumer is not None and queue.consumer.quiet)
    for number in range(2, 12):
        queue.publish(number)
    assert queue.main.pending() == 10
    assert seen == [1]
    queue.consumer.resume()
    eventually(lambda: sorted(seen) == list(range(1, 12)))
    assert embedded.stop() is True


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMFILE])
def test_where_the_system_has_no_descriptor_a_thread_of_the_store_calls(
    quick: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked: list[int] = []

    def refuse() -> Watch:
        asked.append(1)
        raise OSError(number, "refused")

    monkeypatch.setattr("ignis.consumer.loop_claims.Watch", refuse)
    queue = quick.queue("jobs", int)
    seen, _ = collecting(queue)
    quick.start()
    for one in range(5):
        queue.publish(one)
        eventually(lambda: len(seen) == one + 1)  # noqa: B023
        wait_idle(queue)
    if quick.url.startswith("embedded"):
        assert asked
        assert number == errno.EMFILE or len(asked) == 1, "what is refused is asked for once"
    assert quick.stop() is True


def test_a_store_that_closes_under_a_loop_ends_its_claims(
    embedded: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays_in_use(monkeypatch)
    queue = embedded.queue("jobs", int)
    seen, _ = collecting(queue)
    embedded.start()
    queue.publish(1)
    eventually(lambda: seen == [1] and _rings() > 0)
    wait_idle(queue)
    embedded.store.close()
    eventually(lambda: queue.consumer is not None and queue.consumer.failed is not None)


def test_failures_go_to_the_sideline_as_ever(any_app: ignis.Ignis) -> None:
    queue = any_app.queue("jobs", int, shovel_interval=0)

    async def handle(message: int) -> bool:
        if message % 3 == 0:
            raise ValueError(message)
        return message % 3 == 1

    queue.handler(handle, concurrency=5)
    queue.publish_many(range(30))
    any_app.start()
    eventually(lambda: queue.sideline.pending() == 20)
    assert reasons(queue) == {"exception": 10, "rejected": 10}
    assert any_app.stop() is True
