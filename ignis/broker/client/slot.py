"""Where a thread waits for what answers its request. No I/O."""

from __future__ import annotations

import threading
from collections import deque

from ignis.broker.protocol.machine import Answer

__all__ = ["Slot"]


class Slot:
    """Where one thread waits: for one answer, or for those of a subscription. Guarded by the connection's lock."""

    __slots__ = ("answers", "over", "parked", "signal")

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.over = False
        """No further answer comes."""
        self.parked = False
        self.signal: threading.Lock | None = None
        """Made when its thread has to sleep for the first time; a lone caller never does."""

    def settled(self) -> bool:
        """Whether its thread has nothing to wait for: an answer is there, or none comes any more."""
        return self.over or bool(self.answers)

    def put(self, answer: Answer) -> None:
        """An answer came. Caller holds the connection's lock."""
        self.answers.append(answer)
        if answer.last:
            self.over = True
        if self.parked:
            self.wake()

    def park(self) -> threading.Lock:
        """What to wait at. Caller holds the connection's lock."""
        self.parked = True
        if self.signal is None:
            self.signal = threading.Lock()
            self.signal.acquire()
        return self.signal

    def wake(self) -> None:
        """The thread looks again. Caller holds the connection's lock."""
        if self.parked:
            self.parked = False
            assert self.signal is not None
            self.signal.release()
