"""Requests that are one call of the store: what such a call is given, and what it gives.

The calls run in a thread of the store's. What a request changes about the connection itself (which claims it holds) is left to
the event loop, as ``after`` of the `Reply`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ignis.broker.auth.principal import Principal
from ignis.broker.protocol.commands import Command
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.payloads import QueueList
from ignis.broker.server.application import Application
from ignis.broker.server.peer import Peer
from ignis.broker.server.permission_check import check_epoch, check_queue, own_scope
from ignis.errors import BadRequestError
from ignis.magazine import queue_of
from ignis.native.wire import ClaimsFrame
from ignis.storage.base import KEEP_TTL, Fence, Owner, QueueRecord

__all__ = ["MOST_ROWS", "RESULT", "Asked", "Call", "Reply", "kept_ttl_s", "over_frame", "queue_page", "value"]

RESULT = int(Command.RESULT)
MOST_ROWS = 10_000
"""Messages that one request is shown at most; it asks again for more."""
_SMALLER_ELSE = "ask for less at a time, or raise the limit at the broker and its clients"
_SMALLER = {
    **dict.fromkeys(
        (int(Command.QUEUE_LIST), int(Command.LIST_QUEUES)),
        "ask for it page by page, with `after`: empty at first, then the last name that came",
    ),
    int(Command.NAMES): "ask for the queues page by page, with QUEUE_LIST",
}
_FRAME_ROOM_BYTES = 64
"""Of a frame for its header, and for what stands in an answer before its values."""


class Reply(NamedTuple):
    """An answer, and what the event loop does with the session when it is given."""

    command: int
    payload: bytes
    after: Callable[[Peer], object] | None = None
    claims: ClaimsFrame | None = None
    """What follows the payload."""

    @property
    def nbytes(self) -> int:
        return len(self.payload) + (0 if self.claims is None else self.claims.nbytes)


class Asked(NamedTuple):
    """A request whose sender may make it.

    Attributes:
        owner: the name in which its claims are made.
        bound: bytes that the answer may take, where it can be cut.
    """

    app: Application
    principal: Principal
    owner: Owner
    payload: bytes
    bound: int

    @property
    def most_bytes(self) -> int:
        """Bytes that an answer may take which cannot be cut: those of a frame."""
        return self.app.context.broker.settings.max_frame_bytes - _FRAME_ROOM_BYTES

    def may(self, command: Command, queue: str) -> bool:
        """Whether the sender may do something else as well."""
        return self.principal.allows(command.name, queue_of(queue))

    def check(self, command: Command, queue: str) -> None:
        """Raises PermissionDeniedError unless the sender may do that as well."""
        check_queue(self.principal, self.app.context.broker.state, command.name, queue)

    def fence(self, fence: tuple[str, int] | None) -> Fence | None:
        """The fence that a head names: its epoch is that which the sender's own EPOCH_NEXT raises.

        Who writes under a fence leaves the epoch in the store, so it takes what EPOCH_NEXT takes.

        Raises PermissionDeniedError.
        """
        if fence is None:
            return None
        scope, epoch = fence
        check_epoch(self.principal, self.app.context.broker.state, Command.EPOCH_NEXT.name, scope)
        return Fence(own_scope(self.principal, scope), epoch)


def queue_page(asked: Asked, command: Command) -> tuple[list[QueueRecord], bool]:
    """(queues that the sender may see, whether there are more) as QUEUE_LIST and LIST_QUEUES ask for them.

    Raises BadRequestError when all of them were asked for in one answer, and a frame has no room for them.
    """
    head, _ = unpack(asked.payload, QueueList)
    whole = head.after is None
    found = asked.app.store.queues.page(
        head.after or "",
        active=head.active,
        max_bytes=asked.most_bytes if whole else asked.bound,
        wanted=lambda name: asked.may(command, name),
    )
    if whole and found[1]:
        raise over_frame(asked, command)
    return found


def over_frame(asked: Asked, command: int) -> BadRequestError:
    """What is answered instead of an answer for which a frame has no room: it would end the connection."""
    limit = asked.app.context.broker.settings.max_frame_bytes
    return BadRequestError(
        f"the answer to {Command(command).name} is over broker.max_frame_bytes = {limit}; {_SMALLER.get(command, _SMALLER_ELSE)}"
    )


def value(result: Any) -> Reply:
    """The answer that is one value."""
    return Reply(RESULT, pack(result))


def kept_ttl_s(ttl_ms: int) -> float | None:
    """The time to live of records that move: -1 = each keeps its own, 0 = never expires."""
    return KEEP_TTL if ttl_ms < 0 else ttl_ms / 1000 if ttl_ms else None


Call = Callable[[Asked], Reply]
"""Carries out one command, in a thread of the store's. Raises what is to be answered."""
