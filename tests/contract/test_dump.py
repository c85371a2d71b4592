"""Dumps of every store: what is loaded is what was dumped, byte for byte, and each message once however often it is repeated."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from ignis import Ignis
from ignis.dump.lines import PLACES, MessageLine, parse_line
from ignis.dump.reading import Loaded, Loader
from ignis.dump.writing import Dumped, dump_queues, magazine_of
from ignis.errors import QueueMismatchError
from ignis.message import failed_record
from ignis.native import PackedBatch, Record, encode_record, shard_for_key
from ignis.storage.base import QueueRecord, Store, Transfer
from tests.contract.support import Kind, tick

HOUR_MS = 3_600_000
Content = dict[str, list[tuple[int, bytes]]]


@pytest.fixture
def other() -> Iterator[Store]:
    """A store of another kind, for what comes out of the first."""
    with Ignis("memory://") as app:
        yield app.store


def dumped(store: Store, *names: str) -> list[bytes]:
    done = Dumped()
    records = [one for one in store.queues.list() if not names or one.name in names]
    lines = [msgspec.json.encode(line) for line in dump_queues(store, records, PLACES, done)]
    assert done.corrupt == 0
    return lines


def load(store: Store, lines: list[bytes], **options: object) -> Loaded:
    loader = Loader(store, **{"remember_s": 3_600.0, **options})  # type: ignore[arg-type]
    loader.load(lines)
    return loader.done


def content(store: Store, queue: str) -> Content:
    """The bytes in each magazine, by shard and in order."""
    found: Content = {}
    for place in ("main", "sideline"):
        rows = store.magazines.scan(magazine_of(queue, place), limit=100_000)  # type: ignore[arg-type]
        found[place] = [(shard, data) for shard, _, data in rows if data is not None]
    later = store.magazines.list_later(queue, limit=1_000) if store.magazines.keeps_later else []
    found["later"] = [(one.shard, one.record) for one in later if one.record is not None]
    return found


def fill(store: Store, queue: str = "orders") -> None:
    """Messages of every kind in each of the three magazines."""
    magazines = store.magazines
    for name in (queue, magazine_of(queue, "sideline")):
        magazines.declare(name, 4)
    store.queues.put(QueueRecord(queue, shards=4, max_returns=2, extra={"on_expiry": "sideline"}))
    headers = msgspec.msgpack.encode({"headers": {"trace": "ä\n", "n": 2**63}})
    binary = msgspec.msgpack.encode({"headers": {"raw": b"\xff"}})
    some = [
        encode_record(b'{"n":1}', flags=1, key=b"k1", meta=headers),
        encode_record(b"\x00\xff", flags=1, key=b"\xfe\xff", meta=binary, attempts=2, crashes=1),
        encode_record(b"", flags=1),
        encode_record("ö\u2028".encode() * 1_000, flags=1, meta=b"\xc1 no map"),
    ]
    magazines.load(queue, [(shard, PackedBatch.pack([one])) for shard, one in enumerate(some)], None)
    for number in range(3):
        fresh = encode_record(b"%d" % number, flags=1, key=b"k%d" % number)
        pointer = magazines.load_records(queue, 1, [fresh])
        failed = failed_record(fresh, "exception", "ValueError: no\x1b[31m", handler="h", took_ms=3)
        assert magazines.transfer(queue, magazine_of(queue, "sideline"), [Transfer(1, pointer, failed, 1)]) == 1
    if magazines.keeps_later:
        waits = [encode_record(b"later %d" % number, flags=1) for number in range(3)]
        due_ms = int(store.now_s() * 1000) + HOUR_MS
        magazines.load_later(queue, [(2, PackedBatch.pack(waits))], [[due_ms, due_ms + 5, due_ms]], None)


def test_a_round_trip_is_equal_to_the_byte(kind: Kind, other: Store) -> None:
    store = kind.open()
    fill(store)
    lines, before = dumped(store), content(store, "orders")
    there = load(other, lines)
    assert (there.made, there.whole, there.bad, there.repeats) == (["orders"], True, 0, 0)
    assert there.loaded == there.messages == sum(map(len, before.values()))
    assert [one[1] for one in content(other, "orders")["later"]] == [one[1] for one in before["later"]]
    for place in ("main", "later", "sideline"):
        assert sorted(one[1] for one in content(other, "orders")[place]) == sorted(one[1] for one in before[place])
    record = other.queues.get("orders")
    assert record is not None
    assert (record.shards, record.max_returns, record.extra) == (4, 2, {"on_expiry": "sideline"})
    store.remove_queue("orders", force=True)
    back = load(store, dumped(other))
    assert back.loaded == there.loaded
    for place in ("main", "later", "sideline"):
        assert sorted(one[1] for one in content(store, "orders")[place]) == sorted(one[1] for one in before[place])


def test_what_is_loaded_again_is_left_out(kind: Kind, other: Store) -> None:
    fill(other)
    lines = dumped(other)
    store = kind.open()
    cut = load(store, lines[:6])
    assert not cut.whole
    if not store.magazines.tells_repeats:
        assert load(store, lines).repeats == 0
        return
    again = load(store, lines)
    assert (again.repeats, again.loaded, again.whole) == (cut.loaded, len(lines) - 3 - cut.loaded, True)
    assert load(store, lines).loaded == 0
    assert {place: sorted(one[1] for one in some) for place, some in content(store, "orders").items()} == {
        place: sorted(one[1] for one in some) for place, some in content(other, "orders").items()
    }


def test_delays_keep_their_order_and_their_time(kind: Kind, other: Store) -> None:
    store = kind.open()
    if not store.magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    fill(store)
    lines = dumped(store)
    dues = [one.due_at_ms for one in map(parse_line, lines) if isinstance(one, MessageLine) and one.due_at_ms]
    assert dues == [dues[0], dues[0], dues[0] + 5]
    load(other, lines)
    found = other.magazines.list_later("orders")
    assert [one.due_ms - found[0].due_ms for one in found] == [0, 0, 5]
    wall_ms = found[0].due_ms - (other.now_s() - other.wall_s()) * 1000
    assert abs(wall_ms - dues[0]) < 60_000  # within what the two clocks differ meanwhile; the delay is an hour


def test_claimed_messages_are_dumped_and_stay_claimed(kind: Kind, other: Store) -> None:
    store = kind.open()
    fill(store)
    claimed = store.magazines.fire("orders", 2, "somebody").total()
    assert claimed
    lines = dumped(store)
    assert sum(one.in_flight for one in store.magazines.metadata("orders")) == claimed
    load(other, lines)
    assert len(content(other, "orders")["main"]) == 4


def test_keys_keep_their_order_in_other_shards(kind: Kind, other: Store) -> None:
    for name in ("orders", "orders_SIDELINE"):
        other.magazines.declare(name, 4)
    other.queues.put(QueueRecord("orders", shards=4))
    for number in range(60):
        key = b"key %d" % (number % 7)
        data = encode_record(b"%d" % number, flags=1, key=key)
        other.magazines.load_records("orders", shard_for_key(key, 4), [data])
    store = kind.open()
    for name in ("orders", "orders_SIDELINE"):
        store.magazines.declare(name, 3)
    store.queues.put(QueueRecord("orders", shards=3))
    load(store, dumped(other))
    by_key: dict[int, list[int]] = {}
    for shard, _, data in store.magazines.scan("orders", limit=1_000):
        assert data is not None
        number = int(Record(data).body)
        assert shard == shard_for_key(b"key %d" % (number % 7), 3)
        by_key.setdefault(number % 7, []).append(number)
    assert by_key == {key: list(range(key, 60, 7)) for key in range(7)}


def test_a_queue_of_another_codec_is_refused_before_anything_is_loaded(kind: Kind, other: Store) -> None:
    fill(other)
    store = kind.open()
    for name in ("orders", "orders_SIDELINE"):
        store.magazines.declare(name, 4)
    store.queues.put(QueueRecord("orders", shards=4, codec="raw"))
    with pytest.raises(QueueMismatchError, match="codec raw here"):
        load(store, dumped(other))
    assert content(store, "orders")["main"] == []


def test_a_time_to_live_goes_on(kind: Kind, other: Store) -> None:
    for name in ("orders", "orders_SIDELINE"):
        other.magazines.declare(name, 1)
    other.queues.put(QueueRecord("orders", shards=1, message_expiry_s=3_600))
    now_us = int(other.wall_s() * 1e6)
    old = encode_record(b"old", flags=1, enqueued_at_us=now_us - 7_200 * 1_000_000)
    new = encode_record(b"new", flags=1, enqueued_at_us=now_us)
    other.magazines.load("orders", [(0, PackedBatch.pack([old, new]))], None)
    store = kind.open()
    done = load(store, dumped(other))
    assert (done.loaded, done.expired) == (2, 1)
    tick()
    fired = store.magazines.fire("orders", 10, "one")
    assert [one for claim in fired.claims for one in claim.records] == [new]
