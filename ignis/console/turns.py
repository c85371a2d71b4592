"""Whose request is begun next: so many in one turn of the event loop, and the addresses take turns. No I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

__all__ = ["MOST_IN_A_TURN", "Turns"]

MOST_IN_A_TURN = 8
"""Requests: of a few tenths of a millisecond each until they are with the application."""


class Turns:
    """Begins work that waits, a little in each turn of the loop, so that what else is due is never kept for long. Belongs to
    the event loop.

    Args:
        soon: calls back in the next turn, as ``loop.call_soon`` does.
        most: so much work in one turn.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], most: int = MOST_IN_A_TURN) -> None:
        self._soon = soon
        self._most = most
        self._waiting: OrderedDict[Hashable, deque[Callable[[], None]]] = OrderedDict()
        """By address, whose turn it is first."""
        self._due = False

    def enter(self, whose: Hashable, work: Callable[[], None]) -> None:
        """Has the work done in its turn. What it raises is the loop's to handle."""
        self._waiting.setdefault(whose, deque()).append(work)
        if not self._due:
            self._due = True
            self._soon(self._run)

    def _run(self) -> None:
        try:
            for _ in range(self._most):
                if not self._waiting:
                    break
                self._next()()
        finally:  # work that fails does not keep the rest
            self._due = bool(self._waiting)
            if self._due:
                self._soon(self._run)

    def _next(self) -> Callable[[], None]:
        whose, works = self._waiting.popitem(last=False)
        work = works.popleft()
        if works:
            self._waiting[whose] = works
        return work
