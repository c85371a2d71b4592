"""Child processes of a bench: measuring processes that start together, and servers that never outlive their bench.

Every wait is bounded, and whatever was started is stopped, also when the bench itself dies (Linux: the kernel sends
the servers their signal then).
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Not fork: a forked child would inherit the library's handles and threads, which a user's process never does.
CONTEXT = multiprocessing.get_context("spawn")
START_TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1

Gate = Callable[[], None]


class BenchError(Exception):
    """A measurement could not be taken; the text says why."""


@dataclass(frozen=True)
class Task:
    """A function for a child process. It is called as ``function(gate, *arguments)``: it prepares, calls ``gate()``,
    which returns at the same moment in all tasks, and measures. What it returns goes back to the parent."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    core: int | None = None


def run_together(
    tasks: Sequence[Task], timeout_s: float, on_start: Callable[[list[int]], None] | None = None
) -> list[Any]:
    """Runs each task in a process of its own and returns their results in order.

    ``timeout_s`` bounds the time from the common start to the last result; ``on_start`` gets the processes' ids just
    before it. Raises BenchError with the child's traceback when one fails or is late; no child survives the call.
    """
    children: list[tuple[Any, Connection]] = []
    try:
        for task in tasks:
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_child, args=(theirs, task), daemon=False)
            process.start()
            theirs.close()
            children.append((process, ours))
        for process, link in children:
            _receive(process, link, time.monotonic() + START_TIMEOUT_S, "ready")
        if on_start is not None:
            on_start([process.pid for process, _ in children])
        for _, link in children:
            link.send("go")
        deadline = time.monotonic() + timeout_s
        return [_receive(process, link, deadline, "done") for process, link in children]
    finally:
        for process, link in children:
            link.close()
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join(5.0)


def _receive(process: Any, link: Connection, deadline: float, expected: str) -> Any:
    if not link.poll(max(0.0, deadline - time.monotonic())):
        raise BenchError(f"no answer from a measuring process in time (waited for {expected!r})")
    try:
        word, value = link.recv()
    except EOFError:
        process.join(5.0)
        raise BenchError(f"a measuring process died (exit code {process.exitcode})") from None
    if word == "failed":
        raise BenchError(value)
    return value


def _child(link: Connection, task: Task) -> None:
    # The terminal's Ctrl-C reaches the whole group; the parent alone decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)

    def gate() -> None:
        link.send(("ready", None))
        if not link.poll(START_TIMEOUT_S):
            raise BenchError("the common start never came")
        link.recv()

    try:
        if task.core is not None:
            os.sched_setaffinity(0, {task.core})
        link.send(("done", task.function(gate, *task.arguments)))
    except BaseException:
        with suppress(OSError):
            link.send(("failed", traceback.format_exc()))


def die_with_parent(number: int) -> None:
    """Asks the kernel to send this process the signal when its parent dies. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


class Server:
    """A server in a process group of its own, with its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        user: str | None = None,
        stop_signal: int = signal.SIGTERM,
        orphan_signal: int = signal.SIGKILL,
        cwd: Path | None = None,
    ) -> None:
        """Starts it in ``cwd`` (default: where ``log`` is). ``user`` is who it runs as, which only root can choose;
        ``stop_signal`` ends it in order, ``orphan_signal`` is what it gets when the bench dies."""
        self._stop_signal = stop_signal
        self._log = log
        self._command = list(command)
        as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd or log.parent,
                # Safe here: no thread of the bench is running when a server starts.
                preexec_fn=lambda: die_with_parent(orphan_signal),  # noqa: PLW1509
                **as_user,
            )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Calls ``is_ready`` until it is true. Raises BenchError with the server's last words otherwise."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchError(f"{self._command[0]} ended with {self._process.returncode}: {self._last_words()}")
            if is_ready():
                return
            time.sleep(0.01)
        raise BenchError(f"{self._command[0]} was not ready after {timeout_s:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        with suppress(OSError):
            return self._log.read_text("utf-8", "replace")[-1000:].strip()
        return ""

    def stop(self, timeout_s: float = 15.0) -> None:
        """Ends the server and its whole group: in order first, by force when that takes too long. Idempotent."""
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self._signal(self._stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._signal(signal.SIGKILL)
        self._process.wait(timeout_s)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
