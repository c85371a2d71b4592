"""What a supervisor and a worker process say to each other: JSON lines over a socket pair.

From the supervisor: ``{"do": "pause" | "resume", "number": n}``. From the worker: ``{"event": "started", ...}`` once,
``{"event": "status", ...}`` several times a second, with the number of the last order that it carried out, and
``{"event": "ending", "why": ...}``. Either end notices the other's death as the end of the stream.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any

import msgspec

from ignis.errors import ClosedError

__all__ = ["Link"]

_READ_BYTES = 1 << 16
_MAX_BUFFERED_BYTES = 8 << 20
_SEND_TIMEOUT_S = 5.0
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Link:
    """One end. One thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(_SEND_TIMEOUT_S)
        os.set_inheritable(end.fileno(), False)  # what a handler starts must not keep it open
        self._socket = end
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
        """Raises ClosedError when the other end is gone or does not listen."""
        try:
            self._socket.sendall(_encode(message) + b"\n")
        except OSError as exc:
            raise ClosedError(f"the other end of the link is gone: {exc}") from exc

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """What has come within ``timeout`` seconds, perhaps nothing; sets ``ended`` at the end of the stream."""
        if self.ended or not select.select([self._socket], [], [], timeout)[0]:
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
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
            except msgspec.MsgspecError:
                self.ended = True  # whatever that is, it is not one of us
                break
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
