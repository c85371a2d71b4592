"""kill -9 of every actor, short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_nothing_acknowledged_is_lost_when_any_actor_dies(torture: Callable[..., str]) -> None:
    output = torture("kill9", "--short", "--rounds", "2")
    assert ": ok" in output
    assert "/contained: ok" in output or "/contained: SKIPPED" in output


@pytest.mark.long
def test_more_deaths(torture: Callable[..., str]) -> None:
    assert ": ok" in torture("kill9", "--short", "--rounds", "4")
