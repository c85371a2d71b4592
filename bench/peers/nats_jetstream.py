"""NATS JetStream with a file store: a work queue behind one durable pull consumer.

The server writes to the file before it acknowledges and flushes every two minutes, so what it acknowledged survives
kill -9, and a power cut loses up to that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.peers.base import Handle, MissingError, Peer, Session, require_module, require_program
from bench.peers.ports import answers, free_port
from bench.processes import Server

SUBJECT = "bench"
PROGRAM_VARIABLE = "IGNIS_BENCH_NATS"
_STREAM, _CONSUMER = "bench", "workers"
# Publishes under way before their acknowledgements are awaited: the client's own limit is 4,000.
_PIPELINE = 2_000
_TIMEOUT_S = 60.0

T = TypeVar("T")


def nats_server() -> str:
    """The program that ``IGNIS_BENCH_NATS`` names, or else the one in PATH. Raises MissingError."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if not named:
        return require_program("nats-server", "nats-server")
    if not os.access(named, os.X_OK):
        raise MissingError(f"MISSING: {PROGRAM_VARIABLE} = {named} is no program")
    return named


class NatsJetStream(Peer):
    name = "NATS JetStream, file"
    how_publish = "js.publish"
    how_batch = f"js.publish_async, {_PIPELINE:,} under way, all acknowledgements awaited"
    how_drain = "pull consumer, fetch n; ack: one per message, not confirmed by the server"
    how_listen = "pull consumer, fetch 1; ack"
    can_listen = True

    def __init__(self, durability: str) -> None:
        self.durability = durability

    def require(self) -> None:
        nats_server()
        require_module("nats", "nats-py")

    def start(self, directory: Path) -> None:
        self.port = free_port()
        command = [nats_server(), "-a", "127.0.0.1", "-p", str(self.port)]
        self._server = Server([*command, "-js", "-sd", str(directory / "js")], directory / "nats.log")
        self._server.wait_ready(lambda: answers(self.port))
        session = NatsSession(self.port)
        session.run(session.prepare([SUBJECT]))
        session.close()

    def stop(self) -> None:
        self._server.stop()

    def session(self) -> Session:
        return NatsSession(self.port)


class NatsSession(Session):
    """The client is asyncio's; the bench calls it from outside, a batch at a time."""

    def __init__(self, port: int) -> None:
        import nats

        self._loop = asyncio.new_event_loop()
        self._client: Any = self.run(nats.connect(f"nats://127.0.0.1:{port}", connect_timeout=_TIMEOUT_S))
        self._stream: Any = self._client.jetstream(timeout=_TIMEOUT_S, publish_async_max_pending=2 * _PIPELINE)
        self._pull: Any = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def prepare(self, subjects: list[str], **options: Any) -> None:
        """Makes the stream, with these options beside what the bench needs, and its consumer of `SUBJECT`."""
        from nats.js import api

        await self._stream.add_stream(
            api.StreamConfig(
                name=_STREAM, subjects=subjects, storage=api.StorageType.FILE,
                retention=api.RetentionPolicy.WORK_QUEUE, **options,
            )
        )  # fmt: skip
        await self._stream.pull_subscribe(
            SUBJECT, _CONSUMER, config=api.ConsumerConfig(max_ack_pending=-1, ack_wait=600)
        )

    def publish(self, body: bytes) -> None:
        self.run(self._stream.publish(SUBJECT, body))

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        self.run(self._publish_all(bodies))

    async def _publish_all(self, bodies: Sequence[bytes]) -> None:
        for first in range(0, len(bodies), _PIPELINE):
            part = bodies[first : first + _PIPELINE]
            await asyncio.gather(*[await self._stream.publish_async(SUBJECT, body) for body in part])

    def drain(self, limit: int, handle: Handle) -> int:
        return self.run(self._fetch(limit, handle, 0.5))

    def receive(self, handle: Handle, timeout_s: float) -> int:
        return self.run(self._fetch(1, handle, timeout_s))

    async def _fetch(self, limit: int, handle: Handle, timeout_s: float) -> int:
        from nats.errors import TimeoutError as NothingError

        if self._pull is None:
            self._pull = await self._stream.pull_subscribe_bind(_CONSUMER, _STREAM)
        try:
            messages = await self._pull.fetch(limit, timeout=timeout_s)
        except (NothingError, asyncio.TimeoutError):  # it is the one or the other
            return 0
        for message in messages:
            handle(message.data)
            await message.ack()
        return len(messages)

    def close(self) -> None:
        # Not drain(): with a pull subscription that only ends when its time is up.
        self.run(self._client.flush())
        self.run(self._client.close())
        self._loop.close()
