"""What a Java instance on the same queue may do at any moment: pause between two steps, overtake, count, restart.

The order of events is forced: each step of Java's is one call of `tests.support.java`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ignis
from ignis.errors import QueueMismatchError
from ignis.storage import open_store
from ignis.storage.base import Store, Transfer
from tests.conftest import MakeApp
from tests.contract.support import numbered, pointers, record, text, texts
from tests.support import aerospike as aerospike_support
from tests.support import eventually
from tests.support.java import FARM, META_TTL_S, SHARDS, Java

pytestmark = pytest.mark.integration

FOREVER_MS = 1 << 52
ENDLESS = 0xFFFFFFFF
"""What the driver shows of a record without a time to live."""

Open = Callable[..., Store]


@pytest.fixture
def java() -> Iterator[Java]:
    one = Java(aerospike_support.url().partition("client_id=")[2])
    yield one
    one.client.close()
    aerospike_support.forget(one.address, [one.client_id])


@pytest.fixture
def opening(java: Java) -> Iterator[Open]:
    """Opens stores of the same farm as Java's."""
    opened: list[Store] = []

    def make(**options: Any) -> Store:
        url = f"aerospike://{java.address}"
        opened.append(open_store(url, client_id=java.client_id, farm_id=FARM, **options))
        return opened[-1]

    yield make
    for store in opened:
        store.close(10)


@pytest.fixture
def app(java: Java, new_app: MakeApp) -> ignis.Ignis:
    return new_app(f"aerospike://{java.address}", client_id=java.client_id, farm_id=FARM)


def low_of(java: Java, magazine: str, shard: int) -> int:
    key = (java.namespace, f"{FARM}_{java.client_id}_ignis_mags", magazine)
    return int(java.client.get(key)[2]["low"].get(shard, 0))


def ttl_of(java: Java, name: str) -> int:
    return int(java.client.get(java.key("meta", name))[1]["ttl"])


# -- a pause between the pointer and the record


def test_a_message_of_java_that_comes_after_the_grace_is_handed_out(java: Java, opening: Open) -> None:
    """Java reserves, we claim and wait longer than the grace, Java writes and is told that it was stored."""
    store = opening(hole_grace_s=0)
    magazines = store.magazines
    magazines.declare("m", SHARDS)
    pointer = java.reserve("m", 0)
    assert magazines.fire("m", 9, "me").holes == {0: [pointer]}
    looks = int(store.connection.calls["holes"])  # type: ignore[attr-defined]
    eventually(
        lambda: magazines.fire("m", 9, "me") and store.connection.calls["holes"] > looks,  # type: ignore[attr-defined]
        "it was looked at again",
    )
    assert "ign_sealed" not in (java.bins("data", f"m_SHARD_0_{pointer}") or {})
    java.write("m", 0, pointer, "late")
    found = eventually(lambda: magazines.fire("m", 9, "me").claims, "it is handed out")
    assert (found[0].pointers, [text(one) for one in found[0].records]) == ([pointer], ["late"])
    assert magazines.delete("m", {0: [pointer]}) == 1


def test_a_message_of_java_that_comes_when_nobody_waits_any_more_is_swept(java: Java, opening: Open) -> None:
    """Reserved, claimed, the mark has passed the pointer, the claimer is gone, another process sweeps: only then it is
    written."""
    first = opening(settle_s=1, hole_grace_s=0)
    first.magazines.declare("m", SHARDS)
    gap = java.reserve("m", 0)
    java.load("m", 0, "before")
    result = first.magazines.fire("m", 9, "me")
    assert texts(result) == ["before"]
    first.magazines.delete("m", pointers(result))

    def passed() -> bool:
        assert first.magazines.abandoned("m", 0, FOREVER_MS, 9) == []
        return low_of(java, "m", 0) == 2

    eventually(passed, "the mark has passed both")
    first.close(10)
    second = opening(settle_s=1).magazines
    assert second.abandoned("m", 0, FOREVER_MS, 9) == []
    java.write("m", 0, gap, "late")
    (found,) = second.abandoned("m", 0, FOREVER_MS, 9)
    assert (found.pointer, text(found.record)) == (gap, "late")
    assert second.peek("m", {0: [gap]}).keys() == {0}
    second.declare("m_SIDELINE", SHARDS)
    assert second.transfer("m", "m_SIDELINE", [Transfer(0, gap, record("late"), 0)], None) == 1
    assert texts(second.fire("m_SIDELINE", 9, "me")) == ["late"]
    assert second.abandoned("m", 0, FOREVER_MS, 9) == []
    kept = java.bins("meta", "m_SHARD_0_OPEN")
    assert kept is not None
    assert kept["ign_open"] == {}, "nobody looks there for ever"


