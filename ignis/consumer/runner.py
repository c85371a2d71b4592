"""Who calls a handler: for one record or a batch, with its middleware, attempts and time-out, and tells the outcome.

What a handler is stands in `ignis.consumer.handler`, what its answers mean in `ignis.consumer.outcome`. There are no threads and
no I/O here: the pools in ``ignis/consumer/pools`` call `Runner`.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ignis.consumer.attempts import OpenBatch, Opened, follow, follows_at_once
from ignis.consumer.call_clock import BLOCKED_S, CallClock, OverrunError, Overruns, stepped, within
from ignis.consumer.forked import end_child, ending_children
from ignis.consumer.handler import Context, HandlerSpec
from ignis.consumer.handler_form import takes_context
from ignis.consumer.middleware import Completed, wrapped
from ignis.consumer.outcome import (
    DROPPED,
    Dropped,
    Failed,
    Failure,
    Mistake,
    Outcome,
    batch_outcomes,
    failure_of,
    is_awaitable,
    is_retry_later,
    joined_failure,
    outcome_of,
    overrun_failure,
    stamped,
)
from ignis.consumer.work import is_asked
from ignis.errors import HandlerTimeoutError, UnreadableMessageError
from ignis.history import MOST_ATTEMPTS
from ignis.message import (
    REASON_CANCELLED,
    REASON_EXPIRED,
    REASON_UNREADABLE,
    BodyCodec,
    Message,
    as_utf8,
    decode_meta,
    expires_at_ms_of,
    has_deadline,
    tried,
)
from ignis.native import Record
from ignis.native.handling import (
    ANSWERED,
    AWAITED,
    DATED,
    FORKED,
    UNREADABLE,
    Progress,
    handle_coroutines,
    handle_records,
    open_bodies,
)
from ignis.native.histogram import Histogram
from ignis.process_hooks import FORKS
from ignis.retries import ANY_HANDLER, Backoff, RetryRules, is_kind

__all__ = ["NOT_CALLED", "Runner", "message_name", "overrun_follows"]

NOT_CALLED = (REASON_UNREADABLE, REASON_EXPIRED)
"""Reasons of messages that were not handed to the handler."""


class Runner:
    """Calls one handler for one record, or one batch of them, and tells the outcome. Not shared between workers.

    Args:
        spec: the handler.
        codec: the queue's body codec.
        resources: given to every context.
        wall: seconds since 1970, by which deadlines go.
    """

    def __init__(
        self,
        spec: HandlerSpec,
        codec: BodyCodec[Any],
        resources: Mapping[str, Any],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._spec = spec
        self._log = spec.log
        self._wall = wall
        self._decode = codec.decode_checked
        self._decode_quickly = None if codec.takes_any else codec.decode
        self._resources = resources
        self._queue = spec.queue
        self._attempts = spec.attempts
        self._retry = spec.retry
        self._ignore = spec.ignore
        self._layers = _onion(spec, self._late if spec.middleware and spec.batch_size is None else None)
        self._call = ending_children(self._layers, spec.queue)
        self._fn = spec.fn
        self._takes_context = takes_context(spec.fn)
        self.direct: (
            Callable[[Sequence[bytes], int, int, Progress, float, Histogram], tuple[int, int, Any, float]] | None
        ) = None
        """`handle_records` for this handler, where nothing stands between the worker and it; see `judge`."""
        if not spec.middleware and spec.attempts == 1 and spec.batch_size is None and spec.pool != "async":
            self.run = self._run_direct  # type: ignore[method-assign]
            decode = None if codec.takes_any else codec.decode_checked
            kind = Context if self._takes_context else None
            self.direct = functools.partial(handle_records, spec.fn, decode, kind, spec.queue, resources)
        self.whole = bool(spec.middleware) or spec.attempts > 1
        """Whether `begin` calls `run_async` and tells of outcomes: middleware or attempts stand round the handler."""
        self.begin: Callable[[Sequence[bytes], int, int, Progress, float, Histogram, Any], tuple[int, int, Any, float]]
        """`handle_coroutines` for this handler; see `judge_begun` and `go_on`."""
        if self.whole:
            self.begin = functools.partial(handle_coroutines, self.run_async, False, None, spec.queue, resources)
        else:
            decode = None if codec.takes_any else codec.decode_checked
            kind = Context if self._takes_context else None
            self.begin = functools.partial(handle_coroutines, spec.fn, decode, kind, spec.queue, resources)
        self._overruns = None if spec.timeout_s is None or spec.pool != "async" else Overruns(spec.timeout_s)
        self.cancelling = False
        """Set when the worker itself cancels what runs: only then a cancelled handler has no outcome."""

    def leave_awaiting(self) -> bool:
        """Leaves layers that are coroutine functions to the caller's event loop, by `run_async` and `run_batch_async`, though
        the handler is plain. Returns whether there are any."""
        if not isinstance(self._layers, Completed):
            return False
        self._call = ending_children(self._layers.call, self._queue)
        return True

    def run(self, data: bytes) -> Outcome:
        """One record through a plain handler."""
        try:
            record = Record(data)
            if record.meta and (expired := self._expired(record)):
                return expired
            body = self._decode(record.body)
        except UnreadableMessageError as exc:
            return self._unreadable(data, exc)
        context = Context(record, body, self._queue, None, self._resources)
        earlier: Sequence[Failed] = ()
        call = 1
        while True:
            try:
                answer = self._call(context)
            except BaseException as exc:
                # SystemExit too: a handler ends its message, never its worker.
                if self._drops(exc):
                    return DROPPED
                outcome: Outcome = self._raised(exc, record, call)
            else:
                if answer is None or answer is True:
                    return None
                outcome = self._answered(answer, record, call)
            if not isinstance(outcome, Failure):
                return outcome
            if call >= self._attempts or not follows_at_once(outcome):
                return joined_failure(earlier, outcome)
            earlier = [*earlier[1 - MOST_ATTEMPTS :], stamped(outcome)]
            call += 1
            follow(context, outcome.error)

    def _run_direct(self, data: bytes) -> Outcome:
        """`run` where nothing stands between the worker and the handler: no middleware, one attempt."""
        try:
            record = Record(data)
            if record.meta and (expired := self._expired(record)):
                return expired
            body = self._decode(record.body)
        except UnreadableMessageError as exc:
            return self._unreadable(data, exc)
        forks = FORKS[0]
        try:
            if self._takes_context:
                answer = self._fn(body, Context(record, body, self._queue, None, self._resources))
            else:
                answer = self._fn(body)
        except BaseException as exc:
            if FORKS[0] != forks:
                end_child(self._queue, exc)
            return DROPPED if self._drops(exc) else self._raised(exc, record, 1)
        if FORKS[0] != forks:
            end_child(self._queue, None)
        return None if answer is None or answer is True else self._answered(answer, record, 1)

    def judge(self, what: int, data: bytes, value: Any) -> Outcome:
        """The outcome of a record for which `direct` came back."""
        if what == ANSWERED:
            return self._answered(value, Record(data), 1)
        if what in (UNREADABLE, DATED):
            return self.run(data)
        if what == FORKED:
            end_child(self._queue, value)
        return DROPPED if self._drops(value) else self._raised(value, Record(data), 1)

    async def run_async(self, data: bytes) -> Outcome:
        """One record through a coroutine handler. All attempts together take at most the handler's ``timeout_s``, of which the
        time in which other calls blocked the event loop is no part."""
        clock = self._clock()
        began_s = 0.0 if clock is None else clock.now_s()
        try:
            record = Record(data)
            if record.meta and (expired := self._expired(record)):
                return expired
            body = self._decode(record.body)
        except UnreadableMessageError as exc:
            return self._unreadable(data, exc)
        finally:
            if clock is not None:
                clock.note_step(began_s)
        context = Context(record, body, self._queue, None, self._resources)
        earlier: Sequence[Failed] = ()
        call = 1
        while True:
            answer, outcome = await self._await(context, clock, call, 1)
            if outcome is None:
                if answer is None or answer is True:
                    return None
                outcome = self._answered(answer, record, call)
            if not isinstance(outcome, Failure):
                return outcome
            if not follows_at_once(outcome) or call >= self._attempts:
                return joined_failure(earlier, outcome)
            earlier = [*earlier[1 - MOST_ATTEMPTS :], stamped(outcome)]
            call += 1
            follow(context, outcome.error)

    def judge_begun(self, what: int, data: bytes, value: Any) -> Outcome:
        """The outcome of a record for which `begin` came back with what a call `ANSWERED`, `RAISED`, or `FORKED`."""
        if what == FORKED:
            end_child(self._queue, value)
        if what != ANSWERED:
            return self._ended_by(value, lambda: Record(data), 1, 1)
        if self.whole:
            return cast(Outcome, value)
        return self._answered(value, Record(data), 1)

    async def go_on(self, what: int, data: bytes, value: Any, began_s: float) -> Outcome:
        """The outcome of a record for which `begin` came back without one: its call is `SUSPENDED` or `AWAITED`, or has not been
        made. ``began_s``: when it began, by `time.monotonic`."""
        if what in (UNREADABLE, DATED):
            return await self.run_async(data)
        if self.whole:
            coroutine, context, waits_for = value
            return cast(Outcome, await stepped(coroutine, context, None, waits_for))
        forks = FORKS[0]
        clock = None if self._overruns is None else self._overruns.clock(time.monotonic() - began_s)
        try:
            if what == AWAITED:
                answer, context = value
                if not is_awaitable(answer):
                    return self._answered(answer, Record(data), 1)
                steps = stepped(_awaiting(answer), context, clock)
            else:
                coroutine, context, waits_for = value
                if clock is not None:
                    clock.note_step(clock.began_s)
                steps = stepped(coroutine, context, clock, waits_for)
            answer = await (steps if clock is None else within(steps, clock, self._overruns, self._queue))
        except OverrunError:
            return self._overrun(Record(data), 1)
        except BaseException as exc:
            if FORKS[0] != forks:
                end_child(self._queue, exc)
            return self._ended_by(exc, lambda: Record(data), 1, 1)
        if FORKS[0] != forks:
            end_child(self._queue, None)
        return None if answer is None or answer is True else self._answered(answer, Record(data), 1)

    def note_blocked(self, took_s: float) -> None:
        """Calls that never waited have kept the event loop for so long."""
        if took_s >= BLOCKED_S and self._overruns is not None and not self.whole:
            self._overruns.note_blocked(took_s)

    def run_batch(self, records: Sequence[bytes]) -> list[Outcome] | None:
        """Several records through a batch handler; one outcome each, in order, or None: all are done. A further attempt gets what
        failed."""
        batch = self._open_batch(records)
        call = 1
        while batch.count:
            context = batch.context(self._queue, self._resources, call)
            try:
                answer = self._call(context)
                if batch.all_done(answer):
                    return None
                answers = self._batch_answered(answer, batch.todo, call)
            except BaseException as exc:
                todo = batch.todo
                outcome: Outcome = DROPPED if self._drops(exc) else self._raised(exc, todo[0].record, call, len(todo))
                answers = [outcome] * len(todo)
            batch.close(answers, call)
            call += 1
        return batch.outcomes

    async def run_batch_async(self, records: Sequence[bytes]) -> list[Outcome] | None:
        """`run_batch` for coroutine handlers."""
        clock = self._clock()
        began_s = 0.0 if clock is None else clock.now_s()
        batch = self._open_batch(records)
        if clock is not None:
            clock.note_step(began_s)
        call = 1
        while count := batch.count:
            context = batch.context(self._queue, self._resources, call)
            answer, outcome = await self._await(context, clock, call, count)
            if outcome is not None:
                batch.close([outcome] * count, call)
            elif batch.all_done(answer):
                return None
            else:
                batch.close(self._batch_answered(answer, batch.todo, call), call)
            call += 1
        return batch.outcomes

    # -- answers

    def _answered(self, answer: object, record: Record, call: int) -> Outcome:
        """What an answer means. A `RetryLater` counts as if it were raised."""
        if is_retry_later(answer):
            return self._raised(answer, record, call)
        outcome = outcome_of(answer, self._log)
        if isinstance(outcome, Mistake):
            self._tell_mistake(outcome, record, call)
        return outcome

    def _batch_answered(self, answer: object, todo: Sequence[Opened], call: int) -> list[Outcome]:
        """The same for each message of a batch."""
        if is_retry_later(answer):
            return [self._raised(answer, todo[0].record, call, len(todo))] * len(todo)
        outcomes = batch_outcomes(
            answer, len(todo), self._log, lambda asked, number: self._raised(asked, todo[number].record, call)
        )
        told: object = None
        for outcome, one in zip(outcomes, todo, strict=True):
            if isinstance(outcome, Mistake) and outcome is not told:  # one answer for all of them is one mistake
                told = outcome
                count = sum(other is outcome for other in outcomes)
                self._tell_mistake(outcome, one.record, call, count)
        return outcomes

    def _tell_mistake(self, failure: Mistake, record: Record, call: int, count: int = 1) -> None:
        again = call < self._attempts or _follows(self._retry, Exception, record)
        self._log.failed(failure.reason, failure.error, _which(record, count), again=again)

    # -- failures

    def _drops(self, exc: BaseException) -> bool:
        return is_kind(type(exc), *self._ignore) and not is_retry_later(exc)

    def _raised(self, exc: BaseException, record: Record, call: int, count: int = 1) -> Failed:
        """The outcome of a call that raised, which is logged. ``record``: of the message, or the first of a batch."""
        ended_s = time.monotonic()
        again = self._after(exc)
        if again is None:
            follows = call < self._attempts
        else:
            follows = not again.counts or (tried(record) or 0) + call < again.attempts
        if not (follows and is_retry_later(exc)):  # what was asked for is no trouble, and in the history
            self._log.raised(exc, _which(record, count), again=follows)
        failure = failure_of(exc)
        return Failed.of(failure.reason, failure.error, failure.attempts, [ended_s], again)

    def _after(self, exc: BaseException) -> Backoff | None:
        """What follows, where the exception decides it."""
        if is_retry_later(exc):
            return exc.within(ANY_HANDLER if self._retry is None else self._retry.attempts_for(type(exc)))
        return None if self._retry is None else self._retry.after(type(exc))

    def _unreadable(self, data: bytes, exc: UnreadableMessageError) -> Failure:
        failure = Failure(REASON_UNREADABLE, as_utf8(str(exc)))
        self._log.failed(failure.reason, failure.error, message_name(data))
        return failure

    def _expired(self, record: Record) -> Failure | None:
        """The outcome of a message whose deadline has passed before its turn came; None for one that is to be handled."""
        meta = record.meta
        if not has_deadline(meta):
            return None
        try:
            ends_ms = expires_at_ms_of(decode_meta(meta))
        except UnreadableMessageError:
            return None  # what nobody can read is no deadline
        if ends_ms is None or (late_s := self._wall() - ends_ms / 1000) < 0:
            return None
        return Failure(REASON_EXPIRED, f"its deadline had passed by {late_s:.3f} s when its turn came")

    def _late(self, context: Context) -> Failure | None:
        """The same behind the middleware, which may have waited. Calls by ``attempts`` follow whenever it is."""
        if context._last_error is not None:
            return None
        record = context._first_record()
        return self._expired(record) if record.meta else None

    def _clock(self, ago_s: float = 0.0) -> CallClock | None:
        return None if self._overruns is None else self._overruns.clock(ago_s)

    async def _await(
        self, context: Context, clock: CallClock | None, call: int, count: int
    ) -> tuple[Any, Failure | Dropped | None]:
        """(what the handler answered, None) or (None, what became of a call that raised or ran for too long)."""
        try:
            began_s = 0.0 if clock is None else clock.now_s()
            try:
                answer = self._call(context)
            finally:
                if clock is not None:
                    clock.note_step(began_s)
            if is_awaitable(answer):  # a middleware may answer by itself
                if clock is not None:
                    answer = stepped(answer.__await__(), None, clock)
                answer = await within(answer, clock, self._overruns, self._queue)
            return answer, None
        except OverrunError:
            return None, self._overrun(context._first_record(), count)
        except BaseException as exc:
            return None, self._ended_by(exc, context._first_record, call, count)

    def _overrun(self, record: Record, count: int) -> Failure:
        failure = overrun_failure(cast(float, self._spec.timeout_s))
        again = _follows(self._retry, HandlerTimeoutError, record)
        self._log.failed(failure.reason, failure.error, _which(record, count), again=again)
        return failure

    def _ended_by(self, exc: BaseException, record: Callable[[], Record], call: int, count: int) -> Failure | Dropped:
        """What became of a coroutine's call that raised. Raises the exception itself where the worker cancels what runs."""
        if self._drops(exc):
            return DROPPED
        if is_kind(type(exc), asyncio.CancelledError):
            if self.cancelling:
                raise exc
            if is_asked(self._queue, record().id):
                return Failure(REASON_CANCELLED, "its coroutine was cancelled")
        return self._raised(exc, record(), call, count)

    def _open_batch(self, records: Sequence[bytes]) -> OpenBatch:
        bodies = open_bodies(self._decode_quickly, records)
        batch = OpenBatch(records, self._attempts, bodies)
        if bodies is not None:
            return batch
        for index, data in enumerate(records):
            try:
                record = Record(data)
                if record.meta and (expired := self._expired(record)):
                    batch.outcomes[index] = expired
                    continue
                batch.todo.append(Opened(index, record, Message(record), self._decode(record.body)))
            except UnreadableMessageError as exc:
                batch.outcomes[index] = self._unreadable(data, exc)
        return batch


