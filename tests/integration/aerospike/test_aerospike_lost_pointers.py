"""A shard of an Aerospike magazine whose pointers record is gone: what is there is neither overwritten nor hidden."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import ignis
from ignis.errors import StoreError
from ignis.native import CODEC_JSON, PackedBatch, encode_record
from ignis.storage.aerospike.layout import Keys
from ignis.storage.aerospike.pointer_recovery import Place, find_places
from tests.support import aerospike as aerospike_support
from tests.support import sidelined

pytestmark = pytest.mark.integration

MakeApp = Callable[..., ignis.Ignis]


@pytest.fixture
def url() -> Iterator[str]:
    made = aerospike_support.url(scope="local")
    yield made
    aerospike_support.forget(aerospike_support.address(), parse_qs(urlsplit(made).query)["client_id"])


def lose(app: ignis.Ignis, *prefixes: str, instead: dict[str, int] | None = None) -> None:
    """Removes pointers records, as an eviction or a person would; ``instead``: the bins that another program puts there."""
    raw = aerospike_support.raw_client()
    try:
        for prefix in prefixes:
            key = (aerospike_support.address().partition("/")[2], app.store.sets.meta, f"{prefix}_POINTERS")  # type: ignore[attr-defined]
            raw.remove(key)
            if instead is not None:
                raw.put(key, instead)
    finally:
        raw.close()


def bodies(queue: ignis.Queue[int]) -> list[int]:
    return [one.message for one in queue.main.fire(1_000)]


def restored(app: ignis.Ignis) -> Any:
    return app.store.stats()["pointers_restored"]


def ahead() -> float:
    return time.time() + 10_000


@pytest.mark.parametrize("same", [True, False], ids=["known here", "opened later"])
def test_what_is_loaded_next_follows_what_nobody_has_read(url: str, new_app: MakeApp, caplog: Any, same: bool) -> None:
    first = new_app(url)
    queue = first.queue("jobs", int, shards=1)
    queue.publish_many(range(10))
    assert [one.message for one in queue.main.fire(4)] == [0, 1, 2, 3]
    lose(first, "jobs")
    app = first if same else new_app(url)
    with caplog.at_level(logging.ERROR, "ignis.storage.aerospike"):
        app.queue("jobs", int, shards=1).publish_many([10, 11])
    assert "shard 0 of jobs had lost its pointers record" in caplog.text
    assert restored(app) == 1
    other = new_app(url).queue("jobs", int, shards=1)
    assert (other.main.pending(), other.main.in_flight()) == (8, 4)
    assert bodies(other) == [4, 5, 6, 7, 8, 9, 10, 11]


def test_claimed_ones_are_the_sweepers_as_before(url: str, new_app: MakeApp) -> None:
    app = new_app(url, clock=ahead, store={"settle_s": 1})
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(20))
    queue.main.delete(queue.main.fire(10))
    app.sweeper().run_once()
    time.sleep(1.5)
    app.sweeper().run_once()
    queue.main.fire(5)
    lose(app, "jobs")
    assert app.sweeper().run_once().swept == 5
    assert sorted(int(message.body) for message in sidelined(queue)) == [10, 11, 12, 13, 14]
    queue.publish(20)
    assert bodies(queue) == [15, 16, 17, 18, 19, 20]


def test_of_many_shards_only_the_lost_ones_are_looked_for(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=3)
    # Names that begin alike, and a sideline: their records are not this queue's.
    for name in ("jobs_SHARD_1x", "jobs_1"):
        app.queue(name, int, shards=1).publish_many(range(50))
    for number in range(30):
        queue.publish(number)
    held = queue.main.pending()
    before = {one.shard: (one.load_pointer, one.fire_pointer) for one in app.store.magazines.metadata("jobs")}
    lose(app, "jobs_SHARD_1", "jobs_SHARD_2")
    assert {one.shard: (one.load_pointer, one.fire_pointer) for one in app.store.magazines.metadata("jobs")} == before
    assert restored(app) == 2
    assert len(bodies(queue)) == held
    assert [(one.load_counter, one.load_pointer) for one in app.store.magazines.metadata("jobs")] == [(10, 10)] * 3
    lose(app, "jobs_SHARD_1")
    records = [encode_record(str(number).encode(), flags=CODEC_JSON) for number in range(10)]
    app.store.magazines.load("jobs", [(shard, PackedBatch.pack(records)) for shard in range(3)], None)
    assert [(one.load_counter, one.load_pointer) for one in app.store.magazines.metadata("jobs")] == [(20, 20)] * 3
    assert len(bodies(queue)) == 30, "no pointer was reserved twice"
    assert all(app.queue(name, int, shards=1).main.pending() == 50 for name in ("jobs_SHARD_1x", "jobs_1"))


def test_deleted_before_they_were_claimed_they_stay_deleted(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(10))
    app.store.magazines.delete("jobs", {0: [1, 4, 5]})
    lose(app, "jobs")
    assert queue.main.pending() == 7
    assert bodies(queue) == [1, 2, 5, 6, 7, 8, 9]
    assert queue.main.pending() == 0
    queue.publish(10)
    assert bodies(queue) == [10]


def test_an_empty_shard_goes_on_behind_what_is_accounted_for(url: str, new_app: MakeApp) -> None:
    """Not from the beginning: below the mark nobody would ever look for what is abandoned."""
    app = new_app(url, clock=ahead, store={"settle_s": 1})
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(10))
    queue.main.delete(queue.main.fire(10))
    app.sweeper().run_once()
    time.sleep(1.5)
    app.sweeper().run_once()
    lose(app, "jobs")
    queue.publish(10)
    assert app.store.magazines.metadata("jobs")[0].load_pointer == 11
    assert bodies(queue) == [10]
    assert app.sweeper().run_once().swept == 1


def test_a_queue_that_is_dropped_and_made_again_begins_anew(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(5))
    app.store.magazines.drop("jobs")
    app.store.magazines.declare("jobs", 1)
    queue.publish(7)
    assert app.store.magazines.metadata("jobs")[0].load_pointer == 1
    assert bodies(queue) == [7]
    assert restored(app) == 0


def test_pointers_that_another_program_began_anew_keep_the_life(url: str, new_app: MakeApp) -> None:
    """A Java producer that finds none begins at 1. What it passes is delivered, and not taken for an earlier life's."""
    app = new_app(url)
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(10))
    lose(app, "jobs", instead={"LOAD_POINTER": 4, "FIRE_POINTER": 0})
    later = new_app(url).queue("jobs", int, shards=1)
    assert bodies(later) == [0, 1, 2, 3]
    later.publish_many([10, 11])
    assert sorted(bodies(later)) == [4, 5, 6, 7, 8, 9, 10, 11]


