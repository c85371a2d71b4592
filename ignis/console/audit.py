"""What was changed by whom: one line of JSON for each mutating call, appended to a file or logged."""

from __future__ import annotations

import logging
import os
import threading
from datetime import datetime, timezone
from typing import Any

import msgspec

from ignis.errors import ConfigError
from ignis.log_limit import LimitedLog
from ignis.private_files import open_private
from ignis.storage.private_directory import check_way

__all__ = ["AuditLog"]

log = logging.getLogger("ignis.console.audit")

_MOST_BYTES = 4_096
"""Of one line. An append of so much is one piece, also beside another process."""


class AuditLog:
    """Writes the lines. Thread-safe. The file is made with mode 0600, and only ever appended to.

    Args:
        path: of the file; None = the lines go to the log ``ignis.console.audit`` as information.

    Raises ConfigError: the file cannot be opened, or another user could replace it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._lock = threading.Lock()
        self._said = LimitedLog(log)
        self._descriptor: int | None = None
        if path is not None:
            try:
                check_way(path, "audit log")
                self._descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
            except OSError as exc:
                raise ConfigError(f"audit log {os.fspath(path)}: {exc.strerror}") from exc

    def write(self, entry: dict[str, Any]) -> None:
        """Appends one entry, with the time. What the disk refuses is logged: the call that it is about was made."""
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = msgspec.json.encode({"at": at, **entry})
        if len(line) >= _MOST_BYTES:
            line = msgspec.json.encode({"at": at, **entry, "asked": "too long to be shown"})
        with self._lock:
            if self._descriptor is None:
                log.info("%s", line.decode())
                return
            try:
                os.write(self._descriptor, line + b"\n")
            except OSError as exc:
                self._said.error("a line of the audit log could not be written: %s: %s", exc, line.decode())

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
