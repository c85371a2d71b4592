"""Transfers in parts, where the store has no room for all at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ignis.errors import StoreFullError
from ignis.storage.base import Transfer
from ignis.storage.parts import in_parts, transfer_in_parts


def items(*sizes: int) -> list[Transfer]:
    return [Transfer(0, pointer, bytes(size), 0) for pointer, size in enumerate(sizes)]


class Store:
    """Takes so many bytes at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.calls: list[list[int]] = []
        self.moved: list[int] = []

    def transfer(self, part: Sequence[Transfer]) -> int:
        self.calls.append([item.pointer for item in part])
        if sum(len(item.record) for item in part) > self.room:
            raise StoreFullError("no room")
        self.moved += [item.pointer for item in part]
        return len(part)


def test_all_at_once_where_there_is_room() -> None:
    store = Store(10)
    assert transfer_in_parts(list(reversed(items(1, 1, 1))), store.transfer) == 3
    assert store.calls == [[0, 1, 2]], "neighbours go together"


def test_halves_down_to_single_messages() -> None:
    store = Store(1)
    assert transfer_in_parts(items(*[1] * 9), store.transfer) == 9
    assert store.moved == list(range(9))


def test_one_that_does_not_fit_keeps_none_of_the_others() -> None:
    store = Store(2)
    parts = in_parts(items(1, 9, 1, 1), store.transfer)
    moved = []
    with pytest.raises(StoreFullError):
        moved += [item.pointer for part, _ in parts for item in part]
    assert sorted(store.moved) == [0, 2, 3]
    assert transfer_in_parts(items(1, 9, 1, 1), Store(2).transfer) == 3


def test_tries_without_any_room_are_bounded_and_begin_elsewhere() -> None:
    store = Store(0)
    with pytest.raises(StoreFullError):
        transfer_in_parts(items(*[1] * 1_000), store.transfer)
    assert len(store.calls) < 30
    other = Store(0)
    with pytest.raises(StoreFullError):
        list(in_parts(items(*[1] * 1_000), other.transfer, begin=1_500))
    assert (store.calls[-1], other.calls[-1]) == ([7], [507])


def test_nothing() -> None:
    assert transfer_in_parts([], Store(0).transfer) == 0
