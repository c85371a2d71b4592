"""What a process held whose death is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import ignis
from ignis.control import redelivery
from ignis.control.redelivery import Recovered, recover_dead, recover_owner
from ignis.errors import StoreBusyError, StoreFullError
from ignis.storage.base import Transfer
from tests.support import eventually, sidelined


def test_everything_of_one_owner_and_nothing_else(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivery, "_BATCH", 2)
    queues = [app.queue(name, int, shards=2) for name in ("one", "two")]
    for queue in queues:
        queue.publish_many(range(10))
        queue.sideline.store.load_records(queue.sideline.name, 1, [one.record or b"" for one in queue.main.peek(3)])
        for owner, count in (("gone", 5), ("living", 4)):
            queue.main.store.fire(queue.name, count, owner)
        queue.sideline.store.fire(queue.sideline.name, 2, "gone")
    app.queue("never.used").open()
    assert recover_owner(app.store, "gone", "it ended with signal 9") == Recovered(sidelined=10, returned=4)
    for queue in queues:
        assert (queue.main.pending(), queue.main.in_flight(), queue.sideline.in_flight()) == (1, 4, 0)
        swept = [message for message in sidelined(queue) if message.reason]
        assert [(one.reason, one.crashes, one.error) for one in swept] == [
            ("abandoned", 1, "claimed by gone: it ended with signal 9")
        ] * 5
    assert recover_owner(app.store, "gone", "again") == Recovered()


def test_an_inactive_queue_too(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int, shards=1)
    queue.publish(1)
    queue.main.store.fire("jobs", 1, "gone")
    app.store.queues.update("jobs", lambda record: setattr(record, "active", False))
    assert recover_owner(app.store, "gone", "why") == Recovered(sidelined=1)


def test_a_failure_in_between_can_be_repeated(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivery, "_BATCH", 2)
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(6))
    queue.main.store.fire("jobs", 6, "gone")
    transfer, calls = app.store.magazines.transfer, [0]

    def busy(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise StoreBusyError("held")
        return transfer(*args, **kwargs)

    monkeypatch.setattr(app.store.magazines, "transfer", busy)
    with pytest.raises(StoreBusyError):
        recover_owner(app.store, "gone", "why")
    assert queue.main.in_flight() == 4
    assert recover_owner(app.store, "gone", "why") == Recovered(sidelined=4)
    assert len(sidelined(queue)) == 6


def test_only_of_the_dead_and_of_one_queue(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [app.queue(name, int, shards=2) for name in ("one", "two")]
    for queue in queues:
        queue.publish_many(range(10))
        queue.sideline.store.load_records(queue.sideline.name, 1, [one.record or b"" for one in queue.main.peek(3)])
        for owner, count in (("gone", 5), ("living", 4)):
            queue.main.store.fire(queue.name, count, owner)
        queue.sideline.store.fire(queue.sideline.name, 2, "gone")
    record = app.store.queues.get("one")
    assert record is not None
    assert recover_dead(app.store, record) == Recovered(), "nobody is known to be dead"
    monkeypatch.setattr(app.store.magazines, "claimants", lambda magazine: {"gone": True, "living": False})
    assert recover_dead(app.store, record) == Recovered(sidelined=5, returned=2)
    assert [(one.main.in_flight(), one.sideline.in_flight()) for one in queues] == [(4, 0), (9, 2)]
    app.queue("never.used").open()
    unused = app.store.queues.get("never.used")
    assert unused is not None
    assert recover_dead(app.store, unused) == Recovered()


def test_a_start_goes_on_where_the_dead_cannot_be_asked_for(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(magazine: str) -> dict[str, bool]:
        raise StoreBusyError("held")

    monkeypatch.setattr(app.store.magazines, "claimants", busy)
    queue = app.queue("jobs", int)
    queue.handler(lambda message: None)
    queue.publish(1)
    app.start()
    eventually(lambda: not queue.main.pending() and not queue.main.in_flight())
    assert "what dead processes held of jobs is left to the sweeper: held" in caplog.text


def test_what_was_moved_before_an_error_is_counted(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        queue = app.queue(name, bytes, shards=1)
        queue.publish_many([b"x"] * 3)
        queue.main.store.fire(name, 3, "gone")
    transfer = app.store.magazines.transfer

    def refused(source: str, *args: Any, **kwargs: Any) -> int:
        if source == "second":
            raise StoreFullError("no room")
        return transfer(source, *args, **kwargs)

    monkeypatch.setattr(app.store.magazines, "transfer", refused)
    found = Recovered()
    with pytest.raises(StoreFullError):
        recover_owner(app.store, "gone", "why", found)
    assert found.aside["first", "abandoned"] == found.sidelined == 3


def test_a_start_waits_for_no_room_on_a_full_store(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tried in ever smaller parts for minutes, and the consumer whose acknowledgements give room did not start."""
    queue = app.queue("jobs", int, shards=1)
    queue.publish_many(range(10))
    queue.main.store.fire("jobs", 5, "gone")
    monkeypatch.setattr(app.store.magazines, "claimants", lambda magazine: {"gone": magazine == "jobs"})
    asked: list[int] = []

    def full(source: str, target: str, items: Sequence[Transfer], **kwargs: Any) -> int:
        asked.append(len(items))
        raise StoreFullError("full")

    monkeypatch.setattr(app.store.magazines, "transfer", full)
    handled: list[int] = []

    @queue.handler
    def handle(message: int) -> None:
        handled.append(message)

    queue.start()
    try:
        eventually(lambda: sorted(handled) == [5, 6, 7, 8, 9])
        assert asked == [5]
    finally:
        queue.stop(10.0)
