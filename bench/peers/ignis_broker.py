"""ignis behind its broker: the embedded store in one process, clients over TCP."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.base import SYNC, Handle, Peer, Session, require_module
from bench.peers.ignis_embedded import QUEUE, SHARDS
from bench.peers.ports import answers, free_port
from bench.processes import Server

_STOP_TIMEOUT_S = 30.0
_CREDIT = 1_024
"""Messages that a subscription may hold."""
REPOSITORY = Path(__file__).resolve().parents[2]


class IgnisBroker(Peer):
    """``via`` is how batches are published, and how a backlog is consumed: ``publish_many`` and pulls of a batch each, or
    ``publisher`` and a subscription, which is sent messages while the last ones are handled."""

    how_publish = "queue.publish"
    how_drain = "client.consume n; ack: one per batch, not waited for; all answers settled at the end"
    how_listen = "subscription; ack: per delivery, not waited for; all answers settled at the end"
    can_listen = True
    can_delay = True
    how_delay = "queue.publish(delay=); subscription"

    def __init__(self, durability: str = SYNC, *, via: str = "publish_many", settings: Sequence[str] = ()) -> None:
        self.durability = durability
        self.via = via
        self.settings = tuple(settings)
        self.name = "ignis broker" if via == "publish_many" else "ignis broker, publisher and subscription"
        if via == "publisher":
            self.how_drain = (
                f"subscription of {_CREDIT:,}; ack: per delivery, not waited for; all answers settled at the end"
            )
        self.how_batch = (
            "queue.publisher(): send each, flush at the end of the run" if via == "publisher" else "queue.publish_many"
        )

    def require(self) -> None:
        require_module("uvloop", "uvloop")

    def start(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"ignis://127.0.0.1:{self.port}"
        command = [
            "env", *self.settings, sys.executable, "-m", "ignis", "broker", "--bind", f"127.0.0.1:{self.port}",
            "--url", f"embedded://{directory / 'ignis'}", "--log-level", "warning",
        ]  # fmt: skip
        self._server = Server(command, directory / "broker.log", cwd=REPOSITORY)
        self._server.wait_ready(lambda: answers(self.port))
        self.session().close()  # makes the queue

    def stop(self) -> None:
        self._server.stop()

    @property
    def server_pid(self) -> int:
        """The broker's process: ``env`` becomes it."""
        return self._server.pid

    def session(self) -> BrokerSession:
        return BrokerSession(self)


class IgnisBrokerHandler(IgnisBroker):
    """The same for who registers a handler with ``ignis://``, and subscribes to nothing.

    Args:
        pool: ``thread`` or ``async``.
    """

    def __init__(self, durability: str = SYNC, pool: str = "thread") -> None:
        super().__init__(durability)
        self.pool = pool
        self.name = "ignis broker, coroutine" if pool == "async" else "ignis broker, handler"
        self.how_listen = f"handler, pool={pool}, over ignis://"

    def session(self) -> HandlerSession:
        return HandlerSession(self, self.pool)


class BrokerSession(Session):
    def __init__(self, peer: IgnisBroker) -> None:
        from ignis import Ignis
        from ignis.broker.client.requests import pointers_of
        from ignis.native import Record

        self.app: Any = Ignis(peer.url)
        self.queue: Any = self.app.queue(QUEUE, bytes, shards=SHARDS, durability=peer.durability)
        self.queue.open()
        self._client: Any = self.app.store.client
        self._record = Record
        self._pointers_of = pointers_of
        self._publisher: Any = self.queue.publisher() if peer.via == "publisher" else None
        self.publish = self.queue.publish
        self._ends = contextlib.ExitStack()
        self._subscription: Any = None

    def publish_later(self, body: bytes, delay_s: float) -> None:
        self.queue.publish(body, delay=delay_s)

    def publish_batch(self, bodies: Sequence[bytes]) -> None:
        if self._publisher is None:
            self.queue.publish_many(bodies)
            return
        send = self._publisher.send
        for body in bodies:
            send(body)

    def flush(self) -> None:
        if self._publisher is not None:
            self._publisher.flush()

    def drain(self, limit: int, handle: Handle) -> int:
        if self._publisher is not None:
            return self._drain_subscribed(handle)
        found = self._client.consume(QUEUE, limit, 0.5)
        self._handled(found, handle)
        if found.claims:
            self._client.ack_nowait(QUEUE, self._pointers_of(found))
            return int(found.total())
        self._client.wait_acks()
        return 0

    def _drain_subscribed(self, handle: Handle) -> int:
        if self._subscription is None:  # not before: who subscribes is sent messages while it still publishes
            self._subscription = self._ends.enter_context(self._client.subscribe(QUEUE, _CREDIT))
        found = self._subscription.receive(0.5)
        if found is None:
            self._subscription.wait_acks()
            return 0
        self._handled(found, handle)
        self._subscription.ack_nowait(self._pointers_of(found))
        return int(found.total())

    def _handled(self, found: Any, handle: Handle) -> None:
        record = self._record
        for claim in found.claims:
            for data in claim.records:
                handle(record(data).body)

    def listen(self, count: int, handle: Handle, deadline: float) -> int:
        done = 0
        with self._client.subscribe(QUEUE, _CREDIT) as subscription:
            while done < count and time.monotonic() < deadline:
                found = subscription.receive(1.0)
                if found is not None:
                    self._handled(found, handle)
                    subscription.ack_nowait(self._pointers_of(found))
                    done += found.total()
            subscription.wait_acks()
        return done

    def close(self) -> None:
        self._ends.close()
        if self._publisher is not None:
            self._publisher.close()
        self.app.close()


class HandlerSession(BrokerSession):
    def __init__(self, peer: IgnisBroker, pool: str) -> None:
        super().__init__(peer)
        self._pool = pool

    def listen(self, count: int, handle: Handle, deadline: float) -> int:
        done, finished = 0, threading.Event()

        def counting(body: bytes) -> None:
            nonlocal done
            handle(body)
            done += 1
            if done == count:
                finished.set()

        async def awaited(body: bytes) -> None:
            counting(body)

        self.queue.handler(concurrency=1)(awaited if self._pool == "async" else counting)
        self.app.start()
        finished.wait(max(0.0, deadline - time.monotonic()))
        self.app.stop(_STOP_TIMEOUT_S)
        return done
