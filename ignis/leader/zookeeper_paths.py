"""The nodes of an election in ZooKeeper, and what they hold: as the Java library lays them out.

::

    /{client}-ignis-workers/{client}/
        loadbalancer-leader/_c_{guid}-lock-{sequence}    the contest: the lowest sequence leads; data: the instance
        members/{instance}                               who is there
        communicator/{instance}                          what the leader assigned to it: `Assignment` in JSON

The contest's nodes have the names that Curator's LeaderSelector gives and sorts them by. Scopes other than the sweeper's
have the same three below ``/{client}-ignis-workers/{client}/scopes/{scope}/``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ignis.config import check_name

__all__ = ["SWEEPER", "Assignment", "Member", "Paths", "deal", "new_prefix", "sequence_of", "shown"]

SWEEPER = "sweeper"
_SEQUENCE = re.compile(r"lock-([0-9]{1,19})\Z")
_SHOWN_CHARS = 200
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


class Assignment(msgspec.Struct, frozen=True, rename="camel"):
    """What a communicator node holds. The instance that ``balancer_id`` names is the active one."""

    balancer_id: str
    epoch: int = 0
    partitions: list[int] = []
    since_ms: int = 0

    @property
    def began_ms(self) -> int | None:
        """``since_ms`` where it is a time; None for 0 and for what nobody's clock says."""
        return self.since_ms if 0 < self.since_ms <= _LATEST_MS else None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Assignment | None:
        """None for what is no assignment."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """What a member node holds."""

    owner: str = ""
    farm_id: str = ""
    since_ms: int = 0

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Member:
        """Empty for what another program wrote."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls()


class Paths(NamedTuple):
    """Full paths, without the chroot."""

    contest: str
    members: str
    communicator: str

    @classmethod
    def of(cls, client_id: str, scope: str) -> Paths:
        """Raises InvalidNameError."""
        check_name(scope, "scope")
        base = f"/{client_id}-ignis-workers/{client_id}"
        if scope != SWEEPER:
            base += f"/scopes/{scope}"
        return cls(f"{base}/loadbalancer-leader", f"{base}/members", f"{base}/communicator")

    def member(self, instance: str) -> str:
        return f"{self.members}/{instance}"

    def assigned(self, instance: str) -> str:
        return f"{self.communicator}/{instance}"

    def contender(self, name: str) -> str:
        return f"{self.contest}/{name}"


def new_prefix() -> str:
    """Of the name of one entry in the contest, by which it is known again when the answer to its making was lost."""
    return f"_c_{uuid.uuid4()}-lock-"


def sequence_of(name: str) -> int:
    """The place in the contest; names without one come last."""
    found = _SEQUENCE.search(name)
    return int(found[1]) if found else 1 << 62


def shown(text: str) -> str:
    """What another program wrote, for a log or a terminal: one line, of bounded length, without control characters."""
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)


def deal(partitions: int, members: Sequence[str]) -> dict[str, list[int]]:
    """Shares 0 to ``partitions - 1`` dealt to the members in turn, in the order given."""
    shares: dict[str, list[int]] = {one: [] for one in members}
    for share in range(partitions if members else 0):
        shares[members[share % len(members)]].append(share)
    return shares
