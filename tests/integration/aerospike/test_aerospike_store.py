"""What only the Aerospike store has: holes, tombstones, a server that goes away, limits of the server, client calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import (
    ConfigError,
    NamespaceNotFoundError,
    RecordTooLargeError,
    StoreError,
    StoreUnreachableError,
)
from ignis.native import PackedBatch
from ignis.storage import open_store
from ignis.storage.aerospike.options import AerospikeOptions, parse_hosts
from ignis.storage.aerospike.ranges import Ranges
from ignis.storage.base import Store, Transfer
from tests.contract.support import numbered, pointers, record, records, text, texts
from tests.support import WAIT_S, eventually
from tests.support import aerospike as aerospike_support

pytestmark = pytest.mark.integration

FOREVER_MS = 1 << 52


class Place:
    """A fresh store and the bare driver beside it."""

    def __init__(self) -> None:
        self.address = aerospike_support.address()
        self.namespace = self.address.partition("/")[2]
        self.url = aerospike_support.url()
        self.client_id = self.url.partition("client_id=")[2]
        self.client = aerospike_support.raw_client()
        self.opened: list[Store] = []

    def open(self, **options: Any) -> Store:
        self.opened.append(open_store(self.url, **options))
        return self.opened[-1]

    def key(self, name: str, kind: str = "data") -> tuple[str, str, str]:
        return self.namespace, f"local_{self.client_id}_{kind}_set", name

    def reserve(self, shard: int, count: int) -> None:
        """What a producer of ours does first, before it stalls."""
        for kind, bin_name in (("POINTERS", "LOAD_POINTER"), ("POINTERS", "ign_loads"), ("COUNTERS", "LOAD_COUNTER")):
            self.client.increment(self.key(f"m_SHARD_{shard}_{kind}", "meta"), bin_name, count)

    def bins(self, pointer: int) -> dict[str, Any]:
        return dict(self.client.get(self.key(f"m_SHARD_0_{pointer}"))[2])

    def take(self, pointer: int) -> dict[str, Any]:
        """Removes a record behind the store's back; returns its bins."""
        bins = self.bins(pointer)
        self.client.remove(self.key(f"m_SHARD_0_{pointer}"))
        return bins


@pytest.fixture
def place() -> Iterator[Place]:
    one = Place()
    yield one
    for store in one.opened:
        store.close(10)
    one.client.close()
    aerospike_support.forget(one.address, [one.client_id])


# -- holes


def test_a_record_that_comes_late_is_delivered_once(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(3))
    late = place.take(2)
    first = magazines.fire("m", 10, "me")
    assert texts(first) == ["m0", "m2"]
    assert first.holes == {0: [2]}
    place.client.put(place.key("m_SHARD_0_2"), late)
    found = eventually(lambda: magazines.fire("m", 10, "me").claims, "the hole has filled")
    assert [text(one) for one in found[0].records] == ["m1"]
    assert found[0].pointers == [2]
    assert magazines.fire("m", 10, "me").claims == []
    assert magazines.delete("m", {0: [1, 2, 3]}) == 3


def test_holes_do_not_hold_up_what_is_behind_them(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    place.reserve(0, 5)
    magazines.load_records("m", 0, numbered(2))
    assert texts(magazines.fire("m", 10, "me")) == ["m0", "m1"]


def test_a_hole_is_sealed_after_its_grace(place: Place) -> None:
    store = place.open(hole_grace_s=0.05)
    magazines = store.magazines
    magazines.declare("m", 2)
    place.reserve(0, 1)
    assert magazines.fire("m", 10, "me").holes == {0: [1]}
    eventually(lambda: magazines.fire("m", 10, "me") and store.stats()["holes_sealed"] == 1, "the hole is sealed")
    assert place.bins(1)["ign_sealed"] == 1
    assert magazines.peek("m", {0: [1]}) == {}
    assert magazines.scan("m") == []
    one = magazines.metadata("m")[0]
    assert (one.pending, one.in_flight) == (0, 0)
    assert magazines.abandoned("m", 0, FOREVER_MS, 10) == []


def test_a_producer_that_finds_its_pointer_sealed_loads_again(place: Place) -> None:
    store = place.open()
    magazines = store.magazines
    magazines.declare("m", 2)
    # The pointers that the load is going to get.
    for pointer in (1, 3):
        place.client.put(place.key(f"m_SHARD_0_{pointer}"), {"ign_sealed": 1})
    magazines.load_records("m", 0, numbered(3))
    assert sorted(map(str, texts(magazines.fire("m", 10, "me")))) == ["m0", "m1", "m2"]
    assert store.stats()["sealed_loads"] == 2
    assert "data" not in place.bins(1), "a sealed pointer stays sealed"


def test_records_that_came_after_their_consumer_died_are_abandoned(place: Place) -> None:
    """Claimed, not there at that moment, and written later: the claim has waited for it."""
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(2))
    late = place.take(1)
    place.open().magazines.fire("m", 10, "another")
    assert [one.pointer for one in magazines.abandoned("m", 0, FOREVER_MS, 10)] == [2]
    assert magazines.metadata("m")[0].in_flight == 1
    place.client.put(place.key("m_SHARD_0_1"), late)
    found = magazines.abandoned("m", 0, FOREVER_MS, 10)
    assert [(one.pointer, one.owner, text(one.record)) for one in found] == [(1, "another", "m0"), (2, "another", "m1")]


