"""A queue that was used before it had its handler, or whose magazine was asked for with other shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from ignis.errors import QueueMismatchError
from tests.support import eventually, wait_idle


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"embedded://{tmp_path}/store"


@pytest.fixture
def app(url: str) -> Iterator[ignis.Ignis]:
    with ignis.Ignis(url, refresher={"watch_s": 0.05, "initial_delay_s": 0.05, "interval_s": 0.05}) as made:
        yield made


def workers(queue: ignis.Queue) -> tuple[int, int, int]:
    """Asked for here, at work, stored."""
    record = queue.app.store.queues.get(queue.name)
    assert record is not None
    return queue.consumers, queue.consumer.stats()["consumers"] if queue.consumer else 0, record.concurrency


def test_a_handler_registered_after_the_first_use_keeps_its_workers(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", int)
    queue.publish(1)
    done: list[int] = []
    queue.handler(concurrency=8)(done.append)
    stored = app.store.queues.get("jobs")
    assert stored is not None
    assert (stored.concurrency, stored.handler_type) == (8, "list.append")
    app.start()
    passes = app.refresher.passes
    eventually(lambda: app.refresher.passes > passes + 2, "the refresher has looked")
    assert queue.consumers == 8
    wait_idle(queue)
    assert done == [1]


def test_a_handler_registered_while_the_application_runs_keeps_its_workers(app: ignis.Ignis) -> None:
    app.queue("other", int).handler(noop)
    queue = app.queue("jobs", int)
    queue.publish(1)
    app.start()
    queue.handler(concurrency=8)(noop)
    seen: set[int] = set()
    eventually(lambda: queue.consumer is not None, "found by the refresher")
    passes = app.refresher.passes
    while app.refresher.passes < passes + 3:
        seen.add(queue.consumers)
    assert seen == {8}


def noop(message: int) -> None: ...


def test_what_was_set_by_hand_stays(url: str) -> None:
    with ignis.Ignis(url) as first:
        first.queue("jobs", int).handler(concurrency=8)(noop)
        first.queue("jobs", int).open()
        first.queue("jobs", int).decrease_consumers(5)
        with ignis.Ignis(url) as second:
            queue = second.queue("jobs", int)
            queue.publish(1)
            queue.handler(concurrency=8)(noop)
            assert queue.consumers == 3


def test_a_template_without_a_concurrency_takes_the_stored_one(app: ignis.Ignis) -> None:
    app.handler("jobs*", int)(noop)
    queue = app.queue("jobs-1", int)
    queue.publish(1)
    app.store.queues.update("jobs-1", lambda record: setattr(record, "concurrency", 5))
    app.start()
    eventually(lambda: queue.consumer is not None)
    assert queue.consumers == 5
    stored = app.store.queues.get("jobs-1")
    assert stored is not None
    assert stored.concurrency == 5


def test_a_store_that_cannot_be_asked_leaves_the_queue_without_handler(
    app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = app.queue("jobs", int)
    queue.publish(1)
    with monkeypatch.context() as patch:
        patch.setattr(app.store.queues, "get", lambda name: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            queue.handler(concurrency=8)(noop)
    queue.handler(concurrency=8)(noop)
    assert queue.consumers == 8


def test_a_magazine_keeps_its_shards(url: str) -> None:
    with ignis.Ignis(url) as app:
        queue = app.queue("q", int, shards=2)
        queue.publish_many(range(10), key=str)
        for name in ("q", "q_SIDELINE"):
            with pytest.raises(
                QueueMismatchError, match=rf"{name}' has 2 shards, asked for 8.*app\.queue\(name, shards=8"
            ):
                app.magazine(name, int, shards=8)
        assert app.magazine("q", int).shards == 2
        assert len(app.store.magazines.metadata("q")) == 2
        app.queue("worker", int)  # the process that comes next: as another application object on the same store
        with ignis.Ignis(url) as worker:
            done: list[int] = []
            worker.queue("q", int).handler(done.append)
            worker.start(["q"])
            wait_idle(worker.queue("q"))
            assert sorted(done) == list(range(10))


def test_a_queue_gets_more_shards_by_its_own_call(url: str) -> None:
    with ignis.Ignis(url) as app:
        app.queue("q", int, shards=2).publish(1)
        app.close()
        app.queue("q", int, shards=8).publish(2)
        stored = app.store.queues.get("q")
        assert stored is not None
        assert stored.shards == len(app.store.magazines.metadata("q")) == app.magazine("q", int).shards == 8


def test_workers_start_where_the_magazine_has_more_shards_than_the_record_says(url: str) -> None:
    with ignis.Ignis(url) as app:
        app.queue("q", int, shards=2).publish(1)
        app.store.magazines.declare("q", 8)  # as it was possible by mistake
        magazine = app.magazine("q", int)
        assert magazine.shards == 8
        magazine.load_many(range(20), keys=[str(n) for n in range(20)])
        with ignis.Ignis(url) as worker:
            done: list[int] = []
            queue = worker.queue("q", int)
            queue.handler(done.append)
            worker.start()
            wait_idle(queue)
            assert len(done) == 21
            assert queue.settings.shards == 8
