"""A broker's process keeps some of the memory that it frees."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource, sys
from ignis.broker.server.heap import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()

def touch():
    return [bytes([1]) * (1 << 20) for _ in range(4)]

touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    touch()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


_CROWD = """
import os, sys
from ignis.broker.server.heap import begin_crowd, end_crowd, keep_freed_memory
if sys.argv[1] != "plain":
    assert keep_freed_memory()
    if sys.argv[1] == "crowd":
        begin_crowd()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

before, pins = resident(), []
for _ in range(100):
    large = [bytes([1]) * (1 << 20) for _ in range(3)]
    pins.append(bytes([2]) * 4_000)  # lies behind them, and stays
    del large[1:]
    pins.append(large.pop()[:100_000])
left = (resident() - before) >> 20
end_crowd()
print(left)
"""


def faults(how: str, **environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and how many pages the system made for 20 times 4 MiB that are used and freed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, how],
        env={**plain, **environment}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    kept, count = map(int, done.stdout.split())
    return bool(kept), count


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_was_freed_is_used_again() -> None:
    kept, count = faults("keep")
    assert kept
    _, plain = faults("plain")
    assert count < plain / 10


def test_who_runs_the_process_chooses() -> None:
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] is False


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_in_a_crowd_what_is_large_leaves_no_holes() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _CROWD, "crowd"], env=plain, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 40, "ten MiB are kept of three hundred"


_GARBAGE = """
import gc, time
from ignis.broker.server import heap
heap._LONG_S = 0.0
heap.collect_little()
frozen = gc.get_freeze_count()
assert frozen > 0
waiting = [[number] for number in range(1_000)]
gc.collect()
assert gc.get_freeze_count() >= frozen + 1_000, "what a long search has seen is not looked through again"
class Cycle: pass
def made():
    one = Cycle(); one.itself = one; one.lives = Witness()
class Witness:
    dead = 0
    def __del__(self): Witness.dead += 1
made()
gc.freeze()  # as such a search would
gc.collect()
assert Witness.dead == 0
heap.collect_all()
assert Witness.dead == 0, "not so soon"
heap._searches[0].all_s -= 601
heap.collect_all()
assert Witness.dead == 1
made()
gc.collect()
assert Witness.dead == 2, "what is young is found as ever"
"""


def test_a_long_search_for_garbage_is_made_once() -> None:
    subprocess.run([sys.executable, "-c", _GARBAGE], capture_output=True, text=True, timeout=60, check=True)