def test_what_was_claimed_and_never_stamped_is_abandoned_by_the_time_it_was_written(place: Place) -> None:
    """Its consumer died between the two calls."""
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(1))
    place.client.put(place.key("m_SHARD_0_POINTERS", "meta"), {"FIRE_POINTER": 1})
    (found,) = magazines.abandoned("m", 0, FOREVER_MS, 10)
    written_ms = place.bins(1)["modified_at"]
    assert (found.pointer, found.owner, found.fired_at_ms) == (1, "", written_ms)
    assert magazines.abandoned("m", 0, written_ms, 10) == []


def test_a_quick_consumer_meets_no_loss(place: Place) -> None:
    """It overtakes a producer of large batches all the time."""
    producer, consumer = place.open(), place.open()
    producer.magazines.declare("m", 4)
    count = 4 * 5 * 1_000
    done = threading.Event()

    def produce() -> None:
        for _ in range(5):
            producer.magazines.load("m", [(shard, PackedBatch.pack(numbered(1_000))) for shard in range(4)], 3_600)
        done.set()

    thread = threading.Thread(target=produce)
    thread.start()
    seen: set[tuple[int, int]] = set()

    def drained() -> bool:
        result = consumer.magazines.fire("m", 2_000, "me")
        taken = {(claim.shard, pointer) for claim in result.claims for pointer in claim.pointers}
        assert not taken & seen
        seen.update(taken)
        assert consumer.magazines.delete("m", pointers(result)) == len(taken)
        return done.is_set() and len(seen) == count

    eventually(drained, "everything has come")
    thread.join(WAIT_S)
    assert [(one.pending, one.in_flight) for one in consumer.magazines.metadata("m")] == [(0, 0)] * 4


# -- marks


