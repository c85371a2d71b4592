"""How long a thread looks before it sleeps."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignis.config import ConsumerSettings
from ignis.errors import ConfigError
from ignis.native import EventBoard, PackedBatch, encode_record, set_spin
from ignis.native.store import Log
from ignis.storage import open_store

_TRIES = 200
"""The first that gets a third of a core is enough: on a machine with other work few do."""
WAIT_S = 60.0  # not of tests.support: the sanitized copy has this folder alone


def on_board(timeout_s: float) -> None:
    with EventBoard(None, 1) as board:
        board.wait(0, board.sequence(0), timeout_s)


def on_log(directory: Path) -> Callable[[float], None]:
    def wait(timeout_s: float) -> None:
        log = Log(str(directory))
        try:
            number = log.declare("m", 1, 0)
            log.wait(number, log.wait(number, -1, 0), timeout_s)
        finally:
            log.close()

    return wait


def busy_share(spin_us: int | None, timeout_s: float, waits: Callable[[float], None] = on_board) -> float:
    """Processor time of one wait in a thread of its own, by the time that it may wait."""
    found: list[float] = []

    def wait() -> None:
        if spin_us is not None:
            set_spin(spin_us)
        began = time.thread_time()
        waits(timeout_s)
        found.append((time.thread_time() - began) / timeout_s)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(30)
    return found[0]


def test_a_thread_that_spins_is_busy_and_another_is_not() -> None:
    assert min(busy_share(0, 0.05) for _ in range(3)) < 0.1
    # On a machine with other work it gets less than it would take.
    assert any(busy_share(100_000, 0.05) > 0.3 for _ in range(_TRIES))


def test_who_waits_for_a_log_spins_too(tmp_path: Path) -> None:
    """Beside what opening it costs."""
    log = on_log(tmp_path)
    still = min(busy_share(0, 0.1, log) for _ in range(3))
    assert any(busy_share(100_000, 0.1, log) > still + 0.2 for _ in range(_TRIES))


def test_who_waits_for_a_due_time_sleeps_and_comes_no_earlier(tmp_path: Path) -> None:
    """It looks for the last moment only, and goes on waiting for what it waited for."""
    busy: list[float] = []
    with contextlib.closing(open_store(f"embedded://{tmp_path}/store")) as store:
        magazines = store.magazines
        magazines.declare("m", 1, "none")
        for _ in range(5):
            due_ms = math.ceil(store.now_s() * 1000) + 100
            magazines.load_later("m", [(0, PackedBatch.pack([encode_record(b"x")]))], [[due_ms]], None)
            seen, began = magazines.wait("m", -1, 0), time.thread_time()
            assert magazines.wait("m", seen, WAIT_S) != seen
            busy.append(time.thread_time() - began)
            assert store.now_s() * 1000 >= due_ms
            assert len(magazines.fire("m", 10, store.owner).claims) == 1
    assert min(busy) < 0.01


def test_it_is_bounded() -> None:
    """However long the wait: a core is not taken for good by one call."""
    assert busy_share(20_000, 0.5) < 0.2


@pytest.mark.parametrize("spin_us", [-1, 100_001, 1 << 70])
def test_what_is_refused(spin_us: int) -> None:
    with pytest.raises(ValueError, match="spin_us"):
        set_spin(spin_us)
    with pytest.raises(ConfigError, match=r"consumer\.spin_us"):
        ConsumerSettings(spin_us=spin_us)


@pytest.mark.parametrize("spin_us", ["1", 1.5, None])
def test_what_is_no_number(spin_us: Any) -> None:
    with pytest.raises(TypeError):
        set_spin(spin_us)


def test_it_is_the_threads_own() -> None:
    set_spin(100_000)
    try:
        assert min(busy_share(None, 0.05) for _ in range(3)) < 0.1
    finally:
        set_spin(0)
