"""What systemd hears of each command that runs for long: that it is ready once it works, and that it stops when it is told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ignis

pytestmark = pytest.mark.integration

START_S = 60.0
MODULE = "import ignis\napp = ignis.Ignis()\n@app.queue('q', str).handler\ndef handle(body): pass\n"
COMMANDS = {
    "worker": ["worker", "jobs"],
    "supervisor": ["worker", "jobs", "--processes", "1"],
    "broker": ["broker", "--bind", "127.0.0.1:0"],
    "relay": ["relay", "--dir", "{directory}/relayed"],
    "autoscale": ["autoscale", "--bind", "0"],
    "console": ["console", "--bind", "127.0.0.1:0"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_service_says_when_it_is_ready_and_when_it_stops(command: str, tmp_path: Path, embedded_url: str) -> None:
    if command == "console":
        pytest.importorskip("starlette")
        pytest.importorskip("uvicorn")
    with ignis.Ignis(embedded_url) as app:
        app.queue("q", str).open()
    (tmp_path / "jobs.py").write_text(MODULE)
    arguments = [one.format(directory=tmp_path) for one in COMMANDS[command]]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "log").open("wb") as log:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(START_S)
        environment = {
            **os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "ignis", *arguments, "--url", embedded_url],
            cwd=tmp_path, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            assert manager.recv(4_096).decode() == f"READY=1\nMAINPID={process.pid}"
            assert manager.recv(4_096) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            said = b""
            while said != b"STOPPING=1":
                said = manager.recv(4_096)
                assert said in (b"WATCHDOG=1", b"STOPPING=1")
            assert process.wait(START_S) == 0, (tmp_path / "log").read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(START_S)
