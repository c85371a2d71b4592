"""The tests of the programme find faults that were planted: a checker that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.long
def test_planted_faults_are_caught(torture: Callable[..., str]) -> None:
    output = torture("mutants", "--short")
    assert ": ok" in output
