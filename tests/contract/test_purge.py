"""Removing what waits, whole or by pointer, and dropping only what is empty."""

from __future__ import annotations

import threading
import time

import pytest

from ignis.errors import QueueNotFoundError
from ignis.storage.base import MagazineStore, Store
from tests.contract.support import Kind, batch, drain, numbered, peeked, pointers, records, scanned, state, texts
from tests.support import WAIT_S


def purge_all(
    magazines: MagazineStore, magazine: str, limit: int = 10_000, in_flight: bool = False
) -> tuple[int, int, int]:
    """(waiting, in flight, steps)."""
    one = magazines.purge(magazine, limit, in_flight=in_flight)
    waiting, claimed, steps = one.waiting, one.in_flight, 1
    while one.left:
        one = magazines.purge(magazine, limit, in_flight=in_flight, left=one.left)
        waiting, claimed, steps = waiting + one.waiting, claimed + one.in_flight, steps + 1
        assert one.waiting + one.in_flight <= limit
    return waiting, claimed, steps


def test_what_was_claimed_is_not_deleted(magazines: MagazineStore) -> None:
    magazines.load("m", [(0, batch(*"abcdef")), (1, batch(*"gh"))], None)
    magazines.fire("m", 2, "me", [0])
    assert magazines.delete_waiting("m", {0: [1, 2, 3, 5], 1: range(2, 9), 2: [1], 9: [1]}) == 3
    assert magazines.delete_waiting("m", {0: [3, 5]}) == 0
    assert peeked(magazines.peek("m", {0: range(1, 9), 1: range(1, 9)})) == {
        0: {1: "a", 2: "b", 4: "d", 6: "f"}, 1: {1: "g"},
    }  # fmt: skip
    assert sorted(map(str, drain(magazines, "m"))) == ["d", "f", "g"]
    assert sum(one.pending for one in magazines.metadata("m")) == 0, "the last of a shard was removed, and not claimed"
    assert state(magazines, "m").in_flight == 2


def test_deleting_from_the_head_on_leaves_the_rest(magazines: MagazineStore) -> None:
    """The fire pointer is behind what was never fired."""
    magazines.load_records("m", 0, numbered(5))
    assert magazines.delete_waiting("m", {0: range(1, 4)}) == 3
    assert state(magazines, "m").pending == 2
    assert texts(magazines.fire("m", 9, "me")) == ["m3", "m4"]
    assert magazines.load_records("m", 0, records("x")) == 6


@pytest.mark.parametrize("way", ["purge", "delete"])
def test_what_had_run_out_is_counted_as_expired(magazines: MagazineStore, way: str) -> None:
    """Nobody removed it: it was lost to its time to live, and whoever counts what was lost must see it."""
    magazines.load_records("m", 0, numbered(3, "short"), ttl_s=0.05)
    magazines.load_records("m", 0, numbered(2, "long"), ttl_s=60)
    magazines.load_records("m", 1, numbered(4, "short"), ttl_s=0.05)
    magazines.load_records("m", 2, numbered(1))
    time.sleep(0.1)
    if way == "purge":
        assert purge_all(magazines, "m") == (3, 0, 1)
    else:
        assert magazines.delete_waiting("m", {0: range(1, 6), 1: range(1, 5), 2: [1]}) == 3
    assert [one.expired for one in magazines.metadata("m")] == [3, 4, 0, 0]
    assert state(magazines, "m").pending == 0
    assert magazines.scan("m") == []


def test_a_purge_takes_everything_that_waits_in_bounded_steps(magazines: MagazineStore) -> None:
    for _ in range(5):
        magazines.load("m", [(shard, batch(*"abcdefghij")) for shard in (0, 1, 3)], None)
    fired = magazines.fire("m", 7, "me")
    waiting, claimed, steps = purge_all(magazines, "m", limit=20)
    assert (waiting, claimed) == (143, 0)
    assert steps >= 8
    assert sum(one.pending for one in magazines.metadata("m")) == 0
    assert sum(one.in_flight for one in magazines.metadata("m")) == 7
    assert magazines.delete("m", pointers(fired)) == 7
    assert purge_all(magazines, "m") == (0, 0, 1)


