"""Which failed messages of a queue are tried again, and when.

An exception decides in the worker, where its type is known; what it decided comes with the failure, as numbers. What fails
without an exception is decided here by its reason:

| the failure                          | counts as             |
| ``False``, an `ignis.Failure`        | `Exception`           |
| a worker process that died           | `Exception`           |
| ran for longer than ``timeout_s``    | `HandlerTimeoutError` |
| a body that cannot be decoded        | never tried again     |
| expired, cancelled                   | never tried again     |
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ignis.consumer.outcome import Failure, again_after, attempts_of
from ignis.context import QueueContext
from ignis.errors import ConfigError, HandlerTimeoutError, UnreadableMessageError
from ignis.later import MAX_DELAY_S, due_time_ms
from ignis.message import REASON_CANCELLED, REASON_EXPIRED, REASON_TIMEOUT, REASON_UNREADABLE, tried
from ignis.native import Record
from ignis.retries import Backoff, RetryRules
from ignis.storage.base import Store

__all__ = ["Decision", "Moment", "Retrying"]

_FOR_GOOD = (REASON_UNREADABLE, REASON_EXPIRED, REASON_CANCELLED)


class Decision(NamedTuple):
    """What becomes of a failed message.

    Attributes:
        due_ms: when it is tried again, by the store's clock; None = it goes to the sideline.
        tried: how many attempts there were; None = no policy counts them.
        given_up: whether a policy lets none follow.
        counts: whether the last call was an attempt; one that only asked for another time may not be.
    """

    due_ms: int | None = None
    tried: int | None = None
    given_up: bool = False
    counts: bool = True


_ASIDE = Decision()


class Moment:
    """The time by the store's clock, asked for once, and only where somebody wants to know it: a broker's is a call away.

    Args:
        store: whose time it is.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now_s: float | None = None

    def wall_s(self) -> float:
        """As `Store.wall_s`."""
        return self._store.wall_s()

    def now_s(self) -> float:
        """As `Store.now_s`, at the first call."""
        if self._now_s is None:
            self._now_s = self._store.now_s()
        return self._now_s


class Retrying:
    """Decides for the messages of one queue. Thread-safe.

    Args:
        queue: whose they are.
        rules: of the handler; None = only what the handler itself asks for is tried again.
    """

    def __init__(self, queue: QueueContext[Any], rules: RetryRules | None) -> None:
        self._store = queue.store
        self._rules = rules

    def decide(self, failure: Failure, data: bytes, now: Moment) -> Decision:
        """What becomes of the message with that record. Raises what the store's clock raises."""
        again = again_after(failure)
        if (again is None and self._rules is None) or failure.reason in _FOR_GOOD:
            return _ASIDE
        if again is None and self._rules is not None:
            again = self._rules.after(HandlerTimeoutError if failure.reason == REASON_TIMEOUT else Exception)
        if again is None or not self._store.magazines.keeps_later:
            return _ASIDE
        try:
            before = tried(Record(data))
        except UnreadableMessageError:
            before = None
        if before is None:  # what cannot be counted would be tried for ever
            return _ASIDE
        made = before + len(attempts_of(failure)) - (not again.counts)
        if again.counts and made >= again.attempts:
            return Decision(None, made, given_up=True)
        return Decision(_due_ms(again, made, now), made, counts=again.counts)


def _due_ms(again: Backoff, attempt: int, now: Moment) -> int:
    """When the attempt behind this one is due."""
    if again.at_s is not None:
        # By the store's clock, which may be one that a test set: what is far by that is at the end of what there is.
        with suppress(ConfigError):
            return due_time_ms(now, None, datetime.fromtimestamp(again.at_s, timezone.utc))
        return due_time_ms(now, MAX_DELAY_S, None)
    return due_time_ms(now, again.delay_s(attempt) if again.after_s is None else again.after_s, None)
