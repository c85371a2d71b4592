"""A process whose addresses are limited: a log of the store reserves many, though it hardly takes memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

OPENING = """
import resource, sys
import ignis
from ignis import errors
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]) << 20, resource.RLIM_INFINITY))
try:
    with ignis.Ignis(sys.argv[1]) as app:
        app.queue("q", int).open()
except errors.IgnisError as exc:
    print(type(exc).__name__, exc.retryable, exc)
else:
    print("open")
"""


def opening(tmp_path: Path, limit_mib: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OPENING, f"embedded://{tmp_path}/store", str(limit_mib)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_the_error_names_the_limit_and_what_to_set(tmp_path: Path) -> None:
    for limit_mib in (2_000, 40_000):
        said = opening(tmp_path, limit_mib)
        assert said.startswith("ConfigError False store: "), said
        assert f"may have {limit_mib:,} MiB of addresses (ulimit -v, RLIMIT_AS)" in said
        assert "64 GiB" in said
        assert "ulimit -v unlimited" in said


def test_enough_is_enough(tmp_path: Path) -> None:
    assert opening(tmp_path, 100_000) == "open"
