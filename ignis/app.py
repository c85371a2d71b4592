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

from ignis.config import (
    ConsumerSettings,
    LeaderSettings,
    PublisherSettings,
    RefresherSettings,
    SweeperSettings,
    load_file,
    resolve,
)
from ignis.consumer import Consumer
from ignis.errors import ConfigError, IgnisError, QueueMismatchError
from ignis.handler import Middleware
from ignis.hooks import AfterHandling, AfterPublish, Hooks
from ignis.leader import Deciders, Leadership
from ignis.magazine import SIDELINE_SUFFIX, Magazine, MagazineManager
from ignis.message import BodyCodec
from ignis.native import pool_classes
from ignis.publisher import pending_messages
from ignis.queue import Queue
from ignis.refresher import REMOVED, Refresher, RefreshResult
from ignis.storage import open_store
from ignis.sweeper import Sweeper, SweepResult
from ignis.template import HandlerTemplate

if TYPE_CHECKING:
    from ignis.storage.base import Store

__all__ = ["Ignis"]

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("ignis.app")


class Ignis:
    """An application on one store. Thread-safe. Nothing is opened before first use.

    Args:
        url: ``embedded:///path``, ``memory://``; default: the argument, then ``IGNIS_URL``, then ``url`` of the file.
        client_id: the application's name; queues of different applications on one store do not meet.
        farm_id: the deployment's name.
        config: path of a TOML settings file (default ``IGNIS_CONFIG``).
        resources: a mapping that every handler finds as ``ctx.resources``.
        consumer, sweeper, refresher, publisher, leader: settings of these components (see ``docs/settings.md``).
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
        refresher: Mapping[str, Any] | None = None,
        publisher: Mapping[str, Any] | None = None,
        leader: Mapping[str, Any] | None = None,
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
        self.refresher = Refresher(self, resolve(RefresherSettings, refresher or {}, self.file), clock)
        self.hooks = Hooks()
        self.templates: list[HandlerTemplate] = []
        self.leader_settings = resolve(LeaderSettings, leader or {}, self.file)
        self._publisher_given = dict(publisher or {})
        self.store_options = dict(store or {})
        self._clock = clock
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._magazines: MagazineManager | None = None
        self._codecs: dict[tuple[Any, str], BodyCodec[Any]] = {}
        self._queues: dict[str, Queue[Any]] = {}
        self._sweeper: Sweeper | None = None
        self._deciders: Deciders | None = None
        self._running = False
        self.paused = False
        self.ready = False
        """Everything that `start` starts runs."""
        self.drained = True
        """Nothing was left claimed by the last `stop`."""
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
                        self.url, client_id=self.client_id, farm_id=self.farm_id, **self.store_options
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

    def handler(
        self, pattern: str = "", type: Any = None, *, handler_type: str = "", **options: Any
    ) -> Callable[[F], F]:
        """Decorator: registers a handler for queues that are found in the store, now or later, without a restart.

        Args:
            pattern: of queue names, as in a shell: ``orders.*``; empty = none.
            type: of the messages, see `queue`.
            handler_type: takes queues that name this handler type too (default: the function's name).
            options: see ``queue.handler``; without ``concurrency`` each queue's stored one counts.

        What several fit is taken by the first registered; a queue with a handler of its own keeps that. Found by
        the refresher while the application runs.
        """

        def register(fn: F) -> F:
            self.templates.append(
                HandlerTemplate(self, fn, pattern=pattern, handler_type=handler_type, type=type, options=options)
            )
            return fn

        return register

    def discard(self, queue: Queue[Any]) -> None:
        """Forgets a queue object that was made for a found queue."""
        with self._lock:
            if self._queues.get(queue.name) is queue:
                del self._queues[queue.name]

    def after_publish(self, fn: AfterPublish) -> AfterPublish:
        """Decorator: ``fn(queue, count)`` after so many messages became durable, in the thread that stored them. What it
        raises is logged."""
        self.hooks.add_after_publish(fn)
        return fn

    def after_handling(self, fn: AfterHandling) -> AfterHandling:
        """Decorator: ``fn(queue, handled, sidelined)`` after a batch of acknowledgements was stored. What it raises is
        logged."""
        self.hooks.add_after_handling(fn)
        return fn

    def publisher_settings(self, given: Mapping[str, Any]) -> PublisherSettings:
        return resolve(PublisherSettings, {**self._publisher_given, **given}, self.file)

    def sweeper(self) -> Sweeper:
        """The sweeper of this store; sweeps only while this instance leads."""
        with self._lock:
            if self._sweeper is None:
                self._sweeper = Sweeper(self.store, self.leader("sweeper"), self.sweeper_settings, self._clock)
            return self._sweeper

    def sweep_queue(self, name: str) -> SweepResult:
        """Sweeps one queue now, by hand; see `Sweeper.sweep_queue`. Raises LockHeldError when another instance leads."""
        return self.sweeper().sweep_queue(name)

    def leader(self, scope: str = "sweeper") -> Leadership:
        """This instance's candidate to lead a scope; the same object for the same scope. Raises ConfigError."""
        with self._lock:
            if self._deciders is None:
                self._deciders = Deciders(self.store, self.leader_settings)
            return self._deciders.of(scope)

    # -- life

    def start(self, queues: Iterable[str] | None = None) -> None:
        """Starts consumers and shovels of the queues that have a handler (or of those named), the sweeper and the
        refresher. Returns at once.

        Raises ConfigError when there is nothing to run or a named queue has no handler.
        """
        with self._lock:
            chosen = [queue for queue in self._queues.values() if queue.spec is not None]
            if queues is not None:
                wanted = set(queues)
                missing = wanted - {queue.name for queue in chosen}
                if missing and not self.templates:
                    raise ConfigError(f"no handler is registered for {', '.join(sorted(missing))}")
                chosen = [queue for queue in chosen if queue.name in wanted]
            if not chosen and not self.templates:
                raise ConfigError("no queue of this application has a handler")
            self._failure = None
            self._running = True
            try:
                for queue in chosen:
                    queue.start()
                self.sweeper().start()
                self.refresher.start(None if queues is None else wanted)
            except BaseException:
                self.stop(0)
                raise
        if self.templates:
            self.refresh()  # the queues that are there already do not wait for the first pass
        self.ready = True

    def refresh(self) -> RefreshResult:
        """A pass of the refresher now: discovers, expires, reconciles. Raises the store's error when it cannot be asked."""
        return self.refresher.run_once()

    def pause(self) -> None:
        """Stops claiming on all queues here, those found later included; what was claimed is finished. See `quiet`."""
        self.paused = True
        for queue in self.queues():
            if queue.consumer is not None:
                queue.consumer.pause()

    def resume(self) -> None:
        """Claims again after `pause`."""
        self.paused = False
        for queue in self.queues():
            if queue.consumer is not None:
                queue.consumer.resume()

    @property
    def quiet(self) -> bool:
        """Paused, with nothing claimed and every outcome stored: this instance may go without touching any message."""
        consumers = [queue.consumer for queue in self.queues()]
        return self.paused and all(one is None or one.quiet for one in consumers)

    def stop(self, timeout: float | None = None) -> bool:
        """Stops gracefully: running handlers finish, what was claimed and not started goes back, acknowledgements are
        stored. Returns True when nothing was left claimed. Idempotent. Not to be called by a handler, which would wait
        for itself: see `request_stop`.
        """
        timeout = self.consumer_settings.stop_timeout_s if timeout is None else timeout
        # Not under the application's lock: a handler that is to finish may want a queue of this application.
        with self._stop_lock:
            self._running = self.ready = False
            # First: it would start again what is stopped here.
            self.refresher.stop(timeout)
            queues = self.queues()
            clean: list[bool] = []
            threads = [threading.Thread(target=lambda one=one: clean.append(one.stop(timeout))) for one in queues]
            for thread in threads:
                thread.start()
            if self._sweeper is not None:
                self._sweeper.stop(timeout)
            for thread in threads:
                thread.join(timeout + 10)
            self.drained = len(clean) == len(queues) and all(clean)
            return self.drained

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
        """Figures of the store, of every queue of this process, what the refresher knows of all queues, and of the sweeper
        and the part in elections, once there are any."""
        states = self.refresher.states
        figures: dict[str, Any] = {
            "store": self.store.stats(),
            "queues": [queue.stats() for queue in self.queues() if states.get(queue.name) != REMOVED],
            "refresher": self.refresher.stats(),
            "ring_depth": pending_messages(),
            "pool": pool_classes(),
        }
        if self._sweeper is not None:
            figures["sweeper"] = self._sweeper.stats()
        if self._deciders is not None:
            figures["leaders"] = {scope: one.stats() for scope, one in self._deciders.known().items()}
        return figures

    def close(self, timeout: float | None = None) -> None:
        """Stops, then closes the store. Close publishers before. Idempotent."""
        if self._running or self._sweeper is not None:
            self.stop(timeout)
        with self._lock:
            store, self._store, self._magazines, self._sweeper = self._store, None, None, None
            deciders, self._deciders = self._deciders, None
            self._queues.clear()
            if deciders is not None:
                deciders.close()
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
