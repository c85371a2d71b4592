"""A message is cancelled by its id wherever it is, on every store."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import ignis
from ignis import cancellation
from ignis.cancellation import CANCEL
from ignis.testing import drain
from ignis.told_progress import PROGRESS, progress_of
from tests.contract.support import ONE_KIND, Kind
from tests.support import WAIT_S, eventually


@pytest.fixture
def app(kind: Kind) -> Iterator[ignis.Ignis]:
    with ignis.Ignis(kind.url) as made:
        yield made


def test_what_waits_is_removed(app: ignis.Ignis) -> None:
    queue = app.queue("jobs", str, shards=2)
    ids = queue.publish_many(["a", "b", "c"])
    assert queue.cancel(ids[1]) == "waiting"
    assert queue.cancel(uuid.UUID(ids[1])) is None
    seen: list[str] = []
    queue.handler(seen.append)
    drain(queue)
    assert sorted(seen) == ["a", "c"]
    assert queue.cancel(ids[0]) is None


def test_what_goes_round_meanwhile_is_looked_for_again(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails and is tried again at once may be at no place while that place is looked at."""
    queue = app.queue("jobs", str, shards=1)
    id = queue.publish("a").id
    looks: list[str | None] = []
    look = cancellation._cancel_once

    def slips_through(*args: Any) -> Any:
        if not looks:
            queue.main.reload(queue.main.fire(1))
        looks.append(look(*args) if looks else None)
        return looks[-1]

    monkeypatch.setattr(cancellation, "_cancel_once", slips_through)
    assert queue.cancel(id) == "waiting"
    assert looks == [None, "waiting"]
    assert queue.cancel(id) is None
    assert looks == [None, "waiting", None], "nothing moved meanwhile, so it is nowhere"


def test_what_is_delayed_is_removed(app: ignis.Ignis) -> None:
    if not app.store.magazines.keeps_later:
        pytest.skip("keeps no delayed messages")
    queue = app.queue("jobs", str)
    published = queue.publish("a", delay="1h")
    assert queue.cancel(published.id) == "delayed"
    assert len(queue.later) == 0


@ONE_KIND
def test_what_runs_elsewhere_is_told_and_shows_how_far_it_is(kind: Kind, app: ignis.Ignis) -> None:
    """Another application of the same store cancels it: the request travels through the store."""
    queue = app.queue("jobs", str, shovel_interval=0)
    told, over = threading.Event(), threading.Event()

    @queue.handler
    def handle(body: str, ctx: ignis.Context) -> None:
        while not over.wait(0.005):
            ctx.progress(0.4, "half way")
            if ctx.cancelled:
                told.set()
                return

    published = queue.publish("a", headers={"h": 1})
    app.start()
    try:
        with ignis.Ignis(kind.url) as other:
            records = other.store.queues

            def stored() -> list[tuple[str, float, str]]:
                record = records.get("jobs")
                return [] if record is None else [one[:3] for one in progress_of(record)]

            eventually(lambda: stored() == [(published.id, 0.4, "half way")])
            assert other.queue("jobs", str).cancel(published.id) == "running"
            assert told.wait(WAIT_S)
            aside = other.queue("jobs", str).sideline
            eventually(lambda: aside.pending() == 1)
            message = aside.peek()[0].envelope
            assert (message.id, message.reason, message.headers) == (published.id, "cancelled", {"h": 1})

            def left() -> object:
                record = records.get("jobs")
                return record is None or CANCEL in record.extra or PROGRESS in record.extra

            eventually(lambda: not left())
    finally:
        over.set()
