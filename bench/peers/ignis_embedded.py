"""ignis on its embedded store, through the public interface only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.base import SYNC, Handle, MissingError, Peer, Session

QUEUE = "bench"
SHARDS = 32
URL_VARIABLE = "IGNIS_BENCH_URL"
DURABILITY_VARIABLE = "IGNIS_BENCH_DURABILITY"
_STOP_TIMEOUT_S = 30.0


class IgnisEmbedded(Peer):
    """``via`` is how batches are published ("publish_many", "publisher"), ``pool`` where handlers run, ``spin_us`` how
    long a consumer looks at an empty queue before it sleeps."""

    how_publish = "queue.publish"
    can_listen = True
    can_delay = True

    def __init__(
        self,
        durability: str = SYNC,
        *,
        via: str = "publish_many",
        pool: str = "thread",
        concurrency: int = 1,
        spin_us: int = 0,
    ) -> None:
        self.durability = durability
        self.via, self.pool, self.concurrency, self.spin_us = via, pool, concurrency, spin_us
        words = ["publisher"] if via == "publisher" else []
        words += {"process": ["process pool"], "async": ["coroutines"]}.get(pool, [])
        words += [f"spin_us={spin_us}"] if spin_us else []
        self.name = ", ".join(["ignis", *words])
        self.how_batch = (
            "queue.publisher(): send each, flush at the end of the run" if via == "publisher" else "queue.publish_many"
        )
        self.how_drain = f"handler, pool={pool}, concurrency={concurrency}; ack: batched delete, committed in the store"
        self.how_delay = f"queue.publish(delay=); handler, pool={pool}"
        self.how_listen = f"{'publisher.send' if via == 'publisher' else 'queue.publish'}; handler, pool={pool}"

    def require(self) -> None:
        try:
            import ignis  # noqa: F401
        except ImportError as exc:
            raise MissingError(f"MISSING: ignis ({exc}); run: make build") from exc

    def start(self, directory: Path) -> None:
        self.url = f"embedded://{directory / 'ignis'}"

    def session(self) -> IgnisSession:
        return IgnisSession(self)


class IgnisSession(Session):
    def __init__(self, peer: IgnisEmbedded) -> None:
        from ignis import Ignis

        self._peer = peer
        self._handle: Handle = len
        if peer.pool == "process":
            # Worker processes import the module that registers the handler and find the queue there.
            os.environ[URL_VARIABLE], os.environ[DURABILITY_VARIABLE] = peer.url, peer.durability
            from bench.peers import ignis_handlers

            self.app: Any = ignis_handlers.app
            self.queue: Any = ignis_handlers.queue
        else:
            self.app = Ignis(peer.url, consumer={"spin_us": peer.spin_us})
            self.queue = self.app.queue(QUEUE, bytes, shards=SHARDS, durability=peer.durability)
            handler = self._on_message_async if peer.pool == "async" else self._on_message
            self.queue.handler(concurrency=peer.concurrency, pool=peer.pool)(handler)
        self.queue.open()
        self._publisher: Any = self.queue.publisher() if peer.via == "publisher" else None

    def _on_message(self, body: bytes, ctx: Any) -> None:
        self._handle(body)

    async def _on_message_async(self, body: bytes, ctx: Any) -> None:
        self._handle(body)

    def publish(self, body: bytes) -> None:
        if self._publisher is not None:
            self._publisher.send(body)
        else:
            self.queue.publish(body)

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

    def drain_all(self, count: int, batch: int, handle: Handle, deadline: float) -> int:
        """Runs the consumer until the store holds neither waiting nor claimed messages: all acknowledgements stored."""
        self._handle = handle
        before = self.waiting()
        self.app.start()
        try:
            # The consumer counts what it has retired, after the store has said so. Asking the store itself that often
            # would steal from what is measured.
            while self.queue.consumer.counts.handled < before and time.monotonic() < deadline:
                time.sleep(0.002)
            self.drained_at = time.monotonic()
            left = self.waiting()
        finally:
            self.app.stop(_STOP_TIMEOUT_S)
        return before - left

    def waiting(self) -> int:
        """Messages that are not acknowledged: waiting or claimed."""
        return int(self.queue.main.pending() + self.queue.main.in_flight())

    def listen(self, count: int, handle: Handle, deadline: float) -> int:
        done, finished = 0, threading.Event()

        def counting(body: bytes) -> None:
            nonlocal done
            handle(body)
            done += 1
            if done == count:
                finished.set()

        self._handle = counting
        self.app.start()
        finished.wait(max(0.0, deadline - time.monotonic()))
        self.app.stop(_STOP_TIMEOUT_S)
        return done

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self.app.close()
