"""The object a user makes: it opens the store, makes queues, and runs what is registered on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue as queues_
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ignis.config import ConsumerSettings, PublisherSettings, SweeperSettings, load_file, resolve
from ignis.consumer import Consumer
from ignis.errors import ConfigError, IgnisError, QueueMismatchError
from ignis.handler import Middleware
from ignis.leader import make_leader
from ignis.magazine import SIDELINE_SUFFIX, Magazine, MagazineManager
from ignis.message import BodyCodec
from ignis.queue import Queue
from ignis.storage import open_store
from ignis.sweeper import Sweeper

if TYPE_CHECKING:
    from ignis.storage.base import Store

__all__ = ["Ignis"]

M = TypeVar("M")
log = logging.getLogger("ignis.app")


class Ignis:
    """An application on one store. Thread-safe. Nothing is opened before first use.

    Args:
        url: ``embedded:///path``, ``memory://``; default: the argument, then ``IGNIS_URL``, then ``url`` of the file.
        client_id: the application's name; queues of different applications on one store do not meet.
        farm_id: the deployment's name.
        config: path of a TOML settings file (default ``IGNIS_CONFIG``).
        resources: a mapping that every handler finds as ``ctx.resources``.
        consumer, sweeper, publisher: settings of these components (see ``docs/settings.md``).
        store: options of the store, e.g. ``{"sync_interval_ms": 200}``.
        clock: seconds since the epoch, for the sweeper's thresholds; injectable for tests.

    Not usable in a child after ``fork`` (ForkedHandleError): make a new one there.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client_id: str = "ignis",
        farm_id: str = "local",
        config: str | os.PathLike[str] | None = None,
        resources: Mapping[str, Any] | None = None,
        consumer: Mapping[str, Any] | None = None,
        sweeper: Mapping[str, Any] | None = None,
        publisher: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.file = load_file(config)
        self.url = url or os.environ.get("IGNIS_URL") or self.file.get("url")
        self.client_id = client_id
        self.farm_id = farm_id
        self.resources: Mapping[str, Any] = {} if resources is None else resources
        self.layers: list[Middleware] = []
        self.consumer_settings = resolve(ConsumerSettings, consumer or {}, self.file)
        self.sweeper_settings = resolve(SweeperSettings, sweeper or {}, self.file)
        self._publisher_given = dict(publisher or {})
        self._store_options = dict(store or {})
        self._clock = clock
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._magazines: MagazineManager | None = None
        self._codecs: dict[tuple[Any, str], BodyCodec[Any]] = {}
        self._queues: dict[str, Queue[Any]] = {}
        self._sweeper: Sweeper | None = None
        self._running = False
        self._stop_lock = threading.Lock()
        # A SimpleQueue, because a signal handler may put into it whatever lock the interrupted code holds; an Event
        # set from there can wait for itself.
        self._wake: queues_.SimpleQueue[None] = queues_.SimpleQueue()
        self._stop_asked = False
        self._signals_seen = 0
        self._failure: BaseException | None = None

    # -- parts

    @property
    def store(self) -> Store:
        """The opened store. Raises StoreUnreachableError, StoreFormatError, ConfigError."""
        if self._store is None:
            with self._lock:
                if self._store is None:
                    if not self.url:
                        raise ConfigError("no store: give a URL such as embedded:///var/lib/orders, or set IGNIS_URL")
                    self._store = open_store(
                        self.url, client_id=self.client_id, farm_id=self.farm_id, **self._store_options
                    )
        return self._store

    @property
    def magazines(self) -> MagazineManager:
        if self._magazines is None:
            with self._lock:
                if self._magazines is None:
                    self._magazines = MagazineManager(self.store)
        return self._magazines

    @overload
    def queue(self, name: str, type: type[M], **settings: Any) -> Queue[M]: ...
    @overload
    def queue(self, name: str, type: None = None, **settings: Any) -> Queue[Any]: ...
    def queue(self, name: str, type: Any = None, **settings: Any) -> Queue[Any]:
        """The queue of that name; the same object for the same name.

        Args:
            name: ``[A-Za-z0-9._-]{1,128}``.
            type: of its messages: ``bytes``, ``str``, ``dict``, a ``msgspec.Struct``, a dataclass, ...; None = any JSON
                value, or what the stored queue has.
            settings: any of ``[queue]`` in ``docs/settings.md``: ``shards``, ``message_expiry="2d"``,
                ``stuck_after="20m"``, ``durability``, ...

        Raises:
            InvalidNameError, ConfigError; QueueMismatchError when asked for again with another type or settings.
        """
        with self._lock:
            known = self._queues.get(name)
            if known is None:
                known = self._queues[name] = Queue(self, name, type, settings)
            elif (type is not None and type is not known.type) or settings:
                fresh: Queue[Any] = Queue(self, name, type if type is not None else known.type, settings)
                if fresh.type is not known.type or (settings and fresh.settings != known.settings):
                    raise QueueMismatchError(f"queue {name!r} was made before with another type or other settings")
            return known

    def queues(self) -> list[Queue[Any]]:
        """The queues made in this process."""
        return list(self._queues.values())

    def magazine(
        self,
        name: str,
        type: Any = None,
        *,
        shards: int | None = None,
        ttl_s: float | None = 172_800,
        durability: str | None = None,
        codec: str = "auto",
        max_message_bytes: int = 1 << 20,
    ) -> Magazine[Any]:
        """The raw magazine of that name: load, fire, reload, delete, peek, metadata.

        Args:
            name: of a queue: its main magazine; with ``_SIDELINE`` behind it, its sideline; any other: one of its own.
            type, codec: as for `queue`.
            shards, durability: None = those of the queue of that name, or 32 and ``sync``.
            ttl_s: of what is loaded, in seconds; None = never expires.
            max_message_bytes: limit of one message.
        """
        if shards is None or durability is None:
            record = self.store.queues.get(name.removesuffix(SIDELINE_SUFFIX))
            shards = shards or (record.shards if record is not None else 32)
            durability = durability or (record.durability if record is not None else "sync")
        with self._lock:
            body_codec = self._codecs.setdefault((type, codec), BodyCodec(type, codec))
        return self.magazines.get(
            name, body_codec, shards=shards, ttl_s=ttl_s, durability=durability, max_message_bytes=max_message_bytes
        )

    def middleware(self, layer: Middleware) -> Middleware:
        """Decorator: ``layer(ctx, call_next)`` around every handler; the first registered is the outermost."""
        self.layers.append(layer)
        return layer

    def publisher_settings(self, given: Mapping[str, Any]) -> PublisherSettings:
        return resolve(PublisherSettings, {**self._publisher_given, **given}, self.file)

    def sweeper(self) -> Sweeper:
        """The sweeper of this store; sweeps only while this instance leads."""
        with self._lock:
            if self._sweeper is None:
                leader = make_leader(self.store, "sweeper")
                self._sweeper = Sweeper(self.store, leader, self.sweeper_settings, self._clock)
            return self._sweeper

    # -- life

    def start(self, queues: Iterable[str] | None = None) -> None:
        """Starts consumers and shovels of the queues that have a handler (or of those named), and the sweeper.
        Returns at once.

        Raises ConfigError when there is nothing to run or a named queue has no handler.
        """
        with self._lock:
            chosen = [queue for queue in self._queues.values() if queue.spec is not None]
            if queues is not None:
                wanted = set(queues)
                missing = wanted - {queue.name for queue in chosen}
                if missing:
                    raise ConfigError(f"no handler is registered for {', '.join(sorted(missing))}")
                chosen = [queue for queue in chosen if queue.name in wanted]
            if not chosen:
                raise ConfigError("no queue of this application has a handler")
            self._failure = None
            self._running = True
            try:
                for queue in chosen:
                    queue.open()
                    if queue.consumer is None and queue.spec is not None:
                        queue.consumer = Consumer(queue, queue.spec, self.consumer_settings)
                        queue.consumer.start()
                    queue.shovel.start()
                self.sweeper().start()
            except BaseException:
                self.stop(0)
                raise

    def stop(self, timeout: float | None = None) -> bool:
        """Stops gracefully: running handlers finish, what was claimed and not started goes back, acknowledgements are
        stored. Returns True when nothing was left claimed. Idempotent. Not to be called by a handler, which would wait
        for itself: see `request_stop`.
        """
        timeout = self.consumer_settings.stop_timeout_s if timeout is None else timeout
        # Not under the application's lock: a handler that is to finish may want a queue of this application.
        with self._stop_lock:
            queues = self.queues()
            consumers = [queue.consumer for queue in queues if queue.consumer is not None]
            clean: list[bool] = []
            threads = [threading.Thread(target=lambda c=one: clean.append(c.stop(timeout))) for one in consumers]
            for thread in threads:
                thread.start()
            for queue in queues:
                queue.shovel.stop(timeout)
            if self._sweeper is not None:
                self._sweeper.stop(timeout)
            for thread in threads:
                thread.join(timeout + 10)
            for queue in queues:
                queue.consumer = None
            self._running = False
            return len(clean) == len(consumers) and all(clean)

    def run(self, queues: Iterable[str] | None = None, *, stop_timeout: float | None = None) -> None:
        """`start`, then blocks until SIGTERM or SIGINT (or `request_stop`), then `stop`.

        A second signal ends the process at once with status 130: what was claimed is left to the sweeper.

        Raises the error of a consumer that failed (the store broke), after stopping the others.
        """
        self._stop_asked, self._signals_seen = False, 0
        with _signals(self._on_signal):
            self.start(queues)
            while not self._stop_asked:
                with contextlib.suppress(queues_.Empty):
                    self._wake.get(timeout=0.5)
            log.info("stopping; a second signal ends at once")
            self.stop(stop_timeout)
        if self._failure is not None:
            raise self._failure

    def request_stop(self) -> None:
        """Makes `run` return, from any thread or a handler."""
        self._stop_asked = True
        self._wake.put(None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals_seen += 1
        if self._signals_seen > 1:
            for queue in self.queues():
                if queue.consumer is not None:
                    queue.consumer.kill()
            os._exit(130)
        self.request_stop()

    def consumer_failed(self, consumer: Consumer, exc: BaseException) -> None:
        """Called by a consumer that cannot go on."""
        self._failure = exc
        self.request_stop()

    @property
    def running(self) -> bool:
        return self._running

    def stats(self) -> dict[str, Any]:
        """Figures of the store and of every queue of this process."""
        return {"store": self.store.stats(), "queues": [queue.stats() for queue in self.queues()]}

    def close(self, timeout: float | None = None) -> None:
        """Stops, then closes the store. Close publishers before. Idempotent."""
        if self._running or self._sweeper is not None:
            self.stop(timeout)
        with self._lock:
            store, self._store, self._magazines, self._sweeper = self._store, None, None, None
            self._queues.clear()
            if store is not None:
                store.close()

    def close_quietly(self) -> None:
        """`close` for a process that ends anyway."""
        with contextlib.suppress(IgnisError, OSError):
            self.close()

    def __enter__(self) -> Ignis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Ignis:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"<Ignis {self.url!r} {self.farm_id}/{self.client_id}>"


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Any:
    """Installs the handler for SIGTERM and SIGINT while in the main thread; elsewhere nothing can be installed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
