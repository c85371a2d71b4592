"""How many threads of one application are in handlers at a time, over all its queues: `consumer.max_running`.

A thread takes a turn before it claims and gives it back behind what it claimed, so that nothing is claimed by a thread that
waits for its turn. First come, first served: a queue with a backlog has one chunk of messages a round, like all others.
"""

from __future__ import annotations

import threading
from collections import deque

from ignis.native import ThreadBell

__all__ = ["Turn", "Turns"]


class Turns:
    """So many turns, and who waits for one. Thread-safe; not for a child of ``fork()``, which has no consumers.

    Args:
        limit: threads that have a turn at a time; 0 = nobody needs one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._without = False
        self._lock = threading.Lock()
        self._waiting: deque[Turn] = deque()

    @property
    def taken(self) -> int:
        """How many have a turn."""
        return self.limit - self._free

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def bound(self, limit: int) -> None:
        """Sets the limit, before anybody takes a turn."""
        with self._lock:
            self.limit = self._free = limit

    def goes_without(self) -> bool:
        """Somebody runs without a turn, whatever the limit. Whether that is the first."""
        with self._lock:
            first, self._without = not self._without, True
            return first and self.limit > 0

    def stats(self) -> dict[str, int]:
        """How many there are, have one and wait for one."""
        return {"limit": self.limit, "taken": self.taken, "waiting": self.waiting}

    def take(self, turn: Turn) -> bool:
        """Whether it is that one's turn at once; if not it waits in line, and its bell is rung."""
        with self._lock:
            if turn.taken or turn.ended:
                return True
            if self._free:
                self._free -= 1
                turn.taken = True
                return True
            self._waiting.append(turn)
            return False

    def leave(self, turn: Turn) -> bool:
        """It waits no more. Whether it was its turn meanwhile."""
        with self._lock:
            if not (turn.taken or turn.ended):
                self._waiting.remove(turn)
            return turn.taken or turn.ended

    def give(self, turn: Turn, *, end: bool = False) -> None:
        """To the first in line."""
        with self._lock:
            if end and not turn.ended:
                turn.ended = True
                if turn in self._waiting:
                    self._waiting.remove(turn)
            if not turn.taken:
                return
            turn.taken = False
            if not self._waiting:
                self._free += 1
                return
            following = self._waiting.popleft()
            following.taken = True
        following.bell.ring()


class Turn:
    """One thread's place among `Turns`. `take` is for the thread itself, the others for any.

    Args:
        turns: shared by all threads of the application.
        bell: ends the wait for a turn, whoever rings it.
    """

    __slots__ = ("_turns", "bell", "ended", "taken")

    def __init__(self, turns: Turns, bell: ThreadBell) -> None:
        self._turns = turns
        self.bell = bell
        self.taken = False
        self.ended = False

    def take(self, wait_s: float) -> bool:
        """Waits until it is its turn, or the bell is rung, or the time is up. Whether it is its turn."""
        if self._turns.take(self):
            return True
        try:
            self.bell.wait(wait_s)
        except BaseException:  # who is in line and does not come would keep a turn
            self._turns.leave(self)
            raise
        return self._turns.leave(self)

    def give(self) -> None:
        """Gives it back, if it is its turn."""
        if self.taken:
            self._turns.give(self)

    def end(self) -> None:
        """Gives it back for good: the thread was given up, and what it still does counts for nobody. It waits for none again."""
        self._turns.give(self, end=True)
