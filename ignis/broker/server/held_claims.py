"""What the client of one connection holds: what it was delivered, and what it claimed by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ignis.broker.protocol.in_flight import MOST_RUNS, InFlight, PointerRange
from ignis.broker.server.application import Application
from ignis.broker.server.long_work import Work

__all__ = ["HeldClaims"]


class Holds(Protocol):
    """The connection whose client it is."""

    closed: bool
    application: Application | None

    def in_pieces(self, work: Work, nbytes: int = 0) -> None:
        """Long work, before what the client asks for next."""


class HeldClaims:
    """What one connection has claimed and not finished. Belongs to the event loop.

    Args:
        session: the connection.
        said: called with a magazine when the client has said what it holds of it.
    """

    def __init__(self, session: Holds, said: Callable[[str], None]) -> None:
        self.held = InFlight()
        """All that it was given and has not accounted for."""
        self.fired = InFlight()
        """What the client claimed by itself (FIRE), and hence renews by itself."""
        self.earlier = InFlight()
        """What was delivered over an earlier connection: some may never have arrived, so nobody renews them for it."""
        self.resumed: set[str] = set()
        """Magazines of which the client said what it holds."""
        self._session = session
        self._said = said

    def hold(self, magazine: str, runs: list[PointerRange], *, fired: bool = False) -> None:
        """The client was given these. If it is gone already, they go back."""
        session = self._session
        if session.closed:
            assert session.application is not None
            session.application.give_back(magazine, runs)
        else:
            self.held.add(magazine, runs)
            if fired:
                self.fired.add(magazine, runs)

    def hold_only(self, magazine: str, runs: list[PointerRange], *, fired: bool) -> None:
        """The client holds these of the magazine, and nothing else."""
        if self._session.closed:
            return  # they wait for its next connection, or for its end
        self.resumed.add(magazine)
        self._said(magazine)
        for some in (self.held, self.fired, self.earlier):
            some.forget(magazine)
        self.hold(magazine, runs, fired=fired)

    def take(self, magazine: str, runs: list[PointerRange]) -> list[PointerRange]:
        """Takes these from it; returns what it held of them."""
        taken = self.held.take(magazine, runs)
        for some in (self.fired, self.earlier):
            if some:
                some.take(magazine, taken)
        return taken

    def take_all(self) -> dict[str, list[PointerRange]]:
        """Takes all from it; returns what it held, by magazine."""
        self.fired.take_all()
        self.earlier.take_all()
        return self.held.take_all()

    def take_up(self, magazine: str, runs: list[PointerRange]) -> None:
        """Its client held these on an earlier connection."""
        self.held.add(magazine, runs)
        self.earlier.add(magazine, runs)

    def let_go(self, magazine: str, runs: list[PointerRange]) -> None:
        """The client accounted for these."""
        session = self._session
        if len(runs) > MOST_RUNS:
            session.in_pieces(self._let_go_in_pieces(magazine, runs))
        elif self.take(magazine, runs) and session.application is not None:
            session.application.has_room(magazine)

    def _let_go_in_pieces(self, magazine: str, runs: list[PointerRange]) -> Work:
        for first in range(0, len(runs), MOST_RUNS):
            self.let_go(magazine, runs[first : first + MOST_RUNS])
            yield None

    def delivered(self, magazine: str) -> list[PointerRange]:
        """What it holds of the magazine and did not claim by itself."""
        return self.held.without(magazine, self.fired.runs(magazine) + self.earlier.runs(magazine))
