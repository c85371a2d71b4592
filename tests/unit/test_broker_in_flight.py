"""Runs of held pointers, beside a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ignis.broker.protocol.in_flight import InFlight, as_pointers, runs_of

runs = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 12)), max_size=5).map(
    lambda many: [(shard, first, first + length) for shard, first, length in many]
)


def flat(magazine: str, many: list[tuple[int, int, int]]) -> set[tuple[str, int, int]]:
    return {(magazine, shard, pointer) for shard, start, stop in many for pointer in range(start, stop)}


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "ask"]), st.sampled_from("mn"), runs), max_size=12))
def test_it_is_a_set(steps: list[tuple[str, str, list[tuple[int, int, int]]]]) -> None:
    held, model = InFlight(), set[tuple[str, int, int]]()
    for step, magazine, many in steps:
        named = flat(magazine, many)
        if step == "add":
            held.add(magazine, many)
            model |= named
        elif step == "take":
            assert flat(magazine, held.take(magazine, many)) == named & model
            model -= named
        assert held.holds(magazine, many) == (named <= model)
        assert held.count == len(model)
        assert bool(held) == bool(model)
        assert held.count_of("m") == sum(one[0] == "m" for one in model)
        assert set(held.magazines()) == {one[0] for one in model}
    found = held.take_all()
    assert {one for magazine, many in found.items() for one in flat(magazine, many)} == model
    assert not held
    assert held.take_all() == {}


def test_one_holder_takes_over_from_another() -> None:
    one, other = InFlight(), InFlight()
    one.add("m", [(0, 1, 5)])
    other.add("m", [(0, 5, 9), (3, 1, 2)])
    one.join(other)
    assert one.count == 9
    assert not other
    assert one.take_all() == {"m": [(0, 1, 9), (3, 1, 2)]}


def test_runs_and_pointers() -> None:
    assert runs_of(2, range(3, 6)) == [(2, 3, 6)]
    assert runs_of(2, range(3, 3)) == []
    assert runs_of(2, [1, 2, 5, 6, 9]) == [(2, 1, 3), (2, 5, 7), (2, 9, 10)]
    assert as_pointers([(0, 1, 3), (1, 7, 8), (0, 5, 6)]) == {0: [1, 2, 5], 1: range(7, 8)}
