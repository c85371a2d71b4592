"""Client calls where messages come one by one, and what a claim that is not stamped yet may not lose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ignis
from ignis.storage import open_store
from ignis.storage.aerospike.waits import LONGEST_PAUSE_S, _Bell
from ignis.storage.base import MagazineStore, Store
from tests.conftest import MakeApp
from tests.contract.support import numbered, pointers, text, texts
from tests.support import WAIT_S, eventually
from tests.support import aerospike as aerospike_support

pytestmark = pytest.mark.integration

FOREVER_MS = 1 << 52
SHARDS = 4


class Bench:
    """A consumer's store, a producer's, and the bare driver."""

    def __init__(self) -> None:
        self.address = aerospike_support.address()
        self.url = aerospike_support.url()
        self.client_id = self.url.partition("client_id=")[2]
        self.client = aerospike_support.raw_client()
        self.opened: list[Store] = []
        self.store, self.producer = self.open(), self.open().magazines
        self.magazines: MagazineStore = self.store.magazines
        self.magazines.declare("m", SHARDS)
        self.producer.metadata("m")

    def open(self) -> Store:
        self.opened.append(open_store(self.url))
        return self.opened[-1]

    def calls(self) -> dict[str, int]:
        return dict(self.store.connection.calls)  # type: ignore[attr-defined]

    def bins(self, shard: int, pointer: int) -> dict[str, Any]:
        namespace = self.address.partition("/")[2]
        return dict(self.client.get((namespace, f"local_{self.client_id}_data_set", f"m_SHARD_{shard}_{pointer}"))[2])

    def look(self, limit: int = 100) -> dict[int, list[int]]:
        """One turn of a consumer's loop that has nothing to do."""
        self.magazines.idle("m", self.magazines.wait("m", -1, 0), 0)
        return pointers(self.magazines.fire("m", limit, "me"))


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    yield one
    for store in one.opened:
        store.close(10)
    one.client.close()
    aerospike_support.forget(one.address, [one.client_id])