def test_the_sweeper_hands_a_late_message_out(java: Java, app: ignis.Ignis) -> None:
    """From end to end: the consumer that met the hole is gone, the sweeper finds the message, the shovel brings it back."""
    java.register("orders")
    queue = app.queue("orders", dict, shards=SHARDS)
    gap = java.reserve("orders", 0)
    assert queue.main.fire(9) == []
    java.write("orders", 0, gap, '{"n": 1}')
    now_s = time.time()
    app.sweeper()._clock = lambda: now_s + queue.settings.stuck_after_s + 10
    assert app.sweeper().run_once(["orders"]).swept == 1
    assert queue.shovel.run_once().moved == 1
    assert [one.message for one in queue.main.fire(9)] == [{"n": 1}]


def test_what_java_wrote_into_a_tombstone_is_a_record(java: Java, opening: Open) -> None:
    """As an earlier version left it: sealed, and then written by Java."""
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    pointer = java.reserve("m", 0)
    magazines.fire("m", 9, "me")
    java.put("data", f"m_SHARD_0_{pointer}", {"ign_sealed": 1})
    assert magazines.peek("m", {0: [pointer]}) == {}
    java.write("m", 0, pointer, "late")
    other = opening().magazines
    assert {one: text(data) for one, data in other.peek("m", {0: [pointer]})[0].items()} == {pointer: "late"}
    assert [text(row[2]) for row in other.scan("m")] == ["late"]
    assert other.metadata("m")[0].in_flight == 1
    assert [one.pointer for one in other.abandoned("m", 0, FOREVER_MS, 9)] == [pointer]
    assert other.delete("m", {0: [pointer]}) == 1


def test_what_java_wrote_into_a_deleted_one_is_handed_out(java: Java, opening: Open) -> None:
    """Java's client tries again after its first answer was lost: we have deleted the message in between."""
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    pointer = java.load("m", 0, "once")
    assert magazines.delete("m", {0: [pointer]}) == 1
    java.put("data", f"m_SHARD_0_{pointer}", {"data": "once", "modified_at": int(time.time() * 1000)})
    assert texts(magazines.fire("m", 9, "me")) == ["once"]
    one = magazines.metadata("m")[0]
    assert (one.pending, one.in_flight) == (0, 1)


def test_where_only_ignis_loads_a_hole_is_sealed(java: Java, opening: Open) -> None:
    """A producer of ours looks for the tombstone, and loads again at once instead of waiting for a sweep."""
    store = opening(hole_grace_s=0)
    store.magazines.declare("m", SHARDS)
    for bin_name in ("LOAD_POINTER", "ign_loads"):
        java.increment("m_SHARD_0_POINTERS", bin_name)
    store.magazines.fire("m", 9, "me")
    eventually(lambda: store.magazines.fire("m", 9, "me") and store.stats()["holes_sealed"] == 1, "it is sealed")
    java.load("m", 0, "shared from now on")
    java.reserve("m", 0)
    assert texts(store.magazines.fire("m", 9, "me")) == ["shared from now on"]
    looks = int(store.connection.calls["holes"])  # type: ignore[attr-defined]
    eventually(
        lambda: store.magazines.fire("m", 9, "me") and store.connection.calls["holes"] > looks,  # type: ignore[attr-defined]
        "the second hole was looked at again",
    )
    assert store.stats()["holes_sealed"] == 1


def test_two_consumers_of_java_may_move_the_fire_pointer_too_far(java: Java, opening: Open) -> None:
    """Both read that one message waits, both move the pointer: what is loaded there next was claimed by nobody."""
    magazines = opening(settle_s=1).magazines
    magazines.declare("m", SHARDS)
    java.load("m", 0, "one")
    for _ in range(3):
        java.increment("m_SHARD_0_POINTERS", "FIRE_POINTER")
    java.delete("m", 0, 1)

    def passed() -> bool:
        assert magazines.abandoned("m", 0, FOREVER_MS, 9) == []
        return low_of(java, "m", 0) == 1

    eventually(passed, "the mark has come to what was loaded")
    time.sleep(1.1)  # so long what is behind the load pointer would have been settled
    assert magazines.abandoned("m", 0, FOREVER_MS, 9) == []
    assert low_of(java, "m", 0) == 1
    magazines.load_records("m", 0, numbered(2))
    assert magazines.metadata("m")[0].pending == 0
    assert [text(one.record) for one in magazines.abandoned("m", 0, FOREVER_MS, 9)] == ["m0", "m1"]


