"""Renewing what is being worked on: what a connection was delivered stays its own for as long as it stands, however long the
work takes. What a client claimed by itself (FIRE) it renews by itself.

Nothing is done per message: a magazine is looked at a few times within its queue's stuck time, and renewed is what was held
at the last look too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ignis.broker.protocol.in_flight import PointerRange, as_pointers
from ignis.broker.server.context import ApplicationContext
from ignis.broker.server.peer import Peer
from ignis.config import QueueSettings
from ignis.errors import QueueNotFoundError
from ignis.log_format import event_text
from ignis.log_limit import LimitedLog
from ignis.storage.base import renewal_period_s

__all__ = ["ClaimRenewal"]

log = logging.getLogger("ignis.broker")

Part = tuple[str, list[PointerRange]]
"""(owner, what is renewed in its name)."""


class ClaimRenewal:
    """Renews the claims of the messages that the connections of one application hold. Belongs to the event loop."""

    def __init__(self, context: ApplicationContext) -> None:
        self.renewed = 0
        """Calls of the store."""
        self._magazines = context.magazines
        self._facts = context.facts
        self._threads = context.broker.threads
        self._owner = context.broker.owner
        self._period_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}
        self._before: dict[str, dict[Peer, list[PointerRange]]] = {}
        self._asked: set[str] = set()
        self._said = LimitedLog(log)

    def look(self, now: float, sessions: Sequence[Peer], delayed: dict[str, list[PointerRange]]) -> None:
        """Now and then.

        Args:
            now: monotonic seconds.
            sessions: the connections that hold anything.
            delayed: by magazine, what the broker itself keeps until its time comes.
        """
        holders: dict[str, list[Peer]] = {magazine: [] for magazine in delayed}
        for session in sessions:
            for magazine in session.held.magazines():
                holders.setdefault(magazine, []).append(session)
        for magazine in [name for name in self._period_s if name not in holders]:
            del self._period_s[magazine]
            self._due_s.pop(magazine, None)
            self._before.pop(magazine, None)
        for magazine, many in holders.items():
            if magazine not in self._period_s:
                self._ask(magazine)
            elif now >= self._due_s[magazine]:
                self._due_s[magazine] = now + self._period_s[magazine]
                self._renew(magazine, many, delayed.get(magazine, []))

    def _ask(self, magazine: str) -> None:
        """Reads the queue's settings for the stuck time, which the store knows."""
        if magazine in self._asked:
            return
        self._asked.add(magazine)

        def work(_: None) -> float:
            record = self._facts.record(magazine)
            return QueueSettings().stuck_after_s if record is None else record.stuck_after_s

        def done(stuck_after_s: float) -> None:
            self._asked.discard(magazine)
            self._period_s[magazine] = renewal_period_s(stuck_after_s)
            self._due_s[magazine] = 0.0

        self._threads.call(work, done, None, lambda exc: self._failed(magazine, exc))

    def _renew(self, magazine: str, sessions: Sequence[Peer], delayed: list[PointerRange]) -> None:
        before = self._before.get(magazine, {})
        self._before[magazine] = held = {session: session.claims.delivered(magazine) for session in sessions}
        parts: list[Part] = [(self._owner, delayed)] if delayed else []
        for session in held:
            runs = session.held.both(magazine, before.get(session, []))
            if runs:
                parts.append((session.owner, runs))
        if parts:
            self._threads.call(self._work, lambda _: None, (magazine, parts), lambda exc: self._failed(magazine, exc))

    def _work(self, what: tuple[str, list[Part]]) -> None:
        magazine, parts = what
        for owner, runs in parts:
            self._magazines.renew_claims(magazine, as_pointers(runs), owner)
            self.renewed += 1

    def _failed(self, magazine: str, exc: BaseException) -> None:
        self._asked.discard(magazine)
        if not isinstance(exc, QueueNotFoundError):
            self._said.warning(
                event_text("claim_renewal_failed", "claims of %s could not be renewed, trying again: %s"),
                magazine,
                exc,
                about=magazine,
            )