def used(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {kind: count - before.get(kind, 0) for kind, count in after.items() if count != before.get(kind, 0)}


def test_one_call_a_message_that_comes_alone(bench: Bench) -> None:
    """Three before: the look, the stamp, the acknowledgement; and two to five looks that only asked."""
    bench.look()
    before = bench.calls()
    with ThreadPoolExecutor(1) as acknowledger:
        waiting = []
        for number in range(40):
            bench.producer.load_records("m", number % SHARDS, numbered(1))
            got = bench.look()
            assert sum(map(len, got.values())) == 1
            waiting.append(acknowledger.submit(bench.magazines.delete, "m", got))
        assert [one.result(WAIT_S) for one in waiting] == [1] * 40
    calls = used(before, bench.calls())
    assert calls["claim"] == 40
    assert "take" not in calls, "the records came with the claims"
    assert sum(one.in_flight + one.pending for one in bench.magazines.metadata("m")) == 0


def test_acknowledgements_travel_with_the_next_look(bench: Bench) -> None:
    bench.look()
    bench.producer.load_records("m", 1, numbered(1))
    got = bench.look()
    riding = bench.magazines._catalogue.get("m").trickle.rides  # type: ignore[attr-defined]
    before = bench.calls()
    with ThreadPoolExecutor(1) as acknowledger:

        def travelled() -> bool:
            done = acknowledger.submit(bench.magazines.delete, "m", got)
            # Whichever is quicker: a delete that waits too long for a look goes by itself.
            while not riding and not done.done():
                pass
            bench.look()
            return done.result(WAIT_S) == 1

        assert travelled()
    assert used(before, bench.calls()).get("delete", 0) <= 1
    assert bench.magazines.peek("m", got) == {}


@pytest.mark.parametrize(("rate", "most"), [(100, 1.5), (1_000, 0.3)], ids=["100 a second", "1000 a second"])
def test_looks_a_message(rate: int, most: float) -> None:
    """What follows from the pauses, with a tenth for calls that are not looks."""
    bell = _Bell()
    bell.gap_s = 1 / rate
    assert 1.1 * (1 / bell.look_pause_s()) / rate <= most


def test_looks_of_an_idle_consumer() -> None:
    """At most two calls a second."""
    bell = _Bell()
    bell.gap_s = 0.001
    bell.quiet_since -= 60
    assert bell.look_pause_s() == LONGEST_PAUSE_S


def test_an_idle_consumer_only_looks(bench: Bench) -> None:
    bench.look()
    before = bench.calls()
    for _ in range(5):
        assert bench.look() == {}
    assert used(before, bench.calls()) == {"claim": 5}


def test_a_claim_is_stamped_by_the_next_look(bench: Bench) -> None:
    bench.look()
    bench.producer.load_records("m", 0, numbered(1))
    assert bench.look() == {0: [1]}
    assert "fireTS" not in bench.bins(0, 1)
    before = bench.calls()
    bench.look()
    assert used(before, bench.calls()) == {"claim": 1}
    assert bench.bins(0, 1)["ign_owner"] == "me"
    assert bench.bins(0, 1)["fireTS"] >= bench.bins(0, 1)["modified_at"]


@pytest.mark.parametrize("asked", ["rest", "held", "close", "renew_claims", "claimants"])
def test_a_claim_is_stamped_when_no_look_follows(bench: Bench, asked: str) -> None:
    bench.look()
    bench.producer.load_records("m", 0, numbered(1))
    assert bench.look() == {0: [1]}
    if asked == "rest":
        bench.magazines.rest("m")
    elif asked == "held":
        assert [(run.shard, run.first) for run in bench.magazines.held("m", "me")] == [(0, 1)]
    elif asked == "close":
        bench.store.close(10)
    elif asked == "renew_claims":
        assert bench.magazines.renew_claims("m", {0: [1]}, "me") == {}
    else:
        assert list(bench.magazines.claimants("m")) == ["me"]
    assert bench.bins(0, 1)["ign_owner"] == "me"
    if asked != "close":
        assert bench.magazines.metadata("m")[0].in_flight == 1


def test_a_process_that_dies_before_its_stamp_loses_nothing(bench: Bench) -> None:
    """The sweeper judges by the time at which the message was written."""
    bench.look()
    bench.producer.load_records("m", 0, numbered(1))
    assert bench.look() == {0: [1]}
    written_ms = bench.bins(0, 1)["modified_at"]
    assert bench.producer.abandoned("m", 0, written_ms, 9) == []
    (found,) = bench.producer.abandoned("m", 0, FOREVER_MS, 9)
    assert (found.pointer, found.owner, text(found.record)) == (1, "", "m0")


def test_what_was_written_long_ago_is_stamped_at_once(bench: Bench) -> None:
    """Else a sweep between claim and stamp would take it for abandoned."""
    bench.look()
    bench.producer.load_records("m", 0, numbered(1))
    namespace = bench.address.partition("/")[2]
    key = (namespace, f"local_{bench.client_id}_data_set", "m_SHARD_0_1")
    bench.client.put(key, {"modified_at": bench.bins(0, 1)["modified_at"] - 3_600_000})
    assert bench.look() == {0: [1]}
    assert bench.bins(0, 1)["ign_owner"] == "me"


def test_a_record_on_its_way_is_read_by_the_next_look(bench: Bench) -> None:
    bench.look()
    bench.producer.load_records("m", 0, numbered(2))
    namespace = bench.address.partition("/")[2]
    key = (namespace, f"local_{bench.client_id}_data_set", "m_SHARD_0_1")
    bins = bench.bins(0, 1)
    bench.client.remove(key)
    first = texts(bench.magazines.fire("m", 9, "me"))
    bench.client.put(key, bins)
    seen = list(first)

    def both() -> bool:
        bench.magazines.idle("m", bench.magazines.wait("m", -1, 0), 0)
        seen.extend(texts(bench.magazines.fire("m", 9, "me")))
        return len(seen) == 2

    eventually(both, "both were claimed")
    assert sorted(map(str, seen)) == ["m0", "m1"]
    assert bench.magazines.delete("m", {0: [1, 2]}) == 2


def test_a_message_deleted_as_it_is_claimed_is_counted_once(bench: Bench) -> None:
    """Read along with the claim and replaced by a tombstone before the claim: what waits is still counted right."""
    bench.look()
    bench.producer.load_records("m", 0, numbered(1))
    assert bench.look() == {0: [1]}
    # As the other's delete would have left it: a tombstone, and one more that need not be claimed.
    namespace = bench.address.partition("/")[2]
    data = (namespace, f"local_{bench.client_id}_data_set", "m_SHARD_0_1")
    meta = (namespace, f"local_{bench.client_id}_meta_set", "m_SHARD_0_POINTERS")
    bench.client.remove(data)
    bench.client.put(data, {"ign_sealed": 2})
    bench.client.increment(meta, "ign_voids", 1)
    assert bench.magazines.delete("m", {0: [1]}) == 0
    bench.producer.load_records("m", 0, numbered(1))
    assert bench.producer.metadata("m")[0].pending == 1


def test_what_is_deleted_while_it_waits_is_never_handed_out_as_well(bench: Bench) -> None:
    """Its deleter has looked at the pointers, the consumer's look comes in between, the tombstone after that."""
    bench.look()
    bench.producer.load_records("m", 0, numbered(1))
    catalogue = bench.producer._catalogue  # type: ignore[attr-defined]
    assert catalogue.mark_leaving(catalogue.get("m"), [0])[0].unfired == 1
    before = bench.calls()
    assert bench.look() == {0: [1]}
    assert used(before, bench.calls())["take"] == 1
    assert bench.bins(0, 1)["ign_owner"] == "me", "stamped before it was handed out, so the tombstone loses"


def test_a_consumer_that_comes_and_goes_loses_nothing(bench: Bench, new_app: MakeApp) -> None:
    """One by one, with pauses of all lengths, while workers start and stop."""
    count = 300
    address = bench.address
    producer = new_app(f"aerospike://{address}", client_id=bench.client_id)
    orders = producer.queue("orders", int, shards=SHARDS)
    orders.open()
    seen: list[int] = []
    done = threading.Event()

    def publish() -> None:
        for number in range(count):
            orders.publish(number)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    rounds = 0
    while not done.is_set() or len(set(seen)) < count:
        rounds += 1
        assert rounds < 200
        app = ignis.Ignis(f"aerospike://{address}", client_id=bench.client_id)
        try:
            queue = app.queue("orders", int)
            queue.handler(seen.append)
            app.start()
            before = len(seen)
            eventually(lambda before=before: len(seen) > before or len(set(seen)) == count, "some more came")  # type: ignore[misc]
        finally:
            app.close(timeout=WAIT_S)
    thread.join(WAIT_S)
    assert sorted(seen) == list(range(count)), "each once"
    state = producer.store.magazines.metadata("orders")
    assert [(one.pending, one.in_flight) for one in state] == [(0, 0)] * SHARDS
