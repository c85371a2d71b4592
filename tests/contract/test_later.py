"""Messages that wait for their time, on every store that keeps them; and how the others refuse."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ignis.errors import (
    ConfigError,
    DelayNotSupportedError,
    InvalidNameError,
    QueueNotFoundError,
    StaleEpochError,
)
from ignis.native import PackedBatch
from ignis.storage.base import Fence, MagazineStore, Store, Transfer
from ignis.storage.later import later_of
from tests.contract.support import Kind, batch, drain, numbered, pointers, record, records, state, text, texts

FAR_MS = 3_600_000
BOUND_S = 60.0


@pytest.fixture
def later(store: Store) -> MagazineStore:
    """A store that keeps delayed messages, with a magazine ``m`` of four shards."""
    if not store.magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    store.magazines.declare("m", 4)
    return store.magazines


@pytest.fixture
def now_ms(store: Store) -> Callable[[], int]:
    return lambda: int(store.now_s() * 1000)  # rounded up it would not be due yet


def put(magazines: MagazineStore, shard: int, due_ms: int, *bodies: str, ttl_s: float | None = None) -> int:
    return magazines.load_later("m", [(shard, batch(*bodies))], [[due_ms] * len(bodies)], ttl_s)[0]


def listed(magazines: MagazineStore) -> list[tuple[int, int, str | None]]:
    return [(one.due_ms, one.shard, text(one.record)) for one in magazines.list_later("m", limit=10_000)]


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + BOUND_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_store_that_keeps_none_says_which_do(store: Store) -> None:
    store.magazines.declare("m", 4)
    if store.magazines.keeps_later:
        return
    with pytest.raises(DelayNotSupportedError, match="embedded"):
        put(store.magazines, 0, 1, "a")
    with pytest.raises(DelayNotSupportedError):
        store.magazines.defer("m", [Transfer(0, 1, record("a"), 0)], [1])
    assert store.magazines.next_due_ms("m") is None
    assert store.magazines.list_later("m") == []
    assert drain(store.magazines, "m") == []


def test_what_is_not_due_is_handed_out_by_nobody(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    due_ms = now_ms() + FAR_MS
    first = put(later, 2, due_ms, "a", "b")
    assert first >= 1
    assert drain(later, "m") == []
    assert later.delayed("m") == 2
    assert later.next_due_ms("m") == due_ms
    assert listed(later) == [(due_ms, 2, "a"), (due_ms, 2, "b")]
    assert [text(one) for one in later.peek(later_of("m"), {2: [first]})[2].values()] == ["a"]
    assert later.move_due("m") == (0, 0, due_ms)


def test_what_is_due_already_comes_next_in_its_own_shard(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms()
    put(later, 3, base_ms - 5, "b")
    put(later, 3, base_ms - 9, "a")
    put(later, 3, 0, "first")
    fired = later.fire("m", 10, "me")
    assert texts(fired) == ["first", "a", "b"]
    assert list(pointers(fired)) == [3]
    assert later.delayed("m") == 0
    assert later.next_due_ms("m") is None
    assert later.delete("m", pointers(fired)) == 3


def test_moves_to_the_tail_in_due_order(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms() - 10_000
    dues = list(range(200))
    random.Random(7).shuffle(dues)
    for due in dues:
        put(later, 1, base_ms + due, f"{due}")
    later.load_records("m", 1, records("before"))
    assert later.move_due("m") == (200, 0, None)
    assert drain(later, "m") == ["before", *(str(due) for due in range(200))]


def test_one_load_with_a_time_for_each(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms() + FAR_MS
    later.load_later("m", [(0, batch("c", "a")), (1, batch("b"))], [[base_ms + 3, base_ms + 1], [base_ms + 2]], None)
    assert listed(later) == [(base_ms + 1, 0, "a"), (base_ms + 2, 1, "b"), (base_ms + 3, 0, "c")]


def test_a_limit_moves_the_earliest(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms() - 10_000
    later.load_later("m", [(0, PackedBatch.pack(numbered(50)))], [[base_ms + n for n in range(50)]], None)
    moved = later.move_due("m", 20)
    assert (moved.moved, moved.expired, moved.next_due_ms) == (20, 0, base_ms + 20)
    assert later.delayed("m") == 30
    assert drain(later, "m") == [f"m{n}" for n in range(50)]


def test_time_to_live_goes_on(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms(), "kept", ttl_s=3600)
    put(later, 0, now_ms(), "late", ttl_s=0.05)
    put(later, 0, now_ms(), "whole")
    ends_ms = now_ms() + 60
    wait_until(lambda: now_ms() > ends_ms)
    assert later.move_due("m") == (2, 1, None)
    assert state(later, later_of("m")).expired == 1
    assert drain(later, "m") == ["kept", "whole"]


def test_an_end_of_the_time_to_live_holds_behind_the_move(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms(), "short", ttl_s=2)
    assert later.move_due("m").moved == 1
    ends_ms = now_ms() + 2_100
    wait_until(lambda: now_ms() > ends_ms)
    assert drain(later, "m") == []


def test_a_purge_leaves_alone_what_is_due(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms() + 100, "due")
    assert drain(later, "m") == []
    due_ms = now_ms() + 101
    wait_until(lambda: now_ms() > due_ms)
    later.load_records("m", 0, records("there"))
    assert later.purge("m", 10).waiting == 1
    assert later.delayed("m") == 1
    assert drain(later, "m") == ["due"]


def test_cancel_list_and_run_now(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms() + FAR_MS
    for n in range(5):
        put(later, n % 4, base_ms + n, f"m{n}")
    all_of = later.list_later("m")
    assert later.cancel_later("m", {all_of[0].shard: [all_of[0].pointer], 77: [1]}) == 1
    assert later.cancel_later("m", {all_of[0].shard: [all_of[0].pointer]}) == 0
    assert later.run_now("m", {all_of[3].shard: [all_of[3].pointer], all_of[0].shard: [all_of[0].pointer]}) == 1
    assert [body for _, _, body in listed(later)] == ["m1", "m2", "m4"]
    assert drain(later, "m") == ["m3"]
    assert later.delayed("m") == 3
    moved = later.move_due("m")
    assert moved.moved == 0 and moved.next_due_ms == base_ms + 1


def test_lists_in_pieces(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms() + FAR_MS
    rng = random.Random(3)
    for n in range(300):
        put(later, rng.randrange(4), base_ms + rng.randrange(9), f"m{n}")
    whole = later.list_later("m", limit=1_000)
    assert len(whole) == 300
    assert [one[:3] for one in whole] == sorted(one[:3] for one in whole)
    pieces: list[object] = []
    after = None
    while piece := later.list_later("m", after=after, limit=7):
        assert len(piece) <= 7
        pieces += piece
        after = piece[-1][:3]
    assert pieces == whole


def test_defer_acknowledges_and_puts_in_one(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    later.load("m", [(0, batch("a", "b", "c"))], 3600)
    fired = later.fire("m", 3, "me")
    (claim,) = fired.claims
    at = list(claim.pointers)
    due_ms = now_ms() + FAR_MS
    items = [Transfer(0, at[0], record("a again"), 0), Transfer(0, at[2], record("c again"), 1)]
    assert later.defer("m", items, [due_ms + 2, due_ms + 1]) == 2
    assert later.defer("m", items, [due_ms, due_ms]) == 0
    assert state(later, "m").in_flight == 1
    assert listed(later) == [(due_ms + 1, 1, "c again"), (due_ms + 2, 0, "a again")]
    later.delete("m", {0: [at[1]]})
    assert later.run_now("m", {shard: range(1, 1 << 40) for shard in range(4)}) == 2
    assert sorted(str(one) for one in drain(later, "m")) == ["a again", "c again"]


def test_what_was_deferred_keeps_its_time_over_an_opening(
    later: MagazineStore, kind: Kind, now_ms: Callable[[], int]
) -> None:
    if not kind.in_directory:
        pytest.skip("keeps nothing")
    base_ms = now_ms() + FAR_MS
    later.load("m", [(0, batch("a", "b"))], 7_200)
    (claim,) = later.fire("m", 2, "me").claims
    items = [Transfer(0, pointer, record(f"{n} again"), 0) for n, pointer in enumerate(claim.pointers)]
    assert later.defer("m", items, [base_ms + 1, base_ms]) == 2
    again = kind.reopen().magazines
    assert listed(again) == [(base_ms, 0, "1 again"), (base_ms + 1, 0, "0 again")]
    assert (state(again, "m").in_flight, drain(again, "m")) == (0, [])
    assert again.next_due_ms("m") == base_ms


def test_of_two_that_defer_the_same_one_does(later: MagazineStore, kind: Kind, now_ms: Callable[[], int]) -> None:
    """A handler that was taken for dead fails late, behind the sweep: its retry makes no second message."""
    later.load_records("m", 0, numbered(200))
    (claim,) = later.fire("m", 200, "me").claims
    items = [Transfer(0, pointer, record(f"m{pointer}"), 0) for pointer in claim.pointers]
    due_ms, moved = now_ms() + FAR_MS, []
    others = [kind.open().magazines for _ in range(3)]

    def defer(magazines: MagazineStore) -> None:
        for start in range(0, 200, 10):
            part = items[start : start + 10]
            moved.append(magazines.defer("m", part, [due_ms] * len(part)))

    threads = [threading.Thread(target=defer, args=[one]) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert sum(moved) == later.delayed("m") == len(listed(later)) == 200
    assert state(later, "m").in_flight == 0


def test_defer_keeps_its_fence(later: MagazineStore, store: Store, now_ms: Callable[[], int]) -> None:
    later.load_records("m", 0, records("a"))
    (claim,) = later.fire("m", 1, "me").claims
    old, new = store.locks.next_epoch("s"), store.locks.next_epoch("s")
    item = Transfer(0, claim.pointers[0], record("a"), 0)
    with pytest.raises(StaleEpochError):
        later.defer("m", [item], [now_ms() - 1], fence=Fence("s", old))
    assert later.defer("m", [], []) == 0
    assert later.names() == ["m"], "nothing is made for what is not put there"
    assert later.defer("m", [item], [now_ms() - 1], fence=Fence("s", new)) == 1
    with pytest.raises(StaleEpochError):
        later.move_due("m", fence=Fence("s", old))
    assert later.move_due("m", fence=Fence("s", new)).moved == 1


def test_two_that_move_at_once_move_nothing_twice(later: MagazineStore, kind: Kind, now_ms: Callable[[], int]) -> None:
    base_ms = now_ms() - 10_000
    for part in range(20):
        later.load_later(
            "m", [(part % 4, PackedBatch.pack(numbered(100, f"{part}-")))], [[base_ms + n for n in range(100)]], None
        )
    moved: list[int] = []
    others = [kind.open().magazines for _ in range(4)]

    def move(magazines: MagazineStore) -> None:
        while (found := magazines.move_due("m", 30)).next_due_ms is not None or found.moved:
            moved.append(found.moved)

    threads = [threading.Thread(target=move, args=[one]) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert sum(moved) == 2_000
    bodies = drain(later, "m")
    assert len(bodies) == len(set(bodies)) == 2_000


def test_who_waits_is_woken_when_it_is_due(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms() + 150, "a")
    assert drain(later, "m") == []
    seen = later.wait("m", -1, 0)
    assert later.wait("m", seen, BOUND_S) != seen
    assert drain(later, "m") == ["a"]


@pytest.fixture
def waiting(later: MagazineStore) -> Iterator[tuple[list[int], threading.Thread]]:
    """Somebody who waits for a load, and what he saw."""
    found: list[int] = []
    assert drain(later, "m") == []
    seen = later.wait("m", -1, 0)

    def wait() -> None:
        found.append(seen)
        while len(found) == 1:
            number = later.wait("m", seen, BOUND_S)
            if later.fire("m", 1, "me").claims:
                found.append(number)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(found))
    yield found, thread
    thread.join(BOUND_S)
    assert not thread.is_alive()


def test_an_earlier_one_makes_sleepers_reckon_anew(
    later: MagazineStore, now_ms: Callable[[], int], waiting: tuple[list[int], threading.Thread]
) -> None:
    found, thread = waiting
    put(later, 0, now_ms() + FAR_MS, "far")
    put(later, 0, now_ms() + 100, "near")
    thread.join(BOUND_S)
    assert len(found) == 2
    assert later.delayed("m") == 1


def test_one_that_is_due_at_once_wakes(
    later: MagazineStore, now_ms: Callable[[], int], waiting: tuple[list[int], threading.Thread]
) -> None:
    put(later, 0, now_ms(), "now")
    waiting[1].join(BOUND_S)
    assert len(waiting[0]) == 2


def test_who_asked_to_be_called_is_called_when_it_is_due(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    assert drain(later, "m") == []
    put(later, 0, now_ms() + FAR_MS, "far")
    called = threading.Event()
    assert drain(later, "m") == []
    cancel = later.on_load("m", later.wait("m", -1, 0), called.set)
    if cancel is None:
        pytest.skip("does not call back")
    put(later, 0, now_ms() + 100, "near")
    assert called.wait(BOUND_S)
    cancel()
    called.clear()

    def near_is_there() -> bool:
        # A call may come early, as when somebody put what is due next: then one asks again.
        if later.fire("m", 1, "me").claims:
            return True
        called.clear()
        seen = later.wait("m", -1, 0)
        if later.fire("m", 1, "me").claims:
            return True
        again = later.on_load("m", seen, called.set)
        assert called.wait(BOUND_S)
        assert again is not None
        again()
        return False

    wait_until(near_is_there)
    assert later.delayed("m") == 1


def test_survives_an_opening(later: MagazineStore, kind: Kind, now_ms: Callable[[], int]) -> None:
    if kind.name == "memory":
        pytest.skip("keeps nothing")
    base_ms = now_ms() + FAR_MS
    first = put(later, 0, base_ms, "a", "b", "c")
    later.cancel_later("m", {0: [first + 1]})
    again = kind.reopen().magazines
    assert listed(again) == [(base_ms, 0, "a"), (base_ms, 0, "c")]
    assert again.delayed("m") == 2
    assert again.next_due_ms("m") == base_ms


def test_goes_with_the_main_magazine(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms() + FAR_MS, "a")
    assert later_of("m") in later.names()
    assert later.drop("m", only_empty=True) is False
    assert later.drop("m") is True
    assert later.names() == []
    with pytest.raises(QueueNotFoundError):
        put(later, 0, 1, "a")
    later.declare("m", 4)
    assert later.delayed("m") == 0
    assert later.next_due_ms("m") is None
    put(later, 0, now_ms() - 1, "b")
    assert drain(later, "m") == ["b"]


def test_the_later_magazine_alone_can_go(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms() + FAR_MS, "a")
    assert later.drop(later_of("m")) is True
    assert later.delayed("m") == 0
    assert drain(later, "m") == []
    put(later, 0, now_ms() - 1, "b")
    assert drain(later, "m") == ["b"]


def test_more_shards(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    put(later, 0, now_ms() + FAR_MS, "a")
    later.declare("m", 8)
    put(later, 7, now_ms() - 1, "b")
    assert drain(later, "m") == ["b"]
    assert later.delayed("m") == 1


def test_wrong_arguments(later: MagazineStore) -> None:
    with pytest.raises(ConfigError):
        later.load_later("m", [(0, batch("a", "b"))], [[1]], None)
    for due in (-1, 1 << 48, 1.5, True):
        with pytest.raises(ConfigError):
            later.load_later("m", [(0, batch("a"))], [[due]], None)  # type: ignore[list-item] # that is the test
    with pytest.raises(ConfigError):
        put(later, 4, 1, "a")
    with pytest.raises(InvalidNameError):
        later.declare(later_of("m"), 4)
    with pytest.raises(QueueNotFoundError):
        later.load_later("none", [(0, batch("a"))], [[1]], None)
    with pytest.raises(QueueNotFoundError):
        later.move_due("none")
    assert later.names() == ["m"]


def test_each_durability(store: Store, durability: str) -> None:
    if not store.magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    store.magazines.declare("m", 4, durability)
    put(store.magazines, 1, 1, "a")
    assert drain(store.magazines, "m") == ["a"]


def test_many_come_and_go(later: MagazineStore, now_ms: Callable[[], int]) -> None:
    """Against a model, with times that others share and that are cancelled before they come."""
    rng = random.Random(11)
    base_ms = now_ms() - 100_000
    waiting: dict[str, tuple[int, int, int]] = {}
    moved: list[str] = []
    for n in range(600):
        shard, due_ms = (
            rng.randrange(4),
            base_ms + rng.choice([FAR_MS + rng.randrange(64), FAR_MS * 30 + rng.randrange(10**9)]),
        )
        waiting[f"m{n}"] = due_ms, shard, put(later, shard, due_ms, f"m{n}")
        if n % 3 == 0:
            gone = rng.choice(sorted(waiting))
            _, shard, pointer = waiting.pop(gone)
            if n % 2:
                assert later.cancel_later("m", {shard: [pointer]}) == 1
            else:
                assert later.run_now("m", {shard: [pointer]}) == 1
                moved.append(gone)
    assert [(one.due_ms, one.shard, one.pointer) for one in later.list_later("m", limit=9_999)] == sorted(
        waiting.values()
    )
    assert later.delayed("m") == len(waiting)
    assert sorted(str(one) for one in drain(later, "m")) == sorted(moved)