def test_what_is_being_moved_is_not_deleted(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.declare("n", 2)
    magazines.load_records("m", 0, numbered(2))
    magazines.fire("m", 9, "me")
    now_ms = int(time.time() * 1000)
    place.client.put(place.key("m_SHARD_0_1"), {"ign_move": now_ms})
    place.client.put(place.key("m_SHARD_0_2"), {"ign_move": now_ms - 3_600_000})
    assert magazines.delete("m", {0: [1]}) == 0
    assert magazines.transfer("m", "n", [Transfer(0, 1, record("x"), 0)], None) == 0
    assert magazines.delete("m", {0: [2]}) == 1, "the mark of a process that died is void"


def test_a_move_that_fails_leaves_the_record_free(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = place.open()
    magazines = store.magazines
    magazines.declare("m", 2)
    magazines.declare("n", 2)
    magazines.load_records("m", 0, numbered(1))
    magazines.fire("m", 9, "me")
    with pytest.raises(RecordTooLargeError):
        magazines.transfer("m", "n", [Transfer(0, 1, record("x" * (aerospike_support.RECORD_LIMIT + 1)), 0)], None)
    assert magazines.delete("m", {0: [1]}) == 1
    assert magazines.fire("n", 9, "me").claims == []


# -- what is stored


def test_a_flipped_bit_is_told(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(3))
    place.client.put(place.key("m_SHARD_0_2"), {"data": b"m7"})
    assert texts(magazines.fire("m", 9, "me")) == ["m0", None, "m2"]
    assert magazines.peek("m", {0: [2]}) == {0: {2: None}}
    assert magazines.abandoned("m", 0, FOREVER_MS, 9)[1].record is None
    assert magazines.reload("m", {0: [2]}) == 1
    assert texts(magazines.fire("m", 9, "me")) == [None], "it stays corrupt, wherever it goes"


def test_a_record_at_another_place_is_told(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(2))
    place.client.put(place.key("m_SHARD_0_1"), place.bins(2))
    assert texts(magazines.fire("m", 9, "me")) == [None, "m1"]


def test_records_of_an_earlier_life_are_dropped(place: Place) -> None:
    """A server without durable deletes may bring them back."""
    store = place.open()
    magazines = store.magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(2))
    old = place.bins(1)
    magazines.drop("m")
    magazines.declare("m", 2)
    place.client.put(place.key("m_SHARD_0_1"), old)
    magazines.load_records("m", 0, records("new"))
    assert texts(magazines.fire("m", 9, "me")) == ["new"]
    assert store.stats()["sealed_loads"] == 1
    assert store.stats()["resurrected_seen"] == 1


@pytest.mark.parametrize("known", ["pointers", "low-water mark", "deletions"])
def test_who_outlives_a_magazine_sees_its_next_life(place: Place, known: str) -> None:
    """What another process keeps of a magazine that was dropped and made again hides nothing of the new one: a Spark worker
    that reads what its driver has claimed, a sweeper."""
    mine, store = place.open().magazines, place.open(settle_s=1)
    other = store.magazines
    mine.declare("m", 1)
    mine.load_records("m", 0, numbered(50))
    if known == "pointers":
        other.metadata("m")
    else:
        other.fire("m", 50, "me")
        assert other.delete("m", {0: range(1, 51)}) == 50
    if known == "low-water mark":
        assert other.abandoned("m", 0, FOREVER_MS, 9) == []
    mine.drop("m")
    mine.declare("m", 1)
    mine.load_records("m", 0, numbered(30))
    assert sum(run.messages for run in mine.claim("m", 30, "spark:job")) == 30
    assert len(other.peek("m", {0: range(1, 31)})[0]) == 30
    assert other.metadata("m")[0].in_flight == 30
    assert len(other.abandoned("m", 0, FOREVER_MS, 100)) == 30
    assert store.stats()["resurrected_seen"] == 0


def test_nothing_below_the_low_water_mark_comes_back(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    magazines.load_records("m", 0, numbered(3))
    old = place.bins(1)
    magazines.delete("m", pointers(magazines.fire("m", 9, "me")))
    assert magazines.abandoned("m", 0, FOREVER_MS, 9) == []
    place.client.put(place.key("m_SHARD_0_1"), old)
    store = place.open()
    assert store.magazines.peek("m", {0: [1]}) == {}
    assert store.magazines.scan("m") == []
    assert store.magazines.metadata("m")[0].in_flight == 0
    assert store.magazines.abandoned("m", 0, FOREVER_MS, 9) == []
    assert store.stats()["resurrected_seen"] == 1


def test_a_record_over_the_limit_is_refused_whole(place: Place) -> None:
    magazines = place.open().magazines
    magazines.declare("m", 2)
    many = [record("a"), record("x" * (aerospike_support.RECORD_LIMIT + 1)), record("b")]
    with pytest.raises(RecordTooLargeError) as caught:
        magazines.load_records("m", 0, many)
    assert caught.value.limit_bytes == aerospike_support.RECORD_LIMIT
    assert caught.value.size_bytes > caught.value.limit_bytes
    assert magazines.fire("m", 9, "me").claims == []


# -- figures


def test_client_calls_of_a_drain(place: Place) -> None:
    store = place.open()
    magazines = store.magazines
    magazines.declare("m", 32)
    many = [record("x" * 256)] * 500
    magazines.load("m", [(shard, PackedBatch.pack(many)) for shard in range(20)], 3_600)
    before = int(store.connection.calls.total())  # type: ignore[attr-defined]
    count = 0
    while (result := magazines.fire("m", 500, "me")).claims:
        count += magazines.delete("m", pointers(result))
    calls = int(store.connection.calls.total()) - before  # type: ignore[attr-defined]
    assert count == 10_000
    assert calls / count <= 0.05


# -- the server


@pytest.fixture
def server() -> Iterator[aerospike_support.Asd]:
    one = aerospike_support.new_server()
    yield one
    one.remove()


def test_workers_go_on_after_the_server_was_killed(server: aerospike_support.Asd, tmp_path: Path) -> None:
    """Acknowledged messages of a namespace on a file come back with the server, and the workers with them."""
    app = ignis.Ignis(f"aerospike://{server.address('durable')}", client_id="restart")
    try:
        queue = app.queue("jobs", int, shards=4)
        seen: set[int] = set()
        queue.handler(lambda number: seen.add(number) or True)
        app.start()
        sent = set(range(50))
        queue.publish_many(sorted(sent))
        eventually(lambda: seen == sent, "all are handled before")
        # The device is written a moment after the memory: what this test is about is the way back.
        time.sleep(1.5)
        server.kill()
        with pytest.raises((StoreUnreachableError, StoreError)):
            queue.publish(-1)
        server.start()

        def published() -> bool:
            try:
                queue.publish(1_000)
            except StoreError:
                return False
            return True

        eventually(published, "publishing works again")
        eventually(lambda: 1_000 in seen, "the workers are back")
        assert app.running
    finally:
        app.close(timeout=5)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:1"):
        open_store("aerospike://127.0.0.1:1/test", retries=1)


def test_the_password_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreUnreachableError) as caught:
        open_store("aerospike://bob:s3cret@127.0.0.1:1/test", retries=1, tls="off")
    told = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r} {caplog.text}"
    assert "s3cret" not in told
    assert "s3cret" not in repr(AerospikeOptions.of({"user": "bob", "password": "s3cret"}))


