"""What was changed by whom: one line of JSON for each mutating call, appended to a file or logged."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec

from ignis.console.refused_logins import RefusedLogins
from ignis.errors import ConfigError
from ignis.log_limit import LimitedLog
from ignis.private_files import open_private
from ignis.stacks import start_thread
from ignis.storage.private_directory import check_way
from ignis.urls import masked_path

__all__ = ["AuditLog"]

log = logging.getLogger("ignis.console.audit")

_MOST_BYTES = 4_096
"""Of one line. An append of so much is one piece, also beside another process."""


class AuditLog:
    """Writes the lines. Thread-safe. The file is made with mode 0600, and only ever appended to.

    Args:
        path: of the file; None = the lines go to the log ``ignis.console.audit`` as information.
        clock: seconds that only rise; injectable for tests.

    Raises ConfigError: the file cannot be opened, or another user could replace it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._refused = RefusedLogins()
        self._timer: threading.Timer | None = None
        self._said = LimitedLog(log)
        self._descriptor: int | None = None
        self._closed = False
        if path is not None:
            try:
                check_way(path, "audit log")
                # Not blocking: a FIFO that nobody reads is refused.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                self._descriptor = open_private(path, flags)
                mode = os.fstat(self._descriptor).st_mode
                if not stat.S_ISREG(mode) or mode & 0o022:
                    os.close(self._descriptor)
                    what = "others may write it (chmod go-w)" if stat.S_ISREG(mode) else "it is no regular file"
                    raise ConfigError(f"audit log {masked_path(path)}: {what}")
            except OSError as exc:
                raise ConfigError(f"audit log {masked_path(path)}: {exc.strerror}") from exc

    def write(self, entry: dict[str, Any]) -> None:
        """Appends one entry, with the time. What the disk refuses is logged: the call that it is about was made."""
        with self._lock:
            self._write_more(self._clock())
            self._write(entry)

    def write_refused_login(self, entry: dict[str, Any]) -> None:
        """`write` for a login that was refused. Anybody may cause any number of these: an address gets a few lines a minute, and
        then one that says how many more there were."""
        with self._lock:
            now_s = self._clock()
            self._write_more(now_s)
            if self._refused.shows(entry["from"], now_s):
                self._write(entry)
            else:
                self._wait_for_more()

    def close(self) -> None:
        """Says what is left to say and closes the file. Idempotent."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._write_more(math.inf)
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._closed = True

    def _wait_for_more(self) -> None:
        due_s = self._refused.due_s
        if self._timer is None and due_s is not None and not self._closed:
            self._timer = threading.Timer(max(0.0, due_s - self._clock()), self._on_time)
            self._timer.daemon = True
            start_thread(self._timer)

    def _on_time(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer = None
                self._write_more(self._clock())
                self._wait_for_more()  # another window may have begun meanwhile

    def _write_more(self, now_s: float) -> None:
        for address, count in self._refused.take(now_s).items():
            self._write({"from": address, "refused_logins": count, "says": f"{count} more logins were refused"})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._closed:
            return
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = _escaped(msgspec.json.encode({"at": at, **entry}))
        if len(line) >= _MOST_BYTES:
            line = _escaped(msgspec.json.encode({"at": at, **entry, "asked": "too long to be shown"}))
        if self._descriptor is None:
            log.info("%s", line)
            return
        try:
            os.write(self._descriptor, line.encode() + b"\n")
        except OSError as exc:
            self._said.error("a line of the audit log could not be written: %s: %s", exc, line)


def _escaped(line: bytes) -> str:
    """JSON in which every character that could steer a terminal, or that some reader takes for the end of a line, is escaped.
    JSON itself wants that of the first 32 alone."""
    text = line.decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
