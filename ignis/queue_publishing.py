"""The ways into a queue: one message, many, from coroutines, and through a buffered publisher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ignis.async_publisher import AsyncPublisher
from ignis.config import shown
from ignis.context import AppContext
from ignis.deadlines import Deadline, deadline_of
from ignis.delaying_publisher import DelayingPublisher
from ignis.errors import ConfigError, InvalidMessageError
from ignis.later import Later, due_time_ms
from ignis.magazine import ID_BYTES, MessageIds, Published
from ignis.near_names import elsewhere_or_meant
from ignis.publisher import OnPlaced, Publisher
from ignis.queue_parts import QueueParts
from ignis.storage.os_errors import without_means
from ignis.tracing.publishing import traced_publish, traced_publish_many, traced_send
from ignis.upkeep import in_thread

if TYPE_CHECKING:
    from ignis.tracing.otel import Tracing

__all__ = ["PublishingQueue"]

M = TypeVar("M")
Delay = float | str | timedelta

_OPTIONS = ("key", "keys", "headers", "delay", "at", "expires_in", "expires_at")


def _refuse_options(others: Mapping[str, object]) -> NoReturn:
    name = next(iter(others))
    raise ConfigError(
        f"publish_many() has no argument {shown(name)}; {elsewhere_or_meant(name, _OPTIONS)}known: {', '.join(_OPTIONS)}"
    )


class PublishingQueue(QueueParts[M]):
    """A queue as its publishers see it. Thread-safe. Opens the store on first use."""

    def __init__(self, app: AppContext, name: str, type: Any, settings: dict[str, Any]) -> None:
        super().__init__(app, name, type, settings)
        self._awaited: AsyncPublisher[M] | None = None
        if app.tracing is not None:
            self._trace_publishing(app.tracing)

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
            key: messages of one key go to one shard, and are handed out in their order; None spreads them.
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
            published = (self._main or self.main).load(message, key=key, headers=headers)
        else:
            deadline = self._deadline(expires_in, expires_at)
            published = self.main.load(message, key=key, headers=headers, deadline=deadline)
        try:
            self._times.publish.add_since(began_s, 1)
            if self._app.hooks.after_publish:
                self._app.hooks.published(self.name, 1)
        except MemoryError:  # it is stored
            pass
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
        **others: NoReturn,
    ) -> MessageIds:
        """Stores many messages, 8,192 or 64 MiB in each transaction, and through a broker at most what a frame takes. On return
        all are durable, as the queue's ``durability`` promises. Returns their ids in order, which take 16 bytes each.

        A generator is read as its messages are stored: those of the next transaction when the last are durable.

        When one of them is refused, a transaction fails, or the generator raises, those of earlier transactions stay stored: the
        error says how many, and has them as ``stored_messages``.

        Args:
            messages: of the queue's type.
            key: computes each message's key. Give ``key`` or ``keys``.
            keys: one key for each message.
            headers: given to each.
            delay, at, expires_in, expires_at: as for `publish`; all messages are due, and expire, at the same time.

        Raises what `publish` raises. InvalidMessageError also for text, bytes or a mapping: they would be published piece by
        piece.
        """
        if others:  # `publish` has no such look: it would cost each of its calls a mapping
            _refuse_options(others)
        given: Any = messages  # of any type, whatever the annotation says
        if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
            raise InvalidMessageError(
                f"messages are {shown(given)}, a {type(given).__name__}: one message is for publish(), several go into a list"
            )
        if key is not None:
            if keys is not None:
                raise ConfigError("give key or keys, not both")
            compute: Any = key  # as above
            if not callable(compute):
                same = shown(compute) if isinstance(compute, (str, bytes)) else "..."
                raise ConfigError(
                    f"key = {shown(compute)} is not a function that computes a message's key: write key=lambda message: {same}, "
                    "or keys=[...] with one for each message"
                )
        main = self.main
        # First the deadline, for which nobody has to be asked: a broker may answer late.
        deadline = None if expires_in is None and expires_at is None else self._deadline(expires_in, expires_at)
        due_ms = None if delay is None and at is None else due_time_ms(self._app.store(), delay, at)
        began_s = monotonic()
        parts: list[bytes] = []
        for ids in main.load_parts(messages, key=key, keys=keys, headers=headers, due_ms=due_ms, deadline=deadline):
            parts.append(ids)
            with contextlib.suppress(MemoryError):  # they are stored
                self._stored(len(ids) // ID_BYTES)
        with contextlib.suppress(MemoryError):
            self._times.publish.add_since(began_s)
        return MessageIds(b"".join(parts))

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
            return in_thread(
                self.publish, message, key=key, headers=headers, delay=delay, at=at, expires_in=expires_in,
                expires_at=expires_at,
            )  # fmt: skip
        # Returns the inner coroutine and awaits nothing here: every message would pay for two coroutines.
        awaited = self._awaited
        if awaited is None:
            return self._open_and_apublish(message, key, headers)
        return awaited.publish(message, key, headers)

    async def _open_and_apublish(
        self, message: M, key: str | bytes | None, headers: dict[str, Any] | None
    ) -> Published:
        awaited = await in_thread(self._open_awaited)  # the store may be opened there
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
        """Ends the publisher of `apublish` when what it holds is durable. The next `apublish` makes another. Idempotent.

        ``timeout``: seconds; None = ``publisher.close_timeout_s``."""
        with self._lock:
            awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.close(timeout)

    def reset(self, made: QueueParts[Any] | None = None) -> None:
        """See `QueueParts.reset`."""
        with self._lock:
            super().reset(made)
            self._awaited = None  # one that was made while the application was being closed has ended with it

    async def apublish_many(self, messages: Iterable[M], **options: Any) -> MessageIds:
        """Calls `publish_many` in a thread, off the event loop. A generator is read in that thread."""
        return await in_thread(self.publish_many, messages, **options)

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
