"""Reads that end where the bytes do: what is read beyond them is a few records, however many were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import ignis
from ignis.control.inspection import scan_magazine
from ignis.native import encode_record
from ignis.storage.bounded_reads import peek_fitting, scan_fitting

LARGE = 100 << 10


class Counting:
    """A store's magazines, and what was read of them."""

    def __init__(self, magazines: Any) -> None:
        self._magazines = magazines
        self.read = 0
        self.calls = 0

    def scan(self, *args: Any, **options: Any) -> Any:
        found = self._magazines.scan(*args, **options)
        self.read += len(found)
        self.calls += 1
        return found

    def peek(self, *args: Any, **options: Any) -> Any:
        found = self._magazines.peek(*args, **options)
        self.read += sum(len(many) for many in found.values())
        self.calls += 1
        return found


def _record(size: int) -> bytes:
    return encode_record(b"x" * size)


def _filled(app: ignis.Ignis, sizes: Sequence[int], shards: int = 1) -> Counting:
    magazines = app.store.magazines
    magazines.declare("m", shards)
    for shard in range(shards):
        magazines.load_records("m", shard, [_record(one) for one in sizes])
    return Counting(magazines)


def test_a_scan_reads_little_beyond_its_bytes(app: ignis.Ignis) -> None:
    counting = _filled(app, [LARGE] * 60, shards=2)
    rows, cut = scan_fitting(counting, "m", after={}, limit=10_000, max_bytes=5 * (LARGE + 1_000))  # type: ignore[arg-type]
    assert (len(rows), cut) == (5, True)
    assert counting.read <= 8


def test_a_scan_goes_on_where_the_last_one_was_cut(app: ignis.Ignis) -> None:
    counting = _filled(app, [10, LARGE, 20, LARGE, *[30] * 200], shards=3)
    found: list[tuple[int, int]] = []
    after: dict[int, int] = {}
    while True:
        rows, cut = scan_fitting(counting, "m", after=after, limit=50, max_bytes=LARGE)  # type: ignore[arg-type]
        found += [row[:2] for row in rows]
        if not cut and len(rows) < 50:
            break
        after.update({shard: pointer for shard, pointer, _ in rows})
    assert found == [row[:2] for row in app.store.magazines.scan("m", limit=10_000)]
    assert len(found) == 3 * 204


@pytest.mark.parametrize(
    "runs", [[(0, 1, 1 << 60)], [(0, one, one + 1) for one in range(1, 61)], [(0, 1, 31), (0, 31, 61)]]
)
def test_a_peek_reads_little_beyond_its_bytes(app: ignis.Ignis, runs: list[tuple[int, int, int]]) -> None:
    counting = _filled(app, [LARGE] * 60)
    rows, cut = peek_fitting(counting, "m", runs, max_bytes=5 * (LARGE + 1_000))  # type: ignore[arg-type]
    assert ([row[1] for row in rows], cut) == ([1, 2, 3, 4, 5], True)
    assert counting.read <= 8


def test_a_peek_finds_what_is_there_in_few_calls(app: ignis.Ignis) -> None:
    counting = _filled(app, [10] * 300, shards=3)
    app.store.magazines.delete("m", {1: range(2, 290)})
    runs = [(0, 5, 8), (1, 1, 1 << 50), (2, 299, 400), (7, 1, 3)]
    rows, cut = peek_fitting(counting, "m", runs, max_bytes=1 << 30)  # type: ignore[arg-type]
    places = [row[:2] for row in rows]
    assert places == [(0, 5), (0, 6), (0, 7), (1, 1), *((1, one) for one in range(290, 301)), (2, 299), (2, 300)]
    assert not cut
    assert counting.calls < 10
    singles = [(0, one, one + 1) for one in range(1, 301)]
    assert len(peek_fitting(counting, "m", singles, max_bytes=1 << 30).rows) == 300  # type: ignore[arg-type]
    assert counting.calls < 25


def test_nothing_asked_of_a_magazine_that_is_not_there(app: ignis.Ignis) -> None:
    with pytest.raises(ignis.errors.QueueNotFoundError):
        peek_fitting(app.store.magazines, "nope", [], max_bytes=1)


def test_who_looks_through_a_queue_reads_a_few_megabytes_at_a_time(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = app.queue("jobs", bytes, shards=1)
    kind, read = type(app.store.magazines), list[int]()

    def counted(name: str) -> Any:
        real = getattr(kind, name)

        def called(*args: Any, **options: Any) -> Any:
            found = real(*args, **options)
            read.append(sum(len(row[2] if name.startswith("scan") else row[3]) for row in found[0]))
            return found

        return called

    for _ in range(24):
        queue.publish(b"x" * 1_000_000)
        queue.publish(b"y" * 1_000_000, delay=3_600)
    for name in ("scan_within", "list_later_within"):
        monkeypatch.setattr(kind, name, counted(name))
    nowhere = "01890000-0000-7000-8000-000000000000"
    assert queue.delete(ids=[nowhere]).looked_at == 24
    assert (sum(read) >= 24_000_000, max(read) < 10_000_000) == (True, True)
    read.clear()
    assert queue.later.cancel(nowhere) == 0
    assert (sum(read) >= 24_000_000, max(read) < 10_000_000) == (True, True)
    read.clear()
    assert len(list(scan_magazine(app.store, "jobs"))) == 24
    assert (sum(read) >= 24_000_000, max(read) < 10_000_000) == (True, True)
