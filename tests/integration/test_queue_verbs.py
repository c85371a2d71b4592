"""Purge, delete, pause, resume and removal of a queue, on every store, as one process and as a fleet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import pytest

import ignis
from ignis import errors
from ignis.control.refresher import REMOVED
from ignis.storage.base import QueueRecord
from ignis.supervisor.http_routes import app_endpoint
from tests.conftest import MakeApp, url_of
from tests.support import Gate, eventually, wait_idle
from tests.support import aerospike as aerospike_support
from tests.support.broker import running

SOON = {"initial_delay_s": 86_400, "watch_s": 0.05}
BY_HAND = {"initial_delay_s": 86_400, "watch_s": 0}


@pytest.fixture(params=["memory", "embedded", "aerospike", "broker"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "aerospike":
        yield aerospike_support.url(scope="local")
    elif request.param == "broker":
        with running(url_of("embedded", tmp_path)) as broker:
            yield broker.url
    else:
        yield url_of(request.param, tmp_path)


def extra(app: ignis.Ignis, name: str) -> dict[str, Any]:
    record = app.store.queues.get(name)
    assert record is not None
    return record.extra


# -- purge and delete


def test_purge_takes_what_waits_and_leaves_what_is_claimed(url: str, new_app: MakeApp, gate: Gate) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=4)
    queue.handler(gate)
    app.start()
    queue.publish(0)
    gate.wait_entered()
    queue.publish_many(range(1, 2_000))
    claimed = queue.main.in_flight()
    waiting = queue.main.pending()
    found = queue.purge()
    assert found.in_flight == 0
    assert waiting - 64 <= found.waiting <= waiting, "its consumer may have claimed a few since"
    assert queue.main.in_flight() >= claimed
    assert queue.main.pending() == 0
    gate.open.set()
    wait_idle(queue)
    assert gate.seen[0] == 0
    assert len(gate.seen) + found.waiting == 2_000
    assert queue.purge() == (0, 0)


def test_purge_with_what_is_in_flight(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.publish_many(range(10))
    claimed = queue.main.fire(3)
    assert queue.purge(in_flight=True) == (7, 3)
    assert queue.main.delete(claimed) == 0
    assert queue.main.peek(pending_only=False) == []


def fail_all(app: ignis.Ignis, queue: ignis.Queue[Any], *messages: Any) -> None:
    """All of them into the sideline."""
    queue.handler(lambda message: False)
    app.start()
    queue.publish_many(messages)
    eventually(lambda: queue.sideline.pending() == len(messages))
    app.stop()


def test_purge_of_the_sideline(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2)
    fail_all(app, queue, 1, 2, 3)
    queue.publish(4)
    assert queue.purge(sideline=True) == (3, 0)
    assert (queue.sideline.pending(), queue.main.pending()) == (0, 1)


def test_delete_by_id_and_by_filter(url: str, new_app: MakeApp) -> None:
    queue = new_app(url).queue("jobs", int, shards=4)
    ids = queue.publish_many(range(100), keys=["even" if one % 2 == 0 else "odd" for one in range(100)])
    assert queue.delete([ids[3], UUID(ids[4]), ids[3]], dry_run=True) == (2, 100)
    assert queue.delete([ids[3], UUID(ids[4]), ids[3]]) == (2, 100)
    assert queue.delete([ids[3]]).deleted == 0
    assert queue.delete(where=lambda message: message.key == "odd", limit=10).deleted == 10
    assert queue.delete(where=lambda message: message.key == "odd").deleted == 39
    assert queue.delete([ids[2]], where=lambda message: message.key == "odd").deleted == 0
    left = sorted(one.message for one in queue.main.fire(200))
    assert left == [one for one in range(0, 100, 2) if one != 4]


def test_delete_reads_page_by_page(url: str, new_app: MakeApp) -> None:
    queue = new_app(url).queue("jobs", int, shards=3)
    ids = queue.publish_many(range(2_500))
    assert queue.delete([ids[0], ids[1_300], ids[2_499]]) == (3, 2_500)
    assert queue.delete(where=lambda message: int(message.body) >= 10).deleted == 2_488
    assert sorted(one.message for one in queue.main.fire(20)) == list(range(1, 10))


def test_delete_from_the_sideline_and_never_what_is_claimed(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2)
    fail_all(app, queue, 1, 2, 3)
    (claimed,) = queue.sideline.fire(1)
    assert queue.delete(where=lambda message: message.reason == "rejected", sideline=True) == (2, 2)
    assert queue.sideline.delete([claimed]) == 1


def test_what_is_asked_for_must_make_sense(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    queue.publish(1)
    for wrong in ({}, {"ids": "x"}, {"ids": 7}, {"where": 7}, {"where": print, "limit": -1}):
        with pytest.raises(errors.ConfigError):
            queue.delete(**wrong)
    with pytest.raises(errors.InvalidMessageError, match="'x' is not the id of a message"):
        queue.delete(["x"])
    with pytest.raises(ZeroDivisionError):
        queue.delete(where=lambda message: 1 / 0)
    assert queue.main.pending() == 1


# -- removal


def test_a_queue_that_holds_messages_is_removed_only_when_told(url: str, new_app: MakeApp) -> None:
    app, other = new_app(url), new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.publish_many(range(3))
    queue.main.fire(1)
    with pytest.raises(errors.QueueNotEmptyError, match="3 message"):
        other.remove_queue("jobs")
    assert queue.main.pending() == 2
    other.remove_queue("jobs", force=True)
    assert app.store.queues.get("jobs") is None
    assert app.store.magazines.names() == []
    with pytest.raises(errors.QueueNotFoundError):
        other.remove_queue("jobs", force=True)


def test_a_sideline_counts_as_the_queue(url: str, new_app: MakeApp) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2)
    fail_all(app, queue, 1)
    with pytest.raises(errors.QueueNotEmptyError, match="1 message"):
        app.remove_queue("jobs")
    queue.purge(sideline=True)
    app.remove_queue("jobs")
    assert app.store.magazines.names() == []


@pytest.mark.parametrize("whole", [True, False], ids=["removed", "record gone"])
def test_whoever_publishes_to_a_removed_queue_hears_of_it(url: str, new_app: MakeApp, whole: bool) -> None:
    """Whether it was removed as it should be, or only its record went, as somebody's own code or a record's end does it."""
    app, other = new_app(url, refresher=SOON), new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.publish(1)
    publisher = queue.publisher()
    publisher.send(2).result(30)
    if whole:
        other.remove_queue("jobs", force=True)
    else:
        other.store.queues.remove("jobs")

    def refused() -> bool:
        try:
            queue.publish(3)
        except errors.QueueRemovedError:
            return True
        return False

    eventually(refused)
    with pytest.raises(errors.QueueRemovedError, match="'jobs' was removed"):
        publisher.send(4).result(30)
    with pytest.raises(errors.QueueRemovedError):
        queue.publish_many([5])
    assert app.store.queues.get("jobs") is None, "publishing does not bring it back"
    queue.open()
    queue.publish(6)
    publisher.send(7).result(30)
    with pytest.raises(errors.PublishError):
        publisher.close()
    bodies = {one.message for one in queue.main.fire(100_000)}
    assert {6, 7} <= bodies
    assert 4 not in bodies


def test_a_queue_that_was_made_again_is_used_again(url: str, new_app: MakeApp) -> None:
    app, other = new_app(url, refresher=SOON), new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.publish(1)
    other.remove_queue("jobs", force=True)
    with pytest.raises(errors.QueueRemovedError):
        queue.publish(2)
    other.queue("jobs", int, shards=2).publish(3)

    def stored() -> bool:
        try:
            queue.publish(4)
        except errors.QueueRemovedError:
            return False
        return True

    eventually(stored)
    assert {one.message for one in queue.main.fire(100)} == {3, 4}


def test_the_consumers_of_others_end_and_begin_again(url: str, new_app: MakeApp) -> None:
    app, other = new_app(url, refresher=SOON), new_app(url)
    seen: list[int] = []
    queue = app.queue("jobs", int, shards=2)
    queue.handler(seen.append)
    app.start()
    queue.publish(1)
    eventually(lambda: seen == [1])
    wait_idle(queue)
    other.remove_queue("jobs")
    eventually(lambda: queue.consumer is None and app.refresher.states.get("jobs") == REMOVED)
    assert app.running
    other.queue("jobs", int, shards=2).publish(2)
    app.refresh()
    eventually(lambda: seen == [1, 2])


def test_a_queue_removed_and_made_again_between_two_looks(store_url: str, new_app: MakeApp) -> None:
    app, other = new_app(store_url, refresher=BY_HAND), new_app(store_url)
    seen: list[int] = []
    queue = app.queue("jobs", int, shards=2)
    queue.handler(seen.append)
    app.start()
    other.remove_queue("jobs")
    eventually(lambda: queue.consumer is not None and queue.consumer.failed is not None)
    with (
        closing(app_endpoint("127.0.0.1:0", app)) as endpoint,
        urlopen(f"{endpoint.url}/healthz", timeout=30) as answer,
    ):
        assert answer.status == 200, "a removed queue is no fault of the process"
    other.queue("jobs", int, shards=2).publish(1)
    app.refresh()
    eventually(lambda: seen == [1])


def test_the_own_consumer_is_stopped_or_goes_on(url: str, new_app: MakeApp, gate: Gate) -> None:
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.handler(gate)
    app.start()
    queue.publish(1)
    gate.wait_entered()
    with pytest.raises(errors.QueueNotEmptyError):
        app.remove_queue("jobs")
    gate.open.set()
    queue.publish(2)
    wait_idle(queue)
    app.remove_queue("jobs")
    assert queue.consumer is None
    assert app.queue("jobs", int) is not queue
    with pytest.raises(errors.QueueRemovedError):
        queue.publish(3)


def test_what_is_acknowledged_in_the_moment_of_a_removal_keeps_the_queue(store_url: str, new_app: MakeApp) -> None:
    """`sync`, on stores with transactions."""
    publishing, removing = new_app(store_url), new_app(store_url)
    kept = removed = 0
    for number in range(60):
        name = f"jobs{number}"
        queue = publishing.queue(name, int, shards=1)
        queue.open()
        ready = threading.Barrier(2)
        stored: list[bool] = []

        def publish(queue: ignis.Queue[int] = queue, ready: threading.Barrier = ready, stored: Any = stored) -> None:
            ready.wait(30)
            try:
                queue.publish(1)
                stored.append(True)
            except errors.QueueRemovedError:
                stored.append(False)

        thread = threading.Thread(target=publish)
        thread.start()
        ready.wait(30)
        try:
            removing.remove_queue(name)
            gone = True
        except errors.QueueNotEmptyError:
            gone = False
        thread.join(30)
        assert stored == [not gone]
        kept, removed = kept + (not gone), removed + gone
    assert kept + removed == 60


# -- pausing the fleet


def test_the_whole_fleet_pauses_and_it_lasts(url: str, new_app: MakeApp) -> None:
    one, two = (new_app(url, refresher=SOON) for _ in range(2))
    seen: list[int] = []
    for app in (one, two):
        app.queue("jobs", int, shards=2).handler(seen.append)
        app.start()
    queue, elsewhere = one.queue("jobs"), two.queue("jobs")
    queue.pause()
    assert queue.consumer is not None
    assert elsewhere.consumer is not None
    assert queue.consumer.paused, "at once where it was said"
    eventually(lambda: elsewhere.consumer is not None and elsewhere.consumer.paused)
    eventually(lambda: elsewhere.consumer is not None and elsewhere.consumer.quiet)
    queue.publish_many([1, 2, 3])
    late = new_app(url, refresher=SOON)
    late.queue("jobs", int).handler(seen.append)
    late.start()
    assert late.queue("jobs").stats()["paused"] is True
    two.stop()
    two.start()
    assert elsewhere.consumer is not None
    assert elsewhere.consumer.paused, "a restart does not end it"
    assert (seen, queue.main.pending()) == ([], 3)
    two.resume()
    assert elsewhere.consumer.paused, "that is another pause, of one process"
    elsewhere.resume()
    eventually(lambda: sorted(seen) == [1, 2, 3])
    eventually(lambda: not any(app.queue("jobs").stats()["paused"] for app in (one, two, late)))
    assert "paused" not in extra(one, "jobs")


def test_two_pauses_need_two_ends(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int)
    queue.handler(lambda message: None)
    memory_app.start()
    queue.pause()
    since = extra(memory_app, "jobs")["paused"]
    queue.pause()
    assert extra(memory_app, "jobs")["paused"] == since, "since the first"
    memory_app.pause()
    queue.resume()
    assert queue.consumer is not None
    assert queue.consumer.paused
    memory_app.resume()
    assert not queue.consumer.paused


def test_a_queue_that_is_gone_is_not_made_by_pausing_it(url: str, new_app: MakeApp) -> None:
    app, other = new_app(url), new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.open()
    other.remove_queue("jobs")
    for call in (queue.pause, queue.resume):
        with pytest.raises(errors.QueueRemovedError):
            call()
    assert app.store.queues.get("jobs") is None


def test_only_what_is_ours_is_written(url: str, new_app: MakeApp) -> None:
    """The settings that others share stand as they were."""
    app = new_app(url)
    queue = app.queue("jobs", int, shards=2)
    queue.open()

    def plain() -> QueueRecord:
        record = app.store.queues.get("jobs")
        assert record is not None
        record.extra = {}
        return record

    before = plain()
    queue.pause()
    assert plain() == before


def test_rows_of_spark_are_not_stored_in_a_removed_queue(embedded_url: str, new_app: MakeApp) -> None:
    pa = pytest.importorskip("pyarrow")
    places, publishing = pytest.importorskip("ignis.spark.queue_path"), pytest.importorskip("ignis.spark.publish_task")
    place = places.make_place(embedded_url, "jobs", {}, codec="raw")
    rows = pa.record_batch({"body": pa.array([b"1", b"2"], pa.binary())})
    assert [one.loaded for _, one in publishing.load_rows(place, 0, rows)] == [2]
    app = new_app(embedded_url)
    app.store.queues.remove("jobs")
    with pytest.raises(errors.QueueRemovedError):
        publishing.load_rows(place, 0, rows)
    assert sum(one.pending for one in app.store.magazines.metadata("jobs")) == 2
