"""Places for connections: so many in all, so many for each address, and none that one address keeps from the others."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Generic, TypeVar

from ignis.errors import TooManyRequestsError

__all__ = ["THIS_MACHINE", "Places", "network_of", "network_of_connection"]

H = TypeVar("H")

THIS_MACHINE = "this machine"
"""The network of all addresses of the loopback: each local user has millions of them."""

_NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one has all of its network."""


def network_of(address: object) -> str:
    """What the connections of one peer are counted under, from what ``socket.accept`` says of it."""
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return THIS_MACHINE
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(ip) >> _NETWORK_BITS << _NETWORK_BITS, _NETWORK_BITS)))
    return str(ip)


def network_of_connection(sock: socket.socket, address: object) -> str:
    """`network_of` for an accepted connection. Of one from this machine the user counts whose process has made it, where the
    system tells: the users of a machine share its addresses.

    Args:
        sock: what ``accept`` returned, and ``address``, what it said of the peer.
    """
    network = network_of(address)
    try:
        own = sock.getsockname()
    except OSError:
        return network
    if network not in (THIS_MACHINE, network_of(own)):
        return network
    user = _user_of(address, own)
    return network if user is None else f"user {user} of {THIS_MACHINE}"


_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_ALL = 0xFFFF_FFFF
_USER_AT = 16 + 4 + 48 + 12
"""Behind the header of the answer, the kind of socket, its addresses, and three counters: ``idiag_uid``."""


def _user_of(peer: object, own: object) -> int | None:
    """Who has made the other end of a TCP connection on this machine, from Linux's ``sock_diag``; None where it does not say."""
    try:
        (here, here_port), (there, there_port) = _end(own), _end(peer)
        wanted = (
            struct.pack("=BBBBI", here[0], socket.IPPROTO_TCP, 0, 0, _ALL)
            + struct.pack("!HH", there_port, here_port)
            + there[1]
            + here[1]
            + struct.pack("=III", 0, _ALL, _ALL)
        )
        message = struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _REQUEST, 1, 0) + wanted
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asking:
            asking.setblocking(False)  # the kernel has answered when the sending returns
            asking.sendto(message, (0, 0))
            answer = asking.recv(4_096)
        if struct.unpack_from("=H", answer, 4)[0] != _BY_FAMILY:
            return None
        return int(struct.unpack_from("=I", answer, _USER_AT)[0])
    except (AttributeError, OSError, ValueError, TypeError, struct.error):
        return None


def _end(address: object) -> tuple[tuple[int, bytes], int]:
    """(family and address in 16 bytes, port)."""
    host, port = address[0], address[1]  # type: ignore[index]
    ip = ipaddress.ip_address(str(host).partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    return (int(family), ip.packed.ljust(16, b"\0")), int(port)


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
