"""How many refused logins the audit log shows: the first of an address, and then how many more there were. No I/O."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WINDOW_S", "RefusedLogins"]

WINDOW_S = 60.0
_SHOWN = 5
"""Of one address in one window."""
_MOST_SHOWN = 50
"""Of all addresses in one window: whoever has many addresses fills no disk either."""
_MOST_ADDRESSES = 100
_OTHERS = "others"


class _Window(NamedTuple):
    until_s: float
    shown: dict[str, int]
    more: dict[str, int]


class RefusedLogins:
    """Says of each refused login whether it gets a line of its own. For one thread at a time."""

    def __init__(self) -> None:
        self._window: _Window | None = None

    @property
    def due_s(self) -> float | None:
        """When `take` has something to say; None = never."""
        return None if self._window is None or not self._window.more else self._window.until_s

    def shows(self, address: str, now_s: float) -> bool:
        """Counts one. Where the window has ended `take` comes first."""
        if self._window is None or now_s >= self._window.until_s:
            self._window = _Window(now_s + WINDOW_S, {}, {})
        _, shown, more = self._window
        if shown.get(address, 0) < _SHOWN and sum(shown.values()) < _MOST_SHOWN:
            shown[address] = shown.get(address, 0) + 1
            return True
        if address not in more and len(more) >= _MOST_ADDRESSES:
            address = _OTHERS
        more[address] = more.get(address, 0) + 1
        return False

    def take(self, now_s: float) -> dict[str, int]:
        """Address -> how many refused logins had no line, of a window that has ended by then."""
        if self._window is None or now_s < self._window.until_s:
            return {}
        found, self._window = self._window.more, None
        return found
