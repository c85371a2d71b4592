"""Acknowledgements that were sent and are not waited for: their answers are counted as they come. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from ignis.broker.client.requests import count_of
from ignis.broker.protocol.machine import Answer
from ignis.errors import IgnisError

__all__ = ["PendingAcks"]

MAX_PENDING = 64
"""Requests of one connection that may be unanswered; a further one waits until half of them are."""


class PendingAcks:
    """Counts the answers to acknowledgements that nobody waits for, and keeps a refusal for the next call.

    There is one for each connection, whose machine knows it as a token. Not thread-safe: the shell locks around it.
    """

    def __init__(self) -> None:
        self.count = 0
        """Requests without an answer."""
        self._retired = 0
        self._error: IgnisError | None = None
        self._waiting: list[tuple[int, Callable[[Answer], None]]] = []

    def put(self, answer: Answer) -> None:
        """An answer came, or the connection was lost."""
        self.count -= 1
        error = answer.error
        if error is None:
            try:
                self._retired += count_of(answer.payload)
            except IgnisError as exc:
                error = exc
        if self._error is None:
            self._error = error
        if self._waiting:
            due = [call for most, call in self._waiting if self.count <= most]
            self._waiting = [one for one in self._waiting if self.count > one[0]]
            for call in due:
                call(answer)

    def when_down_to(self, most: int, call: Callable[[Answer], None]) -> None:
        """Calls back, once, with the answer that leaves ``most`` open; more must be open now."""
        self._waiting.append((most, call))

    def take_retired(self) -> int:
        """Messages that were retired since the last call."""
        retired, self._retired = self._retired, 0
        return retired

    def take_error(self) -> IgnisError | None:
        """The first refusal since the last call, if any; what was retired until then is not counted any more."""
        error, self._error = self._error, None
        if error is not None:
            self._retired = 0
        return error

    def inherit(self, other: PendingAcks) -> None:
        """Another connection takes the place of one that was lost."""
        self._retired += other.take_retired()
        self._error = self._error or other.take_error()
