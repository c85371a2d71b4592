"""What the tests of the native core share: another process that runs a few lines, and a bounded wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

PRELUDE = """
import os, signal, sys, time
from ignis import errors
from ignis.native import *
"""


def start(code: str, *args: object) -> subprocess.Popen[str]:
    """Starts a Python process; ``args`` are its ``sys.argv[1:]``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, code: int = 0, timeout_s: float = 30) -> str:
    """Waits for the process; checks its exit code; returns what it printed."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == code, f"exit code {process.returncode}, expected {code}\n{out}\n{err}"
    return out


def eventually(condition: Callable[[], object], timeout_s: float = 10) -> None:
    """Waits until the condition holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.002)


def in_child(check: Callable[[], None]) -> None:
    """Runs ``check`` in a forked child; fails when it raises there."""
    import os
    import traceback

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
