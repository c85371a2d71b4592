"""kill -9 of the relay and its producers, short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_nothing_sent_is_lost_when_relay_or_producers_die(torture: Callable[..., str]) -> None:
    output = torture("relay", "--short", "--rounds", "1", "--no-mutants")
    assert "relay-kill9/sync: ok" in output
    assert "relay-steps: ok" in output
    assert "relay-jobs: ok" in output


@pytest.mark.long
def test_planted_faults_are_caught(torture: Callable[..., str]) -> None:
    assert "mutants=3/3" in torture("relay", "--short")
