"""Moving records between magazines, under a fence or without."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from ignis.errors import ConfigError, StaleEpochError
from ignis.storage.base import Fence, MagazineStore, Store, Transfer
from tests.contract.support import drain, numbered, record, state, texts


@pytest.fixture(params=[("sync", "sync"), ("sync", "none"), ("interval", "sync"), ("interval", "interval")])
def pair(request: pytest.FixtureRequest, store: Store) -> MagazineStore:
    """Magazines ``a`` and ``b`` of two shards each, of the same durability or not."""
    for name, durability in zip("ab", request.param, strict=True):
        store.magazines.declare(name, 2, durability)
    return store.magazines


def items(pointers: Sequence[int], shard: int = 0, target_shard: int = 0) -> list[Transfer]:
    return [Transfer(shard, pointer, record(f"moved{pointer}"), target_shard) for pointer in pointers]


def test_moves_what_is_there_and_skips_the_rest(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(5))
    pair.fire("a", 5, "me")
    pair.delete("a", {0: [2]})
    assert pair.transfer("a", "b", items([1, 2, 3, 9]), None) == 2
    assert sorted(pair.peek("a", {0: range(1, 9)})[0]) == [4, 5]
    assert drain(pair, "b") == ["moved1", "moved3"]
    assert pair.transfer("a", "b", items([1, 2, 3]), None) == 0
    assert state(pair, "a").in_flight == 2
    assert state(pair, "b").load_pointer == 2


def test_nothing_to_move(pair: MagazineStore) -> None:
    assert pair.transfer("a", "b", [], None) == 0


def test_an_item_given_twice_moves_once(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(1))
    pair.fire("a", 1, "me")
    assert pair.transfer("a", "b", items([1, 1]), None) == 1
    assert drain(pair, "b") == ["moved1"]


def test_order_and_target_shards(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(4))
    pair.fire("a", 4, "me")
    pair.transfer("a", "b", [*items([1, 3], target_shard=1), *items([2, 4], target_shard=0)], None)
    assert texts(pair.fire("b", 9, "me", shards=[1])) == ["moved1", "moved3"]
    assert texts(pair.fire("b", 9, "me", shards=[0])) == ["moved2", "moved4"]


def test_a_bad_target_shard_moves_nothing(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(2))
    pair.fire("a", 2, "me")
    with pytest.raises(ConfigError, match="shard 7 of magazine 'b', which has 2"):
        pair.transfer("a", "b", [*items([1]), *items([2], target_shard=7)], None)
    assert state(pair, "a").in_flight == 2
    assert state(pair, "b").load_pointer == 0


def test_time_to_live_of_the_target(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(1))
    pair.fire("a", 1, "me")
    pair.transfer("a", "b", items([1]), 0.05)
    time.sleep(0.1)
    result = pair.fire("b", 1, "me")
    assert (result.total(), result.expired) == (0, 1)


def test_each_keeps_its_own_time_to_live(pair: MagazineStore) -> None:
    """A message that fails does not live longer for it, and one that never expires goes on so."""
    for text, ttl_s in (("short", 0.05), ("endless", None), ("short", 0.05), ("long", 3_600)):
        pair.load_records("a", 0, [record(text)], ttl_s)
    assert pair.transfer("a", "b", items([1, 2, 3, 4])) == 4
    time.sleep(0.1)
    result = pair.fire("b", 9, "me")
    assert result.expired == 2
    assert texts(result) == ["moved2", "moved4"]
    assert [one.expired for one in pair.metadata("b")] == [2, 0]
    assert [one.expired for one in pair.metadata("a")] == [0, 0]


def test_within_one_magazine(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(3))
    pair.fire("a", 2, "me")
    assert pair.transfer("a", "a", items([1], target_shard=0), None) == 1
    assert drain(pair, "a") == ["m2", "moved1"]
    assert state(pair, "a").in_flight == 1


def test_unfired_records_move_as_well(pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(2))
    assert pair.transfer("a", "b", items([1]), None) == 1
    assert drain(pair, "a") == ["m1"]


def test_an_old_epoch_moves_nothing(store: Store, pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(2))
    pair.fire("a", 2, "me")
    old = Fence("sweeper", store.locks.next_epoch("sweeper"))
    assert pair.transfer("a", "b", items([1]), None, old) == 1
    new = Fence("sweeper", store.locks.next_epoch("sweeper"))
    with pytest.raises(StaleEpochError, match="sweeper"):
        pair.transfer("a", "b", items([2]), None, old)
    assert state(pair, "a").in_flight == 1
    assert state(pair, "b").load_pointer == 1
    assert pair.transfer("a", "b", items([2]), None, new) == 1
    with pytest.raises(StaleEpochError):
        pair.transfer("a", "b", items([2]), None, old)


def test_an_old_epoch_puts_nothing_back(store: Store, durability: str) -> None:
    magazines = store.magazines
    magazines.declare("r", 1, durability)
    magazines.load_records("r", 0, numbered(2))
    magazines.fire("r", 2, "me")
    old = Fence("sweeper", store.locks.next_epoch("sweeper"))
    assert magazines.reload("r", {0: [1]}, old) == 1
    store.locks.raise_epoch("sweeper", old.epoch + 5)
    with pytest.raises(StaleEpochError, match=f"epoch {old.epoch} of 'sweeper' is old"):
        magazines.reload("r", {0: [2]}, old)
    assert (state(magazines, "r").in_flight, state(magazines, "r").load_pointer) == (1, 3)
    assert magazines.reload("r", {0: [2]}, Fence("sweeper", old.epoch + 5)) == 1


def test_fences_of_other_scopes_do_not_matter(store: Store, pair: MagazineStore) -> None:
    pair.load_records("a", 0, numbered(1))
    pair.fire("a", 1, "me")
    store.locks.next_epoch("other")
    assert pair.transfer("a", "b", items([1]), None, Fence("sweeper", 0)) == 1


def test_what_arrives_is_not_taken_for_an_item(pair: MagazineStore) -> None:
    """Within one magazine: the second item names the pointer that the first one is going to get."""
    pair.load_records("a", 0, numbered(1))
    moving = [*items([1], shard=0, target_shard=1), *items([1], shard=1, target_shard=0)]
    assert pair.transfer("a", "a", moving, None) == 1
    assert drain(pair, "a") == ["moved1"]
