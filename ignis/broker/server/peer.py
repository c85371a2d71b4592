"""A connection as those see it who deliver to it, renew for it, and look after what it holds. `Session` is one."""

from __future__ import annotations

from typing import Any, Protocol

from ignis.broker.protocol.in_flight import InFlight, PointerRange
from ignis.broker.server.context import ApplicationContext
from ignis.native.lone import LoneRequest
from ignis.native.wire import FrameReader
from ignis.storage.base import Owner

__all__ = ["Claims", "Peer"]


class Claims(Protocol):
    """What a connection holds. `HeldClaims` is it."""

    fired: InFlight
    """What its client claimed by itself, and hence renews by itself."""

    def hold(self, magazine: str, runs: list[PointerRange], *, fired: bool = False) -> None:
        """Notes that it was given these. If it is gone already, they go back. ``fired``: its client claimed them by itself."""

    def hold_only(self, magazine: str, runs: list[PointerRange], *, fired: bool) -> None:
        """Notes that it holds these of the magazine, and nothing else."""

    def take(self, magazine: str, runs: list[PointerRange]) -> list[PointerRange]:
        """Takes these from it; returns what it held of them."""

    def take_up(self, magazine: str, runs: list[PointerRange]) -> None:
        """Its client held these on an earlier connection."""

    def let_go(self, magazine: str, runs: list[PointerRange]) -> None:
        """Its client accounted for these."""

    def delivered(self, magazine: str) -> list[PointerRange]:
        """What it holds of the magazine and did not claim by itself."""


class Peer(Protocol):
    """A connection that messages are delivered to. Belongs to the event loop; ``owner`` never changes once the client is
    known."""

    owner: Owner
    """The name in which its claims are made."""
    held: InFlight
    """What it was given and has not accounted for: `HeldClaims.held`."""
    closed: bool

    @property
    def claims(self) -> Claims:
        """The same, and where it has it from."""

    @property
    def shares_with(self) -> str:
        """Of whose share its places are: its user's, or its address's."""

    def uses(self, application: ApplicationContext) -> bool:
        """Whether its client is one of this application's."""

    # -- out

    @property
    def takes_deliveries(self) -> bool:
        """Whether it reads what it is sent."""

    def answer(self, command: int, request_id: int, payload: bytes) -> None:
        """The answer to one pending request."""

    def answer_run(self, count: int, frames: bytes | memoryview) -> None:
        """Ready-made frames that end so many pending requests."""

    def result(self, request_id: int, value: Any) -> None:
        """`answer` with a value."""

    def refuse(self, request_id: int, exc: BaseException) -> None:
        """The error that answers one pending request."""

    def deliver(self, frame: memoryview) -> None:
        """Messages for a subscription: no pending request ends with them."""

    def deliver_lone(self, lone: LoneRequest, request_id: int, count: int) -> None:
        """Sends the messages of a request that was received alone: for a subscription, or as what ends so many pending
        requests."""

    def fail_stream(self, request_id: int, exc: BaseException) -> None:
        """The end of a subscription by the broker."""

    def flush(self) -> None:
        """What was written goes out now."""

    def abort(self) -> None:
        """Closes the connection now."""

    # -- in

    @property
    def arriving(self) -> FrameReader:
        """What was read and is no frame yet."""

    @property
    def unread(self) -> bool:
        """Whether it is not read, on purpose."""

    def pause(self, reason: str) -> None:
        """Stops reading it, until every reason for that is gone."""

    def resume(self, reason: str) -> None:
        """Reads it again when this was the last reason not to."""
