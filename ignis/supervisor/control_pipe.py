"""What a supervisor and a worker process say to each other: JSON lines over a socket pair.

From the supervisor ``{"do": "pause" | "resume", "number": n}``. From the worker ``{"event": "opened", "owner": ...}`` before
it claims anything; ``{"event": "started", ...}`` once it consumes; several times a second ``{"event": "status", ...}`` with
the number of the last order that it carried out; in the end ``{"event": "ending", "why": ...}``. Either end notices the
other's death as the end of the stream.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from typing import Any

import msgspec

from ignis.errors import ClosedError

__all__ = ["Link"]

_READ_BYTES = 1 << 16
_MAX_BUFFERED_BYTES = 8 << 20
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Link:
    """One end. Never blocks on the other one. Thread-safe for sending; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        os.set_inheritable(end.fileno(), False)  # what a handler starts must not keep it open
        self._socket = end
        self._lock = threading.Lock()
        self._unsent = b""
        self._buffer = b""
        self.ended = False

    @staticmethod
    def pair() -> tuple[Link, socket.socket]:
        """An end for this process, and one to be passed to a child."""
        mine, theirs = socket.socketpair()
        return Link(mine), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Hands a message over. While the other end does not read, messages gather here up to a bound; those above it are
        dropped. Raises ClosedError when the other end is gone."""
        with self._lock:
            if len(self._unsent) < _MAX_BUFFERED_BYTES:
                self._unsent += _encode(message) + b"\n"
            self._send_unsent()

    def flush(self, timeout: float) -> None:
        """Waits until everything is sent, at most so long. Raises ClosedError."""
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                self._send_unsent()
            left = deadline - time.monotonic()
            if not self._unsent or left <= 0:
                return
            self._wait(select.POLLOUT, left)

    def _send_unsent(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as exc:
            raise ClosedError(f"the other end of the link is gone: {exc}") from exc

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """What has come within ``timeout`` seconds, perhaps nothing; sets ``ended`` at the end of the stream."""
        if self.ended or not self._wait(select.POLLIN, timeout):
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self._buffer) > _MAX_BUFFERED_BYTES:
            self.ended = True
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        found = []
        for line in lines:
            try:
                found.append(_decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.ended = True  # whatever that is, it is not one of us
                break
        return found

    def _wait(self, event: int, timeout: float) -> bool:
        # Not select(), which knows no descriptor above 1,023.
        poller = select.poll()
        poller.register(self._socket, event)
        return bool(poller.poll(timeout * 1_000))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
