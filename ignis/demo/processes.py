"""The demo's worker processes: started, watched, stopped; and what memory they take."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import ignis
from ignis.demo.settings import DIRECTORY_VARIABLE, PARENT_VARIABLE
from ignis.errors import IgnisError

__all__ = ["MemoryPeak", "WorkerProcess"]

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_PRIVATE = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


class WorkerProcess:
    """``ignis worker`` in a process of its own.

    Args:
        number: counts the workers of this demo, for the log's name.
        url, client_id, farm_id: the store, as given to the command.
        directory: where results and the log go.
        target: the application, ``module:attribute``.
    """

    def __init__(
        self, number: int, url: str, client_id: str, farm_id: str, directory: Path, target: str = "ignis.demo.app:app"
    ) -> None:
        self.number = number
        self.owner = ""
        self._log_path = directory / f"worker-{number}.log"
        package_parent = str(Path(ignis.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
        environ = {
            **os.environ,
            "PYTHONPATH": path,
            DIRECTORY_VARIABLE: str(directory),
            PARENT_VARIABLE: str(os.getpid()),
        }
        command = [
            sys.executable,
            "-m",
            "ignis",
            "worker",
            target,
            "--json",
            "--url",
            url,
            "--client-id",
            client_id,
            "--farm-id",
            farm_id,
        ]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environ, cwd=directory
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Returns when the worker handles messages. Raises IgnisError with the end of its log when it does not."""
        stdout = self._process.stdout
        assert stdout is not None
        readable = wait([stdout.fileno()], START_TIMEOUT_S)
        started = stdout.readline() if readable else b""
        if not started:
            raise IgnisError(f"worker {self.number} did not start: {self._last_words()}")
        self.owner = str(json.loads(started)["owner"])

    def check(self) -> None:
        """Raises IgnisError when the process ended although nobody asked it to."""
        code = self._process.poll()
        if code is not None:
            raise IgnisError(f"worker {self.number} ended with exit code {code}: {self._last_words()}")

    def kill(self) -> None:
        """SIGKILL, and waits until the kernel has taken note of the death."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._close()

    def ask_to_stop(self) -> None:
        """SIGTERM: the worker drains. One that is only just starting is let start first."""
        if not self.owner:
            self.wait_ready()
        self._process.send_signal(signal.SIGTERM)

    def wait_stopped(self) -> int:
        """Its exit code, once it was asked to stop; a worker that does not end in time is killed."""
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(STOP_TIMEOUT_S)
        self._close()
        return code

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _last_words(self) -> str:
        lines = self._log_path.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it logged nothing"


class MemoryPeak:
    """The most memory of its own that a process was seen with: without the store's mapped pages, which the kernel
    takes back when it needs them. Linux only; elsewhere nothing is known."""

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self._looked_at = 0.0

    def look(self, pids: list[int], *, every_s: float = 0.05) -> None:
        """Looks at the processes, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked_at < every_s:
            return
        self._looked_at = now
        for pid in pids:
            with contextlib.suppress(OSError):
                found = _PRIVATE.search(Path(f"/proc/{pid}/status").read_text("ascii", "replace"))
                if found is not None:
                    self._peaks[pid] = max(self._peaks.get(pid, 0), int(found[1]) * 1024)

    def of(self, pid: int) -> int | None:
        return self._peaks.get(pid)

    def others(self, pid: int) -> int | None:
        """The largest peak of any process but that one."""
        return max((peak for one, peak in self._peaks.items() if one != pid), default=None)
