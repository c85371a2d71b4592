"""ignis through a relay: producers write into shared memory, one more process stores."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.base import MissingError, Peer, Session
from bench.peers.ignis_embedded import QUEUE, SHARDS
from bench.processes import Server

_SHARED_MEMORY = Path("/dev/shm")


class IgnisRelay(Peer):
    """Publishing only: what is in the store is drained as without a relay."""

    how_publish = "publisher.send into shared memory; stored by the relay process"
    how_batch = "publisher.send each, flush at the end of the run"
    can_drain = False

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.name = "ignis, relay"

    def require(self) -> None:
        if not _SHARED_MEMORY.is_dir():
            raise MissingError("MISSING: /dev/shm, where the channels are to be")

    def start(self, directory: Path) -> None:
        self._shared = tempfile.mkdtemp(prefix="bench-relay-", dir=_SHARED_MEMORY)
        self.url = f"relay://{self._shared}"
        self.store_url = f"embedded://{directory / 'ignis'}"
        command = [sys.executable, "-m", "ignis", "relay", "--url", self.store_url, "--dir", self._shared]
        self._server = Server(command, directory / "relay.log", cwd=Path(__file__).resolve().parents[2])
        self._server.wait_ready(self._is_ready)

    def _is_ready(self) -> bool:
        from ignis.relay.directory import RelayDirectory

        directory = RelayDirectory(self._shared)
        return directory.relay_present() and bool(directory.read_state())

    def stop(self) -> None:
        self._server.stop()
        shutil.rmtree(self._shared, ignore_errors=True)

    def session(self) -> RelaySession:
        return RelaySession(self)

    def stored(self) -> int:
        """Messages in the store."""
        from ignis import Ignis

        with Ignis(self.store_url) as app:
            return int(app.queue(QUEUE).main.pending())


class RelaySession(Session):
    def __init__(self, peer: IgnisRelay) -> None:
        from ignis import Ignis

        self.app: Any = Ignis(peer.url)
        self.queue: Any = self.app.queue(QUEUE, bytes, shards=SHARDS, durability=peer.durability)
        self.publisher: Any = self.queue.publisher()
        self.publish = self.publisher.send

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.publish(body)

    def flush(self) -> None:
        self.publisher.flush()

    def close(self) -> None:
        self.publisher.close()
        self.app.close()
