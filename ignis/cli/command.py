"""The commands that ``ignis autoscale`` runs: bounded in time, ended with it, and ended when another leads."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable

from ignis.errors import ConfigError, IgnisError

__all__ = ["Command", "CommandError"]

PLACE = "{}"
_LOOK_S = 0.05
_GRACE_S = 2.0
_KILLED_S = 5.0
_ANSWER_BYTES = 256


class CommandError(IgnisError):
    """A command could not be started, failed, took too long, or answered with something else than a number."""

    code = "command"
    retryable = True


class Command:
    """Runs a command of the user's. One call at a time; `close` from any thread.

    Args:
        option: by which it was given, for messages.
        text: as for a shell, but without one: words and quotes.
        timeout_s: bound of one call in seconds; then it is ended, with what it has started.
        allowed: asked while it runs; once it says no, it is ended.

    Raises ConfigError when the text cannot be read.
    """

    def __init__(self, option: str, text: str, timeout_s: float, allowed: Callable[[], bool] = lambda: True) -> None:
        try:
            self._parts = shlex.split(text)
        except ValueError as exc:
            raise ConfigError(f"{option} {text!r} cannot be read: {exc}") from None
        if not self._parts:
            raise ConfigError(f"{option} is empty; name a command")
        self._option = option
        self._timeout_s = timeout_s
        self._allowed = allowed
        self._closed = threading.Event()

    def tell(self, count: int) -> None:
        """Runs it with the number in place of ``{}``. Raises CommandError."""
        self._run([part.replace(PLACE, str(count)) for part in self._parts], None)

    def ask(self) -> int:
        """Runs it and returns the number that it prints. Raises CommandError."""
        with tempfile.TemporaryFile() as answer:  # a pipe would have to be read while it runs
            self._run(self._parts, answer.fileno())
            answer.seek(0)
            text = answer.read(_ANSWER_BYTES).decode("utf-8", "replace").strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= 9):
            raise CommandError(f"{self._option} answers {text[:80]!r}; it must print how many workers there are")
        return int(text)

    def close(self) -> None:
        """Ends the call that runs, and lets no other begin. Returns at once; the call returns within seconds."""
        self._closed.set()

    def _run(self, parts: list[str], output: int | None) -> None:
        if self._closed.is_set():
            raise CommandError(f"{self._option} is not run: this process ends")
        try:
            # A group of its own: what it starts is ended with it, and a terminal's Ctrl-C is ours to hand on.
            process = subprocess.Popen(parts, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True)
        except (OSError, ValueError) as exc:
            raise CommandError(f"{self._option} cannot be run: {exc}") from exc
        why = ""
        try:
            why = self._wait(process)
        finally:
            if process.poll() is None:
                _end(process)
        if why:
            raise CommandError(f"{self._option} was ended: {why}")
        if process.returncode:
            raise CommandError(f"{self._option} ended with {process.returncode}")

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Why it is to be ended; "" when it has ended by itself."""
        until_s = time.monotonic() + self._timeout_s
        while process.poll() is None:
            if self._closed.wait(_LOOK_S):
                return "this process ends"
            if time.monotonic() >= until_s:
                return f"it took over {self._timeout_s:g} s (autoscaler.command_timeout)"
            if not self._allowed():
                return "another autoscaler leads"
        return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it and what it has started in its group, and reaps it."""
    for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILLED_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
