"""Writes and claims of the embedded store that never wait: `try_together`, `try_fire`, and what they leave for later.

What each call does by itself is in `test_embedded_messages` and in the contract suite.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import StoreFailedError, StoreFullError
from ignis.native import PackedBatch
from ignis.storage.base import Claim, FireResult, Store
from ignis.storage.write_batch import DirectReceiver, WriteBatch
from tests.support.embedded import (
    bodies,
    body,
    held_by_another,
    lose_segment,
    open_at,
    record,
    refuse_writes,
    resting,
    settle,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_at(path) as opened:
        for durability in ("sync", "none"):
            opened.magazines.declare(durability, 2, durability)
        settle(opened)
        yield opened


def places(result: FireResult) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for claim in result.claims:
        found.setdefault(claim.shard, []).extend(claim.pointers)
    return found


def load(magazine: str, *texts: str, shard: int = 0, taker: DirectReceiver | None = None) -> WriteBatch:
    return WriteBatch(magazine, [(shard, PackedBatch.pack([record(text) for text in texts]))], 60.0, taker=taker)


def figures(store: Store, durability: str = "sync") -> dict[str, int]:
    found: dict[str, int] = store.directory.log(durability).figures()  # type: ignore[attr-defined]
    return found


class Someone:
    """A taker that notes what it is given."""

    owner = "someone"

    def __init__(self) -> None:
        self.given: list[Claim] = []

    def give(self, batches: Sequence[tuple[int, PackedBatch]], firsts: Sequence[int]) -> None:
        for (shard, batch), first in zip(batches, firsts, strict=True):
            self.given.append(Claim(shard, range(first, first + batch.count), list(batch.records())))

    @property
    def texts(self) -> list[str | None]:
        return [body(one) for claim in self.given for one in claim.records]


@pytest.mark.parametrize("durability", ["sync", "none"])
def test_loads_and_deletes_are_made_together(store: Store, durability: str) -> None:
    """One flush serves all of them."""
    magazines = store.magazines
    magazines.load_records(durability, 0, [record("old")])
    found = magazines.fire(durability, 1, "me")
    one, other = load(durability, "a", "b"), load(durability, "c", shard=1)
    gone = WriteBatch(durability, pointers=places(found))
    unflushed = magazines.try_together([one, other, gone])
    assert [(write.done, write.error) for write in (one, other, gone)] == [(True, None)] * 3
    assert gone.count == 1
    assert (unflushed is None) == one.durable == other.durable == gone.durable == (durability == "none")
    if unflushed is not None:
        unflushed.flush()
        assert figures(store)["durable"] == figures(store)["end"]
    claimed = magazines.try_fire(durability, 10, "me")
    assert claimed is not None
    assert sorted(str(body(data)) for claim in claimed.claims for data in claim.records) == ["a", "b", "c"]
    assert [claim.pointers[0] for claim in sorted(claimed.claims)] == [one.firsts[0], other.firsts[0]]


def test_an_error_of_one_write_is_no_other_ones(path: Path) -> None:
    with open_at(path, max_store_bytes=1 << 20) as store:
        store.magazines.declare("m", 1)
        store.magazines.load_records("m", 0, [record("x" * 1_000)] * 1_000)
        found = store.magazines.fire("m", 10, "me")
        wrong, right = load("m", "y" * 300_000), WriteBatch("m", pointers=places(found))
        unflushed = store.magazines.try_together([wrong, right])
        assert isinstance(wrong.error, StoreFullError)
        assert (wrong.done, right.done, right.error, right.count) == (True, True, None, 10)
        assert unflushed is not None
        unflushed.flush()
        assert len(bodies(store, "m")) == 990


def test_what_would_have_to_wait_for_another_process_is_not_begun(store: Store, path: Path) -> None:
    magazines = store.magazines
    magazines.load_records("none", 0, [record("first")])
    taker = Someone()
    writes = [load("none", "a", taker=taker), WriteBatch("none", pointers={0: [1]})]
    with held_by_another(path, "none") as held:
        assert magazines.try_together(writes) is None
        assert [write.done for write in writes] == [False, False]
        assert taker.given == []
        assert magazines.try_fire("none", 1, "me") is None
        sync = load("sync", "other")
        unflushed = magazines.try_together([sync])
        assert sync.done, "another log's lock is another one"
        assert held()
    assert unflushed is not None
    unflushed.flush()
    assert writes[0].batches is not None
    magazines.load("none", writes[0].batches, writes[0].ttl_s)
    assert bodies(store, "none") == ["first", "a"]


def test_a_flush_does_not_wait_for_who_writes(store: Store, path: Path) -> None:
    """Though another process holds the log for as long as it likes."""
    unflushed = store.magazines.try_together([load("sync", "a")])
    assert unflushed is not None
    with held_by_another(path, "sync") as held:
        unflushed.flush()
        assert held()
    assert bodies(store, "sync") == ["a"]


def test_deletes_leave_no_claims(store: Store) -> None:
    magazines = store.magazines
    for turn in range(3):
        magazines.try_together([load("none", f"{turn}")])
        found = magazines.try_fire("none", 1, "me")
        assert found is not None
        assert magazines.claimants("none") != {}
        gone = WriteBatch("none", pointers=places(found))
        magazines.try_together([gone])
        assert gone.count == 1
        assert magazines.claimants("none") == {}
    assert [state.in_flight for state in magazines.metadata("none")] == [0, 0]


# -- handing over


@pytest.mark.parametrize("durability", ["sync", "none"])
def test_a_taker_has_the_messages_before_the_load_returns(store: Store, durability: str) -> None:
    taker = Someone()
    write = load(durability, "a", "b", taker=taker)
    before = store.magazines.wait(durability, -1, 0)
    unflushed = store.magazines.try_together([write])
    assert (write.given, write.done, write.error) == (True, True, None)
    assert taker.texts == ["a", "b"]
    assert store.magazines.wait(durability, before, 0) == before, "nobody else was woken"
    assert store.magazines.fire(durability, 10, "me").claims == []
    if unflushed is not None:
        unflushed.flush()
    state = store.magazines.metadata(durability)[0]
    assert (state.pending, state.in_flight) == (0, 2)
    found = store.magazines.abandoned(durability, 0, 1 << 60, 10)
    assert [one.owner for one in found] == ["someone", "someone"]
    store.magazines.delete(durability, {claim.shard: claim.pointers for claim in taker.given})
    assert bodies(store, durability) == []


@pytest.mark.parametrize("durability", ["sync", "none"])
def test_what_could_not_be_stored_is_given_to_nobody(store: Store, path: Path, durability: str) -> None:
    taker = Someone()
    store.magazines.load_records(durability, 1, [record("there")])
    write = load(durability, "a", taker=taker)
    with resting(store):
        refuse_writes(path, durability)
        assert store.magazines.try_together([write]) is None
    assert (write.given, write.done, taker.given) == (False, True, [])
    assert isinstance(write.error, StoreFailedError)
    assert bodies(store, durability) == ["there"]
    # At once again as soon as somebody who may wait has made the next file.
    store.magazines.load_records(durability, 1, [record("next")])
    again = load(durability, "b", taker=taker)
    unflushed = store.magazines.try_together([again])
    assert (again.done, again.given, taker.texts) == (True, True, ["b"])
    if unflushed is not None:
        unflushed.flush()
    store.close()
    with open_at(path) as reopened:
        assert bodies(reopened, durability) == ["b", "there", "next"]


# -- durability


def as_the_disk_has_it(path: Path, copy: Path) -> Path:
    """What a power cut leaves is in no shared memory: the files without those that are made anew at each opening."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("control-*", "tmp-*", "owners"))
    return copy


