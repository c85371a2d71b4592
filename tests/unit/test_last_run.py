"""Schedules of a fleet whose processes live for less than the interval."""

from __future__ import annotations

import pytest

import ignis
from ignis.last_run import due_in_s
from ignis.shovel_schedule import SHOVELLED
from ignis.testing import ManualClock
from tests.conftest import MakeApp
from tests.support import eventually
from tests.unit.test_shovel import fill


@pytest.mark.parametrize(
    ("last_s", "least_s", "most_s"),
    [(None, 100, 100), (1_000, 100, 100), (960, 60, 60), (900, 0, 5), (0, 0, 5), (1_001, 100, 100)],
)
def test_when_it_is_due(last_s: float | None, least_s: float, most_s: float) -> None:
    assert least_s <= due_in_s(100, last_s, 1_000) <= most_s


def test_the_shovel_of_processes_that_live_for_a_short_time(new_app: MakeApp) -> None:
    clock = ManualClock()
    app = new_app("memory://", clock=clock)
    queue = app.queue("jobs", int, shards=1, shovel_interval=600)
    fill(queue, 1)
    for _ in range(2):
        queue.shovel.start()
        clock.advance(250)
        queue.shovel.stop()  # the process ends
    queue.shovel.start()
    clock.advance(101)
    eventually(lambda: queue.main.pending() == 1)
    queue.shovel.stop()


def test_a_pass_is_stored_for_those_that_start_later(memory_app: ignis.Ignis) -> None:
    queue = memory_app.queue("jobs", int, shards=1, shovel_interval=0.01)
    fill(queue, 1)
    queue.shovel.start()
    began_ms = memory_app.store.queues.get("jobs").extra[SHOVELLED]  # type: ignore[union-attr]
    eventually(lambda: memory_app.store.queues.get("jobs").extra[SHOVELLED] > began_ms)  # type: ignore[union-attr]
    queue.shovel.stop()


def test_the_sweeper_of_processes_that_live_for_a_short_time(new_app: MakeApp) -> None:
    """Each leads for the rest of the delay, from when the queue was made, and then from the last pass."""
    clock = ManualClock()
    app = new_app("memory://", clock=clock, sweeper={"initial_delay": 600, "interval": 900})
    app.queue("jobs", int).open()
    sweeper = app.sweeper()
    for _ in range(2):
        sweeper.start()
        clock.advance(250)
        sweeper.stop()
    assert sweeper.passes == 0
    sweeper.start()
    for _ in range(11):  # less than the delay: its thread may look at the clock at any time
        clock.advance(10)
    before_s = clock()
    eventually(lambda: sweeper.passes == 1 or (clock.advance(1) - before_s > 300))
    assert sweeper.passes == 1
    sweeper.stop()
