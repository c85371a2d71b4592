"""Settings of queues, locks with tokens, epochs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ignis.errors import ConfigError, QueueNotFoundError, StaleEpochError
from ignis.storage.base import Fence, QueueRecord, Store
from tests.contract.support import Kind
from tests.support import eventually


def test_a_queue_comes_back_as_it_was(kind: Kind) -> None:
    record = QueueRecord(
        "orders", shards=7, message_expiry_s=5, durability="none", max_wait_s=0.25, active=False,
        sweep_pointers={3: 9, 0: 1}, swept_count=4, extra={"a": [1, "x", None], "b": {"c": 1.5}},
    )  # fmt: skip
    kind.open().queues.put(record)
    assert kind.reopen().queues.get("orders") == record


def test_queues_that_are_not_there(store: Store) -> None:
    assert store.queues.get("q") is None
    assert not store.queues.remove("q")
    with pytest.raises(QueueNotFoundError):
        store.queues.update("q", lambda record: None)


def test_put_replaces(store: Store) -> None:
    store.queues.put(QueueRecord("q", shards=1))
    store.queues.put(QueueRecord("q", shards=2))
    assert [one.shards for one in store.queues.list()] == [2]
    assert store.queues.remove("q")
    assert store.queues.list() == []


def test_list_filters_and_sorts(store: Store) -> None:
    for name, active in (("b", True), ("a", False), ("c", True)):
        store.queues.put(QueueRecord(name, active=active))
    assert [one.name for one in store.queues.list()] == ["a", "b", "c"]
    assert [one.name for one in store.queues.list(active=True)] == ["b", "c"]
    assert [one.name for one in store.queues.list(active=False)] == ["a"]


def test_queues_come_in_pages(store: Store) -> None:
    names = [f"q{number}" for number in range(6)]
    for number, name in enumerate(names):
        store.queues.put(QueueRecord(name, active=number % 2 == 0, extra={"x": "y" * 2_000}))

    def page(after: str, max_bytes: int, **options: Any) -> tuple[list[str], bool]:
        records, more = store.queues.page(after, max_bytes=max_bytes, **options)
        assert records == [store.queues.get(one.name) for one in records]
        return [one.name for one in records], more

    assert page("", 1 << 20) == (names, False)
    assert page("", 1) == (names[:1], True)
    assert page("", 6_000) == (names[:2], True)
    assert page("q1", 6_000) == (names[2:4], True)
    assert page("q3", 6_000) == (names[4:], False)
    assert page("q10", 1) == (names[2:3], True), "the name need not be one"
    assert page("q5", 1) == ([], False)
    assert page("", 6_000, active=False) == (["q1", "q3"], True)
    assert page("q0", 6_000, wanted=lambda name: name in ("q0", "q4", "q5")) == (["q4", "q5"], False)


def test_whose_queues_there_are(kind: Kind) -> None:
    store = kind.open()
    assert not store.queues.applications()
    store.queues.put(QueueRecord("q"))
    if kind.name not in ("memory", "embedded"):
        assert store.queues.applications() is None
        return
    for client_id, farm_id in (("shop", "west"), ("shop", "local"), ("ignis", "east")):
        kind.open(client_id=client_id, farm_id=farm_id).queues.put(QueueRecord("other"))
    assert store.queues.applications() == [
        ("east", "ignis"), ("local", "ignis"), ("local", "shop"), ("west", "shop"),
    ]  # fmt: skip
    store.queues.remove("q")
    assert ("local", "ignis") not in (store.queues.applications() or [])


def test_what_was_given_out_is_a_copy(store: Store) -> None:
    record = QueueRecord("q")
    store.queues.put(record)
    record.shards = 99
    found = store.queues.get("q")
    assert found is not None
    found.sweep_pointers[1] = 1
    again = store.queues.get("q")
    assert again is not None
    assert (again.shards, again.sweep_pointers) == (32, {})


def test_update_applies_a_change(store: Store) -> None:
    store.queues.put(QueueRecord("q"))
    result = store.queues.update("q", lambda record: record.sweep_pointers.update({1: 5}))
    assert result.sweep_pointers == {1: 5}
    assert store.queues.get("q") == result


def test_a_change_that_raises_changes_nothing(store: Store) -> None:
    store.queues.put(QueueRecord("q"))

    def change(record: QueueRecord) -> None:
        record.shards = 5
        raise KeyError("no")

    with pytest.raises(KeyError):
        store.queues.update("q", change)
    found = store.queues.get("q")
    assert found is not None
    assert found.shards == 32


def test_updates_of_many_threads_all_count(store: Store) -> None:
    store.queues.put(QueueRecord("q"))

    def change(record: QueueRecord) -> None:
        record.swept_count += 1

    threads = [threading.Thread(target=lambda: [store.queues.update("q", change) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = store.queues.get("q")
    assert found is not None
    assert found.swept_count == 40


def test_an_update_under_an_old_epoch_is_refused(store: Store) -> None:
    store.queues.put(QueueRecord("q"))
    old = Fence("leader", store.locks.next_epoch("leader"))
    store.queues.update("q", lambda record: setattr(record, "swept_count", 1), old)
    store.locks.next_epoch("leader")
    with pytest.raises(StaleEpochError):
        store.queues.update("q", lambda record: setattr(record, "swept_count", 2), old)
    found = store.queues.get("q")
    assert found is not None
    assert found.swept_count == 1


def test_a_lock_has_one_holder(store: Store) -> None:
    mine = store.locks.acquire("l", "me", 60)
    assert mine is not None
    assert mine.expires_at_ms - mine.acquired_at_ms == 60_000
    assert store.locks.acquire("l", "you", 60) is None
    assert store.locks.acquire("l", "me", 60) is None
    assert store.locks.get("l") == mine
    assert not store.locks.release("l", "you")
    assert store.locks.release("l", "me")
    assert not store.locks.release("l", "me")
    assert store.locks.get("l") is None


def test_tokens_rise_for_ever(kind: Kind) -> None:
    tokens = []
    for number in range(4):
        locks = kind.reopen().locks
        record = locks.acquire("l", f"owner{number}", 60)
        assert record is not None
        tokens.append(record.token)
        assert locks.release("l", f"owner{number}")
    assert tokens == [1, 2, 3, 4]


def test_time_runs_out(store: Store) -> None:
    first = store.locks.acquire("l", "me", 0.05)
    assert first is not None
    time.sleep(0.1)
    assert store.locks.get("l") is None
    assert store.locks.renew("l", "me", 60) is None
    assert not store.locks.release("l", "me")
    second = store.locks.acquire("l", "you", 60)
    assert second is not None
    assert second.token > first.token


def test_renew_keeps_the_token(store: Store) -> None:
    first = store.locks.acquire("l", "me", 1)
    assert first is not None
    again = store.locks.renew("l", "me", 60)
    assert again is not None
    assert again.token == first.token
    assert again.expires_at_ms > first.expires_at_ms
    assert store.locks.renew("l", "you", 60) is None
    assert store.locks.renew("other", "me", 60) is None


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan")])
def test_bad_times(store: Store, ttl_s: float) -> None:
    with pytest.raises(ConfigError):
        store.locks.acquire("l", "me", ttl_s)
    with pytest.raises(ConfigError):
        store.locks.renew("l", "me", ttl_s)


def test_an_owner_has_a_name(store: Store) -> None:
    with pytest.raises(ConfigError):
        store.locks.acquire("l", "", 1)


def test_of_many_threads_one_gets_the_lock(store: Store) -> None:
    got: list[str] = []

    def run(name: str) -> None:
        if store.locks.acquire("l", name, 60) is not None:
            got.append(name)

    threads = [threading.Thread(target=run, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == 1


def test_epochs_only_rise(kind: Kind) -> None:
    locks = kind.open().locks
    assert locks.epoch("s") == 0
    assert [locks.next_epoch("s") for _ in range(3)] == [1, 2, 3]
    assert locks.epoch("s") == 3
    assert locks.epoch("other") == 0
    assert kind.reopen().locks.next_epoch("s") == 4


def test_an_epoch_counted_elsewhere_is_taken_over(kind: Kind) -> None:
    """ZooKeeper's numbers are large, and do not go up by one."""
    locks = kind.open().locks
    locks.next_epoch("s")
    locks.raise_epoch("s", 0x5_0000_0017)
    locks.raise_epoch("s", 0x5_0000_0017)
    assert locks.epoch("s") == 0x5_0000_0017
    assert locks.epoch("other") == 0
    for lower in (0x5_0000_0016, 1, 0):
        with pytest.raises(StaleEpochError, match=f"epoch {lower} of 's'"):
            locks.raise_epoch("s", lower)
    locks = kind.reopen().locks
    assert locks.epoch("s") == 0x5_0000_0017
    assert locks.next_epoch("s") == 0x5_0000_0018
    locks.raise_epoch("fresh", 7)
    assert locks.epoch("fresh") == 7


