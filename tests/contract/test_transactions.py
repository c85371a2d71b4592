"""What has more bytes than one transaction takes is done in several: none of it is refused, and its order is kept."""

from __future__ import annotations

import time

import pytest

from ignis.config import SweeperSettings
from ignis.control.redelivery import recover_owner
from ignis.control.sweeper import Sweeper
from ignis.leader import make_leader
from ignis.magazine import SIDELINE_SUFFIX, MagazineManager
from ignis.message import BodyCodec
from ignis.storage import transactions
from ignis.storage.base import MagazineStore, QueueRecord, Store, Transfer
from tests.contract.support import drain, pointers, record, state, text, texts

COUNT = 20
BODIES = [f"{number:02d}".ljust(4_000) for number in range(COUNT)]
FAR_MS = 1 << 53


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of the messages are a transaction."""
    each = len(record(BODIES[0])) + transactions.BESIDE_BYTES
    monkeypatch.setattr(transactions, "MOST_BYTES", 3 * each + 1)


@pytest.fixture
def claimed(store: Store) -> MagazineStore:
    """Magazines of a queue ``m``, of one shard, in which all messages are claimed by ``gone``."""
    store.queues.put(QueueRecord(name="m", shards=1))
    for name in ("m", "m" + SIDELINE_SUFFIX):
        store.magazines.declare(name, 1)
    store.magazines.load_records("m", 0, [record(body) for body in BODIES])
    assert store.magazines.fire("m", COUNT, "gone").total() == COUNT
    return store.magazines


def test_a_transfer(claimed: MagazineStore) -> None:
    items = [Transfer(0, pointer, record(body), 0) for pointer, body in enumerate(BODIES, 1)]
    assert claimed.transfer("m", "m" + SIDELINE_SUFFIX, items) == COUNT
    assert drain(claimed, "m" + SIDELINE_SUFFIX) == BODIES
    assert state(claimed, "m").in_flight == 0


def test_a_reload(store: Store) -> None:
    magazines = store.magazines
    magazines.declare("m", 3)
    for shard in range(3):
        magazines.load_records("m", shard, [record(f"{shard}{body}") for body in BODIES])
    found = pointers(magazines.fire("m", 3 * COUNT, "me"))
    magazines.delete("m", {1: [4]})
    del found[2][-1:]
    assert magazines.reload("m", {**found, 9: [1]}) == 3 * COUNT - 2
    assert (state(magazines, "m", 2).in_flight, state(magazines, "m", 1).pending) == (1, COUNT - 1)
    assert texts(magazines.fire("m", 99, "me", shards=[0])) == ["0" + body for body in BODIES]
    assert texts(magazines.fire("m", 99, "me", shards=[2])) == ["2" + body for body in BODIES[:-1]]


def test_what_waits_is_run_now_and_deferred(store: Store) -> None:
    magazines = store.magazines
    if not magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    magazines.declare("m", 1)
    magazines.load_records("m", 0, [record(body) for body in BODIES])
    assert magazines.fire("m", COUNT, "me").total() == COUNT
    due_ms = int(store.now_s() * 1000) + 3_600_000
    items = [Transfer(0, pointer, record(body), 0) for pointer, body in enumerate(BODIES, 1)]
    assert magazines.defer("m", items, [due_ms + number for number in range(COUNT)]) == COUNT
    listed = magazines.list_later("m", limit=99)
    assert [(one.due_ms - due_ms, text(one.record)) for one in listed] == list(enumerate(BODIES))
    assert magazines.run_now("m", {0: [one.pointer for one in listed]}) == COUNT
    assert sorted(drain(magazines, "m"), key=str) == BODIES


def test_what_a_dead_process_held(store: Store, claimed: MagazineStore) -> None:
    assert recover_owner(store, "gone", "it was killed").sidelined == COUNT
    assert drain(claimed, "m" + SIDELINE_SUFFIX) == BODIES


def test_a_sweep(store: Store, claimed: MagazineStore) -> None:
    """One pass takes all of it, though the store is asked again and again; in the sideline too."""
    leader = make_leader(store, "m")
    sweeper = Sweeper(store, leader, SweeperSettings(), clock=lambda: time.time() + 86_400)
    assert sweeper.run_once().swept == COUNT
    assert claimed.fire("m" + SIDELINE_SUFFIX, COUNT, "gone").total() == COUNT
    assert sweeper.run_once().sideline_swept == COUNT
    assert drain(claimed, "m" + SIDELINE_SUFFIX) == BODIES


def test_a_purge_of_what_is_claimed(claimed: MagazineStore) -> None:
    removed, left = 0, None
    while left is None or left:
        _, in_flight, left = claimed.purge("m", in_flight=True, left=left)
        removed += in_flight
    assert (removed, state(claimed, "m").in_flight) == (COUNT, 0)


def test_what_is_abandoned_is_read_up_to_so_many_bytes(claimed: MagazineStore, store: Store) -> None:
    def read(max_bytes: int) -> int:
        return len(claimed.abandoned("m", 0, FAR_MS, COUNT, max_bytes=max_bytes))

    assert len(claimed.abandoned("m", 0, FAR_MS, COUNT)) == COUNT
    assert 1 <= read(1) <= read(9_000) <= COUNT
    if store.url.startswith(("embedded", "memory")):
        assert (read(1), read(9_000)) == (1, 2)


def test_a_load_of_many(store: Store) -> None:
    magazine = MagazineManager(store).get("m", BodyCodec(str), shards=1)
    for messages in (BODIES, iter(BODIES)):
        assert len(magazine.load_many(messages)) == COUNT
        assert drain(store.magazines, "m") == BODIES
