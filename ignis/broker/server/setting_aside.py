"""Messages that go to their queue's sideline: counted by the reason that each has there."""

from __future__ import annotations

from collections.abc import Sequence

from ignis.broker.server.state import SidelinedCounts
from ignis.magazine import SIDELINE_SUFFIX
from ignis.message import REASON_CORRUPT, REASON_UNREADABLE, corrupt_record, failed_record, is_readable
from ignis.storage.base import MagazineStore, Transfer
from ignis.storage.parts import transfer_all

__all__ = ["SettingAside"]


class SettingAside:
    """Moves messages of one magazine to its sideline. Made and used in one thread of the store's.

    Args:
        magazines: the store's.
        magazine: claimed from; belongs to a queue.
        counts: where each that has moved is counted.
    """

    def __init__(self, magazines: MagazineStore, magazine: str, counts: SidelinedCounts) -> None:
        self._magazines = magazines
        self._magazine = magazine
        self._counts = counts
        self._items: dict[str, list[Transfer]] = {}

    def add(
        self,
        shard: int,
        pointer: int,
        data: bytes | None,
        reason: str,
        error: str,
        *,
        worker: str = "",
        crashed: bool = False,
    ) -> None:
        """One more for `move`; None is a record that is damaged. What nobody can read says so instead of the reason."""
        if data is None:
            reason, fresh = REASON_CORRUPT, corrupt_record(self._magazine, shard, pointer)
        else:
            fresh = failed_record(data, reason, error, worker=worker, crashed=crashed)
            if not is_readable(data):
                reason = REASON_UNREADABLE
        self._items.setdefault(reason, []).append(Transfer(shard, pointer, fresh, shard))

    def move(self) -> int:
        """Moves them; returns how many moved. Durable as the queue is. Those of one reason go together, so that what moved before
        a failure is counted too, and what another had moved is not. Raises what a transfer raises."""
        items, self._items = self._items, {}
        moved = 0
        for reason, some in items.items():

            def transfer(part: Sequence[Transfer], reason: str = reason) -> int:
                count = self._magazines.transfer(self._magazine, self._magazine + SIDELINE_SUFFIX, part)
                self._counts.add(reason, count)
                return count

            moved += transfer_all(some, transfer)
        return moved
