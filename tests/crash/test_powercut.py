"""Power cuts, short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_nothing_acknowledged_is_lost_in_a_power_cut(torture: Callable[..., str]) -> None:
    assert ": ok" in torture("powercut", "--short", "--rounds", "2")


@pytest.mark.long
def test_more_power_cuts(torture: Callable[..., str]) -> None:
    assert ": ok" in torture("powercut", "--short", "--rounds", "6")
