"""Appending and claiming."""

from __future__ import annotations

import pytest

from ignis.errors import ConfigError, QueueNotFoundError
from ignis.native import PackedBatch
from ignis.storage.base import MagazineStore, Store
from tests.contract.support import Kind, batch, numbered, pointers, record, records, state, texts


def test_the_first_pointer_is_one_and_pointers_rise(magazines: MagazineStore) -> None:
    assert magazines.load("m", [(0, batch("a", "b"))], None) == [1]
    assert magazines.load("m", [(0, batch("c"))], None) == [3]
    assert magazines.load_records("m", 1, records("d")) == 1


def test_one_shard_several_times_in_one_load(magazines: MagazineStore) -> None:
    many = [(0, batch("a", "b")), (1, batch("x")), (0, batch("c")), (0, batch("d"))]
    assert magazines.load("m", many, None) == [1, 1, 3, 4]
    assert texts(magazines.fire("m", 10, "me", shards=[0])) == ["a", "b", "c", "d"]


def test_an_incarnation_lasts_until_the_magazine_is_dropped(kind: Kind, magazines: MagazineStore) -> None:
    first = [one.incarnation for one in magazines.metadata("m")]
    assert all(first)
    magazines.load_records("m", 0, records("a"))
    again = kind.reopen().magazines
    again.declare("m", 4)
    assert [one.incarnation for one in again.metadata("m")] == first
    again.drop("m")
    again.declare("m", 4)
    assert set(first).isdisjoint(one.incarnation for one in again.metadata("m"))


def test_nothing_to_load(magazines: MagazineStore) -> None:
    assert magazines.load("m", [], None) == []


def test_a_batch_loads_once(magazines: MagazineStore) -> None:
    once = batch("a")
    magazines.load("m", [(0, once)], None)
    with pytest.raises(ValueError, match="sealed"):
        magazines.load("m", [(0, once)], None)
    assert state(magazines, "m").load_pointer == 1


def test_a_shard_that_does_not_exist(magazines: MagazineStore) -> None:
    with pytest.raises(ConfigError, match="shard 4"):
        magazines.load("m", [(0, batch("a")), (4, batch("b"))], None)
    assert magazines.fire("m", 10, "me").claims == []


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
def test_a_time_to_live_that_is_none(magazines: MagazineStore, ttl_s: float) -> None:
    with pytest.raises(ConfigError, match="ttl_s"):
        magazines.load("m", [(0, batch("a"))], ttl_s)


def test_fire_hands_out_in_order_and_once(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(5))
    first = magazines.fire("m", 3, "me")
    assert texts(first) == ["m0", "m1", "m2"]
    assert first.more
    assert pointers(first) == {0: [1, 2, 3]}
    second = magazines.fire("m", 3, "me")
    assert texts(second) == ["m3", "m4"]
    assert not second.more
    assert second.holes == {}
    assert second.expired == 0
    assert magazines.fire("m", 3, "me").claims == []


def test_more_is_false_when_the_limit_was_just_enough(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(3))
    assert not magazines.fire("m", 3, "me").more


def test_more_sees_other_shards(magazines: MagazineStore) -> None:
    magazines.load("m", [(0, batch("a")), (3, batch("b"))], None)
    assert magazines.fire("m", 1, "me").more


def test_fire_spans_segments_and_shards(magazines: MagazineStore) -> None:
    for _ in range(3):
        magazines.load("m", [(shard, batch(f"{shard}")) for shard in range(4)], None)
    result = magazines.fire("m", 12, "me")
    assert result.total() == 12
    assert {shard: len(many) for shard, many in pointers(result).items()} == dict.fromkeys(range(4), 3)


def test_the_first_shard_rotates(magazines: MagazineStore) -> None:
    magazines.load("m", [(shard, batch("a", "b")) for shard in range(4)], None)
    served = [magazines.fire("m", 1, "me").claims[0].shard for _ in range(4)]
    assert sorted(served) == [0, 1, 2, 3]


