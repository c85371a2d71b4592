"""Names, owners and numbers that no store may take: each is a typed error of its call and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ignis.errors import BadRequestError, ConfigError, IgnisError, InvalidNameError
from ignis.storage.base import Fence, QueueRecord, Store
from tests.contract.support import Kind, batch, drain

BAD_NAMES = [
    "",
    ".",
    "..",
    "x" * 129,
    "x" * 600,
    "a b",
    "a\nb",
    "a/../b",
    "a\0b",
    "a\u202eb",
    "a\ud800",
    "\u00e9",
    b"m",
    None,
    5,
]
JAVAS_NAMES = [".", "x" * 129, "a b", "\u00e9"]
BAD_TEXTS = ["", "x" * 1_025, "a\nb", "a\0b", "a\u202eb", "a\ud800", "a/../b", b"me", None, 5]

MAGAZINE_CALLS: dict[str, Callable[[Store, Any], object]] = {
    "declare": lambda store, name: store.magazines.declare(name, 1),
    "load": lambda store, name: store.magazines.load(name, [(0, batch("a"))], None),
    "load_once": lambda store, name: store.magazines.load_once(name, [(0, batch("a"))], None, 60),
    "fire": lambda store, name: store.magazines.fire(name, 1, "me"),
    "claim": lambda store, name: store.magazines.claim(name, 1, "me"),
    "held": lambda store, name: store.magazines.held(name, "me"),
    "renew": lambda store, name: store.magazines.renew(name, "me"),
    "reload": lambda store, name: store.magazines.reload(name, {0: [1]}),
    "delete": lambda store, name: store.magazines.delete(name, {0: [1]}),
    "delete_waiting": lambda store, name: store.magazines.delete_waiting(name, {0: [1]}),
    "purge": lambda store, name: store.magazines.purge(name),
    "drop if empty": lambda store, name: store.magazines.drop(name, only_empty=True),
    "peek": lambda store, name: store.magazines.peek(name, {0: [1]}),
    "scan": lambda store, name: store.magazines.scan(name),
    "transfer from": lambda store, name: store.magazines.transfer(name, "m", [], None),
    "transfer to": lambda store, name: store.magazines.transfer("m", name, [], None),
    "abandoned": lambda store, name: store.magazines.abandoned(name, 0, 0, 10),
    "expire": lambda store, name: store.magazines.expire(name),
    "metadata": lambda store, name: store.magazines.metadata(name),
    "oldest": lambda store, name: store.magazines.oldest_enqueued_at_us(name),
    "wait": lambda store, name: store.magazines.wait(name, -1, 0),
    "wake": lambda store, name: store.magazines.wake(name),
    "drop": lambda store, name: store.magazines.drop(name),
}
OTHER_CALLS: dict[str, Callable[[Store, Any], object]] = {
    "queues.put": lambda store, name: store.queues.put(QueueRecord(name)),
    "queues.get": lambda store, name: store.queues.get(name),
    "queues.update": lambda store, name: store.queues.update(name, lambda record: None),
    "queues.remove": lambda store, name: store.queues.remove(name),
    "locks.acquire": lambda store, name: store.locks.acquire(name, "me", 5),
    "locks.renew": lambda store, name: store.locks.renew(name, "me", 5),
    "locks.release": lambda store, name: store.locks.release(name, "me"),
    "locks.get": lambda store, name: store.locks.get(name),
    "next_epoch": lambda store, name: store.locks.next_epoch(name),
    "raise_epoch": lambda store, name: store.locks.raise_epoch(name, 5),
    "epoch": lambda store, name: store.locks.epoch(name),
    "fence": lambda store, name: store.magazines.reload("m", {0: [1]}, Fence(name, 1)),
    "arrays.enqueue": lambda store, name: store.arrays.enqueue(name, "Q", [1]),
    "arrays.dequeue": lambda store, name: store.arrays.dequeue(name, "Q", 1),
    "arrays.peek": lambda store, name: store.arrays.peek(name, "Q", 1),
    "arrays.size": lambda store, name: store.arrays.size(name, "Q"),
}
TEXT_CALLS: dict[str, Callable[[Store, Any], object]] = {
    "fire's owner": lambda store, text: store.magazines.fire("m", 1, text),
    "claim's owner": lambda store, text: store.magazines.claim("m", 1, text),
    "lock's owner": lambda store, text: store.locks.acquire("l", text, 5),
    "bin": lambda store, text: store.arrays.enqueue("a", text, [1]),
    "table": lambda store, text: store.locks.table(text, "dc1").acquire("ignis#l", "me", 5),
    "lock in a table": lambda store, text: store.locks.table("DC#dc1#t", "dc1").acquire(text, "me", 5),
}


def still_works(store: Store) -> None:
    """Loads, claims, retires and locks, which a store that has failed refuses."""
    store.magazines.load("m", [(0, batch("a"))], None)
    assert "a" in drain(store.magazines, "m")
    assert store.locks.next_epoch("works") > 0


@pytest.fixture
def ready(store: Store) -> Store:
    store.magazines.declare("m", 1)
    return store


@pytest.mark.parametrize("call", MAGAZINE_CALLS)
def test_names_of_magazines(ready: Store, kind: Kind, call: str) -> None:
    for name in BAD_NAMES:
        if kind.name == "aerospike" and call != "declare" and name in JAVAS_NAMES:
            continue  # what Java has made may be called so; there is none here
        with pytest.raises(IgnisError) as refused:
            MAGAZINE_CALLS[call](ready, name)
        assert isinstance(refused.value, ConfigError), (name, refused.value)
    assert ready.magazines.names() == ["m"]
    still_works(ready)


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_other_names(ready: Store, call: str) -> None:
    for name in BAD_NAMES:
        if name == "x" * 129 and (call == "fence" or "epoch" in call or "locks" in call):
            continue  # what is put in front of a leader's name counts too
        if call.startswith("queues") and call != "queues.put" and isinstance(name, str) and len(name) < 200:
            continue  # Java's queues may have names that ours cannot have
        with pytest.raises(ConfigError):  # on their way to a broker some cannot even be encoded
            OTHER_CALLS[call](ready, name)
    assert ready.queues.list() == []
    still_works(ready)


@pytest.mark.parametrize("call", TEXT_CALLS)
def test_texts(ready: Store, call: str) -> None:
    for text in BAD_TEXTS:
        with pytest.raises(ConfigError):  # on their way to a broker some cannot even be encoded
            TEXT_CALLS[call](ready, text)
    still_works(ready)


def test_a_sideline_is_no_queue(store: Store) -> None:
    with pytest.raises(InvalidNameError, match="sideline"):
        store.queues.put(QueueRecord("q_SIDELINE"))


@pytest.mark.parametrize(
    "change",
    [
        {"shards": 8.0},
        {"shards": "8"},
        {"extra": {"x": object()}},
        {"extra": {"x": "y" * 70_000}},
        {"swept_count": 1 << 64},
    ],
)
def test_a_record_that_could_not_be_read_again_is_refused(store: Store, change: dict[str, Any]) -> None:
    store.queues.put(QueueRecord("good"))
    with pytest.raises((ConfigError, TypeError, OverflowError)):
        store.queues.put(QueueRecord("bad", **change))
    with pytest.raises((ConfigError, TypeError, OverflowError)):
        store.queues.update("good", lambda record: vars(record).update(change))
    assert store.queues.list() == [QueueRecord("good")]


def test_a_record_keeps_its_name(store: Store) -> None:
    for name in ("one", "other"):
        store.queues.put(QueueRecord(name))
    with pytest.raises((ConfigError, BadRequestError), match="one"):
        store.queues.update("one", lambda record: vars(record).update(name="other", stuck_after_s=1))
    assert store.queues.list() == [QueueRecord("one"), QueueRecord("other")]


@pytest.mark.parametrize("shards", [True, 8.0, "8", None, -1, 1 << 64])
def test_shards_are_a_whole_number(ready: Store, shards: Any) -> None:
    with pytest.raises(ConfigError):
        ready.magazines.declare("n", shards)
    assert ready.magazines.names() == ["m"]


@pytest.mark.parametrize(
    "ttl_s", [1e300, pytest.param(10**5_000, id="huge"), float("inf"), float("nan"), 0, -1, True, "5", None, 1 << 80]
)
def test_times_to_live(ready: Store, ttl_s: Any) -> None:
    with pytest.raises(ConfigError):
        ready.locks.acquire("l", "me", ttl_s)
    assert ready.locks.get("l") is None
    still_works(ready)


def test_all_names_at_their_limits_fit_together(kind: Kind) -> None:
    if kind.name == "aerospike":
        pytest.skip("its set names leave room for shorter ones, which it says when it is opened")
    longest = "x" * 128
    store = kind.open(client_id="c" * 128, farm_id="f" * 128)
    store.magazines.declare(f"{longest}_SIDELINE", 1)
    assert store.magazines.names() == [f"{longest}_SIDELINE"]
    store.queues.put(QueueRecord(longest))
    assert [one.name for one in store.queues.list()] == [longest]
    assert store.locks.acquire("l" * 200, "o" * 255, 5) is not None
    assert store.locks.next_epoch("e" * 200) == 1
    table = store.locks.table(f"DC#{'f' * 128}#{'s' * 32}", "f" * 128)
    assert table.acquire(f"{'c' * 128}#{'i' * 200}", "me", 5) is not None
    assert store.arrays.enqueue(longest, "b" * 15, [1, 2]) == 2
    assert store.arrays.dequeue(longest, "b" * 15, 5) == [1, 2]


@pytest.mark.parametrize(
    "epoch", [-1, 1 << 63, (1 << 63) - 1, pytest.param(10**5_000, id="huge"), 1.5, True, "5", None]
)
def test_epochs_leave_room_for_those_that_follow(ready: Store, epoch: Any) -> None:
    with pytest.raises((ConfigError, BadRequestError)):
        ready.locks.raise_epoch("s", epoch)
    assert [ready.locks.next_epoch("s") for _ in range(2)] == [1, 2]
    still_works(ready)


def test_locks_and_epochs_have_the_same_names_in_every_store(kind: Kind) -> None:
    store = kind.open()
    for name in ("a", "...", "a@b", "@", "x" * 200):
        assert store.locks.acquire(name, "me", 5) is not None, name
        assert store.locks.next_epoch(name) == store.locks.epoch(name) == 1, name
    longest = "t" * (
        63 - len("#tokens") if kind.name == "aerospike" else 170
    )  # a set's name there, which has a limit of its own
    for name in ("DC#f#t", "any text", "\u00e9", longest):
        table = store.locks.table(name, "f")
        assert table.acquire("ignis#any text / \u00e9", "me", 5) is not None, name
