"""The object a user makes: it opens the store, makes queues, and runs what is registered on them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, SupportsIndex, TypeVar, overload

from ignis.app_running import AppRunning
from ignis.app_schedules import AppSchedules
from ignis.app_settings import AppSettings, refuse_arguments
from ignis.app_store import AppStore, open_app_store
from ignis.config import (
    check_name,
    check_queue_name,
    check_text,
    check_timeout,
)
from ignis.consumer import REMOVAL
from ignis.consumer.handler import Middleware
from ignis.consumer.handler_form import check_callable
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.context import AppContext
from ignis.control.redelivery import DeathWatch, take_back
from ignis.control.refresher import REMOVED, Refresher, RefreshResult
from ignis.control.scheduler import Scheduler
from ignis.control.sweeper import Sweeper, SweepResult
from ignis.errors import IgnisError, PermissionDeniedError, PublishOnlyError
from ignis.hooks import AfterHandling, AfterPublish, Hooks
from ignis.leader import Deciders, Leadership
from ignis.magazine import SIDELINE_SUFFIX, Magazine, MagazineManager
from ignis.native import pool_classes
from ignis.publisher import end_publishers, pending_messages
from ignis.queue import Queue
from ignis.queue_table import QueueTable
from ignis.raw_magazines import RawMagazines
from ignis.storage.base import Store
from ignis.tracing import open_tracing
from ignis.upkeep import Turns, in_thread
from ignis.urls import redacted

__all__ = ["Ignis"]

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])


def _figures_of(queue: Queue[Any]) -> dict[str, Any]:
    try:
        return queue.stats()
    except (PermissionDeniedError, PublishOnlyError):
        return queue.local_stats()


class Ignis(AppSettings):
    """An application on one store. It makes queues, and starts and stops what works on them.

    Thread-safe. Nothing is opened before first use.

    >>> with Ignis("memory://") as app:
    ...     orders = app.queue("orders", dict)
    ...     published = orders.publish({"id": 1})
    ...     orders.main.pending()
    1

    Args:
        url: the store, such as ``embedded:///path`` or ``memory://``; default ``IGNIS_URL``, then ``url`` of the settings file.
        client_id: the application's name; applications on one store do not see each other's queues.
        farm_id: the name of the farm: the deployment, such as a data centre.
        config: path of a TOML settings file; default ``IGNIS_CONFIG``.
        resources: a mapping that every handler finds as ``ctx.resources``.
        consumer, sweeper, refresher, publisher, leader, schedules, tracing: settings of these components, as in
            ``docs/settings.md``.
        store: options of the store, e.g. ``{"sync_interval_ms": 200}``.
        clock: a function that gives seconds since the epoch, for the sweeper's thresholds and the expiry of queues; or an
            `ignis.testing.ManualClock`, which then also drives the memory store, locks and schedules.

    In a child after ``fork`` every call raises ForkedHandleError: make a new object there.
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
        schedules: Mapping[str, Any] | None = None,
        tracing: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
        clock: Callable[[], float] | None = None,
        **others: NoReturn,
    ) -> None:
        if others:
            refuse_arguments(others)
        super().__init__(
            url=url, client_id=client_id, farm_id=farm_id, config=config, resources=resources, consumer=consumer,
            sweeper=sweeper, refresher=refresher, publisher=publisher, leader=leader, schedules=schedules, tracing=tracing,
            store=store, clock=clock,
        )  # fmt: skip
        self.layers: list[Middleware] = []
        self._tracing = open_tracing(self.tracing_settings)
        self.hooks = Hooks()
        self._opened = AppStore(
            lambda: open_app_store(
                self.url, self._url_source, self.client_id, self.farm_id, self.store_options, self.clock
            )
        )
        # Taken to start and to close. A thread that holds the lock of a queue never waits for it.
        self._lock = threading.RLock()
        self._sweeper: Sweeper | None = None
        self._deciders: Deciders | None = None
        self.context = self._make_context()
        """What queues need of this application."""
        self._table = QueueTable(self.context)
        self._raw_magazines = RawMagazines(self.context, self._table)
        self._scheduling = AppSchedules(
            self._table,
            lambda: self.store,
            self.leader,
            lambda: self.running,
            self.schedules_settings,
            lambda: self.clock,
            self.hooks,
            self._lock,
        )
        self.schedules = self._scheduling.stored
        """The stored schedules: messages that are published by the clock."""
        self.refresher = Refresher(
            self._table,
            lambda: self.store,
            lambda: self._running.running,
            self.refresher_settings,
            look_for_dead=DeathWatch(lambda: self.store).look if self.sweeper_settings.dead_owners else None,
            stop_timeout_s=self.consumer_settings.stop_timeout_s,
            schedule=lambda: self.clock,
            clock=clock,
        )
        self._running = AppRunning(
            self._table,
            lambda: self.refresher,
            self.sweeper,
            lambda: self._sweeper,
            self._scheduling,
            self._lock,
            self.consumer_settings.stop_timeout_s,
            lambda: self.store.check_consuming(),  # noqa: PLW0108 - the store is opened with its first use
            lambda name: self.store.queues.get(name),  # noqa: PLW0108 - as above
            self.hooks,
            self._opened.wait_no_longer,
        )

    def _make_context(self) -> AppContext:
        refresher = self.refresher_settings
        return AppContext(
            app=self,
            file=self.file,
            hooks=self.hooks,
            layers=self.layers,
            resources=self.resources,
            consumer_settings=self.consumer_settings,
            look_s=refresher.watch_s or refresher.interval_s,
            store=lambda: self.store,
            magazines=lambda: self.magazines,
            clock=lambda: self.clock,
            publisher_settings=self.publisher_settings,
            paused=lambda: self.paused,
            take_back=self._take_back,
            sweep=self.sweep_queue,
            start_late=self._start_late,
            failed=self._consumer_failed,
            close=self.close_quietly,
            turns=Turns(self.consumer_settings.max_running),
            tracing=self._tracing,
        )

    # -- parts

    @property
    def store(self) -> Store:
        """The opened store. Raises StoreUnreachableError, StoreFormatError, ConfigError."""
        return self._opened.store

    @property
    def magazines(self) -> MagazineManager:
        """The magazines of the store. Opens the store, and raises as `store` does."""
        return self._opened.magazines

    @overload
    def queue(self, name: str, type: type[M], **settings: Any) -> Queue[M]: ...
    @overload
    def queue(self, name: str, type: None = None, **settings: Any) -> Queue[Any]: ...
    def queue(self, name: str, type: Any = None, **settings: Any) -> Queue[Any]:
        """Returns the queue of that name, always the same object for the same name.

        Args:
            name: ``[A-Za-z0-9._-]{1,128}``.
            type: of its messages: ``bytes``, ``str``, ``dict``, a ``msgspec.Struct``, a dataclass, a pydantic model, ...;
                None = any JSON value, or the type of the stored queue.
            settings: any of ``[queue]`` in ``docs/settings.md``: ``shards``, ``message_expiry="2d"``,
                ``stuck_after="20m"``, ``durability``, ...

        Raises:
            InvalidNameError, ConfigError; QueueMismatchError when asked for again with another type or settings, unless
                the application was closed in between.
        """
        return self._table.get(name, type, settings)

    def queues(self) -> list[Queue[Any]]:
        """The queues made in this process."""
        return self._table.all()

    @property
    def templates(self) -> Sequence[HandlerTemplate]:
        """The handlers that `handler` registered for queues found in the store."""
        return self._table.templates

    def remove_queue(self, name: str, *, force: bool = False) -> None:
        """Removes a queue from the store: settings, messages and sideline. Durable on return. Thread-safe.

        Its consumer here is stopped; in other processes consumers end within ``refresher.watch_s``. From then on every
        publish raises QueueRemovedError at once, until `Queue.open` is called there or the queue is made again. So no
        message is acknowledged that nobody will handle. ``app.queue(name)`` gives a new object here, whose first use makes
        the queue anew.

        Args:
            name: of the queue.
            force: also when it holds messages, claimed ones included. Handlers that run go on; their outcomes are not
                stored.

        Raises:
            QueueNotFoundError: there is none. QueueNotEmptyError: it holds messages; nothing has changed.
            StoreUnreachableError.
        """
        name = check_queue_name(name)
        queue = self._table.find(name)
        consumer = None if queue is None else queue.consumer
        if consumer is not None:
            consumer.pause(REMOVAL)
        try:
            self.store.remove_queue(name, force=force)
        except BaseException:
            if consumer is not None:
                consumer.resume(REMOVAL)
            raise
        if queue is not None:
            queue.note_removed()
            queue.stop(self.consumer_settings.stop_timeout_s)
            self._table.discard(queue)
        for magazine in (name, name + SIDELINE_SUFFIX):
            self.magazines.forget(magazine)

    def magazine(
        self,
        name: str,
        type: Any = None,
        *,
        shards: int | None = None,
        ttl_s: float | Literal["queue"] | None = "queue",
        durability: str | None = None,
        codec: str = "auto",
        max_message_bytes: int | None = None,
        max_headers_bytes: int | None = None,
        strict: bool = True,
    ) -> Magazine[Any]:
        """Returns the raw magazine of that name, with load, fire, reload, delete, peek and metadata.

        Args:
            name: a queue's name for its main magazine; with ``_SIDELINE`` behind it for its sideline, which refuses loads; any
                other name for a magazine without a queue.
            type, codec, strict: as for `queue`; None and ``auto`` take those of the stored queue.
            shards: None = those of the stored magazine, else of the queue of that name, else 32.
            durability: None = that of the queue of that name, else ``sync``.
            ttl_s: the time to live of loaded messages in seconds, at most 365 days; None = they never expire. ``"queue"`` =
                the queue's ``message_expiry``, and without a queue that of a new queue of this store (embedded: never).
            max_message_bytes, max_headers_bytes: limits of one message's body and headers; None = the queue's, or 1 MiB and
                16 KiB.

        Raises:
            ConfigError, InvalidNameError: nothing has changed.
            QueueMismatchError: the magazine exists with other shards, and keeps them, or with another durability. Or the
                queue has another codec or type, or lower limits, so that its consumers could not read what is loaded.
            QueueNotFoundError: the sideline of a queue that is not stored.
            StoreFormatError: its entry in the store is damaged.
        """
        return self._raw_magazines.get(
            name, type, shards=shards, ttl_s=ttl_s, durability=durability, codec=codec,
            max_message_bytes=max_message_bytes, max_headers_bytes=max_headers_bytes, strict=strict,
        )  # fmt: skip

    def middleware(self, layer: Middleware) -> Middleware:
        """Decorator: adds ``layer(ctx, call_next)`` around every handler; the first registered is the outermost.

        A coroutine function fits around every handler, a plain function only around plain ones: elsewhere it is refused, here
        or when the handler is registered. Raises ConfigError, also while handlers run: their workers would not know of the
        layer."""
        check_callable(layer, "middleware", "ctx, call_next")
        for queue in self.queues():
            queue.check_not_running(layer)
            queue.check_middleware([*self.layers, layer])
        for template in self.templates:
            template.check_middleware([*self.layers, layer])
        self.layers.append(layer)
        return layer

    def handler(
        self, pattern: str = "", type: Any = None, *, handler_type: str = "", **options: Any
    ) -> Callable[[F], F]:
        """Decorator: registers a handler for queues that are found in the store, now or later, without a restart.

        Args:
            pattern: of queue names, as in a shell: ``orders.*``; empty = none.
            type: of the messages, see `queue`.
            handler_type: also takes queues that name this handler type; default: the function's name.
            options: see ``queue.handler``; without ``concurrency`` each queue's stored one counts.

        Queues of this application that it fits run from the start. The refresher finds others while the application runs,
        within ``refresher.watch_s``. When several handlers fit a queue, the first registered gets it. A queue with a handler
        of its own keeps that one.
        """

        check_text(pattern, "pattern")
        check_text(handler_type, "handler_type")

        def register(fn: F) -> F:
            self._table.add_template(
                HandlerTemplate(
                    fn,
                    pattern=pattern,
                    handler_type=handler_type,
                    type=type,
                    options=options,
                    most=self.consumer_settings,
                    file=self.file,
                )
            )
            self._running.start_late()
            return fn

        return register

    def _start_late(self, name: str) -> None:
        self._running.start_late(name)

    def _consumer_failed(self, exc: BaseException) -> None:
        self._running.failed(exc)

    def _take_back(self, name: str) -> Mapping[tuple[str, str], int]:
        return take_back(self.store, name).aside if self.sweeper_settings.dead_owners else {}

    def after_publish(self, fn: AfterPublish) -> AfterPublish:
        """Decorator: calls ``fn(queue, count)`` after ``count`` messages became durable, in the thread that stored them. An
        exception that it raises is logged."""
        check_callable(fn, "after_publish", "queue, count")
        self.hooks.add_after_publish(fn)
        return fn

    def after_handling(self, fn: AfterHandling) -> AfterHandling:
        """Decorator: calls ``fn(queue, handled, sidelined)`` after a batch of acknowledgements was stored. An exception that it
        raises is logged."""
        check_callable(fn, "after_handling", "queue, handled, sidelined")
        self.hooks.add_after_handling(fn)
        return fn

    def sweeper(self) -> Sweeper:
        """Returns the sweeper of this store. It sweeps only while this instance leads."""
        with self._lock:
            if self._sweeper is None:
                self._sweeper = Sweeper(self.store, self.leader("sweeper"), self.sweeper_settings, self.clock)
            return self._sweeper

    def sweep_queue(self, name: str) -> SweepResult:
        """Sweeps one queue now, by hand; see `Sweeper.sweep_queue`. Raises LockHeldError when another instance leads."""
        return self.sweeper().sweep_queue(check_name(name))

    def schedule(
        self,
        name: str,
        *,
        queue: Queue[Any] | str,
        message: Any,
        cron: str | None = None,
        every: Any = None,
        timezone: str | None = None,
        missed: Literal["skip", "once", "all"] = "once",
    ) -> None:
        """Declares a schedule: the instance that leads publishes the message once at each of its ticks.

        `start` stores it. What an operator changes in the store stays until the code declares something else.
        ``app.schedules`` lists, changes, pauses and removes stored schedules; `Schedules.add` stores one at once.

        >>> from ignis import Ignis
        >>> with Ignis("memory://") as app:
        ...     jobs = app.queue("jobs", str)
        ...     app.schedule("beat", every="5m", queue="jobs", message="look around")
        ...     app.schedules.store_declared()
        ...     [(one.name, one.queue, one.every_s) for one in app.schedules.list()]
        [('beat', 'jobs', 300.0)]

        Args:
            name: ``[A-Za-z0-9._-]{1,128}``.
            queue: where the messages go: a queue or its name. `start` raises QueueNotFoundError for a name that this application
                has not declared by then, no pattern of its handlers fits, and the store does not have.
            message: of the queue's type; checked here where this application knows the queue, else when it is stored.
            cron: five fields, such as ``"0 3 * * *"``, or ``"@daily"`` and the like; needs the extra ``schedules``. Give ``cron``
                or ``every``.
            every: the time between ticks: seconds, or a duration such as ``"5m"``; 0.1 s to 365 days.
            timezone: of ``cron``, such as ``"Europe/Berlin"``; None = UTC.
            missed: what happens to ticks that were not fired within ``schedules.grace_s``: ``skip`` leaves them out, ``once``
                fires the newest in place of all that are due, ``all`` fires each.

        Raises ConfigError, InvalidNameError; InvalidMessageError, MessageTooLargeError, which name the schedule.
        """
        self._scheduling.declare(
            name, queue=queue, message=message, cron=cron, every=every, timezone=timezone, missed=missed
        )

    def scheduler(self) -> Scheduler:
        """Returns the scheduler, which fires the schedules of this store while this instance leads the scope ``schedules``."""
        return self._scheduling.scheduler()

    def leader(self, scope: str = "sweeper") -> Leadership:
        """Returns this instance's candidate to lead a scope, the same object for the same scope. Raises ConfigError."""
        check_name(scope, "scope")
        with self._lock:
            if self._deciders is None:
                self._deciders = Deciders(self.store, self.leader_settings)
            return self._deciders.of(scope)

    # -- life

    def start(self, queues: Iterable[str] | None = None) -> None:
        """Starts consumers and shovels of the queues that have a handler (or of those named), the sweeper and the refresher.

        Returns at once, except with handlers of ``pool="process"``: it then waits until one worker process of each has
        imported its module, at most ``consumer.worker_start_timeout_s``.

        Raises (then nothing runs, and nothing was claimed):
            ConfigError: there is nothing to run, or a named queue has no handler.
            WorkerStartError: no worker process of a handler can start.
            MainGuardError: called in a script that a worker process runs again, or in a module that ``ignis worker`` imports.
            StoreUnreachableError: memory, descriptors or threads are lacking.
        """
        self._running.start(queues)

    def refresh(self) -> RefreshResult:
        """Makes a pass of the refresher now: discovers, expires and reconciles queues. Raises the store's error when the store
        cannot be asked."""
        return self.refresher.run_once()

    def pause(self) -> None:
        """Stops claiming on all queues of this process, those found later included; what was claimed is finished. See `quiet`."""
        self._running.pause()

    def resume(self) -> None:
        """Starts claiming again after `pause`."""
        self._running.resume()

    @property
    def paused(self) -> bool:
        """Whether consumers of this process claim nothing for now: see `pause`."""
        return self._running.paused

    @property
    def ready(self) -> bool:
        """Whether everything that `start` starts runs."""
        return self._running.ready

    @property
    def drained(self) -> bool:
        """Whether the last `stop` left nothing claimed."""
        return self._running.drained

    @property
    def quiet(self) -> bool:
        """Whether it is paused with nothing claimed and every outcome stored, so that it may end without touching a message."""
        return self._running.quiet

    def stop(self, timeout: float | None = None) -> bool:
        """Stops gracefully: running handlers finish, what was claimed and not started goes back, acknowledgements are stored.

        ``timeout``: seconds for the handlers; None = ``consumer.stop_timeout_s``. Returns True when nothing was left claimed.
        Idempotent. Raises ConfigError in a handler or an ``after_handling`` hook of this application, for whose end it would
        wait: `request_stop` is for these.
        """
        return self._running.stop(timeout)

    def run(self, queues: Iterable[str] | None = None, *, stop_timeout: float | None = None) -> None:
        """Calls `start`, blocks, and calls `stop` after SIGTERM, SIGINT, SIGHUP or `request_stop`. A `stop` or `close` by another
        thread also ends it.

        A second SIGTERM or SIGINT ends the process at once with status 130: what was claimed is left to the sweeper. Any
        number of SIGHUPs only ask to stop, since a terminal often sends two at its end. A SIGHUP that was ignored at the
        start, as with ``nohup``, stays ignored.

        Raises the error of a consumer that failed (the store broke), after stopping the others. ConfigError in a running event
        loop, which it would block: there `start` and ``async with app`` do the same.
        """
        self._running.run(lambda: self.start(queues), lambda: self.stop(stop_timeout), stop_timeout)

    def request_stop(self, why: str = "") -> None:
        """Makes `run` return, from any thread or a handler. ``why``: a few words for the log."""
        self._running.request_stop(why)

    @property
    def running(self) -> bool:
        """Whether the application was started and not stopped since."""
        return self._running.running

    @property
    def opened(self) -> bool:
        """Whether the store is open."""
        return self._opened.opened is not None

    def stats(self) -> dict[str, Any]:
        """Figures of the store, of every queue of this process, of the schedules, and what the refresher knows of all queues.

        Once they are used, also of the sweeper, the scheduler and the candidates to lead. A queue that this process may only
        publish to, over a broker or a relay, has the figures that this process counted."""
        states = self.refresher.states
        return {
            "store": self.store.stats(),
            **self._own_stats(),
            "queues": [_figures_of(queue) for queue in self.queues() if states.get(queue.name) != REMOVED],
            "schedules": self.schedules.figures(),
        }

    def local_stats(self) -> dict[str, Any]:
        """Those of `stats` that this process knows by itself: the store is neither opened nor asked."""
        opened = self._opened.opened
        return {
            "store": {} if opened is None else opened.process_stats(),
            **self._own_stats(),
            "queues": [queue.local_stats() for queue in self.queues()],
        }

    def _own_stats(self) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "refresher": self.refresher.stats(),
            "ring_depth": pending_messages(),
            "pool": pool_classes(),
        }
        if self.context.turns.limit:
            figures["turns"] = self.context.turns.stats()
        if (scheduler := self._scheduling.made) is not None:
            figures["scheduler"] = scheduler.stats()
        if self._sweeper is not None:
            figures["sweeper"] = self._sweeper.stats()
            figures["set_aside"] = self.set_aside_here()
        if self._deciders is not None:
            figures["leaders"] = {scope: one.stats() for scope, one in self._deciders.known().items()}
        return figures

    def set_aside_here(self) -> list[dict[str, Any]]:
        """What the sweeper of this process has set aside, in the form of queues' figures, without asking the store."""
        aside = {} if self._sweeper is None else dict(self._sweeper.aside)
        return [
            {"queue": queue, "consumer": {f"sidelined_{reason}": count}}
            for (queue, reason), count in aside.items()
            if count
        ]

    def close(self, timeout: float | None = None) -> None:
        """Stops, stores what publishers still hold, then closes the store. Idempotent. Thread-safe.

        ``timeout``: seconds for the stop, and as many for the publishers; None = ``consumer.stop_timeout_s`` and each publisher's
        ``close_timeout_s``. Messages that could not be stored are logged, and their receipts say why.

        Queues, handlers, middleware and hooks stay registered: the next use or `start` opens the store anew, and they work
        again. Queues that were found in the store are found again. Publishers, locks and magazines made before stay closed.
        The content of ``memory://``, which has no name, is gone. Raises ConfigError where `stop` does.
        """
        if timeout is not None:
            check_timeout(timeout)
        self._running.check_outside("app.close()")
        started = any(queue.started for queue in self.queues())  # by ``queue.start``, without the application
        if started or self._running.running or self._sweeper is not None or self._scheduling.made is not None:
            self.stop(timeout)
        for queue in self.queues():
            queue.close_awaited(timeout)
        open_ = self._opened.opened
        if open_ is not None:
            # Not under the lock: a hook that is called for stored messages may ask for a queue of this application.
            end_publishers(open_.magazines, timeout)
        with self._lock:
            store = self._opened.take()
            self._sweeper = None
            self._scheduling.forget()
            deciders, self._deciders = self._deciders, None
            self._table.reset()
            self.refresher.reset()
            self._running.paused = False
            if deciders is not None:
                deciders.close()
            if store is not None:
                end_publishers(store.magazines, 0)  # made meanwhile
                store.close()

    def close_quietly(self) -> None:
        """Calls `close` and suppresses its errors, for a process that ends anyway."""
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
        await in_thread(self.close)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "an Ignis is not pickled or copied: it has threads, locks and an open store of its process; make one in the child, "
            "by importing the module that makes it, and hand over that module's name or the URL"
        )

    def __repr__(self) -> str:
        return f"<Ignis {redacted(self.url or '')!r} {self.farm_id}/{self.client_id}>"
