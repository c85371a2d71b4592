"""Leaders that die or stop at every step of firing a tick: short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_no_tick_twice_and_none_missing_whatever_happens_to_the_leader(torture: Callable[..., str]) -> None:
    output = torture("schedules", "--short", "--no-mutants")
    assert "schedules/killed: ok rounds=20" in output
    assert "schedules/stopped: ok rounds=3" in output
    assert "schedules/clock: ok rounds=8" in output


@pytest.mark.long
def test_the_planted_fault_is_caught(torture: Callable[..., str]) -> None:
    assert "mutants=1/1" in torture("schedules", "--short")