def test_what_the_sweeper_of_java_passed_is_still_found(java: Java, opening: Open) -> None:
    """It passes a pointer whose record is not there yet."""
    magazines = opening().magazines
    magazines.declare("orders", SHARDS)
    java.register("orders")
    gap = java.reserve("orders", 0)
    taken = java.load("orders", 0, "x")
    assert java.fire("orders", 0) == (taken, "x"), "it gave up the other"
    java.delete("orders", 0, taken)
    assert java.sweep("orders", 0, FOREVER_MS, "orders_SIDELINE") == 0
    swept = java.bins("queues", "orders")
    assert swept is not None
    assert swept["sweepPointers"]["0"] == taken
    assert magazines.abandoned("orders", 0, FOREVER_MS, 9) == []
    java.write("orders", 0, gap, "late")
    assert [text(one.record) for one in opening().magazines.abandoned("orders", 0, FOREVER_MS, 9)] == ["late"]


# -- counters


def test_holes_do_not_keep_java_from_firing(java: Java, app: ignis.Ignis) -> None:
    """Java fires only while it counts more loaded than fired."""
    java.register("orders")
    queue = app.queue("orders", dict, shards=SHARDS)
    for _ in range(4):
        java.load("orders", 0, '{"a": 1}')
        java.reserve("orders", 0)  # and dies
    assert len(queue.main.fire(4)) == 4
    for number in range(2):
        java.load("orders", 0, f'{{"b": {number}}}')
    loaded, fired = java.counts("orders", 0)
    assert (loaded, fired) == (6, 4)
    assert [java.fire("orders", 0), java.fire("orders", 0)] == [(9, '{"b": 0}'), (10, '{"b": 1}')]


def test_many_holes_in_one_claim_are_not_counted(java: Java, opening: Open) -> None:
    """Also where the counters travel apart from the records, above 256."""
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    java.increment("m_SHARD_0_POINTERS", "LOAD_POINTER", 150)
    magazines.load_records("m", 0, numbered(200))
    assert len(texts(magazines.fire("m", 500, "me"))) == 200
    assert java.counts("m", 0) == (200, 200)


def test_a_hole_that_fills_is_counted(java: Java, opening: Open) -> None:
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    gap = java.reserve("m", 0)
    magazines.fire("m", 9, "me")
    assert java.counts("m", 0) == (0, 0)
    java.write("m", 0, gap, "late")
    eventually(lambda: magazines.fire("m", 9, "me").claims, "it came")
    assert java.counts("m", 0) == (1, 1)


def test_deleted_messages_do_not_keep_java_from_firing(java: Java, opening: Open) -> None:
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    magazines.load_records("m", 0, numbered(6))
    assert magazines.delete("m", {0: [1, 2, 3]}) == 3
    assert java.counts("m", 0) == (6, 0)
    assert texts(magazines.fire("m", 2, "me")) == ["m3", "m4"]
    assert java.counts("m", 0) == (6, 5)
    assert java.fire("m", 0) is not None
    assert java.counts("m", 0) == (6, 6)


def test_what_java_passes_that_was_deleted_does_not_hide_what_waits(java: Java, opening: Open) -> None:
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    magazines.load_records("m", 0, numbered(1))
    assert magazines.delete("m", {0: [1]}) == 1
    java.increment("m_SHARD_0_POINTERS", "FIRE_POINTER")  # fires it, and gets nothing for it
    assert magazines.metadata("m")[0].pending == 0
    magazines.load_records("m", 0, numbered(1))
    assert magazines.metadata("m")[0].pending == 1


def test_what_is_given_back_is_counted_once(java: Java, opening: Open) -> None:
    """Claimed, too large for this call, handed back to the head."""
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    magazines.load_records("m", 0, [record("x" * 1_000) for _ in range(5)])
    java.reserve("m", 0)
    got = magazines.fire("m", 9, "me", max_bytes=2_500)
    assert java.counts("m", 0) == (5, got.total())
    assert magazines.metadata("m")[0].pending == 6 - got.total()


def test_counters_that_ran_ahead_are_put_back(java: Java, opening: Open) -> None:
    """As an earlier version left them: 10 loaded, 13 fired, and messages wait."""
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    magazines.load_records("m", 0, numbered(10))
    java.put("meta", "m_SHARD_0_COUNTERS", {"FIRE_COUNTER": 13}, ttl=-2)
    assert java.fire("m", 0) is None, "Java starves"
    opening().magazines.declare("m", SHARDS)
    fired = [java.fire("m", 0) for _ in range(10)]
    assert all(fired)
    assert java.fire("m", 0) is None


# -- the number of shards


def test_the_number_of_shards_is_stored_for_java(java: Java, app: ignis.Ignis) -> None:
    app.queue("orders", dict, shards=4).open()
    for name in ("orders", "orders_SIDELINE"):
        bins = java.bins("meta", f"{name}_SHARDS")
        assert bins is not None
        assert (bins["SHARDS"], ttl_of(java, f"{name}_SHARDS")) == (4, ENDLESS)
        java.make(name, 4)
        with pytest.raises(ValueError, match="decrease"):
            java.make(name, 2)


