"""What clients have not read, over all connections of a broker.

One connection may leave ``max_outbound_bytes`` unread. What all of them leave together is bounded here: above
``max_unread_bytes`` each may leave little only, and answers are made no larger than that; above twice of it, next to
nothing. Connections that read what
they ask for do not notice, but for smaller answers; those that do not are written nothing more, are read no longer, and
are closed after ``write_timeout_s``.

A record is never cut, and may be larger than all that. So above twice the limit a user whose connections together leave more
than an equal part unread is given no record more, on none of them: they wait for each other, and others go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from ignis.broker.server.heap import begin_crowd, end_crowd
from ignis.broker.server.state import BrokerState
from ignis.config import BrokerSettings

__all__ = ["SendLimits"]

_LEAST_BYTES = 4_096
_PARTS = 8
"""An equal part for each would be too much: those that came first have had theirs, and more come."""
_COUNT_AGAIN_S = 0.05
"""A count looks at every connection."""


class Reads(Protocol):
    """A connection that reads what it is sent, or does not."""

    @property
    def outbound_bytes(self) -> int: ...

    @property
    def shares_with(self) -> str: ...


class SendLimits:
    """Bounds what the clients of one broker have not read. Belongs to its event loop, but for what says otherwise.

    Args:
        settings: the limits.
        loop: the event loop.
        state: counts what is written.
        sessions: the connections, as they are at any time.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        loop: asyncio.AbstractEventLoop,
        state: BrokerState,
        sessions: Collection[Reads],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._state = state
        self._sessions = sessions
        self.allowed_bytes = settings.max_outbound_bytes
        """What one connection may leave unread now."""
        self._making = 0
        """Bytes that the answers which are being made may take."""
        self._unseen = 0
        """Bytes of answers that threads have made, and that the event loop does not know of yet."""
        self._lock = threading.Lock()  # over `_unseen`
        self._counted = 0
        self._written = 0
        self._counted_s = float("-inf")
        self.held_back: frozenset[str] = frozenset()
        """Users who leave more than an equal part of too much, as of the last look: they are given no record more."""

    @property
    def crowded(self) -> bool:
        """Whether each may leave little only, as of the last look."""
        return self.allowed_bytes < self._settings.max_outbound_bytes

    def begin(self, most_bytes: int = 1 << 62) -> int:
        """A large answer is about to be made: the bytes it may take, ``most_bytes`` at most. They count until `made`."""
        self.look()
        size = min(self.allowed_bytes, self._settings.max_frame_bytes // 2, most_bytes)
        self._making += size
        return size

    @property
    def behind(self) -> bool:
        """Whether threads have made so much that the event loop must see it before there is more. From any thread."""
        return self._unseen > self._settings.max_unread_bytes

    def made_in_thread(self, answer_bytes: int) -> None:
        """The answer is there. It is seen with `made`. From any thread."""
        with self._lock:
            self._unseen += answer_bytes

    def made(self, size: int, answer_bytes: int, *, in_thread: bool = False) -> None:
        """The answer is there, or 0 bytes of one."""
        if in_thread:
            with self._lock:
                self._unseen -= answer_bytes
        self._making -= size
        self._written -= answer_bytes  # counted from now on, though it goes out with the end of the turn

    def look(self) -> None:
        """Decides anew if there is reason to. What was written since the last count may be read by now."""
        settings = self._settings
        most = self._counted + self._state.bytes_out - self._written + self._making
        if most <= settings.max_unread_bytes and not self.crowded:
            return
        now = self._loop.time()
        written = self._state.bytes_out - self._written
        if now - self._counted_s >= _COUNT_AGAIN_S or written > settings.max_unread_bytes // 2:
            self._counted_s = now
            self._counted = sum(one.outbound_bytes for one in self._sessions)
            self._written = self._state.bytes_out
            most = self._counted + self._making
            self.held_back = self._of_too_much() if most > 2 * settings.max_unread_bytes else frozenset()
        was_crowded, self.allowed_bytes = self.crowded, settings.max_outbound_bytes
        if most > settings.max_unread_bytes:
            share = settings.max_unread_bytes // (_PARTS * max(1, len(self._sessions)))
            if most > 2 * settings.max_unread_bytes:
                share = 0
            self.allowed_bytes = min(settings.max_outbound_bytes, max(_LEAST_BYTES, share))
        if was_crowded != self.crowded:
            (begin_crowd if self.crowded else end_crowd)()

    def _of_too_much(self) -> frozenset[str]:
        """Who leaves more than an equal part of the limit."""
        unread: Counter[str] = Counter()
        for one in self._sessions:
            if size := one.outbound_bytes:
                unread[one.shares_with] += size
        part = self._settings.max_unread_bytes // max(1, len(unread))
        return frozenset(user for user, size in unread.items() if size > part)