def test_a_write_is_on_the_disk_when_its_flush_has_returned(store: Store, path: Path, tmp_path: Path) -> None:
    durable = figures(store)["durable"]
    one, other = (store.magazines.try_together([load("sync", text)]) for text in "ab")
    assert one is not None
    assert other is not None
    assert figures(store)["durable"] == durable < figures(store)["end"]
    one.flush()
    assert figures(store)["durable"] == figures(store)["end"], "it took the later write along"
    with resting(store):
        lose_segment(path, "sync")
        other.flush()  # has nothing to do, and so meets no error
    with open_at(as_the_disk_has_it(path, tmp_path / "copy")) as again:
        assert bodies(again, "sync") == ["a", "b"]


def test_after_a_flush_that_failed_nothing_is_acknowledged_or_built_upon(store: Store, path: Path) -> None:
    one, other = (store.magazines.try_together([load("sync", text)]) for text in "ab")
    assert one is not None
    assert other is not None
    generation = figures(store)["generation"]
    with resting(store):
        lose_segment(path, "sync")
        with pytest.raises(StoreFailedError):
            one.flush()
    with pytest.raises(StoreFailedError):
        other.flush()  # the disk works again; a flush that says so would lie about what came before
    store.magazines.load_records("sync", 0, [record("c")])
    assert figures(store)["generation"] > generation, "in a new file"
    unflushed = store.magazines.try_together([load("sync", "d")])
    assert unflushed is not None
    unflushed.flush()
    assert bodies(store, "sync") == ["c", "d"]
    store.close()
    with open_at(path) as again:
        assert bodies(again, "sync") == ["c", "d"]
        again.magazines.load_records("sync", 0, [record("e")])
        assert bodies(again, "sync") == ["c", "d", "e"]


def test_what_a_flush_that_failed_left_in_memory_is_not_lost(store: Store, path: Path) -> None:
    """Who made the next file finds it there, and says that all is well."""
    unflushed: Any = store.magazines.try_together([load("sync", "a")])
    generation = figures(store)["generation"]
    with resting(store):
        refuse_writes(path, "sync")
        with pytest.raises(StoreFailedError):
            store.magazines.load_records("sync", 0, [record("refused")])
    unflushed.flush()
    assert figures(store)["generation"] == generation + 1
    assert bodies(store, "sync") == ["a"]
    store.close()
    with open_at(path) as again:
        assert bodies(again, "sync") == ["a"]