def test_a_namespace_that_is_not_there(place: Place) -> None:
    with pytest.raises(NamespaceNotFoundError) as caught:
        open_store(place.url.replace(f"/{place.namespace}?", "/nowhere?"))
    assert caught.value.namespace == "nowhere"
    assert place.namespace in caught.value.known


# -- a child


def test_a_child_of_fork_ends_without_its_parents_store(place: Place) -> None:
    """Nor does it hang when the interpreter takes the inherited client apart."""
    code = f"""
import os, sys
from ignis.errors import ForkedHandleError
from ignis.storage import open_store
store = open_store({place.url!r})
store.magazines.declare("m", 1)
pid = os.fork()
if not pid:
    try:
        store.magazines.metadata("m")
    except ForkedHandleError:
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert store.magazines.metadata("m")[0].pending == 0
store.close()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=WAIT_S, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0


# -- options and small parts


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retries": 0}, "retries = 0 is outside 1 to 100"),
        ({"total_timeout_ms": "soon"}, "total_timeout_ms = 'soon' is not a whole number"),
        ({"nonsense": 1}, "unknown store option 'nonsense'"),
        ({"scope": "farm"}, "scope = 'farm' is not one of local, global"),
        ({"socket_timeout_ms": 6_000}, "socket_timeout_ms = 6000 is above total_timeout_ms = 5000"),
        ({"user": "bob"}, "user and password belong together"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        AerospikeOptions.of(options)


def test_default_options() -> None:
    options = AerospikeOptions.of({})
    assert (options.retries, options.sleep_between_retries_ms, options.socket_timeout_ms) == (3, 100, 3_000)
    assert (options.total_timeout_ms, options.max_connections_per_node) == (5_000, 100)
    assert options.threads == 4 * (os.cpu_count() or 1)
    assert not options.uses_tls
    assert AerospikeOptions.of({"user": "a", "password": "b"}).uses_tls


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("a", [("a", 3000)]), ("a:1,b:2", [("a", 1), ("b", 2)]), ("[::1]:5,[::2]", [("::1", 5), ("::2", 3000)])],
)
def test_hosts(text: str, hosts: list[tuple[str, int]]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "a:", "a:0", "a:x", ":3000", "a,,b"])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_hosts(text)


@pytest.mark.parametrize(
    "url", ["aerospike://host", "aerospike:///test", "aerospike://host/a/b", "aerospike://host:x/test"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url)


def test_names_that_make_a_set_too_long() -> None:
    with pytest.raises(ConfigError, match="63"):
        open_store("aerospike://127.0.0.1:1/test", client_id="c" * 60)


def test_ranges_do_what_a_set_does() -> None:
    import random

    rng = random.Random(7)
    ranges, model = Ranges(), set[int]()
    for _ in range(2_000):
        first = rng.randrange(1, 400)
        last = first + rng.randrange(0, 6)
        ranges.add(first, last)
        model |= set(range(first, last + 1))
        begin, end = sorted((rng.randrange(1, 420), rng.randrange(1, 420)))
        assert list(ranges.missing(begin, end)) == [one for one in range(begin, end + 1) if one not in model]
        at = rng.randrange(0, 420)
        expected = at
        while expected + 1 in model:
            expected += 1
        assert ranges.after(at) == expected
        if rng.random() < 0.02:
            low = rng.randrange(1, 300)
            ranges.drop_to(low)
            model = {one for one in model if one > low}
        if rng.random() < 0.01:
            ranges, model = Ranges(), set()


def test_waiters_are_woken_by_a_load_of_another_process(place: Place) -> None:
    one, other = place.open(), place.open()
    one.magazines.declare("m", 2)
    seen = one.magazines.wait("m", -1, 0)
    threading.Timer(0.2, lambda: other.magazines.load_records("m", 1, numbered(1))).start()
    assert one.magazines.wait("m", seen, WAIT_S) != seen
    assert texts(one.magazines.fire("m", 9, "me")) == ["m0"]
