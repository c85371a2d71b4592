"""RabbitMQ with a quorum queue and publisher confirms: confirmed = flushed to the write-ahead log of (here) one node."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from bench.peers.base import SYNC, Handle, Peer, Session, require_module, require_program
from bench.peers.ports import answers, free_port
from bench.processes import Server

_QUEUE = "bench"
_PIPELINE = 1_000
_PREFETCH = 2_000
_TIMEOUT_S = 60.0
_PROGRAMS = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin")

T = TypeVar("T")


class RabbitMq(Peer):
    name = "RabbitMQ, quorum, confirms"
    durability = SYNC
    how_publish = "persistent publish, confirm awaited (aio-pika)"
    how_batch = f"persistent publish, {_PIPELINE:,} under way, all confirms awaited"
    how_drain = f"consume, prefetch {_PREFETCH:,}; ack: one per batch (multiple)"
    how_listen = "consume; ack"
    can_listen = True

    def require(self) -> None:
        require_program("rabbitmq-server", "rabbitmq-server", _PROGRAMS)
        require_module("aio_pika", "aio-pika")

    def start(self, directory: Path) -> None:
        self.port, self._epmd_port, dist = free_port(), free_port(), free_port()
        config = directory / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.local = 127.0.0.1:{self.port}\nlog.file.level = error\n", "utf-8")
        (directory / "plugins").write_text("[].\n", "utf-8")
        settings = {
            "HOME": directory,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_DIST_PORT": dist,
            "RABBITMQ_CONFIG_FILE": config,
            "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "plugins",
            "RABBITMQ_MNESIA_BASE": directory / "mnesia",
            "RABBITMQ_LOG_BASE": directory / "log",
            "RABBITMQ_PID_FILE": directory / "pid",
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        # Not the program on the path: Debian's changes to a user of its own, who may not write here.
        direct = Path(_PROGRAMS[0]) / "rabbitmq-server"
        program = str(direct) if direct.exists() else require_program("rabbitmq-server", "rabbitmq-server", _PROGRAMS)
        command = ["env", *[f"{name}={value}" for name, value in settings.items()], program]
        self._server = Server(command, directory / "rabbitmq.log")
        self._server.wait_ready(lambda: answers(self.port), 120.0)
        session = _RabbitSession(self.port)
        session.close()

    def stop(self) -> None:
        self._server.stop()
        # The port mapper is a daemon of its own, which the server started on a port of ours.
        epmd = shutil.which("epmd")
        if epmd:
            with suppress(subprocess.SubprocessError):
                subprocess.run(
                    [epmd, "-port", str(self._epmd_port), "-kill"], check=False, capture_output=True, timeout=10
                )

    def session(self) -> Session:
        return _RabbitSession(self.port)


class _RabbitSession(Session):
    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._consuming = False
        self._run(self._open(port))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _open(self, port: int) -> None:
        import aio_pika

        self._connection: Any = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/", timeout=_TIMEOUT_S)
        self._channel: Any = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=_PREFETCH)
        self._queue: Any = await self._channel.declare_queue(
            _QUEUE, durable=True, arguments={"x-queue-type": "quorum"}, timeout=_TIMEOUT_S
        )
        self._kind: Any = aio_pika.Message
        self._mode = aio_pika.DeliveryMode.PERSISTENT

    def publish(self, body: bytes) -> None:
        self._run(self._publish_all([body]))

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        self._run(self._publish_all(bodies))

    async def _publish_all(self, bodies: Sequence[bytes]) -> None:
        send = self._channel.default_exchange.publish
        for first in range(0, len(bodies), _PIPELINE):
            part = bodies[first : first + _PIPELINE]
            await asyncio.gather(*[send(self._kind(body, delivery_mode=self._mode), _QUEUE) for body in part])

    def drain(self, limit: int, handle: Handle) -> int:
        return self._run(self._take(limit, handle, 1.0))

    def receive(self, handle: Handle, timeout_s: float) -> int:
        return self._run(self._take(100, handle, timeout_s))

    async def _take(self, limit: int, handle: Handle, timeout_s: float) -> int:
        if not self._consuming:
            await self._queue.consume(self._arrived.put)
            self._consuming = True
        try:
            last = await asyncio.wait_for(self._arrived.get(), timeout_s)
        except asyncio.TimeoutError:
            return 0
        handle(last.body)
        count = 1
        while count < limit and not self._arrived.empty():
            last = self._arrived.get_nowait()
            handle(last.body)
            count += 1
        await last.ack(multiple=True)
        return count

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._connection.close()
        # The library's own tasks end a moment after its connection, and complain when the loop is gone by then.
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others, timeout=1.0)
