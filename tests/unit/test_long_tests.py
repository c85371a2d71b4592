"""What is marked `long` is left out, and said to be, unless it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_quick():
    pass

@pytest.mark.long
def test_of_an_hour():
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.long)])
def test_sizes(size):
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "passed", "left_out"),
    [
        (["-n", "1"], 2, True),
        (["-m", "not stress"], 2, True),
        (["-m", "long"], 2, False),
        (["--long", "test_some.py::test_of_an_hour"], 1, False),
    ],
    ids=["processes", "another word", "long alone", "by its id"],
)
def test_what_is_run(tmp_path: Path, arguments: list[str], passed: int, left_out: bool) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text("utf-8"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: takes long\n    stress: of others\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout
    assert ("2 marked `long` were left out" in done.stdout) is left_out
