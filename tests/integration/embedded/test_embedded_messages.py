"""Messages of the store over the engine: what the contract suite does not ask, because it is of this store alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ignis.errors import ConfigError, InvalidNameError, QueueMismatchError, StaleEpochError
from ignis.native import PackedBatch, Record, encode_record
from ignis.storage import open_store
from ignis.storage.base import Claim, Fence, FireResult, Owner, Process, Store, Transfer
from ignis.storage.embedded import catalogue, transfers
from ignis.storage.embedded.catalogue import MOST_SHARDS
from ignis.storage.embedded.keys import epoch_key, read_fence
from ignis.storage.purging import PURGE_BATCH
from ignis.storage.write_batch import WriteBatch

pytestmark = pytest.mark.integration


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/store"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


def batch(*bodies: str) -> PackedBatch:
    return PackedBatch.pack([encode_record(body.encode()) for body in bodies])


def bodies(result: FireResult) -> list[str]:
    return [Record(record or b"").body.decode() for claim in result.claims for record in claim.records]


def pointers(result: FireResult) -> dict[int, Sequence[int]]:
    return {claim.shard: claim.pointers for claim in result.claims}


# -- the catalogue


def test_more_shards_by_another_handle_are_seen(url: str, store: Store) -> None:
    """What a handle remembers of a magazine is no reason to pass over what others have put there."""
    store.magazines.declare("m", 2)
    assert store.magazines.fire("m", 1, "me").claims == []
    with open_store(url) as other:
        other.magazines.declare("m", 4)
        other.magazines.load("m", [(3, batch("a", "b", "c"))], None)
        fired = store.magazines.fire("m", 1, "me")
        assert pointers(fired) == {3: range(1, 2)}
        assert store.magazines.delete("m", pointers(fired)) == 1
        assert bodies(store.magazines.fire("m", 1, "me", shards=[3])) == ["b"]
        assert len(store.magazines.metadata("m")) == 4
        other.magazines.delete("m", {3: [2, 3]})
        other.magazines.declare("m", 2)
    with pytest.raises(ConfigError, match="shard 3 of magazine 'm', which has 2"):
        store.magazines.load("m", [(3, batch("d"))], None)
    assert store.magazines.delete("m", {3: [1], 0: [1]}) == 0


def test_more_shards_than_there_can_be(store: Store) -> None:
    with pytest.raises(ConfigError, match=f"shards = {MOST_SHARDS + 1} of magazine 'm' is over {MOST_SHARDS}"):
        store.magazines.declare("m", MOST_SHARDS + 1)
    store.magazines.declare("m", MOST_SHARDS)
    store.magazines.load("m", [(MOST_SHARDS - 1, batch("a"))], None)
    assert bodies(store.magazines.fire("m", 1, "me")) == ["a"]


@pytest.mark.parametrize(("mine", "theirs"), [("sync", "none"), ("none", "sync")])
@pytest.mark.parametrize("loaded", [False, True])
def test_two_who_declare_it_in_two_classes_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, mine: str, theirs: str, loaded: bool
) -> None:
    """One stays, whoever looks when; and never the one of two that is empty while the other holds a message."""
    directory = store.directory  # type: ignore[attr-defined]
    directory.log(theirs)
    real = catalogue.Catalogue._elsewhere
    looks: list[str] = []

    def between(self: catalogue.Catalogue, name: str, durability: str) -> list[str]:
        found = real(self, name, durability)
        looks.append(durability)
        if len(looks) == 1:  # the other one has looked as well, and is quicker
            number = directory.log(theirs).declare("local/ignis/m", 1, 0)
            if loaded:
                directory.log(theirs).load(number, [(0, batch("a"))], durable=False)
        return found

    monkeypatch.setattr(catalogue.Catalogue, "_elsewhere", between)
    refused = loaded or theirs == "sync"
    if refused:
        with pytest.raises(QueueMismatchError, match=theirs):
            store.magazines.declare("m", 1, mine)
    else:
        store.magazines.declare("m", 1, mine)
    left = [one for one in ("sync", "none") if directory.log(one).find("local/ignis/m") is not None]
    assert left == [theirs if refused else mine]
    assert store.magazines.names() == ["m"]


# -- owners


def test_the_longest_owner_with_what_says_that_it_lives(store: Store) -> None:
    store.magazines.declare("m", 1)
    store.magazines.load("m", [(0, batch("a", "b"))], None)
    plain, foreign = "x" * 1_024, Owner("y" * 1_024, Process(1 << 31, 1 << 62, 1 << 62, "f" * 36))
    assert store.magazines.fire("m", 1, plain).total() == 1
    assert store.magazines.fire("m", 1, foreign).total() == 1
    assert set(store.magazines.claimants("m")) == {plain, str(foreign)}
    with pytest.raises(InvalidNameError):
        store.magazines.fire("m", 1, "x" * 1_025)


# -- purging over gaps


def test_a_purge_steps_over_what_exists(url: str) -> None:
    """Each opening leaves 2**24 pointers out, and more. A step over numbers would need at least 1,677 steps for each."""
    for n in range(3):
        with open_store(url) as store:
            store.magazines.declare("m", 2)
            store.magazines.load("m", [(0, batch(f"a{n}", f"b{n}"))], None)
    with open_store(url) as store:
        store.magazines.fire("m", 1, "me")
        step = store.magazines.purge("m", 2, in_flight=True)
        steps, waiting, claimed = 1, step.waiting, step.in_flight
        while step.left:
            step = store.magazines.purge("m", 2, in_flight=True, left=step.left)
            steps, waiting, claimed = steps + 1, waiting + step.waiting, claimed + step.in_flight
        assert (waiting, claimed) == (5, 1)
        assert steps <= 8
        store.magazines.load("m", [(1, batch(*map(str, range(25_000))))], None)
        step = store.magazines.purge("m")
        assert step.waiting == PURGE_BATCH
        assert list(step.left) == [1]


def test_claims_over_a_gap_are_runs_of_their_own(url: str) -> None:
    for n in range(2):
        with open_store(url) as store:
            store.magazines.declare("m", 1)
            store.magazines.load("m", [(0, batch(f"a{n}", f"b{n}"))], None)
    with open_store(url) as store:
        runs = store.magazines.claim("m", 10, "job")
        assert [(run.last - run.first + 1, run.messages) for run in runs] == [(2, 2), (2, 2)]
        assert store.magazines.held("m", "job") == runs
        assert store.magazines.peek_columns("m", 0, range(1, runs[-1].last + 1)).bodies == b"a0b0a1b1"


# -- fences over two logs


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_an_old_leader_that_was_overtaken_between_look_and_write(
    store: Store, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Epochs live in another log than these messages: an entry here is fenced all the same."""
    magazines = store.magazines
    magazines.declare("m", 1, durability)
    magazines.load("m", [(0, batch("a", "b"))], None)
    magazines.fire("m", 2, "me")
    old = Fence("sweeper", store.locks.next_epoch("sweeper"))
    real = read_fence
    overtaken: list[int] = []

    def stopped(*args: object) -> object:
        found = real(*args)  # type: ignore[arg-type]
        if not overtaken:
            overtaken.append(0)
            new = Fence("sweeper", store.locks.next_epoch("sweeper"))
            assert magazines.reload("m", {0: [1]}, new) == 1
        return found

    monkeypatch.setattr(transfers, "read_fence", stopped)
    with pytest.raises(StaleEpochError):
        magazines.reload("m", {0: [2]}, old)
    assert magazines.metadata("m")[0].in_flight == 1
    log = store.directory.log(durability)  # type: ignore[attr-defined]
    assert log.get_key(epoch_key(store.scope, "sweeper")) == (2).to_bytes(8, "big")  # type: ignore[attr-defined]


