"""The commands with curl on docs/console.md, beside answers of a console that is not there: that they work is shown by the run of
all blocks of the docs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import WAIT_S

PAGE = (Path(__file__).parents[2] / "docs" / "console.md").read_text("utf-8")
(BLOCK,) = (text for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "orders pull" in text)

CURL = """#!/bin/sh
echo "$@" >> asked
case "$*" in
  *orders/pull*) echo '{"messages":[MESSAGES],"more":false}' ;;
  *orders/acknowledge*) echo '{"acknowledged":1}' ;;
esac
"""


@pytest.mark.parametrize("messages", ["", '{"id":"1","body":{"receipt":"no"},"receipt":"r-1"}'], ids=["empty", "one"])
def test_what_is_acknowledged_is_what_was_pulled(messages: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    shim = tmp_path / "bin" / "curl"
    shim.parent.mkdir()
    shim.write_text(CURL.replace("MESSAGES", messages))
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", BLOCK], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    asked = (tmp_path / "asked").read_text("utf-8")
    assert "--retry-connrefused" in asked.splitlines()[0]
    acknowledged = re.findall(r"orders/acknowledge -d (.*)", asked)
    assert acknowledged == (['{"receipts": ["r-1"]}'] if messages else [])
