"""Delayed messages and retries under kill -9, while the wall clock is set by hours: short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_no_delayed_message_is_lost_or_early_and_none_comes_twice(torture: Callable[..., str]) -> None:
    output = torture("later", "--short", "--rounds", "1", "--no-mutants")
    assert "later/sync: ok rounds=1" in output
    assert "later/interval: ok rounds=1" in output


@pytest.mark.long
def test_planted_faults_are_caught(torture: Callable[..., str]) -> None:
    assert "mutants=6/6" in torture("later", "--short")