def test_of_threads_that_raise_an_epoch_the_highest_holds(store: Store) -> None:
    refused: list[int] = []

    def run(epochs: range) -> None:
        for epoch in epochs:
            try:
                store.locks.raise_epoch("s", epoch)
            except StaleEpochError:
                refused.append(epoch)

    threads = [threading.Thread(target=run, args=(range(start, 100, 4),)) for start in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.locks.epoch("s") == 99
    assert 99 not in refused


def test_held_locks_are_listed_where_a_store_keeps_a_list(kind: Kind) -> None:
    locks = kind.open().locks
    if kind.name in ("aerospike", "broker"):
        assert locks.held() is None
        assert locks.epochs() is None
        return
    assert (locks.held(), locks.epochs()) == ([], {})
    taken = [locks.acquire(name, "me", 60) for name in ("b", "a@1", "gone")]
    assert locks.release("gone", "me")
    over = locks.acquire("over", "me", 0.01)
    assert over is not None
    table = locks.table("DC#fa#test_lock", "fa")
    other = table.acquire("c#ü b", "you", 60)
    assert locks.next_epoch("s") == 1
    locks.raise_epoch("t", 7)
    eventually(lambda: locks.get("over") is None)
    assert locks.held() == [taken[1], taken[0]]
    assert table.held() == [other]
    assert locks.epochs() == {"s": 1, "t": 7}
    assert kind.open(client_id="billing").locks.held() == []
    assert kind.open(client_id="billing").locks.epochs() == {}
