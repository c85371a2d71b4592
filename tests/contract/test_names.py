"""Declaring, dropping, and whose names they are."""

from __future__ import annotations

import pytest

from ignis.errors import ConfigError, InvalidNameError, QueueMismatchError, QueueNotFoundError
from ignis.storage import open_store
from ignis.storage.base import QueueRecord, Store
from tests.contract.support import Kind, batch, drain, numbered, state


def test_declare_is_idempotent(store: Store, durability: str) -> None:
    for _ in range(2):
        store.magazines.declare("m", 4, durability)
    assert store.magazines.names() == ["m"]
    assert len(store.magazines.metadata("m")) == 4


def test_another_durability_is_refused(store: Store) -> None:
    store.magazines.declare("m", 4, "sync")
    with pytest.raises(QueueMismatchError, match="sync"):
        store.magazines.declare("m", 4, "none")


def test_more_shards_later(kind: Kind) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 2)
    magazines.load("m", [(0, batch("a")), (1, batch("b"))], None)
    magazines.fire("m", 1, "me")
    magazines.declare("m", 4)
    magazines.load("m", [(3, batch("c"))], None)
    assert sorted(map(str, drain(magazines, "m"))) == ["b", "c"]
    assert len(kind.reopen().magazines.metadata("m")) == 4


def test_fewer_shards_only_when_the_others_are_empty(store: Store) -> None:
    magazines = store.magazines
    magazines.declare("m", 4)
    magazines.load("m", [(0, batch("a")), (3, batch("b"))], None)
    with pytest.raises(QueueMismatchError, match="4 shards"):
        magazines.declare("m", 2)
    magazines.fire("m", 9, "me")
    with pytest.raises(QueueMismatchError):
        magazines.declare("m", 2)
    magazines.delete("m", {3: [1]})
    magazines.declare("m", 2)
    assert len(magazines.metadata("m")) == 2
    with pytest.raises(ConfigError):
        magazines.load("m", [(3, batch("c"))], None)


def test_pointers_go_on_when_a_shard_comes_back(store: Store) -> None:
    magazines = store.magazines
    magazines.declare("m", 2)
    magazines.load("m", [(1, batch("a", "b"))], None)
    drain(magazines, "m")
    magazines.declare("m", 1)
    magazines.declare("m", 2)
    assert magazines.load("m", [(1, batch("c"))], None) == [3]
    assert drain(magazines, "m") == ["c"]


@pytest.mark.parametrize(("name", "shards", "durability"), [("m", 0, "sync"), ("m", 65_536, "sync"), ("m", 1, "maybe")])
def test_bad_declarations(store: Store, name: str, shards: int, durability: str) -> None:
    with pytest.raises(ConfigError):
        store.magazines.declare(name, shards, durability)
    assert store.magazines.names() == []


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256])
def test_bad_names(store: Store, name: str) -> None:
    with pytest.raises(InvalidNameError):
        store.magazines.declare(name, 1)


def test_names_are_sorted(store: Store) -> None:
    for name in ("b", "a", "c_SIDELINE", "c"):
        store.magazines.declare(name, 1)
    assert store.magazines.names() == ["a", "b", "c", "c_SIDELINE"]


def test_drop_removes_everything(kind: Kind, durability: str) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 2, durability)
    magazines.declare("n", 2, durability)
    for _ in range(5):
        magazines.load("m", [(0, batch(*"abc")), (1, batch("d"))], None)
    magazines.load("n", [(0, batch("stays"))], None)
    magazines.fire("m", 4, "me")
    magazines.delete("m", {0: [1]})
    magazines.drop("m")
    magazines.drop("m")
    assert magazines.names() == ["n"]
    with pytest.raises(QueueNotFoundError):
        magazines.fire("m", 1, "me")
    magazines.declare("m", 2, durability)
    assert [one.load_counter for one in magazines.metadata("m")] == [0, 0]
    magazines = kind.reopen().magazines
    assert magazines.scan("m") == []
    assert drain(magazines, "n") == ["stays"]


def test_a_dropped_magazine_is_gone_for_other_handles_too(kind: Kind) -> None:
    one, other = kind.open(), kind.open()
    one.magazines.declare("m", 1)
    other.magazines.load("m", [(0, batch("a"))], None)
    one.magazines.drop("m")
    with pytest.raises(QueueNotFoundError):
        other.magazines.load("m", [(0, batch("b"))], None)
    one.magazines.declare("m", 1, "none")
    other.magazines.load("m", [(0, batch("c"))], None)
    assert drain(one.magazines, "m") == ["c"]


def test_applications_and_deployments_do_not_see_each_other(kind: Kind) -> None:
    stores = [
        kind.open(), kind.open(client_id="billing"), kind.open(farm_id="west"), kind.open(client_id="billing", farm_id="west"),
    ]  # fmt: skip
    for number, store in enumerate(stores):
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, numbered(number + 1))
        store.queues.put(QueueRecord("q", shards=number + 1))
        assert store.locks.acquire("lock", f"owner{number}", 60) is not None
        for _ in range(number):
            store.locks.next_epoch("scope")
    for number, store in enumerate(stores):
        assert store.magazines.names() == ["m"]
        assert state(store.magazines, "m").pending == number + 1
        assert [one.shards for one in store.queues.list()] == [number + 1]
        held = store.locks.get("lock")
        assert held is not None
        assert held.owner == f"owner{number}"
        assert store.locks.epoch("scope") == number


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "embedded://",
        "memory://?create_now=1",
        "embedded:///x?nonsense=1",
        "embedded:///x?events=1",
        "/tmp/x",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url)


@pytest.mark.parametrize("options", [{"client_id": "a b"}, {"farm_id": ""}, {"nonsense": 1}])
def test_bad_options(kind: Kind, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_store(kind.url, **options)  # type: ignore[arg-type]
