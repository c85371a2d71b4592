"""Hooks after publishing and after handling."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from tests.support import eventually, wait_idle


def test_after_publish_counts_every_way_in(app: ignis.Ignis) -> None:
    told: list[tuple[str, int]] = []
    queue = app.queue("jobs", int)
    with queue.publisher() as early:
        app.after_publish(lambda name, count: told.append((name, count)))
        queue.publish(1)
        assert told == [("jobs", 1)]
        queue.publish_many(range(5))
        assert told[1:] == [("jobs", 5)]
        for n in range(10):
            early.send(n)
        early.flush()
        eventually(lambda: sum(count for _, count in told) == 16)
    assert queue.stats()["published"] == 16


def test_after_publish_is_silent_when_nothing_was_stored(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    app.after_publish(lambda *args: told.append(args))
    queue = app.queue("jobs", int)
    queue.open()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ignis.errors.StoreFullError("no room")

    monkeypatch.setattr(queue.main.store, "load", refuse)
    monkeypatch.setattr(queue.main.store, "load_body", refuse)
    with pytest.raises(ignis.errors.StoreFullError):
        queue.publish(1)
    assert told == []


def test_after_handling_counts_what_is_stored(app: ignis.Ignis) -> None:
    told: list[tuple[str, int, int]] = []
    queue = app.queue("jobs", int)
    queue.handler(lambda n: n % 3 != 0)
    app.after_handling(lambda name, handled, sidelined: told.append((name, handled, sidelined)))
    queue.publish_many(range(30))
    app.start()
    wait_idle(queue)
    eventually(lambda: (sum(one[1] for one in told), sum(one[2] for one in told)) == (20, 10))
    assert {one[0] for one in told} == {"jobs"}


def test_a_hook_that_raises_hurts_nobody(app: ignis.Ignis, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    queue = app.queue("jobs", int)
    queue.handler(lambda n: True)

    @app.after_publish
    def first(name: str, count: int) -> None:
        raise RuntimeError("publish hook")

    @app.after_publish
    def second(name: str, count: int) -> None:
        told.append("published")

    @app.after_handling
    def third(name: str, handled: int, sidelined: int) -> None:
        told.append("handled")
        raise RuntimeError("handling hook")

    queue.publish(1)
    with queue.publisher() as publisher:
        publisher.send(2)
    app.start()
    wait_idle(queue)
    eventually(lambda: "handled" in told)
    assert told.count("published") == 2
    assert queue.consumer is not None
    assert queue.consumer.failed is None
    assert "after_publish hook failed for 1 message(s) of jobs" in caplog.text
    eventually(lambda: "after_handling hook failed" in caplog.text)
    assert app.stop()
