"""Who is connected to a broker, and who was a moment ago: what a lost connection held waits for its client to come back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ignis.broker.protocol.in_flight import InFlight
from ignis.broker.server.application import Application
from ignis.broker.server.caller import Caller
from ignis.broker.server.context import BrokerContext
from ignis.log_format import event_text

__all__ = ["Presence"]

log = logging.getLogger("ignis.broker")


class Client(Caller, Protocol):
    """A connection whose client has said who it is."""

    instance: str
    """The client's own name for itself, the same on every connection."""
    heard_s: float
    spoke_s: float
    """When anything came from it and went to it last, by the loop's clock."""


Key = tuple[str, str, str, str]
"""(client id, farm id, user, instance)."""


class _Lost(NamedTuple):
    held: InFlight
    fired: InFlight
    """What of it the client claimed by itself."""
    at_ms: int
    """Since when there was nothing between the client and this broker."""
    application: Application
    timer: asyncio.TimerHandle
    owner: str


class Presence:
    """Knows which clients are there and which are awaited back. Belongs to the broker's event loop, but for `awaited` and
    `alone`.

    Args:
        context: of the broker.
        members: the brokers of the store. In a thread.
    """

    def __init__(self, context: BrokerContext, members: Callable[[], Sequence[object]]) -> None:
        self._context = context
        self._members = members
        self._present: dict[Key, list[Client]] = {}
        self._lost: dict[Key, _Lost] = {}

    def take_up(self, client: Client) -> int:
        """A client came back: what its last connection held is this one's. Returns how many messages."""
        key = _key(client)
        self._present.setdefault(key, []).append(client)
        found = self._lost.pop(key, None)
        if found is None:
            return 0
        found.timer.cancel()
        count = found.held.count
        for magazine, runs in found.held.take_all().items():
            client.claims.take_up(magazine, runs)
        return count

    def said(self, client: Client, magazine: str) -> None:
        """A client has said what it holds of a magazine: what still waits for it of an earlier connection is part of that, or
        went back."""
        found = self._lost.get(_key(client))
        if found is not None:
            found.held.forget(magazine)
            found.fired.forget(magazine)

    def leave(self, client: Client, application: Application) -> None:
        """A connection is gone. What it held waits a moment for its client to come back."""
        key = _key(client)
        others = [one for one in self._present.get(key, ()) if one is not client]
        if others:
            self._present[key] = others
        else:
            self._present.pop(key, None)
        held, fired = client.held, client.claims.fired
        for other in others:
            for magazine in other.claims.resumed:
                # Its client is here by another connection, and said what it holds: the rest never reached it.
                rest = held.without(magazine, other.held.runs(magazine))
                held.forget(magazine)
                fired.forget(magazine)
                application.give_back(magazine, rest)
        if not held:
            return
        quiet_s = self._context.loop.time() - max(client.heard_s, client.spoke_s)
        at_ms = int((time.time() - quiet_s) * 1000) + 1
        known = self._lost.pop(key, None)
        if known is not None:
            known.timer.cancel()
            held.join(known.held)
            fired.join(known.fired)
        delay_s = 0 if self._context.state.draining else self._context.settings.redeliver_after_s
        timer = self._context.loop.call_later(delay_s, self._redeliver, key)
        self._lost[key] = _Lost(held, fired, at_ms, application, timer, client.owner)

    def _redeliver(self, key: Key) -> None:
        lost = self._lost.pop(key)
        lost.timer.cancel()
        state = self._context.state
        crashed = not state.draining and key not in self._present
        if crashed:
            for magazine, fired in lost.fired.take_all().items():
                # Claims that were renewed since are the client's, by way of another broker of the store.
                lost.held.take(magazine, fired)
                lost.application.redelivery.give_back_unless_renewed(magazine, fired, lost.owner, lost.at_ms)
        state.redelivered += lost.held.count
        for magazine, runs in lost.held.take_all().items():
            log.info(
                event_text(
                    "lost_connection_gives_back", "%d run(s) of %s, held by a connection that was lost, go back"
                ),
                len(runs),
                magazine,
            )
            lost.application.give_back(magazine, runs, crashed=crashed)

    def redeliver_all(self) -> None:
        """Nobody is waited for any longer: the broker ends."""
        for key in list(self._lost):
            self._redeliver(key)

    def owes(self, application: Application) -> bool:
        """Whether anything that was lost is to go back to it."""
        return any(one.application is application for one in self._lost.values())

    # -- what applications ask, see `Clients`

    def peers_of(self, owner: str) -> list[Client]:
        """The connections of one client."""
        return [one for many in self._present.values() for one in many if one.owner == owner]

    def awaited(self) -> set[str]:
        """Whose connection stands, or was lost a moment ago. From any thread: a snapshot."""
        present = {str(one.owner) for many in list(self._present.values()) for one in list(many)}
        return present | {str(lost.owner) for lost in list(self._lost.values())}

    def alone(self) -> bool:
        """Whether this is the only broker of the store. In a thread."""
        return len(self._members()) <= 1


def _key(client: Client) -> Key:
    assert client.application is not None
    app = client.application.app
    return app.client_id, app.farm_id, client.principal.name, client.instance
