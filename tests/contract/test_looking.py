"""What does not claim: peek, scan, metadata, abandoned, expiry, ages, waiting."""

from __future__ import annotations

import struct
import threading
import time

import pytest

from ignis.errors import ClosedError
from ignis.native import Record
from ignis.storage.base import MagazineStore, Store
from tests.contract.support import Kind, batch, numbered, peeked, record, records, scanned, state, texts, tick

FOREVER_MS = 1 << 52


def test_peek_sees_fired_and_unfired(magazines: MagazineStore) -> None:
    magazines.load_records("m", 1, numbered(3))
    magazines.fire("m", 1, "me")
    assert peeked(magazines.peek("m", {1: [3, 1, 9, 0, -1], 2: [1], 77: [1]})) == {1: {1: "m0", 3: "m2"}}
    assert magazines.peek("m", {}) == {}
    assert texts(magazines.fire("m", 9, "me")) == ["m1", "m2"]


def test_columns_are_what_peek_sees(magazines: MagazineStore) -> None:
    magazines.load("m", [(2, batch(*"abcdefgh")), (0, batch("x")), (2, batch(*"ijkl"))], None)
    magazines.fire("m", 3, "me", shards=[2])
    magazines.delete("m", {2: [1, 3, 4, 11]})
    for lines, end in ((False, ""), (True, "\n")):
        found = magazines.peek_columns("m", 2, range(2, 12), lines=lines)
        seen = magazines.peek("m", {2: range(2, 12)})[2]
        assert (found.rows, found.damaged) == (len(seen), [])
        assert struct.unpack(f"={found.rows}q", found.pointers) == tuple(seen)
        assert found.ids == b"".join(Record(record or b"").id for record in seen.values())
        assert found.bodies.decode() == "".join(f"{text}{end}" for text in "befghij")
    assert magazines.peek_columns("m", 1, range(1, 9)).rows == 0
    assert magazines.peek_columns("m", 2, range(100, 200)).rows == 0


def test_scan_walks_shards_and_pointers(magazines: MagazineStore) -> None:
    magazines.load("m", [(2, batch(*"abc")), (0, batch("x")), (2, batch("d"))], None)
    everything = [(0, 1, "x"), (2, 1, "a"), (2, 2, "b"), (2, 3, "c"), (2, 4, "d")]
    assert scanned(magazines.scan("m")) == everything
    assert scanned(magazines.scan("m", limit=3)) == everything[:3]
    assert scanned(magazines.scan("m", after={2: 2})) == [(0, 1, "x"), (2, 3, "c"), (2, 4, "d")]
    assert scanned(magazines.scan("m", after={0: 1, 2: 4})) == []
    magazines.fire("m", 2, "me", shards=[2])
    magazines.delete("m", {2: [1]})
    assert scanned(magazines.scan("m")) == [(0, 1, "x"), (2, 2, "b"), (2, 3, "c"), (2, 4, "d")]
    assert scanned(magazines.scan("m", pending_only=True)) == [(0, 1, "x"), (2, 3, "c"), (2, 4, "d")]


def test_scan_within_ends_where_the_bytes_do_and_goes_on_there(magazines: MagazineStore) -> None:
    sizes = [300, 20_000, 10, 20_000, *[50] * 200]
    for shard in (0, 2):
        for size in sizes:
            magazines.load("m", [(shard, batch("x" * size))], None)
    everything = magazines.scan("m", limit=10_000)
    by_broker = type(magazines).__module__.startswith("ignis.broker")
    for max_bytes, limit in ((1, 1_000), (1_000, 1_000), (25_000, 50), (1 << 20, 1_000)):
        found: list[tuple[int, int, bytes | None]] = []
        after: dict[int, int] = {}
        while True:
            rows, cut = magazines.scan_within("m", after=after, limit=limit, max_bytes=max_bytes)
            assert len(rows) <= limit
            # A broker's answer has a bound of its own.
            assert by_broker or sum(len(record or b"") for _, _, record in rows[:-1]) <= max_bytes
            found += rows
            after.update({shard: pointer for shard, pointer, _ in rows})
            if not cut and len(rows) < limit:
                break
            assert rows
        assert found == everything, max_bytes
    magazines.fire("m", 3, "me", shards=[0])
    rows, cut = magazines.scan_within("m", after={2: 1 << 62}, limit=10, max_bytes=1 << 20, pending_only=True)
    assert ([row[:2] for row in rows], cut) == ([(0, one) for one in range(4, 14)], False)
    assert magazines.scan_within("m", after={0: 1 << 62, 2: 1 << 62}, limit=10, max_bytes=100) == ([], False)


