"""What a queue keeps until its time: delays and due times as users give them, and a look at the messages that wait for theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple, Protocol

from ignis.config import check_whole, shown, unlimited_duration_s
from ignis.errors import ConfigError, DelayNotSupportedError, UnreadableMessageError
from ignis.message import Message, message_id
from ignis.storage.base import Store
from ignis.storage.checks import MAX_TTL_S, MAX_TTL_SAID
from ignis.storage.later import Delayed

__all__ = [
    "MAX_DELAY_S",
    "Clocked",
    "DelayedMessage",
    "Later",
    "check_delay_s",
    "delayed_message",
    "due_time_ms",
    "until_s",
]

MAX_DELAY_S = MAX_TTL_S
_PAGE = 1_000
_PIECE_BYTES = 8 << 20


class Clocked(Protocol):
    """What due times are reckoned by: a `Store`."""

    def now_s(self) -> float: ...
    def wall_s(self) -> float: ...


def due_time_ms(store: Clocked, delay: Any, at: Any) -> int:
    """When a message is due, by the store's clock: ``delay`` from now on, or at that time.

    Raises ConfigError: both or none are given, a time has no time zone, a delay is below 0 or over 100 years.
    """
    if at is None and delay.__class__ is float and 0.0 < delay <= MAX_DELAY_S:  # as below, for who sends many
        return max(0, math.ceil((store.now_s() + delay) * 1000 - 1e-3))
    if (delay is None) == (at is None):
        raise ConfigError("give delay or at, not both")
    delay_s = check_delay_s(delay) if at is None else until_s(at, store.wall_s())
    due_ms = (store.now_s() + delay_s) * 1000
    # Rounded up, for nobody gets it before; a thousandth of a millisecond is what adding them up may be wrong by.
    return max(0, math.ceil(due_ms - 1e-3) if delay_s > 0 else math.floor(due_ms))


def check_delay_s(delay: Any) -> float:
    """Seconds of a delay in any of its forms. Raises ConfigError: it is none, below 0 or over 100 years."""
    delay_s = unlimited_duration_s(delay, "delay")
    if not 0 <= delay_s <= MAX_DELAY_S:
        raise ConfigError(f"delay = {shown(delay)} is outside 0 to {MAX_TTL_SAID}")
    return delay_s


def until_s(at: Any, wall_s: float) -> float:
    """Seconds from ``wall_s``, the time by the wall clock, to the time ``at``; below 0 when it is over. Raises ConfigError: it is
    no datetime, has no time zone or is over 100 years away."""
    if not isinstance(at, datetime):
        raise ConfigError(f"at = {shown(at)} is not a datetime")
    if at.utcoffset() is None:
        raise ConfigError(
            f"at = {shown(at)} has no time zone, so nobody can tell when it is: give one, as in "
            "datetime.now(timezone.utc) + timedelta(hours=1) or datetime(2027, 3, 28, 8, tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    ahead_s = at.timestamp() - wall_s
    if not ahead_s <= MAX_DELAY_S:
        raise ConfigError(f"at = {shown(at)} is more than {MAX_TTL_SAID} away")
    return ahead_s


class DelayedMessage(NamedTuple):
    """A message that waits for its time. ``message`` None: what is stored does not match its checksum, or cannot be read."""

    id: str | None
    due: datetime
    message: Message | None
    shard: int
    pointer: int


class Later:
    """The messages of one queue that wait for their time: to look for, to cancel, and to run now. Thread-safe. ``queue.later``.

    What was due meanwhile is in the queue, and no longer here: each call says how many it found.
    """

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._magazines = store.magazines
        self._name = queue

    def __len__(self) -> int:
        """How many wait."""
        return self._magazines.delayed(self._name)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[DelayedMessage]:
        """All of them, the next one first, read in pieces; what is put there meanwhile may be among them."""
        after, ahead_s = None, self._ahead_s()  # once: two looks at the clocks differ, and due times would go back
        while True:
            piece, _ = self._magazines.list_later_within(self._name, after=after, limit=_PAGE, max_bytes=_PIECE_BYTES)
            if not piece:
                return
            for one in piece:
                yield delayed_message(one, ahead_s)
            after = piece[-1][:3]

    def list(self, limit: int = 100) -> list[DelayedMessage]:
        """The next ones, at most ``limit``."""
        check_whole(limit, "limit", 1)
        ahead_s = self._ahead_s()
        return [delayed_message(one, ahead_s) for one in self._magazines.list_later(self._name, limit=limit)]

    def find(self, id: Any) -> DelayedMessage | None:
        """The message with that id; None when none waits that has it. Reads what waits, the next one first, until it is found."""
        wanted = message_id(id)
        return next((one for one in self if one.id == wanted), None)

    def next_due(self) -> datetime | None:
        """When the next one is due; None when none waits."""
        found = self.list(1)
        return found[0].due if found else None

    def cancel(self, *ids: Any) -> int:
        """Removes the messages with these ids, as `publish` returns them; returns how many were there. On return that
        is as durable as what is published to the queue."""
        return self._magazines.cancel_later(self._name, self._pointers(ids))

    def cancel_all(self) -> int:
        """Removes all that wait now; returns how many."""
        count = 0
        while piece := self._magazines.list_later(self._name, limit=_PAGE):
            count += self._magazines.cancel_later(self._name, _places(piece))
        return count

    def run_now(self, *ids: Any) -> int:
        """Puts the messages with these ids to the queue's tail, as if they were due; returns how many were still there."""
        return self._magazines.run_now(self._name, self._pointers(ids))

    def _pointers(self, ids: Sequence[Any]) -> dict[int, Sequence[int]]:
        """Where these are. One pass over what waits, which ends when all are found."""
        if not self._magazines.keeps_later:
            raise DelayNotSupportedError(type(self._magazines).__name__)
        wanted = {message_id(one) for one in ids}
        found: dict[int, Any] = {}
        for one in self if wanted else ():
            if one.id in wanted:
                wanted.discard(one.id)
                found.setdefault(one.shard, []).append(one.pointer)
                if not wanted:
                    break
        return {shard: sorted(pointers) for shard, pointers in found.items()}

    def _ahead_s(self) -> float:
        """How far the store's clock is ahead of the wall clock, which users read."""
        return self._store.now_s() - self._store.wall_s()


def _places(some: Sequence[Delayed]) -> dict[int, Sequence[int]]:
    found: dict[int, Any] = {}
    for one in some:
        found.setdefault(one.shard, []).append(one.pointer)
    return {shard: sorted(pointers) for shard, pointers in found.items()}


def delayed_message(one: Delayed, ahead_s: float) -> DelayedMessage:
    """What is stored, as it is shown. ``ahead_s``: how far the store's clock is ahead of the wall clock."""
    message = None
    if one.record is not None:
        with suppress(UnreadableMessageError):
            message = Message.from_bytes(one.record)
    # What is due for longer than times are reckoned is kept as 0.
    due = datetime.fromtimestamp(one.due_ms / 1000 - ahead_s if one.due_ms else 0, timezone.utc)
    return DelayedMessage(None if message is None else message.id, due, message, one.shard, one.pointer)
