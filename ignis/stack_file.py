"""A private file for the stacks of a child process, and its parent's log records of them.

`faulthandler` writes to it from C, in many small pieces, also while the process keeps the interpreter. On a stream that
several processes share the pieces of one stood among those of another.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import textwrap
import threading
import time
from pathlib import Path

__all__ = ["StackFile"]

_STILL_S = 0.2
"""Written without a pause: what has not grown for so long is whole."""
_MOST_BYTES = 4 << 20
"""Of one record. `faulthandler` writes at most 100 frames of 100 threads."""
_KEPT_BYTES = 1 << 20


class StackFile:
    """The parent's end. Thread-safe.

    Args:
        path: where it is made, for a child that opens it by its name; None = without a name, the child inherits it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file = tempfile.TemporaryFile() if path is None else path.open("x+b")  # noqa: SIM115 - closed by `close`
        # Each piece goes to the end, wherever that is after `_forget`.
        fd = self._file.fileno()
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        self._read = self._size = 0
        self._grew_at = 0.0
        self._lock = threading.Lock()  # between reading and closing

    def fileno(self) -> int:
        return self._file.fileno()

    def log_new(self, log: logging.Logger, pid: int, *, ended: bool = False) -> None:
        """Logs what process ``pid`` has written since the last time as one record, once it is whole.

        Args:
            ended: the process writes nothing more.
        """
        with self._lock:
            text = None if self._file.closed else self._take(ended)
        if text is not None:
            stacks = textwrap.indent(text.rstrip(), "  ", lambda _: True)
            log.warning("stacks of process %d:\n%s", pid, stacks, extra={"event": "stacks"})

    def _take(self, ended: bool) -> str | None:
        size = os.fstat(self.fileno()).st_size
        if size == self._read:
            return None
        now = time.monotonic()
        if size != self._size:
            self._size, self._grew_at = size, now
        if not ended and now < self._grew_at + _STILL_S:
            return None
        text = os.pread(self.fileno(), min(size - self._read, _MOST_BYTES), self._read).decode(errors="replace")
        self._read = size
        if size > _KEPT_BYTES:
            self._forget()
        return text

    def _forget(self) -> None:
        os.ftruncate(self.fileno(), 0)
        self._read = self._size = 0

    def close(self) -> None:
        with self._lock:
            self._file.close()
