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


def test_all_makes_up_the_newest_of_a_period() -> None:
    done, fired, left_out = 0, [], 0
    while (step := plan(HOURLY, done, 1_000 * H + 1, GRACE_MS, "all", made_up=250)) is not None:
        fired += step.ticks
        left_out += step.missed
        done = step.done_ms
    assert fired == [n * H for n in range(751, 1_001)]
    assert left_out == 750


def test_ticks_in_time_are_fired_however_few_are_made_up() -> None:
    assert plan(Every(0, 1_000), 0, 100_000, GRACE_MS, "all", made_up=1) == Plan(
        [n * 1_000 for n in range(40, 101)], 39, 100_000
    )


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_decades_of_a_cron_expression_are_not_counted_one_by_one(missed: str) -> None:
    timing, now_ms = Cron("* * * * *"), 1_772_366_400_000
    year_ms = 366 * 24 * H
    first = plan(timing, 0, now_ms, GRACE_MS, missed)
    assert first == Plan([], MOST_COUNTED, now_ms - year_ms), "behind it the last year is left"
    second = plan(timing, first.done_ms, now_ms, GRACE_MS, missed)
    assert second is not None
    if missed == "all":
        assert (second.ticks[0], len(second.ticks)) == (now_ms - year_ms + MINUTE_MS, MOST_TICKS)
    else:
        assert second.missed == MOST_COUNTED


def test_a_rare_cron_expression_is_made_up_for_a_year() -> None:
    timing, day_ms = Cron("0 0 1 1 *"), 24 * H
    step = plan(timing, 0, 366 * day_ms, GRACE_MS, "all", made_up=1)
    assert step == Plan([365 * day_ms], 0, 365 * day_ms)