def test_only_the_shards_asked_for(magazines: MagazineStore) -> None:
    magazines.load("m", [(shard, batch(f"{shard}")) for shard in range(4)], None)
    assert sorted(pointers(magazines.fire("m", 10, "me", shards=[3, 1, 1]))) == [1, 3]
    assert magazines.fire("m", 10, "me", shards=[]).claims == []
    with pytest.raises(ConfigError, match="shards"):
        magazines.fire("m", 10, "me", shards=[4])


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(magazines: MagazineStore, limit: int) -> None:
    with pytest.raises(ConfigError, match="limit"):
        magazines.fire("m", limit, "me")


def test_bytes_bound_a_fire(magazines: MagazineStore) -> None:
    one = record("x" * 100)
    magazines.load_records("m", 0, [one] * 10)
    result = magazines.fire("m", 10, "me", max_bytes=3 * len(one))
    assert result.total() == 3
    assert result.more
    assert pointers(magazines.fire("m", 10, "me", max_bytes=1 << 20))[0] == list(range(4, 11))


def test_at_least_one_record_is_handed_out_whatever_its_size(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, [record("x" * 1000)] * 2)
    assert magazines.fire("m", 10, "me", max_bytes=1).total() == 1
    assert magazines.fire("m", 10, "me", max_bytes=1).total() == 1


def test_claims_pair_pointers_and_records(magazines: MagazineStore) -> None:
    magazines.load_records("m", 2, numbered(7))
    for claim in magazines.fire("m", 5, "me").claims:
        assert len(claim.pointers) == len(claim.records)
        there = magazines.peek("m", {claim.shard: claim.pointers})[claim.shard]
        assert [there[pointer] for pointer in claim.pointers] == claim.records


def test_empty_and_large_bodies(magazines: MagazineStore) -> None:
    bodies = ["", "x" * 3_000_000, "", "y" * 5_000]
    magazines.load_records("m", 0, records(*bodies))
    assert texts(magazines.fire("m", 10, "me")) == bodies


def test_a_magazine_that_is_not_declared(magazines: MagazineStore) -> None:
    for call in (
        lambda: magazines.load("other", [(0, batch("a"))], None),
        lambda: magazines.fire("other", 1, "me"),
        lambda: magazines.delete("other", {0: [1]}),
        lambda: magazines.reload("other", {0: [1]}),
        lambda: magazines.peek("other", {0: [1]}),
        lambda: magazines.scan("other"),
        lambda: magazines.metadata("other"),
        lambda: magazines.abandoned("other", 0, 1, 1),
        lambda: magazines.oldest_enqueued_at_us("other"),
        lambda: magazines.expire("other"),
        lambda: magazines.wait("other", -1, 0),
        lambda: magazines.transfer("m", "other", [], None),
        lambda: magazines.transfer("other", "m", [], None),
    ):
        with pytest.raises(QueueNotFoundError, match="other"):
            call()


def test_everything_is_there_after_a_reopen(kind: Kind, durability: str) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 4, durability)
    magazines.load("m", [(shard, batch(*"abc")) for shard in range(4)], None)
    claimed = magazines.fire("m", 5, "me")
    magazines = kind.reopen().magazines
    again = magazines.fire("m", 100, "me")
    assert again.total() == 7
    taken = [(shard, one) for result in (claimed, again) for shard, many in pointers(result).items() for one in many]
    assert sorted(taken) == [(shard, pointer) for shard in range(4) for pointer in (1, 2, 3)]
    assert kind.follows(magazines.load_records("m", 0, records("d")), 3)


def test_two_handles_are_one_store(kind: Kind) -> None:
    one, other = kind.open(), kind.open()
    one.magazines.declare("m", 2)
    one.magazines.load_records("m", 0, numbered(4))
    assert texts(other.magazines.fire("m", 2, other.owner)) == ["m0", "m1"]
    assert texts(one.magazines.fire("m", 9, one.owner)) == ["m2", "m3"]
    one.close()
    assert other.magazines.delete("m", {0: range(1, 5)}) == 4


def test_large_segments(store: Store) -> None:
    store.magazines.declare("big", 1)
    many = PackedBatch.pack(numbered(20_000))
    store.magazines.load("big", [(0, many)], None)
    result = store.magazines.fire("big", 15_000, "me")
    assert result.total() == 15_000
    assert store.magazines.delete("big", pointers(result)) == 15_000
    assert texts(store.magazines.fire("big", 1, "me")) == ["m15000"]
