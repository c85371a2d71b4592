"""Writes and claims of the embedded store that never wait: `try_together`, `try_fire`, and what they leave for later."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ignis.errors import StoreFailedError
from ignis.native import PackedBatch
from ignis.storage.base import Claim, FireResult, Store
from ignis.storage.embedded import claims, journal
from ignis.storage.embedded.steady import Steady
from ignis.storage.together import Taker, Write
from tests.integration.embedded_support import (
    Child,
    bodies,
    body,
    forever,
    in_child,
    open_at,
    record,
    restart_machine,
)
from tests.support import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _flush_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No background flush: it holds the writer lock now and then."""
    monkeypatch.setattr(Steady, "_loop", lambda self: None)


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_at(path) as opened:
        for durability in ("sync", "none"):
            opened.magazines.declare(durability, 2, durability)
        for durability in ("sync", "none"):
            # Once as usual: environments are opened, names remembered, files grown.
            opened.magazines.load_records(durability, 0, [record("first")])
            warm = opened.magazines.fire(durability, 10, "me")
            opened.magazines.delete(durability, places(warm))
        yield opened


def places(result: FireResult) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for claim in result.claims:
        found.setdefault(claim.shard, []).extend(claim.pointers)
    return found


def load(magazine: str, *texts: str, shard: int = 0, taker: Taker | None = None) -> Write:
    return Write(magazine, [(shard, PackedBatch.pack([record(text) for text in texts]))], 60.0, taker=taker)


def keeper(store: Store) -> Any:
    return store.directory.data("sync").steady  # type: ignore[attr-defined]


def claims_left(store: Store, magazine: str) -> int:
    directory = store.directory  # type: ignore[attr-defined]
    info = store.magazines._find(magazine)  # type: ignore[attr-defined]
    with directory.claims.reading() as txn:
        return len(list(claims.claims_of(txn, info.id)))


class Someone:
    """A taker that notes what it is given."""

    owner = "someone"

    def __init__(self) -> None:
        self.given: list[Claim] = []

    def give(self, claims: Sequence[Claim]) -> None:
        self.given += claims

    @property
    def texts(self) -> list[str | None]:
        return [body(one) for claim in self.given for one in claim.records]


@pytest.mark.parametrize("durability", ["sync", "none"])
def test_loads_and_deletes_are_made_together(store: Store, durability: str) -> None:
    magazines = store.magazines
    one, other = load(durability, "a", "b"), load(durability, "c", shard=1)
    unflushed = magazines.try_together([one, other])
    assert (one.done, other.done, one.error, other.error) == (True, True, None, None)
    assert (unflushed is None) == one.durable == other.durable == (durability == "none")
    found = magazines.try_fire(durability, 10, "me")
    assert found is not None
    assert sorted(str(body(data)) for claim in found.claims for data in claim.records) == ["a", "b", "c"]
    assert [claim.pointers[0] for claim in sorted(found.claims)] == [one.firsts[0], other.firsts[0]]
    if unflushed is not None:
        unflushed.flush()
    before = store.stats()["commits"]
    gone, again = Write(durability, pointers=places(found)), load(durability, "d")
    rest = magazines.try_together([gone, again])
    assert (gone.count, again.done) == (3, True)
    assert store.stats()["commits"] == int(before) + 1
    if rest is not None:
        rest.flush()
    assert bodies(store, durability) == ["d"]


def test_an_error_of_one_write_is_no_other_ones(store: Store) -> None:
    wrong, right = load("sync", "x", shard=9), load("sync", "y")
    unflushed = store.magazines.try_together([wrong, right])
    assert wrong.done
    assert "shard 9" in str(wrong.error)
    assert (right.done, right.error) == (True, None)
    assert unflushed is not None
    unflushed.flush()
    assert bodies(store, "sync") == ["y"]


def test_what_would_have_to_wait_for_another_process_is_not_begun(store: Store, path: Path) -> None:
    reading, writing = os.pipe()

    def hold(say: Any) -> None:
        other = open_at(path)
        environment = other.directory.data("none").env  # type: ignore[attr-defined]
        with environment.writer(), other.directory.claims.writer():  # type: ignore[attr-defined]
            say("held")
            os.read(reading, 1)
        say("released")
        forever()

    with Child(hold) as child:
        assert child.line() == "held"
        write = load("none", "a")
        assert store.magazines.try_together([write]) is None
        assert not write.done
        assert store.magazines.try_fire("none", 1, "me") is None
        os.write(writing, b".")
        assert child.line() == "released"
    assert write.batches is not None
    store.magazines.load("none", write.batches, write.ttl_s)
    assert bodies(store, "none") == ["a"]
    os.close(reading)
    os.close(writing)


def test_while_another_thread_commits_nothing_is_begun(store: Store) -> None:
    with store.directory.data("none").env.writer():  # type: ignore[attr-defined]
        write = load("none", "a")
        assert store.magazines.try_together([write]) is None
        assert not write.done


def test_expired_messages_are_left_to_those_who_may_wait(store: Store) -> None:
    store.magazines.load("none", [(0, PackedBatch.pack([record("old")]))], 0.001)
    over_s = time.time() + 0.01
    eventually(lambda: time.time() > over_s)
    assert store.magazines.try_fire("none", 1, "me") is None
    assert claims_left(store, "none") == 0
    assert store.magazines.fire("none", 1, "me").expired == 1


