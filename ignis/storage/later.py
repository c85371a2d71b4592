"""Messages that wait for their time: part of the storage contract.

A magazine may have a *later* magazine beside it, which its first delayed message makes. Records in it have a due time each, in
milliseconds since 1970 by the store's own clock (`Store.now_s`), and are handed out by nobody. When one is due the store moves
it to the tail of the main magazine, into the shard of the same number: whoever fires, or waits for a load, has that done first.
The move is one transaction where a store has them, so a record is in one of the two and never in both. A store without says
what a death in the middle of a move leaves, and bounds it; it loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ignis.errors import DelayNotSupportedError
from ignis.native import PackedBatch
from ignis.storage.records import KEEP_TTL, Fence, Pointers, Transfer

__all__ = ["LATER_SUFFIX", "MOVE_LIMIT", "Delayed", "KeepsLater", "MovedDue", "later_of"]

LATER_SUFFIX = "@LATER"
"""Behind a magazine's name: its later one. No queue's name can end so."""
_PIECE = 32
"""Records that are read at a time where nothing else bounds how large they are."""
MOVE_LIMIT = 8_192
"""So many messages one transaction moves at most."""


def later_of(magazine: str) -> str:
    """The name of the later magazine of this one."""
    return magazine + LATER_SUFFIX


class Delayed(NamedTuple):
    """A record that waits for its time; None = it does not match its checksum."""

    due_ms: int
    shard: int
    pointer: int
    record: bytes | None


class MovedDue(NamedTuple):
    """What `KeepsLater.move_due` did. ``next_due_ms`` None: nothing waits for its time."""

    moved: int
    expired: int
    next_due_ms: int | None


class KeepsLater:
    """Keeps messages until they are due. ``magazine`` is the main one everywhere; its later one is an ordinary magazine to
    `MagazineStore.peek`, `scan`, `metadata`, `delete` and `drop`. It goes when the main one is dropped."""

    keeps_later = False
    """Whether the store can. All calls below raise DelayNotSupportedError where it cannot."""

    def load_later(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        dues_ms: Sequence[Sequence[int]],
        ttl_s: float | None,
    ) -> list[int]:
        """`MagazineStore.load` into the later magazine: ``dues_ms`` has a due time for each record of each batch. What is due
        already is handed out next. Who sleeps and would miss the earliest is woken. Returns the first pointers.

        Raises what `MagazineStore.load` raises, and ConfigError for a due time outside of 0..2**48 - 1.
        """
        raise self._no_later()

    def defer(
        self,
        magazine: str,
        items: Sequence[Transfer],
        dues_ms: Sequence[int],
        ttl_s: float | None = KEEP_TTL,
        fence: Fence | None = None,
    ) -> int:
        """`MagazineStore.transfer` from the main magazine into its later one, with a due time for each item: a message that is to
        be tried again is acknowledged and put there in one transaction."""
        raise self._no_later()

    def next_due_ms(self, magazine: str) -> int | None:
        """When the next message is due, or earlier, if one was cancelled meanwhile; None when none waits for its time. Cheap."""
        return None

    def due_in_s(self, magazine: str) -> float | None:
        """In how many seconds the next message is due, 0.0 at least; None when none waits. For who waits by a timer of his own,
        where `MagazineStore.watch` is armed: all other waits end by themselves when something is due. Costs next to nothing
        where the store has no delayed messages."""
        return None

    def move_due(self, magazine: str, limit: int = MOVE_LIMIT, fence: Fence | None = None) -> MovedDue:
        """Moves up to about ``limit`` of what is due to the tail of the main magazine, each shard's in the order in which it is
        due, in one transaction. Each record keeps the end of its time to live; one that is over is retired, and counted as
        expired in the later magazine. Of two calls at once each record is moved by one. `MagazineStore.fire` does it first, and
        so does whoever waits for a load: it is for a magazine without consumers. Raises StaleEpochError: nothing moved."""
        return MovedDue(0, 0, None)

    def list_later(
        self, magazine: str, *, after: tuple[int, int, int] | None = None, limit: int = 100
    ) -> list[Delayed]:
        """What waits for its time, by (due time, shard, pointer), beginning behind ``after``: to browse."""
        return []

    def list_later_within(
        self, magazine: str, *, after: tuple[int, int, int] | None, limit: int, max_bytes: int
    ) -> tuple[list[Delayed], bool]:
        """`list_later` up to where the records have so many bytes; one comes in any case. And whether it stopped there."""
        rows: list[Delayed] = []
        left, step = max_bytes, _PIECE
        while len(rows) < limit:
            most = min(step, limit - len(rows))
            step *= 2
            found = self.list_later(magazine, after=after, limit=most)
            for one in found:
                left -= len(one.record or b"")
                if left < 0 and rows:
                    return rows, True
                rows.append(one)
            if len(found) < most:
                break
            after = found[-1][:3]
        return rows, False

    def run_now(self, magazine: str, pointers: Pointers) -> int:
        """Moves these records of the later magazine to the main one though they are not due; returns how many were there."""
        raise self._no_later()

    def cancel_later(self, magazine: str, pointers: Pointers) -> int:
        """Retires these records of the later magazine; returns how many were there."""
        raise self._no_later()

    def delayed(self, magazine: str) -> int:
        """How many messages wait for their time, those included whose time to live ran out meanwhile."""
        return 0

    def expired_later(self, magazine: str) -> int:
        """How many messages have expired before they were due, since the later magazine was made: in a delay, or between two
        attempts. They were retired when they were due."""
        return 0

    def _no_later(self) -> Exception:
        return DelayNotSupportedError(type(self).__name__)
