"""From one call of a handler to the next in the same delivery: whether it follows at once, and what it gets.

A batch handler gets those messages once more that failed: `OpenBatch` knows them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ignis.consumer.handler import Context, Envelopes
from ignis.consumer.outcome import Failed, Failure, Outcome, again_after, joined_failure, stamped
from ignis.message import REASON_CANCELLED, REASON_EXPIRED, REASON_TIMEOUT, REASON_UNREADABLE, Message
from ignis.native import Record
from ignis.native.handling import all_done

__all__ = ["OpenBatch", "Opened", "follow", "follows_at_once"]

_FOR_GOOD = (REASON_TIMEOUT, REASON_UNREADABLE, REASON_CANCELLED, REASON_EXPIRED)
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
        records: the messages.
        attempts: calls that a message has at most.
        bodies: what was read of them, where nothing is the matter with any; None = the caller fills `outcomes` and `todo`.
    """

    def __init__(self, records: Sequence[bytes], attempts: int, bodies: list[Any] | None) -> None:
        self.outcomes: list[Outcome] = []
        """One for each message, in order. Empty while nothing is the matter with any."""
        self._records = records
        self._attempts = attempts
        self._bodies = bodies
        self._todo: list[Opened] | None = None
        if bodies is None:
            self.outcomes, self._todo = [None] * len(records), []

    @property
    def todo(self) -> list[Opened]:
        """What the next call gets. Made when it is first asked for: most batches are done with one call."""
        if self._todo is None:
            # What the handler was given may be another list by now.
            bodies = self._bodies if self._attempts > 1 and self._bodies else itertools.repeat(None)
            records = [Record(data) for data in self._records]
            self.outcomes = [None] * len(records)
            self._todo = [
                Opened(place, record, Message(record), body)
                for (place, record), body in zip(enumerate(records), bodies, strict=False)
            ]
        return self._todo

    @property
    def count(self) -> int:
        """How many the next call gets."""
        return len(self._records) if self._todo is None else len(self._todo)

    def all_done(self, answer: object) -> bool:
        """Whether this is the first call, for all of them, and its answer says plainly that all are done."""
        return self._todo is None and all_done(answer, len(self._records))

    def context(self, queue: str, resources: Mapping[str, Any], call: int) -> Context:
        """The context of the next call, the number ``call`` of them."""
        if self._todo is None:
            bodies = self._bodies
            assert bodies is not None
            if self._attempts > 1:
                bodies = bodies.copy()  # a further call gets them as they were
            return Context(Envelopes(self._records), bodies, queue, None, resources)
        messages = [one.message for one in self._todo]
        context = Context(messages, [one.body for one in self._todo], queue, None, resources)
        failure = self.outcomes[self._todo[0].place]  # of the call before
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
        self._todo = left
