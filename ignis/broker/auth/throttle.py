"""Makes whoever fails again and again wait longer each time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

__all__ = ["Throttle"]


class Throttle:
    """Counts failures by key (an address, a user, both). Thread-safe; bounded memory: the keys longest untouched go first.

    Args:
        free: failures that cost nothing.
        first_wait_s, max_wait_s: what the next failure costs, doubling with each.
        forget_s: a key without a failure for this long begins anew.
        max_keys: keys remembered.
        clock: seconds; injectable for tests.
    """

    def __init__(
        self,
        free: int,
        *,
        first_wait_s: float = 1.0,
        max_wait_s: float = 60.0,
        forget_s: float = 900.0,
        max_keys: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = free
        self._first_wait_s = first_wait_s
        self._max_wait_s = max_wait_s
        self._forget_s = forget_s
        self._max_keys = max_keys
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[Hashable, tuple[int, float, float]] = OrderedDict()

    def failures(self, key: Hashable) -> int:
        """Returns how many failures are remembered of the key."""
        with self._lock:
            count, last, _ = self._failures.get(key, (0, 0.0, 0.0))
            return count if self._clock() - last <= self._forget_s else 0

    def wait_s(self, key: Hashable) -> float:
        """Returns how long this key must wait before it may try again; 0 = not at all."""
        with self._lock:
            _, _, blocked_until = self._failures.get(key, (0, 0.0, 0.0))
            return max(0.0, blocked_until - self._clock())

    def failed(self, key: Hashable, free: int | None = None) -> None:
        """Counts a failure; ``free`` counts instead of the throttle's own."""
        with self._lock:
            now = self._clock()
            count, last, _ = self._failures.pop(key, (0, now, 0.0))
            count = 1 if now - last > self._forget_s else count + 1
            over = count - (self._free if free is None else free)
            # The exponent is bounded first: a patient attacker must not make a number that does not fit.
            wait_s = min(self._max_wait_s, self._first_wait_s * 2 ** min(over - 1, 30)) if over > 0 else 0.0
            self._failures[key] = (count, now, now + wait_s)
            while len(self._failures) > self._max_keys:
                self._failures.popitem(last=False)

    def succeeded(self, key: Hashable) -> None:
        """Forgets the key's failures."""
        with self._lock:
            self._failures.pop(key, None)

    def __len__(self) -> int:
        return len(self._failures)
