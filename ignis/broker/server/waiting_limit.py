"""How many requests the broker holds back for one user: FIREs, CONSUMEs and WAITs that wait for messages, and delayed NACKs.

Each takes memory for as long as it waits, and the load that ends it, or the time, may end many thousands at once. A
connection may have no more than ``broker.max_pending``; this bounds those of all connections of a user, or, without users, of
an address. A NACK counts by the runs of pointers that it names, until they are given back, whatever becomes of its connection.
"""

from __future__ import annotations

from collections import Counter

from ignis.errors import TooManyRequestsError

__all__ = ["WaitingLimit", "Waits"]


class WaitingLimit:
    """Counts them for one broker. Belongs to the event loop.

    Args:
        most: of one user.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()

    def begin(self, user: str, more: int = 1) -> None:
        """So many more wait. Raises TooManyRequestsError."""
        count = self._counts.get(user, 0) + more
        if count > self._most:
            raise TooManyRequestsError(count, self._most, "broker.max_waiting_per_user")
        self._counts[user] = count

    def end(self, user: str, count: int = 1) -> None:
        """So many wait no longer."""
        left = self._counts[user] - count
        if left > 0:
            self._counts[user] = left
        else:
            del self._counts[user]

    def count(self, user: str) -> int:
        """How many wait at present."""
        return self._counts.get(user, 0)


class Waits:
    """Those of one connection, which ends all of its own when it is over."""

    def __init__(self, limit: WaitingLimit) -> None:
        self._limit = limit
        self._user = ""
        self._count = 0

    def begin(self, user: str) -> None:
        """One more waits. Raises TooManyRequestsError."""
        self._limit.begin(user)
        self._user = user
        self._count += 1

    def end(self) -> None:
        """One waits no longer. Does nothing behind `end_all`."""
        if self._count:
            self._count -= 1
            self._limit.end(self._user)

    def end_all(self) -> None:
        count, self._count = self._count, 0
        if count:
            self._limit.end(self._user, count)