class _Rows:
    """A connection that holds a few rows."""

    def __init__(self, *rows: tuple[str | None, dict[str, Any]]) -> None:
        self.rows = rows

    def each(self, what: str, set_name: str, bins: Any, look: Callable[[str | None, dict[str, Any]], None]) -> None:
        for _ in range(2):  # as after a call that was repeated
            for row in self.rows:
                look(*row)


def test_a_record_without_its_key_is_an_error() -> None:
    with pytest.raises(StoreError, match="written without their keys"):
        find_places(_Rows((None, {})), "set", Keys("jobs", True), {0: 0})  # type: ignore[arg-type]


def test_places_by_what_the_records_say() -> None:
    live, fired = {"modified_at": 1}, {"modified_at": 1, "fireTS": 2}
    rows = _Rows(
        ("jobs_3", fired), ("jobs_4", live), ("jobs_6", fired), ("jobs_7", {"ign_sealed": 2}), ("jobs_2", {"ign_sealed": 2}),
        ("jobs_9", {"ign_sealed": 1}), ("jobs_1", live), ("jobs_SHARD_1_50", live), ("jobs_SIDELINE_80", live),
    )  # fmt: skip
    found = find_places(rows, "set", Keys("jobs", True), {0: 1, 1: 60})  # type: ignore[arg-type]
    assert found == {0: Place(9, 3, 1), 1: Place(60, 60, 0)}
