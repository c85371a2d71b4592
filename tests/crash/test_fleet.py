"""A fleet under fire, and one that is scaled up and down: short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_nothing_is_lost_and_nothing_is_doubled_by_scaling(torture: Callable[..., str]) -> None:
    output = torture("fleet", "--short", "--seconds", "4", "--no-mutants")
    assert "fleet/embedded: ok" in output
    assert "autoscaling/embedded: ok" in output
    assert "peak=2" in output


@pytest.mark.long
def test_planted_faults_are_caught(torture: Callable[..., str]) -> None:
    output = torture("fleet", "--short")
    assert "fleet/embedded: ok" in output
    assert "mutants=3/3" in output
