"""A connection as the commands see it that its client gives. `Session` is one."""

from __future__ import annotations

from typing import Protocol

from ignis.broker.auth.principal import Principal
from ignis.broker.protocol.machine import Request
from ignis.broker.server.application import Application
from ignis.broker.server.context import BrokerContext
from ignis.broker.server.held_claims import HeldClaims
from ignis.broker.server.long_work import Work
from ignis.broker.server.peer import Peer
from ignis.native.lone import LoneAck, LoneRequest

__all__ = ["Caller"]


class Caller(Peer, Protocol):
    """A peer that asks for something. Belongs to the event loop."""

    context: BrokerContext
    principal: Principal
    """Who the client is."""
    application: Application | None
    """Known, as the principal is, once the client has said who it is: before, no command is taken."""

    @property
    def claims(self) -> HeldClaims: ...
    @property
    def shares_with(self) -> str:
        """Whose turns it takes: its user's, or its network's."""

    @property
    def held_back(self) -> bool:
        """Whether its user is given no record more for now, though this connection may have read all that it was given. From any
        thread."""

    def subscribed_to(self, payload: bytes) -> str | None:
        """The magazine of the subscription that an UNSUBSCRIBE or CREDIT names; None when there is none. Raises
        BadRequestError."""

    def await_answer(self) -> None:
        """One pending request more: one that was taken before it was known to be one."""

    def acknowledge(self, lone: LoneRequest | LoneAck) -> None:
        """Sends the answer to a request that was never pending."""

    def write_now(self, frames: bytes, count: int) -> None:
        """`answer_run` of what need not wait for more."""

    def refuse_all(self, request: Request, exc: BaseException) -> None:
        """The error that answers every request that one item stands for."""

    def over_outbound(self) -> bool:
        """Whether it leaves more unread than it may: then it is given nothing more."""

    def in_pieces(self, work: Work, nbytes: int = 0) -> None:
        """Long work for one request, which holds so many bytes: what the client asks for behind it waits until it is done."""