def test_a_transfer_of_what_somebody_finishes_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    magazines = store.magazines
    for name in ("a", "b"):
        magazines.declare(name, 1)
    magazines.load("a", [(0, batch("x", "y"))], None)
    magazines.fire("a", 2, "me")
    real = transfers._still_there
    finished: list[int] = []

    def between(*args: object) -> object:
        found = real(*args)  # type: ignore[arg-type]
        if not finished:
            finished.append(magazines.delete("a", {0: [1]}))
        return found

    monkeypatch.setattr(transfers, "_still_there", between)
    items = [Transfer(0, one, encode_record(b"moved%d" % one), 0) for one in (1, 2)]
    assert magazines.transfer("a", "b", items) == 1
    assert bodies(magazines.fire("b", 9, "me")) == ["moved2"]
    assert magazines.metadata("a")[0].in_flight == 0


# -- without waiting


class Given:
    owner = "taker"

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def give(self, batches: Sequence[tuple[int, PackedBatch]], firsts: Sequence[int]) -> None:
        for (shard, one), first in zip(batches, firsts, strict=True):
            self.claims.append(Claim(shard, range(first, first + one.count), list(one.records())))


@pytest.fixture(params=["sync", "none"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_small_writes_are_made_at_once(store: Store, durability: str) -> None:
    magazines = store.magazines
    magazines.declare("m", 2, durability)
    load, bad, gone = (
        WriteBatch("m", [(0, batch("a", "b"))]),
        WriteBatch("m", [(5, batch("c"))]),
        WriteBatch("m", pointers={0: [1]}),
    )
    unflushed = magazines.try_together([load, bad, gone, WriteBatch("unknown", [(0, batch("d"))])])
    assert (load.done, load.firsts, load.error) == (True, [1], None)
    assert (gone.done, gone.count) == (True, 1)
    assert not bad.done, "for who may wait, and is told why it cannot be"
    assert load.durable == gone.durable == (durability == "none")
    assert (unflushed is not None) == (durability == "sync")
    if unflushed is not None:
        log = store.directory.log("sync")  # type: ignore[attr-defined]
        assert log.figures()["durable"] < log.figures()["end"]
        unflushed.flush()
        assert log.figures()["durable"] == log.figures()["end"]
    fired = magazines.try_fire("m", 9, "me")
    assert fired is not None
    assert bodies(fired) == ["b"]


def test_who_waits_is_given_what_is_loaded(store: Store, durability: str) -> None:
    magazines = store.magazines
    magazines.declare("m", 2, durability)
    taker = Given()
    first = WriteBatch("m", [(0, batch("a", "b")), (1, batch("c"))], taker=taker)
    magazines.try_together([first])
    assert first.given
    assert [(claim.shard, list(claim.pointers)) for claim in taker.claims] == [(0, [1, 2]), (1, [1])]
    assert [Record(one or b"").body for claim in taker.claims for one in claim.records] == [b"a", b"b", b"c"]
    assert set(magazines.claimants("m")) == {"taker"}
    magazines.load("m", [(0, batch("older"))], None)
    second = WriteBatch("m", [(0, batch("younger"))], taker=taker)
    magazines.try_together([second])
    assert (second.done, second.given, len(taker.claims)) == (True, False, 2)
    assert bodies(magazines.fire("m", 9, "me")) == ["older", "younger"]


def test_expired_messages_are_left_to_those_who_may_wait(store: Store) -> None:
    magazines = store.magazines
    magazines.declare("m", 2, "none")
    magazines.load("m", [(0, batch("short"))], 0.01)
    time.sleep(0.03)
    assert magazines.try_fire("m", 9, "me") is None
    magazines.load("m", [(1, batch("long"))], None)
    fired = magazines.try_fire("m", 9, "me")
    assert fired is not None
    assert (bodies(fired), fired.expired, fired.more) == (["long"], 0, True)
    assert magazines.fire("m", 9, "me").expired == 1


def test_nothing_is_begun_on_a_store_that_is_being_closed(url: str) -> None:
    store = open_store(url)
    store.magazines.declare("m", 1)
    store.close()
    write = WriteBatch("m", [(0, batch("a"))])
    assert store.magazines.try_together([write]) is None
    assert not write.done
    assert store.magazines.try_fire("m", 1, "me") is None


# -- damage


def test_a_damaged_batch_never_delivers_anything_wrong(url: str, tmp_path: Path) -> None:
    """Whatever byte of it is another one: a record is what it was, or None."""
    texts = ["first", "second" * 20, "third"]
    size = len(memoryview(batch(*texts)))
    with open_store(url) as store:
        store.magazines.declare("m", 1)
        records = [encode_record(text.encode()) for text in texts]
        sound = broken = 0
        for offset in [*range(48), *range(48, size, 7)]:
            first = store.magazines.load("m", [(0, PackedBatch.pack(records))], None)[0]
            end = store.directory.log("sync").figures()["end"]  # type: ignore[attr-defined]
            with (tmp_path / "store" / "sync" / "log-0000000000000001-0000000000000001").open("r+b") as opened:
                # The header and the index stand before the records.
                begin = opened.read(end + 4_096).rindex(records[0]) - 24 - 8 * len(texts)
                opened.seek(begin + offset)
                byte = opened.read(1)
                opened.seek(begin + offset)
                opened.write(bytes([byte[0] ^ 0x41]))
            result = store.magazines.fire("m", 9, "me")
            assert pointers(result) == {0: range(first, first + 3)}
            for record, was in zip(result.claims[0].records, records, strict=True):
                assert record in (None, was)
                sound, broken = sound + (record == was), broken + (record is None)
            found = store.magazines.peek("m", pointers(result))[0]
            assert list(found.values()) == list(result.claims[0].records)
            store.magazines.delete("m", pointers(result))
        assert sound > 20
        assert broken > 30


# -- closing


def test_a_close_ends_a_wait(url: str) -> None:
    store = open_store(url)
    store.magazines.declare("m", 1)
    seen = store.magazines.wait("m", -1, 0)
    ended = threading.Event()

    def wait() -> None:
        store.magazines.wait("m", seen, 60)
        ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    store.close(20)
    assert ended.wait(30)
    assert time.monotonic() - began < 10
