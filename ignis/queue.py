"""A queue: a main magazine, a sideline magazine, and the handler that stands between them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, overload

from ignis.async_publisher import AsyncPublisher
from ignis.clearing import Deleted, Purged, delete_matching, match_messages, purge
from ignis.config import (
    QueueSettings,
    check_queue_name,
    check_timeout,
    check_whole,
    given_names,
    resolve,
    shown,
)
from ignis.consumer import FLEET, PROCESS, START, Consumer
from ignis.consumer.handler import HandlerSpec, Middleware, Runner, check_consumers, make_spec
from ignis.consumer.handler_form import check_callable
from ignis.consumer.handler_pattern import HandlerTemplate
from ignis.consumer.registered import Registered, note_handler
from ignis.context import AppContext, QueueContext
from ignis.errors import ConfigError, InvalidMessageError, QueueMismatchError, QueueNotFoundError
from ignis.figures import depths
from ignis.later import Later, due_time_ms
from ignis.magazine import SIDELINE_SUFFIX, Magazine, MessageIds, Published
from ignis.message import BodyCodec, Message
from ignis.pausing import PAUSED, store_pause
from ignis.publisher import OnPlaced, Publisher
from ignis.registration import Registration
from ignis.shovel import Shovel
from ignis.storage.base import QueueRecord, QueueStore
from ignis.storage.os_errors import without_means
from ignis.sweep_result import SweepResult

__all__ = ["DECLARED", "Queue"]

log = logging.getLogger("ignis.queue")

DECLARED = "declared_concurrency"
"""Where the stored queue keeps the concurrency that its handler's code asked for last: what was set by hand since then
stays until the code asks for another."""

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])
Delay = float | str | timedelta


class Queue(Generic[M]):
    """A named queue of one message type: messages go in, a handler gets them, what fails waits in its sideline.

    Thread-safe. Opens the store on first use. Made by ``app.queue(...)``.

    >>> from ignis import Ignis
    >>> from ignis.testing import drain
    >>> with Ignis("memory://") as app:
    ...     greetings = app.queue("greetings", str)
    ...     handler = greetings.handler(lambda name: print("hello", name))
    ...     published = greetings.publish("Ada", key="customer-7")
    ...     drain(greetings)
    hello Ada
    Drained(done=1, dropped=0, sidelined=0)

    The field's words: the sideline is a dead-letter queue, a claim's ``stuck_after`` its visibility timeout.

    In a child after ``fork`` every call raises ForkedHandleError: make a new application object there.
    """

    def __init__(self, app: AppContext, name: str, type: Any, settings: dict[str, Any]) -> None:
        self._app = app
        self.name = check_queue_name(name)
        self.type = type
        self._given = {key: value for key, value in settings.items() if value is not None}
        self._settings = self._asked = resolve(QueueSettings, self._given, app.file, name=name)
        self._codec: BodyCodec[M] = BodyCodec(type, self._settings.codec, self._settings.strict)
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._life = threading.Lock()  # the refresher starts and stops as well as the application
        self._main: Magazine[M] | None = None
        self._sideline: Magazine[M] | None = None
        self._middleware: list[Middleware] = []
        self.spec: HandlerSpec | None = None
        self.consumer: Consumer | None = None
        self.shovel = Shovel(self.name, self.context)
        self.published = 0
        self._past: Counter[str] = Counter()
        self._awaited: AsyncPublisher[M] | None = None
        self._unused = False
        self._registration = self._new_registration()
        self.paused = False
        """Whether its consumers claim nothing, as this process knows it: see `pause`."""
        self.template: HandlerTemplate | None = None
        """What made this queue when it was found in the store; None for one that the code names."""

    # -- what it is made of

    @property
    def app(self) -> Any:
        """The application that made it."""
        return self._app.app

    def context(self) -> QueueContext[M]:
        """What its consumer and its shovel work with, as it is now. Opens the queue."""
        main, sideline = self.main, self.sideline
        return QueueContext(
            self.name,
            main,
            sideline,
            self._codec,
            self._settings,
            self._app.store(),
            self._app.clock(),
            self._app.hooks,
        )

    @property
    def settings(self) -> QueueSettings:
        """The settings in force; once the store was used, those stored with the queue where none were given."""
        return self._settings

    @property
    def codec(self) -> BodyCodec[M]:
        """What encodes and decodes the bodies of the queue's messages."""
        return self._codec

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
        """Registers the queue in the store, or takes up what is stored of it. Idempotent; called on first use. A queue that was
        removed since it was opened here is made anew, which nothing else does.

        Raises QueueMismatchError when the stored queue has another durability or codec, StoreUnreachableError.
        """
        with self._lock:
            if self._main is not None:
                if not self._registration.removed:
                    return
                for name in (self.name, self.name + SIDELINE_SUFFIX):
                    self._app.magazines().forget(name)
            queues = self._app.store().queues
            stored = queues.get(self.name)
            if stored is not None:
                self._settings = resolve(
                    QueueSettings, self._given, self._app.file, name=self.name, stored=_settings_of(stored)
                )
                if self._settings.durability != stored.durability:
                    raise QueueMismatchError(
                        f"queue {self.name!r} is stored with durability {stored.durability!r}, "
                        f"asked for {self._settings.durability!r}; {self._remedy('durability')}"
                    )
                asked = self._settings.codec
                if self.type is not None and (self._codec.name == "raw") != (stored.codec == "raw"):
                    asked = self._codec.name  # bytes and text are stored as they are, and nothing else is
                if asked not in ("auto", stored.codec):
                    raise QueueMismatchError(
                        f"queue {self.name!r} is stored with codec {stored.codec!r}, asked for {asked!r}"
                        f"{'' if asked == self._settings.codec else f', which messages of {_kind(self.type)} have'}; "
                        f"{self._remedy('codec' if asked == self._settings.codec else 'type')}"
                    )
                if self._codec.name != stored.codec:
                    self._codec = BodyCodec(self._type_for(stored.codec), stored.codec, self._settings.strict)
            elif "message_expiry_s" not in given_names(QueueSettings, self._given, self._app.file, name=self.name):
                # As the store has it: where others share the queue they count on it.
                expiry_s = min(self._app.store().message_expiry_s, self._settings.queue_expiry_s)
                self._settings = dataclasses.replace(self._settings, message_expiry_s=expiry_s)
            magazines = self._declared()
            if stored is not None:
                self._warn_of_changes(stored)
            record = self._register(queues, stored)
            if self.spec is not None:
                self.spec.concurrency = min(record.concurrency, self._app.consumer_settings.max_consumers)
            self._main, self._sideline = magazines
            self._main.registration = self._registration
            self._registration.opened()
            self.set_local_pause(PAUSED in record.extra)
            self._unused = False

    def _declared(self) -> tuple[Magazine[M], Magazine[M]]:
        """Both magazines. Where nobody chose a number of shards they keep what they have: somebody may have declared more
        than the queue's record says, and put messages there."""
        try:
            return self._magazine(self.name), self._magazine(self.name + SIDELINE_SUFFIX)
        except QueueMismatchError as exc:
            if "shards" in given_names(QueueSettings, self._given, self._app.file, name=self.name):
                raise QueueMismatchError(f"{exc}; {self._remedy('shards')}") from exc
            names = (self.name, self.name + SIDELINE_SUFFIX)
            shards = max(self._app.magazines().stored_shards(name) or 0 for name in names)
            if shards <= self._settings.shards:
                raise
            log.warning("queue %s has %d shards, its record says %d", self.name, shards, self._settings.shards)
            self._settings = dataclasses.replace(self._settings, shards=shards)
            return self._magazine(self.name), self._magazine(self.name + SIDELINE_SUFFIX)

    def _remedy(self, setting: str) -> str:
        """What to do about a setting that cannot change."""
        return f"leave {setting} out to take the queue as it is, or drain it and remove it first: ignis queue delete {self.name}"

    def _warn_of_changes(self, stored: QueueRecord) -> None:
        """What is replaced now holds for everybody who uses the queue, and not only here."""
        changed = [
            f"{name} from {before} to {now}"
            for name, before in _settings_of(stored).items()
            if name != "codec" and (now := _as_stored(name, getattr(self._settings, name))) != before
        ]
        if changed:
            log.warning(
                "queue %s is stored with other settings, which are replaced for everybody: %s",
                self.name, ", ".join(changed),
            )  # fmt: skip

    def _magazine(self, name: str) -> Magazine[M]:
        settings = self._settings
        return self._app.magazines().get(
            name,
            self._codec,
            shards=settings.shards,
            ttl_s=settings.message_expiry_s or None,
            durability=settings.durability,
            max_message_bytes=settings.max_message_bytes,
            max_headers_bytes=settings.max_headers_bytes,
            may_grow=True,
        )

    def take_expiry_of(self, other: Queue[Any]) -> None:
        """The time to live that the store has chosen for the same queue."""
        self._settings = dataclasses.replace(self._settings, message_expiry_s=other._settings.message_expiry_s)

    @property
    def opened(self) -> bool:
        """Whether the store was asked for it already."""
        return self._main is not None

    def _new_registration(self) -> Registration:
        return Registration(lambda: self._app.store().queues, self.name, self._app.look_s)

    def note_removed(self) -> None:
        """After the queue was removed from the store: publishing raises QueueRemovedError until `open` is called, or somebody
        else has made the queue again."""
        self._registration.note_removed()

    @property
    def unused(self) -> bool:
        """Whether the application was closed and the queue not opened since: it may be asked for with other settings."""
        return self._unused

    def reset(self, made: Queue[Any] | None = None) -> None:
        """After the application was closed: as it was made, with its handler. The next use opens whatever store there is then.

        ``made``: an unopened queue of the same name, whose type and settings are taken over.
        """
        with self._lock:
            self._main = self._sideline = None
            self._registration = self._new_registration()
            self.paused = False
            self._unused = True
            if made is not None:
                self.type, self._given, self._asked = made.type, made._given, made._asked
            # Not resolved again: closing must not fail because the environment was changed meanwhile.
            self._settings = self._asked
            self._codec = BodyCodec(self.type, self._settings.codec, self._settings.strict)
            if self.spec is not None and self.spec.declared is not None:
                self.spec.concurrency = self.spec.declared

    def _type_for(self, codec: str) -> Any:
        return bytes if self.type is None and codec == "raw" else self.type

    def _register(
        self,
        queues: QueueStore,
        stored: QueueRecord | None,
        describe: Callable[[QueueRecord], None] | None = None,
    ) -> QueueRecord:
        """Stores what this process knows of the queue; ``describe`` says what that is of a queue that is there: all."""
        if stored is None:
            record = QueueRecord(self.name, created_at_ms=int(self._app.clock()() * 1000))
            self._describe(record)
            queues.chosen(self.name, given_names(QueueSettings, self._given, self._app.file, name=self.name))
            queues.put(record)
            return record
        describe = describe or self._describe
        record = copy.deepcopy(stored)
        describe(record)
        # Applied to what is stored by then: others count and set there too.
        return stored if record == stored else queues.update(self.name, describe)

    def _describe(self, record: QueueRecord) -> None:
        """Writes what this process knows of the queue into its record."""
        settings = self._settings
        record.shards = settings.shards
        record.message_expiry_s = int(settings.message_expiry_s)
        record.queue_expiry_s = int(settings.queue_expiry_s)
        record.stuck_after_s = int(settings.stuck_after_s)
        record.durability = settings.durability
        record.codec = self._codec.name
        record.shovel_interval_s = math.ceil(settings.shovel_interval_s)
        record.shovel_concurrency = settings.shovel_concurrency
        record.max_returns = settings.max_returns
        record.active = True
        record.handler_type = settings.handler_type or record.handler_type
        self._describe_handler(record)

    def _describe_handler(self, record: QueueRecord) -> None:
        """Only what the handler says: the rest may have been set by others since the queue was opened."""
        spec = self.spec
        if spec is not None:
            record.handler_type = self._settings.handler_type or self._type_name(record, spec)
            if spec.declared is not None and record.extra.get(DECLARED) != spec.declared:
                record.extra[DECLARED] = spec.declared
                record.concurrency = spec.concurrency
            record.max_batch_size = spec.batch_size or 0
            record.max_wait_s = spec.batch_wait_s if spec.batch_size else 0

    def _type_name(self, record: QueueRecord, spec: HandlerSpec) -> str:
        if self.template is None:
            return spec.name
        return record.handler_type or self.template.handler_type

    # -- publishing

    def publish(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> Published:
        """Stores one message; durable, as the queue's setting promises, on return.

        Args:
            message: of the queue's type.
            key: messages of one key keep their order; None spreads them over the shards.
            headers: a small map kept in the envelope.
            delay: nobody gets the message before so long from now: seconds, text such as ``"5m"``, or a timedelta.
            at: ... or before that time, which needs a time zone. See `later`.

        Raises:
            InvalidMessageError, MessageTooLargeError, StoreFullError, StoreFailedError, StoreUnreachableError.
            DelayNotSupportedError: the store keeps no delayed messages; nothing was published.
        """
        if delay is not None or at is not None:
            ids = self.publish_many([message], keys=[key], headers=headers, delay=delay, at=at)
            return Published(ids[0], -1, 0)
        published = self.main.load(message, key=key, headers=headers)
        self._stored(1)
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
    ) -> MessageIds:
        """Stores many messages, in one transaction per 8,192; all durable on return. Returns their ids in order.

        Args:
            messages: of the queue's type.
            key: computes each message's key; or ``keys``, one per message.
            headers: given to each.
            delay, at: as for `publish`; all of them come at the same time.

        Raises InvalidMessageError for a text, bytes or a mapping: they would be published piece by piece.
        """
        given: Any = messages  # whatever it is
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
        ids = main.load_many(messages, keys=keys, headers=headers, due_ms=due_ms)
        self._stored(len(ids))
        return ids

    def _stored(self, count: int) -> None:
        """After every batch that was made durable, by whatever way it came."""
        with self._counting:
            self.published += count
        if self._app.hooks.after_publish:
            self._app.hooks.published(self.name, count)

    @property
    def later(self) -> Later:
        """The messages that wait for their time: to look for, to cancel, and to run now."""
        return Later(self._app.store(), self.main.name)

    def apublish(
        self,
        message: M,
        *,
        key: str | bytes | None = None,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> Coroutine[Any, Any, Published]:
        """`publish` for coroutines: the message joins what others publish at that moment, and one transaction makes all of them
        durable, as with a `publisher`. The event loop runs on meanwhile.

        Returns, arguments and durability are those of `publish`. Messages of one key that one task publishes one after the
        other keep their order. Of a coroutine that is cancelled the message may be stored or not. Any event loop, any thread.

        Raises what `publish` raises; WaitTimeoutError when there was no room for ``publisher.send_timeout_s``; ClosedError
        when the application is closed meanwhile.
        """
        if delay is not None or at is not None:  # by a thread, as it is not gathered with others
            return asyncio.to_thread(self.publish, message, key=key, headers=headers, delay=delay, at=at)
        # Not a coroutine of its own around the one that does it: every message would pay for both.
        if self._awaited is None:
            return self._open_and_apublish(message, key, headers)
        return self._awaited.publish(message, key, headers)

    async def _open_and_apublish(
        self, message: M, key: str | bytes | None, headers: dict[str, Any] | None
    ) -> Published:
        awaited = await asyncio.to_thread(self._open_awaited)  # the store may be opened there
        return await awaited.publish(message, key, headers)

    def _open_awaited(self) -> AsyncPublisher[M]:
        """The publisher of `apublish`, made with its first message. A batch never waits for more: somebody waits for it."""
        with self._lock:
            if self._awaited is None:
                self._awaited = AsyncPublisher(
                    lambda on_placed: self._new_publisher({"linger_s": 0}, on_placed), self._stored
                )
            return self._awaited

    def close_awaited(self, timeout: float | None = None) -> None:
        """Ends the publisher of `apublish`, once what is on its way is durable. The next call makes another. Idempotent."""
        with self._lock:
            awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.close(timeout)

    async def apublish_many(self, messages: Iterable[M], **options: Any) -> MessageIds:
        """`publish_many` off the event loop."""
        return await asyncio.to_thread(self.publish_many, messages, **options)

    def publisher(self, **settings: Any) -> Publisher[M]:
        """A buffered publisher: microseconds per message, durable when its receipt is done.

        Args:
            settings: any of ``[publisher]`` in ``docs/settings.md``: ``capacity``, ``linger_s``, ``max_batch``, ...

        Raises ConfigError; StoreUnreachableError where no memory or thread is left for it.
        """
        return self._new_publisher(settings)

    def _new_publisher(self, settings: dict[str, Any], on_placed: OnPlaced | None = None) -> Publisher[M]:
        main, chosen = self.main, self._app.publisher_settings(settings)
        own: Publisher[M] | None = self._app.store().open_publisher(main, chosen)
        if own is not None:
            return own
        with without_means(f"publisher of queue {self.name!r}"):
            return Publisher(main, chosen, on_stored=self._stored, on_placed=on_placed)

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
        batch_size: int | None = None,
        batch_wait_s: float | None = None,
    ) -> Any:
        """Decorator: registers the queue's handler, ``fn(message)`` or ``fn(message, ctx)``, and returns it unchanged.

        Args:
            concurrency: workers, at most ``consumer.max_consumers``; 0 = publish only here.
            pool: ``thread``, ``async`` (default for coroutine functions) or ``process`` (``fn`` must be importable).
            ignore: exceptions that drop the message instead of sidelining it.
            timeout_s: a handler that runs longer, all attempts together, sends its message to the sideline; None = it may
                run for ever: a process that is alive renews what it works on.
            attempts: calls before a failing message goes to the sideline, one right after the other.
            batch_size: 2 to 200,000: ``fn`` gets a list of up to so many messages ...
            batch_wait_s: ... after waiting at most so long for them (1 to 300 s; default 1).

        Raises:
            ConfigError, ConsumerLimitError.
        """

        options = {
            "concurrency": concurrency, "pool": pool, "ignore": ignore, "timeout_s": timeout_s, "attempts": attempts,
            "batch_size": batch_size, "batch_wait_s": batch_wait_s,
        }  # fmt: skip

        def register(target: F) -> F:
            self.add_handler(target, options)
            self._app.start_late(self.name)
            return target

        return register if fn is None else register(fn)

    def add_handler(self, fn: Callable[..., Any], options: Mapping[str, Any], *, declares: bool = True) -> None:
        """What `handler` does. ``declares``: whether the concurrency is what the code asks for, or the stored one."""
        with self._lock:
            if self.spec is not None:
                raise ConfigError(f"queue {self.name!r} has a handler already: {self.spec.name}")
            spec = make_spec(fn, self.name, self.type, options, self._app.consumer_settings.max_consumers)
            spec.check_middleware(self.layers)
            if not declares:
                spec.declared = None
            self.spec = spec
            if self._main is not None:
                # It was used before it had a handler: what is stored since then does not know what the code asks for.
                try:
                    queues = self._app.store().queues
                    record = self._register(queues, queues.get(self.name), self._describe_handler)
                except BaseException:
                    self.spec = None
                    raise
                spec.concurrency = min(record.concurrency, spec.max_consumers)
            if spec.pool == "process":
                note_handler(fn, Registered(spec, lambda codec: self.make_runner(spec, codec), self._app.close))

    def middleware(self, layer: Middleware) -> Middleware:
        """Decorator: adds ``layer(ctx, call_next)`` around this queue's handler, inside the application's. A coroutine
        function fits around every handler, a plain function only around what is plain. Raises ConfigError, also when the
        handler runs already: its workers would not know of the layer."""
        check_callable(layer, "middleware", "ctx, call_next")
        self.check_not_running(layer)
        self.check_middleware(self._app.layers, layer)
        self._middleware.append(layer)
        return layer

    def check_middleware(self, outer: Sequence[Middleware], *inner: Middleware) -> None:
        """Raises ConfigError where the handler would not run within these of the application, its own, and one more."""
        if self.spec is not None:
            self.spec.check_middleware([*outer, *self._middleware, *inner])

    def check_not_running(self, layer: Middleware) -> None:
        """Raises ConfigError where a layer comes too late."""
        if self.consumer is not None:
            name = getattr(layer, "__qualname__", type(layer).__qualname__)
            raise ConfigError(
                f"middleware {name} comes too late: the handler of queue {self.name!r} runs without it; add it before app.start()"
            )

    @property
    def layers(self) -> list[Middleware]:
        """The middleware round the handler, the outermost first: the application's, then the queue's."""
        return [*self._app.layers, *self._middleware]

    def make_runner(self, spec: HandlerSpec, codec: str | None = None, *outermost: Middleware) -> Runner:
        """What calls the handler: the application's middleware outside, the queue's within.

        Args:
            outermost: further layers around all of them.
            codec: name of the stored codec, in a process that does not open the store.
        """
        if codec is not None and codec != self._codec.name:
            self._codec = BodyCodec(self._type_for(codec), codec, self._settings.strict)
        spec.middleware = [*outermost, *self.layers]
        return Runner(spec, self._codec, self._app.resources)

    @property
    def consumers(self) -> int:
        """Workers asked for in this process."""
        return self.consumer.concurrency if self.consumer is not None else (self.spec.concurrency if self.spec else 0)

    def increase_consumers(self, count: int = 1) -> int:
        """Adds workers; returns the new number. Stored first, then done here; other instances follow within the refresher's
        ``watch_s``. Durable on return. Raises ConsumerLimitError over the limit: nothing changed anywhere."""
        return self._change_consumers(check_whole(count, "count", 0))

    def decrease_consumers(self, count: int = 1) -> int:
        """Removes workers everywhere, like `increase_consumers`: each finishes the message it is at, what it had not
        started goes to the others. With 0 left the queue is only published to."""
        return self._change_consumers(-check_whole(count, "count", 0))

    def _change_consumers(self, by: int) -> int:
        if self.spec is None:
            raise ConfigError(f"queue {self.name!r} has no handler here")
        limit = self._app.consumer_settings.max_consumers
        if self._main is None:
            count = check_consumers(self.spec.concurrency + by, limit)
            self.spec.declared = count  # nothing is stored yet: this is what the code asks for
        else:

            def change(record: QueueRecord) -> None:
                record.concurrency = check_consumers(record.concurrency + by, limit)

            count = self._app.store().queues.update(self.name, change).concurrency
        self.set_local_consumers(count)
        return count

    def set_local_consumers(self, count: int) -> None:
        """Applies a stored number of workers to this process, at most its own limit. Raises ConfigError."""
        count = check_whole(count, "count", 0)
        if self.spec is None:
            return
        limit = self._app.consumer_settings.max_consumers
        if count > limit:
            log.warning(
                "%s is to have %d consumers, here are at most %d (consumer.max_consumers)", self.name, count, limit
            )
            count = limit
        self.spec.concurrency = count
        if self.consumer is not None and self.consumer.concurrency != count:
            self.consumer.resize(count)

    # -- running, by the application and the refresher

    def start(self, *, held: bool = False) -> None:
        """Opens the queue and starts its consumer, where it has a handler, and its shovel. Idempotent.

        ``held``: it claims nothing before `let_go`.
        """
        with self._life:
            if self.opened and not self._registration.removed:
                stored = self._app.store().queues.get(self.name)
                self.set_local_pause(stored is not None and PAUSED in stored.extra)
            self.open()
            if self.consumer is None and self.spec is not None:
                self._app.take_back(self.name)
                consumer = self._new_consumer(self.spec)
                if held:
                    consumer.pause(START)
                if self._app.paused():
                    consumer.pause(PROCESS)
                if self.paused:
                    consumer.pause(FLEET)
                consumer.start()
                self.consumer = consumer
            self.shovel.start()

    def let_go(self) -> None:
        """The consumer that was started ``held`` claims now."""
        consumer = self.consumer
        if consumer is not None:
            consumer.resume(START)

    def _new_consumer(self, spec: HandlerSpec) -> Consumer:
        return Consumer(
            self.context(), spec, self._app.consumer_settings, lambda: self.make_runner(spec), self._app.failed
        )

    def stop(self, timeout: float) -> bool:
        """Stops both; True when nothing is left claimed. Idempotent. Raises ConfigError for a time that is none."""
        timeout = check_timeout(timeout)
        with self._life:
            self.shovel.stop(timeout)
            consumer, clean = self.consumer, True
            if consumer is not None:
                clean = consumer.stop(timeout)
                self.consumer = None
                self._past.update(consumer.figures().counted())
            return clean

    def set_shovel(self, interval_s: float, concurrency: int, max_returns: int) -> None:
        """Applies stored settings of the shovel, in whole seconds, to this process, its schedule included."""
        settings = self._settings
        now = (math.ceil(settings.shovel_interval_s), settings.shovel_concurrency, settings.max_returns)
        if (interval_s, concurrency, max_returns) != now:
            self._settings = dataclasses.replace(
                settings, shovel_interval_s=interval_s, shovel_concurrency=concurrency, max_returns=max_returns
            )
            self.shovel.reschedule()

    # -- looking after

    def sweep(self) -> SweepResult:
        """Recovers at once, by hand, what dead or stuck workers hold of this queue. Raises LockHeldError when another
        instance leads the sweeping: call it there."""
        return self._app.sweep(self.name)

    # -- pausing

    def pause(self) -> None:
        """Makes the consumers of the whole fleet stop claiming; what they have claimed is finished, and publishing goes on.

        Stored with the queue: durable on return, in force here at once and elsewhere within the refresher's ``watch_s`` (in a
        broker, whose deliveries end too, within 10 s), and until `resume`, whatever is restarted. Idempotent. Thread-safe.
        `Ignis.pause` is about one process.

        Raises QueueNotFoundError, StoreUnreachableError.
        """
        self._change_pause(True)

    def resume(self) -> None:
        """Ends `pause` for the whole fleet; the same holds. Idempotent."""
        self._change_pause(False)

    def _change_pause(self, paused: bool) -> None:
        if not self.opened:
            self.open()
        try:
            record = store_pause(self._app.store().queues, self.name, paused)
        except QueueNotFoundError as exc:
            raise self._registration.explain(exc) from exc
        self.set_local_pause(PAUSED in record.extra)

    def set_local_pause(self, paused: bool) -> None:
        """Applies what is stored to this process."""
        self.paused = paused
        consumer = self.consumer
        if consumer is not None:
            if paused:
                consumer.pause(FLEET)
            else:
                consumer.resume(FLEET)

    # -- removing messages

    def purge(self, *, in_flight: bool = False, sideline: bool = False) -> Purged:
        """Removes the messages that wait in the queue when the call begins; nobody handles them. Returns how many.

        In transactions of at most 10,000 messages, so that memory and pauses are bounded whatever waits, and while others
        publish and consume: a message that was claimed is not removed under its handler, and what is published from now on
        stays. Durable on return. When it raises, or the process ends, whole transactions were done. Thread-safe.

        Args:
            in_flight: also what was claimed. Handlers that run go on, and their acknowledgements find nothing.
            sideline: of the sideline instead of the queue.

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

        There is no index: every message that waits is read once, which takes as long as consuming them would take without
        the handlers. What was claimed, before or meanwhile, stays. Durable on return. Thread-safe.

        Args:
            ids: as `publish` returns them: text, UUIDs or 16 bytes.
            where: called in this thread with the envelope: ``id``, ``key``, ``enqueued_at_us``, ``headers``, ``failures``,
                ``reason``, ``error``, and ``body`` in bytes. What cannot be read is never meant.
            sideline: of the sideline instead of the queue.
            limit: remove no more than so many.
            dry_run: only count.

        Raises ConfigError, InvalidMessageError for what is no id, QueueNotFoundError, StoreError, and what ``where`` raises:
        what was removed by then is gone.
        """
        magazine = self.sideline if sideline else self.main
        match = match_messages(ids, where)
        return delete_matching(magazine.store, magazine.name, match, limit=limit, dry_run=dry_run)

    # -- looking

    def stats(self) -> dict[str, Any]:
        """Depths, ages and this process's consumer counts. ``expired``, ``sideline_expired``: messages that ran out of time
        while they waited there, since the queue was made and as far as the store can tell."""
        main, sideline = self.main.metadata(), self.sideline.metadata()
        oldest = self.main.store.oldest_enqueued_at_us(self.name)
        out: dict[str, Any] = {
            "queue": self.name,
            **depths(main, sideline, self.main.store.delayed(self.name)),
            "oldest_age_s": None if oldest is None else max(0.0, self._app.clock()() - oldest / 1e6),
        }
        return {**out, **self.local_stats()}

    def local_stats(self) -> dict[str, Any]:
        """What this process counted, without asking the store."""
        out = {
            "queue": self.name,
            "published": self.published,
            "paused": self.paused,
            "shovel": self.shovel.stats(),
        }
        consumer = self.consumer
        figures = {} if consumer is None else consumer.stats()  # numbers, and text such as why a worker did not start
        for name, count in dict(self._past).items():  # of consumers that were stopped: what is counted never goes down
            figures[name] = figures.get(name, 0) + count
        if figures:
            out["consumer"] = figures
        return out

    def __repr__(self) -> str:
        return f"<Queue {self.name} of {getattr(self.type, '__name__', self.type)}>"


def _as_stored(name: str, value: Any) -> Any:
    """As `Queue._describe` writes it."""
    if name == "shovel_interval_s":
        return math.ceil(value)
    return int(value) if name.endswith("_s") else value


def _kind(type: Any) -> str:
    return getattr(type, "__qualname__", str(type))


def _settings_of(stored: QueueRecord) -> dict[str, Any]:
    names = (
        "shards", "message_expiry_s", "queue_expiry_s", "stuck_after_s", "durability", "codec", "shovel_interval_s",
        "shovel_concurrency", "max_returns",
    )  # fmt: skip
    return {name: getattr(stored, name) for name in names}