def test_deletes_leave_claims_that_are_forgotten_later(store: Store) -> None:
    magazines = store.magazines
    for turn in range(3):
        magazines.try_together([load("none", f"{turn}")])
        found = magazines.try_fire("none", 1, "me")
        assert found is not None
        gone = Write("none", pointers=places(found))
        magazines.try_together([gone])
        assert gone.count == 1
        assert claims_left(store, "none") == 1, "that of the claim before is gone, with this one"
    assert magazines.catch_up()
    assert claims_left(store, "none") == 0
    assert not magazines.catch_up()
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
    assert store.magazines.wait(durability, -1, 0) == before, "nobody else was woken"
    nothing = store.magazines.fire(durability, 10, "me")
    assert nothing.claims == []
    if unflushed is not None:
        unflushed.flush()
    state = store.magazines.metadata(durability)[0]
    assert (state.pending, state.in_flight) == (0, 2)
    found = store.magazines.abandoned(durability, 0, 1 << 60, 10)
    assert [one.owner for one in found] == ["someone", "someone"]
    store.magazines.delete(durability, {claim.shard: claim.pointers for claim in taker.given})
    assert bodies(store, durability) == []


def test_older_messages_go_first(store: Store) -> None:
    store.magazines.load_records("none", 0, [record("older")])
    taker = Someone()
    write = load("none", "newer", taker=taker)
    store.magazines.try_together([write])
    assert (write.given, write.done) == (False, True)
    assert taker.given == []
    found = store.magazines.fire("none", 10, "me")
    assert [body(one) for claim in found.claims for one in claim.records] == ["older", "newer"]


def test_a_load_does_not_wait_for_those_who_claim(store: Store) -> None:
    taker = Someone()
    write = load("none", "a", taker=taker)
    with store.directory.claims.writer():  # type: ignore[attr-defined]
        store.magazines.try_together([write])
    assert (write.given, write.done, write.error) == (False, True, None)
    assert bodies(store, "none") == ["a"]
    assert store.magazines.fire("none", 1, "me").total() == 1


def test_what_was_given_and_could_not_be_stored_is_pending_or_nowhere(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, txnid: int, recorder: Any) -> bool:
        raise StoreFailedError("injected")

    taker = Someone()
    write = load("sync", "a", taker=taker)
    with monkeypatch.context() as patched:
        patched.setattr(journal.Journal, "write", fail)
        assert store.magazines.try_together([write]) is None
    assert (write.given, write.done) == (True, True)
    assert isinstance(write.error, StoreFailedError)
    store.close()

    def look(say: Any) -> None:
        with open_at(path) as again:
            found = again.magazines.fire("sync", 10, "me")
            say(str([body(one) for claim in found.claims for one in claim.records]))

    # The claim was not committed: if the message is there it is pending.
    assert in_child(look)[0] in ("['a']", "[]")


# -- durability


def test_a_write_is_on_the_disk_when_its_flush_has_returned(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    real = journal._flush
    monkeypatch.setattr(journal, "_flush", lambda fd: (real(fd), flushed.append(fd)))
    first, second = load("sync", "a"), load("sync", "b")
    one, other = store.magazines.try_together([first]), store.magazines.try_together([second])
    assert one is not None
    assert other is not None
    assert flushed == []
    other.flush()
    assert len(flushed) == 1
    one.flush()
    assert len(flushed) == 1, "the later flush took the earlier write along"
    # What the journal holds is what a power cut leaves: the tree's file is that of the last steady state.
    tree = (path / "sync" / "data.mdb").read_bytes()
    store.close()
    (path / "sync" / "data.mdb").write_bytes(tree)
    restart_machine(path)

    def look(say: Any) -> None:
        with open_at(path) as again:
            say(str(bodies(again, "sync")))

    assert in_child(look) == ["['a', 'b']"]


def test_the_file_that_is_left_is_flushed_before_the_other_one_begins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is appended to the other one, and acknowledged, would lie behind a gap after a power cut."""
    book = keeper(store)._journal
    calls: list[object] = []
    real_flush, real_begin = journal._flush, journal.Journal._begin

    def flush(fd: int) -> None:
        calls.append(fd)
        real_flush(fd)

    def begin(self: journal.Journal, index: int, base: int) -> None:
        calls.append("begin")
        real_begin(self, index, base)

    monkeypatch.setattr(journal, "_flush", flush)
    monkeypatch.setattr(journal.Journal, "_begin", begin)
    unflushed = store.magazines.try_together([load("sync", "a")])
    left = book._fds[book._current]
    assert keeper(store).flush(5)
    assert calls[:2] == [left, "begin"]
    assert unflushed is not None
    calls.clear()
    unflushed.flush()
    assert calls == [], "it was flushed on the way"


def test_after_a_flush_that_failed_nothing_is_acknowledged_or_built_upon(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    one, other = (store.magazines.try_together([load("sync", text)]) for text in "ab")
    assert one is not None
    assert other is not None
    with monkeypatch.context() as patched:
        patched.setattr(journal, "_flush", broken)
        with pytest.raises(StoreFailedError):
            one.flush()
    with pytest.raises(StoreFailedError):
        other.flush()  # the disk works again; a flush that says so would lie about what came before
    with pytest.raises(StoreFailedError, match="reopened"):
        store.magazines.load_records("sync", 0, [record("c")])

    def load_and_look(say: Any) -> None:
        with open_at(path) as again:
            again.magazines.load_records("sync", 0, [record("d")])
            say(str(bodies(again, "sync")[-1]))

    # Opening made everything steady; a process that has the directory open is in `test_embedded_shared_journal`.
    assert in_child(load_and_look) == ["d"]
