"""Logins whose check is slow on purpose stand in a line of their own, so that they hold up nobody else. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ignis.errors import TooManyRequestsError

__all__ = ["AT_A_TIME", "MOST_WAITING", "WAIT_S", "Logins"]

AT_A_TIME = 2
"""Passwords checked at a time: each takes 32 MiB and a core for some 60 ms."""
MOST_WAITING = 64
WAIT_S = 3.0


class Timer(Protocol):
    def cancel(self) -> object: ...


class _Login:
    __slots__ = ("begin", "gone", "refused", "timer")

    def __init__(
        self, begin: Callable[[], None], refused: Callable[[BaseException], None], gone: Callable[[], bool]
    ) -> None:
        self.begin = begin
        self.refused = refused
        self.gone = gone
        self.timer: Timer | None = None


class Logins:
    """The line. Belongs to the event loop.

    Args:
        later: calls something after so many seconds, as ``loop.call_later`` does.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._later = later
        self._running = 0
        self._line: dict[_Login, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._line)

    def enter(
        self, begin: Callable[[], None], refused: Callable[[BaseException], None], gone: Callable[[], bool]
    ) -> None:
        """Begins the check when its turn comes; `left` is due when it has ended.

        Args:
            begin: begins it.
            refused: is given a TooManyRequestsError instead, at once when `MOST_WAITING` wait, or after `WAIT_S`.
            gone: whether nobody waits for it any more: then it is skipped.
        """
        if self._running < AT_A_TIME:
            self._running += 1
            begin()
            return
        if len(self._line) >= MOST_WAITING:
            for one in [one for one in self._line if one.gone()]:
                self._take(one)
        if len(self._line) >= MOST_WAITING:
            refused(_too_many(len(self._line) + 1))
            return
        login = _Login(begin, refused, gone)
        login.timer = self._later(WAIT_S, lambda: self._waited(login))
        self._line[login] = None

    def left(self) -> None:
        """A check has ended."""
        self._running -= 1
        while self._line and self._running < AT_A_TIME:
            login = next(iter(self._line))
            self._take(login)
            if not login.gone():
                self._running += 1
                login.begin()

    def _take(self, login: _Login) -> None:
        del self._line[login]
        if login.timer is not None:
            login.timer.cancel()

    def _waited(self, login: _Login) -> None:
        if login in self._line:
            waiting = len(self._line)
            del self._line[login]
            login.refused(_too_many(waiting))


def _too_many(waiting: int) -> TooManyRequestsError:
    return TooManyRequestsError(waiting, MOST_WAITING, "logins by password")
