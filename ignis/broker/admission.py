"""Who is let in: connections are counted from the moment they are accepted, in all and for each address. No I/O.

A connection is a stranger from `Admission.enter` until its client has said who it is, so one that never begins the TLS
handshake is counted like any other. Strangers have places of their own, few of them for each address. When all are taken,
an address that has fewer than the one with the most takes the oldest place of that one: no address can keep the others out.
"""

from __future__ import annotations

from collections.abc import Callable

from ignis.config import BrokerSettings
from ignis.errors import TooManyRequestsError
from ignis.places import Places

__all__ = ["Admission", "Visitor"]


class Visitor:
    """One accepted connection. ``close`` ends it at once; whoever accepts it sets it."""

    __slots__ = ("close", "network")

    def __init__(self, network: str, close: Callable[[], object]) -> None:
        self.network = network
        self.close = close


class Admission:
    """Of one broker. Belongs to its event loop.

    Args:
        settings: the limits.
        most: connections that there are descriptors for; None = as many as the settings allow.
    """

    def __init__(self, settings: BrokerSettings, most: int | None = None) -> None:
        self._all: Places[Visitor] = Places(
            settings.max_connections if most is None else min(most, settings.max_connections),
            "broker.max_connections",
            settings.max_connections_per_address,
            "broker.max_connections_per_address",
        )
        self._strangers: Places[Visitor] = Places(
            settings.max_unauthenticated,
            "broker.max_unauthenticated",
            settings.max_unauthenticated_per_address,
            "broker.max_unauthenticated_per_address",
        )
        self.refused = 0
        self.displaced = 0

    @property
    def count(self) -> int:
        """Connections, strangers included."""
        return self._all.count

    @property
    def strangers(self) -> int:
        """Connections whose clients have not said who they are."""
        return self._strangers.count

    def of(self, network: str) -> int:
        """Connections of one address."""
        return self._all.of(network)

    def enter(self, network: str, close: Callable[[], object]) -> Visitor:
        """A connection was accepted. `leave` is due for it.

        Args:
            network: see `ignis.places.network_of`.
            close: ends it at once.

        Raises TooManyRequestsError naming the setting: it must be closed.
        """
        try:
            for places in (self._all, self._strangers):
                places.check(network)
            for places in (self._all, self._strangers):
                if places.full and not self._displace(network):
                    raise places.no_place()
        except TooManyRequestsError:
            self.refused += 1
            raise
        visitor = Visitor(network, close)
        self._all.enter(network, visitor)
        self._strangers.enter(network, visitor)
        return visitor

    def known(self, visitor: Visitor) -> None:
        """Its client has said who it is. Idempotent."""
        self._strangers.leave(visitor.network, visitor)

    def leave(self, visitor: Visitor) -> None:
        """The connection is closed. Idempotent."""
        self._strangers.leave(visitor.network, visitor)
        self._all.leave(visitor.network, visitor)

    def _displace(self, network: str) -> bool:
        """Closes a stranger of another address, if that has more of them than this one would have."""
        oldest = self._strangers.displace(network)
        if oldest is None:
            return False
        self.displaced += 1
        self._all.leave(oldest.network, oldest)
        oldest.close()
        return True
