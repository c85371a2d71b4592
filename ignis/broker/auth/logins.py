"""Lets a few passwords be checked at a time, the others wait in a line. No I/O.

A check is slow on purpose, and in a line of its own it holds up nobody else. The addresses take turns, and at each address the
names: whoever sends many waits for his own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ignis.errors import TooManyRequestsError

__all__ = ["AT_A_TIME", "MOST_WAITING", "WAIT_S", "Logins"]

AT_A_TIME = 2
"""Passwords checked at a time: each takes 32 MiB and a core for some 60 ms."""
MOST_WAITING = 64
"""Logins in the line."""
WAIT_S = 3.0
"""The longest wait in the line."""


class Timer(Protocol):
    def cancel(self) -> object: ...


class _Login:
    """One login in the line."""

    __slots__ = ("address", "begin", "gone", "name", "refused", "timer")

    def __init__(
        self,
        begin: Callable[[], None],
        refused: Callable[[BaseException], None],
        gone: Callable[[], bool],
        address: str,
        name: str,
    ) -> None:
        self.begin = begin
        self.refused = refused
        self.gone = gone
        self.address = address
        self.name = name
        self.timer: Timer | None = None


class Logins:
    """Keeps the line of logins by password. Belongs to the event loop.

    Args:
        later: calls something after so many seconds, as ``loop.call_later`` does.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._later = later
        self._running = 0
        self._line: dict[str, dict[str, dict[_Login, None]]] = {}
        """Address -> name -> its logins, the oldest first. Whose turn is next stands first."""
        self.waiting = 0

    def enter(
        self,
        begin: Callable[[], None],
        refused: Callable[[BaseException], None],
        gone: Callable[[], bool],
        address: str = "",
        name: str = "",
    ) -> None:
        """Begins the check when its turn comes; `left` is due when it has ended.

        Args:
            begin: begins it.
            refused: called instead, with a TooManyRequestsError: at once when `MOST_WAITING` wait and no other address or
                name has more of them, later when its place is given to another one, or after `WAIT_S`.
            gone: whether nobody waits for it any more: then it is skipped.
            address, name: of who logs in.
        """
        if self._running < AT_A_TIME:
            self._running += 1
            begin()
            return
        if self.waiting >= MOST_WAITING:
            for one in [one for one in self._all() if one.gone()]:
                self._take(one)
        if self.waiting >= MOST_WAITING:
            found = self._of_another(address, name)
            if found is None:
                refused(_too_many(self.waiting + 1))
                return
            self._take(found)
            found.refused(_too_many(self.waiting + 1))
        login = _Login(begin, refused, gone, address, name)
        login.timer = self._later(WAIT_S, lambda: self._waited(login))
        self._line.setdefault(address, {}).setdefault(name, {})[login] = None
        self.waiting += 1

    def left(self) -> None:
        """Takes note that a check has ended, and begins the next."""
        self._running -= 1
        while self._line and self._running < AT_A_TIME:
            login = self._next()
            self._take(login)
            if not login.gone():
                self._running += 1
                login.begin()

    def _all(self) -> list[_Login]:
        return [one for names in self._line.values() for logins in names.values() for one in logins]

    def _next(self) -> _Login:
        """Returns whose turn it is. Its address and name are the last ones afterwards."""
        address = next(iter(self._line))
        names = self._line[address] = self._line.pop(address)
        name = next(iter(names))
        logins = names[name] = names.pop(name)
        return next(iter(logins))

    def _of_another(self, address: str, name: str) -> _Login | None:
        """Returns the login that gives its place to this address and name: the newest of the address that has most, else of the
        name that has most at this address. None when they would then have fewer than this one."""
        of_address = {one: sum(map(len, names.values())) for one, names in self._line.items()}
        most = max(of_address, key=of_address.__getitem__)
        if of_address[most] <= of_address.get(address, 0) + 1:
            most = address
        names = {one: len(logins) for one, logins in self._line.get(most, {}).items()}
        if not names:
            return None
        fullest = max(names, key=names.__getitem__)
        if most == address and names[fullest] <= names.get(name, 0) + 1:
            return None
        return next(reversed(self._line[most][fullest]))

    def _take(self, login: _Login) -> None:
        names = self._line[login.address]
        logins = names[login.name]
        del logins[login]
        if not logins:
            del names[login.name]
        if not names:
            del self._line[login.address]
        self.waiting -= 1
        if login.timer is not None:
            login.timer.cancel()
            login.timer = None

    def _waited(self, login: _Login) -> None:
        if login.timer is not None:
            waiting = self.waiting
            login.timer = None
            self._take(login)
            login.refused(_too_many(waiting))


def _too_many(waiting: int) -> TooManyRequestsError:
    return TooManyRequestsError(waiting, MOST_WAITING, "logins by password")
