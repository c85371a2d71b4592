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

pytestmark = pytest.mark.integration

START_S = 120.0
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


def started(arguments: list[str], directory: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "default"}
    return subprocess.Popen(
        [sys.executable, "-m", "ignis", *arguments, "--log-format", "json"],
        cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_from_its_start_to_its_end(command: str, tmp_path: Path, embedded_url: str) -> None:
    with ignis.Ignis(embedded_url) as app:
        app.queue("q", str).publish("one")
    process = started([*command_of(command, tmp_path), "--url", embedded_url], tmp_path)
    assert process.stderr is not None
    try:
        said: list[str] = []
        while not said or json.loads(said[-1])["event"] != "started":
            said.append(process.stderr.readline())
            assert said[-1], said
        process.send_signal(signal.SIGTERM)
        out, rest = process.communicate(timeout=START_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    found = lines_of("".join(said) + rest)
    assert out == ""
    assert process.returncode == 0
    if command in ("worker", "supervisor"):
        assert any("old ways" in one["message"] for one in found if one["logger"] == "py.warnings")
        errors = {one["error"] for one in found if one["logger"] == "ignis.uncaught"}
        assert errors == {"of a thread", "while an object ends"}


@pytest.mark.parametrize("broken", ["url", "option", "module"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_keeps_it_from_starting(command: str, broken: str, tmp_path: Path) -> None:
    arguments = command_of(command, tmp_path)
    if broken == "module":
        if command not in ("worker", "supervisor"):
            pytest.skip("it imports no module of the user's")
        (tmp_path / "jobs.py").write_text("1 / 0")
    url = "nonsense://x" if broken == "url" else f"embedded://{tmp_path}/store"
    more = ["--nonsense"] if broken == "option" else []
    process = started([*arguments, "--url", url, *more], tmp_path)
    try:
        out, error = process.communicate(timeout=START_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode not in (0, None)
    assert out == ""
    found = lines_of(error)
    [failed] = [one for one in found if one["event"] == "failed"]
    assert failed["exit_code"] == 2
