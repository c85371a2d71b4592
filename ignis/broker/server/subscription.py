"""Who messages of one magazine are for, a subscription or a pull, and what a claim found for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ignis.broker.protocol.encoding import pack
from ignis.broker.protocol.in_flight import PointerRange
from ignis.broker.protocol.payloads import Delivery
from ignis.broker.server.peer import Peer
from ignis.native.wire import ClaimsFrame
from ignis.storage.write_batch import FiredInto

__all__ = ["Packed", "Subscription", "packed"]


class Packed(NamedTuple):
    """What a claim found, ready to be sent: the frame, and the head of its payload."""

    claims: ClaimsFrame
    head: bytes
    runs: list[PointerRange]
    messages: int
    more: bool
    error: Exception | None = None


def packed(claims: ClaimsFrame, found: FiredInto) -> Packed:
    """Packs a claim in whichever thread made it, so that the event loop has nothing left to do per message."""
    head = pack(Delivery(found.more, found.expired, found.holes))
    return Packed(claims, head, claims.runs, claims.messages, found.more)


class Subscription:
    """A subscription, or a pull (``once``), of one connection.

    Args:
        fired: the client claims by itself (FIRE), and hence renews by itself.
        over: called when the broker ends it: with None when a pull was answered, with an exception when it cannot go on.
    """

    __slots__ = (
        "credit", "due", "ended", "fired", "magazine", "max_bytes", "once", "over", "peer", "request_id", "timer", "tried",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        request_id: int,
        magazine: str,
        credit: int,
        max_bytes: int,
        once: bool,
        over: Callable[[Subscription, BaseException | None], None],
        fired: bool = False,
    ) -> None:
        self.peer = peer
        self.over = over
        self.request_id = request_id
        self.magazine = magazine
        self.credit = credit
        self.max_bytes = max_bytes
        self.once = once
        self.fired = fired
        self.ended = False
        self.timer: asyncio.TimerHandle | None = None
        self.due = False
        """Whether a pull waits no longer."""
        self.tried = False
        """Whether there was nothing for a pull at some moment since it was asked for."""

    @property
    def room(self) -> int:
        """How many messages it may be given now. What its connection holds of the magazine by other ways counts too."""
        if self.ended or not self.peer.takes_deliveries:
            return 0
        return self.credit if self.once else self.credit - self.peer.held.count_of(self.magazine)
