"""Delayed messages and retries under kill -9, while the wall clock is set by hours: short form."""

from __future__ import annotations

from collections.abc import Callable


def test_no_delayed_message_is_lost_or_early_and_none_comes_twice(torture: Callable[..., str]) -> None:
    output = torture("later", "--short")
    assert "later/sync: ok rounds=3" in output
    assert "later/interval: ok rounds=3" in output
    assert "mutants=6/6" in output
