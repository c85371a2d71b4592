"""What wakes an event loop when a delayed message is due."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.consumer.loop_claims import LoopClaims
from ignis.native import Alarm, Watch
from tests.conftest import MakeApp, url_of
from tests.support import WAIT_S, eventually


def timers() -> int:
    """Descriptors of the system's timers, of this process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[timerfd]"
    return count


@pytest.fixture
def queue(new_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ignis.Queue[int]:
    try:
        Watch().close()
    except OSError as exc:
        pytest.skip(f"this kernel has no descriptors for loads, or refuses them: {exc}")
    monkeypatch.setattr(LoopClaims, "_quiet_s", lambda self: 3_600.0)  # however slow the machine: it is not idle
    return new_app(url_of("embedded", tmp_path)).queue("jobs", int)


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times that were waited for with the loop's own timers, which round up to a millisecond."""
    found: list[float] = []
    real = asyncio.BaseEventLoop.call_later

    def call_later(self: Any, delay: float, callback: Any, *args: Any, **options: Any) -> Any:
        if getattr(callback, "__name__", "") == "_come_due":
            found.append(delay)
        return real(self, delay, callback, *args, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", call_later)
    return found


def handled(queue: ignis.Queue[int]) -> list[int]:
    """Delayed messages that come one after the other to an idle loop, and one that is published behind a later one."""
    got: list[int] = []

    async def handle(number: int) -> None:
        got.append(number)

    queue.handler(handle)
    queue.start()
    for number in range(5):
        queue.publish(number, delay=0.02)
        eventually(lambda: len(got) == number + 1)  # noqa: B023
    queue.publish(100, delay="1h")
    queue.publish(5, delay=0.05)
    eventually(lambda: len(got) == 6)
    return got


def test_a_due_time_wakes_the_loop_by_a_timer_of_the_system(queue: ignis.Queue[int], rounded: list[float]) -> None:
    try:
        Alarm().close()
    except OSError as exc:
        pytest.skip(f"this system has no such timers: {exc}")
    before = timers()
    assert handled(queue) == list(range(6))
    assert rounded == []
    assert timers() == before + 1
    assert queue.stop(WAIT_S) is True
    assert timers() == before


def test_where_the_system_has_none_the_loop_has_a_timer(
    queue: ignis.Queue[int], rounded: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse() -> Alarm:
        asked.append(1)
        raise OSError("refused")

    monkeypatch.setattr("ignis.consumer.loop_claims.Alarm", refuse)
    assert handled(queue) == list(range(6))
    assert rounded and asked == [1]
    assert queue.stop(WAIT_S) is True