def test_metadata_counts_per_shard(magazines: MagazineStore) -> None:
    assert [one.load_pointer for one in magazines.metadata("m")] == [0, 0, 0, 0]
    magazines.load_records("m", 1, numbered(5))
    magazines.fire("m", 3, "me")
    magazines.delete("m", {1: [2]})
    one = state(magazines, "m", 1)
    assert (one.shard, one.load_pointer, one.fire_pointer, one.pending, one.in_flight) == (1, 5, 3, 2, 2)
    assert state(magazines, "m", 0).pending == 0


def test_abandoned_by_time(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(4))
    before = tick()
    magazines.fire("m", 3, "worker-7")
    after = tick()
    assert magazines.abandoned("m", 0, before, 10) == []
    found = magazines.abandoned("m", 0, after, 10)
    assert [one.pointer for one in found] == [1, 2, 3]
    assert [one.record for one in found] == [magazines.peek("m", {0: [one]})[0][one] for one in (1, 2, 3)]
    assert {one.owner for one in found} == {"worker-7"}
    assert not any(one.owner_dead for one in found)
    assert all(before <= one.fired_at_ms < after for one in found)
    assert magazines.abandoned("m", 1, after, 10) == []
    assert [one.pointer for one in magazines.abandoned("m", 0, after, 2)] == [1, 2]


def test_abandoned_of_one_owner(magazines: MagazineStore) -> None:
    """Whoever knows that a process is gone asks for its claims by name, however young they are."""
    magazines.load_records("m", 0, numbered(6))
    for owner, count in (("gone", 2), ("living", 2), ("gone", 1)):
        magazines.fire("m", count, owner)
    found = magazines.abandoned("m", 0, 0, 10, owner="gone")
    assert [(one.pointer, one.owner, one.owner_dead) for one in found] == [
        (1, "gone", True),
        (2, "gone", True),
        (5, "gone", True),
    ]
    assert [one.record for one in found] == [magazines.peek("m", {0: [one]})[0][one] for one in (1, 2, 5)]
    assert [one.pointer for one in magazines.abandoned("m", 0, FOREVER_MS, 2, owner="gone")] == [1, 2]
    assert magazines.abandoned("m", 0, FOREVER_MS, 10, owner="nobody") == []
    magazines.delete("m", {0: [1, 2, 5]})
    assert magazines.abandoned("m", 0, FOREVER_MS, 10, owner="gone") == []
    assert [one.pointer for one in magazines.abandoned("m", 0, FOREVER_MS, 10)] == [3, 4]


def test_abandoned_forgets_what_was_finished(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(4))
    magazines.fire("m", 4, "me")
    magazines.delete("m", {0: [1, 3]})
    assert [one.pointer for one in magazines.abandoned("m", 0, FOREVER_MS, 10)] == [2, 4]
    magazines.delete("m", {0: [2, 4]})
    assert magazines.abandoned("m", 0, FOREVER_MS, 10) == []


def test_abandoned_survives_a_reopen(kind: Kind) -> None:
    magazines = kind.open().magazines
    magazines.declare("m", 1)
    magazines.load_records("m", 0, numbered(3))
    magazines.fire("m", 2, "me")
    magazines = kind.reopen().magazines
    assert [one.pointer for one in magazines.abandoned("m", 0, FOREVER_MS, 10)] == [1, 2]


