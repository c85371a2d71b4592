"""Which failed messages of a queue are tried again, and when.

An exception decides in the worker, where its type is known; what it decided comes with the failure, as numbers. What fails
without an exception is decided here by its reason:

| the failure                          | counts as             |
| ``False``, an `ignis.Failure`        | `Exception`           |
| a worker process that died           | `Exception`           |
| ran for longer than ``timeout_s``    | `HandlerTimeoutError` |
| a body that cannot be decoded        | never tried again     |
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ignis.consumer.outcome import Failure, again_after, attempts_of
from ignis.context import QueueContext
from ignis.errors import ConfigError, HandlerTimeoutError, UnreadableMessageError
from ignis.later import MAX_DELAY_S, due_time_ms
from ignis.message import REASON_TIMEOUT, REASON_UNREADABLE, tried
from ignis.native import Record
from ignis.retries import Backoff, RetryRules

__all__ = ["Decision", "Retrying"]


class Decision(NamedTuple):
    """What becomes of a failed message.

    Attributes:
        due_ms: when it is tried again, by the store's clock; None = it goes to the sideline.
        tried: how many attempts there were; None = no policy counts them.
        given_up: whether a policy lets none follow.
    """

    due_ms: int | None = None
    tried: int | None = None
    given_up: bool = False


_ASIDE = Decision()


class Retrying:
    """Decides for the messages of one queue. Thread-safe.

    Args:
        queue: whose they are.
        rules: of the handler; None = only what the handler itself asks for is tried again.
    """

    def __init__(self, queue: QueueContext[Any], rules: RetryRules | None) -> None:
        self._store = queue.store
        self._rules = rules

    def decide(self, failure: Failure, data: bytes) -> Decision:
        """What becomes of the message with that record. Never raises."""
        again = again_after(failure)
        if again is None:
            if self._rules is None or failure.reason == REASON_UNREADABLE:
                return _ASIDE
            again = self._rules.after(HandlerTimeoutError if failure.reason == REASON_TIMEOUT else Exception)
        if not self._store.magazines.keeps_later:
            return _ASIDE
        try:
            before = tried(Record(data))
        except UnreadableMessageError:
            before = None
        if before is None:  # what cannot be counted would be tried for ever
            return _ASIDE
        now = before + len(attempts_of(failure))
        if now >= again.attempts:
            return Decision(None, now, given_up=True)
        return Decision(self._due_ms(again, now), now)

    def _due_ms(self, again: Backoff, attempt: int) -> int:
        """When the attempt behind this one is due."""
        if again.at_s is not None:
            # By the store's clock, which may be one that a test set: what is far by that is at the end of what there is.
            with suppress(ConfigError):
                return due_time_ms(self._store, None, datetime.fromtimestamp(again.at_s, timezone.utc))
            return due_time_ms(self._store, MAX_DELAY_S, None)
        return due_time_ms(self._store, again.delay_s(attempt) if again.after_s is None else again.after_s, None)
