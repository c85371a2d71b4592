"""The examples of docs/testing.md do what they promise: as many tests as stand there, and no warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import WAIT_S
from tests.support.doc_blocks import blocks

pytestmark = pytest.mark.integration


def test_the_page(tmp_path: Path) -> None:
    files = {block.words["file"]: block.text for block in blocks("docs/testing.md") if "file" in block.words}
    for name, code in files.items():
        (tmp_path / name).write_text(code, "utf-8")
    expected = sum(line.startswith("def test_") for code in files.values() for line in code.splitlines())
    assert expected
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{expected} passed" in run.stdout
