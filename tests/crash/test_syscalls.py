"""Failing system calls, short form."""

from __future__ import annotations

from collections.abc import Callable


def test_no_false_acknowledgement_when_system_calls_fail(torture: Callable[..., str]) -> None:
    output = torture("syscalls", "--short")
    assert ": ok" in output
