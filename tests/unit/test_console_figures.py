"""The console's figures over time: the age of the oldest message, and how long messages are in a queue."""

from __future__ import annotations

import heapq
import json
import random

import pytest

pytest.importorskip("starlette")

from ignis import Ignis
from ignis.console.openapi import document
from ignis.console.residence import SPAN_S, Residence
from ignis.console.routes import ROUTES
from ignis.console.snapshot import COLUMNS, FIGURES, SLOW_S, Snapshot
from ignis.errors import StoreUnreachableError
from tests.support.console import Someone, a_console

MADE = (1,)


def test_a_message_a_second_that_stays_five_is_five_seconds_in_the_queue() -> None:
    found = Residence(60.0)
    for second in range(60):
        found.look(100.0 + second, min(second, 5), max(0, second - 5), MADE)
    assert found.mean_s() == 5.0


@pytest.mark.parametrize("order", ["first in, first out", "last in, first out"])
def test_the_mean_is_that_of_the_messages_themselves(order: str) -> None:
    """One worker, times drawn at random: the law's mean is that of the stays, which are added up here one by one."""
    draw = random.Random(7)
    comes, queue, stays, events = 0.0, [], [], []
    for _ in range(400):
        comes += draw.expovariate(20.0)
        events.append((comes, "comes"))
    heapq.heapify(events)
    busy, changes = False, [(0.0, 0, 0)]
    while events:
        now, what = heapq.heappop(events)
        if what == "comes":
            queue.append(now)
        else:
            stays.append(now - float(what))
            busy = False
        if queue and not busy:
            busy = True
            since = queue.pop(0 if order.startswith("first") else -1)
            heapq.heappush(events, (now + draw.uniform(0.01, 0.08), repr(since)))
        changes.append((now, len(queue) + busy, len(stays)))
    assert len(stays) == 400
    assert changes[-1][0] < SPAN_S  # all of it is within one span, which begins and ends with an empty queue
    found, at = Residence(60.0), 0
    for step in range(int(changes[-1][0] * 100) + 3):
        while at + 1 < len(changes) and changes[at + 1][0] <= step / 100:
            at += 1
        found.look(1_000 + step / 100, *changes[at][1:], MADE)
    mean_s = found.mean_s()
    assert mean_s == pytest.approx(sum(stays) / len(stays), rel=0.02)
    assert mean_s > 0.05


def test_nothing_is_said_where_nothing_left_or_nobody_looked() -> None:
    found = Residence(60.0)
    assert found.mean_s() is None
    found.look(0.0, 3, 0, MADE)
    found.look(2.0, 5, 0, MADE)
    assert found.mean_s() is None  # none has left
    found.look(4.0, 5, 10, MADE)
    assert found.mean_s() == pytest.approx((8 + 10) / 10)
    found.look(65.0, 5, 40, MADE)
    assert found.mean_s() is None  # nobody saw how many there were
    found.look(67.0, 5, 50, MADE)
    assert found.mean_s() == pytest.approx(1.0)
    found.look(69.0, 5, 3, (2,))
    assert found.mean_s() is None  # a new queue of that name
    found.look(71.0, 5, 4, (2,))
    found.look(70.0, 5, 5, (2,))
    assert found.mean_s() is None  # the clock was set back


def test_what_was_long_ago_counts_no_more() -> None:
    found = Residence(60.0)
    for second in range(0, 60, 2):  # a hundred wait, one a second leaves
        found.look(float(second), 100, second, MADE)
    assert found.mean_s() == pytest.approx(100.0)
    for second in range(60, 60 + int(SPAN_S) + 2, 2):  # none waits, ten a second leave
        found.look(float(second), 1, 60 + (second - 60) * 10, MADE)
    assert found.mean_s() == pytest.approx(0.1)


def test_both_are_in_the_row_the_points_and_the_description(memory_app: Ignis) -> None:
    jobs = memory_app.queue("jobs", dict, shards=4)
    jobs.open()
    now_s = [0.0]
    began_s = memory_app.store.wall_s()
    snapshot = Snapshot(lambda: memory_app.store, clock=lambda: now_s[0], now_s=lambda: began_s + now_s[0])
    row = snapshot.get().queues["jobs"]
    assert (row["oldest_age_s"], row["latency_s"]) == (None, None)
    jobs.publish_many([{}] * 40)
    now_s[0] = 10.0
    assert snapshot.get().queues["jobs"]["latency_s"] is None
    # Twenty on average for ten seconds and then thirty, of which twenty leave.
    jobs.main.delete(jobs.main.fire(20))
    now_s[0] = 20.0
    found = snapshot.get()
    row = found.queues["jobs"]
    assert row["latency_s"] == pytest.approx((20 * 10 + 30 * 10) / 20, abs=0.001)
    assert 0 < row["oldest_age_s"] <= 20
    point = dict(zip(COLUMNS, found.history["jobs"][-1], strict=True))
    assert {**point, "at_s": 0} == {"at_s": 0, **{name: row[name] for name in COLUMNS[1:]}}
    now_s[0] = 200.0
    assert snapshot.get().queues["jobs"]["latency_s"] is None
    memory_app.store.remove_queue("jobs", force=True)
    now_s[0] = 210.0
    assert "jobs" not in snapshot.get().queues


def test_each_figure_is_described_once(memory_app: Ignis) -> None:
    described = json.loads(json.dumps(document(ROUTES)))["x-ignis-figures"]
    assert described == FIGURES
    assert described["latency_s"]["scope"] == described["oldest_age_s"]["scope"] == "fleet"
    memory_app.queue("jobs", dict).open()
    with a_console(memory_app) as console:
        found = Someone(console).get("/overview")
    assert found["figures"] == FIGURES
    assert tuple(found["history_columns"]) == COLUMNS
    assert set(COLUMNS[1:]) <= set(FIGURES)
    assert [len(point) for point in found["history"]["jobs"]] == [len(COLUMNS)]


def test_a_store_that_gives_no_answer_is_told_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    with Ignis("memory://") as app:
        app.queue("orders", dict, shards=1).open()
        snapshot = Snapshot(lambda: app.store, clock=lambda: now[0], now_s=lambda: 1_000.0 + now[0])
        snapshot.get()
        assert snapshot.trouble() is None
        listed = app.store.queues.list

        def refuse() -> object:
            now[0] += SLOW_S + 2
            told.append(snapshot.trouble())
            raise StoreUnreachableError("ignis://u:secret@a:1: Connection refused")

        told: list[object] = []
        monkeypatch.setattr(app.store.queues, "list", refuse)
        now[0] += 60
        snapshot.get()
        assert told == [(1_100.0, "the store has not answered for 7 s")]
        found = snapshot.trouble()
        assert found is not None
        assert found.since_s == 1_100.0
        assert "Connection refused" in found.message
        assert "secret" not in found.message
        monkeypatch.setattr(app.store.queues, "list", listed)
        now[0] += 60
        snapshot.get()
        assert snapshot.trouble() is None
