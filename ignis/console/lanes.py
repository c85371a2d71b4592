"""Whose request reads messages next: so many at a time, fewer of one user, and who has fewest goes first. No I/O."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Lanes"]


class Lanes:
    """Lets requests through to the threads, which they share with requests that take no time. Belongs to the event loop.

    Args:
        most: requests at a time.
        most_of_a_user: of these, those of one user.
    """

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self._most = most
        self._most_of_a_user = most_of_a_user
        self._running: Counter[str | None] = Counter()
        self._waiting: deque[tuple[str | None, asyncio.Future[None]]] = deque()
        """In the order in which they came: as many as there are connections, at most."""

    @asynccontextmanager
    async def of(self, who: str | None) -> AsyncIterator[None]:
        """Waits for its turn. ``who``: the user; None = nobody has a name here, and all share what there is."""
        if self._running.total() < self._most and self._may(who):
            self._running[who] += 1
        else:
            await self._turn(who)
        try:
            yield
        finally:
            self._ended(who)

    async def _turn(self, who: str | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((who, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given at the same moment
                self._ended(who)
            raise

    def _may(self, who: str | None) -> bool:
        return who is None or self._running[who] < self._most_of_a_user

    def __len__(self) -> int:
        return self._running.total()

    def _ended(self, who: str | None) -> None:
        self._running[who] -= 1
        if not self._running[who]:
            del self._running[who]
        self._next()

    def _next(self) -> None:
        while self._running.total() < self._most:
            self._waiting = deque(one for one in self._waiting if not one[1].done())
            may = [one for one in self._waiting if self._may(one[0])]
            if not may:
                return
            who, turn = min(may, key=lambda one: self._running[one[0]])
            self._running[who] += 1
            turn.set_result(None)
