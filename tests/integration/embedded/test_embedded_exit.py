"""What a process leaves that ends without closing its store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

LOADS_AND_ENDS = """
import os, sys
from ignis.native import PackedBatch, encode_record
from ignis.storage import open_store
store = open_store(sys.argv[1], sync_interval_ms=3_600_000)
store.magazines.declare("m", 1, "interval")
store.magazines.load("m", [(0, PackedBatch.pack([encode_record(b"a")]))], None)
os.write(2, b"LOADED")
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_what_interval_acknowledged_is_flushed_when_the_process_ends(tmp_path: Path) -> None:
    """Nobody is left to do it when the interval is over."""
    trace = tmp_path / "trace"
    done = subprocess.run(
        [
            "strace",
            "-f",
            "-o",
            trace,
            "-e",
            "trace=write,fdatasync",
            sys.executable,
            "-c",
            LOADS_AND_ENDS,
            f"embedded://{tmp_path}/store",
        ],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == b"LOADED"
    _, _, after = trace.read_text().partition("LOADED")
    assert "fdatasync(" in after
