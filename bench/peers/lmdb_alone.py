"""py-lmdb by itself: a counter as the key, one transaction a batch. What the embedded store pays in any case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.base import SYNC, Handle, Peer, Session, require_module

_MAP_BYTES = 16 << 30


class LmdbAlone(Peer):
    how_publish = "put, commit"
    how_batch = "cursor.putmulti(append=True), one commit"
    how_drain = "read the first n, delete them in one transaction; ack = its commit; one consumer only"

    def __init__(self, durability: str = SYNC) -> None:
        self.durability = durability
        self.name = "py-lmdb alone" + ("" if durability == SYNC else ", sync=False")

    def require(self) -> None:
        require_module("lmdb", "lmdb")

    def start(self, directory: Path) -> None:
        self._path = directory / "lmdb"

    def session(self) -> Session:
        return _LmdbQueue(self._path, self.durability == SYNC)


class _LmdbQueue(Session):
    def __init__(self, path: Path, synced: bool) -> None:
        import lmdb

        self._env: Any = lmdb.open(str(path), map_size=_MAP_BYTES, sync=synced)
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            self._next = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0

    def publish(self, body: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(self._next.to_bytes(8, "big"), body, append=True)
        self._next += 1

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        first = self._next
        items = [(index.to_bytes(8, "big"), body) for index, body in enumerate(bodies, first)]
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items, append=True)
        self._next = first + len(items)

    def drain(self, limit: int, handle: Handle) -> int:
        keys = []
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            for key, body in cursor:
                handle(body)
                keys.append(key)
                if len(keys) == limit:
                    break
        if keys:
            with self._env.begin(write=True) as transaction:
                for key in keys:
                    transaction.delete(key)
        return len(keys)

    def close(self) -> None:
        self._env.close()
