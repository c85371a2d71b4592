"""kill -9 of the relay and its producers, short form."""

from __future__ import annotations

from collections.abc import Callable


def test_nothing_sent_is_lost_when_relay_or_producers_die(torture: Callable[..., str]) -> None:
    output = torture("relay", "--short")
    assert "relay-kill9/sync: ok" in output
    assert "relay-steps: ok" in output
    assert "relay-jobs: ok" in output
    assert "mutants=3/3" in output
