"""What works on a queue in this process: its handler within the middleware, the consumer that runs it, and the shovel."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ignis.config import check_timeout, check_whole
from ignis.consumer import FLEET, PROCESS, START, Consumer
from ignis.consumer.handler import HandlerSpec, Middleware, check_consumers, make_spec
from ignis.consumer.handler_form import check_callable, check_kind
from ignis.consumer.registered import Registered, note_handler
from ignis.consumer.runner import Runner
from ignis.consumer.traced import tracing_layer
from ignis.consumer.work import note_stopping
from ignis.context import AppContext, QueueContext
from ignis.errors import ConfigError, DelayNotSupportedError
from ignis.log_format import event_text
from ignis.pausing import PAUSED
from ignis.queue_definition import QueueDefinition
from ignis.shovel import Shovel
from ignis.storage.base import QueueRecord

__all__ = ["QueueHandling"]

log = logging.getLogger("ignis.queue")

M = TypeVar("M")


class QueueHandling(Generic[M]):
    """Registers, starts and stops what handles the messages of one queue. Thread-safe.

    Args:
        app: what the queue has of its application.
        definition: of the queue.
        lock: the queue's.
        context: the open queue, as its consumer and its shovel see it.
    """

    def __init__(
        self,
        app: AppContext,
        definition: QueueDefinition[M],
        lock: threading.RLock,
        context: Callable[[], QueueContext[M]],
    ) -> None:
        self._app = app
        self._definition = definition
        self._lock = lock
        self._context = context
        self._life = threading.Lock()  # the refresher starts and stops as well as the application
        self._middleware: list[Middleware] = []
        self._past: Counter[str] = Counter()
        self.consumer: Consumer | None = None
        self.shovel = Shovel(definition.name, context)
        self.paused = False

    # -- the handler

    def add(self, fn: Callable[..., Any], options: Mapping[str, Any], *, declares: bool) -> None:
        """Registers the handler. ``declares``: whether the concurrency is what the code asks for, or the stored one."""
        queue = self._definition
        with self._lock:
            if queue.spec is not None:
                raise ConfigError(f"queue {queue.name!r} has a handler already: {queue.spec.name}")
            spec = make_spec(fn, queue.name, queue.type, options, self._app.consumer_settings, self._app.file)
            spec.check_middleware(self.layers)
            if not self.layers and spec.batch_size is None:
                check_kind(fn, f"handler of queue {queue.name!r}", queue.type)
            if queue.magazines is not None:
                self._check_retry(spec)
            if not declares:
                spec.declared = None
            queue.set_handler(spec)
            if spec.pool == "process":
                note_handler(fn, Registered(spec, lambda codec: self.make_runner(spec, codec), self._app.close))

    def add_middleware(self, layer: Middleware) -> None:
        """Adds a layer inside the others. Raises ConfigError."""
        check_callable(layer, "middleware", "ctx, call_next")
        self.check_not_running(layer)
        self.check_middleware(self._app.layers, layer)
        self._middleware.append(layer)

    def check_middleware(self, outer: Sequence[Middleware], *inner: Middleware) -> None:
        """Raises ConfigError where the handler would not run within these of the application, its own, and one more."""
        spec = self._definition.spec
        if spec is not None:
            spec.check_middleware([*outer, *self._middleware, *inner])

    def check_not_running(self, layer: Middleware) -> None:
        """Raises ConfigError where a layer comes too late."""
        if self.consumer is not None:
            name = getattr(layer, "__qualname__", type(layer).__qualname__)
            raise ConfigError(
                f"middleware {name} comes too late: the handler of queue {self._definition.name!r} runs without it; add it "
                "before app.start()"
            )

    @property
    def layers(self) -> list[Middleware]:
        """The middleware round the handler, the outermost first: the application's, then the queue's."""
        return [*self._app.layers, *self._middleware]

    def make_runner(self, spec: HandlerSpec, codec: str | None = None, *outermost: Middleware) -> Runner:
        """See `Queue.make_runner`."""
        if codec is not None:
            self._definition.take_codec(codec)
        layers = [*outermost, *self.layers]
        if self._app.tracing is not None:
            layers.insert(0, tracing_layer(self._app.tracing, spec, layers))
        spec.middleware = layers
        return Runner(spec, self._definition.codec, self._app.resources, self._app.clock())

    # -- how many

    @property
    def consumers(self) -> int:
        """Workers asked for in this process."""
        spec = self._definition.spec
        return self.consumer.concurrency if self.consumer is not None else (spec.concurrency if spec else 0)

    def change_consumers(self, by: int) -> int:
        """Adds so many workers everywhere, or removes them; returns the new number. Stored first."""
        spec = self._definition.spec
        if spec is None:
            raise ConfigError(f"queue {self._definition.name!r} has no handler here")
        limit = spec.limit
        if self._definition.magazines is None:
            count = check_consumers(spec.concurrency + by, *limit)
            spec.declared = count  # nothing is stored yet: this is what the code asks for
        else:

            def change(record: QueueRecord) -> None:
                record.concurrency = check_consumers(record.concurrency + by, *limit)

            count = self._app.store().queues.update(self._definition.name, change).concurrency
        self.set_consumers(count)
        return count

    def set_consumers(self, count: int) -> None:
        """Applies a stored number of workers to this process, at most its own limit. Raises ConfigError."""
        count = check_whole(count, "count", 0)
        name, spec = self._definition.name, self._definition.spec
        if spec is None:
            return
        limit, setting = spec.limit
        if count > limit:
            log.warning(
                event_text("consumers_cut", "%s is to have %d consumers, here are at most %d (%s)"),
                name,
                count,
                limit,
                setting,
            )
            count = limit
        spec.concurrency = count
        if self.consumer is not None and self.consumer.concurrency != count:
            self.consumer.resize(count)

    # -- running

    def start(self, open_queue: Callable[[], None], *, held: bool) -> None:
        """Opens the queue and starts the consumer, where there is a handler, and the shovel. Idempotent."""
        queue = self._definition
        with self._life:
            if queue.magazines is not None and not queue.registration.removed:
                stored = self._app.store().queues.get(queue.name)
                self.pause(stored is not None and PAUSED in stored.extra)
            if queue.spec is not None:
                self._app.store().check_consuming()
                self._check_retry(queue.spec)
            open_queue()
            if self.consumer is None and queue.spec is not None:
                note_stopping(queue.name, self._app.resources, False)
                aside = self._app.take_back(queue.name)
                consumer = self._new_consumer(queue.spec)
                _count_aside(consumer, {reason: count for (_, reason), count in aside.items()})
                if held:
                    consumer.pause(START)
                if self._app.paused():
                    consumer.pause(PROCESS)
                if self.paused:
                    consumer.pause(FLEET)
                consumer.start()
                self.consumer = consumer
            self.shovel.start()

    def _check_retry(self, spec: HandlerSpec) -> None:
        """Raises DelayNotSupportedError for a handler with ``retry`` whose store cannot keep a message for the next attempt."""
        magazines = self._app.store().magazines
        if spec.retry is not None and not magazines.keeps_later:
            raise DelayNotSupportedError(
                type(magazines).__name__,
                needs=f"the handler of queue {self._definition.name!r} has a retry, for which its store has to keep delayed "
                "messages; leave retry out, and what fails waits in the sideline until the shovel brings it back: ",
            )

    def count_aside(self, by_reason: Mapping[str, int]) -> None:
        """Counts what dead processes held and was set aside here."""
        consumer = self.consumer
        if consumer is not None:
            _count_aside(consumer, by_reason)

    def let_go(self) -> None:
        """The consumer that was started ``held`` claims now."""
        consumer = self.consumer
        if consumer is not None:
            consumer.resume(START)

    def _new_consumer(self, spec: HandlerSpec) -> Consumer:
        settings = self._app.consumer_settings
        turns = self._app.turns
        if spec.pool != "thread" and turns.goes_without():
            log.warning(
                event_text(
                    "runs_without_turns",
                    "consumer.max_running = %d does not bound handler %s of %s, which runs as %s: concurrency does (said once)"),
                turns.limit, spec.name, spec.queue, "a coroutine" if spec.pool == "async" else "worker processes",
            )  # fmt: skip
        return Consumer(
            self._context(),
            spec,
            settings,
            lambda: self.make_runner(spec),
            self._app.failed,
            turns if turns.limit else None,
        )

    @property
    def started(self) -> bool:
        """Whether the consumer or the shovel runs."""
        return self.consumer is not None or self.shovel.started

    def begin_stop(self) -> None:
        """The consumer claims nothing more, and handlers that ask are told; returns at once. `stop` follows."""
        consumer = self.consumer
        if consumer is not None:
            note_stopping(self._definition.name, self._app.resources, True)
            consumer.begin_stop()

    def stop(self, timeout: float) -> bool:
        """Stops both; True when nothing is left claimed. Idempotent. Raises ConfigError for a time that is none."""
        timeout = check_timeout(timeout)
        with self._life:
            if self.consumer is not None:
                note_stopping(self._definition.name, self._app.resources, True)
            self.shovel.stop(timeout)
            consumer, clean = self.consumer, True
            if consumer is not None:
                clean = consumer.stop(timeout)
                self.consumer = None
                self._past.update(consumer.figures().counted())
            return clean

    def pause(self, paused: bool) -> None:
        """Whether consumers claim nothing, as it is stored for the fleet."""
        self.paused = paused
        consumer = self.consumer
        if consumer is not None:
            if paused:
                consumer.pause(FLEET)
            else:
                consumer.resume(FLEET)

    def stats(self) -> dict[str, Any]:
        """Figures of the consumer, and of those before it: what is counted never goes down."""
        consumer = self.consumer
        figures = {} if consumer is None else consumer.stats()  # numbers, and text such as why a worker did not start
        for name, count in dict(self._past).items():
            figures[name] = figures.get(name, 0) + count
        return figures


def _count_aside(consumer: Consumer, by_reason: Mapping[str, int]) -> None:
    for reason, count in by_reason.items():
        consumer.counts.sidelined_by[reason] += count
