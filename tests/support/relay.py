"""Relays and producers as processes, for the tests of both."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import ignis
from tests.support import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


def shared_memory() -> str:
    """Where channels are made in tests: memory where there is such a directory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


class Place:
    """A relay's directory, and the store behind it."""

    def __init__(self, directory: Path, store: Path) -> None:
        self.directory = directory
        self.store_url = f"embedded://{store}"
        self.url = f"relay://{directory}"
        self.processes: list[subprocess.Popen[str]] = []

    @property
    def channels(self) -> list[Path]:
        return sorted((self.directory / "channels").glob("*.channel"))

    @property
    def aside(self) -> list[Path]:
        return sorted(self.directory.glob("aside/*.channel"))

    def start_relay(self, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """A relay, once it says that it runs."""
        process = self.popen(
            ["-m", "ignis", "relay", "--url", self.store_url, "--dir", str(self.directory), "--json", *arguments],
            environ,
        )
        assert process.stdout is not None
        assert wait([process.stdout], WAIT_S), "the relay does not say that it runs"
        line = process.stdout.readline()
        assert line, process.communicate(timeout=WAIT_S)[1]
        assert json.loads(line)["event"] == "started"
        return process

    def producer(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        """A process that runs a few lines; ``app`` and ``queue`` (of bytes, named "q") are there."""
        prelude = (
            "import os, signal, sys, time, ignis\n"
            "app = ignis.Ignis(sys.argv[1])\n"
            "queue = app.queue('q', bytes)\n"
            "def say(word):\n"
            "    print(word, flush=True)\n"
        )
        return self.popen(["-c", prelude + code, self.url, *map(str, arguments)])

    def popen(self, arguments: list[str], environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def stored(self, queue: str = "q") -> list[bytes]:
        """The bodies in the store, by shard and pointer. The relay may run meanwhile."""
        with ignis.Ignis(self.store_url) as app:
            record = app.store.queues.get(queue)
            if record is None:
                return []
            rows = app.store.magazines.scan(queue, limit=10_000_000)
            return [ignis.Message.from_bytes(data).body for _, _, data in rows if data is not None]


def say(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints; its errors when it ended instead."""
    assert process.stdout is not None
    assert wait([process.stdout], WAIT_S), "the process says nothing"
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate(timeout=WAIT_S)[1])
    return line.strip()


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Waits for the end of a process and checks its exit code; returns what it printed."""
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, f"exit code {process.returncode}, expected {code}\n{out}\n{err}"
    return out


def kill(process: subprocess.Popen[str]) -> None:
    """``kill -9``, and waits until it is gone."""
    process.kill()
    finish(process, -signal.SIGKILL)


def stop(process: subprocess.Popen[str]) -> str:
    """SIGTERM, and waits for a clean end."""
    process.terminate()
    return finish(process)


@contextlib.contextmanager
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in shared memory; whatever was started there is killed at the end, and the directory removed."""
    directory = Path(tempfile.mkdtemp(prefix="ignis-test-relay-", dir=shared_memory()))
    here = Place(directory, tmp_path / "store")
    try:
        yield here
    finally:
        for process in here.processes:
            if process.poll() is None:
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
                process.communicate(timeout=WAIT_S)
        shutil.rmtree(directory, ignore_errors=True)
