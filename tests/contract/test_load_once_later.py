"""Once only, and delayed: ids are remembered for messages that wait for their time as for the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ignis.errors import ConfigError
from ignis.native import PackedBatch
from ignis.storage.base import MagazineStore, Store
from tests.contract.support import Kind, drain, text
from tests.contract.test_jobs import with_ids

FAR_MS = 3_600_000


@pytest.fixture
def telling(store: Store) -> MagazineStore:
    """A store that tells repeats and keeps delayed messages, with a magazine ``m`` of four shards."""
    if not (store.magazines.tells_repeats and store.magazines.keeps_later):
        pytest.skip("tells no repeats, or keeps no delayed messages")
    store.magazines.declare("m", 4)
    return store.magazines


@pytest.fixture
def now_ms(store: Store) -> Callable[[], int]:
    return lambda: int(store.now_s() * 1000)


def listed(magazines: MagazineStore) -> list[tuple[int, int, str | None]]:
    return [(one.due_ms, one.shard, text(one.record)) for one in magazines.list_later("m", limit=10_000)]


def test_each_id_waits_once(telling: MagazineStore, now_ms: Callable[[], int]) -> None:
    due_ms = now_ms() + FAR_MS
    first = telling.load_once(
        "m", [(0, with_ids(1, 2)), (1, with_ids(3))], None, 60, [[due_ms, due_ms + 5], [due_ms + 9]]
    )
    assert [(one.loaded, one.repeats) for one in first] == [(2, 0), (1, 0)]
    again = telling.load_once(
        "m", [(0, with_ids(2, 4, 1, 5)), (2, with_ids(3)), (3, with_ids(6))], None, 60,
        [[1, due_ms + 1, 2, due_ms + 2], [3], [due_ms + 3]],
    )  # fmt: skip
    assert [(one.loaded, one.repeats) for one in again] == [(2, 2), (0, 1), (1, 0)]
    assert listed(telling) == [
        (due_ms, 0, "m1"), (due_ms + 1, 0, "m4"), (due_ms + 2, 0, "m5"), (due_ms + 3, 3, "m6"), (due_ms + 5, 0, "m2"),
        (due_ms + 9, 1, "m3"),
    ]  # fmt: skip
    assert telling.fire("m", 10, "x").claims == []


def test_of_an_id_that_comes_twice_in_one_call_the_first_stays(
    telling: MagazineStore, now_ms: Callable[[], int]
) -> None:
    due_ms = now_ms() + FAR_MS
    batches = [(0, with_ids(1, 1, 2)), (1, with_ids(2, 3))]
    loaded = telling.load_once("m", batches, None, 60, [[due_ms, 1, due_ms + 2], [1, due_ms + 3]])
    assert [(one.loaded, one.repeats) for one in loaded] == [(2, 1), (1, 1)]
    assert listed(telling) == [(due_ms, 0, "m1"), (due_ms + 2, 0, "m2"), (due_ms + 3, 1, "m3")]


def test_an_id_is_known_whether_its_message_was_delayed_or_not(
    telling: MagazineStore, now_ms: Callable[[], int]
) -> None:
    due_ms = now_ms() + FAR_MS
    telling.load_once("m", [(0, with_ids(1))], None, 60)
    telling.load_once("m", [(0, with_ids(2))], None, 60, [[due_ms]])
    assert [one.loaded for one in telling.load_once("m", [(0, with_ids(1, 2))], None, 60, [[due_ms, due_ms]])] == [0]
    assert [one.loaded for one in telling.load_once("m", [(0, with_ids(1, 2))], None, 60)] == [0]
    assert drain(telling, "m") == ["m1"]


def test_it_is_known_still_when_it_was_handed_out_or_cancelled(
    telling: MagazineStore, now_ms: Callable[[], int]
) -> None:
    due_ms = now_ms() + FAR_MS
    telling.load_once("m", [(0, with_ids(1)), (1, with_ids(2))], None, 60, [[0], [due_ms]])
    assert drain(telling, "m") == ["m1"]
    [waiting] = telling.list_later("m")
    assert telling.cancel_later("m", {waiting.shard: [waiting.pointer]}) == 1
    again = telling.load_once("m", [(0, with_ids(1, 2))], None, 60, [[due_ms, due_ms]])
    assert [(one.loaded, one.repeats) for one in again] == [(0, 2)]
    assert telling.delayed("m") == 0


def test_they_come_when_they_are_due(telling: MagazineStore, now_ms: Callable[[], int]) -> None:
    """Who sleeps is woken for them."""
    woken = threading.Event()

    def wait() -> None:
        seen = telling.wait("m", -1, 0)
        while not telling.fire("m", 1, "x").claims:
            seen = telling.wait("m", seen, 30)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    telling.load_once("m", [(0, with_ids(1))], None, 60, [[now_ms() + 50]])
    waiting.join(60)
    assert woken.is_set()


def test_wrong_due_times_load_nothing(telling: MagazineStore) -> None:
    for wrong in ([[1]], [[1, 2], [3]], [[1, -2]], [[1, 1 << 48]]):
        with pytest.raises(ConfigError, match="due time"):
            telling.load_once("m", [(0, with_ids(1, 2))], None, 60, wrong)
    assert [one.loaded for one in telling.load_once("m", [(0, with_ids(1, 2))], None, 60)] == [2]


def test_the_times_to_live_go_on(telling: MagazineStore, now_ms: Callable[[], int]) -> None:
    telling.load_once("m", [(0, with_ids(1))], 0.001, 60, [[now_ms() + 20]])
    telling.load_once("m", [(0, with_ids(2))], None, 60, [[now_ms() + 20]])
    seen = -1
    found: list[str | None] = []
    while not found:
        seen = telling.wait("m", seen, 5)
        found = drain(telling, "m")
    assert found == ["m2"]


def test_an_opening_later_they_wait_once(kind: Kind) -> None:
    first = kind.open()
    if not (first.magazines.tells_repeats and first.magazines.keeps_later):
        pytest.skip("tells no repeats, or keeps no delayed messages")
    first.magazines.declare("m", 4)
    due_ms = int(first.now_s() * 1000) + FAR_MS
    first.magazines.load_once("m", [(0, with_ids(*range(100)))], None, 86_400, [[due_ms] * 100])
    again = kind.reopen().magazines
    loaded = again.load_once("m", [(1, with_ids(*range(50, 150)))], None, 86_400, [[due_ms + 1] * 100])
    assert [(one.loaded, one.repeats) for one in loaded] == [(50, 50)]
    assert again.delayed("m") == 150


def test_threads_that_load_the_same_store_each_once(telling: MagazineStore, now_ms: Callable[[], int]) -> None:
    due_ms = now_ms() + FAR_MS

    def load(turn: int, start: int, delayed: bool) -> int:
        batches: list[tuple[int, PackedBatch]] = [(turn % 4, with_ids(*range(start, start + 50)))]
        dues = [[due_ms + start] * 50] if delayed else None
        return sum(one.loaded for one in telling.load_once("m", batches, None, 60, dues))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(load, turn, start, turn != 1) for start in range(0, 500, 25) for turn in range(3)]
        assert sum(future.result(60) for future in futures) == 525
    bodies = [*drain(telling, "m"), *(one for _, _, one in listed(telling))]
    assert len(bodies) == len(set(bodies)) == 525
