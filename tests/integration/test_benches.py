"""Benches that read the clock inside the library find its functions by their names, which change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

_LIMIT_S = 100.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("subject", "measured"),
    [
        pytest.param("steps", "ignis: publish to handled, cold", marks=pytest.mark.long),
        ("broker-steps", "ignis: read, until the client has the answer"),
        pytest.param("consumers", "ignis", marks=pytest.mark.long),
    ],
)
def test_a_quick_run_measures_everything(subject: str, measured: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    command = [
        sys.executable, "-m", "bench", "--quick", "--no-pin", "--dir", str(tmp_path), "--json", str(figures), subject,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in figures.read_text("utf-8").splitlines()]
    assert any(measured in row["peer"] for row in rows)
    assert not [row for row in rows if row.get("problem")]
