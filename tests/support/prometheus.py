"""Debian's Prometheus and its promtool, which judge metrics, alert rules and queries."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support import WAIT_S


def program(name: str) -> str:
    """The path of ``promtool`` or ``prometheus``; skips the test, loudly, where it is not installed."""
    found = shutil.which(name)
    if found is None:
        said = f"{name} is missing (Debian package prometheus; make system-packages): NOT CHECKED by Prometheus"
        print(f"\n*** {said} ***")
        pytest.skip(said)
    return found


def promtool(*arguments: str, text: bytes = b"") -> str:
    """What ``promtool`` says. Fails the test when it finds something wrong, or has something to complain of."""
    done = subprocess.run(
        [program("promtool"), *arguments], input=text, capture_output=True, timeout=3 * WAIT_S, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said
