"""A call that hangs keeps its callers for a bounded time, and one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ignis.bounded_call import BoundedCall
from ignis.errors import StoreUnreachableError, WaitTimeoutError
from tests.support import WAIT_S


def test_a_call_that_hangs_keeps_one_thread() -> None:
    begun, ends = [], threading.Event()

    def hang() -> int:
        begun.append(threading.current_thread())
        assert ends.wait(WAIT_S)
        return len(begun)

    call = BoundedCall(hang, "the store", 0.05)
    for _ in range(3):
        with pytest.raises(WaitTimeoutError, match=r"the store has not answered within 0\.05 s"):
            call()
    assert len(begun) == 1
    ends.set()
    begun[0].join(WAIT_S)
    assert call() == 2, "a new run"


def test_what_it_raises_is_raised() -> None:
    def fail() -> None:
        raise StoreUnreachableError("away")

    with pytest.raises(StoreUnreachableError, match="away"):
        BoundedCall(fail, "the store", WAIT_S)()


def test_a_fresh_result_is_given_again() -> None:
    calls: list[float] = []

    def count() -> int:
        calls.append(time.monotonic())
        return len(calls)

    call: Callable[[], int] = BoundedCall(count, "the store", WAIT_S, fresh_s=WAIT_S)
    assert [call(), call()] == [1, 1]
    stale = BoundedCall(count, "the store", WAIT_S)
    assert [stale(), stale()] == [2, 3]


def test_without_a_thread_to_ask_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    call = BoundedCall(lambda: 1, "the store", WAIT_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(WaitTimeoutError, match="no thread"):
            call()
    assert call() == 1
