"""A queue: a main magazine, a sideline magazine, and the handler that stands between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ignis.async_publisher import AsyncPublisher
from ignis.cancellation import Cancelled, cancel_message
from ignis.clearing import Deleted, Purged, delete_matching, match_messages, purge
from ignis.config import QueueSettings, check_whole, shown
from ignis.consumer import Consumer
from ignis.consumer.handler import HandlerSpec, Middleware
from ignis.consumer.handler_form import check_callable
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.consumer.runner import Runner
from ignis.context import AppContext, QueueContext
from ignis.deadlines import Deadline, deadline_of
from ignis.delaying_publisher import DelayingPublisher
from ignis.errors import ConfigError, InvalidMessageError, QueueNotFoundError
from ignis.figures import QueueTimes, depths
from ignis.later import Later, due_time_ms
from ignis.magazine import Magazine, MessageIds, Published
from ignis.message import BodyCodec, Message
from ignis.pausing import PAUSED, store_pause
from ignis.publisher import OnPlaced, Publisher
from ignis.queue_definition import DECLARED, QueueDefinition
from ignis.queue_handling import QueueHandling
from ignis.retries import Retry
from ignis.shovel import Shovel
from ignis.storage.os_errors import without_means
from ignis.sweep_result import SweepResult
from ignis.tracing.publishing import traced_publish, traced_publish_many, traced_send

if TYPE_CHECKING:
    from ignis.tracing.otel import Tracing

__all__ = ["DECLARED", "Queue"]

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])
Delay = float | str | timedelta
RetryOption = Retry | str | Mapping[type[BaseException], Retry | str | None] | None


class Queue(Generic[M]):
    """A named queue of one message type. It takes messages in, gives them to a handler, and keeps failed ones in its sideline.

    Thread-safe. Opens the store on first use. Made by ``app.queue(...)``.

    >>> from ignis import Ignis
    >>> from ignis.testing import drain
    >>> with Ignis("memory://") as app:
    ...     greetings = app.queue("greetings", str)
    ...     handler = greetings.handler(lambda name: print("hello", name))
    ...     published = greetings.publish("Ada", key="customer-7")
    ...     drain(greetings)
    hello Ada
    Drained(done=1, dropped=0, sidelined=0, retried=0)

    The field's words: the sideline is a dead-letter queue, a claim's ``stuck_after`` its visibility timeout.

    In a child after ``fork`` every call raises ForkedHandleError: make a new application object there.
    """

    def __init__(self, app: AppContext, name: str, type: Any, settings: dict[str, Any]) -> None:
        self._app = app
        self._definition: QueueDefinition[M] = QueueDefinition(app, name, type, settings)
        self.name = self._definition.name
        self.type = type
        self._lock = threading.RLock()
        self._main: Magazine[M] | None = None
        self._sideline: Magazine[M] | None = None
        self._handling: QueueHandling[M] = QueueHandling(app, self._definition, self._lock, self.context)
        self._times = QueueTimes()
        self._awaited: AsyncPublisher[M] | None = None
        if app.tracing is not None:
            self._trace_publishing(app.tracing)

    # -- what it is made of

    @property
    def app(self) -> Any:
        """The application that made it."""
        return self._app.app

    def context(self) -> QueueContext[M]:
        """The parts that its consumer and its shovel work with, as they are now. Opens the queue."""
        main, sideline = self.main, self.sideline
        return QueueContext(
            self.name,
            main,
            sideline,
            self._definition.codec,
            self._definition.settings,
            self._app.store(),
            self._app.clock(),
            self._app.hooks,
            self._times,
            self._app.tracing,
        )

    @property
    def settings(self) -> QueueSettings:
        """The settings in force. Those that were not given are the stored queue's, once the store was used."""
        return self._definition.settings

    @property
    def codec(self) -> BodyCodec[M]:
        """Encodes and decodes the bodies of the queue's messages."""
        return self._definition.codec

    @property
    def spec(self) -> HandlerSpec | None:
        """Its handler's registration; None where it has none here."""
        return self._definition.spec

    @property
    def template(self) -> HandlerTemplate | None:
        """The pattern subscription that made this queue when it was found in the store; None for a queue that the code names."""
        return self._definition.template

    @template.setter
    def template(self, template: HandlerTemplate | None) -> None:
        self._definition.template = template

    @property
    def main(self) -> Magazine[M]:
        """The main magazine."""
        return self._main or self._opened()[0]

    @property
    def sideline(self) -> Magazine[M]:
        """The sideline magazine, where failures wait: the queue's dead-letter queue."""
        return self._sideline or self._opened()[1]

    def _opened(self) -> tuple[Magazine[M], Magazine[M]]:
        with self._lock:
            self.open()
            assert self._main is not None
            assert self._sideline is not None
            return self._main, self._sideline

    def open(self) -> None:
        """Registers the queue in the store, or takes over its stored settings. Idempotent; called on first use.

        A queue that was removed since it was opened here is made anew; only this call does that.

        Raises QueueMismatchError when the stored queue has another durability or codec, StoreUnreachableError.
        """
        with self._lock:
            record = self._definition.open()
            if record is not None:
                assert self._definition.magazines is not None
                self._main, self._sideline = self._definition.magazines
                self._handling.pause(PAUSED in record.extra)

    @property
    def opened(self) -> bool:
        """Whether the queue was opened in the store."""
        return self._main is not None

    def take_expiry_of(self, other: Queue[Any]) -> None:
        """Takes over the time to live that the store chose for the same queue, from another object of it."""
        self._definition.take_expiry_of(other._definition)

    def note_removed(self) -> None:
        """Notes that the queue was removed from the store. Publishing raises QueueRemovedError until `open` is called here or
        another process makes the queue again."""
        self._definition.registration.note_removed()

    @property
    def unused(self) -> bool:
        """Whether the queue was not opened since the application was closed. Then other settings may be given for it."""
        return self._definition.unused

    def reset(self, made: Queue[Any] | None = None) -> None:
        """Resets the queue, after the application was closed, to how it was made; its handler stays. The next use opens the store
        anew.

        ``made``: an unopened queue of the same name, whose type and settings are taken over.
        """
        with self._lock:
            self._main = self._sideline = None
            self._definition.reset(None if made is None else made._definition)
            self.type = self._definition.type
            self._handling.paused = False

    # -- publishing

    def publish(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = None,
        at: datetime | None = None,
        expires_in: Delay | None = None,
        expires_at: datetime | None = None,
    ) -> Published:
        """Stores one message. On return it is durable as the queue's ``durability`` promises.

        Args:
            message: of the queue's type.
            key: messages of one key keep their order; None spreads them over the shards.
            headers: a small map kept in the envelope.
            delay: the message is delivered after this time: seconds, text such as ``"5m"``, or a timedelta.
            at: the message is delivered at this time, which needs a time zone. Give ``delay`` or ``at``. See `later`.
            expires_in: no handler begins with the message after this time: seconds, text such as ``"10m"``, or a timedelta, at
                most 100 years. The message then goes where the queue's ``on_expiry`` says.
            expires_at: no handler begins with the message after this moment, which needs a time zone. Give ``expires_in`` or
                ``expires_at``.

        Raises:
            InvalidMessageError, MessageTooLargeError, StoreFullError, StoreFailedError, StoreUnreachableError.
            DelayNotSupportedError: the store keeps no delayed messages; nothing was published.
        """
        if delay is not None or at is not None:
            ids = self.publish_many(
                [message], keys=[key], headers=headers, delay=delay, at=at, expires_in=expires_in, expires_at=expires_at
            )
            return Published(ids[0], -1, 0)
        began_s = monotonic()
        if expires_in is None and expires_at is None:
            published = self.main.load(message, key=key, headers=headers)
        else:
            deadline = self._deadline(expires_in, expires_at)
            published = self.main.load(message, key=key, headers=headers, deadline=deadline)
        self._times.publish.add_since(began_s, 1)
        if self._app.hooks.after_publish:
            self._app.hooks.published(self.name, 1)
        return published

    def publish_many(
        self,
        messages: Iterable[M],
        *,
        key: Callable[[M], str | bytes | None] | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = None,
        at: datetime | None = None,
        expires_in: Delay | None = None,
        expires_at: datetime | None = None,
    ) -> MessageIds:
        """Stores many messages, 8,192 in each transaction; all are durable on return. Returns their ids in order.

        Args:
            messages: of the queue's type.
            key: computes each message's key. Give ``key`` or ``keys``.
            keys: one key for each message.
            headers: given to each.
            delay, at, expires_in, expires_at: as for `publish`; all messages are due, and expire, at the same time.

        Raises what `publish` raises. InvalidMessageError also for text, bytes or a mapping: they would be published piece by
        piece.
        """
        given: Any = messages  # of any type, whatever the annotation says
        if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
            raise InvalidMessageError(
                f"messages are {shown(given)}, a {type(given).__name__}: one message is for publish(), several go into a list"
            )
        if key is not None:
            if keys is not None:
                raise ConfigError("give key or keys, not both")
            check_callable(key, "key")
            try:
                messages = list(messages)
            except TypeError as exc:
                raise InvalidMessageError(f"messages are {shown(messages)}, not a sequence: {exc}") from None
            keys = [key(message) for message in messages]
        main = self.main
        due_ms = None if delay is None and at is None else due_time_ms(self._app.store(), delay, at)
        deadline = None if expires_in is None and expires_at is None else self._deadline(expires_in, expires_at)
        began_s = monotonic()
        ids = main.load_many(messages, keys=keys, headers=headers, due_ms=due_ms, deadline=deadline)
        self._times.publish.add_since(began_s)
        self._stored(len(ids))
        return ids

    def _deadline(self, expires_in: Delay | None, expires_at: datetime | None) -> Deadline | None:
        if self._main is None:
            self.open()  # what it does with what has expired may be stored with it
        return deadline_of(self._app.store(), expires_in, expires_at, self.settings.on_expiry)

    @property
    def published(self) -> int:
        """Messages that became durable here."""
        return self._times.publish.messages

    def _stored(self, count: int) -> None:
        """Counts messages that became durable, and tells the hooks. Called after every batch, however it was published."""
        self._times.publish.count(count)
        if self._app.hooks.after_publish:
            self._app.hooks.published(self.name, count)

    @property
    def later(self) -> Later:
        """The delayed messages: to list, find, cancel, or run now."""
        return Later(self._app.store(), self.main.name)

    def apublish(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = None,
        at: datetime | None = None,
        expires_in: Delay | None = None,
        expires_at: datetime | None = None,
    ) -> Coroutine[Any, Any, Published]:
        """`publish` for coroutines. One transaction makes this message and all others published at that moment durable, as
        with a `publisher`. The event loop runs on meanwhile.

        Arguments, result and durability are those of `publish`. Messages of one key that one task publishes one after the
        other keep their order. When the coroutine is cancelled, its message may be stored or not. Any event loop, any thread.

        Raises what `publish` raises; WaitTimeoutError when there was no room for ``publisher.send_timeout_s``; ClosedError
        when the application is closed meanwhile.
        """
        if not (delay is None and at is None and expires_in is None and expires_at is None):
            # In a thread, since such a message is not batched with others.
            return asyncio.to_thread(
                self.publish, message, key=key, headers=headers, delay=delay, at=at, expires_in=expires_in,
                expires_at=expires_at,
            )  # fmt: skip
        # Returns the inner coroutine and awaits nothing here: every message would pay for two coroutines.
        if self._awaited is None:
            return self._open_and_apublish(message, key, headers)
        return self._awaited.publish(message, key, headers)

    async def _open_and_apublish(
        self, message: M, key: str | bytes | None, headers: dict[str, Any] | None
    ) -> Published:
        awaited = await asyncio.to_thread(self._open_awaited)  # the store may be opened there
        return await awaited.publish(message, key, headers)

    def _open_awaited(self) -> AsyncPublisher[M]:
        """The publisher of `apublish`, made with its first message. It has no linger: a coroutine waits for each batch."""
        with self._lock:
            if self._awaited is None:
                self._awaited = AsyncPublisher(
                    lambda on_placed: self._new_publisher({"linger_s": 0}, on_placed), self._stored
                )
            return self._awaited

    def close_awaited(self, timeout: float | None = None) -> None:
        """Ends the publisher of `apublish` when what it holds is durable. The next `apublish` makes another. Idempotent."""
        with self._lock:
            awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.close(timeout)

    async def apublish_many(self, messages: Iterable[M], **options: Any) -> MessageIds:
        """Calls `publish_many` in a thread, off the event loop."""
        return await asyncio.to_thread(self.publish_many, messages, **options)

    def publisher(self, **settings: Any) -> Publisher[M]:
        """A buffered publisher. A `send` takes microseconds; a message is durable when its receipt is done.

        Args:
            settings: any of ``[publisher]`` in ``docs/settings.md``: ``capacity``, ``linger_s``, ``max_batch``, ...

        Raises ConfigError; StoreUnreachableError where no memory or thread is left for it.
        """
        return self._new_publisher(settings)

    def _new_publisher(self, settings: dict[str, Any], on_placed: OnPlaced | None = None) -> Publisher[M]:
        main, chosen = self.main, self._app.publisher_settings(settings)
        made: Publisher[M] | None = self._app.store().open_publisher(main, chosen)
        if made is None:
            with without_means(f"publisher of queue {self.name!r}"):
                made = DelayingPublisher(
                    main,
                    chosen,
                    self._app.store(),
                    on_stored=self._stored,
                    on_placed=on_placed,
                    times=self._times.publish,
                )
        made.deadline_of = self._deadline
        tracing = self._app.tracing
        if tracing is not None:
            made.send = traced_send(  # type: ignore[method-assign]
                tracing, self.name, lambda: main.max_headers_bytes, made.send, waits=made.tells_stored
            )
        return made

    def _trace_publishing(self, tracing: Tracing) -> None:
        """Puts spans round the calls of this object. The others have no look whether there is one."""

        def limit_bytes() -> int:
            return self.settings.max_headers_bytes

        self.publish = traced_publish(tracing, self.name, limit_bytes, self.publish)  # type: ignore[method-assign]
        self.publish_many = traced_publish_many(  # type: ignore[method-assign]
            tracing, self.name, limit_bytes, self.publish_many
        )

    # -- handling

    @overload
    def handler(self, fn: F) -> F: ...
    @overload
    def handler(
        self,
        fn: None = None,
        *,
        concurrency: int = ...,
        pool: str = ...,
        ignore: tuple[type[Exception], ...] | type[Exception] = ...,
        timeout_s: float | None = ...,
        attempts: int = ...,
        retry: RetryOption = ...,
        batch_size: int | None = ...,
        batch_wait_s: float | None = ...,
    ) -> Callable[[F], F]: ...
    def handler(
        self,
        fn: F | None = None,
        *,
        concurrency: int = 1,
        pool: str = "",
        ignore: Iterable[type[Exception]] | type[Exception] = (),
        timeout_s: float | None = None,
        attempts: int = 1,
        retry: RetryOption = None,
        batch_size: int | None = None,
        batch_wait_s: float | None = None,
    ) -> Any:
        """Decorator: registers the queue's handler, ``fn(message)`` or ``fn(message, ctx)``, and returns it unchanged.

        Args:
            concurrency: workers, at most ``consumer.max_consumers``; 0 = publish only here.
            pool: ``thread``, ``async`` (default for coroutine functions) or ``process`` (``fn`` must be importable).
            ignore: exceptions that drop the message instead of sidelining it.
            timeout_s: the longest time for all attempts together; then the message goes to the sideline. None = no limit, since
                a living process renews its claims.
            attempts: calls before a failing message goes to the sideline, one right after the other.
            retry: or calls with growing waits in between: an `ignis.Retry`, the name of one in the settings file, or a mapping
                from exceptions to these, in which None stands for the sideline.
            batch_size: 2 to 200,000: ``fn`` gets a list of at most so many messages.
            batch_wait_s: how long a batch waits for more messages, 1 to 300 s; default 1.

        Raises:
            ConfigError, ConsumerLimitError.
            DelayNotSupportedError: here or at the start, for ``retry`` on a store that keeps no delayed messages.
        """

        options = {
            "concurrency": concurrency, "pool": pool, "ignore": ignore, "timeout_s": timeout_s, "attempts": attempts,
            "retry": retry, "batch_size": batch_size, "batch_wait_s": batch_wait_s,
        }  # fmt: skip

        def register(target: F) -> F:
            self.add_handler(target, options)
            self._app.start_late(self.name)
            return target

        return register if fn is None else register(fn)

    def add_handler(self, fn: Callable[..., Any], options: Mapping[str, Any], *, declares: bool = True) -> None:
        """Registers a handler, as `handler` does. ``declares``: whether its concurrency is the code's, or the stored one."""
        self._handling.add(fn, options, declares=declares)

    def middleware(self, layer: Middleware) -> Middleware:
        """Decorator: adds ``layer(ctx, call_next)`` around this queue's handler, inside the application's layers.

        A coroutine function fits around every handler, a plain function only around plain ones. Raises ConfigError, also
        when the handler runs already: its workers would not know of the layer."""
        self._handling.add_middleware(layer)
        return layer

    def check_middleware(self, outer: Sequence[Middleware], *inner: Middleware) -> None:
        """Raises ConfigError where the handler cannot run within ``outer`` (the application's), the queue's own and ``inner``."""
        self._handling.check_middleware(outer, *inner)

    def check_not_running(self, layer: Middleware) -> None:
        """Raises ConfigError when the handler runs already, so that the layer comes too late."""
        self._handling.check_not_running(layer)

    @property
    def layers(self) -> list[Middleware]:
        """The middleware around the handler, the outermost first: the application's, then the queue's."""
        return self._handling.layers

    def make_runner(self, spec: HandlerSpec, codec: str | None = None, *outermost: Middleware) -> Runner:
        """Makes what calls the handler, with the application's middleware outside and the queue's within.

        Args:
            spec: the handler's registration.
            codec: name of the stored codec, in a process that does not open the store.
            outermost: further layers around all of them.
        """
        return self._handling.make_runner(spec, codec, *outermost)

    @property
    def consumers(self) -> int:
        """How many workers were asked for in this process."""
        return self._handling.consumers

    @property
    def consumer(self) -> Consumer | None:
        """The consumer that runs the handler in this process; None while none runs."""
        return self._handling.consumer

    @property
    def shovel(self) -> Shovel:
        """Moves messages of the sideline back to the queue."""
        return self._handling.shovel

    def increase_consumers(self, count: int = 1) -> int:
        """Adds workers in the whole fleet; returns the new number.

        The number is stored, then applied here; other instances follow within ``refresher.watch_s``. Durable on return. Raises
        ConsumerLimitError over ``consumer.max_consumers``; nothing has changed then."""
        return self._handling.change_consumers(check_whole(count, "count", 0))

    def decrease_consumers(self, count: int = 1) -> int:
        """Removes workers in the whole fleet, as `increase_consumers` adds them; returns the new number.

        Each finishes the message it is handling; what it had not started goes to the others. With 0 left the queue is only
        published to."""
        return self._handling.change_consumers(-check_whole(count, "count", 0))

    def set_local_consumers(self, count: int) -> None:
        """Applies a stored number of workers to this process, at most its own limit. Raises ConfigError."""
        self._handling.set_consumers(count)

    # -- running, by the application and the refresher

    def start(self, *, held: bool = False) -> None:
        """Opens the queue and starts its shovel and, where it has a handler, its consumer. Idempotent.

        ``held``: the consumer claims nothing before `let_go`.
        """
        self._handling.start(self.open, held=held)

    def let_go(self) -> None:
        """Makes a consumer that was started ``held`` claim."""
        self._handling.let_go()

    def stop(self, timeout: float) -> bool:
        """Stops the consumer and the shovel within ``timeout`` seconds; True when nothing is left claimed. Idempotent. Raises
        ConfigError for an invalid time."""
        return self._handling.stop(timeout)

    @property
    def started(self) -> bool:
        """Whether its consumer or its shovel runs."""
        return self._handling.started

    def set_shovel(self, interval_s: float, concurrency: int, max_returns: int, retry: str | None = None) -> None:
        """Applies stored settings of the shovel to this process, its schedule included. The interval is in whole seconds.
        ``retry``: the numbers of the policy as they are stored, empty for none; None = as it is."""
        if self._definition.set_shovel(interval_s, concurrency, max_returns, retry):
            self.shovel.reschedule()

    # -- looking after

    def sweep(self) -> SweepResult:
        """Recovers now what dead or stuck workers hold of this queue. Raises LockHeldError when another instance leads the
        sweeping: call it there."""
        return self._app.sweep(self.name)

    # -- pausing

    def pause(self) -> None:
        """Makes the consumers of the whole fleet stop claiming; what they have claimed is finished, and publishing goes on.

        The pause is stored with the queue: it is durable on return and holds until `resume`, whatever is restarted. It is in
        force here at once, in other processes within ``refresher.watch_s``, and in brokers, which stop delivering, within 10 s.
        `Ignis.pause` is about one process.

        Idempotent. Thread-safe. Raises QueueNotFoundError, StoreUnreachableError.
        """
        self._change_pause(True)

    def resume(self) -> None:
        """Ends `pause` for the whole fleet. Durable, seen by others and raising as `pause`. Idempotent."""
        self._change_pause(False)

    def _change_pause(self, paused: bool) -> None:
        if not self.opened:
            self.open()
        try:
            record = store_pause(self._app.store().queues, self.name, paused)
        except QueueNotFoundError as exc:
            raise self._definition.registration.explain(exc) from exc
        self.set_local_pause(PAUSED in record.extra)

    @property
    def paused(self) -> bool:
        """Whether its consumers claim nothing, as this process knows it: see `pause`."""
        return self._handling.paused

    def set_local_pause(self, paused: bool) -> None:
        """Applies a stored pause, or its end, to this process."""
        self._handling.pause(paused)

    # -- removing messages

    def cancel(self, id: Any) -> Cancelled | None:
        """Cancels the message with that id, wherever it is. Thread-safe.

        Returns where it was, or None where nobody has it: it was handled, or is in the sideline.

        * ``"delayed"``, ``"waiting"``: it is removed, durable on return.
        * ``"running"``: whoever handles it is told within about two seconds, on this machine or another. A coroutine is
          cancelled; a thread finds ``ctx.cancelled`` true; a worker process too, and is killed after
          ``consumer.cancel_grace_s`` (10 s). What breaks off goes to the sideline with the reason ``cancelled``; what ends by
          itself before is done.

        There is no index of ids: it reads what waits until it has found the message. In a batch nothing is cancelled.

        Raises InvalidMessageError for what is no id, QueueNotFoundError, StoreError.
        """
        found = cancel_message(self._app.store(), self.main.name, id)
        consumer = self.consumer
        if found == "running" and consumer is not None:
            consumer.look_for_cancelled()
        return found

    def purge(self, *, in_flight: bool = False, sideline: bool = False) -> Purged:
        """Removes the messages that wait in the queue when the call begins; nobody handles them. Returns how many.

        It uses transactions of at most 10,000 messages, so memory and delays for others are bounded. Others may publish
        and consume meanwhile: claimed messages stay, and so does what is published from now on. Durable on return. When it
        raises, or the process ends, some whole transactions were done. Thread-safe.

        Args:
            in_flight: also claimed messages. Handlers that run go on, and their acknowledgements find nothing.
            sideline: messages of the sideline instead of the queue.

        Raises QueueNotFoundError, StoreError.
        """
        magazine = self.sideline if sideline else self.main
        return purge(magazine.store, magazine.name, in_flight=in_flight)

    def delete(
        self,
        ids: Iterable[Any] | None = None,
        *,
        where: Callable[[Message], object] | None = None,
        sideline: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Deleted:
        """Removes those of the waiting messages that have one of these ids, and for which ``where(message)`` is true.

        There is no index: every waiting message is read once, which takes as long as consuming them without a
        handler. Claimed messages stay. Durable on return. Thread-safe.

        Args:
            ids: as `publish` returns them: text, UUIDs or 16 bytes.
            where: called in this thread with the envelope: ``id``, ``key``, ``enqueued_at_us``, ``headers``, ``failures``,
                ``reason``, ``error``, and ``body`` in bytes. A message that cannot be read never matches.
            sideline: messages of the sideline instead of the queue.
            limit: remove at most so many.
            dry_run: only count.

        Raises ConfigError, InvalidMessageError for an invalid id, QueueNotFoundError, StoreError, and what ``where`` raises:
        what was removed by then is gone.
        """
        magazine = self.sideline if sideline else self.main
        match = match_messages(ids, where)
        return delete_matching(magazine.store, magazine.name, match, limit=limit, dry_run=dry_run)

    # -- looking

    def stats(self) -> dict[str, Any]:
        """The queue's depths and ages, and what `local_stats` has. ``expired``, ``sideline_expired``: messages that expired while
        they waited there, since the queue was made and as far as the store can tell; ``expired`` has those that were delayed, or
        between two attempts, too."""
        main, sideline = self.main.metadata(), self.sideline.metadata()
        oldest = self.main.store.oldest_enqueued_at_us(self.name)
        out: dict[str, Any] = {
            "queue": self.name,
            **depths(main, sideline, self.main.store.delayed(self.name), self.main.store.expired_later(self.name)),
            "oldest_age_s": None if oldest is None else max(0.0, self._app.clock()() - oldest / 1e6),
        }
        return {**out, **self.local_stats()}

    def local_stats(self) -> dict[str, Any]:
        """The figures that this process counted, without asking the store."""
        out = {
            "queue": self.name,
            "published": self.published,
            "paused": self.paused,
            "shovel": self.shovel.stats(),
            "times": self._times.figures(),
        }
        figures = self._handling.stats()
        if figures:
            out["consumer"] = figures
        return out

    def __repr__(self) -> str:
        return f"<Queue {self.name} of {getattr(self.type, '__name__', self.type)}>"
