"""The applications of one broker: opened when somebody connects to them, closed when nobody has for a while."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from ignis.broker.server.application import Application
from ignis.broker.server.context import BrokerContext
from ignis.errors import IgnisError, TooManyRequestsError
from ignis.log_format import event_text
from ignis.upkeep import in_thread

__all__ = ["ApplicationTable", "Scope"]

log = logging.getLogger("ignis.broker")

_ENDED_S = 10.0
_SHARE = "a quarter of broker.max_applications"

Scope = tuple[str, str]
"""(client id, farm id)."""


class ApplicationTable:
    """Opens, shares and closes the applications of one broker.

    Args:
        context: of the broker.
        own: the application of the broker itself, which stays.
        open_one: opens an application. In a thread: it may take a while.
        owed: whether anything is to go back to an application, which stays as long.
    """

    def __init__(
        self,
        context: BrokerContext,
        own: Scope,
        open_one: Callable[[Scope], Application],
        owed: Callable[[Application], bool],
    ) -> None:
        self._context = context
        self._own = own
        self._open_one = open_one
        self._owed = owed
        self._found: dict[Scope, Application] = {}
        self._opening = threading.Lock()
        self._guard = threading.Lock()
        """Over the table and who uses its applications; held for a moment only, the event loop takes it too."""

    @property
    def all(self) -> list[Application]:
        return list(self._found.values())

    @property
    def count(self) -> int:
        return len(self._found)

    def enter(self, scope: Scope, holder: str) -> Application:
        """The application, with one user more; `leave` is due. In a thread.

        Raises TooManyRequestsError: there is no room for one more, or the holder uses its share of them.
        """
        try:
            return self.open(scope, holder)
        except TooManyRequestsError as exc:
            if exc.setting == _SHARE:
                raise  # nobody else's places are of use to it
            # Those that nobody uses do not wait for their time then.
            asyncio.run_coroutine_threadsafe(self.end_idle(0.0), self._context.loop).result(_ENDED_S)
            return self.open(scope, holder)

    def leave(self, application: Application, holder: str) -> None:
        """Counts one user of the application less."""
        with self._guard:
            application.leave(holder)

    def open(self, scope: Scope, holder: str | None = None) -> Application:
        """The application; with a holder it has one user more. In any thread but the event loop's. Raises as `enter`."""
        most = self._context.settings.max_applications
        with self._opening:
            with self._guard:
                found = self._found.get(scope)
                if found is not None:
                    found.enter(holder)
                    return found
                count = len(self._found)
                mine = sum(holder in one.holders for one in self._found.values()) if holder else 0
            share = max(1, most // 4)
            if mine >= share:
                raise TooManyRequestsError(mine + 1, share, _SHARE)
            if count >= most:
                raise TooManyRequestsError(count + 1, most, "broker.max_applications")
            found = self._open_one(scope)
            with self._guard:
                found.enter(holder)
                self._found[scope] = found
            return found

    async def end_idle(self, linger_s: float) -> None:
        """Closes the stores of applications that have been idle for so long."""
        loop = self._context.loop
        now = loop.time()
        ended = []
        with self._guard:
            for scope, application in list(self._found.items()):
                if scope == self._own or self._owed(application) or not application.idle:
                    application.idle_since_s = None
                    continue
                if application.idle_since_s is None:
                    application.idle_since_s = now
                if now - application.idle_since_s >= linger_s:
                    del self._found[scope]
                    application.end()
                    ended.append(application)
        for application in ended:
            application.tidy()
            await in_thread(_close, application)

    def close(self) -> None:
        """Closes the stores of all of them. In any thread; nothing may be under way."""
        for application in self.all:
            _close(application)


def _close(application: Application) -> None:
    try:
        application.close()
    except IgnisError as exc:
        log.warning(event_text("application_store_failed", "store of %s: %s"), application.app, exc)
