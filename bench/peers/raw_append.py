"""The floor: append to a file, `fdatasync`. No queue, no framing but a length, nothing to drain."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import NONE, SYNC, Peer, Session

_LENGTH = struct.Struct("<I")


class RawAppend(Peer):
    can_drain = False

    def __init__(self, durability: str = SYNC) -> None:
        self.durability = durability
        self.name = "raw append" + (" + fdatasync" if durability == SYNC else "")
        self.how_publish = self.how_batch = "one write" + (", one fdatasync" if durability == SYNC else "")

    def start(self, directory: Path) -> None:
        self._path = directory / "append.log"

    def session(self) -> Session:
        return _Appender(self._path, self.durability != NONE)


class _Appender(Session):
    def __init__(self, path: Path, synced: bool) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._synced = synced

    def publish(self, body: bytes) -> None:
        os.write(self._fd, _LENGTH.pack(len(body)) + body)
        if self._synced:
            os.fdatasync(self._fd)

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        pack = _LENGTH.pack
        data = b"".join([pack(len(body)) + body for body in bodies])
        written = os.write(self._fd, data)
        while written < len(data):
            written += os.write(self._fd, data[written:])
        if self._synced:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
