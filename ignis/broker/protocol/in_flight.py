"""Who holds what: the pointers that a connection was given and has not yet accounted for. No I/O."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from ignis.native.wire import count_runs, pack_pointers, runs_between, unpack_runs
from ignis.storage.runs import Runs
from ignis.storage.runs import runs_of as pairs_of

__all__ = ["MOST_RUNS", "InFlight", "PointerRange", "as_pointers", "runs_in", "runs_of"]

MOST_RUNS = 4_096
"""The longest list that is taken apart at once: a longer one would keep everybody else waiting."""

PointerRange = tuple[int, int, int]
"""(shard, first pointer, behind the last): the last is not part of it, as it is of a `Run` of the storage contract."""


def runs_of(shard: int, pointers: Sequence[int]) -> list[PointerRange]:
    """The runs of some pointers of one shard."""
    if isinstance(pointers, (Runs, range)):
        return [(shard, start, stop) for start, stop in pairs_of(pointers)]
    return unpack_runs(pack_pointers({shard: pointers}))


def runs_in(payload: bytes, at: int) -> list[PointerRange]:
    """The runs of a request, in a thread that others share the interpreter with: it lets them in between. Raises
    MalformedFrameError."""
    runs: list[PointerRange] = []
    count = count_runs(payload, at)
    for first in range(0, count, MOST_RUNS):
        runs += runs_between(payload, at, first, min(count, first + MOST_RUNS))
    return runs


def as_pointers(runs: Iterable[PointerRange]) -> dict[int, Sequence[int]]:
    """Shard -> pointers, as stores take them: a range where there is one run, else `Runs`. Nothing is made per pointer."""
    grouped: dict[int, list[tuple[int, int]]] = {}
    for shard, start, stop in runs:
        grouped.setdefault(shard, []).append((start, stop))
    return {shard: range(*many[0]) if len(many) == 1 else Runs(many) for shard, many in grouped.items()}


class InFlight:
    """Keeps sets of pointers for each magazine, as runs: what they cost does not grow with the messages. One thread at a
    time."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._counts: dict[str, int] = {}
        self.count = 0
        self.ever: set[str] = set()
        """Magazines of which anything was ever held."""

    def __bool__(self) -> bool:
        return self.count > 0

    def count_of(self, magazine: str) -> int:
        """Pointers of one magazine."""
        return self._counts.get(magazine, 0)

    def _counted(self, magazine: str, by: int) -> None:
        self.count += by
        left = self._counts.get(magazine, 0) + by
        if left:
            self._counts[magazine] = left
        else:
            self._counts.pop(magazine, None)

    def add(self, magazine: str, runs: Iterable[PointerRange]) -> None:
        """Adds pointers. Those that are held already are no mistake: a store that fires one again after a power cut means the
        same one."""
        self.ever.add(magazine)
        for shard, start, stop in runs:
            if start >= stop:
                continue
            mine = self._runs.get((magazine, shard))
            if mine is None:  # as a rule, of one message at a time
                self._counted(magazine, stop - start)
                self._runs[magazine, shard] = [(start, stop)]
                continue
            again = sum(high - low for low, high in self._cut(magazine, shard, start, stop))
            self._counted(magazine, stop - start - again)
            mine = self._runs.setdefault((magazine, shard), [])
            at = bisect.bisect_left(mine, (start, stop))
            low, high = start, stop
            if at and mine[at - 1][1] == start:
                at -= 1
                low = mine.pop(at)[0]
            if at < len(mine) and mine[at][0] == stop:
                high = mine.pop(at)[1]
            mine.insert(at, (low, high))

    def holds(self, magazine: str, runs: Iterable[PointerRange]) -> bool:
        """Whether all of these are held."""
        for shard, start, stop in runs:
            if start >= stop:
                continue
            mine = self._runs.get((magazine, shard))
            if not mine:
                return False
            at = bisect.bisect_right(mine, (start, 1 << 64)) - 1
            if at < 0 or mine[at][1] < stop:
                return False
        return True

    def take(self, magazine: str, runs: Iterable[PointerRange]) -> list[PointerRange]:
        """Removes what is held of the runs, and returns it."""
        taken: list[PointerRange] = []
        count = 0
        for shard, start, stop in runs:
            for low, high in self._cut(magazine, shard, start, stop):
                taken.append((shard, low, high))
                count += high - low
        if count:
            self._counted(magazine, -count)
        return taken

    def _cut(self, magazine: str, shard: int, start: int, stop: int) -> list[tuple[int, int]]:
        mine = self._runs.get((magazine, shard))
        if not mine or start >= stop:
            return []
        if len(mine) == 1 and start <= mine[0][0] and mine[0][1] <= stop:  # likewise
            return self._runs.pop((magazine, shard))
        low = bisect.bisect_right(mine, (start, 1 << 64)) - 1
        low = low if low >= 0 and mine[low][1] > start else low + 1
        high = bisect.bisect_left(mine, (stop, 0))
        if low >= high:
            return []
        inside = mine[low:high]
        rest = [(inside[0][0], start)] if inside[0][0] < start else []
        if inside[-1][1] > stop:
            rest.append((stop, inside[-1][1]))
        mine[low:high] = rest
        if not mine:
            del self._runs[magazine, shard]
        return [(max(first, start), min(last, stop)) for first, last in inside]

    def take_all(self) -> dict[str, list[PointerRange]]:
        """Magazine -> runs; nothing is held afterwards."""
        found: dict[str, list[PointerRange]] = {}
        for (magazine, shard), runs in sorted(self._runs.items()):
            found.setdefault(magazine, []).extend((shard, start, stop) for start, stop in runs)
        self._runs.clear()
        self._counts.clear()
        self.count = 0
        return found

    def forget(self, magazine: str) -> None:
        """Nothing of this magazine is held any more."""
        for key in [key for key in self._runs if key[0] == magazine]:
            del self._runs[key]
        self.count -= self._counts.pop(magazine, 0)

    def runs(self, magazine: str) -> list[PointerRange]:
        """What is held of one magazine."""
        return [(shard, *run) for (name, shard), runs in sorted(self._runs.items()) if name == magazine for run in runs]

    def without(self, magazine: str, runs: Iterable[PointerRange]) -> list[PointerRange]:
        """What is held of one magazine but for these; all of it stays held."""
        taken = self.take(magazine, runs)
        left = self.runs(magazine)
        self.add(magazine, taken)
        return left

    def both(self, magazine: str, runs: Iterable[PointerRange]) -> list[PointerRange]:
        """What is held of the runs; it stays held."""
        found = self.take(magazine, runs)
        self.add(magazine, found)
        return found

    def magazines(self) -> list[str]:
        """Returns the magazines of which something is held."""
        return list(self._counts)

    def join(self, other: InFlight) -> None:
        """Takes over what another one held."""
        for magazine, runs in other.take_all().items():
            self.add(magazine, runs)
