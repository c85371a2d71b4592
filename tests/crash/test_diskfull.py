"""Disk full and store full, short form."""

from __future__ import annotations

from collections.abc import Callable


def test_full_disk_and_full_store_refuse_loads_and_recover(torture: Callable[..., str]) -> None:
    output = torture("diskfull", "--short", "--rounds", "1")
    assert ": ok" in output
