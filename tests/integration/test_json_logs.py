"""With --log-format json everything on stderr is one JSON object a line with its event, also where a command is broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ignis
from tests.support import WAIT_S, eventually

pytestmark = pytest.mark.integration

START_S = 100.0
MODULE = """
import threading, warnings
import ignis
app = ignis.Ignis()
warnings.warn("old ways")
def fail(): raise RuntimeError("of a thread")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
class Odd:
    def __del__(self): raise RuntimeError("while an object ends")
del (odd := [Odd()])[0]
@app.queue('q', str).handler
def handle(body): raise ValueError(body)
"""
COMMANDS = {
    "worker": ["worker", "jobs"],
    "supervisor": ["worker", "jobs", "--processes", "1"],
    "broker": ["broker", "--bind", "127.0.0.1:0"],
    "relay": ["relay", "--dir", "{directory}/relayed"],
    "autoscale": ["autoscale", "--bind", "0"],
    "console": ["console", "--bind", "127.0.0.1:0"],
}


def lines_of(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for one in found:
        assert {"time", "level", "logger", "event", "message", "pid"} <= one.keys(), one
        assert one["event"]
    return found


def command_of(name: str, directory: Path) -> list[str]:
    if name == "console":
        pytest.importorskip("starlette")
        pytest.importorskip("uvicorn")
    (directory / "jobs.py").write_text(MODULE)
    return [one.format(directory=directory) for one in COMMANDS[name]]


class Started:
    """A command as a process, ended for sure. What it writes goes into files: to read a pipe by lines and then to its end
    loses what was read ahead."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self._files = directory / "out", directory / "error"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "default"}
        with self._files[0].open("wb") as out, self._files[1].open("wb") as error:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ignis", *arguments, "--log-format", "json"],
                cwd=directory, env=environment, stdout=out, stderr=error,
            )  # fmt: skip

    @property
    def out(self) -> str:
        return self._files[0].read_text("utf-8")

    @property
    def error(self) -> str:
        return self._files[1].read_text("utf-8")

    def runs(self) -> bool:
        """Whether it has said so; fails the test when it has ended."""
        ended = self.process.poll() is not None
        whole = self.error.rpartition("\n")[0]
        if any(one["event"] == "started" for one in lines_of(whole)):
            return True
        assert not ended, self.error
        return False

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)


@pytest.mark.parametrize("command", COMMANDS)
def test_from_its_start_to_its_end(command: str, tmp_path: Path, embedded_url: str) -> None:
    with ignis.Ignis(embedded_url) as app:
        app.queue("q", str).publish("one")
    with Started([*command_of(command, tmp_path), "--url", embedded_url], tmp_path) as started:
        eventually(started.runs, f"{command} runs", START_S)
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(START_S) == 0, started.error
    found = lines_of(started.error)
    assert started.out == ""
    assert [one["message"] for one in found if "ResourceWarning" in one["message"]] == []
    if command in ("worker", "supervisor"):
        assert any("old ways" in one["message"] for one in found if one["logger"] == "py.warnings")
        errors = {one["error"] for one in found if one["logger"] == "ignis.uncaught"}
        assert errors == {"of a thread", "while an object ends"}


@pytest.mark.parametrize("broken", ["url", pytest.param("option", marks=pytest.mark.long), "module"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_keeps_it_from_starting(command: str, broken: str, tmp_path: Path) -> None:
    arguments = command_of(command, tmp_path)
    if broken == "module":
        if command not in ("worker", "supervisor"):
            pytest.skip("it imports no module of the user's")
        (tmp_path / "jobs.py").write_text("1 / 0")
    url = "nonsense://x" if broken == "url" else f"embedded://{tmp_path}/store"
    more = ["--nonsense"] if broken == "option" else []
    with Started([*arguments, "--url", url, *more], tmp_path) as started:
        assert started.process.wait(START_S) != 0
    assert started.out == ""
    found = lines_of(started.error)
    [failed] = [one for one in found if one["event"] == "failed"]
    assert failed["exit_code"] == 2
