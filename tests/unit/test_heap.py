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
