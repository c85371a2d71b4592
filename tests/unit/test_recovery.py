"""What a process held whose death is known."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from ignis import recovery
from ignis.errors import StoreBusyError
from ignis.recovery import Recovered, recover_owner
from tests.support import sidelined


def test_everything_of_one_owner_and_nothing_else(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_BATCH", 2)
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
    monkeypatch.setattr(recovery, "_BATCH", 2)
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
