"""Which ticks are fired and which were missed, by each policy."""

from __future__ import annotations

import pytest

from ignis.schedules.due import MOST_TICKS, Plan, plan
from ignis.schedules.timing import MOST_COUNTED, Cron, Every

GRACE_MS = 60_000
MINUTE_MS = 60_000
HOURLY = Every(0, 60 * MINUTE_MS)
H = 60 * MINUTE_MS


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_tick_in_time_is_fired_by_every_policy(missed: str) -> None:
    assert plan(HOURLY, 0, H - 1, GRACE_MS, missed) is None
    assert plan(HOURLY, 0, H, GRACE_MS, missed) == Plan([H], 0, H)
    assert plan(HOURLY, 0, H + GRACE_MS, GRACE_MS, missed) == Plan([H], 0, H)
    assert plan(HOURLY, H, H + GRACE_MS, GRACE_MS, missed) is None


@pytest.mark.parametrize(
    ("missed", "now_ms", "expected"),
    [
        ("skip", H + GRACE_MS + 1, Plan([], 1, H)),
        ("once", H + GRACE_MS + 1, Plan([H], 0, H)),
        ("all", H + GRACE_MS + 1, Plan([H], 0, H)),
        ("skip", 3 * H, Plan([3 * H], 2, 3 * H)),
        ("once", 3 * H, Plan([3 * H], 2, 3 * H)),
        ("all", 3 * H, Plan([H, 2 * H, 3 * H], 0, 3 * H)),
        ("skip", 4 * H - 1, Plan([], 3, 3 * H)),
        ("once", 4 * H - 1, Plan([3 * H], 2, 3 * H)),
        ("all", 4 * H - 1, Plan([H, 2 * H, 3 * H], 0, 3 * H)),
    ],
)
def test_missed_ticks(missed: str, now_ms: int, expected: Plan) -> None:
    assert plan(HOURLY, 0, now_ms, GRACE_MS, missed) == expected


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_clock_behind_the_last_tick_fires_nothing(missed: str) -> None:
    assert plan(HOURLY, 10 * H, 3 * H, GRACE_MS, missed) is None


def test_all_is_bounded_in_one_look() -> None:
    first = plan(HOURLY, 0, 250 * H, GRACE_MS, "all")
    assert first == Plan([n * H for n in range(1, MOST_TICKS + 1)], 0, MOST_TICKS * H)
    fired, done = [], 0
    while (step := plan(HOURLY, done, 250 * H, GRACE_MS, "all")) is not None:
        assert len(step.ticks) <= MOST_TICKS
        fired += step.ticks
        done = step.done_ms
    assert fired == [n * H for n in range(1, 251)]


@pytest.mark.parametrize(("missed", "fires"), [("skip", []), ("once", [1])])
def test_a_year_away_is_counted_in_steps(missed: str, fires: list[int]) -> None:
    timing = Cron("* * * * *")
    last = 2 * MOST_COUNTED + 5
    now_ms = (last + 1) * MINUTE_MS - 1
    steps, done = [], 0
    while (step := plan(timing, done, now_ms, GRACE_MS - MINUTE_MS, missed)) is not None:
        steps.append(step)
        done = step.done_ms
    assert len(steps) == 3
    assert [len(one.ticks) for one in steps if one.ticks] == fires
    assert sum(one.missed + len(one.ticks) for one in steps) == last
    assert done == last * MINUTE_MS
