"""From what a handler did to what becomes of its message.

| the handler                                   | outcome                       |
| returns ``None`` or ``True``                  | done                          |
| returns ``False``                             | sideline, ``rejected``        |
| returns an `ignis.Failure`                    | sideline, its reason          |
| returns `ignis.DROPPED`                       | dropped                       |
| returns another value                         | done, and said once           |
| returns work that nobody awaits (see below)   | sideline, ``exception``       |
| returns an `ignis.RetryLater`                 | as if it raised it            |
| raises one of ``ignore``                      | dropped                       |
| raises anything else                          | sideline, ``exception``       |
| runs for longer than ``timeout_s``            | sideline, ``timeout``         |
| (body cannot be decoded: it is not called)    | sideline, ``unreadable``      |
| (its process dies)                            | sideline, ``crash``           |
| (its deadline has passed: it is not called)   | as the queue's ``on_expiry``  |

A batch handler gets a list and answers for all at once in the same way, or with a list of such answers, one per
message. A coroutine, a generator, a future or anything else to be awaited is work whose end nobody waits for: the message
must not be lost for it.

Where the handler has a ``retry``, or asks by `ignis.RetryLater`, what says sideline here is for the last attempt: see
`ignis.consumer.retrying`.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from ignis.config import shown
from ignis.consumer.handler_log import HandlerLog
from ignis.errors import ConfigError
from ignis.history import MOST_ATTEMPTS, Attempt, trace_of, type_name
from ignis.message import REASON_EXCEPTION, REASON_EXPIRED, REASON_REJECTED, REASON_TIMEOUT, REASONS, as_utf8
from ignis.near_names import meant
from ignis.retries import Backoff, RetryLater

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "DROPPED",
    "Dropped",
    "Failed",
    "Failure",
    "Mistake",
    "Outcome",
    "again_after",
    "attempts_of",
    "batch_outcomes",
    "by_worker",
    "failure_of",
    "is_awaitable",
    "is_dropped",
    "is_retry_later",
    "joined_failure",
    "now_ms",
    "outcome_of",
    "overrun_failure",
    "stamped",
    "timed",
]


class _Why(NamedTuple):
    reason: str
    error: str


class Failure(_Why):
    """Why a message failed. A handler that returns one says more than ``False`` does; a batch handler may have one in its list.

    >>> Failure("rejected", "the shop is closed")
    Failure(reason='rejected', error='the shop is closed')

    Args:
        reason: one of `ignis.message.REASONS`; ``rejected`` is the one of ``False``. Lists, filters and metrics go by it.
        error: a text for who looks into the sideline; its first 2,000 characters are kept.

    Raises ConfigError for another reason.
    """

    __slots__ = ()

    def __new__(cls, reason: str, error: str = "") -> Self:
        if reason not in REASONS:
            raise ConfigError(
                f"Failure: reason = {shown(reason)} is none: {meant(reason, REASONS)}known: {', '.join(REASONS)}; what happened "
                "goes into error, the second argument"
            )
        return super().__new__(cls, reason, error)


class Failed(Failure):
    """A failure and the calls that it is made of, oldest first. Equal to another of the same reason and error."""

    attempts: tuple[Attempt, ...]
    ended_s: tuple[float, ...]
    """When each of the calls ended, by the clock of `time.monotonic`; empty once the durations are in the attempts."""
    again: Backoff | None
    """What follows, where an exception has decided it."""

    @classmethod
    def of(
        cls,
        reason: str,
        error: str,
        attempts: Sequence[Attempt] = (),
        ended_s: Sequence[float] = (),
        again: Backoff | None = None,
    ) -> Failed:
        made = cls(reason, error)
        made.attempts = tuple(attempts)
        made.ended_s = tuple(ended_s)
        made.again = again
        return made


class Mistake(Failure):
    """A failure by an answer that nobody gives on purpose: the log tells of it as it does of an exception."""

    __slots__ = ()


def again_after(failure: Failure) -> Backoff | None:
    """What an exception has decided; None = nothing has."""
    return failure.again if isinstance(failure, Failed) else None


def _of_calls(failure: Failure, attempts: Sequence[Attempt], ended_s: Sequence[float] = ()) -> Failed:
    """The same failure, made of these calls."""
    return Failed.of(failure.reason, failure.error, attempts, ended_s, again_after(failure))


def attempts_of(failure: Failure) -> tuple[Attempt, ...]:
    """The calls that it is made of; for a failure that nobody called anything for, one made of its reason."""
    if isinstance(failure, Failed) and failure.attempts:
        return failure.attempts
    return (Attempt(now_ms(), failure.reason, failure.error),)


def stamped(failure: Failure) -> Failed:
    """With the call that it is made of, which has ended just now, where it does not say."""
    if isinstance(failure, Failed) and failure.attempts:
        return failure
    return _of_calls(failure, attempts_of(failure), [time.monotonic()])


def timed(outcome: Outcome, began_s: float) -> Outcome:
    """With how long each call took, when the first began at this monotonic time. What did not fail costs nothing."""
    if not isinstance(outcome, Failure):
        return outcome
    failed = stamped(outcome)
    if not failed.ended_s:
        return failed
    ended = list(failed.ended_s)
    if len(ended) > len(failed.attempts):
        began_s = ended.pop(0)  # of a call before those that are kept
    attempts = []
    for attempt, ended_s in zip(failed.attempts, ended, strict=True):
        attempts.append(attempt._replace(took_ms=max(0, round((ended_s - began_s) * 1000))))
        began_s = ended_s
    return _of_calls(failed, attempts)


def overrun_failure(timeout_s: float) -> Failed:
    """Of a call that was given up because it ran for longer than this."""
    error = f"handler ran for more than {timeout_s:g} s"
    attempt = Attempt(now_ms(), REASON_TIMEOUT, error, took_ms=round(timeout_s * 1000))
    return Failed.of(REASON_TIMEOUT, error, [attempt], [time.monotonic()])


def by_worker(failure: Failure, worker: str) -> Failed:
    """With the name of who ran the calls, where they do not say."""
    return _of_calls(failure, [one if one.worker else one._replace(worker=worker) for one in attempts_of(failure)])


def now_ms() -> int:
    """Milliseconds since 1970 by the wall clock, for people."""
    return time.time_ns() // 1_000_000


def joined_failure(earlier: Sequence[Failed], last: Failure) -> Failure:
    """The outcome of several calls: the last one's, with all of them."""
    if not earlier:
        return last
    calls = [*earlier, stamped(last)]
    attempts = [one for call in calls for one in call.attempts]
    ended_s = [at for call in calls for at in call.ended_s]
    return _of_calls(last, attempts[-MOST_ATTEMPTS:], ended_s[-MOST_ATTEMPTS - 1 :])


