"""Handlers run in the caller's thread, until nothing waits, and what they raise is raised."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import weakref
from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, NamedTuple, cast

from ignis.app import Ignis
from ignis.clock import Clock
from ignis.config import check_whole, shown
from ignis.consumer.acknowledger import Acknowledger
from ignis.consumer.handler import DROPPED, Context, Failure, HandlerSpec, Middleware
from ignis.consumer.in_hand import InHand
from ignis.consumer.middleware import is_coroutine_function
from ignis.consumer.outcome import is_dropped
from ignis.consumer.pools import Chunk
from ignis.consumer.runner import Runner
from ignis.errors import ConfigError, HandlerTimeoutError, IgnisError, UnreadableMessageError, WaitTimeoutError
from ignis.figures import ConsumerFigures
from ignis.message import REASON_EXCEPTION, REASON_TIMEOUT, REASON_UNREADABLE
from ignis.publisher import flush_publishers
from ignis.queue import Queue
from ignis.storage.base import MOST_FRUITLESS, Claim
from ignis.storage.records import group_pointers

__all__ = ["Drained", "adrain", "drain"]

_LIMIT = 10_000

Call = tuple[Runner, Coroutine[Any, Any, Any]]
"""A coroutine to be awaited, and what has to know when it is cancelled by us and not by itself."""
Steps = Generator[Call, Any, "Drained"]
"""Gives calls of coroutine handlers and takes their outcomes."""

_Passes = dict[str, float]
_schedules: weakref.WeakKeyDictionary[Clock, weakref.WeakKeyDictionary[Ignis, _Passes]] = weakref.WeakKeyDictionary()
"""When what is done by a clock was done last here, in the clock's seconds."""


class Drained(NamedTuple):
    """What became of the messages that `drain` handled."""

    done: int = 0
    dropped: int = 0
    sidelined: int = 0
    retried: int = 0
    """Deliveries behind which the message waits for its next attempt."""


def drain(target: Ignis | Queue[Any], *, raises: bool = True, limit: int = _LIMIT) -> Drained:
    """Handles everything that waits, and what handlers publish meanwhile, in this thread and without any other.

    Middleware, attempts, retries, ``ignore`` and outcomes are those of a running application. Handlers and middleware that are
    coroutine functions run in an event loop of their own, a handler with ``pool="process"`` here as well. Before that, open
    publishers are flushed and, with a `ManualClock`, what is due by it is done: ticks of schedules, sweeps, returns from
    the sideline, the refresher's pass.

    Args:
        target: an application that is not started, or one of its queues.
        raises: whether what sends a message to the sideline is raised, once it is there: what the handler raised,
            UnreadableMessageError, HandlerTimeoutError. An AssertionError is raised wherever its message goes: a check of the
            test's must not become a retry. Nothing is raised for a handler that answers ``False``. What still waits is
            left to the next call.
        limit: most messages: a handler that feeds its own queue would go on for ever.

    Raises ConfigError: the application runs, it has no handler, or coroutine functions are to be called from a running event
    loop, where `adrain` goes; WaitTimeoutError: more than ``limit``.
    """
    steps = _steps(target, raises, limit, not _in_loop())
    loop: asyncio.AbstractEventLoop | None = None
    try:
        wanted = next(steps)
        while True:
            loop = loop or asyncio.new_event_loop()
            wanted = steps.send(loop.run_until_complete(wanted[1]))
    except StopIteration as end:
        return cast(Drained, end.value)
    finally:
        steps.close()
        if loop is not None:
            _close(loop)


async def adrain(target: Ignis | Queue[Any], *, raises: bool = True, limit: int = _LIMIT) -> Drained:
    """`drain` for tests that are coroutines: coroutine handlers run in their event loop, the others where they are."""
    steps = _steps(target, raises, limit, True)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(await _awaited(*wanted))
    except StopIteration as end:
        return cast(Drained, end.value)
    finally:
        steps.close()


