"""The examples of docs/testing.md run as they are written, with what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import WAIT_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"

pytestmark = pytest.mark.integration


def test_the_page(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(re.findall(r"^```python$", PAGE.read_text("utf-8"), re.MULTILINE))
    for name, code in blocks:
        (tmp_path / name).write_text(code, "utf-8")
    expected = sum(code.count("\ndef test_") + code.startswith("def test_") for _, code in blocks)
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
