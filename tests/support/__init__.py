"""What several tests share: bounded waiting, and looking at queues."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ignis import Message, Queue

T = TypeVar("T")

UNREADABLE_METAS = {
    "not_utf8": b"\x81\xa1a\xa2\xff\xfe",
    # More than any stack has room for: since Python 3.14 that is what bounds a depth, and not a number.
    "too_deep": b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    "no_map": b"\xc1",
}
"""What anybody who may publish can store as a message's headers."""

WAIT_S = 60.0
"""Bound of every wait. Long, because no test measures time with it."""

SHARED_THREADS = ("ignis-upkeep-", "ignis-timers", "ignis-watch", "ignis-async_")
"""Of all applications of the process: they end by themselves, or stay."""


def one_store(fixture: str = "store_url") -> Any:
    """For a test that waits for time to pass, of what lies above the stores: on the embedded one, and on both with ``--long``."""
    import pytest  # worker processes import this module, and have no use for that

    both = [pytest.param("memory", marks=pytest.mark.long), "embedded"]
    return pytest.mark.parametrize(fixture, both, indirect=True)


def eventually(check: Callable[[], T], what: str = "", timeout: float = WAIT_S) -> T:
    """The first true answer of ``check``; fails the test when there is none in time."""
    deadline = time.monotonic() + timeout
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or check}; last answer {answer!r}")
        time.sleep(0.005)


class NewThreads:
    """The library's threads that were started since this was made. Earlier tests of the same process may have left some
    of the same names: what is stuck on purpose cannot be ended."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def named(self, start: str = "ignis-", *, shared: bool = False) -> list[str]:
        """Names that begin with ``start``; without those that all applications share, unless ``shared``."""
        names = [one.name for one in threading.enumerate() if one not in self._before]
        return [name for name in names if name.startswith(start) and (shared or not name.startswith(SHARED_THREADS))]


def idle(queue: Queue[Any]) -> bool:
    """Nothing is pending in the queue's main magazine, and nothing in flight in either."""
    return not queue.main.pending() and not queue.main.in_flight() and not queue.sideline.in_flight()


def wait_idle(queue: Queue[Any], timeout: float = WAIT_S) -> None:
    eventually(lambda: idle(queue), f"{queue} is idle", timeout)


def sidelined(queue: Queue[Any]) -> list[Message]:
    """The envelopes in the sideline, oldest first."""
    found = [one.envelope for one in queue.sideline.peek(100_000)]
    return sorted(found, key=lambda message: (message.enqueued_at_us, message.id))


def reasons(queue: Queue[Any]) -> Counter[str | None]:
    return Counter(message.reason for message in sidelined(queue))


class Journal:
    """A file that several processes append lines to: what a test's handlers did."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def note(self, text: object) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def lines(self) -> list[str]:
        return self.path.read_text("utf-8").splitlines() if self.path.exists() else []

    def counts(self) -> Counter[str]:
        return Counter(self.lines())


class Gate:
    """A handler that holds messages until it is opened: all of them, or those equal to ``only``."""

    def __init__(self, only: Any = None) -> None:
        self.open = threading.Event()
        self.seen: list[Any] = []
        self._only = only
        self._entered = threading.Semaphore(0)

    def __call__(self, message: Any) -> None:
        self.seen.append(message)
        if self._only is None or message == self._only:
            self._entered.release()
            assert self.open.wait(WAIT_S)

    def wait_entered(self, count: int = 1) -> None:
        """Until so many more messages are held."""
        for _ in range(count):
            assert self._entered.acquire(timeout=WAIT_S)
