"""From one call of a handler to the next in the same delivery: whether it follows at once, and what it gets.

A batch handler gets those messages once more that failed: `OpenBatch` knows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ignis.consumer.handler import Context
from ignis.consumer.outcome import Failed, Failure, Outcome, again_after, joined_failure, stamped
from ignis.message import REASON_CANCELLED, REASON_TIMEOUT, REASON_UNREADABLE, Message
from ignis.native import Record

__all__ = ["OpenBatch", "Opened", "follow", "follows_at_once"]

_FOR_GOOD = (REASON_TIMEOUT, REASON_UNREADABLE, REASON_CANCELLED)
"""No further call follows at once."""


def follows_at_once(outcome: Failure) -> bool:
    """Whether another call may follow at once."""
    asked = again_after(outcome)
    return outcome.reason not in _FOR_GOOD and (asked is None or not asked.asked)


def follow(context: Context, error: str, calls: int = 1) -> None:
    """For the next call in the same delivery: so many failed, the last with this error."""
    context.attempt += calls
    context._last_error = error


class Opened(NamedTuple):
    """A readable message of a batch and its place in it."""

    place: int
    record: Record
    message: Message
    body: Any


class OpenBatch:
    """The messages of one batch: what became of them so far, and which are to be handled.

    Args:
        count: of the messages.
        attempts: calls that a message has at most.
    """

    def __init__(self, count: int, attempts: int) -> None:
        self.outcomes: list[Outcome] = [None] * count
        """One for each message, in order."""
        self.todo: list[Opened] = []
        """What the next call gets."""
        self._attempts = attempts

    def context(self, queue: str, resources: Mapping[str, Any], call: int) -> Context:
        """The context of the next call, the number ``call`` of them."""
        messages = [one.message for one in self.todo]
        context = Context(messages, [one.body for one in self.todo], queue, None, resources)
        failure = self.outcomes[self.todo[0].place]  # of the call before
        if isinstance(failure, Failure):
            follow(context, failure.error, call - 1)
        return context

    def close(self, answers: Sequence[Outcome], call: int) -> None:
        """Notes the answers of a call; what is to be tried once more stays to do."""
        left = []
        for one, answer in zip(self.todo, answers, strict=True):
            before = self.outcomes[one.place]  # of the attempt before
            if not isinstance(answer, Failure):
                self.outcomes[one.place] = answer
                continue
            failure = joined_failure([before], answer) if isinstance(before, Failed) else answer
            if call < self._attempts and follows_at_once(answer):
                failure = stamped(failure)
                left.append(one)
            self.outcomes[one.place] = failure
        self.todo = left
