"""The places of requests that wait for seconds: a bound for all, a bound for each user, and no user shuts out another. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from ignis.console.refusals import RefusedError

__all__ = ["FOR_OPERATORS", "Places"]

FOR_OPERATORS = 8
"""Places beside those of programs, for operators who wait for the end of a job."""


class _Wait:
    """One request that waits: whose it is, and what ends it early."""

    __slots__ = ("enough", "who")

    def __init__(self, who: str | None, enough: Event) -> None:
        self.who = who
        self.enough = enough


class Places:
    """Gives out the places. Belongs to the event loop.

    When all are taken, whoever has none or few gets the place of the user who has most: of his requests the one that waits
    longest is answered at once, with what there is. So places even out between users, and one user alone may have them up to
    the bound of a user.

    Args:
        most: places of programs that pull.
        most_of_user: of these, places of one user.
    """

    def __init__(self, most: int, most_of_user: int) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._programs: dict[_Wait, None] = {}
        """The longest waiting first."""
        self._operators: dict[_Wait, None] = {}

    def __len__(self) -> int:
        return len(self._programs) + len(self._operators)

    @contextmanager
    def of_program(self, who: str | None, enough: Event) -> Iterator[None]:
        """A place while the block runs.

        Args:
            who: the user; None = nobody has a name here, and all share the places.
            enough: set when the place is needed for another user.

        Raises RefusedError (``too_many_requests``), which names the limit and its setting.
        """
        self._make_room(who)
        one = _Wait(who, enough)
        self._programs[one] = None
        try:
            yield
        finally:
            self._programs.pop(one, None)

    @contextmanager
    def of_operator(self, who: str | None) -> Iterator[None]:
        """A place for somebody who waits for a job. Raises RefusedError (``too_many_requests``)."""
        taken = len(self._operators)
        mine = sum(one.who == who for one in self._operators)
        if taken >= FOR_OPERATORS or (who is not None and mine >= FOR_OPERATORS // 2):
            raise _refused(f"{taken} requests wait for jobs already, {mine} of them yours: ask with wait_s = 0")
        one = _Wait(who, Event())
        self._operators[one] = None
        try:
            yield
        finally:
            del self._operators[one]

    def _make_room(self, who: str | None) -> None:
        held = Counter(one.who for one in self._programs)
        mine = held[who]
        if who is not None and mine >= self._most_of_user:
            raise _refused(
                f"{mine} pulls of user {who!r} wait already, which is the limit of a user (--max-waiting-per-user): "
                "ask with wait_s = 0, or later"
            )
        if len(self._programs) < self._most:
            return
        greedy, most = max(held.items(), key=lambda item: item[1])
        # Only to somebody who then has no more than the other one: else they would take the place from each other for ever.
        if who is None or greedy is None or most <= mine + 1:
            raise _refused(
                f"{len(self._programs)} pulls wait already, which is the limit (--max-waiting): ask with wait_s = 0, or later"
            )
        gone = next(one for one in self._programs if one.who == greedy)
        del self._programs[gone]
        gone.enough.set()


def _refused(text: str) -> RefusedError:
    return RefusedError("too_many_requests", text)
