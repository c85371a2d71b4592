"""What a signal's handler calls in the middle of another call over the same connection is refused, and disturbs nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import NestedCallError
from ignis.native.wire import CallGuard
from tests.support import WAIT_S
from tests.support.broker import running

pytestmark = pytest.mark.integration
ROUNDS = 300


@pytest.fixture
def alarms() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """``alarms(call)``: it is made from a signal's handler every 2 ms."""
    before = signal.getsignal(signal.SIGALRM)

    def begin(call: Callable[[], Any]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: call())
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)

    yield begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_calls_of_a_signals_handler_disturb_no_call_of_the_main_thread(
    tmp_path: Path, alarms: Callable[[Callable[[], Any]], None]
) -> None:
    with running(f"embedded://{tmp_path}/store") as broker, ignis.Ignis(f"ignis://127.0.0.1:{broker.port}") as app:
        queue = app.queue("orders", bytes, shards=2, durability="none")
        queue.publish(b"first")
        made = {"published": 1, "refused": 0}
        at_work = [False]

        def call() -> None:
            if at_work[0]:
                return  # a signal within a signal's handler
            at_work[0] = True
            try:
                queue.publish(b"of the alarm")
                made["published"] += 1
            except NestedCallError:
                made["refused"] += 1
            finally:
                at_work[0] = False

        alarms(call)
        rounds = 0
        until = time.monotonic() + WAIT_S
        while rounds < ROUNDS or not made["refused"]:
            assert time.monotonic() < until, made
            queue.publish_many([b"x"] * 3)
            queue.publish(b"y")
            queue.stats()
            rounds += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert queue.stats()["pending"] == 4 * rounds + made["published"], made


def test_a_guard_refuses_its_own_thread_alone() -> None:
    one, other, reached = CallGuard(), CallGuard(), []

    def elsewhere() -> None:
        with one:
            reached.append(True)

    with one, other:
        for guard in (one, other):
            with pytest.raises(NestedCallError, match=r"threading\.Event"), guard:
                raise AssertionError
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(WAIT_S)
    assert reached == [True]
    with pytest.raises(ZeroDivisionError), one:
        _ = 1 / 0
    with one:
        pass  # left by the exception
    guards = [CallGuard() for _ in range(6)]
    with guards[0], guards[1], guards[2], guards[3], guards[4], guards[5], pytest.raises(NestedCallError), guards[2]:
        raise AssertionError
    with guards[0], guards[5]:
        pass
