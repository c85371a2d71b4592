"""One worker process as its supervisor sees it."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ignis.errors import ClosedError
from ignis.log_format import event_text
from ignis.stack_file import StackFile
from ignis.supervisor.control_pipe import Link

__all__ = ["GONE", "LOCKED", "RUNNING", "STARTING", "STOPPING", "WorkerCommand", "WorkerProcess"]

log = logging.getLogger("ignis.supervisor")

STARTING = "starting"
RUNNING = "running"
LOCKED = "locked"
"""Told not to claim; ends when it has nothing in hand."""
STOPPING = "stopping"
GONE = "gone"

_UNKILLABLE_S = 30.0


@dataclass(frozen=True)
class WorkerCommand:
    """How a worker process is started.

    Attributes:
        arguments: behind ``ignis worker``: the target and options.
        environment: of the process; None = this one's.
        directory: where it runs; None = here.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] | None = None
    directory: str | None = None

    def start(self, descriptor: int, stacks: int) -> subprocess.Popen[bytes]:
        """In a session of its own: a terminal's Ctrl-C is the supervisor's to hand on, once.
        ``stacks``: the file that it writes them to."""
        ends = ["--supervised-fd", str(descriptor), "--stacks-fd", str(stacks)]
        command = [sys.executable, "-m", "ignis", "worker", *self.arguments, *ends]
        return subprocess.Popen(
            command, env=self.environment, cwd=self.directory, pass_fds=(descriptor, stacks), stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip


@dataclass
class WorkerProcess:
    """Used by the supervisor's one thread."""

    command: WorkerCommand
    number: int
    generation: int = 0
    state: str = STARTING
    owner: str = ""
    started: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    replaces: WorkerProcess | None = None

    def __post_init__(self) -> None:
        self.link, theirs = Link.pair()
        try:
            self._stacks = StackFile()
            try:
                self.popen = self.command.start(theirs.fileno(), self._stacks.fileno())
            except BaseException:
                self._stacks.close()
                raise
        except BaseException:
            self.link.close()
            raise
        finally:
            theirs.close()
        self.pid = self.popen.pid
        self.began_at = self.heard_at = time.monotonic()
        self.stop_by = float("inf")
        self.killed_at = float("inf")
        self._order = 0

    def hear(self) -> list[dict[str, Any]]:
        """Takes what it has said, without waiting."""
        events: list[dict[str, Any]] = []
        while some := self.link.receive(0):
            events += some
        for event in events:
            self.heard_at = time.monotonic()
            kind = event["event"]
            if kind == "opened":
                self.owner = event["owner"]
            elif kind == "started":
                self.started = event
                if self.state == STARTING:
                    self.state = RUNNING
            elif kind == "status":
                self.status = event
            elif kind == "ending":
                self.why = event["why"]
                self.status = {**self.status, **event}
                self.state = STOPPING
        return events

    def log_stacks(self) -> None:
        """Logs a dump of its stacks, if it has written one."""
        self._stacks.log_new(log, self.pid)

    def close(self) -> None:
        """It is gone: what it has still written is logged."""
        self.link.close()
        self._stacks.log_new(log, self.pid, ended=True)
        self._stacks.close()

    def _say(self, what: str) -> None:
        self._order += 1
        try:
            self.link.send(do=what, number=self._order)
        except ClosedError:
            log.warning(event_text("process_deaf", "worker process %d does not listen"), self.pid)

    def lock(self) -> None:
        """It claims nothing more and finishes what it has."""
        self.state = LOCKED
        self._say("pause")

    def unlock(self) -> None:
        """It claims again: work has come while it was locked."""
        self.state = RUNNING
        self._say("resume")

    @property
    def idle(self) -> bool:
        """Locked, and since then it has said that it has nothing in hand."""
        return self.state == LOCKED and self.status.get("number") == self._order and bool(self.status.get("quiet"))

    def stop(self, timeout: float) -> None:
        """SIGTERM: it drains. Killed by `overdue` when it takes longer than ``timeout`` seconds."""
        if self.state not in (STOPPING, GONE):
            self.send_signal(signal.SIGTERM)
        self.state = STOPPING
        self.stop_by = min(self.stop_by, time.monotonic() + timeout)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        self.killed_at = min(self.killed_at, time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            self.popen.kill()

    def end_within(self, timeout: float) -> None:
        """It has said that it ends: killed by `overdue` when it takes longer than ``timeout`` seconds."""
        self.stop_by = min(self.stop_by, time.monotonic() + timeout)

    def overdue(self, start_timeout_s: float, silent_kill_after_s: float) -> str:
        """Why it should have ended, started or spoken by now; "" = it should not."""
        now = time.monotonic()
        if now > self.stop_by:
            return "takes too long to end"
        if self.state == STARTING and now > self.began_at + start_timeout_s:
            return "takes too long to start"
        if self.state in (RUNNING, LOCKED) and silent_kill_after_s and self.silent_s > silent_kill_after_s:
            return f"has said nothing for {self.silent_s:.3g} s"
        return ""

    def excuse(self, pause_s: float) -> None:
        """The supervisor itself did nothing for so long: perhaps this process could not either."""
        self.heard_at += pause_s
        self.stop_by += pause_s
        if self.state == STARTING:
            self.began_at += pause_s

    @property
    def killed(self) -> bool:
        """Whether `kill` was called."""
        return self.killed_at != float("inf")

    @property
    def unkillable(self) -> bool:
        """Killed long ago, and there still: the system does not let it end, as with a disk that does not answer."""
        return time.monotonic() > self.killed_at + _UNKILLABLE_S

    @property
    def silent_s(self) -> float:
        """How long ago it spoke."""
        return time.monotonic() - self.heard_at

    @property
    def finished(self) -> int:
        """Messages that it has handled, dropped for their deadline or put aside."""
        counts = [one.get("consumer") or {} for one in self.status.get("queues", [])]
        return sum(one.get("handled", 0) + one.get("overdue", 0) + one.get("sidelined", 0) for one in counts)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began_at

    def describe(self) -> dict[str, Any]:
        """For people and for the health endpoint."""
        counts = [one.get("consumer") or {} for one in self.status.get("queues", [])]
        return {
            "pid": self.pid,
            "number": self.number,
            "state": self.state,
            "age_s": round(self.age_s, 3),
            "silent_s": round(self.silent_s, 3),
            "rss_bytes": self.status.get("rss_bytes"),
            "in_flight": sum(one.get("in_flight", 0) for one in counts),
            "paused": any(one.get("paused", False) for one in counts),
        }
