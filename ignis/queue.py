"""A queue: a main magazine, a sideline magazine, and the handler that stands between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from ignis.cancellation import Cancelled, cancel_message
from ignis.clearing import Deleted, Purged, delete_matching, match_messages, purge
from ignis.config import check_whole
from ignis.consumer import Consumer
from ignis.consumer.handler import HandlerSpec, Middleware
from ignis.consumer.runner import Runner
from ignis.errors import QueueNotFoundError
from ignis.figures import depths
from ignis.message import Message
from ignis.pausing import PAUSED, store_pause
from ignis.queue_definition import DECLARED
from ignis.queue_publishing import PublishingQueue
from ignis.retries import Retry
from ignis.shovel import Shovel
from ignis.sweep_result import SweepResult

__all__ = ["DECLARED", "Queue"]

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])
RetryOption = Retry | str | Mapping[type[BaseException], Retry | str | None] | None


class Queue(PublishingQueue[M]):
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
        **others: Any,
    ) -> Any:
        """Decorator: registers the queue's handler, ``fn(message)`` or ``fn(message, ctx)``, and returns it unchanged.

        Args:
            concurrency: workers, at most ``consumer.max_consumers``, or ``consumer.max_coroutines``; 0 = publish only here.
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
            **others,  # an option that there is not is refused with its name
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
        ConsumerLimitError over the limit of `queue.handler`; nothing has changed then."""
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

    def count_aside(self, by_reason: Mapping[str, int]) -> None:
        """Counts messages that dead processes held and that were set aside here, by reason."""
        self._handling.count_aside(by_reason)

    def let_go(self) -> None:
        """Makes a consumer that was started ``held`` claim."""
        self._handling.let_go()

    def begin_stop(self) -> None:
        """The consumer claims nothing more; returns at once. `stop` follows."""
        self._handling.begin_stop()

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

        * ``"delayed"``, ``"waiting"``: it is removed, as durably as the queue keeps its messages.
        * ``"running"``: somebody has claimed it. Who did so by hand is not told. A handler is told within about two seconds, on
          this machine or another. A coroutine is cancelled; a thread finds ``ctx.cancelled`` true; a worker process too, and
          is killed after ``consumer.cancel_grace_s`` (10 s). What breaks off goes to the sideline with the reason
          ``cancelled``; what ends by itself before is done.

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
        and consume meanwhile: claimed messages stay, and so does what is published from now on. On return that is as durable as
        what is published to the queue. When it raises, or the process ends, some whole transactions were done; the error says
        how many messages that are, as ``removed_messages``. Thread-safe.

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
        handler. Claimed messages stay. On return that is as durable as what is published to the queue. Thread-safe.

        Args:
            ids: as `publish` returns them: text, UUIDs or 16 bytes.
            where: called in this thread with the envelope: ``id``, ``key``, ``enqueued_at_us``, ``headers``, ``failures``,
                ``reason``, ``error``, and ``body`` in bytes. A message that cannot be read never matches.
            sideline: messages of the sideline instead of the queue.
            limit: remove at most so many.
            dry_run: only count.

        Raises ConfigError, InvalidMessageError for an invalid id, QueueNotFoundError, StoreError, and what ``where`` raises:
        what was removed by then, a thousand messages looked at in each transaction, is gone, and counted as ``removed_messages``.
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