async def _awaiting(answer: Any) -> Any:
    return await answer


async def _answer(answer: Any) -> Any:
    return answer


def _onion(spec: HandlerSpec, late: Callable[[Context], Failure | None] | None) -> Callable[[Context], Any]:
    """The handler wrapped in its middleware, the first registered outermost. ``late`` is asked before the handler begins, and
    answers in its place where it answers."""
    fn = spec.fn
    with_context = takes_context(fn)
    awaited = spec.pool == "async"

    def innermost(context: Context) -> Any:
        if late is not None and (instead := late(context)) is not None:
            return _answer(instead) if awaited else instead
        return fn(context.body, context) if with_context else fn(context.body)

    return wrapped(innermost, spec.middleware, awaited)


def message_name(data: bytes, count: int = 1) -> str:
    """What a stored message is called in the log, or a batch of which it is the first."""
    try:
        return _which(Record(data), count)
    except UnreadableMessageError:
        return "a message without an envelope"


def overrun_follows(rules: RetryRules | None, data: bytes) -> bool:
    """Whether another attempt follows a call that was given up, for a stored message."""
    try:
        return _follows(rules, HandlerTimeoutError, Record(data))
    except UnreadableMessageError:
        return False


def _follows(rules: RetryRules | None, kind: type[Exception], record: Record) -> bool:
    """Whether a handler's policy lets another delivery follow this one, which failed as if by that exception."""
    if rules is None or (before := tried(record)) is None:
        return False
    return before + 1 < rules.after(kind).attempts


def _which(record: Record, count: int) -> str:
    """The message as the log names it, or the batch by its first."""
    name = f"message {uuid.UUID(bytes=record.id)}"
    return name if count == 1 else f"a batch of {count:,} from {name} on"
