"""How long messages are in a queue, by Little's law: from how many are there, and how many leave.

J. D. C. Little, "A Proof for the Queuing Formula: L = lambda W", Operations Research 9 (1961), pages 383 to 387: the mean time in
a system is the mean number in it over the rate at which they pass. Nothing is asked of the messages, and it holds whatever the
order and the distribution. So it is the fleet's, from counters that the store has anyhow.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["SPAN_S", "Residence"]

SPAN_S = 30.0
"""The mean is over looks of so many seconds: over two looks alone it would jump with each message that leaves late."""


class _Look(NamedTuple):
    at_s: float
    inside: int
    left: int
    made: tuple[int, ...]


class Residence:
    """The mean time in one queue. For one thread at a time.

    Args:
        gap_s: looks that are further apart say nothing of what was between them.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._looks: deque[_Look] = deque()

    def look(self, at_s: float, inside: int, left: int, made: tuple[int, ...]) -> None:
        """Notes a look: how many are in the queue, and how many have ever left it. What was known is forgotten when ``made``
        is another one, which tells a queue that was made anew, behind a gap, and when the clock was set back."""
        looks = self._looks
        if looks and (looks[-1].made != made or not 0 < at_s - looks[-1].at_s <= self._gap_s):
            looks.clear()
        looks.append(_Look(at_s, inside, left, made))
        while len(looks) > 2 and looks[1].at_s <= at_s - SPAN_S:
            looks.popleft()

    def mean_s(self) -> float | None:
        """Seconds from when a message comes until it has left; None where none has left, or nothing was seen of it."""
        looks = self._looks
        left = looks[-1].left - looks[0].left if looks else 0
        if left <= 0:
            return None
        pairs = zip(looks, list(looks)[1:], strict=False)
        # Between two looks the number is taken to rise or fall evenly.
        seconds = sum((one.inside + two.inside) / 2 * (two.at_s - one.at_s) for one, two in pairs)
        return seconds / left
