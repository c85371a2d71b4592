"""A purge where the store has no room for a large transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ignis.clearing import purge
from ignis.errors import StoreFullError
from ignis.storage.purging import Purged


class Full:
    """Has room for the pages of so many deletes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting = 5_000

    def purge(self, name: str, limit: int, *, in_flight: bool, left: Mapping[int, Any] | None) -> Purged:
        if min(limit, self.waiting) > self.most:
            raise StoreFullError("no room")
        removed = min(limit, self.waiting)
        self.waiting -= removed
        return Purged(removed, 0, {0: (1, self.waiting)} if self.waiting else {})


def test_a_purge_of_a_full_store_goes_in_smaller_steps() -> None:
    store: Any = Full(700)
    assert purge(store, "jobs").waiting == 5_000


def test_a_purge_without_any_room_ends() -> None:
    store: Any = Full(0)
    with pytest.raises(StoreFullError):
        purge(store, "jobs")
