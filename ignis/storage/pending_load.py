"""Loads that are begun, and waited for later: for stores to which the way is long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ignis.native import PackedBatch

__all__ = ["BeginsLoads", "PendingLoad"]


class PendingLoad(Protocol):
    """A load that is under way. For the thread that began it, which must ask for the result once."""

    def result(self) -> list[int]:
        """As `MagazineStore.load`."""


class BeginsLoads:
    """The part of a magazine store that may have several loads under way. A store that is near has none of it."""

    def begin_load(
        self,
        magazine: str,
        batches: Sequence[tuple[int, PackedBatch]],
        ttl_s: float | None,
        after: PendingLoad | None = None,
    ) -> PendingLoad | None:
        """`load` whose end is waited for later. Loads that are begun one ``after`` the other are stored in this order.

        Returns None where the store has no such thing, or cannot keep the order at the moment: finish what is under way, and
        call `load`. Raises what `load` raises before anything is stored.
        """
        return None
