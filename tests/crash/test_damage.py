"""Bit flips and truncation, short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_damaged_bytes_are_never_delivered(torture: Callable[..., str]) -> None:
    assert ": ok" in torture("damage", "--short", "--rounds", "1")


@pytest.mark.long
def test_damaged_bytes_in_more_places(torture: Callable[..., str]) -> None:
    assert ": ok" in torture("damage", "--short")