def is_dropped(failure: Failure, on_expiry: str) -> bool:
    """Whether the message is dropped and counted instead of being set aside: it has expired, and the queue says so."""
    return failure.reason == REASON_EXPIRED and on_expiry == "drop"


class Dropped:
    """The type of `DROPPED`."""

    reason = ""
    """As of what did not fail."""

    def __repr__(self) -> str:
        return "DROPPED"


DROPPED: Final = Dropped()
"""The outcome of an ignorable exception, also as a handler's own answer: accounted for, and not in the sideline."""

Outcome = Failure | Dropped | None
"""What became of one message; None = done."""


def failure_of(exc: BaseException) -> Failed:
    """Never raises: an exception whose own text cannot be made is told by its type."""
    kind = type_name(exc)
    try:
        error = as_utf8(f"{kind}: {exc}")
    except BaseException:  # KeyboardInterrupt too: it is the user's code that is called here
        error = as_utf8(kind)
    return Failed.of(REASON_EXCEPTION, error, [Attempt(now_ms(), REASON_EXCEPTION, error, trace_of(exc))])


def _storable(failure: Failure) -> Failure:
    """A failure that a handler answered with holds what the handler liked."""
    try:
        return Failure(as_utf8(str(failure.reason)), as_utf8(str(failure.error)))
    except BaseException as exc:
        return failure_of(exc)


def outcome_of(answer: object, log: HandlerLog) -> Outcome:
    """What an answer means; ``log`` is told of one that means nothing. Never raises."""
    outcome = _weighed(answer)
    if isinstance(outcome, _Nothing):
        log.ignored(answer)
        return None
    return outcome


def _weighed(answer: object) -> Outcome | _Nothing:
    """`_meaning`, which never raises."""
    if answer is None or answer is True:
        return None
    try:
        return _meaning(answer)
    except BaseException:  # it cannot be looked at, such as a proxy with nothing behind it: another value, then
        return _NOTHING


class _Nothing:
    """The answer says nothing."""


_NOTHING = _Nothing()


def _meaning(answer: object) -> Outcome | _Nothing:
    if type(answer).__module__ == "numpy" and type(answer).__name__ in ("bool", "bool_"):
        answer = bool(answer)  # its comparisons give a truth value of its own
        if answer:
            return None
    if answer is False:
        return Failure(REASON_REJECTED, "")
    if isinstance(answer, Failure) or answer is DROPPED:
        return _storable(answer) if isinstance(answer, Failure) else DROPPED
    if _is_undone(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # it is told here, and Python need not say that nobody awaited it
        if inspect.iscoroutine(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
            why = "of which nothing has run: a handler that awaits is 'async def'"
        else:
            why = "for which nobody waits: await it in the handler, or return its result"
        return Mistake(REASON_EXCEPTION, f"handler returned a {type_name(answer)}, {why}")
    return _NOTHING


def _is_undone(answer: object) -> bool:
    return (
        inspect.isawaitable(answer)
        or inspect.isgenerator(answer)
        or inspect.isasyncgen(answer)
        or isinstance(answer, concurrent.futures.Future)
    )


def is_awaitable(answer: object) -> bool:
    """Never raises."""
    try:
        return inspect.isawaitable(answer)
    except BaseException:  # as in `outcome_of`
        return False


def is_retry_later(answer: object) -> TypeGuard[RetryLater]:
    """Whether a handler asks by its answer for another attempt. Never raises: only the type is looked at."""
    return issubclass(type(answer), RetryLater)


def _is_list(answer: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    try:
        return isinstance(answer, (list, tuple)) and not isinstance(answer, Failure)
    except BaseException:  # as in `outcome_of`
        return False


def batch_outcomes(
    answer: object, count: int, log: HandlerLog, asked: Callable[[RetryLater, int], Outcome]
) -> list[Outcome]:
    """`outcome_of` for each of ``count`` messages of a batch.

    Args:
        asked: the outcome of the message of that number, for which the list has a `RetryLater`.
    """
    if _is_list(answer):
        if len(answer) == count:
            return [
                asked(one, number) if is_retry_later(one) else outcome_of(one, log) for number, one in enumerate(answer)
            ]
        if any(is_retry_later(one) or isinstance(_weighed(one), Failure) for one in answer):
            error = (
                f"batch handler answered with a list of {len(answer)} for {count} messages: which fail cannot be told"
            )
            return [Mistake(REASON_EXCEPTION, error)] * count
        log.ignored_list(len(answer), count)
        return [None] * count
    return [outcome_of(answer, log)] * count
