"""Power cuts, short form."""

from __future__ import annotations

from collections.abc import Callable


def test_nothing_acknowledged_is_lost_in_a_power_cut(torture: Callable[..., str]) -> None:
    output = torture("powercut", "--short", "--rounds", "6")
    assert ": ok" in output
