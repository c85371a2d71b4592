"""A paused consumer claims nothing, finishes what it has, and says when it may go."""

from __future__ import annotations

from typing import Any

import pytest

import ignis
from tests.apps import jobs
from tests.conftest import MakeApp
from tests.support import Gate, Journal, eventually, wait_idle


def test_paused_it_claims_nothing_and_resumed_it_does(app: ignis.Ignis) -> None:
    seen: list[int] = []
    queue = app.queue("jobs", int)
    queue.handler(seen.append)
    app.start()
    queue.publish(1)
    wait_idle(queue)
    assert not app.quiet, "not paused"
    app.pause()
    eventually(lambda: app.quiet)
    queue.publish_many([2, 3])
    assert queue.consumer is not None
    # Two looks later it still has nothing.
    assert not [one for one in range(20) if not app.quiet or queue.consumer.in_flight]
    assert (queue.main.pending(), seen) == (2, [1])
    assert queue.consumer.stats()["paused"] is True
    app.resume()
    wait_idle(queue)
    assert sorted(seen) == [1, 2, 3]
    assert not app.quiet


def test_it_is_quiet_only_when_what_it_had_is_stored(app: ignis.Ignis, gate: Gate) -> None:
    queue = app.queue("jobs", int)
    queue.handler(gate)
    app.start()
    queue.publish(1)
    gate.wait_entered()
    app.pause()
    queue.publish(2)
    assert not app.quiet
    gate.open.set()
    eventually(lambda: app.quiet)
    assert (gate.seen, queue.main.in_flight(), queue.main.pending()) == ([1], 0, 1)


def test_a_failure_that_is_being_stored_is_not_quiet(app: ignis.Ignis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = app.queue("jobs", int)
    queue.handler(lambda n: False)
    app.start()
    assert queue.consumer is not None
    transfer, quiet = queue.main.store.transfer, []

    def slow(*args: Any, **kwargs: Any) -> Any:
        app.pause()
        quiet.append(app.quiet)
        result = transfer(*args, **kwargs)
        quiet.append(app.quiet)
        return result

    monkeypatch.setattr(queue.main.store, "transfer", slow)
    queue.publish(1)
    eventually(lambda: app.quiet)
    assert quiet == [False, False]
    assert queue.sideline.pending() == 1


@pytest.mark.parametrize("pool", ["thread", "async", "process"])
def test_with_every_kind_of_worker(embedded_url: str, new_app: MakeApp, journal: Journal, pool: str) -> None:
    app = new_app(embedded_url)
    queue = jobs.register(app, "jobs", pool, concurrency=2)
    app.start()
    queue.publish_many([{"n": n, "do": "none"} for n in range(50)])
    eventually(lambda: len(journal.lines()) > 10)
    app.pause()
    eventually(lambda: app.quiet)
    done = [line for line in journal.lines() if line.startswith("end")]
    assert len(set(done)) == len(done) == 50 - queue.main.pending()
    assert queue.main.in_flight() == 0
    app.resume()
    wait_idle(queue)
    assert len({line for line in journal.lines() if line.startswith("end")}) == 50
