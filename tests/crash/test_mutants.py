"""The tests of the programme find faults that were planted: a checker that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.timeout(300)  # as many rounds as it takes to see each fault, on a machine that does other things too
def test_planted_faults_are_caught(torture: Callable[..., str]) -> None:
    output = torture("mutants", "--short")
    assert ": ok" in output