async def _awaited(runner: Runner, call: Coroutine[Any, Any, Any]) -> Any:
    """In a task of its own: a handler that cancels itself has failed, one that is cancelled with us has no outcome."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        runner.cancelling = True
        task.cancel()
        await asyncio.wait([task])
        raise
    return task.result()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """As `asyncio.run` does at its end."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _steps(target: Ignis | Queue[Any], raises: bool, limit: int, may_await: bool) -> Steps:
    if not isinstance(target, (Ignis, Queue)):
        raise ConfigError(f"{shown(target)} is neither an application nor a queue")
    check_whole(limit, "limit", 1)
    app: Ignis = target if isinstance(target, Ignis) else target.app
    if app.running:
        raise ConfigError("the application runs: its own threads handle the messages; stop it before drain()")
    total: Counter[str] = Counter()
    if app.templates:
        app.refresh()  # the queues that a pattern fits
    _run_due(app, target)
    handling = [queue for queue in _chosen(target) if queue.spec is not None and queue.spec.concurrency]
    if not handling:
        raise ConfigError(f"{target!r} has no handler")
    if not may_await and any(map(_needs_loop, handling)):
        raise ConfigError(
            "an event loop runs in this thread; write `await adrain(...)` for handlers and middleware that are coroutine "
            "functions"
        )
    for queue in handling:
        queue.open()  # says whether it is paused
    claiming = [] if app.paused else [queue for queue in handling if not queue.paused]
    drains = [_QueueDrain(queue, cast(HandlerSpec, queue.spec)) for queue in claiming]
    found = True
    while found:
        found = False
        for queue in app.queues():
            if queue.opened:
                flush_publishers(queue.main)
        for one in drains:
            while claims := one.claim():
                found = True
                counts = yield from one.handle(claims)
                total.update(counts)
                if raises and one.caught is not None:
                    raise one.caught
                if sum(total.values()) > limit:
                    raise WaitTimeoutError(
                        f"more than {limit:,} messages were handled and {one.queue.main.pending():,} wait in queue "
                        f"{one.queue.name!r} (limit): does a handler publish to its own queue?"
                    )
    return Drained(total["done"], total["dropped"], total["sidelined"], total["retried"])


def _chosen(target: Ignis | Queue[Any]) -> list[Queue[Any]]:
    return target.queues() if isinstance(target, Ignis) else [target]


def _needs_loop(queue: Queue[Any]) -> bool:
    """Whether the handler is a coroutine function, or a layer round it."""
    is_async = queue.spec is not None and queue.spec.pool == "async"
    return is_async or any(map(is_coroutine_function, queue.layers))


def _run_due(app: Ignis, target: Ignis | Queue[Any]) -> None:
    """What threads of a running application would have done by now, by a clock that is set by hand."""
    clock = app.clock
    if not clock.by_hand:
        return
    last = _schedules.setdefault(clock, weakref.WeakKeyDictionary()).setdefault(app, {})
    now_s = clock.monotonic_s()

    def due(what: str, every_s: float, first_s: float) -> bool:
        if now_s < (last[what] + every_s if what in last else first_s):
            return False
        last[what] = now_s
        return True

    sweeper, refresher = app.sweeper_settings, app.refresher.settings
    if due("refresher", refresher.interval_s, refresher.initial_delay_s):
        app.refresh()
    app.schedules.store_declared()
    if app.schedules.list():
        app.scheduler().run_once()
    for queue in _chosen(target):
        if due(f"sweeper {queue.name}", sweeper.interval_s, sweeper.initial_delay_s):
            queue.open()
            queue.sweep()
        every_s = queue.settings.shovel_interval_s
        if every_s and (queue.settings.shovel_retry or due(f"shovel {queue.name}", every_s, every_s)):
            queue.shovel.run_scheduled()


