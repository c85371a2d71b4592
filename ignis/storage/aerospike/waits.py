"""Waiting for loads. The server notifies nobody: one waiter per magazine asks it, ever less often while nothing comes.

Loads of this process wake its own waiters at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from ignis.errors import ClosedError

__all__ = ["Waits"]

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 1.0
LOOK_MS, MOST_LOOK_MS = 3.7, 7.4
"""From one look of a consumer to the next, at a thousand messages a second and at few: as often as 0.3 and 1.5 calls a message
allow, a tenth of them for calls that are not looks."""
_SLOWER = 8
"""The pause is this fraction of the time since something last came: 1 ms right after, a second after eight."""


class _Bell:
    """One magazine's. Guarded by its condition."""

    __slots__ = ("asking", "changed", "gap_s", "quiet_since", "sequence")

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sequence = 0
        self.asking = False
        self.quiet_since = time.monotonic()
        self.gap_s = 0.0

    def came(self, count: int) -> None:
        """Messages were claimed: the time between two follows."""
        with self.changed:
            now = time.monotonic()
            gap_s = (now - self.quiet_since) / count
            self.gap_s += (gap_s - self.gap_s) / 8
            self.quiet_since = now

    def look_pause_s(self) -> float:
        """From one look that claims to the next: the shorter the more comes, so that a look brings several messages where
        many come, and seldom none where few do."""
        gap_ms = max(0.01, self.gap_s * 1_000)
        quiet_s = time.monotonic() - self.quiet_since
        look_ms = min(LOOK_MS * math.pow(gap_ms, 1 / 3), MOST_LOOK_MS)
        return min(LONGEST_PAUSE_S, max(look_ms / 1_000, quiet_s / _SLOWER))

    def ring(self) -> None:
        with self.changed:
            self.sequence += 1
            self.quiet_since = time.monotonic()
            self.changed.notify_all()

    def pause_s(self) -> float:
        quiet = time.monotonic() - self.quiet_since
        return min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, quiet / _SLOWER))


class Waits:
    """The bells of one store. Thread-safe.

    Args:
        pending: asks the server whether a magazine has something to claim; called without any lock held.
    """

    def __init__(self, pending: Callable[[str], bool]) -> None:
        self._pending = pending
        self._lock = threading.Lock()
        self._bells: dict[str, _Bell] = {}
        self._closed = False

    def _bell(self, name: str) -> _Bell:
        with self._lock:
            return self._bells.setdefault(name, _Bell())

    def ring(self, name: str) -> None:
        """Something was loaded, or a waiter is wanted elsewhere."""
        self._bell(name).ring()

    def close(self) -> None:
        """Every wait ends with ClosedError."""
        with self._lock:
            self._closed = True
            bells = list(self._bells.values())
        for bell in bells:
            bell.ring()

    def fired(self, name: str, count: int) -> None:
        """So many messages were claimed."""
        if count:
            self._bell(name).came(count)

    def idle(self, name: str, seen: int, timeout_s: float, looked_at: float) -> int:
        """See `MagazineStore.idle`: until a load of this process, or until the next look is due, counted from the beginning
        of the last. Raises ClosedError."""
        bell = self._bell(name)
        with bell.changed:
            now = time.monotonic()
            due = max(looked_at + bell.look_pause_s(), now + FIRST_PAUSE_S)
            deadline = min(now + timeout_s, due)
            while bell.sequence == seen and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                bell.changed.wait(left)
            if self._closed:
                raise ClosedError("store is closed")
            return bell.sequence

    def wait(self, name: str, seen: int, timeout_s: float) -> int:
        """See `MagazineStore.wait`. Raises ClosedError, and what asking the server raises."""
        bell = self._bell(name)
        deadline = time.monotonic() + timeout_s
        while True:
            with bell.changed:
                if self._closed:
                    raise ClosedError("store is closed")
                left = deadline - time.monotonic()
                if bell.sequence != seen or left <= 0:
                    return bell.sequence
                if bell.asking:
                    # Another thread asks for all of us; when it leaves, one of us takes over.
                    bell.changed.wait(left)
                    continue
                bell.asking = True
                bell.changed.wait(min(left, bell.pause_s()))
            try:
                if bell.sequence == seen and self._pending(name):
                    bell.ring()
            finally:
                with bell.changed:
                    bell.asking = False
                    bell.changed.notify()
