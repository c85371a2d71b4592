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
