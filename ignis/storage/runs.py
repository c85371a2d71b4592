"""Sets of pointers as runs without gaps, so that what they cost does not grow with the numbers they name. No I/O.

A run is (first, behind the last). Lists of runs are ascending, and their runs neither overlap nor touch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

__all__ = ["Pair", "Runs", "by_shard", "difference", "first_reaching", "joined", "overlap", "runs_of"]

Pair = tuple[int, int]


def _first(run: Pair) -> int:
    return run[0]


def _behind(run: Pair) -> int:
    return run[1]


class Runs(Sequence[int]):
    """Pointers, ascending and each once, of which only the runs are kept. Equal to any sequence of the same numbers.

    Args:
        runs: in any order; they may overlap or be empty.
    """

    __slots__ = ("_counts", "runs")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, runs: Iterable[Pair]) -> None:
        self.runs = joined(runs)
        self._counts = list(accumulate(stop - start for start, stop in self.runs))

    def __len__(self) -> int:
        return self._counts[-1] if self._counts else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(start, stop) for start, stop in self.runs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            return self._cut(begin, end) if step == 1 else [self[one] for one in range(begin, end, step)]
        wanted = index + len(self) if index < 0 else index
        if not 0 <= wanted < len(self):
            raise IndexError(f"pointer {index} of {len(self)}")
        at = bisect_right(self._counts, wanted)
        return self.runs[at][1] - (self._counts[at] - wanted)

    def _cut(self, begin: int, end: int) -> Runs:
        found = []
        at = bisect_right(self._counts, begin)
        while begin < end:
            behind, stop = self._counts[at], self.runs[at][1]
            some = min(end, behind) - begin
            first = stop - (behind - begin)
            found.append((first, first + some))
            begin += some
            at += 1
        return Runs(found)

    def __contains__(self, pointer: object) -> bool:
        return isinstance(pointer, int) and bool(overlap(self.runs, pointer, pointer + 1))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Runs):
            return self.runs == other.runs
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == one for mine, one in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"Runs({self.runs!r})"


def joined(runs: Iterable[Pair]) -> list[Pair]:
    """The same pointers, as a list of runs: for runs in any order."""
    found: list[Pair] = []
    for start, stop in sorted(run for run in runs if run[0] < run[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def runs_of(pointers: Iterable[int]) -> list[Pair]:
    """The runs of pointers in any order; quick for what is kept as runs already."""
    if isinstance(pointers, Runs):
        return pointers.runs
    if isinstance(pointers, range) and pointers.step == 1:
        return [(pointers.start, pointers.stop)] if pointers else []
    many = pointers if isinstance(pointers, list) else list(pointers)
    if not many:
        return []
    if many[-1] - many[0] + 1 == len(many) and many == list(range(many[0], many[-1] + 1)):
        return [(many[0], many[-1] + 1)]
    runs: list[Pair] = []
    start = end = None
    for pointer in sorted(set(many)):
        if pointer != end:
            if start is not None and end is not None:
                runs.append((start, end))
            start = pointer
        end = pointer + 1
    assert start is not None and end is not None
    runs.append((start, end))
    return runs


def by_shard(places: Iterable[tuple[int, Sequence[int]]]) -> dict[int, Sequence[int]]:
    """The pointers of each shard together, as runs where they come as ranges: what they cost does not grow with their number."""
    found: dict[int, list[Sequence[int]]] = {}
    for shard, some in places:
        found.setdefault(shard, []).append(some)
    return {shard: parts[0] if len(parts) == 1 else _together(parts) for shard, parts in found.items()}


def _together(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    if all(isinstance(one, range) and one.step == 1 for one in parts):
        return Runs((one.start, one.stop) for one in parts if isinstance(one, range))
    return list(chain.from_iterable(parts))


def first_reaching(runs: Sequence[Pair], pointer: int, low: int = 0) -> int:
    """The index, from ``low`` on, of the first run that holds the pointer or lies behind it."""
    return bisect_right(runs, pointer, lo=low, key=_behind)


def overlap(runs: Sequence[Pair], start: int, stop: int) -> list[Pair]:
    """What of the runs lies in ``start..stop-1``. Costs what is found."""
    low = first_reaching(runs, start)
    high = bisect_left(runs, stop, lo=low, key=_first)
    return [(max(first, start), min(behind, stop)) for first, behind in runs[low:high] if start < stop]


def difference(runs: Sequence[Pair], taken: Sequence[Pair]) -> list[Pair]:
    """The runs without what is in the others."""
    left: list[Pair] = []
    at = 0
    for first, stop in runs:
        start = first
        at = first_reaching(taken, start, at)
        while at < len(taken) and taken[at][0] < stop:
            if start < taken[at][0]:
                left.append((start, taken[at][0]))
            start = taken[at][1]
            if start >= stop:
                break
            at += 1
        if start < stop:
            left.append((start, stop))
    return left
