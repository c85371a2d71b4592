"""What is tried without waiting: made like any other write or claim, or not begun at all."""

from __future__ import annotations

import threading

from ignis.errors import ConfigError
from ignis.native import PackedBatch
from ignis.storage.base import MagazineStore, Store
from ignis.storage.write_batch import WriteBatch
from tests.contract.support import batch, numbered, pointers, records, texts


def make(magazines: MagazineStore, *writes: WriteBatch) -> None:
    """At once where that can be done, else as one does who may wait."""
    unflushed = magazines.try_together(writes)
    if unflushed is not None:
        unflushed.flush()
    for write in writes:
        if write.done:
            continue
        if write.batches is None:
            write.count = magazines.delete(write.magazine, write.pointers)
        else:
            write.firsts = magazines.load(write.magazine, write.batches, write.ttl_s)


def test_loads_and_deletes_as_ever(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, records("first"))
    found = magazines.fire("m", 10, "me")
    first, second, gone = (
        WriteBatch("m", [(0, batch("a", "b")), (1, batch("c"))], 60.0),
        WriteBatch("m", [(0, batch("d"))]),
        WriteBatch("m", pointers=pointers(found)),
    )
    make(magazines, first, second, gone)
    assert (first.firsts, second.firsts, gone.count) == ([2, 1], [4], 1)
    rest = magazines.try_fire("m", 10, "me") or magazines.fire("m", 10, "me")
    assert sorted(texts(rest)) == ["a", "b", "c", "d"]
    assert (magazines.try_fire("m", 10, "me") or magazines.fire("m", 10, "me")).claims == []


def test_what_is_wrong_is_refused_or_not_begun(magazines: MagazineStore) -> None:
    write = WriteBatch("m", [(9, batch("a"))])
    magazines.try_together([write])
    assert not write.done or isinstance(write.error, ConfigError)
    unknown = WriteBatch("nothing", [(0, batch("a"))])
    magazines.try_together([unknown])
    assert not unknown.done or unknown.error is not None
    assert magazines.scan("m") == []


def test_threads_that_try_lose_nothing(store: Store) -> None:
    """With others that wait beside them."""
    magazines = store.magazines
    magazines.declare("m", 2, "none")
    each = 150

    def trying() -> None:
        for record in numbered(each, "tried"):
            make(magazines, WriteBatch("m", [(0, PackedBatch.pack([record]))]))

    def waiting() -> None:
        for record in numbered(each, "waited"):
            magazines.load("m", [(1, PackedBatch.pack([record]))], None)

    threads = [threading.Thread(target=target, daemon=True) for target in (trying, trying, waiting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(magazines.scan("m", limit=10_000)) == 3 * each
    taken = 0
    while taken < 3 * each:
        found = magazines.try_fire("m", 20, "me") or magazines.fire("m", 20, "me")
        gone = WriteBatch("m", pointers=pointers(found))
        make(magazines, gone)
        assert gone.count == found.total() > 0
        taken += gone.count
    assert [state.in_flight for state in magazines.metadata("m")] == [0, 0]
