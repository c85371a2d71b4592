"""persist-queue's SQLiteAckQueue: get marks a row as taken, ack marks it as done. It always commits each call."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.peers.base import SYNC, Handle, Peer, Session, require_module


class PersistQueue(Peer):
    name = "persist-queue SQLiteAckQueue"
    # SQLite's default: WAL or not, PRAGMA synchronous is FULL.
    durability = SYNC
    how_publish = "put (bytes as they are: a serializer that does nothing)"
    how_batch = "no bulk call: put each"
    can_batch = False
    how_drain = "get, then ack(id=...), each a commit; ack: the row's status"

    def require(self) -> None:
        require_module("persistqueue", "persist-queue")

    def start(self, directory: Path) -> None:
        self._path = str(directory / "persist-queue")

    def session(self) -> Session:
        return _PersistQueue(self._path)


class _PersistQueue(Session):
    def __init__(self, path: str) -> None:
        import persistqueue

        unchanged = SimpleNamespace(dumps=lambda item: item, loads=lambda data: data)
        self._queue: Any = persistqueue.SQLiteAckQueue(
            path, auto_commit=True, multithreading=True, serializer=unchanged
        )

    def publish(self, body: bytes) -> None:
        self._queue.put(body)

    def drain(self, limit: int, handle: Handle) -> int:
        import persistqueue

        for done in range(limit):
            try:
                item = self._queue.get(block=False, raw=True)
            except persistqueue.Empty:
                return done
            handle(item["data"])
            self._queue.ack(id=item["pqid"])
        return limit

    def close(self) -> None:
        self._queue.close()
