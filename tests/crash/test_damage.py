"""Bit flips and truncation, short form."""

from __future__ import annotations

from collections.abc import Callable


def test_damaged_bytes_are_never_delivered(torture: Callable[..., str]) -> None:
    output = torture("damage", "--short")
    assert ": ok" in output
