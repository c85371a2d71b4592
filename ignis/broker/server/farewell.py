"""How a broker that drains leaves its connections, so that nothing a client has sent ends in doubt.

A client that does not read does not know that the broker is going, and sends on. What comes meanwhile is read and refused, and
the refusal says that it is to be sent to the next broker. To close a connection under it would cut it off: the request would
lie unread in the socket, carried out or not for all that its client knows, and the answers before it might be lost too.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

__all__ = ["LOOK_S", "Farewell"]

LOOK_S = 0.02
"""Between two looks at all connections."""
_QUIET_LOOKS = 10
"""So long nothing comes before a connection is left. Clients look at one that was quiet for 20 ms before they send anything; the
rest is for the way there and back."""
_QUIET_AT_LAST = 3
"""The same for one that is half closed: nothing on it is answered any more."""
_MOST_LOOKS = 50
"""So long a connection is read that never becomes quiet: a second."""


class Leaving(Protocol):
    """A connection of a broker that drains."""

    heard_s: float

    @property
    def pending(self) -> int: ...
    @property
    def held(self) -> object: ...
    def part(self, exc: BaseException | None = None) -> None: ...
    def hang_up(self) -> None: ...


class _Watched:
    """What was seen of one connection. It is counted in looks and not by the clock: between two of them the event loop has read
    what had come, however long it was held up."""

    def __init__(self) -> None:
        self.parted = False
        self.heard_s = -1.0
        self.looks = self.quiet = 0

    def part(self) -> None:
        self.parted = True
        self.looks = self.quiet = 0

    def is_over(self, heard_s: float) -> bool:
        self.looks += 1
        self.quiet = self.quiet + 1 if heard_s == self.heard_s else 0
        self.heard_s = heard_s
        return self.quiet >= (_QUIET_AT_LAST if self.parted else _QUIET_LOOKS) or self.looks > _MOST_LOOKS


class Farewell:
    """Leaves the connections of one broker, each when nothing of its client is under way any more.

    First a connection is read and what it asks for is refused, until it is quiet. Then it is half closed, and read on until its
    client has closed it too or is quiet again; only then it is closed.

    Args:
        sessions: the connections, as they are at any time.
    """

    def __init__(self, sessions: AbstractSet[Leaving]) -> None:
        self._sessions = sessions
        self._watched: dict[Leaving, _Watched] = {}

    def look(self) -> bool:
        """Goes one step on; to be called every `LOOK_S`. Returns whether every connection is closed, or about to be."""
        done = True
        for session in list(self._sessions):
            watched = self._watched.setdefault(session, _Watched())
            busy = not watched.parted and bool(session.pending or session.held)
            if busy or not watched.is_over(session.heard_s):
                done = False
            elif watched.parted:
                session.hang_up()
            else:
                self._part(session, watched)
                done = False
        return done

    def part_all(self, exc: BaseException | None) -> None:
        """The time is up: also connections that are not quiet, or hold something, are half closed, with the reason."""
        for session in list(self._sessions):
            watched = self._watched.setdefault(session, _Watched())
            if not watched.parted:
                self._part(session, watched, exc)

    def _part(self, session: Leaving, watched: _Watched, exc: BaseException | None = None) -> None:
        session.part(exc)
        watched.part()
