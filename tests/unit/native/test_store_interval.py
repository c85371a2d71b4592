"""The thread of ``csrc/ignis_store_interval.c`` as Python has it."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ignis.errors import ClosedError
from ignis.native import PackedBatch, encode_record
from ignis.native.store import Interval, Log

HOUR_MS = 3_600_000
WAIT_S = 30.0


def eventually(check: Callable[[], bool]) -> None:
    """These tests run by themselves too, on a build with sanitizers."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(str(tmp_path), segment_bytes=1 << 20)
    assert made.declare("m", 1, 0) == 1
    yield made
    made.close()


def load(log: Log) -> None:
    assert log.load(1, [(0, PackedBatch.pack([encode_record(b"a")]))], durable=False) is not None


def flushed(log: Log) -> bool:
    figures = log.figures()
    return figures["durable"] >= figures["end"]


def threads() -> list[str]:
    return [Path(f"/proc/self/task/{one}/comm").read_text().strip() for one in os.listdir("/proc/self/task")]


def test_it_flushes_and_has_nothing_to_tell(log: Log) -> None:
    interval = Interval(log, 10)
    for _ in range(3):
        load(log)
        eventually(lambda: flushed(log))
    assert (interval.failures, interval.untold, interval.failure(), interval.take()) == (0, False, None, None)
    assert interval.close(WAIT_S)


def test_closing_ends_it_at_once_and_is_idempotent(log: Log) -> None:
    interval = Interval(log, HOUR_MS)
    began = time.monotonic()
    assert interval.close(WAIT_S)
    assert interval.close(0)
    assert time.monotonic() - began < WAIT_S / 2


def test_many_may_close_it(log: Log) -> None:
    interval = Interval(log, 1)
    ended: list[bool] = []
    closing = [threading.Thread(target=lambda: ended.append(interval.close(WAIT_S))) for _ in range(8)]
    for one in closing:
        one.start()
    for one in closing:
        one.join(WAIT_S)
    assert ended == [True] * 8
    load(log)
    log.close()
    with pytest.raises(ClosedError):
        log.figures()


def test_nothing_is_flushed_while_it_rests(log: Log) -> None:
    interval = Interval(log, 1)
    assert interval.rest(WAIT_S)
    load(log)
    time.sleep(0.1)
    assert not flushed(log)
    interval.go_on()
    eventually(lambda: flushed(log))
    assert interval.close(WAIT_S)


def test_a_log_that_is_closed_before_stays_until_it_has_ended(tmp_path: Path, log: Log) -> None:
    interval = Interval(log, 1)
    load(log)
    log.close()
    with pytest.raises(ClosedError):
        log.figures()
    time.sleep(0.05)
    assert interval.close(WAIT_S)
    assert interval.failures == 0
    with pytest.raises(ClosedError):
        Interval(log, 1)


def test_dropped_together_with_its_log(tmp_path: Path) -> None:
    for _ in range(20):
        log = Log(str(tmp_path), segment_bytes=1 << 20)
        log.declare("m", 1, 0)
        interval = Interval(log, 1)
        load(log)
        del log
        del interval
    gc.collect()
    if sys.platform == "linux":
        assert "ignis-interval" not in threads()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_thread_has_a_name(log: Log) -> None:
    interval = Interval(log, HOUR_MS)
    eventually(lambda: "ignis-interval" in threads())
    assert interval.close(WAIT_S)
    eventually(lambda: "ignis-interval" not in threads())  # the kernel lists a thread for a moment more


def test_in_a_child_it_does_nothing(log: Log) -> None:
    interval = Interval(log, 1)
    for _ in range(4):
        load(log)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                done = (interval.rest(1), interval.close(1), interval.take(), interval.failure())
                interval.go_on()
                log.abandon()
                del interval
                status = 0 if done == (True, True, None, None) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    eventually(lambda: flushed(log))
    assert interval.close(WAIT_S)


END = """
import sys
from ignis.native.store import Interval, Log
log = Log(sys.argv[1])
interval = Interval(log, 1)
"""


def test_a_program_may_end_beside_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", END, str(tmp_path)], check=True, timeout=WAIT_S)


def test_what_it_refuses(log: Log) -> None:
    for wrong in (0, -1, 1 << 40):
        with pytest.raises(ValueError, match="every_ms"):
            Interval(log, wrong)
    with pytest.raises(TypeError):
        Interval(None, 1)  # type: ignore[arg-type]
    interval = Interval(log, HOUR_MS)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(interval)
    with pytest.raises(TypeError):
        weakref.ref(interval)
    assert interval.close(WAIT_S)
