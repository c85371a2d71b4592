"""Message schedules of NATS JetStream: a message that the server keeps, and publishes itself at its time.

They begin with server 2.12, which no Debian release has, so ``IGNIS_BENCH_NATS`` names a program that was built from its source:
``GOBIN=/tmp/nats go install github.com/nats-io/nats-server/v2@latest``.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

from bench.peers.base import SYNC, MissingError, Peer, Session, require_module
from bench.peers.nats_jetstream import SUBJECT, NatsSession, nats_server
from bench.peers.ports import answers, free_port
from bench.processes import Server

FIRST_VERSION = (2, 12)
_WAITING = f"{SUBJECT}.later"


class NatsSchedules(Peer):
    can_delay = True
    how_delay = "js.publish with the header Nats-Schedule: @at, a subject each; pull consumer, fetch 1"

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.name = f"NATS JetStream, schedules{', sync_interval always' if durability == SYNC else ''}"

    def require(self) -> None:
        require_module("nats", "nats-py")
        said = subprocess.run(
            [nats_server(), "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
        found = re.search(r"(\d+)\.(\d+)", said)
        if found is None or tuple(map(int, found.groups())) < FIRST_VERSION:
            version = said.strip() or "a server that does not say its version"
            raise MissingError(
                f"MISSING: {version} has no delayed messages, 2.12 and later have; IGNIS_BENCH_NATS names such a program"
            )

    def start(self, directory: Path) -> None:
        self.port = free_port()
        config = directory / "nats.conf"
        always = ", sync_interval: always" if self.durability == SYNC else ""
        config.write_text(f'jetstream {{ store_dir: "{directory / "js"}"{always} }}\n')
        command = [nats_server(), "-a", "127.0.0.1", "-p", str(self.port), "-c", str(config)]
        self._server = Server(command, directory / "nats.log")
        self._server.wait_ready(lambda: answers(self.port))
        session = NatsSession(self.port)
        # A subject has one schedule at a time, so each message waits under a subject of its own.
        session.run(session.prepare([SUBJECT, f"{_WAITING}.>"], allow_msg_schedules=True))
        session.close()

    def stop(self) -> None:
        self._server.stop()

    def session(self) -> Session:
        return _SchedulingSession(self.port)


class _SchedulingSession(NatsSession):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._subject = f"{_WAITING}.{uuid.uuid4().hex}"
        self._numbers = itertools.count()

    def publish_later(self, body: bytes, delay_s: float) -> None:
        due = datetime.now(timezone.utc) + timedelta(seconds=delay_s)
        headers = {"Nats-Schedule": f"@at {due.isoformat(timespec='microseconds')}", "Nats-Schedule-Target": SUBJECT}
        self.run(self._stream.publish(f"{self._subject}.{next(self._numbers)}", body, headers=headers))