def test_a_purge_with_what_is_in_flight(kind: Kind, magazines: MagazineStore) -> None:
    magazines.load("m", [(0, batch(*"abcd")), (2, batch(*"efgh"))], None)
    fired = magazines.fire("m", 3, "me", [0])
    other = kind.open().magazines.fire("m", 2, "another", [2])
    assert purge_all(magazines, "m", in_flight=True)[:2] == (3, 5)
    assert scanned(magazines.scan("m")) == []
    assert magazines.delete("m", pointers(fired)) == 0, "a late acknowledgement finds nothing"
    assert magazines.reload("m", pointers(other)) == 0
    assert sum(one.in_flight + one.pending for one in magazines.metadata("m")) == 0


def test_steps_of_a_purge_pass_what_was_deleted_before(magazines: MagazineStore) -> None:
    """A store that leaves a tombstone there finds the next message instead, which another step would have taken."""
    magazines.load_records("m", 0, numbered(5))
    assert magazines.delete("m", {0: [1, 3]}) == 2
    assert purge_all(magazines, "m", limit=1)[:2] == (3, 0)
    assert scanned(magazines.scan("m")) == []


def test_what_is_loaded_after_the_beginning_stays(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(30))
    one = magazines.purge("m", 10, in_flight=True)
    assert one.waiting == 10
    magazines.load_records("m", 0, numbered(5, "late"))
    magazines.load_records("m", 1, numbered(5, "late"))
    total = one.waiting
    while one.left:
        one = magazines.purge("m", 10, in_flight=True, left=one.left)
        total += one.waiting
    assert total == 30
    assert len(drain(magazines, "m")) == 10


def test_a_purge_beside_those_who_publish_and_consume(kind: Kind) -> None:
    """Every message is handed out or removed, and none both."""
    magazines = kind.open().magazines
    magazines.declare("m", 2)
    done = threading.Event()
    handled: list[str] = []
    loaded: list[str] = []

    def publish() -> None:
        for number in range(60):
            names = [f"{number}-{index}" for index in range(10)]
            magazines.load_records("m", number % 2, records(*names))
            loaded.extend(names)

    def consume() -> None:
        consumer = kind.open().magazines
        while True:
            over = done.is_set()
            found = consumer.fire("m", 7, "consumer")
            taken = [str(one) for one in texts(found)]
            if taken:
                handled.extend(taken)
                assert consumer.delete("m", pointers(found)) == len(taken), "it was removed under its handler"
            elif over and not found.more:
                return

    failed: list[BaseException] = []

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in (publish, consume)]
    purger = kind.open().magazines
    for thread in threads:
        thread.start()
    purged = 0
    while threads[0].is_alive():
        purged += purge_all(purger, "m", 50)[0]
    done.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert not failed
    assert len(handled) == len(set(handled))
    assert len(handled) + purged == len(loaded) == 600


def test_a_purged_magazine_stays_so(kind: Kind, durability: str) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 2, durability)
    magazines.load("m", [(0, batch(*"abc")), (1, batch(*"de"))], None)
    assert purge_all(magazines, "m")[0] == 5
    magazines = kind.reopen().magazines
    assert magazines.fire("m", 9, "me").claims == []
    assert kind.follows(magazines.load_records("m", 0, records("x")), 3)


def test_a_magazine_that_is_not_there(magazines: MagazineStore) -> None:
    with pytest.raises(QueueNotFoundError):
        magazines.purge("none")
    with pytest.raises(QueueNotFoundError):
        magazines.delete_waiting("none", {0: [1]})


def test_dropped_only_when_empty(store: Store, durability: str) -> None:
    magazines = store.magazines
    magazines.declare("m", 2, durability)
    magazines.load("m", [(1, batch("a"))], None)
    assert not magazines.drop("m", only_empty=True)
    fired = magazines.fire("m", 1, "me")
    assert not magazines.drop("m", only_empty=True), "what is claimed counts"
    assert magazines.names() == ["m"]
    magazines.delete("m", pointers(fired))
    assert magazines.drop("m", only_empty=True)
    assert magazines.names() == []
    assert magazines.drop("m", only_empty=True)
