"""Waits without a thread on the engine store: other processes, and those that die before they ring."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ignis.errors import ClosedError, StoreBusyError
from ignis.native.store import Log
from ignis.storage import open_store
from ignis.storage.base import Store
from ignis.storage.clock import StoreClock
from ignis.storage.embedded.listening import Listener
from tests.contract.support import batch, records
from tests.support import WAIT_S, eventually

LOADER = """
import sys
from ignis.storage import open_store
from tests.contract.support import records
store = open_store(sys.argv[1])
for line in sys.stdin:
    store.magazines.load_records(line.strip(), 0, records("from outside"))
    print("loaded", flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"embedded://{tmp_path / 'store'}") as store:
        for number in range(200):
            store.magazines.declare(f"m{number}", 1)
        yield store


def test_loads_of_another_process_ring_for_many_magazines_and_one_thread(store: Store) -> None:
    called: list[int] = []
    before = threading.active_count()
    for number in range(200):
        name = f"m{number}"
        store.magazines.on_load(name, store.magazines.wait(name, -1, 0), lambda number=number: called.append(number))  # type: ignore[misc]
    assert threading.active_count() == before + 1
    with subprocess.Popen(
        [sys.executable, "-c", LOADER, store.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as loader:
        assert loader.stdin is not None
        assert loader.stdout is not None
        for number in (7, 199, 0, 64):
            loader.stdin.write(f"m{number}\n")
            loader.stdin.flush()
            assert loader.stdout.readline() == "loaded\n"
            eventually(lambda: called[-1:] == [number])  # noqa: B023
        loader.stdin.close()
    assert called == [7, 199, 0, 64]


def test_what_was_loaded_by_somebody_who_died_before_he_rang_is_found(store: Store) -> None:
    """What he leaves: records that nobody has claimed, and a number that does not move any more."""
    called, quiet = threading.Event(), threading.Event()
    store.magazines.on_load("m4", store.magazines.wait("m4", -1, 0), quiet.set)
    store.magazines.load_records("m3", 0, records("from the dead"))
    store.magazines.on_load("m3", store.magazines.wait("m3", -1, 0), called.set)
    assert called.wait(WAIT_S)
    assert not quiet.is_set()


def test_a_listener_that_is_closed_calls_everybody(store: Store) -> None:
    called = [threading.Event() for _ in range(5)]
    for number, one in enumerate(called):
        name = f"m{number}"
        store.magazines.on_load(name, store.magazines.wait(name, -1, 0), one.set)
    store.close()
    assert all(one.wait(WAIT_S) for one in called)
    assert not [one for one in threading.enumerate() if one.name == "ignis-watch"]
    with pytest.raises(ClosedError):
        store.magazines.on_load("m1", 0, lambda: None)


def test_a_log_that_is_busy_ends_no_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens again is not called at once for ever, and hears the next load."""
    monkeypatch.setattr("ignis.storage.embedded.listening._LOOK_S", 0.01)
    looks: list[int] = []

    class Busy:
        """The log, which cannot be looked at."""

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

        def figures(self) -> dict[str, int]:
            looks.append(1)
            raise StoreBusyError("the writer's lock is held")

    log = Log(str(tmp_path))
    number = log.declare("m", 1, 0)
    assert number is not None
    listener = Listener(cast("Log", Busy()), StoreClock(0))
    called = threading.Event()
    listener.on_load(number, log.wait(number, -1, 0), called.set)
    eventually(lambda: len(looks) > 3)
    assert not called.is_set()
    log.load(number, [(0, batch("a"))], durable=False)
    assert called.wait(WAIT_S)
    listener.close(WAIT_S)
    with pytest.raises(ClosedError):
        listener.on_load(number, 0, called.set)
    log.close()
