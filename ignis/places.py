"""Places for connections: so many in all, so many for each address, and none that one address keeps from the others."""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

from ignis.errors import TooManyRequestsError

__all__ = ["Places", "network_of"]

H = TypeVar("H")

_NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one has all of its network."""


def network_of(address: object) -> str:
    """What the connections of one peer are counted under, from what ``socket.accept`` says of it."""
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((int(ip) >> _NETWORK_BITS << _NETWORK_BITS, _NETWORK_BITS)))
    return host


class Places(Generic[H]):
    """Who has a place, by network. One thread at a time.

    Args:
        limit: places, and ``name``, the setting that says so.
        limit_each: places of one network, and ``name_each``, its setting.
    """

    def __init__(self, limit: int, name: str, limit_each: int, name_each: str) -> None:
        self.limit = limit
        self.count = 0
        self._name = name
        self._limit_each = limit_each
        self._name_each = name_each
        self._holders: dict[str, dict[H, None]] = {}
        """Network -> its holders, the oldest first."""

    def of(self, network: str) -> int:
        """Places of one network."""
        return len(self._holders.get(network, ()))

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return self.count >= self.limit

    def check(self, network: str) -> None:
        """Raises TooManyRequestsError when the network has as many as it may have."""
        mine = self.of(network)
        if mine >= self._limit_each:
            raise TooManyRequestsError(mine + 1, self._limit_each, self._name_each)

    def no_place(self) -> TooManyRequestsError:
        """What to say when all places are taken."""
        return TooManyRequestsError(self.count + 1, self.limit, self._name)

    def enter(self, network: str, holder: H) -> None:
        """Takes a place, whatever the limits are: see `check` and `full`."""
        self._holders.setdefault(network, {})[holder] = None
        self.count += 1

    def leave(self, network: str, holder: H) -> bool:
        """Gives the place back; False when it has none."""
        mine = self._holders.get(network)
        if mine is None or holder not in mine:
            return False
        del mine[holder]
        self.count -= 1
        if not mine:
            del self._holders[network]
        return True

    def displace(self, network: str) -> H | None:
        """Takes a place for one of ``network`` when all are taken: the oldest of the network that has most of them loses
        its own, and is returned. None when that would not have more left than ``network`` has then."""
        most = max(self._holders, key=self.of, default="")
        if self.of(most) <= self.of(network) + 1:
            return None
        oldest = next(iter(self._holders[most]))
        self.leave(most, oldest)
        return oldest
