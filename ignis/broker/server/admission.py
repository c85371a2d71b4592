"""Who is let in: connections are counted from the moment they are accepted, in all and for each address. No I/O.

A connection is a stranger from `Admission.enter` until its client has said who it is, so one that never begins the TLS
handshake is counted like any other. Strangers have places of their own, few of them for each address. When all are taken,
an address that has fewer than the one with the most takes the oldest place of that one: no address can keep the others out.
Who is known counts against the share of its user: no login can keep the others out either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ignis.config import BrokerSettings
from ignis.errors import TooManyRequestsError
from ignis.places import Places

__all__ = ["Admission", "Visitor"]

_SHARES = 4
"""One user has at most this part of the connections: one of so many."""


class Visitor:
    """One accepted connection. ``close`` ends it at once; whoever accepts it sets it."""

    __slots__ = ("close", "holder", "network")

    def __init__(self, network: str, close: Callable[[], object]) -> None:
        self.network = network
        self.close = close
        self.holder = ""
        """Whose share it is of, once that is known."""


class Admission:
    """Decides which connections a broker lets in, and counts them in all and for each address. Belongs to its event loop.

    Args:
        settings: the limits.
        most: connections that there are descriptors for; None = as many as the settings allow.
    """

    def __init__(self, settings: BrokerSettings, most: int | None = None) -> None:
        most = settings.max_connections if most is None else min(most, settings.max_connections)
        self._share = settings.max_connections_per_user or max(1, most // _SHARES)
        self._shares: Counter[str] = Counter()
        """Connections of each user."""
        self._all: Places[Visitor] = Places(
            most,
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

    def known(self, visitor: Visitor, holder: str = "") -> None:
        """Its client has said who it is.

        Args:
            holder: whose share of the connections it takes of; empty = nobody's.

        Raises TooManyRequestsError naming the setting: that share is used up, and it must be closed.
        """
        if holder and self._shares[holder] >= self._share:
            self.refused += 1
            raise TooManyRequestsError(self._shares[holder] + 1, self._share, "broker.max_connections_per_user")
        self._strangers.leave(visitor.network, visitor)
        if holder:
            visitor.holder = holder
            self._shares[holder] += 1

    def leave(self, visitor: Visitor) -> None:
        """The connection is closed. Idempotent."""
        self._strangers.leave(visitor.network, visitor)
        self._all.leave(visitor.network, visitor)
        if visitor.holder:
            self._shares[visitor.holder] -= 1
            if not self._shares[visitor.holder]:
                del self._shares[visitor.holder]
            visitor.holder = ""

    def _displace(self, network: str) -> bool:
        """Closes a stranger of another address, if that has more of them than this one would have."""
        oldest = self._strangers.displace(network)
        if oldest is None:
            return False
        self.displaced += 1
        self._all.leave(oldest.network, oldest)
        oldest.close()
        return True
