"""Which messages of a sideline come back: by the shovel's schedule, by a person's hand, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ignis.errors import UnreadableMessageError
from ignis.message import REASON_CORRUPT, STAYS, Message, returned_record
from ignis.shovel_rounds import policy_in, shovel_retry_of
from ignis.storage.base import QueueRecord

__all__ = ["Where", "coming_back", "waits", "wanted", "why_waiting"]

Where = Callable[[Message], bool]


def waits(record: bytes | None, queue: QueueRecord) -> bool:
    """Whether only a person brings this message of the queue's sideline back."""
    policy = policy_in(shovel_retry_of(queue))
    most = queue.max_returns if policy is None else policy.attempts - 1
    return not queue.shovel_interval_s or coming_back(record, None, most) is None


def coming_back(record: bytes | None, where: Where | None, max_returns: int | None) -> bytes | None:
    """Returns the record as it comes back; None for one that stays. ``max_returns``: the schedule's bound; None = by hand."""
    if record is None:
        return None
    if max_returns is None:
        if not wanted(record, where):
            return None
        try:
            return returned_record(record, counted=False)
        except UnreadableMessageError:
            return record
    try:
        message = Message.from_bytes(record)
        if message.reason in STAYS or message.given_up or message.returns >= max_returns:
            return None
        return returned_record(record, counted=True)
    except UnreadableMessageError:
        return None  # without a count it would come back for ever


def why_waiting(record: bytes | None, max_returns: int) -> str:
    """Why a message that the schedule leaves to a person does not come back, for the log."""
    with contextlib.suppress(UnreadableMessageError):
        message = Message.from_bytes(record or b"")
        if message.reason in STAYS:
            return f"failed as {message.reason}"
        if message.given_up:
            return "given up by the handler's retry"
        if message.returns >= max_returns:
            return f"came back {max_returns} time(s) (max_returns)"
    return "cannot be read"


def wanted(record: bytes, where: Where | None) -> bool:
    """Whether a person's pass moves the message. Raises what ``where`` raises."""
    try:
        message = Message.from_bytes(record)
        return message.reason != REASON_CORRUPT and (where is None or bool(where(message)))
    except UnreadableMessageError:
        return where is None
