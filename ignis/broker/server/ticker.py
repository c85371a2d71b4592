"""What a broker does now and then, in one task: deadlines of connections, renewals, applications that nobody uses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set as AbstractSet

from ignis.broker.server.application import Application
from ignis.broker.server.application_table import ApplicationTable
from ignis.broker.server.context import BrokerContext
from ignis.broker.server.heap import collect_all
from ignis.broker.server.session import Session
from ignis.errors import BrokerError
from ignis.log_format import event_text

__all__ = ["Ticker"]

log = logging.getLogger("ignis.broker")

_TICK_S = 0.25
_TIDY_S = 60.0
_FEW = 1_000
"""Requests of which there is little to look through."""
_POKE_S = 10.0
_RENEW_S = 0.5
_AT_ONCE = 256


class Ticker:
    """Looks at all connections and applications of one broker.

    Args:
        context: what the parts of the broker have in common.
        sessions: its connections.
        table: its applications.
    """

    def __init__(self, context: BrokerContext, sessions: AbstractSet[Session], table: ApplicationTable) -> None:
        self._context = context
        self._settings = context.settings
        self._state = context.state
        self._loop = context.loop
        self._sessions = sessions
        self._table = table
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._tick())

    async def stop(self) -> None:
        """Ends it. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def ended(self, timeout_s: float) -> None:
        """Waits for applications that are being closed."""
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=timeout_s)

    async def _tick(self) -> None:
        settings = self._settings
        tidy_s = poke_s = end_s = renew_s = self._loop.time()
        while True:
            await asyncio.sleep(min(_TICK_S, settings.handshake_timeout_s / 4, settings.idle_timeout_s / 4))
            now = self._loop.time()
            for number, session in enumerate(list(self._sessions), 1):
                self._check(session, now)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # thousands of connections must not hold up the others' requests
            self._end_overdue(now)
            if now - end_s > min(_POKE_S, settings.application_linger_s) and (not self._ending or self._ending.done()):
                end_s = now
                self._ending = self._loop.create_task(self._table.end_idle(settings.application_linger_s))
            if now - renew_s >= _RENEW_S:
                renew_s = now
                at_work: dict[Application, list[Session]] = {}
                for session in self._sessions:
                    if session.held and session.application is not None and not session.closed:
                        at_work.setdefault(session.application, []).append(session)
                for application in self._table.all:
                    application.look(now, at_work.get(application, []))
            if now - poke_s > _POKE_S:
                poke_s = now
                for application in self._table.all:
                    for pump in list(application.pumps):
                        pump.look()
            if now - tidy_s > _TIDY_S:
                tidy_s = now
                for application in self._table.all:
                    application.tidy()
                if sum(session.pending for session in self._sessions) < _FEW:
                    collect_all()

    def _end_overdue(self, now: float) -> None:
        for session, why in self._context.receiving.overdue(now):
            self._state.timeouts += 1
            log.info(event_text("connection_closed", "%s: %s"), session.peer, why)
            session.end(BrokerError(why))
            self._context.receiving.left(session)

    def _check(self, session: Session, now: float) -> None:
        settings = self._settings
        session.look(now)
        overdue = not session.known and now - session.began_s > settings.handshake_timeout_s
        patience_s = settings.write_timeout_s
        if session.application is None:
            patience_s = min(patience_s, settings.handshake_timeout_s)
        if overdue and session.outbound_bytes:
            # It is not told: that would wait behind what it does not read, and it has had its time.
            self._state.timeouts += 1
            session.abort()
        elif session.stuck_since_s is not None and now - session.stuck_since_s > patience_s:
            self._state.timeouts += 1
            log.info(
                event_text("connection_reads_nothing", "%s reads nothing for %g s: closed"), session.peer, patience_s
            )
            session.abort()
        elif overdue:
            self._state.timeouts += 1
            session.end(
                BrokerError(f"no CONNECT within {settings.handshake_timeout_s:g} s (broker.handshake_timeout_s)")
            )
        elif not session.unread and now - session.heard_s > settings.idle_timeout_s and not session.waited_for:
            self._state.timeouts += 1
            session.end(BrokerError(f"nothing was heard for {settings.idle_timeout_s:g} s (broker.idle_timeout_s)"))
