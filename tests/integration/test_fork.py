"""After ``fork`` the child must not touch what its parent opened, and may open its own."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import ignis
from ignis.errors import ForkedHandleError
from ignis.native import Ring, Slab
from tests.support import eventually, wait_idle

pytestmark = pytest.mark.integration
MakeApp = Callable[..., ignis.Ignis]


def in_child(work: Callable[[], Any]) -> int:
    """The exit code of a forked child that does the work: 0 = it went through."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # whatever it is, it must not run the rest of the test
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


CALLS: dict[str, Callable[[ignis.Ignis, ignis.Queue[Any]], Any]] = {
    "publish": lambda app, queue: queue.publish(2),
    "publish_many": lambda app, queue: queue.publish_many([2]),
    "apublish": lambda app, queue: asyncio.run(queue.apublish(2)),
    "publisher": lambda app, queue: queue.publisher().send(2).result(),
    "fire": lambda app, queue: queue.main.fire(),
    "peek": lambda app, queue: queue.main.peek(),
    "metadata": lambda app, queue: queue.main.metadata(),
    "stats": lambda app, queue: queue.stats(),
    "shovel": lambda app, queue: queue.shovel.run_once(),
    "sweep": lambda app, queue: app.sweeper().run_once(),
    "another queue": lambda app, queue: app.queue("others", int).publish(1),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_in_the_child_is_refused(embedded_url: str, new_app: MakeApp, call: str) -> None:
    app = new_app(embedded_url)
    queue = app.queue("jobs", int)
    queue.publish(1)

    def work() -> None:
        with pytest.raises(ForkedHandleError):
            CALLS[call](app, queue)

    assert in_child(work) == 0
    queue.publish(3)
    assert sorted(one.message for one in queue.main.fire(10)) == [1, 3], "the parent goes on"


def test_a_publisher_of_coroutines_stays_the_parents(embedded_url: str, new_app: MakeApp) -> None:
    queue = new_app(embedded_url).queue("jobs", int)
    asyncio.run(queue.apublish(1))

    def work() -> None:
        with pytest.raises(ForkedHandleError):
            asyncio.run(queue.apublish(2))

    assert in_child(work) == 0
    asyncio.run(queue.apublish(3))
    assert sorted(one.message for one in queue.main.fire(10)) == [1, 3]


def test_the_child_opens_its_own(embedded_url: str, new_app: MakeApp) -> None:
    queue = new_app(embedded_url).queue("jobs", int)
    queue.publish(1)

    def work() -> None:
        with ignis.Ignis(embedded_url) as app:
            mine = app.queue("jobs", int)
            assert [one.message for one in mine.main.fire()] == [1]
            mine.publish(2)

    assert in_child(work) == 0
    assert [one.message for one in queue.main.fire()] == [2]


def test_a_running_application_is_not_running_in_the_child(embedded_url: str, new_app: MakeApp) -> None:
    """The child has none of the threads; the parent's handlers see every message once."""
    app = new_app(embedded_url)
    queue = app.queue("jobs", int)
    seen: list[int] = []
    queue.handler(seen.append, concurrency=2)
    app.start()
    queue.publish(0)
    eventually(lambda: seen)

    def work() -> None:
        with pytest.raises(ForkedHandleError):
            queue.publish(99)

    for n in range(1, 6):
        assert in_child(work) == 0
        queue.publish(n)
    wait_idle(queue)
    eventually(lambda: len(seen) == 6)
    assert sorted(seen) == list(range(6))
    assert app.stop() is True


def test_a_child_that_exits_normally_leaves_the_parents_things_alone(embedded_url: str, new_app: MakeApp) -> None:
    """Exit functions and destructors run in it: neither flushes, closes nor removes anything of the parent's."""
    import subprocess
    import sys

    script = """
import os, sys, ignis
app = ignis.Ignis(sys.argv[1])
queue = app.queue("jobs", int)
seen = []
queue.handler(seen.append, concurrency=2)
app.start()
publisher = queue.publisher()
publisher.send(1).result()
pid = os.fork()
if not pid:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
publisher.send(2)
publisher.close()
import time
deadline = time.monotonic() + 20
while len(seen) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
assert sorted(seen) == [1, 2], seen
app.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, embedded_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert new_app(embedded_url).queue("jobs", int).main.pending() == 0


def _ring() -> dict[str, Callable[[], Any]]:
    ring, ref = Ring(8), (1, 1, 0, 4)
    ring.try_push(ref)
    return {
        "len": lambda: len(ring),
        "try_push": lambda: ring.try_push(ref),
        "try_pop": ring.try_pop,
        "push_many": lambda: ring.push_many([(ref, 0)]),
        "pop_many": lambda: ring.pop_many(1),
        "reserve": lambda: ring.reserve(1),
        "commit": lambda: ring.commit([]),
        "peek": lambda: ring.peek(1),
        "release": lambda: ring.release(0),
    }


def _slab() -> dict[str, Callable[[], Any]]:
    slab = Slab()
    buffer = slab.allocate(8)
    return {
        "allocate": lambda: slab.allocate(8),
        "write": lambda: slab.write(buffer, b"x"),
        "read": lambda: slab.read(buffer),
        "release": lambda: slab.release(buffer),
        "stats": slab.stats,
    }


@pytest.mark.parametrize("make", [_ring, _slab], ids=["ring", "slab"])
def test_memory_of_the_parent_is_refused_in_the_child(make: Callable[[], dict[str, Callable[[], Any]]]) -> None:
    calls = make()

    def work() -> None:
        for name, call in calls.items():
            with pytest.raises(ForkedHandleError):
                print(name, call())
        for call in make().values():
            call()

    assert in_child(work) == 0
    for call in calls.values():
        call()
