"""Retiring records and putting them back."""

from __future__ import annotations

import time
from dataclasses import replace

from ignis.storage.base import MagazineStore
from ignis.storage.runs import Runs
from tests.contract.support import Kind, batch, drain, numbered, peeked, pointers, records, state, texts


def test_delete_counts_what_was_there(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(5))
    magazines.fire("m", 5, "me")
    assert magazines.delete("m", {0: [2, 3]}) == 2
    assert magazines.delete("m", {0: [1, 2, 3, 4]}) == 2
    assert magazines.delete("m", {0: [1, 2, 3, 4]}) == 0
    assert peeked(magazines.peek("m", {0: range(1, 9)})) == {0: {5: "m4"}}
    assert magazines.delete("m", {0: [5]}) == 1
    assert state(magazines, "m").in_flight == 0


def test_delete_takes_pointers_in_any_order_and_shape(magazines: MagazineStore) -> None:
    for _ in range(3):
        magazines.load("m", [(0, batch(*"abcd")), (1, batch(*"abcd"))], None)
    magazines.fire("m", 100, "me")
    assert magazines.delete("m", {0: (12, 1, 5, 5, 4), 1: range(3, 7)}) == 8
    left = magazines.peek("m", {0: range(1, 13), 1: range(1, 13)})
    assert sorted(left[0]) == [2, 3, 6, 7, 8, 9, 10, 11]
    assert sorted(left[1]) == [1, 2, 7, 8, 9, 10, 11, 12]
    assert magazines.delete("m", {0: Runs([(6, 8), (2, 4)]), 1: Runs([])}) == 4
    assert sorted(magazines.peek("m", {0: range(1, 13)})[0]) == [8, 9, 10, 11]


def test_delete_of_what_never_was(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(2))
    assert magazines.delete("m", {}) == 0
    assert magazines.delete("m", {1: [1], 3: [7], 0: [0, -3, 9], 2: [], 99: [1]}) == 0
    assert state(magazines, "m").pending == 2


def test_a_partly_deleted_batch_stays_so_after_a_reopen(kind: Kind, durability: str) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 1, durability)
    magazines.load_records("m", 0, numbered(20))
    magazines.fire("m", 20, "me")
    assert magazines.delete("m", {0: [1, 3, 8, 9, 20]}) == 5
    magazines = kind.reopen().magazines
    there = magazines.peek("m", {0: range(1, 21)})[0]
    assert sorted(there) == [one for one in range(1, 21) if one not in {1, 3, 8, 9, 20}]
    assert magazines.delete("m", {0: range(1, 21)}) == 15
    assert kind.follows(magazines.load_records("m", 0, records("next")), 20)


def test_a_pointer_is_never_used_twice(kind: Kind) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(3))
    drain(magazines, "m")
    magazines = kind.reopen().magazines
    next_one = magazines.load_records("m", 0, records("x"))
    assert kind.follows(next_one, 3)
    magazines.delete("m", {0: [next_one]})
    assert magazines.load_records("m", 0, records("y")) == next_one + 1


def test_deleting_unfired_records(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(6))
    magazines.fire("m", 1, "me")
    assert magazines.delete("m", {0: [2, 3, 5]}) == 3
    assert texts(magazines.fire("m", 10, "me")) == ["m3", "m5"]
    assert state(magazines, "m").pending == 0


def test_deleting_all_unfired_records_leaves_nothing_pending(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(3))
    magazines.load_records("m", 0, numbered(3))
    magazines.fire("m", 1, "me")
    magazines.delete("m", {0: range(1, 7)})
    one = state(magazines, "m")
    assert (one.pending, one.in_flight, one.load_pointer) == (0, 0, 6)
    magazines.load_records("m", 0, records("new"))
    assert texts(magazines.fire("m", 10, "me")) == ["new"]


def test_reload_goes_to_the_tail(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(4))
    fired = magazines.fire("m", 2, "me")
    assert magazines.reload("m", pointers(fired)) == 2
    assert texts(magazines.fire("m", 10, "me")) == ["m2", "m3", "m0", "m1"]
    assert magazines.peek("m", pointers(fired)) == {}


def test_reload_corrects_the_counters(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(5))
    magazines.fire("m", 4, "me")
    before = state(magazines, "m")
    assert (before.load_counter, before.fire_counter, before.pending, before.in_flight) == (5, 4, 1, 4)
    magazines.reload("m", {0: [2, 3]})
    after = state(magazines, "m")
    assert (after.load_pointer, after.fire_pointer) == (7, 4)
    assert (after.load_counter, after.fire_counter, after.pending, after.in_flight) == (5, 2, 3, 2)


def test_reload_counters_survive_a_reopen(kind: Kind) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 1)
    magazines.load_records("m", 0, numbered(3))
    magazines.fire("m", 3, "me")
    magazines.reload("m", {0: [1, 2]})
    (before,) = magazines.metadata("m")
    (after,) = kind.reopen().magazines.metadata("m")
    assert kind.follows(after.load_pointer + 1, before.load_pointer)
    assert replace(after, load_pointer=before.load_pointer) == before


def test_reload_skips_what_is_gone_and_what_was_never_fired(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(4))
    magazines.fire("m", 2, "me")
    magazines.delete("m", {0: [1]})
    assert magazines.reload("m", {0: [1, 2, 3, 4, 77], 3: [1], 99: [1]}) == 1
    assert magazines.reload("m", {0: [1, 2]}) == 0
    assert texts(magazines.fire("m", 10, "me")) == ["m2", "m3", "m1"]
    assert state(magazines, "m").pending == 0


def test_reload_before_anything_was_fired(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(2))
    assert magazines.reload("m", {0: [1, 2]}) == 0
    assert state(magazines, "m").load_pointer == 2


def test_reload_keeps_the_remaining_time_to_live(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, records("short"), ttl_s=0.3)
    magazines.load_records("m", 0, records("long"))
    fired = magazines.fire("m", 2, "me")
    magazines.reload("m", pointers(fired))
    time.sleep(0.35)
    result = magazines.fire("m", 10, "me")
    assert texts(result) == ["long"]
    assert result.expired == 1


def test_records_keep_their_bytes_through_a_reload(magazines: MagazineStore) -> None:
    many = numbered(3)
    magazines.load_records("m", 1, many)
    magazines.reload("m", pointers(magazines.fire("m", 3, "me")))
    assert magazines.fire("m", 3, "me").claims[0].records == many