class _QueueDrain:
    """One queue's messages, one after the other, or in batches for a batch handler."""

    def __init__(self, queue: Queue[Any], spec: HandlerSpec) -> None:
        self.queue = queue
        self.caught: BaseException | None = None
        """What the last messages went to the sideline for, or a check that failed."""
        self._raised: BaseException | None = None
        self._failed_checks: list[AssertionError] = []
        self._numbers = itertools.count(1)
        self._spec = dataclasses.replace(spec)
        self._needs_loop = _needs_loop(queue)
        layer: Middleware = self._note_async if self._needs_loop else self._note
        self._runner: Runner = queue.make_runner(self._spec, None, layer)
        if self._runner.leave_awaiting():
            self._spec.timeout_s = None  # of a plain function it is not kept
        self._context = queue.context()
        settings = queue.app.consumer_settings
        self._figures = ConsumerFigures()
        nothing = InHand(lambda count: None)
        self._acker = Acknowledger(
            self._context, spec.name, settings, self._figures, lambda: None, nothing, self._spec.retry
        )

    def _note(self, ctx: Context, call_next: Any) -> Any:
        """The outermost layer: the runner makes text of what a handler raises."""
        try:
            return call_next(ctx)
        except BaseException as exc:
            self._note_raised(exc)
            raise

    def _note_raised(self, exc: BaseException) -> None:
        self._raised = exc
        if isinstance(exc, AssertionError):
            self._failed_checks.append(exc)

    async def _note_async(self, ctx: Context, call_next: Any) -> Any:
        try:
            answer = call_next(ctx)
            return await answer if inspect.isawaitable(answer) else answer
        except BaseException as exc:
            self._note_raised(exc)
            raise

    def claim(self) -> list[Claim]:
        main, store = self._context.main, self._context.store
        for _ in range(MOST_FRUITLESS):
            result = main.store.fire(main.name, self._spec.batch_size or 1, store.owner)
            if result.claims or not result.more:
                break
        return result.claims

    def handle(self, claims: Sequence[Claim]) -> Generator[Call, Any, Counter[str]]:
        """Calls the handler and stores what became of the messages; counts them."""
        records: list[bytes] = []
        places: list[tuple[int, list[int]]] = []
        self._raised = self.caught = None
        self._failed_checks.clear()
        for claim in claims:
            for pointer, record in zip(claim.pointers, claim.records, strict=True):
                if record is None:
                    self._acker.add_corrupt(claim.shard, pointer)
                else:
                    places.append((claim.shard, [pointer]))
                    records.append(record)
        outcomes: list[Any] = []
        try:
            if records:
                outcomes = yield from self._call(records)
        except BaseException:  # whoever drains was cancelled or interrupted: no outcome
            self.queue.main.store.reload(self.queue.name, group_pointers((at, one) for at, [one] in places))
            raise
        chunk = Chunk(next(self._numbers), places, records, sum(map(len, records)))
        counts: Counter[str] = Counter(sidelined=sum(map(len, (one.pointers for one in claims))) - len(records))
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Failure) and is_dropped(outcome, self.queue.settings.on_expiry):
                self._acker.add_dropped(chunk, index)
                counts["dropped"] += 1
            elif isinstance(outcome, Failure):
                self._acker.add_failed(chunk, index, outcome)
                self.caught = self.caught or self._error_of(outcome)
                counts["sidelined"] += 1
            else:
                self._acker.add_done(chunk, index, 1)
                counts["dropped" if outcome is DROPPED else "done"] += 1
        before = self._figures.retried
        self._acker.settle()
        counts["retried"] = self._figures.retried - before
        counts["sidelined"] -= counts["retried"]
        if self._failed_checks:
            # Else a test would be green whose check failed, as its message is to be tried again, or is dropped by `ignore`.
            self.caught = self._failed_checks[0]
        elif not counts["sidelined"]:
            self.caught = None
        return counts

    def _call(self, records: list[bytes]) -> Generator[Call, Any, list[Any]]:
        runner = self._runner
        if self._needs_loop:
            if self._spec.batch_size is None:
                return [(yield runner, runner.run_async(records[0]))]
            outcomes: list[Any] | None = yield runner, runner.run_batch_async(records)
        elif self._spec.batch_size is None:
            outcomes = [runner.run(records[0])]
        else:
            outcomes = runner.run_batch(records)
        return [None] * len(records) if outcomes is None else outcomes

    def _error_of(self, failure: Failure) -> BaseException | None:
        if failure.reason == REASON_TIMEOUT:
            return HandlerTimeoutError(f"queue {self.queue.name!r}: {failure.error}")
        if failure.reason == REASON_UNREADABLE:
            return UnreadableMessageError(f"queue {self.queue.name!r}: {failure.error}")
        if failure.reason == REASON_EXCEPTION:
            return self._raised or IgnisError(f"queue {self.queue.name!r}: {failure.error}")
        return None  # the handler's own answer
