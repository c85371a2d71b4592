"""Runs the torture programme's short forms in processes of their own: they fork, mount and kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

TIMEOUT_S = 580
"""Shorter than the bound of a test: what the programme printed is in its failure."""


@pytest.fixture
def torture() -> Callable[..., str]:
    """Runs ``python -m tests.torture`` with these arguments; its output when nothing was lost.

    Skips with the programme's own words when it could do nothing here, fails with its output on any loss.
    """

    def run(*arguments: str) -> str:
        environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
        done = subprocess.run(
            [sys.executable, "-m", "tests.torture", *arguments],
            check=False, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            pytest.fail(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        skipped = [line for line in lines if "SKIPPED" in line]
        if skipped and len(skipped) == len(lines):
            pytest.skip("; ".join(skipped))
        return done.stdout

    return run
