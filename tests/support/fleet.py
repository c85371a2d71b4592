"""Worker processes of a real command line, for tests: started in a directory of their own, ended for sure."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.support import eventually

START_S = 60.0

# Notes every message before and after, with the process that handles it; "hold ..." waits for a file of that name.
MODULE = """
import os, time, ignis
app = ignis.Ignis(consumer={"idle_poll_s": 0.05}, refresher={"watch_s": 0.1})

def note(text):
    fd = os.open("journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{text} {os.getpid()}\\n".encode())
    os.close(fd)

@app.queue("q", str, shards=4, shovel_interval=0).handler
def handle(body):
    note(f"start {body}")
    if body.startswith("hold"):
        while not os.path.exists(body.split()[1]):
            time.sleep(0.01)
    if body.startswith("slow"):
        time.sleep(0.02)
    if body.startswith("eat"):
        kept.append(bytearray(200 << 20))
    note(f"end {body}")

kept = []
"""


class Command:
    """``ignis worker jobs ...`` as a process. Output is JSON lines; what it logs goes to the file ``log``."""

    def __init__(self, directory: Path, url: str, *arguments: str, module: str = MODULE) -> None:
        self.directory = directory
        self.url = url
        (directory / "jobs.py").write_text(module)
        self._log = (directory / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ignis", "worker", "jobs", "--url", url, "--json", *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self.started: dict[str, Any] = {}

    def wait_started(self) -> Command:
        assert self.process.stdout is not None
        assert wait([self.process.stdout], START_S), self.log()
        line = self.process.stdout.readline()
        assert line, self.log()
        self.started = json.loads(line)
        assert self.started["event"] == "started"
        return self

    def wait(self, timeout: float = START_S) -> int:
        """The exit code."""
        return self.process.wait(timeout)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def health(self) -> tuple[int, dict[str, Any]]:
        return self.get("/healthz")

    def get(self, path: str) -> tuple[int, Any]:
        host, _, port = self.started["health"].removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if answer.headers["Content-Type"] == "application/json" else body
        finally:
            connection.close()

    def pids(self, state: str = "running") -> list[int]:
        """Of the worker processes in that state, the oldest first."""
        processes = sorted(self.health()[1]["processes"], key=lambda one: int(one["number"]))
        return [one["pid"] for one in processes if one["state"] == state]

    def wait_running(self, count: int, *, without: list[int] | None = None) -> list[int]:
        """Until so many run, none of them in ``without``, and no others are there."""

        def check() -> list[int] | None:
            processes = self.health()[1]["processes"]
            pids = self.pids()
            ok = len(pids) == count == len(processes) and not set(pids) & set(without or ())
            return pids if ok else None

        return eventually(check, f"{count} processes run", START_S) or []

    def journal(self) -> list[tuple[str, str, int]]:
        """(what, message, process), in order."""
        path = self.directory / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            what, _, rest = line.partition(" ")
            body, _, pid = rest.rpartition(" ")
            found.append((what, body, int(pid)))
        return found

    def ended(self) -> Counter[str]:
        return Counter(body for what, body, _ in self.journal() if what == "end")

    def release(self, name: str) -> None:
        (self.directory / name).touch()

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def close(self) -> None:
        """Ends it and, because they end with it, its processes."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # at once
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=START_S)
        self._log.close()


def alive(pid: int) -> bool:
    """Whether a process runs (and is no zombie that somebody has yet to wait for)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
