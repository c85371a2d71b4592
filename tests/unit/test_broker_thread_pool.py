"""The threads of a broker."""

from __future__ import annotations

import gc
import threading
import weakref

from ignis.broker.server.thread_pool import ThreadPool
from tests.support import WAIT_S, eventually


class Large:
    """What a call is given."""


def test_a_thread_without_work_keeps_nothing_of_its_last_call() -> None:
    pool = ThreadPool(1, "test")
    done = threading.Event()
    large = Large()
    seen = weakref.ref(large)

    def call(kept: Large = large) -> None:
        done.set()

    pool.submit(call)
    del call, large
    assert done.wait(WAIT_S)
    gc.disable()
    try:
        eventually(lambda: seen() is None)
    finally:
        gc.enable()
    assert pool.close(WAIT_S)


def test_lines_take_turns() -> None:
    """Who comes with one call does not wait for all that another one has asked for."""
    pool = ThreadPool(1, "test")
    go_on, log = threading.Event(), list[str]()
    pool.submit(lambda: go_on.wait(WAIT_S) and None)
    for number in range(50):
        pool.submit(lambda number=number: log.append(f"many {number}"), "many")
    pool.submit(lambda: log.append("one"), "one")
    for number in range(2):
        pool.submit(lambda number=number: log.append(f"two {number}"), "two")
    go_on.set()
    assert pool.close(WAIT_S)
    assert log[:5] == ["many 0", "one", "two 0", "many 1", "two 1"]
    assert log[5:] == [f"many {number}" for number in range(2, 50)], "each line in its order"
    assert not pool._lines