def test_expired_records_are_retired_not_handed_out(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(2, "short"), ttl_s=0.05)
    magazines.load_records("m", 0, numbered(1, "long"), ttl_s=60)
    magazines.load_records("m", 1, numbered(2, "short"), ttl_s=0.05)
    time.sleep(0.1)
    result = magazines.fire("m", 10, "me")
    assert texts(result) == ["long0"]
    assert result.expired == 4
    assert magazines.peek("m", {0: [1, 2], 1: [1, 2]}) == {}
    assert [one.in_flight for one in magazines.metadata("m")] == [1, 0, 0, 0]


def test_expire_retires_heads_up_to_its_limit(magazines: MagazineStore) -> None:
    magazines.load_records("m", 0, numbered(5), ttl_s=0.05)
    magazines.load_records("m", 1, numbered(1))
    magazines.load_records("m", 1, numbered(5), ttl_s=0.05)
    time.sleep(0.1)
    assert magazines.expire("m", 3) == 3
    assert magazines.expire("m") == 2
    assert magazines.expire("m") == 0
    assert (state(magazines, "m").pending, state(magazines, "m").in_flight) == (0, 0)
    assert state(magazines, "m", 1).pending == 6
    result = magazines.fire("m", 10, "me")
    assert (result.total(), result.expired) == (1, 5)


def test_fired_records_do_not_expire(magazines: MagazineStore) -> None:
    for ttl_s in (0.05, 0.5, 5.0):  # a busy machine may need longer from the load to the claim
        first = magazines.load_records("m", 0, numbered(2), ttl_s=ttl_s)
        claimed = magazines.fire("m", 1, "me").total()
        time.sleep(2 * ttl_s)
        expired = magazines.expire("m")
        if claimed:
            break
    assert (claimed, expired) == (1, 1)
    assert peeked(magazines.peek("m", {0: [first, first + 1]})) == {0: {first: "m0"}}
    assert [one.pointer for one in magazines.abandoned("m", 0, FOREVER_MS, 9)] == [first]


def test_the_oldest_pending_record(magazines: MagazineStore) -> None:
    assert magazines.oldest_enqueued_at_us("m") is None
    magazines.load_records("m", 0, [record("b", enqueued_at_us=200), record("c", enqueued_at_us=300)])
    magazines.load_records("m", 3, [record("a", enqueued_at_us=100)])
    assert magazines.oldest_enqueued_at_us("m") == 100
    magazines.fire("m", 9, "me", shards=[3])
    assert magazines.oldest_enqueued_at_us("m") == 200
    magazines.fire("m", 1, "me", shards=[0])
    assert magazines.oldest_enqueued_at_us("m") == 300
    magazines.fire("m", 9, "me")
    assert magazines.oldest_enqueued_at_us("m") is None


def test_wait_reads_and_sees_a_load(magazines: MagazineStore) -> None:
    seen = magazines.wait("m", -1, 0)
    assert magazines.wait("m", seen, 0) == seen
    magazines.load_records("m", 0, records("a"))
    assert magazines.wait("m", seen, 10) != seen


@pytest.mark.parametrize("what", ["load", "wake", "reload", "transfer"])
def test_wait_is_woken(magazines: MagazineStore, what: str) -> None:
    magazines.declare("n", 1)
    magazines.load_records("m", 0, numbered(1))
    magazines.fire("m", 1, "me")
    seen = magazines.wait("m", -1, 0)
    woken: list[int] = []
    thread = threading.Thread(target=lambda: woken.append(magazines.wait("m", seen, 30)))
    thread.start()
    time.sleep(0.05)
    if what == "load":
        magazines.load_records("m", 3, records("x"))
    elif what == "wake":
        magazines.wake("m")
    elif what == "reload":
        magazines.reload("m", {0: [1]})
    else:
        magazines.load_records("n", 0, records("x"))
        from ignis.storage.base import Transfer

        magazines.transfer("n", "m", [Transfer(0, 1, record("x"), 0)], None)
    thread.join(20)
    assert woken
    assert woken[0] != seen


def test_a_wait_ends_when_the_store_is_closed(store: Store, magazines: MagazineStore) -> None:
    seen = magazines.wait("m", -1, 0)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                magazines.wait("m", seen, 30)
        except ClosedError as exc:
            raised.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    store.close(10)
    thread.join(60)
    assert raised
