"""Pointers as runs: what is calculated with them is what sets of the numbers say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.storage.runs import Runs, by_shard, difference, first_reaching, joined, overlap, runs_of

numbers = st.sets(st.integers(-3, 60))
pairs = st.lists(st.tuples(st.integers(-3, 60), st.integers(-3, 60)))


def plain(runs: list[tuple[int, int]]) -> set[int]:
    return {one for start, stop in runs for one in range(start, stop)}


def is_list_of_runs(runs: list[tuple[int, int]]) -> bool:
    ends = [end for run in runs for end in run]
    return all(low < high for low, high in itertools.pairwise(ends))


@given(numbers)
def test_runs_of_numbers(many: set[int]) -> None:
    for given_as in (sorted(many), sorted(many, reverse=True), list(many) * 2):
        assert plain(runs_of(given_as)) == many
        assert is_list_of_runs(runs_of(given_as))


@given(pairs)
def test_a_sequence_of_runs(runs: list[tuple[int, int]]) -> None:
    kept, listed = Runs(runs), sorted(plain(runs))
    assert is_list_of_runs(joined(runs))
    assert list(kept) == listed and len(kept) == len(listed)
    assert kept == listed and listed == kept and kept == Runs(listed and runs)
    assert [kept[at] for at in range(-len(listed), len(listed))] == listed * 2
    assert kept[1:5:2] == listed[1:5:2]
    for cut in (slice(1, 5), slice(None, 3), slice(-2, None), slice(4, 2), slice(None)):
        assert isinstance(kept[cut], Runs) and kept[cut] == listed[cut]
    assert all((one in kept) == (one in listed) for one in range(-5, 63))
    assert runs_of(kept) == runs_of(listed)
    assert kept != [*listed, 99] and kept != "abc"
    with pytest.raises(IndexError):
        kept[len(listed)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 9), st.booleans())))
def test_the_pointers_of_each_shard_together(drawn: list[tuple[int, int, int, bool]]) -> None:
    places: list[tuple[int, Sequence[int]]] = []
    named: dict[int, list[int]] = {}
    for shard, start, count, listed in drawn:
        some = range(start, start + count)
        places.append((shard, list(some) if listed else some))
        named.setdefault(shard, []).extend(some)
    found = by_shard(places)
    assert {shard: set(many) for shard, many in found.items()} == {shard: set(many) for shard, many in named.items()}
    assert by_shard([(0, range(3))]) == {0: range(3)}
    assert isinstance(by_shard([(0, range(3)), (0, range(5, 9))])[0], Runs)


@given(numbers, numbers)
def test_the_difference(many: set[int], taken: set[int]) -> None:
    left = difference(runs_of(many), runs_of(taken))
    assert plain(left) == many - taken
    assert is_list_of_runs(left)


@given(numbers, st.integers(-5, 62), st.integers(-5, 62))
def test_the_overlap(many: set[int], start: int, stop: int) -> None:
    found = overlap(runs_of(many), start, stop)
    assert plain(found) == {one for one in many if start <= one < stop}
    assert is_list_of_runs(found)
    at = first_reaching(runs_of(many), start)
    assert plain(runs_of(many)[at:]) == {one for run in runs_of(many) if run[1] > start for one in range(*run)}
