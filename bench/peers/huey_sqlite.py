"""huey on SQLite: one task a message, through its own task calls. No bulk call; a task is removed before it runs."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from bench.peers.base import SYNC, Handle, Peer, Session, require_module


class HueySqlite(Peer):
    how_publish = "task(body)"
    how_batch = "no bulk call: task(body) each"
    can_batch = False
    can_delay = True
    how_delay = "task.schedule(delay=); its consumer, one thread, scheduler every second (the least)"
    how_drain = "dequeue, execute; NO ack: a task is removed before it runs (at most once)"

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self._fsync = durability == SYNC
        self.name = f"huey on SQLite, fsync={self._fsync}"

    def require(self) -> None:
        require_module("huey", "huey")

    def start(self, directory: Path) -> None:
        self._path = str(directory / "huey.db")

    def session(self) -> Session:
        return _HueyQueue(self._path, self._fsync)


class _HueyQueue(Session):
    def __init__(self, path: str, fsync: bool) -> None:
        from huey import SqliteHuey

        # The library logs each executed task; nobody reads that here.
        logging.getLogger("huey").setLevel(logging.ERROR)
        self._huey: Any = SqliteHuey("bench", filename=path, fsync=fsync, results=False)
        self._handle: Handle = len

        def message(body: bytes) -> None:
            self._handle(body)

        self._task: Any = self._huey.task()(message)

    def publish(self, body: bytes) -> None:
        self._task(body)

    def publish_later(self, body: bytes, delay_s: float) -> None:
        self._task.schedule(args=(body,), delay=delay_s)

    def listen(self, count: int, handle: Handle, deadline: float) -> int:
        """By its own consumer: who is due is found by its scheduler's thread, and taken by polling."""
        done = 0

        def counting(body: bytes) -> None:
            nonlocal done
            handle(body)
            done += 1

        self._handle = counting
        consumer = self._huey.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.01)
        consumer.start()
        while done < count and time.monotonic() < deadline:
            time.sleep(0.01)
        consumer.stop(graceful=True)
        return done

    def drain(self, limit: int, handle: Handle) -> int:
        self._handle = handle
        for done in range(limit):
            task = self._huey.dequeue()
            if task is None:
                return done
            self._huey.execute(task)
        return limit

    def close(self) -> None:
        self._huey.storage.close()