@pytest.mark.parametrize(("made", "asked"), [(4, 2), (4, 1), (1, 2)], ids=["fewer", "one", "more than one"])
def test_another_number_of_shards_than_java_has_is_refused(java: Java, app: ignis.Ignis, made: int, asked: int) -> None:
    java.make("orders", made)
    java.register("orders")
    java.put("queues", "orders", {"shards": made})
    with pytest.raises(QueueMismatchError, match=rf"asked for {asked}"):
        app.queue("orders", dict, shards=asked).open()
    stored = java.bins("queues", "orders")
    assert stored is not None
    assert stored["shards"] == made, "nothing was rewritten"
    java.make("orders", made)


def test_more_shards_are_stored_for_java(java: Java, app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    java.make("orders", 4)
    java.register("orders")
    java.put("queues", "orders", {"shards": 4})
    with caplog.at_level(logging.WARNING):
        app.queue("orders", dict, shards=8).open()
    java.make("orders", 8)
    with pytest.raises(ValueError, match="decrease"):
        java.make("orders", 4)


def test_fewer_shards_are_refused_where_java_has_loaded(java: Java, opening: Open) -> None:
    magazines = opening().magazines
    magazines.declare("m", 4)
    java.load("m", 0, "x")
    with pytest.raises(QueueMismatchError, match="4 shards, which Java instances use; asked for 2"):
        magazines.declare("m", 2)
    java.make("m", 4)


def test_a_magazine_that_only_java_has_made_is_known(java: Java, opening: Open) -> None:
    """Without a queue's record, as the Magazine library alone uses it."""
    java.make("m", 4)
    java.load("m", 3, "x")
    magazines = opening().magazines
    assert texts(magazines.fire("m", 9, "me")) == ["x"]
    assert len(magazines.metadata("m")) == 4


def test_a_magazine_that_began_with_one_shard_says_so(java: Java, opening: Open) -> None:
    """Its first shard has no number in its keys, where Java would look for one."""
    magazines = opening().magazines
    magazines.declare("m", 1)
    magazines.declare("m", 4)
    with pytest.raises(ValueError, match="unsharded"):
        java.make("m", 4)


def test_a_dropped_magazine_leaves_no_number(java: Java, opening: Open) -> None:
    magazines = opening().magazines
    magazines.declare("m", 4)
    magazines.drop("m")
    assert java.bins("meta", "m_SHARDS") is None


# -- times to live


def test_pointers_do_not_run_out_in_use(java: Java, opening: Open) -> None:
    """Each write of Java's gives them 60 days from then; ours take that away again."""
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    names = [f"m_SHARD_0_{kind}" for kind in ("POINTERS", "COUNTERS")]
    java.load("m", 0, "x")
    assert [META_TTL_S - 60 <= ttl_of(java, name) <= META_TTL_S for name in names] == [True, True]
    magazines.fire("m", 9, "me")
    assert [ttl_of(java, name) for name in names] == [ENDLESS, ENDLESS]
    java.load("m", 0, "x")
    magazines.load_records("m", 0, numbered(1))
    assert [ttl_of(java, name) for name in names] == [ENDLESS, ENDLESS]


def test_pointers_that_are_only_looked_at_do_not_run_out(java: Java, opening: Open) -> None:
    magazines = opening().magazines
    magazines.declare("m", SHARDS)
    magazines.fire("m", 9, "me")
    java.load("m", 0, "x")
    opening().magazines.metadata("m")
    assert [ttl_of(java, f"m_SHARD_0_{kind}") for kind in ("POINTERS", "COUNTERS")] == [ENDLESS, ENDLESS]


# -- the names of the sets


def test_the_sets_are_those_of_java_by_default(java: Java, app: ignis.Ignis) -> None:
    """Magazine 1.0 knows LOCAL alone: it puts the farm before the names that it is given."""
    sets = app.store.sets  # type: ignore[attr-defined]
    own = f"{FARM}_{java.client_id}"
    assert (sets.data, sets.meta, sets.queues) == (f"{own}_data_set", f"{own}_meta_set", f"{own}_ignis_queues")


def test_queues_under_the_names_of_the_other_scope_are_told(
    java: Java, opening: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that was opened with another scope before would seem empty."""
    opening(scope="global").magazines.declare("m", SHARDS)
    with caplog.at_level(logging.WARNING):
        opening()
    assert "scope" in caplog.text
    assert f"{java.client_id}_ignis_mags" in caplog.text
